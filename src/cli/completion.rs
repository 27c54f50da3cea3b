//! Completions for shells; names come from the server.
//!
//! A completion must not disturb: without a server, or with a slow one, there are no names and no message.

use std::process::ExitCode;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::output::CommandResult;
use super::server::{ServerArgs, block_on};
use crate::client::{Client, ClientError};

/// The longest that a completion waits for the server.
const PATIENCE: Duration = Duration::from_millis(700);
/// The variable by which a shell asks for completions.
const VARIABLE: &str = "MPS_MANAGER_COMPLETE";

/// Answers a shell that asks for completions, and ends; returns otherwise.
pub(super) fn answer_shell<C: CommandFactory>() {
    CompleteEnv::with_factory(C::command).var(VARIABLE).completer("mps-manager").complete();
}

/// The shells with completions.
pub(super) const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Prints the script that a shell loads.
pub(super) fn print_script(shell: &str) -> CommandResult {
    let shells = Shells::builtins();
    let script = shells.completer(shell).ok_or_else(|| format!("there are no completions for {shell}"))?;
    script.write_registration(
        VARIABLE,
        "mps-manager",
        "mps-manager",
        "mps-manager",
        &mut std::io::stdout(),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what is read from the server: names, each with a word of help.
pub(super) fn offered(
    read: &impl AsyncFn(&Client) -> Result<Vec<(String, String)>, ClientError>,
) -> Vec<CompletionCandidate> {
    let read = async {
        let client = ServerArgs::default().client().ok()?;
        tokio::time::timeout(PATIENCE, read(&client)).await.ok()?.ok()
    };
    let items = block_on(read).ok().flatten().unwrap_or_default();
    let candidate = |(name, about): (String, String)| CompletionCandidate::new(name).help(Some(about.into()));
    items.into_iter().map(candidate).collect()
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
