//! `mps-manager host`.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::confirm::ConfirmArgs;
use super::output::{DetailsTable, TableCell};
use super::server::CallArgs;
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::service::host::{DocumentedOnly, HostView};

const HOST: &str = "/api/v1/host";

/// Commands on the host.
#[derive(Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Show the host: its driver, its MPS, and how its manager is reached
    #[command(after_help = "Examples:
  mps-manager host get")]
    Get(CallArgs),
    /// Confirm that a database from another machine, or one that lost rows, is to be used here
    #[command(after_help = "Examples:
  mps-manager host get
  mps-manager host confirm")]
    Confirm {
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: HostCommand) -> Result<ExitCode, ClientError> {
    match command {
        HostCommand::Get(call) => print(&call, &call.client()?.get(HOST).await?),
        HostCommand::Confirm { confirm, call } => accept(&call, confirm).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn accept(call: &CallArgs, confirm: ConfirmArgs) -> Result<(), ClientError> {
    let client = call.client()?;
    let before: HostView = client.get(HOST).await?;
    if let Some(read_only) = &before.read_only {
        confirm.ask(&format!("{}\nUse the database on {}?", read_only.reason, before.hostname))?;
    }
    let body = json!({ "machine_id": before.machine_id });
    let host: HostView = client.post(&format!("{HOST}/confirm"), &body).await?;
    let sentence = format!("the database belongs to {} (machine {})", host.hostname, host.machine_id);
    call.format().announce(&sentence, &host.hostname, &host);
    Ok(())
}

fn print(call: &CallArgs, host: &HostView) {
    let mps = host.mps_cuda_version();
    let mut details = DetailsTable::default()
        .row("Host", host.hostname.as_str())
        .row("Simulated", TableCell::optional(host.profile.as_deref().filter(|_| host.simulated)))
        .row("GPUs", host.gpus.to_string())
        .row("MIG instances", TableCell::optional((host.mig_instances > 0).then_some(host.mig_instances)))
        .row("Capacity", TableCell::optional(host.capacity.map(|clients| counted(clients, "client"))))
        .row(
            "Driver",
            TableCell::optional(Some(host.driver_version.as_str()).filter(|version| !version.is_empty())),
        )
        .row("MPS", TableCell::optional(mps.as_ref().map(|version| format!("of CUDA {version}"))))
        .row("Clients per GPU", TableCell::optional(mps.map(|_| format!("at most {}", host.client_ceiling))))
        .row("Manager", host.manager_version.as_str())
        .row("Machine ID", host.machine_id.as_str())
        .row("Boot ID", host.boot_id.as_str());
    for capability in &host.capabilities {
        details = details.row(capability.name.title(), host.availability(capability));
    }
    if let Some(read_only) = &host.read_only {
        details = details.row("Read-only", read_only.reason.as_str());
    }
    for condition in &host.conditions {
        details = details.row(condition.kind.as_str(), condition.message.as_str());
    }
    // That MLOPart devices are is said where the capabilities are.
    for feature in host.documented_only.iter().filter(|feature| **feature != DocumentedOnly::MlopartDevices) {
        details = details.row("Documented only", feature.words());
    }
    for remark in &host.isolation.remarks {
        details = details.row("Isolation", remark.as_str());
    }
    details.print(call.format(), &host.hostname, host);
}
