//! `mps-manager operation`.

use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use serde_json::json;

use super::nouns::{DAEMON, OPERATION};
use super::output::{DIFFERS, complain};
use super::server::CallArgs;
use super::short_id::ShortId;
use super::values::time_ago;
use super::wait::ended;
use crate::client::ClientError;
use crate::domain::DaemonName;
use crate::domain::duration::parse_duration;
use crate::domain::operation::{Operation, OperationState};

/// An operation by its ID.
#[derive(Debug, Args)]
pub(super) struct NamedOperation {
    /// The operation's ID, or its first characters
    #[arg(add = OPERATION.complete())]
    id: ShortId,
    #[command(flatten)]
    call: CallArgs,
}

/// Commands on operations.
#[derive(Debug, Subcommand)]
pub(super) enum OperationCommand {
    /// List operations, the newest first
    #[command(after_help = "Examples:
  mps-manager operation list --daemon gpu0
  mps-manager operation list --state pending,running")]
    List {
        /// Only those on this daemon
        #[arg(long, add = DAEMON.complete())]
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
    Get(NamedOperation),
    /// Wait until an operation has ended; exit 1 if it did not succeed
    #[command(after_help = "Examples:
  id=$(mps-manager daemon restart gpu0 --no-wait -o name)
  mps-manager operation wait $id")]
    Wait(NamedOperation),
    /// Cancel an operation; exit 1 if it cannot be cancelled any more
    #[command(after_help = "Examples:
  mps-manager operation cancel 019a5b21")]
    Cancel(NamedOperation),
}

pub(super) async fn run(command: OperationCommand) -> Result<ExitCode, ClientError> {
    match command {
        OperationCommand::List { daemon, state, since, limit, call } => {
            let state = (!state.is_empty()).then(|| state.join(","));
            let since = since.map(time_ago);
            let filters = [("daemon", daemon.map(String::from)), ("state", state), ("since", since)];
            OPERATION.list(&call, &filters, limit).await
        }
        OperationCommand::Get(NamedOperation { id, call }) => {
            let client = call.client()?;
            let operation = OPERATION.find(&client, &id).await?;
            OPERATION.show(&client, call.format(), &operation).await
        }
        OperationCommand::Wait(NamedOperation { id, call }) => wait(&call, &id).await,
        OperationCommand::Cancel(NamedOperation { id, call }) => cancel(&call, &id).await,
    }
}

/// The states of operations, for arguments and completions.
fn operation_states() -> PossibleValuesParser {
    PossibleValuesParser::new(OperationState::ALL.map(OperationState::as_str))
}

async fn wait(call: &CallArgs, id: &ShortId) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let operation = OPERATION.find(&client, id).await?;
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
    let id = OPERATION.find(&client, id).await?.id;
    let operation: Operation = client.post(&format!("{}/cancel", OPERATION.path_of(id)), &json!({})).await?;
    let operation = ended(&client, operation, "cancelling").await?;
    let sentence = format!("operation {id} {}", operation.state.as_str());
    call.format().announce(&sentence, &id.to_string(), &operation);
    let is_cancelled = operation.state == OperationState::Cancelled;
    Ok(if is_cancelled { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}
