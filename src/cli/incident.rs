//! `mps-manager incident`: what broke, which clients lost their work, and who took note of it.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

use super::nouns::{DAEMON, INCIDENT, TENANT};
use super::output::{DIFFERS, complain, remark};
use super::server::{CallArgs, exit_code};
use super::values::{incident_id, time_ago};
use crate::client::ClientError;
use crate::domain::duration::parse_duration;
use crate::domain::incident::IncidentState;
use crate::domain::{DaemonName, TenantName};
use crate::service::host::HostView;
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, the newest first; exit 1 while one of them is open, or while none can be recorded
    #[command(after_help = "Examples:
  mps-manager incident list --open
  mps-manager incident list --since 24h
  mps-manager incident list --tenant web")]
    List {
        /// Only those that are open
        #[arg(long)]
        open: bool,
        /// Only those of this daemon
        #[arg(long, add = DAEMON.complete())]
        daemon: Option<DaemonName>,
        /// Only those that hit this tenant
        #[arg(long, add = TENANT.complete())]
        tenant: Option<TenantName>,
        /// Only those that were open within this time, for example 1h
        #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
        since: Option<Duration>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show an incident: the affected clients with the evidence about each, and the time to recovery
    #[command(after_help = "Examples:
  mps-manager incident get 12")]
    Get {
        /// The incident's ID
        #[arg(value_parser = incident_id, add = INCIDENT.complete())]
        id: i64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Acknowledge incidents; one that is open stays open
    #[command(after_help = "Examples:
  mps-manager incident acknowledge 12 --note 'bad kernel of the web team, fixed'
  mps-manager incident acknowledge 12 13 14")]
    Acknowledge {
        /// The incidents' IDs
        #[arg(value_name = "ID", required = true, value_parser = incident_id, add = INCIDENT.complete())]
        ids: Vec<i64>,
        /// Note on the cause or the remedy
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: IncidentCommand) -> Result<ExitCode, ClientError> {
    match command {
        IncidentCommand::List { open, daemon, tenant, since, call } => {
            let filters = [
                ("state", open.then(|| "open".to_owned())),
                ("daemon", daemon.map(String::from)),
                ("tenant", tenant.map(String::from)),
                ("since", since.map(time_ago)),
            ];
            let client = call.client()?;
            let incidents = INCIDENT.read(&client, &filters, 0).await?;
            INCIDENT.layout().print(&incidents, call.format());
            // A caller who may not see the host gets no remark about it.
            let host: Option<HostView> = client.get("/api/v1/host").await.ok();
            let unwritten = host
                .as_ref()
                .and_then(|host| host.conditions.iter().find(|fault| fault.kind.hides_incidents()));
            if let Some(fault) = unwritten {
                remark(&format!("incidents may be missing here: {}", fault.message));
            }
            let is_well = unwritten.is_none() && !has_open(&incidents);
            Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
        }
        IncidentCommand::Get { id, call } => INCIDENT.get(&call, id).await,
        IncidentCommand::Acknowledge { ids, note, call } => acknowledge(&call, &ids, note).await,
    }
}

/// Acknowledges incidents one after another, and goes on after a refusal; returns the worst exit code.
async fn acknowledge(call: &CallArgs, ids: &[i64], note: Option<String>) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let request = AcknowledgeRequest { note };
    let mut done: Vec<IncidentView> = Vec::new();
    let mut refused: Vec<(i64, ClientError)> = Vec::new();
    for id in ids {
        match client.post(&format!("{}/acknowledge", INCIDENT.path_of(id)), &request).await {
            Ok(incident) => done.push(incident),
            Err(error) => refused.push((*id, error)),
        }
    }
    let format = call.format();
    if ids.len() > 1 && format.is_structured() {
        format.print_value(&done);
    } else {
        for incident in &done {
            let sentence = format!("incident {} was acknowledged: {}", incident.id, incident.summary);
            format.announce(&sentence, &incident.id.to_string(), incident);
        }
    }
    for (id, error) in &refused {
        complain(&format!("incident {id} was not acknowledged: {error}"));
    }
    let worst = refused.iter().map(|(_, error)| exit_code(error)).max();
    Ok(worst.map_or(ExitCode::SUCCESS, ExitCode::from))
}

/// Returns true if any of the incidents is open.
pub(super) fn has_open(incidents: &[IncidentView]) -> bool {
    incidents.iter().any(|incident| incident.state == IncidentState::Open)
}
