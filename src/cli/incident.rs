//! `mps-manager incident`: what broke, which clients lost their work, and who took note of it.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::{GpuNames, all, filtered, require_daemon, require_tenant};
use super::output::{
    DIFFERS, DetailsTable, ListColumn, ListLayout, OutputFormat, TableCell, age, complain, with_workload,
    word,
};
use super::server::{CallArgs, ask, exit_code};
use super::values::{incident_id, time_ago};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::duration::parse_duration;
use crate::domain::incident::{IncidentKind, IncidentState, RankedClient, Suspect, recovery_words};
use crate::domain::memory::Bytes;
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

const INCIDENTS: &str = "/api/v1/incidents";

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, the newest first; exit 1 while one of them is open
    #[command(after_help = "Examples:
  mps-manager incident list --open
  mps-manager incident list --since 24h
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
        #[arg(value_parser = incident_id, add = ArgValueCandidates::new(completion::incidents))]
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
        #[arg(value_name = "ID", required = true, value_parser = incident_id,
            add = ArgValueCandidates::new(completion::incidents))]
        ids: Vec<i64>,
        /// Note on the cause or the remedy
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
        ListColumn::wide("ACKNOWLEDGED", |incident| {
            TableCell::state(if incident.acknowledged.is_some() { "yes" } else { "-" })
        }),
        ListColumn::ranked(3, ListColumn::new("KIND", |incident| incident.kind.as_str().into())),
        ListColumn::ranked(2, ListColumn::new("DAEMON", |incident| incident.daemon.to_string().into())),
        ListColumn::ranked(4, ListColumn::new("AGE", |incident| age(incident.opened_at).into())),
        ListColumn::ranked(1, ListColumn::cut("SUMMARY", |incident| incident.summary.as_str().into())),
    ],
};

pub(super) fn run(command: IncidentCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            IncidentCommand::List { open, daemon, tenant, since, call } => {
                let client = call.client()?;
                require_daemon(&client, daemon.as_ref()).await?;
                require_tenant(&client, tenant.as_ref()).await?;
                let filters = [
                    ("state", open.then(|| "open".to_owned())),
                    ("daemon", daemon.map(String::from)),
                    ("tenant", tenant.map(String::from)),
                    ("since", since.map(time_ago)),
                ];
                let incidents: Vec<IncidentView> = all(&client, &filtered(INCIDENTS, &filters)).await?;
                LAYOUT.print(&incidents, call.format());
                Ok(if has_open(&incidents) { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
            }
            IncidentCommand::Get { id, call } => {
                let client = call.client()?;
                let incident: IncidentView = client.get(&format!("{INCIDENTS}/{id}")).await?;
                print(&call, &incident, &GpuNames::read(&client).await);
                Ok(ExitCode::SUCCESS)
            }
            IncidentCommand::Acknowledge { ids, note, call } => acknowledge(&call, &ids, note).await,
        }
    })
}

/// Acknowledges incidents one after another, and goes on after a refusal; returns the worst exit code.
async fn acknowledge(call: &CallArgs, ids: &[i64], note: Option<String>) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let request = AcknowledgeRequest { note };
    let mut done: Vec<IncidentView> = Vec::new();
    let mut refused: Vec<(i64, ClientError)> = Vec::new();
    for id in ids {
        match client.post(&format!("{INCIDENTS}/{id}/acknowledge"), &request).await {
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

/// Adds a line for each incident that is open, or that recovered within the last hour and was not acknowledged.
///
/// In formats other than tables it adds nothing and sends no request.
pub(super) async fn with_current(
    details: DetailsTable,
    format: OutputFormat,
    client: &Client,
    filters: &[(&str, Option<String>)],
) -> Result<DetailsTable, ClientError> {
    if !matches!(format, OutputFormat::Table | OutputFormat::Wide) {
        return Ok(details);
    }
    let incidents: Vec<IncidentView> =
        all(client, &filtered(&format!("{INCIDENTS}?current=true"), filters)).await?;
    let line = |one: &IncidentView| format!("{}: {} ({})", one.id, one.summary, word(one.state));
    Ok(incidents.iter().fold(details, |details, one| details.row("Incident", line(one))))
}

fn print(call: &CallArgs, incident: &IncidentView, names: &GpuNames) {
    let mut details = DetailsTable::default()
        .row("Incident", incident.id.to_string())
        .row("Summary", incident.summary.as_str())
        .row("Kind", format!("{} ({})", incident.kind.as_str(), incident.severity.as_str()))
        .row("State", TableCell::state(&word(incident.state)))
        .row("Daemon", incident.daemon.to_string())
        .row("GPUs", TableCell::listed(incident.gpus.iter().map(|gpu| names.full_name(gpu))))
        .row("Opened", rfc3339::format(incident.opened_at));
    if let Some(at) = incident.recovered_at {
        let (label, words) = ending(incident.opened_at, at, incident.time_to_recovery_ms);
        details = details.row(label, words);
    }
    if incident.occurrences > 1 {
        details = details.row("Occurrences", incident.occurrences.to_string());
    }
    for suspect in &incident.suspected {
        let (label, words) = suspected(incident.kind, suspect, &incident.workloads);
        details = details.row(label, words);
    }
    for error in incident.fault.iter().flat_map(|fault| &fault.gpu_errors) {
        details = details.row("GPU error", format!("{error}, by the kernel's log"));
    }
    if let Some(why) = incident.fault.as_ref().and_then(|fault| fault.kernel_log_error.as_ref()) {
        details = details.row("GPU error", format!("not known: {why}"));
    }
    for ranked in &incident.affected {
        let words = process(ranked.client.pid, ranked.client.tenant.as_ref(), &incident.workloads);
        details = details.row("Affected", format!("{words}{}", at_loss(ranked, incident.opened_at)));
        details = ranked.evidence.iter().fold(details, |details, piece| details.row("", piece.to_string()));
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
        .row("Events", TableCell::listed(&incident.events));
    details.print(call.format(), &incident.id.to_string(), incident);
}

/// Returns the label and the text for the end of an incident: the time of its recovery, with the time since it was opened last; or the
/// time at which it happened last, for incidents that are over at once.
fn ending(opened_at: i64, at: i64, ms: Option<i64>) -> (&'static str, String) {
    let when = rfc3339::format(at);
    match ms {
        None => ("Last seen", when),
        Some(ms) if at - ms > opened_at => {
            let reopened = rfc3339::format(at - ms);
            ("Recovered", format!("{when} ({}; opened last at {reopened})", recovery_words(ms)))
        }
        Some(ms) => ("Recovered", format!("{when} ({})", recovery_words(ms))),
    }
}

/// Describes a process that an incident is about, and its relation to the incident.
fn suspected(
    kind: IncidentKind,
    suspect: &Suspect,
    workloads: &BTreeMap<TenantName, String>,
) -> (&'static str, String) {
    let words = process(suspect.pid, suspect.tenant.as_ref(), workloads);
    let program = suspect.program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
    let ended = if suspect.has_ended { ", which has ended" } else { "" };
    match kind {
        _ if kind.loses_work() => ("Suspected", format!("{words}{program}")),
        IncidentKind::ClientRefused if suspect.tenant.is_some() => ("Refused", format!("{words}{program}")),
        IncidentKind::ClientRefused => {
            let why = if suspect.has_ended { ": it had already ended" } else { "" };
            ("Refused", format!("{words}{program} (tenant unknown{why})"))
        }
        _ => ("Process", format!("{words}{program}{ended}")),
    }
}

/// Describes a client as it was when it lost its work: program, user, memory and age, as far as they are known.
fn at_loss(ranked: &RankedClient, opened_at: i64) -> String {
    let client = &ranked.client;
    let facts = [
        client.program.clone(),
        client.uid.map(|uid| format!("uid {uid}")),
        client.memory.map(|bytes| Bytes(bytes).to_string()),
        ranked.age_at(opened_at).map(|age| format!("{age} old")),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if facts.is_empty() { String::new() } else { format!(": {}", facts.join(", ")) }
}

fn process(pid: u32, tenant: Option<&TenantName>, workloads: &BTreeMap<TenantName, String>) -> String {
    match tenant {
        Some(tenant) => format!("process {pid} of {}", with_workload(tenant, workloads.get(tenant))),
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
        let none = BTreeMap::new();
        let shown = |kind| suspected(kind, &suspect, &none);
        let refused = ("Refused", "process 7 of web (train)".to_owned());
        assert_eq!(shown(IncidentKind::ClientRefused), refused);
        let unknown = Suspect { tenant: None, program: None, ..suspect.clone() };
        let refused = ("Refused", "process 7 (tenant unknown: it had already ended)".to_owned());
        assert_eq!(suspected(IncidentKind::ClientRefused, &unknown, &none), refused);
        let outside = ("Process", "process 7 of web (train), which has ended".to_owned());
        assert_eq!(shown(IncidentKind::Bypass), outside);
        assert_eq!(shown(IncidentKind::GpuFault).0, "Suspected");
        let web = TenantName::parse("web").expect("a name");
        let workloads = BTreeMap::from([(web.clone(), "pod prod/web-0".to_owned())]);
        assert_eq!(process(7, Some(&web), &workloads), "process 7 of web, pod prod/web-0");
    }

    #[test]
    fn recovery_counts_from_the_last_opening() {
        let at = |second: &str| format!("2026-01-01T00:00:{second}Z");
        let ms = |second: &str| rfc3339::parse(&at(second)).expect("a time");
        let ending = |took| super::ending(ms("10.000"), ms("57.000"), took);
        let again = format!("{} (after 0.4 s; opened last at {})", at("57.000"), at("56.600"));
        assert_eq!(ending(Some(47_000)), ("Recovered", format!("{} (after 47 s)", at("57.000"))));
        assert_eq!(ending(Some(400)), ("Recovered", again));
        assert_eq!(ending(None), ("Last seen", at("57.000")));
    }
}
