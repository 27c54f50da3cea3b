//! `mps-manager layout replay`: replays one host's layout on others and compares each ID, with one table and one exit code.
//!
//! This program fetches the document once: the managers do not speak to each other.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use reqwest::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::super::fleet::{FleetArgs, HostAddress, HostResults};
use super::super::nouns::{LAYOUT, REPLAY};
use super::super::output::{DIFFERS, ERROR, ListField, ListLayout, OutputFormat, TableCell, line};
use super::super::server::CallArgs;
use super::super::wait::{ended, ended_among_others};
use super::arguments::{Gpus, read as read_file};
use super::verbs::{entry, exported, read};
use crate::client::{Client, ClientError};
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::Document;
use crate::domain::layout::replay::{Replay, Verdict};
use crate::domain::layout::text;
use crate::domain::{DaemonName, LayoutName};
use crate::service::FieldError;
use crate::service::layouts::replays::ReplayAccepted;

#[derive(Debug, Args)]
pub(in crate::cli) struct ReplayArgs {
    /// The layout
    name: LayoutName,
    /// The host that has it: a name or address, a URL, or the runtime directory of a manager on this machine
    #[arg(long, value_name = "HOST", conflicts_with = "file")]
    from: Option<HostAddress>,
    /// Read the recorded layout from this document, or - for standard input
    #[arg(short, long, required_unless_present = "from")]
    file: Option<PathBuf>,
    /// The daemon, on every host; by default the one in the document
    #[arg(long)]
    daemon: Option<DaemonName>,
    #[command(flatten)]
    gpus: Gpus,
    /// Continue if only versions differ from those of the document
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    call: CallArgs,
}

pub(super) async fn run(args: &ReplayArgs) -> Result<ExitCode, ClientError> {
    let file = args.file.as_deref().map(read_file).transpose().map_err(ClientError::Caller)?;
    let beside: Vec<&HostAddress> = args.from.iter().collect();
    let hosts = args.fleet.hosts(&beside)?;
    let ca_file = args.call.server.ca_file();
    let ca_file = ca_file.as_deref();
    let text = match (&args.from, file) {
        (Some(from), _) => {
            exported(
                &args.fleet.client_of(from, ca_file)?,
                &args.name,
                args.daemon.as_ref(),
                text::LayoutFormat::Json,
            )
            .await?
        }
        (None, Some(text)) => text,
        (None, None) => return Err("give --from or --file".into()),
    };
    let document = read(&text, args.file.as_deref())?;
    let recorded = entry(&document, &args.name)?.recorded.as_ref();
    let recorded = recorded.ok_or_else(|| {
        format!(
            "layout {0} of the document has no recorded IDs to compare with: export it from a host that has it (mps-manager layout \
             export {0}, or --from HOST), or apply it to a daemon without a comparison (mps-manager layout apply {0} -f FILE)",
            args.name
        )
    })?;
    let daemon = args.daemon.as_ref().unwrap_or(&recorded.provenance.daemon);
    let request = json!({
        "document": document,
        "entry": args.name,
        "daemon": daemon,
        "gpu_map": args.gpus.map(),
        "force": args.force,
    });
    let results = if args.fleet.is_given() {
        let (request, document) = (&request, &document);
        let replay = |_, client: Client| async move { on_host(&client, request, document, false).await };
        args.fleet.ask_each(&hosts, &args.call.server, "replaying", replay).await
    } else {
        vec![("this host".into(), on_host(&args.call.client()?, &request, &document, true).await)]
    };
    Ok(print_results(&results, args.call.format()))
}

/// Result of a replay on one host: the result, the IDs, the duration, the detail and the exit code of its row.
type ReplayOutcome = (String, String, Option<f64>, String, u8);

async fn on_host(
    client: &Client,
    request: &Value,
    document: &Document,
    is_alone: bool,
) -> Result<ReplayOutcome, ClientError> {
    if let Some(ids) = already_there(client, request, document).await {
        let detail = format!("already applied: {ids} of {ids} IDs identical ✓");
        return Ok(("same".to_owned(), format!("{ids}/{ids}"), None, detail, 0));
    }
    let accepted: ReplayAccepted = client.post(REPLAY.path(), request).await?;
    if is_alone {
        ended(client, accepted.operation, "replaying").await?;
    } else {
        ended_among_others(client, accepted.operation).await?;
    }
    Ok(outcome_of(&client.get(&REPLAY.path_of(accepted.replay)).await?))
}

/// Returns the number of recorded IDs if the daemon has this layout with exactly these IDs, and its partitions exist now.
async fn already_there(client: &Client, request: &Value, document: &Document) -> Option<usize> {
    let name: LayoutName = serde_json::from_value(request["entry"].clone()).ok()?;
    let daemon: DaemonName = serde_json::from_value(request["daemon"].clone()).ok()?;
    let text = exported(client, &name, Some(&daemon), text::LayoutFormat::Json).await.ok()?;
    let (exported, wanted) = (read(&text, None).ok()?, entry(document, &name).ok()?);
    let saved = entry(&exported, &name).ok()?;
    let (recorded, expected) = (saved.recorded.as_ref()?, wanted.recorded.as_ref()?);
    if saved.layout() != wanted.layout() || recorded.ids != expected.ids || recorded.shares != expected.shares
    {
        return None;
    }
    let body = json!({ "daemon": daemon, "gpu_map": request["gpu_map"] });
    let path = format!("{}/assert", LAYOUT.path_of(&name));
    let assertion: Assertion = client.post(&path, &body).await.ok()?;
    assertion.matches.then_some(expected.ids.len().max(expected.shares.len()))
}

/// A line of the result.
#[derive(Debug, Serialize)]
struct ReplayRow {
    host: String,
    result: String,
    ids: String,
    duration_ms: Option<f64>,
    detail: String,
    #[serde(skip)]
    code: u8,
}

type Field = ListField<ReplayRow>;

static HOSTS: ListLayout<ReplayRow> = ListLayout {
    noun: "hosts",
    name: |row| row.host.clone(),
    fields: &[
        Field::column("HOST", |row| row.host.as_str().into()),
        Field::column("RESULT", |row| TableCell::state(&row.result)),
        Field::column("IDS", |row| row.ids.as_str().into()),
        Field::column("MS", |row| TableCell::optional(row.duration_ms)).rank(2),
        Field::column("DETAIL", |row| row.detail.as_str().into()).cut().rank(1),
    ],
};

/// Returns the result of a replay that was carried out.
fn outcome_of(replay: &Replay) -> ReplayOutcome {
    let (same, all) = replay.identical_steps();
    let code = match replay.verdict {
        Verdict::Same => 0,
        Verdict::Differs => DIFFERS,
        // The first replay has nothing to compare with.
        Verdict::First | Verdict::Pending | Verdict::Failed => ERROR,
    };
    let identical = if replay.verdict == Verdict::Same && all > 0 {
        format!("{same} of {all} IDs identical ✓")
    } else {
        replay.error.clone().unwrap_or_default().replace('\n', " ")
    };
    // In tenths of a millisecond: a replay takes less than a day, so the number is exact.
    #[allow(clippy::cast_precision_loss)]
    let ms = replay.duration_us.map(|us| (us / 100) as f64 / 10.0);
    (replay.verdict.as_str().to_owned(), format!("{same}/{all}"), ms, identical, code)
}

/// Prints the result of each host, and returns the exit code: 0 if all gave the recorded IDs, 1 if one did not, 2 if one
/// could not be reached or did not finish.
fn print_results(results: &HostResults<ReplayOutcome>, format: OutputFormat) -> ExitCode {
    let mut rows = Vec::new();
    let mut remarks = Vec::new();
    for (host, result) in results {
        let (result, ids, duration_ms, detail, code) = match result {
            Ok(outcome) => outcome.clone(),
            Err(ClientError::Refused(problem)) => {
                let remark = |field: &FieldError| format!("{host}: {}", field.detail);
                remarks.extend(problem.errors.iter().map(remark));
                // Only these concern the layout; a missing token or an unhealthy host does not.
                let about_layout = [StatusCode::CONFLICT.as_u16(), StatusCode::UNPROCESSABLE_ENTITY.as_u16()];
                let code = if about_layout.contains(&problem.status) { DIFFERS } else { ERROR };
                ("refused".to_owned(), "-".to_owned(), None, problem.detail.replace('\n', " "), code)
            }
            Err(error) => ("error".to_owned(), "-".to_owned(), None, error.to_string(), ERROR),
        };
        rows.push(ReplayRow { host: host.clone(), result, ids, duration_ms, detail, code });
    }
    HOSTS.print(&rows, format);
    if format.is_table() {
        for remark in remarks {
            line!("{remark}");
        }
    }
    ExitCode::from(rows.iter().map(|row| row.code).max().unwrap_or(0))
}
