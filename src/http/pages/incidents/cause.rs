//! Parts of an incident's page: facts about the cause with their worth, the clients that lost work by tenant, and actions.

use crate::domain::TenantName;
use crate::domain::access::Role;
use crate::domain::count::{counted, joined};
use crate::domain::daemon::FaultHolder;
use crate::domain::event::{Event, EventType};
use crate::domain::incident::{EvidenceKind, EvidenceWorth, IncidentEnd, IncidentKind, RankedClient};
use crate::domain::layout::VersionRef;
use crate::http::pages::format::{Lasting, Tone};
use crate::http::pages::frame::Frame;
use crate::http::pages::timeline::around;
use crate::service::incidents::IncidentView;

/// Most clients that a fact names.
const NAMED: usize = 5;

/// A fact about the cause of an incident.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CauseFact {
    pub(super) label: &'static str,
    pub(super) found: String,
    /// Worth of the fact as evidence.
    pub(super) worth: &'static str,
    pub(super) tone: Tone,
}

/// The clients of a tenant that lost their work.
pub(super) struct TenantLosses {
    pub(super) tenant: Option<TenantName>,
    pub(super) workload: Option<String>,
    pub(super) clients: Vec<RankedClient>,
}

impl TenantLosses {
    /// The clients by tenant, in the order of the evidence.
    pub(super) fn of(incident: &IncidentView) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for ranked in &incident.affected {
            let tenant = ranked.client.tenant.clone();
            match groups.iter_mut().find(|group| group.tenant == tenant) {
                Some(group) => group.clients.push(ranked.clone()),
                None => {
                    let workload = tenant.as_ref().and_then(|tenant| incident.workloads.get(tenant)).cloned();
                    groups.push(Self { tenant, workload, clients: vec![ranked.clone()] });
                }
            }
        }
        groups
    }
}

/// An action that repairs what an incident is about: a link, or a form without fields.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RepairAction {
    pub(super) label: &'static str,
    pub(super) href: String,
    pub(super) is_form: bool,
}

/// The length of an incident, or how it ended.
pub(super) fn course(incident: &IncidentView, now: i64) -> String {
    match (incident.recovered_at, incident.ended_by, incident.time_to_recovery_ms) {
        (None, ..) => format!("open for {}", Lasting::between(incident.opened_at, now)),
        (_, Some(IncidentEnd::Stopped), _) => format!("over since {} was stopped", incident.daemon),
        (_, Some(IncidentEnd::Replaced), _) => {
            format!("over since {} was changed or deleted", incident.daemon)
        }
        (_, _, Some(ms)) => format!("recovered after {}", Lasting(ms)),
        (_, _, None) => "over when it became known".to_owned(),
    }
}

/// The facts about the cause, those that show most first.
pub(super) fn cause_facts(incident: &IncidentView) -> Vec<CauseFact> {
    let fact = |label, found: String| CauseFact { label, found, worth: "recorded", tone: Tone::Good };
    let mut facts = Vec::new();
    if let Some(fault) = &incident.fault {
        facts.extend(
            fault.gpu_errors.iter().map(|error| CauseFact {
                worth: "by the kernel’s log",
                ..fact("GPU error", error.to_string())
            }),
        );
        facts.extend(fault.kernel_log_error.iter().map(|why| CauseFact {
            worth: "not known",
            tone: Tone::Quiet,
            ..fact("GPU error", why.clone())
        }));
    }
    let kinds = [
        (EvidenceKind::WorkerInReset, "Worker in reset"),
        (EvidenceKind::OnlyClient, "Only client"),
        (EvidenceKind::EndedWithIt, "Ended with it"),
        (EvidenceKind::Presence, "Present at faults"),
        (EvidenceKind::ConnectedLast, "Connected last"),
        (EvidenceKind::NamedByMps, "Named by MPS"),
    ];
    facts.extend(kinds.into_iter().filter_map(|(kind, label)| evidence_fact(incident, kind, label)));
    // Those of a fault are among the evidence.
    if incident.fault.is_none() && !incident.suspected.is_empty() {
        let is_refusal = incident.kind == IncidentKind::ClientRefused;
        let processes = incident.suspected.iter().map(|suspect| {
            let program = suspect.program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
            let ended =
                if suspect.has_ended && incident.recovered_at.is_none() { ", which has ended" } else { "" };
            format!("{}{program}{ended}", process(suspect.pid, suspect.tenant.as_ref(), incident))
        });
        facts.push(fact(if is_refusal { "Refused processes" } else { "Processes" }, joined(processes, "; ")));
    }
    // In the sentence of another incident it stands already.
    let detail = incident.detail.clone().filter(|_| incident.kind.loses_work());
    facts.extend(detail.map(|detail| fact("Found", detail)));
    if incident.occurrences > 1 {
        facts.push(fact("Occurrences", incident.occurrences.to_string()));
    }
    facts
}

/// The clients against which there is evidence of a kind.
fn evidence_fact(incident: &IncidentView, kind: EvidenceKind, label: &'static str) -> Option<CauseFact> {
    let mut worth = EvidenceWorth::Nothing;
    let mut found: Vec<String> = Vec::new();
    for ranked in &incident.affected {
        for piece in ranked.evidence.iter().filter(|piece| piece.kind == kind) {
            worth = piece.worth;
            let who = match (kind, &ranked.client.tenant) {
                // All clients of a tenant were as often there.
                (EvidenceKind::Presence, Some(tenant)) => tenant.to_string(),
                (_, tenant) => process(ranked.client.pid, tenant.as_ref(), incident),
            };
            let words = format!("{who}: {}", piece.words);
            if !found.contains(&words) {
                found.push(words);
            }
        }
    }
    let more = found.len().saturating_sub(NAMED);
    found.truncate(NAMED);
    if more > 0 {
        found.push(format!("and {}", counted(more, "more client")));
    }
    let (worth, tone) = match worth {
        EvidenceWorth::Suspected => ("suspected: not seen of a client that did not fault", Tone::Bad),
        EvidenceWorth::Hint => ("a hint: it fits others too", Tone::Warn),
        EvidenceWorth::Nothing => ("says nothing about the cause", Tone::Quiet),
    };
    (!found.is_empty()).then(|| CauseFact { label, found: found.join("; "), worth, tone })
}

fn process(pid: u32, tenant: Option<&TenantName>, incident: &IncidentView) -> String {
    let workload = tenant.and_then(|tenant| incident.workloads.get(tenant));
    let of = tenant.map(|tenant| format!(" of {tenant}")).unwrap_or_default();
    format!("process {pid}{of}{}", workload.map(|workload| format!(" ({workload})")).unwrap_or_default())
}

/// The actions that repair an incident and that the reader may take.
pub(super) fn actions(
    incident: &IncidentView,
    events: &[Event],
    holders: &[FaultHolder],
    layout: Option<&VersionRef>,
    frame: &Frame,
    now: i64,
) -> Vec<RepairAction> {
    use IncidentKind as Kind;
    let IncidentView { daemon, kind, gpus, .. } = incident;
    let is_open = incident.recovered_at.is_none();
    let link = |label, href: String| RepairAction { label, href, is_form: false };
    let of_daemon = |what: &str| format!("/daemons/{daemon}{what}");
    let is_of_layout =
        *kind != Kind::Drift || events.iter().any(|event| event.kind == EventType::LayoutDrifted);
    let mut actions = Vec::new();
    // What only operators and admins may do.
    if is_open && frame.operates() {
        actions.extend(match kind {
            Kind::DaemonDied | Kind::DaemonWedged | Kind::NoServer => {
                Some(link("Restart", of_daemon("/restart")))
            }
            Kind::CrashLoop => Some(RepairAction { is_form: true, ..link("Start", of_daemon("/start")) }),
            Kind::Drift | Kind::LayoutDegraded | Kind::LayoutIdsDiffer if is_of_layout => {
                layout.map(|layout| {
                    let label = if *kind == Kind::LayoutIdsDiffer { "Plan again" } else { "Apply again" };
                    let VersionRef { name, version } = layout;
                    link(label, format!("/layouts/{name}/apply?daemon={daemon}&version={version}"))
                })
            }
            Kind::Drift if frame.administers() => Some(link("Save the daemon again", of_daemon("/edit"))),
            Kind::GpuMissing if frame.administers() => {
                gpus.first().map(|gpu| link("Replace GPU", format!("/gpus/{gpu}/replace")))
            }
            _ => None,
        });
    }
    if is_open {
        let held = holders.iter().map(|holder| holder.client);
        let suspected =
            incident.suspected.iter().filter(|suspect| !suspect.has_ended).filter_map(|one| one.client);
        let is_client = matches!(kind, Kind::Breach | Kind::UnknownOutcome | Kind::GpuFault);
        let client = held.chain(suspected).next().filter(|_| is_client);
        actions.extend(client.map(|client| link("Show process", format!("/clients/{client}"))));
    }
    if frame.may(Role::Viewer) {
        actions.extend(match kind {
            Kind::Bypass => gpus.first().map(|gpu| link("Show processes", format!("/gpus/{gpu}"))),
            Kind::GpuShared => Some(link("Show foreign daemons", "/daemons#foreign".to_owned())),
            Kind::ForeignUser | Kind::SocketExposed => Some(link("Show processes", of_daemon("#clients"))),
            Kind::ServerDied | Kind::DaemonDied | Kind::CrashLoop | Kind::NoServer => {
                Some(link("Read the logs", of_daemon("/logs")))
            }
            _ => None,
        });
        actions.push(link("Show on the timeline", around(incident.opened_at, now)));
    }
    actions
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(kind: &str, fields: Value) -> IncidentView {
        let mut view = json!({
            "id": 1, "kind": kind, "severity": "error", "state": "recovered", "daemon": "gpu0", "gpus": [], "occurrences": 1,
            "opened_at": "1970-01-01T00:00:10Z", "recovered_at": "1970-01-01T00:00:12.100Z", "ended_by": "recovered",
            "time_to_recovery_ms": 2_100, "acknowledged": null, "summary": "", "remedy": "", "suspected": [], "fault": null, "affected": [],
            "affected_is_uncertain": false, "unaffected": null, "tenants": [], "workloads": {}, "detail": null, "events": [],
        });
        if let (Some(view), Value::Object(fields)) = (view.as_object_mut(), fields) {
            view.extend(fields);
        }
        serde_json::from_value(view).expect("an incident")
    }

    fn client(pid: u32, tenant: &str, evidence: &[(&str, &str, &str)]) -> Value {
        let piece = |(kind, worth, words): &(&str, &str, &str)| json!({ "kind": kind, "worth": worth, "words": words });
        let evidence: Vec<Value> = evidence.iter().map(piece).collect();
        json!({ "pid": pid, "client": null, "tenant": tenant, "worker_in_reset": false, "ended_with_it": false, "evidence": evidence })
    }

    #[test]
    fn facts_come_with_their_worth() {
        let presence = ("presence", "hint", "its tenant was there in 2 of 2 faults");
        let affected = [
            client(3, "web", &[presence, ("connected_last", "hint", "connected last")]),
            client(4, "web", &[presence]),
            client(2, "demo", &[("named_by_mps", "nothing", "server.log names it")]),
        ];
        let fault = json!({ "named_by_mps": [2], "gpu_errors": [], "kernel_log_error": null });
        let view = view(
            "gpu_fault",
            json!({ "affected": affected, "fault": fault, "workloads": { "demo": "job 7" } }),
        );
        let facts = cause_facts(&view);
        let said: Vec<_> = facts.iter().map(|fact| (fact.label, fact.found.as_str(), fact.tone)).collect();
        assert_eq!(
            said,
            [
                ("Present at faults", "web: its tenant was there in 2 of 2 faults", Tone::Warn),
                ("Connected last", "process 3 of web: connected last", Tone::Warn),
                ("Named by MPS", "process 2 of demo (job 7): server.log names it", Tone::Quiet),
            ]
        );
        let losses = TenantLosses::of(&view);
        let groups: Vec<_> = losses
            .iter()
            .map(|group| (group.tenant.as_ref().map(TenantName::as_str), group.clients.len()))
            .collect();
        assert_eq!(groups, [(Some("web"), 2), (Some("demo"), 1)]);
    }

    #[test]
    fn course_says_how_it_ended() {
        let of = |fields: Value| course(&view("server_died", fields), 75_000);
        assert_eq!(of(json!({})), "recovered after 2.1 s");
        assert_eq!(of(json!({ "recovered_at": null, "ended_by": null })), "open for 1 min 05 s");
        assert_eq!(of(json!({ "ended_by": "stopped" })), "over since gpu0 was stopped");
        assert_eq!(of(json!({ "time_to_recovery_ms": null })), "over when it became known");
    }
}
