use std::collections::BTreeMap;

use super::{INCIDENTS, LATEST, Noun};
use crate::cli::output::{ListField, TableCell, age, word};
use crate::domain::count::counted;
use crate::domain::incident::{IncidentKind, RankedClient, Suspect, recovery_words};
use crate::domain::memory::Bytes;
use crate::domain::{TenantName, rfc3339};
use crate::service::incidents::IncidentView;
use crate::words::tenant::with_workload;

type Field = ListField<IncidentView>;

/// Incidents.
pub(in crate::cli) static INCIDENT: Noun<IncidentView> = Noun {
    candidate: |incident| Some((incident.id.to_string(), incident.summary.clone())),
    candidates: LATEST,
    ..Noun::new(
        ["incident", "incidents", INCIDENTS],
        |incident| incident.id.to_string(),
        &[
            Field::both("INCIDENT", "Incident", |incident| incident.id.to_string().into()),
            Field::detail("Summary", |incident| incident.summary.as_str().into()),
            Field::detail("Kind", |incident| {
                format!("{} ({})", incident.kind.as_str(), incident.severity.as_str()).into()
            }),
            Field::both("STATE", "State", |incident| TableCell::state(&word(incident.state))),
            Field::wide("ACKNOWLEDGED", |incident| {
                TableCell::state(if incident.acknowledged.is_some() { "yes" } else { "-" })
            }),
            Field::column("KIND", |incident| incident.kind.as_str().into()).rank(3),
            Field::both("DAEMON", "Daemon", |incident| incident.daemon.to_string().into()).rank(2),
            Field::named("GPUs", |incident, names| {
                TableCell::listed(incident.gpus.iter().map(|gpu| names.full_name(gpu)))
            }),
            Field::column("AGE", |incident| age(incident.opened_at).into()).rank(4),
            Field::column("SUMMARY", |incident| incident.summary.as_str().into()).cut().rank(1),
            Field::detail("Opened", |incident| rfc3339::format(incident.opened_at).into()),
            Field::rows(facts),
            Field::detail("What to do", |incident| incident.remedy.as_str().into()),
            Field::detail("Events", |incident| TableCell::listed(&incident.events)),
        ],
    )
};

/// Returns the facts about an incident that are not known of every one.
fn facts(incident: &IncidentView) -> Vec<(&'static str, String)> {
    let (opened, workloads) = (incident.opened_at, &incident.workloads);
    let fault = incident.fault.as_ref();
    let mut facts = Vec::new();
    facts.extend(incident.recovered_at.map(|at| ending(opened, at, incident.time_to_recovery_ms)));
    if incident.occurrences > 1 {
        facts.push(("Occurrences", incident.occurrences.to_string()));
    }
    facts.extend(incident.suspected.iter().map(|suspect| suspected(incident.kind, suspect, workloads)));
    let errors = fault.iter().flat_map(|fault| &fault.gpu_errors);
    facts.extend(errors.map(|error| ("GPU error", format!("{error}, by the kernel's log"))));
    let unread = fault.and_then(|fault| fault.kernel_log_error.as_ref());
    facts.extend(unread.map(|why| ("GPU error", format!("not known: {why}"))));
    for ranked in &incident.affected {
        let words = process(ranked.client.pid, ranked.client.tenant.as_ref(), workloads);
        facts.push(("Affected", format!("{words}{}", at_loss(ranked, opened))));
        facts.extend(ranked.evidence.iter().map(|piece| ("", piece.to_string())));
    }
    facts.extend(incident.unaffected.map(|count| ("Unaffected", counted(count, "other client"))));
    facts.extend(incident.detail.clone().map(|detail| ("Found", detail)));
    facts.extend(incident.acknowledged.as_ref().map(|acknowledged| {
        let by = acknowledged.by.as_deref().unwrap_or("an operator");
        let note = acknowledged.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        ("Acknowledged", format!("{} by {by}{note}", rfc3339::format(acknowledged.at)))
    }));
    facts
}

/// Returns the label and the text for the end of an incident: the time of its recovery, with the time since it was opened last; or the
/// time at which it happened last, for incidents that are over at once.
fn ending(opened_at: i64, ended_at: i64, ms: Option<i64>) -> (&'static str, String) {
    let when = rfc3339::format(ended_at);
    match ms {
        None => ("Last seen", when),
        Some(ms) if ended_at - ms > opened_at => {
            let reopened = rfc3339::format(ended_at - ms);
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
        let time = |second: &str| format!("2026-01-01T00:00:{second}Z");
        let ms = |second: &str| rfc3339::parse(&time(second)).expect("a time");
        let ending = |took| super::ending(ms("10.000"), ms("57.000"), took);
        let again = format!("{} (after 0.4 s; opened last at {})", time("57.000"), time("56.600"));
        assert_eq!(ending(Some(47_000)), ("Recovered", format!("{} (after 47 s)", time("57.000"))));
        assert_eq!(ending(Some(400)), ("Recovered", again));
        assert_eq!(ending(None), ("Last seen", time("57.000")));
    }
}
