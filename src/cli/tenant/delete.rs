//! `mps-manager tenant delete`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use reqwest::StatusCode;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::super::confirm::{ConfirmArgs, owners};
use super::super::fetch::{all, filtered};
use super::super::nouns::{CLIENT, TENANT};
use super::super::output::{DIFFERS, complain, remark};
use super::super::server::CallArgs;
use super::super::wait::ended;
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::count::{counted, enumerated};
use crate::domain::duration::parse_duration;
use crate::domain::operation::{Operation, OperationState};
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;
use crate::service::tenants::leases::HeldLease;

/// Interval at which the processes of a tenant are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which ended processes may still be listed.
const LISTED: Duration = Duration::from_secs(10);
/// Reason for which a tenant is kept: its expiry was changed meanwhile.
const TAKEN_BACK: &str = "the drain was taken back";

/// The tenant to delete, and options for its processes.
#[derive(Debug, Args)]
pub(in crate::cli) struct TenantDeleteArgs {
    /// The tenant
    #[arg(add = TENANT.complete())]
    name: TenantName,
    /// Admit no further process, and wait for those that it has to end, for at most this time, for example 30s
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    drain: Option<Duration>,
    /// Admit no further process, terminate the clients that are left, revoke other leases, and accept that there is no such tenant
    #[arg(long)]
    force: bool,
    /// No process will be started with its environment any more: remove its directory at once, and not after a day
    #[arg(long)]
    finished: bool,
    /// Say what would be done, and change nothing
    #[arg(long, conflicts_with_all = ["drain", "force"])]
    dry_run: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
    #[command(flatten)]
    call: CallArgs,
}

impl TenantDeleteArgs {
    fn announce(&self, sentence: &str, is_deleted: bool) {
        let (name, format) = (self.name.as_str(), self.call.format());
        if format.is_structured() {
            format.print_value(&json!({ "name": name, "deleted": is_deleted }));
        } else {
            format.announce(sentence, name, &());
        }
    }
}

pub(super) async fn delete(args: &TenantDeleteArgs) -> Result<ExitCode, ClientError> {
    let (client, name) = (args.call.client()?, &args.name);
    match drain_and_delete(&client, args, &TENANT.path_of(name)).await {
        // The tenant is gone already, as requested.
        Err(error) if args.force && is_missing(&error) => {
            args.announce(&format!("there is no tenant {name}: nothing was done"), false);
            Ok(ExitCode::SUCCESS)
        }
        done => done,
    }
}

fn is_missing(error: &ClientError) -> bool {
    error.has_status(StatusCode::NOT_FOUND)
}

async fn drain_and_delete(
    client: &Client,
    args: &TenantDeleteArgs,
    path: &str,
) -> Result<ExitCode, ClientError> {
    let name = &args.name;
    if !args.dry_run {
        let clients: Vec<ClientView> = all(client, &format!("{path}/clients")).await?;
        let question = if clients.is_empty() {
            format!("Delete tenant {name}?")
        } else {
            let (many, owners) = (counted(clients.len(), "client"), owners(&clients));
            let force =
                if args.force { "Terminate what is left of them, and delete it" } else { "Delete it" };
            format!("Tenant {name} has {many} ({owners}). {force}?")
        };
        args.confirm.ask(&question)?;
    }
    let is_drained = args.drain.is_some() || args.force;
    let yes = |is: bool| is.then(|| "true".into());
    let mut tag = None;
    if is_drained {
        // From now on it is deleted once it has no process, also if this command is interrupted.
        client.delete(&filtered(path, &[("drain", yes(true)), ("finished", yes(args.finished))])).await?;
        let drained = format!(
            "It admits no further process, and is deleted once it has none; to keep it: mps-manager tenant set {name} --unset ttl \
             (or --ttl with a time)"
        );
        let left = emptied(client, args, path).await.inspect_err(|_| complain(&drained))?;
        let now = client.get_tagged::<TenantView>(path).await?;
        let is_kept = left.is_none() || now.as_ref().is_some_and(|(tenant, _)| !tenant.status.draining);
        match left {
            _ if is_kept => return Ok(not_deleted(name, TAKEN_BACK)),
            Some(left) if !left.is_empty() => {
                return Ok(not_deleted(name, &format!("it still has {}. {drained}", left.words())));
            }
            _ => {}
        }
        tag = now.map(|(_, tag)| tag);
    }
    let query = [("dry_run", yes(args.dry_run)), ("finished", yes(args.finished))];
    let path = filtered(path, &query);
    let deleted = match &tag {
        Some(tag) => client.delete_tagged(&path, tag).await,
        None => client.delete(&path).await,
    };
    match deleted {
        // The manager did it already.
        Err(error) if is_drained && is_missing(&error) => {}
        Err(error) if is_drained && error.has_status(StatusCode::PRECONDITION_FAILED) => {
            return Ok(not_deleted(name, "it was changed meanwhile"));
        }
        deleted => deleted?,
    }
    let words = if args.dry_run { "would be deleted" } else { "was deleted" };
    args.announce(&format!("tenant {name} {words}"), !args.dry_run);
    Ok(ExitCode::SUCCESS)
}

fn not_deleted(name: &TenantName, why: &str) -> ExitCode {
    complain(&format!("tenant {name} was not deleted: {why}"));
    ExitCode::from(DIFFERS)
}

/// Waits until a drained tenant has no process, or ends those that are left; `None` if its drain was taken back.
async fn emptied(
    client: &Client,
    args: &TenantDeleteArgs,
    path: &str,
) -> Result<Option<RemainingProcesses>, ClientError> {
    let until = Instant::now() + args.drain.unwrap_or_default();
    let left = RemainingProcesses::at(client, path, until).await?;
    match left {
        Some(left) if args.force && !left.is_empty() => {
            left.end(client, path).await?;
            RemainingProcesses::at(client, path, Instant::now() + LISTED).await
        }
        left => Ok(left),
    }
}

/// The processes of a tenant that is to be deleted.
#[derive(Default)]
struct RemainingProcesses {
    clients: Vec<ClientView>,
    /// Leases of processes that are not clients.
    leases: Vec<HeldLease>,
}

impl RemainingProcesses {
    /// Waits until no process is left, at most until this time, and returns those that are; `None` if the tenant is no longer drained.
    async fn at(client: &Client, path: &str, until: Instant) -> Result<Option<Self>, ClientError> {
        loop {
            // If the daemon cannot be read now, its last known clients count.
            let reread: Result<TenantView, ClientError> = client.get(&format!("{path}?fresh=true")).await;
            if reread.is_ok_and(|tenant| !tenant.status.draining) {
                return Ok(None);
            }
            let mut left = match Self::now(client, path).await {
                // The drained tenant was deleted once it had none.
                Err(error) if is_missing(&error) => Self::default(),
                left => left?,
            };
            left.leases.retain(|lease| !lease.is_client);
            if left.is_empty() || Instant::now() >= until {
                return Ok(Some(left));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn now(client: &Client, path: &str) -> Result<Self, ClientError> {
        Ok(Self {
            clients: all(client, &format!("{path}/clients")).await?,
            leases: all(client, &format!("{path}/leases")).await?,
        })
    }

    fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.leases.is_empty()
    }

    /// Describes each process by its ID and its command.
    fn words(&self) -> String {
        let clients = self.clients.iter().map(|client| format!("client {} ({})", client.pid, client.command));
        let leases =
            self.leases.iter().map(|lease| format!("a lease of process {} ({})", lease.pid, lease.command));
        enumerated(&clients.chain(leases).collect::<Vec<_>>())
    }

    /// Terminates the clients in the safe order, and revokes the leases of the others, which run on.
    async fn end(&self, client: &Client, path: &str) -> Result<(), ClientError> {
        for mps_client in &self.clients {
            let terminate = format!("{}/terminate?stopped=continue", CLIENT.path_of(mps_client.id));
            let operation: Operation = match client.post(&terminate, &json!({})).await {
                // It has ended meanwhile.
                Err(error) if is_missing(&error) => continue,
                answer => answer?,
            };
            let operation =
                ended(client, operation, &format!("terminating client {}", mps_client.pid)).await?;
            if operation.state != OperationState::Succeeded {
                let why = operation.error.unwrap_or_else(|| operation.state.as_str().to_owned());
                complain(&format!("client {} was not terminated: {why}", mps_client.id));
            }
        }
        for lease in &self.leases {
            match client.delete(&format!("{path}/leases/{}", lease.id)).await {
                Err(error) if is_missing(&error) => {}
                answer => {
                    answer?;
                    remark(&format!(
                        "The lease of process {} was revoked; the process keeps running.",
                        lease.pid
                    ));
                }
            }
        }
        Ok(())
    }
}
