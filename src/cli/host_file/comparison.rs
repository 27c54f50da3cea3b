//! A host file as given on the command line, and its comparison with a host.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::super::layout::arguments::{placed, read};
use super::super::output::{CellColour, OutputFormat, TableCell, line, print_cells, remark};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::host_file::{HostChange, HostFile, text};
use crate::domain::layout::text::LayoutFormat;
use crate::http::api::host_spec::HostFileDiff;
use crate::service::FieldError;

/// Path of the host file in the API.
pub(super) const SPEC: &str = "/api/v1/host/spec";

/// A host file, and how far it goes.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// The host file, or - for standard input
    #[arg(short, long)]
    pub(super) file: PathBuf,
    /// Delete daemons, tenants, layouts and bindings that the file does not have
    #[arg(long)]
    prune: bool,
    /// Recreate partitions that stay in a layout, if their order requires it
    #[arg(long)]
    recreate: bool,
}

impl FileArgs {
    /// The query of a request that applies the file.
    pub(super) fn query(&self) -> String {
        let recreate = if self.recreate { "&recreate=true" } else { "" };
        format!("prune={}{recreate}", self.prune)
    }
}

/// Reads a host file and returns it with its text; an error names each fault in the file itself with its place.
pub(in crate::cli) fn checked(path: &Path) -> Result<(HostFile, String), String> {
    let text = read(path)?;
    // JSON is YAML too.
    let file = text::read(&text, LayoutFormat::Yaml).map_err(|errors| {
        let described = |error: &crate::domain::layout::Invalid| match error.pointer.as_str() {
            "" => error.to_string(),
            pointer => format!("{pointer}: {error}"),
        };
        let faults: Vec<String> = errors.iter().map(described).collect();
        let faults = match faults.as_slice() {
            [only] => only.clone(),
            several => format!("{}\n  {}", counted(several.len(), "fault"), several.join("\n  ")),
        };
        format!("{}: {}", path.display(), placed(&faults, path))
    })?;
    Ok((file, text))
}

/// A host file compared with a host.
pub(super) struct HostComparison {
    /// Changes that the file would make.
    pub(super) changes: Vec<HostChange>,
    /// Possible mistakes in the file, which do not prevent it from being applied.
    pub(super) warnings: Vec<FieldError>,
    /// Entity tag of the host's present state.
    pub(super) tag: Option<String>,
}

/// Compares a file with a host, and changes nothing.
pub(super) async fn compare(
    client: &Client,
    text: &str,
    file: &FileArgs,
) -> Result<HostComparison, ClientError> {
    let path = format!("{SPEC}?dry_run=true&{}", file.query());
    let (_, HostFileDiff { changes, warnings, .. }, tag) =
        client.put_text(&path, "application/yaml", text.to_owned(), None).await?;
    Ok(HostComparison { changes, warnings, tag })
}

/// Prints warnings about the file on standard error; `host` names the host if there are several.
pub(super) fn warn(host: Option<&str>, warnings: &[FieldError]) {
    let place = host.map(|host| format!("{host}: ")).unwrap_or_default();
    for FieldError { pointer, detail } in warnings {
        remark(&format!("warning: {place}{pointer}: {detail}"));
    }
}

pub(super) fn print(changes: &[HostChange], format: OutputFormat) {
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

/// Returns the changes with their values as JSON; the API writes these as JSON in a string.
pub(super) fn structured(changes: &[HostChange]) -> Value {
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
