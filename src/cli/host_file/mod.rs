//! `mps-manager diff`, `apply` and `export`: a host as one file.

mod comparison;
mod several;

use std::process::ExitCode;

use clap::Args;
use reqwest::{Method, StatusCode};

pub(super) use self::comparison::checked;
use self::comparison::{FileArgs, HostComparison, SPEC, compare, print, warn};
use super::confirm::ConfirmArgs;
use super::fleet::FleetArgs;
use super::layout::arguments::{DocumentOutputArgs, document_format, media_type};
use super::output::{CommandResult, DIFFERS, ERROR, complain, line};
use super::server::{CallArgs, ServerArgs, ask};
use super::wait::{OperationWords, WaitArgs, follow};
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::domain::host_file::HostChangeAction;
use crate::http::api::host_spec::HostFileDiff;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager diff -f host.yaml
  mps-manager diff -f host.yaml --prune -o json
  mps-manager diff -f host.yaml --hosts gpu01,gpu02")]
pub(super) struct DiffArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager apply -f host.yaml
  mps-manager apply -f host.yaml --prune --dry-run
  mps-manager apply -f host.yaml --slurm 'gpu[01-16]' --parallel 4")]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Check the file and show what it would change; changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager export > host.yaml")]
pub(super) struct ExportArgs {
    /// Print the JSON Schema of host files instead, without a server
    #[arg(long)]
    schema: bool,
    #[command(flatten)]
    output: DocumentOutputArgs,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) fn diff(DiffArgs { file, fleet, call }: DiffArgs) -> CommandResult {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        if fleet.is_given() {
            return Ok(ExitCode::from(several::diff(&fleet, &call, &text, &file).await?));
        }
        let changes = match compare(&call.client()?, &text, &file).await {
            Ok(HostComparison { changes, warnings, .. }) => {
                warn(None, &warnings);
                changes
            }
            // Exit 1 would say that the file could be applied.
            Err(error @ ClientError::Refused(_)) => {
                complain(&error.to_string());
                return Ok(ExitCode::from(ERROR));
            }
            Err(error) => return Err(error),
        };
        print(&changes, call.format());
        Ok(if changes.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
    })
}

pub(super) fn apply(ApplyArgs { file, fleet, dry_run, wait, confirm, call }: ApplyArgs) -> CommandResult {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        if fleet.is_given() {
            if dry_run {
                let code = several::diff(&fleet, &call, &text, &file).await?;
                return Ok(if code == ERROR { ExitCode::from(ERROR) } else { ExitCode::SUCCESS });
            }
            return several::apply(&fleet, &call, &text, &file, (wait, confirm)).await;
        }
        let client = call.client()?;
        let HostComparison { changes, warnings, tag } = compare(&client, &text, &file).await?;
        warn(None, &warnings);
        let is_last = changes.is_empty() || dry_run;
        // One result in a format for programs.
        if is_last || call.format().is_table() {
            print(&changes, call.format());
        }
        if is_last {
            return Ok(ExitCode::SUCCESS);
        }
        let deleted = changes.iter().filter(|change| change.action == HostChangeAction::Delete).count();
        if deleted > 0 {
            confirm.ask(&format!("{} would be deleted. Apply the host file?", counted(deleted, "object")))?;
        }
        // The entity tag ensures that exactly the shown changes are applied.
        let path = format!("{SPEC}?{}", file.query());
        let put: Result<(_, HostFileDiff, _), ClientError> =
            client.put_text(&path, "application/yaml", text, tag.as_deref()).await;
        let (_, HostFileDiff { operation, .. }, _) = match put {
            // Like any other conflict with what the host is by now.
            Err(ClientError::Refused(problem))
                if problem.status == StatusCode::PRECONDITION_FAILED.as_u16() =>
            {
                complain(&ClientError::Refused(problem).to_string());
                return Ok(ExitCode::from(DIFFERS));
            }
            put => put?,
        };
        let Some(operation) = operation else { return Ok(ExitCode::SUCCESS) };
        let words = OperationWords {
            doing: "applying the host file",
            done: &format!("applied: {}", counted(changes.len(), "change")),
            failed: "the host file was applied only in part",
        };
        follow(&client, operation, wait, call.format(), words).await
    })
}

pub(super) fn export(ExportArgs { output, server, schema }: ExportArgs) -> CommandResult {
    if schema {
        line!("{}", include_str!("../../../openapi/host-v1.schema.json").trim_end());
        return Ok(ExitCode::SUCCESS);
    }
    ask(async move {
        let format = media_type(document_format(output.format));
        let text = server.client()?.text(Method::GET, SPEC, format).await?;
        line!("{}", text.trim_end());
        Ok(ExitCode::SUCCESS)
    })
}
