//! `mps-manager client`: the processes that are connected to servers.

mod select;
mod terminate;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::select::{ClientSelector, polled, resolve};
pub(super) use self::terminate::{TerminateArgs, terminate};
use super::nouns::CLIENT;
use super::server::CallArgs;
use crate::client::ClientError;

/// Commands on clients.
#[derive(Debug, Subcommand)]
pub(super) enum ClientCommand {
    /// List clients
    #[command(after_help = "Examples:
  mps-manager client list --tenant web
  mps-manager client list --gpu 0 -o name")]
    List(ClientListArgs),
    /// Show a client
    #[command(after_help = "Examples:
  mps-manager client get 19080")]
    Get {
        /// The client, by ID or PID
        #[arg(add = CLIENT.complete())]
        client: String,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Terminate clients without harming others; exit 1 if one was not terminated
    Terminate(TerminateArgs),
}

/// The clients to list.
#[derive(Debug, Args)]
pub(super) struct ClientListArgs {
    #[command(flatten)]
    filter: ClientSelector,
    #[command(flatten)]
    call: CallArgs,
}

/// Prints the clients.
pub(super) async fn list(args: &ClientListArgs) -> Result<ExitCode, ClientError> {
    let clients = args.filter.clients(&args.call.client()?).await?;
    CLIENT.layout().print(&clients, args.call.format());
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn run(command: ClientCommand) -> Result<ExitCode, ClientError> {
    match command {
        ClientCommand::List(args) => list(&args).await,
        ClientCommand::Get { client: named, call } => {
            let client = call.client()?;
            let clients = polled(&client, []).await?;
            let mps_client = resolve(&clients, &named).map_err(ClientError::Caller)?;
            CLIENT.show(&client, call.format(), mps_client).await
        }
        ClientCommand::Terminate(args) => terminate(&args).await,
    }
}
