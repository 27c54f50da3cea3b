//! `mps-manager layout replay`: replays one host's layout on others and compares each ID, with one table and one exit code.
//!
//! This program fetches the document once: no manager fetches anything from another.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::super::show::{ended, table};
use super::super::{DIFFERS, ERROR, ServerArgs, ask, line};
use super::verbs::{entry, exported, read};
use super::{DocumentFormat, Gpus};
use crate::client::{Client, ClientError};
use crate::config::{self, Config};
use crate::domain::layout::replay::{Replay, Verdict};
use crate::domain::{DaemonName, LayoutName};
use crate::service::FieldError;
use crate::service::layouts::replays::ReplayAccepted;

#[derive(Debug, Args)]
pub(in crate::cli) struct ReplayArgs {
    /// The layout
    name: LayoutName,
    /// The host that has it: a name or address, a URL, or the runtime directory of a manager on this machine
    #[arg(long, value_name = "HOST", conflicts_with = "file")]
    from: Option<Host>,
    /// Read the recorded layout from this document, or - for standard input
    #[arg(short, long, required_unless_present = "from")]
    file: Option<PathBuf>,
    /// The hosts to replay it on, separated by commas; by default this one
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    to: Vec<Host>,
    /// The daemon, on every host; by default the one in the document
    #[arg(long)]
    daemon: Option<DaemonName>,
    #[command(flatten)]
    gpus: Gpus,
    /// Continue if only versions differ from those of the document
    #[arg(long)]
    force: bool,
    /// The file with the token of a host, as host-b=/etc/mps-manager/host-b.token; by default `MPS_MANAGER_TOKEN`
    #[arg(long = "token-file", value_name = "HOST=FILE", value_parser = token_file)]
    token_files: Vec<(String, PathBuf)>,
    #[command(flatten)]
    server: ServerArgs,
}

/// A manager as named on the command line.
#[derive(Debug, Clone)]
struct Host(String);

impl std::str::FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("a host has no name".into()) } else { Ok(Self(text.to_owned())) }
    }
}

impl Host {
    /// A name or address without a scheme is contacted over TLS if the caller gives certificates.
    fn client(
        &self,
        token_files: &[(String, PathBuf)],
        ca_file: Option<&Path>,
    ) -> Result<Client, ClientError> {
        if self.0.starts_with('/') || self.0.starts_with('.') {
            let trusted = config::trusted_managers().map_err(ClientError::Address)?;
            return Client::over_socket(&config::socket_in(Path::new(&self.0)), trusted);
        }
        let scheme = if ca_file.is_some() { "https" } else { "http" };
        let url = if self.0.contains("://") {
            self.0.clone()
        } else if self.0.contains(':') {
            format!("{scheme}://{}", self.0)
        } else {
            format!("{scheme}://{}:{}", self.0, Config::default().listen.port())
        };
        let token = match token_files.iter().find(|(host, _)| *host == self.0) {
            Some((_, file)) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| ClientError::Address(format!("{}: {error}", file.display())))?;
                Some(text.trim().to_owned())
            }
            None => std::env::var("MPS_MANAGER_TOKEN").ok(),
        };
        Client::over_url(&url, token, ca_file)
    }
}

fn token_file(text: &str) -> Result<(String, PathBuf), String> {
    let (host, file) = text.rsplit_once('=').ok_or("say HOST=FILE")?;
    Ok((host.to_owned(), file.into()))
}

pub(super) fn run(args: ReplayArgs) -> Result<ExitCode, String> {
    let file = args.file.as_deref().map(super::read).transpose()?;
    ask(async move { replay(&args, file).await })
}

async fn replay(args: &ReplayArgs, file: Option<String>) -> Result<ExitCode, ClientError> {
    let named = |host: &str| args.from.iter().chain(&args.to).any(|known| known.0 == host);
    if let Some((stray, _)) = args.token_files.iter().find(|(host, _)| !named(host)) {
        return Err(ClientError::Address(format!(
            "there is a --token-file for {stray}, which is neither in --from nor in --to: write the host as given there"
        )));
    }
    let ca_file = args.server.ca_file();
    let ca_file = ca_file.as_deref();
    let text = match (&args.from, file) {
        (Some(from), _) => {
            exported(
                &from.client(&args.token_files, ca_file)?,
                &args.name,
                args.daemon.as_ref(),
                DocumentFormat::Json,
            )
            .await?
        }
        (None, Some(text)) => text,
        (None, None) => return Err(ClientError::Address("give --from or --file".into())),
    };
    let document = read(&text)?;
    let recorded = entry(&document, &args.name)?.recorded.as_ref();
    let recorded = recorded.ok_or_else(|| {
        ClientError::Address(format!(
            "layout {0} of the document has no recorded IDs to compare with: export it from a host that has it (mps-manager layout \
             export {0}, or --from HOST), or apply it to a daemon without a comparison (mps-manager layout apply {0} -f FILE)",
            args.name
        ))
    })?;
    let daemon = args.daemon.as_ref().unwrap_or(&recorded.provenance.daemon);
    let request = json!({
        "document": document,
        "entry": args.name,
        "daemon": daemon,
        "gpu_map": args.gpus.map(),
        "force": args.force,
    });
    let hosts: Vec<(String, Result<Client, ClientError>)> = if args.to.is_empty() {
        vec![("this host".into(), args.server.client())]
    } else {
        args.to.iter().map(|host| (host.0.clone(), host.client(&args.token_files, ca_file))).collect()
    };
    let results = join_all(hosts.into_iter().map(|(name, client)| {
        let request = &request;
        async move {
            let result = match client {
                Ok(client) => on_host(&client, request).await,
                Err(error) => Err(error),
            };
            (name, result)
        }
    }))
    .await;
    Ok(print_results(&results))
}

async fn on_host(client: &Client, request: &Value) -> Result<Replay, ClientError> {
    let accepted: ReplayAccepted = client.post("/api/v1/replays", request).await?;
    ended(client, accepted.operation).await?;
    client.get(&format!("/api/v1/replays/{}", accepted.replay)).await
}

/// Prints the result of each host, and returns the exit code: 0 if all gave the recorded IDs, 1 if one did not, 2 if one
/// could not be reached or did not finish.
fn print_results(results: &[(String, Result<Replay, ClientError>)]) -> ExitCode {
    let mut rows = vec![["HOST", "RESULT", "STEPS", "MS", "DETAIL"].map(str::to_owned)];
    let mut remarks = Vec::new();
    let mut code = 0;
    for (host, result) in results {
        let (word, steps, ms, detail, this) = match result {
            Ok(replay) => {
                let done = replay.steps.iter().filter(|step| !step.undo && step.id.is_some()).count();
                let this = match replay.verdict {
                    Verdict::Same => 0,
                    Verdict::Differs => DIFFERS,
                    // The first replay has nothing to compare with.
                    Verdict::First | Verdict::Pending | Verdict::Failed => ERROR,
                };
                let ms = replay
                    .duration_us
                    .map_or_else(|| "-".into(), |us| format!("{}.{}", us / 1000, us % 1000 / 100));
                (
                    replay.verdict.as_str(),
                    done.to_string(),
                    ms,
                    replay.error.clone().unwrap_or_default(),
                    this,
                )
            }
            Err(ClientError::Refused(problem)) => {
                let of_host = |field: &FieldError| format!("{host}: {}", field.detail);
                remarks.extend(problem.errors.iter().map(of_host));
                // Only these concern the layout; a missing token or an unhealthy host does not.
                let about_layout = [StatusCode::CONFLICT.as_u16(), StatusCode::UNPROCESSABLE_ENTITY.as_u16()];
                let this = if about_layout.contains(&problem.status) { DIFFERS } else { ERROR };
                ("refused", "0".into(), "-".into(), problem.detail.clone(), this)
            }
            Err(error) => ("error", "-".into(), "-".into(), error.to_string(), ERROR),
        };
        code = code.max(this);
        rows.push([host.clone(), word.to_owned(), steps, ms, detail.replace('\n', " ")]);
    }
    table(&rows);
    for remark in remarks {
        line!("{remark}");
    }
    ExitCode::from(code)
}
