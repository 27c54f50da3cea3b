//! A host file on several hosts: one table, and one exit code.

use std::collections::BTreeMap;
use std::process::ExitCode;

use reqwest::StatusCode;
use serde::Serialize;
use serde_json::Value;

use super::super::confirm::ConfirmArgs;
use super::super::fleet::{FleetArgs, FleetHost, HostResults};
use super::super::output::{DIFFERS, ERROR, ListField, ListLayout, OutputFormat, TableCell, line};
use super::super::server::CallArgs;
use super::super::wait::{WaitArgs, ended_among_others};
use super::comparison::{FileArgs, HostComparison, SPEC, compare, print, structured, warn};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::host_file::HostChangeAction;
use crate::domain::operation::{Operation, OperationState};
use crate::http::api::host_spec::HostFileDiff;
use crate::service::FieldError;

/// A line of the result.
#[derive(Debug, Serialize)]
struct HostRow {
    host: String,
    result: &'static str,
    /// Changes that the file would make, or made.
    changes: Value,
    /// Possible mistakes in the file, as this host sees it.
    warnings: Vec<FieldError>,
    /// The operation that applies it.
    operation: Option<String>,
    detail: String,
    #[serde(skip)]
    code: u8,
}

type Field = ListField<HostRow>;

static LAYOUT: ListLayout<HostRow> = ListLayout {
    noun: "hosts",
    name: |row| row.host.clone(),
    fields: &[
        Field::column("HOST", |row| row.host.as_str().into()),
        Field::column("RESULT", |row| TableCell::state(row.result)),
        Field::column("CHANGES", |row| TableCell::optional(row.changes.as_array().map(Vec::len))),
        Field::wide("OPERATION", |row| TableCell::optional(row.operation.as_deref())),
        Field::column("DETAIL", |row| row.detail.as_str().into()).cut().rank(1),
    ],
};

impl HostRow {
    fn new(host: &str, result: &'static str, compared: &HostComparison, code: u8) -> Self {
        let (changes, warnings) = (structured(&compared.changes), compared.warnings.clone());
        let (host, detail) = (host.to_owned(), String::new());
        Self { host, result, changes, warnings, operation: None, detail, code }
    }

    /// Creates the row of a host without a result, from its error.
    fn failed(host: &str, error: &ClientError) -> Self {
        let (result, code) = match error {
            ClientError::Refused(problem) if problem.status == StatusCode::PRECONDITION_FAILED.as_u16() => {
                ("changed meanwhile", DIFFERS)
            }
            ClientError::Refused(_) => ("refused", ERROR),
            error if error.is_away() => ("unreachable", ERROR),
            _ => ("error", ERROR),
        };
        let detail = error.to_string().replace('\n', " ");
        let (host, changes, warnings) = (host.to_owned(), Value::Null, Vec::new());
        Self { host, result, changes, warnings, operation: None, detail, code }
    }
}

/// Shows the changes that the file would make on each host; returns 0 if there are none, 1 if there are some, and 2 if one host could
/// not be compared.
pub(super) async fn diff(
    fleet: &FleetArgs,
    call: &CallArgs,
    text: &str,
    file: &FileArgs,
) -> Result<u8, ClientError> {
    let hosts = fleet.hosts(&[])?;
    let compared = compare_all(fleet, &hosts, call, text, file).await;
    let rows = compared.iter().map(|(host, result)| match result {
        Ok(compared) if compared.changes.is_empty() => HostRow::new(host, "same", compared, 0),
        Ok(compared) => HostRow::new(host, "differs", compared, DIFFERS),
        Err(error) => HostRow::failed(host, error),
    });
    let code = print_rows(&rows.collect::<Vec<_>>(), call.format());
    if call.format() == OutputFormat::Wide {
        for (host, compared) in
            compared.iter().filter_map(|(host, result)| Some((host, result.as_ref().ok()?)))
        {
            line!("\n{host}");
            print(&compared.changes, call.format());
        }
    }
    Ok(code)
}

/// Applies the file to each host that it would change, after one question if anything would be deleted.
pub(super) async fn apply(
    fleet: &FleetArgs,
    call: &CallArgs,
    text: &str,
    file: &FileArgs,
    (wait, confirm): (WaitArgs, ConfirmArgs),
) -> Result<ExitCode, ClientError> {
    let hosts = fleet.hosts(&[])?;
    let compared = compare_all(fleet, &hosts, call, text, file).await;
    let all = || compared.iter().filter_map(|(_, result)| result.as_ref().ok());
    let deleted = all()
        .flat_map(|compared| &compared.changes)
        .filter(|change| change.action == HostChangeAction::Delete)
        .count();
    if deleted > 0 {
        let objects = counted(deleted, "object");
        let hosts = counted(all().count(), "host");
        confirm.ask(&format!("{objects} would be deleted. Apply the host file to {hosts}?"))?;
    }
    let shown: BTreeMap<&str, &HostComparison> =
        compared.iter().filter_map(|(host, result)| Some((host.as_str(), result.as_ref().ok()?))).collect();
    let applied = fleet.ask_each(&hosts, &call.server, "applying the host file", |host, client| {
        // The entity tag ensures that exactly the shown changes are applied.
        let tag = match shown.get(host.as_str()) {
            Some(compared) if !compared.changes.is_empty() => compared.tag.as_deref(),
            _ => return futures_util::future::Either::Left(async { Ok(None) }),
        };
        futures_util::future::Either::Right(put(client, text, file, tag, wait))
    });
    let applied = applied.await;
    let rows = compared.iter().zip(&applied).map(|((host, before), (_, after))| match (before, after) {
        (Err(error), _) | (Ok(_), Err(error)) => HostRow::failed(host, error),
        (Ok(compared), Ok(None)) => HostRow::new(host, "same", compared, 0),
        (Ok(compared), Ok(Some(operation))) => applied_row(host, compared, operation),
    });
    Ok(ExitCode::from(print_rows(&rows.collect::<Vec<_>>(), call.format())))
}

fn applied_row(host: &str, compared: &HostComparison, operation: &Operation) -> HostRow {
    let (result, code) = match operation.state {
        OperationState::Succeeded => ("applied", 0),
        state if state.is_final() => ("failed", DIFFERS),
        _ => ("started", 0),
    };
    let detail = operation.error.as_deref().unwrap_or_default().replace('\n', " ");
    let operation = Some(operation.id.to_string());
    HostRow { operation, detail, ..HostRow::new(host, result, compared, code) }
}

/// Compares the file with each host, and prints the warnings.
async fn compare_all(
    fleet: &FleetArgs,
    hosts: &[FleetHost],
    call: &CallArgs,
    text: &str,
    file: &FileArgs,
) -> HostResults<HostComparison> {
    let compare = |_, client: Client| async move { compare(&client, text, file).await };
    let compared = fleet.ask_each(hosts, &call.server, "comparing the host file", compare).await;
    for (host, result) in &compared {
        if let Ok(HostComparison { warnings, .. }) = result {
            warn(Some(host), warnings);
        }
    }
    compared
}

/// Applies the file to one host; returns the operation, which has ended unless the caller does not wait.
async fn put(
    client: Client,
    text: &str,
    file: &FileArgs,
    tag: Option<&str>,
    wait: WaitArgs,
) -> Result<Option<Operation>, ClientError> {
    let path = format!("{SPEC}?{}", file.query());
    let (_, HostFileDiff { operation, .. }, _) =
        client.put_text(&path, "application/yaml", text.to_owned(), tag).await?;
    match operation {
        Some(operation) if !wait.no_wait => Ok(Some(ended_among_others(&client, operation).await?)),
        operation => Ok(operation),
    }
}

/// Prints the rows; returns the worst of their exit codes.
fn print_rows(rows: &[HostRow], format: OutputFormat) -> u8 {
    LAYOUT.print(rows, format);
    rows.iter().map(|row| row.code).max().unwrap_or(0)
}
