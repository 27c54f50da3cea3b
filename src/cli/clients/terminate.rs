//! `mps-manager client terminate`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::super::confirm::{ConfirmArgs, owners};
use super::super::fetch::filtered;
use super::super::nouns::{CLIENT, tenant_of};
use super::super::output::remark;
use super::super::server::CallArgs;
use super::super::values::choice;
use super::super::wait::{OperationWords, WaitArgs, follow_one_of_several};
use super::select::{ClientSelector, polled, resolve};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::operation::Operation;
use crate::service::tenants::clients::ClientView;

/// The clients to terminate.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager client terminate 19080
  mps-manager client terminate 19080-1234567 --stopped continue
  mps-manager client terminate --tenant web --yes")]
pub(in crate::cli) struct TerminateArgs {
    /// Clients, by ID as `client list` prints it, or by PID
    #[arg(value_name = "CLIENT", add = CLIENT.complete())]
    clients: Vec<String>,
    #[command(flatten)]
    filter: ClientSelector,
    /// Action on a client that is stopped (by SIGSTOP or a debugger); by default nothing is sent and this fails
    #[arg(long, value_enum)]
    stopped: Option<StoppedClientAction>,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// Action on a stopped client.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StoppedClientAction {
    /// Continue it, then end it in the safe order
    Continue,
    /// Kill it without MPS
    Kill,
}

/// Terminates the clients one after another, as MPS takes it; the worst exit code counts.
pub(in crate::cli) async fn terminate(args: &TerminateArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let is_by_name = !args.clients.is_empty();
    if !is_by_name && !args.filter.is_given() {
        let text = "give clients by ID or PID, or --tenant, --daemon or --gpu";
        return Err(text.into());
    }
    if is_by_name && args.filter.is_given() {
        let text = "give either clients or --tenant, --daemon and --gpu, not both";
        return Err(text.into());
    }
    let chosen: Vec<ClientView> = if is_by_name {
        let listed = polled(&client, []).await?;
        let named = args.clients.iter().map(|named| resolve(&listed, named).cloned());
        named.collect::<Result<_, _>>()?
    } else {
        args.filter.clients(&client).await?
    };
    if chosen.is_empty() {
        args.call.format().print_value(&chosen);
        remark("There are no such clients.");
        return Ok(ExitCode::SUCCESS);
    }
    if !is_by_name {
        let many = counted(chosen.len(), "client");
        args.confirm.ask(&format!("Terminate {many} of {}?", owners(&chosen)))?;
    }
    let format = args.call.format();
    let mut operations = Vec::new();
    let mut result = Ok(ExitCode::SUCCESS);
    for target in &chosen {
        match terminate_one(&client, args, target).await {
            Ok((operation, code)) => {
                operations.push(operation);
                if code != ExitCode::SUCCESS {
                    result = Ok(code);
                }
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    if !is_by_name || chosen.len() > 1 {
        format.print_value(&operations);
    } else if let Some(only) = operations.first() {
        format.print_value(only);
    }
    result
}

async fn terminate_one(
    client: &Client,
    args: &TerminateArgs,
    target: &ClientView,
) -> Result<(Operation, ExitCode), ClientError> {
    let stopped = args.stopped.as_ref().map(choice);
    let path = filtered(&format!("{}/terminate", CLIENT.path_of(target.id)), &[("stopped", stopped)]);
    let operation: Operation = client.post(&path, &json!({})).await?;
    let tenant = tenant_of(target).map_or_else(String::new, |tenant| format!(" ({tenant})"));
    let words = OperationWords {
        doing: &format!("terminating client {}{tenant}", target.pid),
        done: &format!("client {}{tenant} was terminated", target.pid),
        failed: &format!("client {} was not terminated", target.id),
    };
    follow_one_of_several(client, operation, args.wait, args.call.format(), words).await
}
