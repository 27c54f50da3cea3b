//! `mps-manager foreign`: control daemons that another program started.

use std::process::ExitCode;

use clap::Subcommand;

use super::nouns::FOREIGN;
use super::server::CallArgs;
use crate::client::ClientError;

/// Commands on foreign daemons.
#[derive(Debug, Subcommand)]
pub(super) enum ForeignCommand {
    /// List control daemons that this manager does not own
    #[command(after_help = "Examples:
  mps-manager foreign list")]
    List(CallArgs),
    /// Show a control daemon that this manager does not own
    #[command(after_help = "Examples:
  mps-manager foreign get 1234-567890")]
    Get {
        /// Its ID, as `list` prints it
        #[arg(add = FOREIGN.complete())]
        id: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: ForeignCommand) -> Result<ExitCode, ClientError> {
    match command {
        ForeignCommand::List(call) => FOREIGN.list(&call, &[], 0).await,
        ForeignCommand::Get { id, call } => FOREIGN.get(&call, id).await,
    }
}
