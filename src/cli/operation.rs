//! `mps-manager operation`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;

use super::completion;
use super::fetch::{all, filtered, newest, require_daemon};
use super::output::{DIFFERS, DetailsTable, ListColumn, ListLayout, TableCell, age, complain};
use super::server::{CallArgs, ask};
use super::short_id::{ShortId, resolved};
use super::values::time_ago;
use super::wait::ended;
use crate::client::{Client, ClientError};
use crate::domain::DaemonName;
use crate::domain::duration::parse_duration;
use crate::domain::operation::{Operation, OperationState};

const OPERATIONS: &str = "/api/v1/operations";

/// Commands on operations.
#[derive(Debug, Subcommand)]
pub(super) enum OperationCommand {
    /// List operations, the newest first
    #[command(after_help = "Examples:
  mps-manager operation list --daemon gpu0
  mps-manager operation list --state pending,running")]
    List {
        /// Only those on this daemon
        #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
        daemon: Option<DaemonName>,
        /// Only those in these states, for example pending,running
        #[arg(long, value_name = "STATES", value_delimiter = ',', value_parser = operation_states())]
        state: Vec<String>,
        /// Only those requested in this time, for example 1h
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        since: Option<Duration>,
        /// The most to list; 0 lists all
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show an operation and its steps
    #[command(after_help = "Examples:
  mps-manager operation get 019a5b21")]
    Get {
        /// The operation's ID, or its first characters
        #[arg(add = ArgValueCandidates::new(completion::operations))]
        id: ShortId,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Wait until an operation has ended; exit 1 if it did not succeed
    #[command(after_help = "Examples:
  id=$(mps-manager daemon restart gpu0 --no-wait -o name)
  mps-manager operation wait $id")]
    Wait {
        /// The operation's ID, or its first characters
        #[arg(add = ArgValueCandidates::new(completion::operations))]
        id: ShortId,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Cancel an operation; exit 1 if it cannot be cancelled any more
    #[command(after_help = "Examples:
  mps-manager operation cancel 019a5b21")]
    Cancel {
        /// The operation's ID, or its first characters
        #[arg(add = ArgValueCandidates::new(completion::operations))]
        id: ShortId,
        #[command(flatten)]
        call: CallArgs,
    },
}

const LAYOUT: ListLayout<Operation> = ListLayout {
    noun: "operations",
    name: |operation| operation.id.to_string(),
    columns: &[
        ListColumn::new("OPERATION", |operation| operation.id.to_string().into()),
        ListColumn::ranked(1, ListColumn::new("KIND", |operation| operation.request.kind().into())),
        ListColumn::ranked(2, ListColumn::cut("DAEMONS", |operation| TableCell::joined(&operation.daemons))),
        ListColumn::new("STATE", |operation| TableCell::state(operation.state.as_str())),
        ListColumn::ranked(4, ListColumn::new("AGE", |operation| age(operation.created_at).into())),
        ListColumn::ranked(
            3,
            ListColumn::cut("ERROR", |operation| TableCell::optional(operation.error.as_deref())),
        ),
    ],
};

pub(super) fn run(command: OperationCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            OperationCommand::List { daemon, state, since, limit, call } => {
                let client = call.client()?;
                require_daemon(&client, daemon.as_ref()).await?;
                let state = (!state.is_empty()).then(|| state.join(","));
                let since = since.map(time_ago);
                let filters = [("daemon", daemon.map(String::from)), ("state", state), ("since", since)];
                let path = filtered(OPERATIONS, &filters);
                let operations = match limit {
                    0 => all(&client, &path).await?,
                    limit => newest(&client, &path, limit).await?,
                };
                LAYOUT.print(&operations, call.format());
                Ok(ExitCode::SUCCESS)
            }
            OperationCommand::Get { id, call } => {
                print(&call, &named(&call.client()?, &id).await?);
                Ok(ExitCode::SUCCESS)
            }
            OperationCommand::Wait { id, call } => wait(&call, &id).await,
            OperationCommand::Cancel { id, call } => cancel(&call, &id).await,
        }
    })
}

fn print(call: &CallArgs, operation: &Operation) {
    let mut details = DetailsTable::default()
        .row("Operation", operation.id.to_string())
        .row("Kind", operation.request.kind())
        .row("Daemons", TableCell::joined(&operation.daemons))
        .row("State", TableCell::state(operation.state.as_str()))
        .row("Age", age(operation.created_at));
    for step in &operation.steps {
        let outcome = step.outcome.as_deref().unwrap_or("running");
        details = details.row("Step", format!("{}: {outcome}", step.name));
    }
    if let Some(error) = &operation.error {
        details = details.row("Error", error.as_str());
    }
    details.print(call.format(), &operation.id.to_string(), operation);
}

/// The states of operations, for arguments and completions.
fn operation_states() -> PossibleValuesParser {
    PossibleValuesParser::new(OperationState::ALL.map(OperationState::as_str))
}

/// The operation with this ID, or the only one whose ID begins so.
async fn named(client: &Client, id: &ShortId) -> Result<Operation, ClientError> {
    let id = resolved(client, OPERATIONS, "operation", id, |operation: &Operation| operation.id).await?;
    client.get(&format!("{OPERATIONS}/{id}")).await
}

async fn wait(call: &CallArgs, id: &ShortId) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let operation = named(&client, id).await?;
    let doing = operation.request.kind();
    let operation = ended(&client, operation, doing).await?;
    let id = operation.id;
    let sentence = format!("operation {id} ({doing}) {}", operation.state.as_str());
    call.format().announce(&sentence, &id.to_string(), &operation);
    if operation.state == OperationState::Succeeded {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(error) = &operation.error {
        complain(error);
    }
    Ok(ExitCode::from(DIFFERS))
}

async fn cancel(call: &CallArgs, id: &ShortId) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let id = named(&client, id).await?.id;
    let operation: Operation = client.post(&format!("{OPERATIONS}/{id}/cancel"), &json!({})).await?;
    let operation = ended(&client, operation, "cancelling").await?;
    let sentence = format!("operation {id} {}", operation.state.as_str());
    call.format().announce(&sentence, &id.to_string(), &operation);
    let is_cancelled = operation.state == OperationState::Cancelled;
    Ok(if is_cancelled { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}
