//! `mps-manager diff`, `apply` and `export`: a host as one file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::layout::arguments::{DocumentOutputArgs, document_format, media_type, read};
use super::output::{DIFFERS, ERROR, OutputFormat, complain, line};
use super::server::{CallArgs, ServerArgs, ask};
use super::wait::{OperationWords, WaitArgs, follow};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::host_file::{HostChange, HostFile, text};
use crate::domain::layout::text::LayoutFormat;
use crate::domain::operation::Operation;
use crate::http::api::host_schema::host_file_schema;
use crate::http::api::host_spec::HostFileDiff;

const SPEC: &str = "/api/v1/host/spec";

/// A host file, and how far it goes.
#[derive(Debug, Args)]
struct FileArgs {
    /// The host file, or - for standard input
    #[arg(short, long)]
    file: PathBuf,
    /// Delete daemons, tenants, layouts and bindings that the file does not have
    #[arg(long)]
    prune: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager diff -f host.yaml
  mps-manager diff -f host.yaml --prune -o json")]
pub(super) struct DiffArgs {
    #[command(flatten)]
    file: FileArgs,
    #[command(flatten)]
    call: CallArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager apply -f host.yaml
  mps-manager apply -f host.yaml --prune --dry-run")]
pub(super) struct ApplyArgs {
    #[command(flatten)]
    file: FileArgs,
    /// Check the file and show what it would change; changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
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

/// Reads a host file, and says where it is wrong in itself; gives its text too.
pub(super) fn checked(path: &Path) -> Result<(HostFile, String), String> {
    let text = read(path)?;
    // JSON is YAML too.
    let file = text::read(&text, LayoutFormat::Yaml).map_err(|errors| {
        let one = |error: &crate::domain::layout::Invalid| match error.pointer.as_str() {
            "" => error.to_string(),
            pointer => format!("{pointer}: {error}"),
        };
        let errors: Vec<String> = errors.iter().map(one).collect();
        format!("{}: {}", path.display(), errors.join("\n"))
    })?;
    Ok((file, text))
}

pub(super) fn diff(DiffArgs { file, call }: DiffArgs) -> Result<ExitCode, String> {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        let changes = match compare(&call.client()?, &text, file.prune).await {
            Ok((changes, _)) => changes,
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

pub(super) fn apply(ApplyArgs { file, dry_run, wait, call }: ApplyArgs) -> Result<ExitCode, String> {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        let client = call.client()?;
        let (changes, tag) = compare(&client, &text, file.prune).await?;
        let is_last = changes.is_empty() || dry_run;
        // One result in a format for programs.
        if is_last || matches!(call.format(), OutputFormat::Table | OutputFormat::Wide) {
            print(&changes, call.format());
        }
        if is_last {
            return Ok(ExitCode::SUCCESS);
        }
        // What was shown is what is applied.
        let path = format!("{SPEC}?prune={}", file.prune);
        let (status, answer, _): (_, Value, _) =
            client.put_text(&path, "application/yaml", text, tag.as_deref()).await?;
        if status != StatusCode::ACCEPTED {
            return Ok(ExitCode::SUCCESS);
        }
        let operation: Operation =
            serde_json::from_value(answer).map_err(|error| ClientError::Unreadable(error.to_string()))?;
        let words = OperationWords {
            doing: "applying the host file",
            done: &format!("applied: {}", counted(changes.len(), "change")),
            failed: "the host file was not brought about in full",
        };
        follow(&client, operation, wait, call.format(), words).await
    })
}

pub(super) fn export(ExportArgs { output, server, schema }: ExportArgs) -> Result<ExitCode, String> {
    if schema {
        line!("{:#}", host_file_schema());
        return Ok(ExitCode::SUCCESS);
    }
    ask(async move {
        let format = media_type(document_format(output.format));
        let text = server.client()?.text(Method::GET, SPEC, format).await?;
        line!("{}", text.trim_end());
        Ok(ExitCode::SUCCESS)
    })
}

/// What a file would change, with the entity tag of the host that it was compared with.
async fn compare(
    client: &Client,
    text: &str,
    prune: bool,
) -> Result<(Vec<HostChange>, Option<String>), ClientError> {
    let path = format!("{SPEC}?dry_run=true&prune={prune}");
    let (_, HostFileDiff { changes }, tag) =
        client.put_text(&path, "application/yaml", text.to_owned(), None).await?;
    Ok((changes, tag))
}

fn print(changes: &[HostChange], format: OutputFormat) {
    if format.print_value(&changes) {
        return;
    }
    if changes.is_empty() && format != OutputFormat::Name {
        line!("nothing to change: the host is what the file says");
    }
    for change in changes {
        line!("{change}");
    }
}
