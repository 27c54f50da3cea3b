//! Decides which incidents an event opens, changes or ends.
//!
//! An event makes a report, which joins an incident by the rules or opens one. A client that lost its work in one incident is not added to
//! another.

use std::collections::BTreeMap;

use super::rules::{continues, end_of, is_logged, is_part, joins};
use super::{Incident, IncidentEnd, IncidentKind, IncidentTopic, MOST_CLIENTS, MOST_EVENTS};
use crate::client::ClientId;
use crate::event::{AffectedClient, DomainEvent, EventType, ObservedClient};
use crate::{DaemonName, GpuUuid};

/// Time after its end for which an incident is considered: it may open again, and its clients are known to have lost their work.
pub const MEMORY_MS: i64 = 5 * 60 * 1000;

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
        grouping.mark_clients();
        grouping.end();
        grouping.take_report();
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

pub(super) struct Grouping<'g> {
    pub(super) seen: Occurrence<'g>,
    daemon: &'g DaemonName,
    known: &'g [StoredIncident],
    changes: Vec<IncidentChange>,
}

impl<'g> Grouping<'g> {
    /// Returns the last known incident for which the predicate holds.
    fn last(&self, is_it: impl Fn(&Incident) -> bool) -> Option<&'g StoredIncident> {
        self.known.iter().rev().find(|known| is_it(&known.incident))
    }

    /// Returns an incident of the daemon, and of all of its GPUs, about which nothing else is known.
    pub(super) fn of(&self, kind: IncidentKind, topic: IncidentTopic) -> Incident {
        Incident {
            kind,
            daemon: self.daemon.clone(),
            gpus: self.seen.gpus.to_vec(),
            topic,
            is_hint: false,
            opened_at: self.seen.at,
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
        }
    }

    /// Ends the open incidents that the event ends.
    fn end(&mut self) {
        for known in self.known.iter().filter(|known| known.incident.is_open()) {
            if let Some(by) = end_of(self.seen.event, &known.incident) {
                let mut incident = known.incident.clone();
                incident.end(self.seen.at, by);
                self.change(Some(known.id), incident, Transition::Ended);
            }
        }
    }

    /// Adds the event's report to the incident that it belongs to, or opens one.
    fn take_report(&mut self) {
        let Occurrence { event, at, .. } = self.seen;
        if let Some(whole) = self.last(|known| known.is_open() && is_part(event, known)) {
            return self.change(Some(whole.id), whole.incident.clone(), Transition::Extended);
        }
        let Some(report) = self.report() else { return };
        let open = self.last(|known| known.is_open() && joins(event, &report, known));
        let known =
            open.or_else(|| self.last(|known| !known.is_open() && continues(event, &report, known, at)));
        let is_over = is_logged(event) || report.is_momentary();
        let (incident, transition) = match known {
            Some(known) => self.merged(known, report, is_over),
            None => self.opened(report, is_over),
        };
        self.change(known.map(|known| known.id), incident, transition);
    }

    /// Opens an incident by a report, and ends it if it is over.
    fn opened(&self, report: Incident, is_over: bool) -> (Incident, Transition) {
        let mut incident = Incident {
            is_hint: report.is_hint,
            opened_at: report.opened_at,
            gpus: Vec::new(),
            ..self.of(report.kind, report.topic.clone())
        };
        self.add(&mut incident, None, report);
        if !is_over {
            return (incident, Transition::Opened);
        }
        incident.end(self.seen.at, IncidentEnd::Recovered);
        (incident, Transition::OpenedAndEnded)
    }

    /// Merges a report into the incident that it belongs to, which opens again unless the report is of something that is over.
    fn merged(
        &self,
        StoredIncident { id, incident }: &StoredIncident,
        mut report: Incident,
        is_over: bool,
    ) -> (Incident, Transition) {
        let (mut incident, mut transition) = (incident.clone(), Transition::Extended);
        // That fewer processes are left, or who they were, is not another occurrence.
        if incident.names_all_of(&report) {
            incident.mark_ended(&report);
            incident.detail = report.detail;
            return (incident, transition);
        }
        if !incident.is_open() && !is_over {
            (incident.recovered_at, incident.ended_by) = (None, None);
            (incident.reopened_at, transition) = (Some(self.seen.at), Transition::Opened);
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
        // A log alone adds no clients to an incident that was seen.
        if report.is_hint && !incident.is_hint {
            report.affected.clear();
        }
        self.add(&mut incident, Some(*id), report);
        // A log's report of a fault that was seen does not change the end of that fault.
        if incident.is_momentary() {
            incident.end(self.seen.at, IncidentEnd::Recovered);
        }
        (incident, transition)
    }

    /// Adds a report to an incident.
    fn add(&self, incident: &mut Incident, id: Option<i64>, report: Incident) {
        if incident.kind.is_of_processes() {
            incident.mark_ended(&report);
        }
        for gpu in report.gpus {
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
        incident.awaits_clients |= report.awaits_clients;
        for client in report.affected {
            self.add_affected(incident, id, client);
        }
        incident.is_uncertain |= report.is_uncertain;
        incident.detail = report.detail.or(incident.detail.take());
        if counts_unaffected(self.seen.event) {
            self.count_unaffected(incident);
        }
        // The end of a server, or a crash loop, is no second death.
        let counts =
            incident.kind == report.kind && !matches!(self.seen.event, DomainEvent::DaemonCrashLoop(_));
        let counts = counts || matches!(self.seen.event, DomainEvent::DaemonDied { .. });
        incident.occurrences += u32::from(counts || incident.occurrences == 0);
    }

    /// Adds a client that lost its work, unless another incident has it already.
    fn add_affected(&self, incident: &mut Incident, id: Option<i64>, client: AffectedClient) {
        let others = self.known.iter().filter(|known| Some(known.id) != id && !known.incident.is_hint);
        let mut elsewhere = others.flat_map(|known| &known.incident.affected);
        if elsewhere.any(|known| known.is_same(&client)) {
            return;
        }
        if let Some(known) = incident.affected.iter_mut().find(|known| known.is_same(&client)) {
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

    /// Adds to incidents what a client that left shows: it lost its work, or its worker was in reset.
    fn mark_clients(&mut self) {
        match self.seen.event {
            DomainEvent::ClientLeft(left) => self.add_client(left),
            DomainEvent::ClientInReset { server, pid, .. } => self.mark_in_reset(*server, *pid),
            _ => {}
        }
    }

    /// Adds a client that left because of a fault whose clients are not known, or while the only GPU of its daemon is missing.
    fn add_client(&mut self, left: &ObservedClient) {
        let (because, gpus) = (self.seen.because, self.seen.gpus);
        let is_fault = because == Some(EventType::ServerFault);
        let awaits = |incident: &Incident| match incident.kind {
            IncidentKind::GpuFault => is_fault && incident.awaits_clients && !incident.is_hint,
            IncidentKind::GpuMissing => because.is_none() && incident.is_open() && incident.gpus == gpus,
            _ => false,
        };
        let Some(StoredIncident { id, incident }) = self.last(awaits) else { return };
        let mut incident = incident.clone();
        self.add_affected(&mut incident, Some(*id), left.affected());
        self.change(Some(*id), incident, Transition::Extended);
    }

    /// Marks a client whose worker was in reset as it exited, as evidence in the fault by which it is affected.
    fn mark_in_reset(&mut self, server: u32, pid: u32) {
        let is_it = |known: &Incident| {
            let Incident { kind, topic, affected, .. } = known;
            *kind == IncidentKind::GpuFault
                && *topic == IncidentTopic::Server { pid: server }
                && affected.iter().any(|client| client.pid == pid)
        };
        let Some(StoredIncident { id, incident }) = self.last(is_it) else { return };
        let mut incident = incident.clone();
        for client in incident.affected.iter_mut().filter(|client| client.pid == pid) {
            client.worker_in_reset = true;
        }
        self.change(Some(*id), incident, Transition::Extended);
    }

    /// Adds the event to every incident that it belongs to and does not change: it is about the incident, one of the incident's events
    /// caused it, or it is the end of a client that lost its work.
    fn link(&mut self) {
        let seen = self.seen;
        let belongs = |StoredIncident { id, incident }: &&StoredIncident| match seen.event {
            DomainEvent::IncidentOpened(one) | DomainEvent::IncidentRecovered(one) => one.incident == *id,
            DomainEvent::ClientLeft(left) => {
                incident.affected.iter().any(|one| one.is_same(&left.affected()))
            }
            _ => seen.cause.is_some_and(|cause| incident.events.contains(&cause)),
        };
        for known in self.known.iter().filter(belongs) {
            if self.changes.iter().all(|change| change.id != Some(known.id)) {
                self.change(Some(known.id), known.incident.clone(), Transition::Extended);
            }
        }
    }

    /// Adds the event to an incident that it changes or belongs to.
    fn change(&mut self, id: Option<i64>, mut incident: Incident, transition: Transition) {
        if let DomainEvent::GpuMissing { left, .. } = self.seen.event {
            incident.events.extend(left.iter().map(|(event, _)| event));
        }
        if incident.events.len() < MOST_EVENTS {
            incident.events.extend(self.seen.id);
        }
        self.changes.push(IncidentChange { id, incident, transition });
    }
}
