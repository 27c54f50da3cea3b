//! `mps-manager incident`: what broke, which clients lost their work, and who took note of it.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::{all, filtered, require_daemon, require_tenant};
use super::output::{DIFFERS, DetailsTable, ListColumn, ListLayout, TableCell, age, word};
use super::server::{CallArgs, ask};
use crate::domain::count::counted;
use crate::domain::incident::{IncidentState, duration_words};
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

const INCIDENTS: &str = "/api/v1/incidents";

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, the newest first; exit 1 while one of them is open
    List {
        /// Only those that are open
        #[arg(long)]
        open: bool,
        /// Only those of this daemon
        #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
        daemon: Option<DaemonName>,
        /// Only those that hit this tenant
        #[arg(long, add = ArgValueCandidates::new(completion::tenants))]
        tenant: Option<TenantName>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show an incident: the suspected cause, the affected clients, and the time to recovery
    Get {
        /// The incident's ID
        id: i64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Acknowledge an incident; one that is open stays open
    Acknowledge {
        /// The incident's ID
        id: i64,
        /// What was found or done
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Columns of a list of incidents.
pub(super) const LAYOUT: ListLayout<IncidentView> = ListLayout {
    noun: "incidents",
    name: |incident| incident.id.to_string(),
    columns: &[
        ListColumn::new("INCIDENT", |incident| incident.id.to_string().into()),
        ListColumn::new("STATE", |incident| TableCell::state(&word(incident.state))),
        ListColumn::new("KIND", |incident| incident.kind.as_str().into()),
        ListColumn::new("DAEMON", |incident| incident.daemon.to_string().into()),
        ListColumn::new("AGE", |incident| age(incident.opened_at).into()),
        ListColumn::cut("SUMMARY", |incident| incident.summary.as_str().into()),
    ],
};

pub(super) fn run(command: IncidentCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            IncidentCommand::List { open, daemon, tenant, call } => {
                let client = call.client()?;
                require_daemon(&client, daemon.as_ref()).await?;
                require_tenant(&client, tenant.as_ref()).await?;
                let filters = [
                    ("state", open.then(|| "open".to_owned())),
                    ("daemon", daemon.map(String::from)),
                    ("tenant", tenant.map(String::from)),
                ];
                let incidents: Vec<IncidentView> = all(&client, &filtered(INCIDENTS, &filters)).await?;
                LAYOUT.print(&incidents, call.format());
                Ok(if has_open(&incidents) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
            }
            IncidentCommand::Get { id, call } => {
                let incident: IncidentView = call.client()?.get(&format!("{INCIDENTS}/{id}")).await?;
                print(&call, &incident);
                Ok(ExitCode::SUCCESS)
            }
            IncidentCommand::Acknowledge { id, note, call } => {
                let path = format!("{INCIDENTS}/{id}/acknowledge");
                let incident: IncidentView = call.client()?.post(&path, &AcknowledgeRequest { note }).await?;
                let sentence = format!("incident {id} was acknowledged: {}", incident.summary);
                call.format().announce(&sentence, &id.to_string(), &incident);
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Whether one of them is open.
pub(super) fn has_open(incidents: &[IncidentView]) -> bool {
    incidents.iter().any(|incident| incident.state == IncidentState::Open)
}

fn print(call: &CallArgs, incident: &IncidentView) {
    let mut details = DetailsTable::default()
        .row("Incident", incident.id.to_string())
        .row("Summary", incident.summary.as_str())
        .row("Kind", format!("{} ({})", incident.kind.as_str(), incident.severity.as_str()))
        .row("State", TableCell::state(&word(incident.state)))
        .row("Daemon", incident.daemon.to_string())
        .row("GPUs", TableCell::joined(&incident.gpus))
        .row("Opened", rfc3339::format(incident.opened_at));
    if let (Some(at), Some(ms)) = (incident.recovered_at, incident.time_to_recovery_ms) {
        let recovered = format!("{} (after {})", rfc3339::format(at), duration_words(ms));
        details = details.row("Recovered", recovered);
    }
    for suspect in &incident.suspected {
        let reported = if incident.kind.loses_work() { " (reported by MPS, not certain)" } else { "" };
        details = details.row("Suspected", process(suspect.pid, suspect.tenant.as_ref()) + reported);
    }
    for client in &incident.affected {
        details = details.row("Affected", process(client.pid, client.tenant.as_ref()));
    }
    if let Some(unaffected) = incident.unaffected {
        details = details.row("Unaffected", counted(unaffected, "other client"));
    }
    if let Some(found) = &incident.detail {
        details = details.row("Found", found.as_str());
    }
    if let Some(acknowledged) = &incident.acknowledged {
        let by = acknowledged.by.as_deref().unwrap_or("an operator");
        let note = acknowledged.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        let text = format!("{} by {by}{note}", rfc3339::format(acknowledged.at));
        details = details.row("Acknowledged", text);
    }
    details = details
        .row("What to do", incident.remedy.as_str())
        .row("Events", TableCell::joined(&incident.events));
    details.print(call.format(), &incident.id.to_string(), incident);
}

fn process(pid: u32, tenant: Option<&TenantName>) -> String {
    match tenant {
        Some(tenant) => format!("process {pid} of {tenant}"),
        None => format!("process {pid}"),
    }
}
