//! `mps-manager replay`: replays and their results.

use std::process::ExitCode;

use clap::Subcommand;

use super::nouns::REPLAY;
use super::server::CallArgs;
use super::short_id::ShortId;
use crate::client::ClientError;

/// Commands on replays.
#[derive(Debug, Subcommand)]
pub(super) enum ReplayCommand {
    /// List replays of layouts, the newest first
    #[command(after_help = "Examples:
  mps-manager replay list
  mps-manager replay list -n 5 -o json")]
    List {
        /// The most to list
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a replay and its steps
    #[command(after_help = "Examples:
  mps-manager replay get 019a5b21")]
    Get {
        /// The replay's ID, or its first characters
        #[arg(add = REPLAY.complete())]
        id: ShortId,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: ReplayCommand) -> Result<ExitCode, ClientError> {
    match command {
        ReplayCommand::List { limit, call } => REPLAY.list(&call, &[], limit.max(1)).await,
        ReplayCommand::Get { id, call } => {
            let client = call.client()?;
            let replay = REPLAY.find(&client, &id).await?;
            REPLAY.show(&client, call.format(), &replay).await
        }
    }
}
