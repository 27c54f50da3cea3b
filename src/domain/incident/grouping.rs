//! Decides which incidents an event opens, changes or ends.
//!
//! One incident groups what belongs together: a GPU fault with the death of its server and its clients, a daemon's death with its
//! server's, repeated deaths in a crash loop, repeated drift. A client that lost its work in one incident is not added to another.

use std::collections::{BTreeMap, BTreeSet};

use super::report::IncidentReport;
use super::{Incident, IncidentEnd, IncidentKind, IncidentTopic, MOST_CLIENTS, QUIT_BY_OTHERS, Suspect};
use crate::client::ClientId;
use crate::event::{
    AffectedClient, ClientRefusal, DaemonDeath, DomainEvent, EventType, KnownFrom, MemoryBreach,
    ObservedClient, ServerFault,
};
use crate::memory::Bytes;
use crate::{DaemonName, GpuUuid, TenantName};

/// Time after its end for which an incident is considered: it may open again, and its clients are known to have lost their work.
pub const MEMORY_MS: i64 = 5 * 60 * 1000;

/// Longest time between the beginning of a fault by server.log and the moment at which it is noticed.
const LOGGED_MS: i64 = 5 * 60 * 1000;

/// Time after a daemon runs again for which a crash loop lasts: a death within it is one more of the loop.
pub(super) const CRASH_LOOP_MS: i64 = 60 * 1000;

/// An event, with everything that is needed to assign it to incidents.
#[derive(Debug, Clone, Copy)]
pub struct Occurrence<'o> {
    /// Its number; `None` for an event that is not written.
    pub id: Option<i64>,
    /// Time of the event, in unix milliseconds.
    pub at: i64,
    /// The event itself.
    pub event: &'o DomainEvent,
    /// The type of the event that caused it, where one did.
    pub because: Option<EventType>,
    /// The number of the event that caused it, where one did.
    pub cause: Option<i64>,
    /// GPUs of the daemon.
    pub gpus: &'o [GpuUuid],
    /// The clients that are connected to the daemon; needed where [`counts_unaffected`] returns true.
    pub connected: &'o [ClientId],
}

/// An incident as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredIncident {
    /// Its number.
    pub id: i64,
    /// The incident.
    pub incident: Incident,
}

/// The change of an incident's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// It is new, or happened again after its end.
    Opened,
    /// It became worse: a daemon that died is in a crash loop.
    Worsened,
    /// It ended.
    Ended,
    /// It was over when it became known.
    OpenedAndEnded,
    /// It is still in the state that it had, and more of it is known.
    Extended,
}

/// An incident that an event changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentChange {
    /// Its number; `None` for a new one.
    pub id: Option<i64>,
    /// The incident as it is now.
    pub incident: Incident,
    /// The change of its state.
    pub transition: Transition,
}

/// Returns the incidents that an event opens, changes, ends or belongs to; `known` are those of its daemon that are open or ended within
/// [`MEMORY_MS`], oldest first.
pub fn group(seen: &Occurrence<'_>, known: &[StoredIncident]) -> Vec<IncidentChange> {
    let concerned = seen.event.concerned_daemon();
    let first = || known.first().map(|known| &known.incident.daemon);
    let Some(daemon) = concerned.or_else(first) else { return Vec::new() };
    let mut grouping = Grouping { seen: *seen, daemon, known, changes: Vec::new() };
    if concerned.is_some() {
        grouping.take();
    }
    grouping.link();
    grouping.changes
}

/// Returns true if an event says who lost work, so that the other connected clients are those who kept theirs.
pub fn counts_unaffected(event: &DomainEvent) -> bool {
    match event {
        DomainEvent::ServerDied { .. }
        | DomainEvent::DaemonDied { .. }
        | DomainEvent::DaemonWedged(_)
        | DomainEvent::DaemonReplaced { .. }
        | DomainEvent::ServerReplaced { .. } => true,
        // Of a fault that names nobody it is not known who lost work.
        DomainEvent::ServerFault(fault) => !fault.clients.is_empty(),
        _ => false,
    }
}

/// Joins items in one line; `None` where there are none.
fn listed(items: &[impl ToString]) -> Option<String> {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    (!items.is_empty()).then(|| items.join(", "))
}

pub(super) struct Grouping<'g> {
    pub(super) seen: Occurrence<'g>,
    daemon: &'g DaemonName,
    pub(super) known: &'g [StoredIncident],
    pub(super) changes: Vec<IncidentChange>,
}

impl Grouping<'_> {
    fn take(&mut self) {
        use IncidentKind as Kind;
        match self.seen.event {
            DomainEvent::ServerFault(fault) => self.fault(fault),
            DomainEvent::ClientInReset { server, pid, .. } => self.in_reset(*server, *pid),
            DomainEvent::ServerDied { pid, lost, .. } => {
                let topic = IncidentTopic::Server { pid: *pid };
                let report = IncidentReport {
                    clients: lost.clients.clone(),
                    is_uncertain: lost.is_uncertain,
                    ..IncidentReport::of(Kind::ServerDied, topic.clone())
                };
                // It may be the end of what has a cause already.
                self.report(report, |open| {
                    (open.kind == Kind::GpuFault && open.topic == topic)
                        || matches!(
                            open.kind,
                            Kind::DaemonDied | Kind::DaemonWedged | Kind::CrashLoop | Kind::ServerDied
                        )
                });
            }
            DomainEvent::ServerReplaced { clients, process, .. }
            | DomainEvent::DaemonReplaced { clients, process, .. } => {
                let report = IncidentReport {
                    clients: clients.clone(),
                    is_uncertain: process.working.is_none(),
                    ..IncidentReport::of(Kind::DaemonWedged, IncidentTopic::Daemon)
                };
                self.report(report, |open| open.kind == Kind::DaemonWedged);
            }
            DomainEvent::DaemonWedged(why) => {
                let report = IncidentReport {
                    detail: Some(why.message.clone()).filter(|message| !message.is_empty()),
                    ..IncidentReport::of(Kind::DaemonWedged, IncidentTopic::Daemon)
                };
                self.report(report, |open| open.kind == Kind::DaemonWedged);
            }
            DomainEvent::DaemonDied { why, lost, .. } => {
                let report = IncidentReport {
                    clients: lost.clients.clone(),
                    is_uncertain: lost.is_uncertain,
                    detail: (*why == DaemonDeath::ForeignQuit).then(|| QUIT_BY_OTHERS.to_owned()),
                    ..IncidentReport::of(Kind::DaemonDied, IncidentTopic::Daemon)
                };
                let killed = *why == DaemonDeath::Killed;
                self.death(report, |open| match open.kind {
                    Kind::DaemonWedged => killed,
                    // Its server dies with it, and may be seen first.
                    Kind::DaemonDied | Kind::CrashLoop | Kind::ServerDied => true,
                    _ => false,
                });
            }
            DomainEvent::DaemonCrashLoop(_) => {
                let report = IncidentReport::of(Kind::CrashLoop, IncidentTopic::Daemon);
                self.death(report, |open| matches!(open.kind, Kind::DaemonDied | Kind::CrashLoop));
            }
            DomainEvent::DaemonWithoutServer(why) => {
                // The daemon that had died runs again: what is wrong now is another thing.
                self.end(IncidentEnd::Recovered, |open| {
                    matches!(open.kind, Kind::DaemonDied | Kind::CrashLoop)
                });
                let report = IncidentReport {
                    detail: Some(why.message.clone()),
                    ..IncidentReport::of(Kind::NoServer, IncidentTopic::Daemon)
                };
                self.report(report, |open| open.kind == Kind::NoServer);
            }
            DomainEvent::DaemonBackOff(_) | DomainEvent::ServerExited { .. } => {
                self.attach(|open| matches!(open.kind, Kind::DaemonDied | Kind::CrashLoop));
            }
            _ => self.take_setting(),
        }
    }

    /// Takes events about settings, layouts, processes beside MPS, and single clients.
    fn take_setting(&mut self) {
        use IncidentKind as Kind;
        match self.seen.event {
            DomainEvent::SettingsDrifted { drifted, .. } => {
                let detail = listed(drifted);
                self.recurring(IncidentReport {
                    detail,
                    ..IncidentReport::of(Kind::Drift, IncidentTopic::Settings)
                });
            }
            DomainEvent::LayoutDrifted { layout, .. } => {
                let detail = listed(&layout.drift);
                self.recurring(IncidentReport {
                    detail,
                    ..IncidentReport::of(Kind::Drift, IncidentTopic::Layout)
                });
            }
            DomainEvent::LayoutDegraded(layout) => {
                let report = IncidentReport {
                    detail: listed(&layout.degraded),
                    ..IncidentReport::of(Kind::LayoutDegraded, IncidentTopic::Layout)
                };
                self.report(report, |open| open.kind == Kind::LayoutDegraded);
            }
            DomainEvent::LayoutFailed { failure, .. } => {
                let report = IncidentReport {
                    detail: Some(failure.clone()),
                    ..IncidentReport::of(Kind::LayoutIdsDiffer, IncidentTopic::Layout)
                };
                self.report(report, |open| open.kind == Kind::LayoutIdsDiffer);
            }
            DomainEvent::BypassAppeared { processes, present, .. } => {
                self.bypass_appeared(processes, present);
            }
            DomainEvent::BypassChanged { present, .. } => self.bypass_changed(present),
            DomainEvent::ExposureDetected { present, .. } => self.exposed(present),
            DomainEvent::ForeignUserAppeared { present, .. } => self.foreign_users(present),
            DomainEvent::ForeignDaemonAppeared { present, .. } => self.shared(present),
            DomainEvent::ComputeModeRepaired { gpu, found, set, .. } => self.mode_repaired(gpu, *found, *set),
            DomainEvent::BreachDetected(MemoryBreach {
                client, tenant, program, gpu, used, limit, ..
            }) => {
                let topic = IncidentTopic::Client { client: *client, operation: None };
                self.recurring(IncidentReport {
                    suspects: vec![Suspect { program: program.clone(), ..suspect(*client, tenant.as_ref()) }],
                    gpus: Some(vec![gpu.clone()]),
                    detail: Some(format!("{} of {}", Bytes(*used), Bytes(*limit))),
                    ..IncidentReport::of(Kind::Breach, topic)
                });
            }
            DomainEvent::ClientRefused(refusal) => self.refusal(refusal),
            DomainEvent::OperationFailed { operation, error, .. } => {
                let Some(client) = operation.client else { return };
                let topic = IncidentTopic::Client { client, operation: Some(operation.id) };
                let report = IncidentReport {
                    suspects: vec![suspect(client, operation.tenant.as_ref())],
                    detail: Some(error.clone()),
                    ..IncidentReport::of(Kind::UnknownOutcome, topic.clone())
                };
                self.report(report, |open| open.kind == Kind::UnknownOutcome && open.topic == topic);
            }
            DomainEvent::GpuMissing { gpu, board, left, .. } => {
                let topic = IncidentTopic::Gpu { gpu: gpu.clone() };
                let report = IncidentReport {
                    gpus: Some(vec![gpu.clone()]),
                    clients: left.iter().map(|(_, client)| client.clone()).collect(),
                    // MPS says nothing of it, and one may have left by itself.
                    is_uncertain: !left.is_empty(),
                    detail: board.clone(),
                    ..IncidentReport::of(Kind::GpuMissing, topic.clone())
                };
                self.report(report, |open| open.topic == topic);
            }
            _ => self.ending(),
        }
    }

    fn fault(&mut self, fault: &ServerFault) {
        let topic = IncidentTopic::Server { pid: fault.server };
        let report = IncidentReport {
            fault: Some(fault.report.clone()),
            clients: fault.clients.clone(),
            is_hint: fault.known_from == KnownFrom::ServerLog,
            began: fault.logged_at.filter(|_| fault.known_from != KnownFrom::ServerLog),
            ..IncidentReport::of(IncidentKind::GpuFault, topic.clone())
        };
        let same = |known: &Incident| {
            known.topic == topic && matches!(known.kind, IncidentKind::GpuFault | IncidentKind::ServerDied)
        };
        if fault.known_from == KnownFrom::Poll {
            return self.report(report, |open| open.kind == IncidentKind::GpuFault && same(open));
        }
        // A server that recovers can have another one, which has other clients: those of the first are gone.
        let named: BTreeSet<u32> = fault.report.named_by_mps.iter().chain(&fault.affected).copied().collect();
        let is_of = |known: &Incident| {
            let mut pids = known.affected.iter().map(|client| client.pid);
            let mut before = known.fault.iter().flat_map(|fault| &fault.named_by_mps);
            let is_any_named = pids.any(|pid| named.contains(&pid)) || before.any(|pid| named.contains(pid));
            known.is_open() || named.is_empty() || is_any_named || known.kind == IncidentKind::ServerDied
        };
        let is_hint = report.is_hint;
        self.report_over(report, |known| same(known) && is_of(known) && (is_hint || !known.is_hint));
    }

    /// Adds a report of something that was over when it became known to the last incident that it belongs to, or opens and ends a new one.
    pub(super) fn report_over(&mut self, mut report: IncidentReport, belongs: impl Fn(&Incident) -> bool) {
        let is_it = |known: &&StoredIncident| belongs(&known.incident);
        let (mut incident, id) = match self.known.iter().rev().find(is_it) {
            Some(known) => {
                let mut incident = known.incident.clone();
                // A log alone adds no clients to an incident that was seen.
                if report.is_hint && !incident.is_hint {
                    report.clients.clear();
                }
                self.add_report(&mut incident, Some(known.id), report);
                (incident, Some(known.id))
            }
            None => (self.opened(report), None),
        };
        // A log's report of a fault that was seen does not change the end of that fault.
        if id.is_none() || incident.is_momentary() {
            incident.end(self.seen.at, IncidentEnd::Recovered);
        }
        let transition = if id.is_some() { Transition::Extended } else { Transition::OpenedAndEnded };
        self.changes.push(IncidentChange { id, incident, transition });
    }

    fn refusal(&mut self, refusal: &ClientRefusal) {
        // A server that handles a fault refuses everyone.
        let refuses_all = |known: &Incident| {
            known.is_open() && matches!(known.kind, IncidentKind::GpuFault | IncidentKind::DaemonWedged)
        };
        if self.known.iter().any(|known| refuses_all(&known.incident)) {
            return self.attach(refuses_all);
        }
        let suspects = refusal.pid.map(|pid| Suspect {
            pid,
            client: None,
            tenant: refusal.tenant.clone(),
            program: None,
            has_ended: refusal.has_ended(),
        });
        let report = IncidentReport {
            suspects: suspects.into_iter().collect(),
            detail: Some(refusal.reason.clone()),
            ..IncidentReport::of(IncidentKind::ClientRefused, IncidentTopic::Processes)
        };
        self.report_over(report, |known| {
            known.kind == IncidentKind::ClientRefused && known.acknowledged.is_none()
        });
    }

    /// Adds a report to the last open incident that it belongs to, or opens one.
    fn report(&mut self, report: IncidentReport, belongs: impl Fn(&Incident) -> bool) {
        let open = self.known.iter().rev().find(|known| known.incident.is_open() && belongs(&known.incident));
        match open {
            Some(known) => self.extend(known, report, Transition::Extended),
            None => {
                let incident = self.opened(report);
                self.changes.push(IncidentChange { id: None, incident, transition: Transition::Opened });
            }
        }
    }

    /// Takes the death of a daemon, or repeated crashes: the report joins an open incident, or a crash loop that ended within
    /// [`CRASH_LOOP_MS`] and was not acknowledged.
    fn death(&mut self, report: IncidentReport, belongs: impl Fn(&Incident) -> bool) {
        let is_open = |known: &StoredIncident| known.incident.is_open() && belongs(&known.incident);
        let lasts = |known: &&StoredIncident| {
            let incident = &known.incident;
            incident.kind == IncidentKind::CrashLoop
                && incident.acknowledged.is_none()
                && incident.ended_by == Some(IncidentEnd::Recovered)
                && incident.recovered_at.is_some_and(|at| at >= self.seen.at - CRASH_LOOP_MS)
        };
        let looping = self.known.iter().rev().find(lasts);
        match looping.filter(|_| !self.known.iter().any(is_open)) {
            Some(known) => self.extend(known, report, Transition::Opened),
            None => self.report(report, belongs),
        }
    }

    /// Adds a report of something that comes and goes to the last incident of its kind and topic, open or not, unless that one was
    /// acknowledged and is over. Otherwise opens a new one.
    pub(super) fn recurring(&mut self, report: IncidentReport) {
        let same = |known: &&StoredIncident| {
            known.incident.kind == report.kind && known.incident.topic == report.topic
        };
        let last = self.known.iter().rev().find(same);
        match last {
            Some(known) if known.incident.is_open() => self.extend(known, report, Transition::Extended),
            Some(known) if known.incident.acknowledged.is_none() => {
                self.extend(known, report, Transition::Opened);
            }
            _ => {
                let incident = self.opened(report);
                self.changes.push(IncidentChange { id: None, incident, transition: Transition::Opened });
            }
        }
    }

    fn opened(&self, report: IncidentReport) -> Incident {
        // The log may be in another time zone or have been read long after, so the time of notice is nearer.
        let began = report.began.filter(|at| (self.seen.at - LOGGED_MS..=self.seen.at).contains(at));
        let mut incident = Incident {
            kind: report.kind,
            daemon: self.daemon.clone(),
            gpus: Vec::new(),
            topic: report.topic.clone(),
            is_hint: report.is_hint,
            opened_at: began.unwrap_or(self.seen.at),
            reopened_at: None,
            recovered_at: None,
            ended_by: None,
            acknowledged: None,
            suspects: Vec::new(),
            fault: None,
            affected: Vec::new(),
            is_uncertain: false,
            awaits_clients: false,
            unaffected: None,
            occurrences: 0,
            detail: None,
            events: Vec::new(),
            workloads: BTreeMap::new(),
        };
        self.add_report(&mut incident, None, report);
        incident
    }

    fn extend(&mut self, known: &StoredIncident, report: IncidentReport, mut transition: Transition) {
        let mut incident = known.incident.clone();
        if transition == Transition::Opened {
            (incident.recovered_at, incident.ended_by) = (None, None);
            incident.reopened_at = Some(self.seen.at);
        }
        match (incident.kind, report.kind) {
            (IncidentKind::DaemonDied, IncidentKind::CrashLoop) => {
                (incident.kind, transition) = (IncidentKind::CrashLoop, Transition::Worsened);
            }
            (IncidentKind::ServerDied, IncidentKind::DaemonDied) => {
                (incident.kind, incident.topic) = (IncidentKind::DaemonDied, IncidentTopic::Daemon);
                incident.occurrences = 0;
            }
            _ => {}
        }
        self.add_report(&mut incident, Some(known.id), report);
        self.changes.push(IncidentChange { id: Some(known.id), incident, transition });
    }

    fn add_report(&self, incident: &mut Incident, id: Option<i64>, report: IncidentReport) {
        let gpus = report.gpus.unwrap_or_else(|| self.seen.gpus.to_vec());
        for gpu in gpus {
            if !incident.gpus.contains(&gpu) {
                incident.gpus.push(gpu);
            }
        }
        for suspect in report.suspects {
            let is_new = incident.suspects.iter().all(|known| !known.is_same(&suspect));
            if is_new && incident.suspects.len() < MOST_CLIENTS {
                incident.suspects.push(suspect);
            }
        }
        if let Some(fault) = report.fault {
            let known = incident.fault.get_or_insert_default();
            known.named_by_mps.extend(fault.named_by_mps);
            known.gpu_errors.extend(fault.gpu_errors);
            known.kernel_log_error = fault.kernel_log_error.or(known.kernel_log_error.take());
        }
        // A fault of which server.log says nothing names nobody, and yet clients lost work.
        incident.awaits_clients |=
            report.kind == IncidentKind::GpuFault && report.clients.is_empty() && !report.is_hint;
        for client in report.clients {
            self.add_affected(incident, id, client);
        }
        incident.is_uncertain |= report.is_uncertain;
        if report.detail.is_some() {
            incident.detail = report.detail;
        }
        if counts_unaffected(self.seen.event) {
            self.count_unaffected(incident);
        }
        // The end of a server, or a crash loop, is no second death.
        let counts =
            incident.kind == report.kind && !matches!(self.seen.event, DomainEvent::DaemonCrashLoop(_));
        let counts = counts || matches!(self.seen.event, DomainEvent::DaemonDied { .. });
        incident.occurrences += u32::from(counts || incident.occurrences == 0);
        self.note_event(incident);
    }

    /// Adds a client that lost its work, unless another incident has it already.
    fn add_affected(&self, incident: &mut Incident, id: Option<i64>, client: AffectedClient) {
        let others = self.known.iter().filter(|known| Some(known.id) != id && !known.incident.is_hint);
        let mut elsewhere = others.flat_map(|known| &known.incident.affected);
        if elsewhere.any(|known| is_same(known, &client)) {
            return;
        }
        if let Some(known) = incident.affected.iter_mut().find(|known| is_same(known, &client)) {
            known.client = known.client.or(client.client);
            known.tenant = known.tenant.take().or(client.tenant);
            known.ended_with_it |= client.ended_with_it;
        } else if incident.affected.len() < MOST_CLIENTS {
            incident.affected.push(client);
        } else {
            incident.is_uncertain = true;
        }
    }

    fn count_unaffected(&self, incident: &mut Incident) {
        let is_affected = |id: &&ClientId| incident.affected.iter().any(|known| known.client == Some(**id));
        let elsewhere = |id: &&ClientId| {
            self.known
                .iter()
                .flat_map(|known| &known.incident.affected)
                .any(|known| known.client == Some(**id))
        };
        let kept = self.seen.connected.iter().filter(|id| !is_affected(id) && !elsewhere(id)).count();
        let kept = u32::try_from(kept).unwrap_or(u32::MAX);
        incident.unaffected = Some(incident.unaffected.map_or(kept, |before| before.min(kept)));
    }

    /// Adds a client that left because of a fault whose clients are not known, or while the only GPU of its daemon is missing.
    pub(super) fn add_client(&mut self, left: &ObservedClient) {
        let (because, gpus) = (self.seen.because, self.seen.gpus);
        let is_fault = because == Some(EventType::ServerFault);
        let awaits = |StoredIncident { incident, .. }: &&StoredIncident| match incident.kind {
            IncidentKind::GpuFault => is_fault && incident.awaits_clients && !incident.is_hint,
            IncidentKind::GpuMissing => because.is_none() && incident.is_open() && incident.gpus == gpus,
            _ => false,
        };
        let Some(known) = self.known.iter().rev().find(awaits) else { return };
        let mut incident = known.incident.clone();
        self.add_affected(&mut incident, Some(known.id), left.affected());
        self.extended(known.id, incident);
    }

    /// Marks a client whose worker was in reset as it exited, as evidence in the fault by which it is affected.
    fn in_reset(&mut self, server: u32, pid: u32) {
        let is_it = |known: &&StoredIncident| {
            let Incident { kind, topic, affected, .. } = &known.incident;
            *kind == IncidentKind::GpuFault
                && *topic == IncidentTopic::Server { pid: server }
                && affected.iter().any(|client| client.pid == pid)
        };
        let Some(known) = self.known.iter().rev().find(is_it) else { return };
        let mut incident = known.incident.clone();
        incident
            .affected
            .iter_mut()
            .filter(|client| client.pid == pid)
            .for_each(|client| client.worker_in_reset = true);
        self.extended(known.id, incident);
    }

    /// Ends the open incidents for which the predicate holds.
    pub(super) fn end(&mut self, by: IncidentEnd, concerns: impl Fn(&Incident) -> bool) {
        for known in self.known.iter().filter(|known| known.incident.is_open() && concerns(&known.incident)) {
            let mut incident = known.incident.clone();
            incident.end(self.seen.at, by);
            self.note_event(&mut incident);
            self.changes.push(IncidentChange { id: Some(known.id), incident, transition: Transition::Ended });
        }
    }
}

fn suspect(client: ClientId, tenant: Option<&TenantName>) -> Suspect {
    Suspect {
        pid: client.pid,
        client: Some(client),
        tenant: tenant.cloned(),
        program: None,
        has_ended: false,
    }
}

/// Returns true if both are the same process: by identity where both are known by it, otherwise by process ID.
pub(super) fn is_same(one: &AffectedClient, other: &AffectedClient) -> bool {
    match (one.client, other.client) {
        (Some(one), Some(other)) => one == other,
        _ => one.pid == other.pid,
    }
}
