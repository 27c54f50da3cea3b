//! `mps-manager client`: the processes that are connected to servers.

mod select;
mod terminate;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;

pub(super) use self::select::{CLIENTS, tenant_of};
use self::select::{ClientSelector, resolve};
pub(super) use self::terminate::{TerminateArgs, terminate};
use super::completion;
use super::fetch::all;
use super::output::{DetailsTable, ListColumn, ListLayout, TableCell, age, word};
use super::server::{CallArgs, ask};
use crate::client::ClientError;
use crate::domain::memory::Bytes;
use crate::service::tenants::clients::ClientView;

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
        #[arg(add = ArgValueCandidates::new(completion::clients))]
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

const LAYOUT: ListLayout<ClientView> = ListLayout {
    noun: "clients",
    name: |client| client.id.to_string(),
    columns: &[
        ListColumn::new("CLIENT", |client| client.id.to_string().into()),
        ListColumn::new("TENANT", |client| TableCell::optional(tenant_of(client))),
        ListColumn::ranked(6, ListColumn::new("BY", |client| word(client.attributed_by).into())),
        ListColumn::ranked(3, ListColumn::new("DAEMON", |client| client.daemon.as_str().into())),
        ListColumn::ranked(4, ListColumn::new("UID", |client| TableCell::optional(client.uid))),
        ListColumn::ranked(1, ListColumn::new("MEMORY", |client| TableCell::optional(memory(client)))),
        ListColumn::ranked(5, ListColumn::new("AGE", |client| age(client.since).into())),
        ListColumn::ranked(
            7,
            ListColumn::new("PARENT", |client| if client.orphaned { "ended" } else { "" }.into()),
        ),
        ListColumn::ranked(2, ListColumn::cut("COMMAND", |client| client.command.as_str().into())),
        ListColumn::wide("SERVER", |client| client.server.to_string().into()),
        ListColumn::wide("GPUS", |client| TableCell::joined(client.memory.iter().map(|memory| &memory.gpu))),
    ],
};

/// Formats the client's memory on all GPUs as the driver reports it; `None` if it reports none.
fn memory(client: &ClientView) -> Option<String> {
    let reported: Vec<u64> = client.memory.iter().filter_map(|memory| memory.used_bytes).collect();
    (!reported.is_empty()).then(|| Bytes(reported.iter().sum()).to_string())
}

/// Prints the clients.
pub(super) async fn list(args: &ClientListArgs) -> Result<ExitCode, ClientError> {
    let clients = args.filter.clients(&args.call.client()?).await?;
    LAYOUT.print(&clients, args.call.format());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn run(command: ClientCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            ClientCommand::List(args) => list(&args).await,
            ClientCommand::Get { client, call } => get(&call, &client).await,
            ClientCommand::Terminate(args) => terminate(&args).await,
        }
    })
}

async fn get(call: &CallArgs, named: &str) -> Result<ExitCode, ClientError> {
    let clients: Vec<ClientView> = all(&call.client()?, &format!("{CLIENTS}?fresh=true")).await?;
    let client = resolve(&clients, named)?;
    let mut details = DetailsTable::default()
        .row("Client", client.id.to_string())
        .row("PID", client.pid.to_string())
        .row("Tenant", TableCell::optional(tenant_of(client)))
        .row("Known by", word(client.attributed_by))
        .row("Daemon", client.daemon.as_str())
        .row("Server", client.server.to_string())
        .row("User", TableCell::optional(client.uid.map(|uid| format!("uid {uid}"))))
        .row("Age", age(client.since))
        .row(
            "Parent",
            if client.orphaned {
                "has ended: it may be left over"
            } else {
                "lives, or a service or container keeps it"
            },
        )
        .row("Command", client.command.as_str());
    for memory in &client.memory {
        let bytes = memory.used_bytes.map_or_else(|| "?".to_owned(), |bytes| Bytes(bytes).to_string());
        details = details.row("Memory", format!("{bytes} on {}", memory.gpu));
    }
    details.print(call.format(), &client.id.to_string(), client);
    Ok(ExitCode::SUCCESS)
}
