//! `mps-manager maintenance`: releases GPUs and the driver for work on them.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::confirm::ConfirmArgs;
use super::daemon::TimeoutAction;
use super::fetch::all;
use super::nouns::GPU;
use super::output::{DetailsTable, TableCell, age};
use super::server::CallArgs;
use super::values::choice;
use super::wait::{OperationWords, WaitArgs, follow};
use crate::client::{Client, ClientError};
use crate::domain::DaemonName;
use crate::domain::count::enumerated;
use crate::domain::duration::parse_seconds;
use crate::domain::maintenance::{DeviceHolder, MaintenanceState};
use crate::domain::operation::Operation;
use crate::service::daemons::DaemonView;
use crate::service::daemons::maintenance::MaintenanceView;
use crate::service::tenants::clients::ClientView;

const MAINTENANCE: &str = "/api/v1/host/maintenance";

/// Commands on the maintenance of the host.
#[derive(Debug, Subcommand)]
pub(super) enum MaintenanceCommand {
    /// Drain and stop daemons and release the driver; exit 1 if clients are left
    #[command(after_help = "Examples:
  mps-manager maintenance begin
  mps-manager maintenance begin --gpu 3 --timeout 1h --on-timeout terminate
  mps-manager maintenance end")]
    Begin {
        /// A GPU, by index or UUID; may be repeated; by default all
        #[arg(long = "gpu", value_name = "GPU", value_delimiter = ',', add = GPU.complete())]
        gpus: Vec<String>,
        /// Time for clients to end, for example 1h
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_seconds::<u32>)]
        timeout: u32,
        /// Action on clients that are left after the timeout
        #[arg(long, value_enum, default_value_t = TimeoutAction::Fail)]
        on_timeout: TimeoutAction,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        wait: WaitArgs,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Take the driver again and start the daemons
    #[command(after_help = "Examples:
  mps-manager maintenance end")]
    End {
        #[command(flatten)]
        wait: WaitArgs,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show the maintenance, and who has its GPUs open
    #[command(after_help = "Examples:
  mps-manager maintenance status")]
    Status(CallArgs),
}

pub(super) async fn run(command: MaintenanceCommand) -> Result<ExitCode, ClientError> {
    match command {
        MaintenanceCommand::Begin { gpus, timeout, on_timeout, confirm, wait, call } => {
            let client = call.client()?;
            for holder in no_drain_ends(&client).await? {
                eprintln!("no drain ends {holder}, which has {} open", holder.files.join(", "));
            }
            confirm.ask("Daemons are stopped until the maintenance ends. Begin it?")?;
            let gpus = (!gpus.is_empty()).then_some(gpus);
            let mut request = json!({ "timeout_s": timeout, "on_timeout": choice(&on_timeout) });
            if let Some(gpus) = gpus {
                request["gpus"] = json!(gpus);
            }
            let operation: Operation = client.post(MAINTENANCE, &request).await?;
            let words = OperationWords {
                doing: "beginning maintenance",
                done: "maintenance has begun: the manager has released the driver",
                failed: "maintenance did not begin",
            };
            let code = follow(&client, operation, wait, call.format(), words).await?;
            let view: MaintenanceView = client.get(MAINTENANCE).await?;
            if view.state == Some(MaintenanceState::Active) {
                for holder in view.holders.iter().flatten() {
                    eprintln!("still open: {} in {holder}", holder.files.join(", "));
                }
            }
            Ok(code)
        }
        MaintenanceCommand::End { wait, call } => {
            let client = call.client()?;
            let view: MaintenanceView = client.get(MAINTENANCE).await?;
            let daemons: Vec<DaemonView> = all(&client, "/api/v1/daemons").await?;
            let cordoned = daemons.iter().filter(|daemon| !daemon.spec.schedulable);
            let cordoned = cordoned.map(|daemon| &daemon.name).filter(|name| view.daemons.contains(name));
            let cordoned: Vec<&str> = cordoned.map(DaemonName::as_str).collect();
            let operation: Operation = client.delete_with_answer(MAINTENANCE).await?;
            let words = OperationWords {
                doing: "ending maintenance",
                done: &format!("maintenance has ended: {}", ready_words(view.daemons.len(), &cordoned)),
                failed: "maintenance did not end well",
            };
            follow(&client, operation, wait, call.format(), words).await
        }
        MaintenanceCommand::Status(call) => {
            let view: MaintenanceView = call.client()?.get(MAINTENANCE).await?;
            print(&call, &view);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Finds the processes that have the driver open but belong neither to this manager nor to the clients of its daemons: no drain ends them.
async fn no_drain_ends(client: &Client) -> Result<Vec<DeviceHolder>, ClientError> {
    let view: MaintenanceView = client.get(MAINTENANCE).await?;
    let clients: Vec<ClientView> = all(client, "/api/v1/clients").await?;
    let is_other =
        |holder: &DeviceHolder| !holder.ours && clients.iter().all(|client| client.pid != holder.pid);
    Ok(view.holders.into_iter().flatten().filter(is_other).collect())
}

/// Returns a clause about the daemons after maintenance: that they are ready, and which of them are still cordoned.
fn ready_words(daemons: usize, cordoned: &[&str]) -> String {
    match cordoned {
        [] if daemons == 0 => "the driver is in use again".to_owned(),
        [] => "the daemons are ready".to_owned(),
        [daemon] => format!(
            "the daemons are ready, and {daemon} is still cordoned: `mps-manager daemon uncordon {daemon}` admits clients again"
        ),
        several => format!(
            "the daemons are ready, and {} are still cordoned: `mps-manager daemon uncordon NAME` admits clients again",
            enumerated(several)
        ),
    }
}

fn print(call: &CallArgs, view: &MaintenanceView) {
    let state = view.state.map_or("none", MaintenanceState::as_str);
    let mut details = DetailsTable::default()
        .row("Maintenance", TableCell::state(state))
        .row("Age", TableCell::optional(view.since.map(age)))
        .row("Operation", TableCell::optional(view.operation))
        .row("GPUs", TableCell::joined(&view.gpus))
        .row("Daemons", TableCell::joined(&view.daemons))
        .row("Driver", if view.live { "in use by the manager" } else { "released" });
    for holder in view.holders.iter().flatten() {
        let unit = holder.unit.as_ref().map_or_else(String::new, |unit| format!("  ({unit})"));
        details = details
            .row("Open in", format!("{}  {}{unit}  {}", holder.id, holder.command, holder.files.join(" ")));
    }
    for module in view.modules.iter().flatten() {
        let users = if module.used_by.is_empty() {
            String::new()
        } else {
            format!(", of which by modules: {}", module.used_by.join(", "))
        };
        details =
            details.row("Module", format!("{}  in use {} times{users}", module.name, module.references));
    }
    if let Some(why) = &view.holders_unknown {
        details = details.row("Open in", format!("unknown: {why}"));
    }
    details.print(call.format(), state, view);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cordoned_daemons_are_named_after_maintenance() {
        assert_eq!(ready_words(1, &[]), "the daemons are ready");
        assert_eq!(ready_words(0, &[]), "the driver is in use again");
        let text = ready_words(2, &["gpu0"]);
        assert!(text.contains("gpu0 is still cordoned: `mps-manager daemon uncordon gpu0`"), "{text}");
        assert!(ready_words(2, &["gpu0", "gpu1"]).contains("gpu0 and gpu1 are still cordoned"));
    }
}
