//! Completions for shells; names come from the server.
//!
//! A completion must not disturb: without a server, or with a slow one, there are no names and no message.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};
use serde::de::DeserializeOwned;

use super::fetch::{all, newest, whole};
use super::server::ServerArgs;
use crate::client::{Client, ClientError};
use crate::domain::layout::replay::Replay;
use crate::domain::operation::Operation;
use crate::domain::token::TokenState;
use crate::service::access::tokens::TokenView;
use crate::service::daemons::DaemonView;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::host::GpuView;
use crate::service::incidents::IncidentView;
use crate::service::layouts::LayoutView;
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;

/// The longest that a completion waits for the server.
const PATIENCE: Duration = Duration::from_millis(700);
/// Number of candidates from a list that grows without end, such as that of operations.
const LATEST: usize = 50;
/// The variable by which a shell asks for completions.
const VARIABLE: &str = "MPS_MANAGER_COMPLETE";

/// Answers a shell that asks for completions, and ends; returns otherwise.
pub(super) fn answer_shell<C: CommandFactory>() {
    CompleteEnv::with_factory(C::command).var(VARIABLE).completer("mps-manager").complete();
}

/// A shell with completions.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(super) enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script that a shell loads.
pub(super) fn print_script(shell: CompletedShell) -> Result<ExitCode, String> {
    let name = match shell {
        CompletedShell::Bash => "bash",
        CompletedShell::Zsh => "zsh",
        CompletedShell::Fish => "fish",
    };
    let shells = Shells::builtins();
    let script = shells.completer(name).ok_or_else(|| format!("there are no completions for {name}"))?;
    script
        .write_registration(VARIABLE, "mps-manager", "mps-manager", "mps-manager", &mut std::io::stdout())
        .map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a candidate for each item of a list: its name, with a word of help.
fn candidates<T: DeserializeOwned>(path: &str, of: fn(T) -> (String, String)) -> Vec<CompletionCandidate> {
    offered(&async |client: &Client| all::<T>(client, path).await, of)
}

fn offered<T>(
    read: &impl AsyncFn(&Client) -> Result<Vec<T>, ClientError>,
    of: fn(T) -> (String, String),
) -> Vec<CompletionCandidate> {
    let read = async {
        let client = ServerArgs::default().client().ok()?;
        tokio::time::timeout(PATIENCE, read(&client)).await.ok()?.ok()
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let items = runtime.ok().and_then(|runtime| runtime.block_on(read)).unwrap_or_default();
    let candidate = |item| {
        let (name, about) = of(item);
        CompletionCandidate::new(OsString::from(name)).help(Some(about.into()))
    };
    items.into_iter().map(candidate).collect()
}

/// Returns candidates for the [`LATEST`] newest items of a list that grows without end.
fn latest<T: DeserializeOwned>(path: &str, of: fn(T) -> (String, String)) -> Vec<CompletionCandidate> {
    offered(&async |client: &Client| newest::<T>(client, path, LATEST).await, of)
}

/// The daemons of the server.
pub(super) fn daemons() -> Vec<CompletionCandidate> {
    candidates("/api/v1/daemons", |daemon: DaemonView| {
        (
            daemon.name.to_string(),
            daemon.status.map_or_else(String::new, |status| super::output::word(status.phase)),
        )
    })
}

/// The tenants of the server.
pub(super) fn tenants() -> Vec<CompletionCandidate> {
    candidates("/api/v1/tenants", |tenant: TenantView| {
        (tenant.name.to_string(), format!("on {}", tenant.spec.daemon))
    })
}

/// The layouts of the server.
pub(super) fn layouts() -> Vec<CompletionCandidate> {
    candidates("/api/v1/layouts", |layout: LayoutView| {
        (layout.newest.name.to_string(), format!("version {}", layout.newest.version))
    })
}

/// The GPUs of the server, by index.
pub(super) fn gpus() -> Vec<CompletionCandidate> {
    let of = |gpu: GpuView| {
        let name = gpu.index.map_or_else(|| gpu.uuid.to_string(), |index| index.to_string());
        (name, gpu.name.unwrap_or_default())
    };
    offered(&async |client: &Client| whole(client, "/api/v1/gpus").await, of)
}

/// Simulated hosts; others are made of the same parts.
pub(super) fn profiles() -> Vec<CompletionCandidate> {
    let profiles = [
        ("h200x2", "two H200 with MPS of CUDA 13.1"),
        ("h200x8", "eight H200"),
        ("h100x8", "eight H100"),
        ("a100x8", "eight A100"),
        ("l40sx4", "four L40S"),
        ("h200x2@12.8", "two H200 with MPS of CUDA 12.8, without static partitions"),
    ];
    profiles.map(|(name, about)| CompletionCandidate::new(name).help(Some(about.into()))).into()
}

/// The operations of the server.
pub(super) fn operations() -> Vec<CompletionCandidate> {
    latest("/api/v1/operations", |operation: Operation| {
        (operation.id.to_string(), format!("{}, {}", operation.request.kind(), operation.state.as_str()))
    })
}

/// The replays of the server.
pub(super) fn replays() -> Vec<CompletionCandidate> {
    latest("/api/v1/replays", |replay: Replay| {
        (replay.id.to_string(), format!("{} on {}", replay.layout, replay.daemon))
    })
}

/// The incidents of the server.
pub(super) fn incidents() -> Vec<CompletionCandidate> {
    latest("/api/v1/incidents", |incident: IncidentView| (incident.id.to_string(), incident.summary))
}

/// The active tokens of the server, by ID.
pub(super) fn tokens() -> Vec<CompletionCandidate> {
    let read = async |client: &Client| {
        let mut tokens: Vec<TokenView> = all(client, "/api/v1/tokens").await?;
        tokens.retain(|token| token.state == TokenState::Active);
        Ok::<_, ClientError>(tokens)
    };
    offered(&read, |token: TokenView| (token.id.to_string(), format!("{}, {}", token.name, token.grant)))
}

/// The control daemons that the server does not own.
pub(super) fn foreign_daemons() -> Vec<CompletionCandidate> {
    let of = |daemon: ForeignDaemonView| (daemon.id.to_string(), daemon.pipe_directory.unwrap_or_default());
    offered(&async |client: &Client| whole(client, "/api/v1/foreign-daemons").await, of)
}

/// The clients of the server.
pub(super) fn clients() -> Vec<CompletionCandidate> {
    candidates("/api/v1/clients", |client: ClientView| (client.id.to_string(), client.command))
}
