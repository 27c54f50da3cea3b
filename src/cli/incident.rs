//! `mps-manager incident`: what broke, which clients lost their work, and who took note of it.

use std::process::ExitCode;

use clap::Subcommand;

use super::fetch::all;
use super::output::{DIFFERS, DetailsTable, ListColumn, ListLayout, TableCell, age};
use super::server::{CallArgs, ask};
use crate::domain::count::counted;
use crate::domain::incident::{IncidentState, duration_words};
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

const INCIDENTS: &str = "/api/v1/incidents";

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, newest first; exit 1 while one is open
    #[command(after_help = "Examples:
  mps-manager incident list --open
  mps-manager incident list --tenant web -o wide")]
    List {
        /// Only those that are open
        #[arg(long)]
        open: bool,
        /// Only those of this daemon
        #[arg(long)]
        daemon: Option<DaemonName>,
        /// Only those that hit this tenant
        #[arg(long)]
        tenant: Option<TenantName>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show an incident: the suspected cause, the affected clients, and the time to recovery
    Get {
        /// The incident's ID, as `list` prints it
        id: i64,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Acknowledge an incident; one that is open stays open
    #[command(after_help = "Examples:
  mps-manager incident acknowledge 12 --note 'driver bug, reported'")]
    Acknowledge {
        /// The incident's ID, as `list` prints it
        id: i64,
        /// What was found or done
        #[arg(long)]
        note: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// How incidents are listed, here and in `status`.
pub(super) const LAYOUT: ListLayout<IncidentView> = ListLayout {
    noun: "incidents",
    name: |incident| incident.id.to_string(),
    columns: &[
        ListColumn::new("ID", |incident| incident.id.to_string().into()),
        ListColumn::new("STATE", |incident| TableCell::state(state(incident))),
        ListColumn::new("AGE", |incident| age(incident.opened_at).into()),
        ListColumn::wide("KIND", |incident| incident.kind.as_str().into()),
        ListColumn::wide("DAEMON", |incident| incident.daemon.as_str().into()),
        ListColumn::wide("TENANTS", |incident| TableCell::joined(&incident.tenants)),
        ListColumn::cut("SUMMARY", |incident| incident.summary.as_str().into()),
    ],
};

/// Whether one of them is open, which commands report with their exit code.
pub(super) fn any_open(incidents: &[IncidentView]) -> bool {
    incidents.iter().any(|incident| incident.state == IncidentState::Open)
}

pub(super) fn run(command: IncidentCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            IncidentCommand::List { open, daemon, tenant, call } => {
                let mut query = vec![];
                query.extend(open.then(|| "state=open".to_owned()));
                query.extend(daemon.map(|daemon| format!("daemon={daemon}")));
                query.extend(tenant.map(|tenant| format!("tenant={tenant}")));
                let path = format!("{INCIDENTS}?{}", query.join("&"));
                let incidents: Vec<IncidentView> = all(&call.client()?, &path).await?;
                LAYOUT.print(&incidents, call.format());
                Ok(if any_open(&incidents) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
            }
            IncidentCommand::Get { id, call } => {
                let incident: IncidentView = call.client()?.get(&format!("{INCIDENTS}/{id}")).await?;
                details(&incident).print(call.format(), &id.to_string(), &incident);
                Ok(ExitCode::SUCCESS)
            }
            IncidentCommand::Acknowledge { id, note, call } => {
                let path = format!("{INCIDENTS}/{id}/acknowledge");
                let incident: IncidentView = call.client()?.post(&path, &AcknowledgeRequest { note }).await?;
                let sentence = format!("incident {id} is acknowledged: {}", incident.summary);
                call.format().announce(&sentence, &id.to_string(), &incident);
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

fn details(incident: &IncidentView) -> DetailsTable {
    let mut details = DetailsTable::default()
        .row("Incident", incident.id.to_string())
        .row("Summary", incident.summary.as_str())
        .row("Kind", format!("{} ({})", incident.kind.as_str(), incident.severity.as_str()))
        .row("State", TableCell::state(state(incident)))
        .row("Daemon", incident.daemon.as_str())
        .row("GPUs", TableCell::joined(&incident.gpus))
        .row("Opened", rfc3339::format(incident.opened_at));
    if let (Some(at), Some(ms)) = (incident.recovered_at, incident.time_to_recovery_ms) {
        details = details.row("Recovered", format!("{}, after {}", rfc3339::format(at), duration_words(ms)));
    }
    for suspect in &incident.suspected {
        let reported = if incident.kind.loses_work() { ", reported by MPS and not certain" } else { "" };
        details =
            details.row("Suspected", format!("{}{reported}", process(suspect.pid, suspect.tenant.as_ref())));
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
        details = details.row("Acknowledged", format!("{} by {by}{note}", rfc3339::format(acknowledged.at)));
    }
    details.row("What to do", incident.remedy.as_str()).row("Events", TableCell::joined(&incident.events))
}

/// A process with its tenant, where that is known.
fn process(pid: u32, tenant: Option<&TenantName>) -> String {
    tenant.map_or_else(|| format!("process {pid}"), |tenant| format!("process {pid} of {tenant}"))
}

/// The word for its state.
fn state(incident: &IncidentView) -> &'static str {
    match incident.state {
        IncidentState::Open => "open",
        IncidentState::Recovered => "recovered",
    }
}
