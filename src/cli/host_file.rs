//! `mps-manager diff`, `apply` and `export`: a host as one file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::confirm::ConfirmArgs;
use super::layout::arguments::{DocumentOutputArgs, document_format, media_type, placed, read};
use super::output::{CellColour, DIFFERS, ERROR, OutputFormat, TableCell, complain, line, print_cells};
use super::server::{CallArgs, ServerArgs, ask};
use super::wait::{OperationWords, WaitArgs, follow};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::host_file::{HostChange, HostChangeAction, HostFile, text};
use crate::domain::layout::text::LayoutFormat;
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
    /// Recreate partitions that stay in a layout, if their order requires it
    #[arg(long)]
    recreate: bool,
}

impl FileArgs {
    /// The query of a request that applies the file.
    fn query(&self) -> String {
        let recreate = if self.recreate { "&recreate=true" } else { "" };
        format!("prune={}{recreate}", self.prune)
    }
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

/// Reads a host file, and says where it is wrong in itself; gives its text too.
pub(super) fn checked(path: &Path) -> Result<(HostFile, String), String> {
    let text = read(path)?;
    // JSON is YAML too.
    let file = text::read(&text, LayoutFormat::Yaml).map_err(|errors| {
        let one = |error: &crate::domain::layout::Invalid| match error.pointer.as_str() {
            "" => error.to_string(),
            pointer => format!("{pointer}: {error}"),
        };
        let faults: Vec<String> = errors.iter().map(one).collect();
        let faults = match faults.as_slice() {
            [only] => only.clone(),
            several => format!("{}\n  {}", counted(several.len(), "fault"), several.join("\n  ")),
        };
        format!("{}: {}", path.display(), placed(&faults, path))
    })?;
    Ok((file, text))
}

pub(super) fn diff(DiffArgs { file, call }: DiffArgs) -> Result<ExitCode, String> {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        let changes = match compare(&call.client()?, &text, &file).await {
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

pub(super) fn apply(ApplyArgs { file, dry_run, wait, confirm, call }: ApplyArgs) -> Result<ExitCode, String> {
    let (_, text) = checked(&file.file)?;
    ask(async move {
        let client = call.client()?;
        let (changes, tag) = compare(&client, &text, &file).await?;
        let is_last = changes.is_empty() || dry_run;
        // One result in a format for programs.
        if is_last || matches!(call.format(), OutputFormat::Table | OutputFormat::Wide) {
            print(&changes, call.format());
        }
        if is_last {
            return Ok(ExitCode::SUCCESS);
        }
        let deleted = changes.iter().filter(|change| change.action == HostChangeAction::Delete).count();
        if deleted > 0 {
            confirm.ask(&format!("{} would be deleted. Apply the host file?", counted(deleted, "object")))?;
        }
        // What was shown is what is applied.
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
    file: &FileArgs,
) -> Result<(Vec<HostChange>, Option<String>), ClientError> {
    let path = format!("{SPEC}?dry_run=true&{}", file.query());
    let (_, HostFileDiff { changes, .. }, tag) =
        client.put_text(&path, "application/yaml", text.to_owned(), None).await?;
    Ok((changes, tag))
}

fn print(changes: &[HostChange], format: OutputFormat) {
    if format.print_value(&structured(changes)) {
        return;
    }
    if format == OutputFormat::Name {
        for change in changes {
            line!("{}/{}", change.kind.as_str(), change.name);
        }
        return;
    }
    if changes.is_empty() {
        line!("nothing to change: the host is what the file says");
    }
    for change in changes {
        for text in change.to_string().lines() {
            print_cells(&[(TableCell::new(text, colour_of(text)), 0)]);
        }
    }
}

/// The changes with the values as they are, which the API writes as JSON in text.
fn structured(changes: &[HostChange]) -> Value {
    let mut changes = serde_json::to_value(changes).expect("changes are plain data");
    let fields =
        changes.as_array_mut().into_iter().flatten().filter_map(|change| change["fields"].as_array_mut());
    for field in fields.flatten() {
        for side in ["before", "after"] {
            if let Some(value) = field[side].as_str().and_then(|text| serde_json::from_str(text).ok()) {
                field[side] = value;
            }
        }
    }
    changes
}

/// The colour of a line, by its sign.
fn colour_of(line: &str) -> CellColour {
    match line.trim_start().chars().next() {
        Some('+') => CellColour::Good,
        Some('~' | '!') => CellColour::Warning,
        Some('-') => CellColour::Bad,
        _ => CellColour::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::host_file::{HostChangeAction, HostFieldChange, HostObjectKind};

    #[test]
    fn values_are_structured_for_programs() {
        let field =
            HostFieldChange { field: "gpus".to_owned(), before: None, after: Some(r#"["0"]"#.to_owned()) };
        let (action, kind) = (HostChangeAction::Create, HostObjectKind::Daemon);
        let change = HostChange { action, kind, name: "gpu0".to_owned(), fields: vec![field] };
        let value = structured(&[change]);
        assert_eq!(value[0]["fields"][0]["after"], serde_json::json!(["0"]));
        assert_eq!(value[0]["fields"][0]["before"], Value::Null);
    }

    #[test]
    fn lines_are_coloured_by_sign() {
        assert_eq!(colour_of("+ daemon gpu0"), CellColour::Good);
        assert_eq!(colour_of("    ~ mode: a -> b"), CellColour::Warning);
        assert_eq!(colour_of("- tenant web"), CellColour::Bad);
        assert_eq!(colour_of("nothing"), CellColour::Plain);
    }
}
