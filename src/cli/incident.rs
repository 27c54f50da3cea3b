//! `mps-manager incident`: what broke, which clients lost their work, and who took note of it.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::{all, filtered, require_daemon, require_tenant};
use super::output::{DIFFERS, DetailsTable, ListColumn, ListLayout, OutputFormat, TableCell, age, word};
use super::server::{CallArgs, ask};
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::domain::incident::{IncidentKind, IncidentState, Suspect, recovery_words};
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

const INCIDENTS: &str = "/api/v1/incidents";

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, the newest first; exit 1 while one of them is open
    #[command(after_help = "Examples:
  mps-manager incident list --open
  mps-manager incident list --tenant web")]
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
    #[command(after_help = "Examples:
  mps-manager incident get 12")]
    Get {
        /// The incident's ID
        #[arg(add = ArgValueCandidates::new(completion::incidents))]
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
        #[arg(value_name = "ID", required = true, add = ArgValueCandidates::new(completion::incidents))]
        ids: Vec<i64>,
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
        ListColumn::ranked(
            5,
            ListColumn::new("ACKNOWLEDGED", |incident| {
                TableCell::state(if incident.acknowledged.is_some() { "yes" } else { "-" })
            }),
        ),
        ListColumn::ranked(3, ListColumn::new("KIND", |incident| incident.kind.as_str().into())),
        ListColumn::ranked(2, ListColumn::new("DAEMON", |incident| incident.daemon.to_string().into())),
        ListColumn::ranked(4, ListColumn::new("AGE", |incident| age(incident.opened_at).into())),
        ListColumn::ranked(1, ListColumn::cut("SUMMARY", |incident| incident.summary.as_str().into())),
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
            IncidentCommand::Acknowledge { ids, note, call } => acknowledge(&call, &ids, note).await,
        }
    })
}

/// Acknowledges one after another, up to the first that is refused; those before it stay acknowledged, and are printed.
async fn acknowledge(call: &CallArgs, ids: &[i64], note: Option<String>) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let request = AcknowledgeRequest { note };
    let mut done: Vec<IncidentView> = Vec::new();
    let mut result = Ok(ExitCode::SUCCESS);
    for id in ids {
        match client.post(&format!("{INCIDENTS}/{id}/acknowledge"), &request).await {
            Ok(incident) => done.push(incident),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    let format = call.format();
    if ids.len() > 1 && matches!(format, OutputFormat::Json | OutputFormat::Yaml) {
        format.print_value(&done);
        return result;
    }
    for incident in &done {
        let sentence = format!("incident {} was acknowledged: {}", incident.id, incident.summary);
        format.announce(&sentence, &incident.id.to_string(), incident);
    }
    result
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
        let recovered = format!("{} ({})", rfc3339::format(at), recovery_words(ms));
        details = details.row("Recovered", recovered);
    }
    for suspect in &incident.suspected {
        let (label, words) = suspected(incident.kind, suspect);
        details = details.row(label, words);
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

/// A process that an incident is about, and what it is to it.
fn suspected(kind: IncidentKind, suspect: &Suspect) -> (&'static str, String) {
    let words = process(suspect.pid, suspect.tenant.as_ref());
    let program = suspect.program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
    let ended = if suspect.has_ended { ", which has ended" } else { "" };
    match kind {
        _ if kind.loses_work() => ("Suspected", format!("{words}{program} (reported by MPS, not certain)")),
        IncidentKind::ClientRefused => ("Refused", format!("{words}{program}")),
        _ => ("Process", format!("{words}{program}{ended}")),
    }
}

fn process(pid: u32, tenant: Option<&TenantName>) -> String {
    match tenant {
        Some(tenant) => format!("process {pid} of {tenant}"),
        None => format!("process {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_labelled_by_their_part() {
        let suspect = Suspect {
            pid: 7,
            client: None,
            tenant: TenantName::parse("web").ok(),
            program: Some("train".into()),
            has_ended: true,
        };
        let shown = |kind| suspected(kind, &suspect);
        let refused = ("Refused", "process 7 of web (train)".to_owned());
        assert_eq!(shown(IncidentKind::ClientRefused), refused);
        let outside = ("Process", "process 7 of web (train), which has ended".to_owned());
        assert_eq!(shown(IncidentKind::Bypass), outside);
        assert_eq!(shown(IncidentKind::GpuFault).0, "Suspected");
    }
}
