//! Detection of a daemon's events: the published state is compared with the one published before. Pure.
//!
//! A change that is undone before the next poll makes no event: `ps`, /proc and the daemon's own answers are the truth, and a
//! log is used only for events that they cannot show ([`ServerLogEvents`]).

mod server_end;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use self::server_end::ServerEnd;
use super::event_queue::Observation;
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId, stored_command};
use crate::domain::condition::{self, ConditionReason};
use crate::domain::daemon::{DaemonStatus, Phase, ServerStatus};
use crate::domain::drift::DriftStatus;
use crate::domain::edges::Edges;
use crate::domain::event::{
    AffectedClient, ClientRefusal, DaemonBlocker, DaemonLayout, DomainEvent, EventTrigger, EventType,
    LostEvents, NewEvent,
};
use crate::domain::layout::execution::LayoutFailureCause;
use crate::domain::layout::status::LayoutState;
use crate::domain::layout::{Enforcement, VersionRef};
use crate::domain::plan::Desired;
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::server_log_events::ServerLogEvents;

/// State of a daemon that is about to be published.
pub(crate) struct Snapshot<'s> {
    pub(crate) desired: &'s Desired,
    pub(crate) status: &'s DaemonStatus,
    pub(crate) clients: &'s [ClientFacts],
    /// Reason why the last poll failed.
    pub(crate) poll_failure: Option<&'s Blocker>,
    /// True if a poll has ended since the last snapshot.
    pub(crate) polled: bool,
}

/// State of a daemon as its events have reported it so far.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each named")]
pub(crate) struct EventDetector {
    phase: Option<Phase>,
    pid: Option<u32>,
    /// True if the last control process died.
    died: bool,
    /// True if the present control process was found and not started: its servers and clients are not new.
    found: bool,
    /// True if the daemon was reported as ready. `applied` is the last generation reported with it.
    ready: bool,
    applied: i64,
    reason: Option<ConditionReason>,
    /// True if an earlier manager reported the layout that is found in place.
    layout_found: bool,
    /// True if an earlier manager reported a problem of the layout.
    layout_is_reported: bool,
    clients: BTreeMap<ClientId, TrackedClient>,
    /// Clients that are no longer listed although their server has not logged their end. Either the server died under them,
    /// which the next poll shows, or that line was missed.
    vanished: BTreeSet<ClientId>,
    /// Clients that left since the last poll, or before it. A fault that ended them may be known only at the next poll, and
    /// they are kept for as long as its event waits.
    left: BTreeMap<ClientId, TrackedClient>,
    servers: BTreeMap<(u32, u64), ServerStatus>,
    /// Servers that died, until their last client is gone.
    dead: BTreeSet<u32>,
    /// Servers that the manager killed.
    killed: BTreeSet<u32>,
    /// Servers whose fault has no event yet, and whether the event already waits for the remaining lines about it in server.log.
    faulty: BTreeMap<u32, bool>,
    /// Servers whose fault, if there was one, was over before a poll could see it: the next poll decides.
    doubtful: BTreeSet<u32>,
    /// Processes that the fault of a server affects, as its event reports; empty if unknown.
    affected: BTreeMap<u32, BTreeSet<u32>>,
    drift: DriftStatus,
    layout: ReportedLayout,
    /// Processes that wait, by user, each with the server and the user that it waits for.
    waiting: Edges<(u32, u32), (u32, u32)>,
    /// Events of the driver's own actions, published in the next turn.
    observations: Vec<Observation>,
}

/// Last observation of a client.
#[derive(Debug, Clone, Default)]
struct TrackedClient {
    /// Server of the client, once it was seen there.
    server: Option<u32>,
    started_at: Option<i64>,
    /// Time at which it connected, according to server.log.
    connected_at: Option<i64>,
    /// Memory that it held on all GPUs before its work was lost.
    memory: Option<u64>,
    /// Its command line; empty where it is not known.
    command: String,
}

impl TrackedClient {
    fn of(client: &ClientFacts) -> Self {
        let held: Vec<u64> = client.memory.iter().filter_map(|(_, bytes)| *bytes).collect();
        Self {
            server: Some(client.server),
            started_at: Some(client.since),
            connected_at: None,
            memory: (!held.is_empty()).then(|| held.iter().sum()),
            command: client.command.clone(),
        }
    }

    /// Returns the client with these facts, as one that lost its work.
    fn affected(&self, client: ClientId) -> AffectedClient {
        AffectedClient {
            client: Some(client),
            started_at: self.started_at,
            connected_at: self.connected_at,
            memory: self.memory,
            command: Some(stored_command(&self.command)).filter(|command| !command.is_empty()),
            ..AffectedClient::of(client.pid)
        }
    }
}

/// State of a layout as its events have reported it.
#[derive(Debug, Clone, Default)]
struct ReportedLayout {
    applied: Option<VersionRef>,
    failed: Option<String>,
    degraded: usize,
    drifts: u64,
    repairs: u64,
}

impl EventDetector {
    /// Continues for a daemon whose journal has these clients as connected. `layout_is_reported` is true if the journal has
    /// an open problem of its layout.
    pub(crate) fn of(clients: impl IntoIterator<Item = ClientId>, layout_is_reported: bool) -> Self {
        Self {
            layout_is_reported,
            clients: clients.into_iter().map(|client| (client, TrackedClient::default())).collect(),
            ..Self::default()
        }
    }

    /// Adds an event that cannot be derived from the published state.
    pub(crate) fn emit(&mut self, event: impl Into<NewEvent>) {
        self.observations.push(Observation::Event(Box::new(event.into())));
    }

    /// Reports that the control process of an earlier manager, or of another program, was adopted.
    pub(crate) fn found(&mut self, daemon: &DaemonName, pid: u32, uid: Option<u32>) {
        (self.found, self.layout_found) = (true, true);
        self.emit(DomainEvent::DaemonFound { daemon: daemon.clone(), pid, uid });
    }

    /// Reports that a control process was started.
    pub(crate) fn started(&mut self, daemon: &DaemonName, pid: u32) {
        (self.found, self.layout_found) = (false, false);
        let event = DomainEvent::DaemonStarted { daemon: daemon.clone(), pid };
        if std::mem::take(&mut self.died) {
            self.emit(event.because(EventTrigger::Latest(EventType::DaemonDied)));
        } else {
            self.emit(event);
        }
    }

    /// Reports that the control process was stopped.
    pub(crate) fn stopped(&mut self, daemon: &DaemonName, pid: u32) {
        self.emit(DomainEvent::DaemonStopped { daemon: daemon.clone(), pid });
    }

    /// Reports that a client was ended.
    pub(crate) fn terminated(
        &mut self,
        daemon: &DaemonName,
        client: ClientId,
        server: u32,
        outcome: &'static str,
    ) {
        self.emit(DomainEvent::ClientTerminated { daemon: daemon.clone(), server, client, outcome });
    }

    /// Returns the events and other observations since the last call.
    pub(crate) fn detect(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
    ) -> Vec<Observation> {
        self.detect_phase(latest);
        let server_ends = self.detect_servers(latest, server_log);
        self.detect_clients(latest, server_log, &server_ends);
        self.forget_servers(latest);
        self.detect_drift(latest);
        self.detect_layout(latest);
        self.detect_queue(latest);
        self.pid = latest.status.pid;
        self.phase = Some(latest.status.phase);
        // All events of a daemon with one GPU are about that GPU.
        let gpu = match latest.desired.gpus.as_slice() {
            [gpu] => Some(gpu.clone()),
            _ => None,
        };
        let mut observations = arrivals_first(std::mem::take(&mut self.observations));
        for observation in &mut observations {
            if let Observation::Event(event) = observation {
                event.gpu.clone_from(&gpu);
            }
        }
        observations
    }

    fn detect_phase(&mut self, latest: &Snapshot<'_>) {
        let (status, name) = (latest.status, &latest.desired.name);
        let ready = condition::ready(&status.conditions);
        let (reason, text) =
            ready.map_or((ConditionReason::NotPolled, ""), |ready| (ready.reason, ready.message.as_str()));
        if self.pid != status.pid {
            self.ready = false;
        }
        let is_new = self.phase != Some(status.phase);
        let daemon = || name.clone();
        let why = || DaemonBlocker { daemon: daemon(), reason, message: text.to_owned() };
        let other_reason = self.reason != Some(reason);
        let event = match status.phase {
            Phase::Ready if !self.ready => {
                (self.ready, self.applied) = (true, status.observed_generation);
                Some(DomainEvent::DaemonReady { daemon: daemon() })
            }
            Phase::Ready if status.observed_generation > self.applied => {
                self.applied = status.observed_generation;
                Some(DomainEvent::SettingsApplied { daemon: daemon(), generation: self.applied })
            }
            Phase::Observed if is_new => Some(DomainEvent::DaemonObserved { daemon: daemon() }),
            Phase::BackOff if is_new => Some(DomainEvent::DaemonBackOff(why())),
            Phase::CrashLoop if is_new => Some(DomainEvent::DaemonCrashLoop(why())),
            Phase::Wedged if is_new => Some(DomainEvent::DaemonWedged(why())),
            Phase::Applying if other_reason && reason == ConditionReason::ServerExits => {
                // Once a server stays, the daemon is reported as ready again.
                self.ready = false;
                Some(DomainEvent::DaemonWithoutServer(why()))
            }
            Phase::Blocked if is_new || other_reason => Some(DomainEvent::DaemonBlocked(why())),
            Phase::Applying | Phase::Observed
                if latest.poll_failure.is_some() && (other_reason || self.phase == Some(Phase::Ready)) =>
            {
                Some(DomainEvent::DaemonUnreadable(why()))
            }
            _ => None,
        };
        self.observations.extend(event.map(|event| Observation::Event(Box::new(event.into()))));
        // Applying a change does not end readiness.
        self.ready &= matches!(status.phase, Phase::Ready | Phase::Applying) && latest.poll_failure.is_none();
        self.reason = Some(reason);
    }

    fn detect_clients(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
        server_ends: &BTreeMap<u32, ServerEnd>,
    ) {
        let status = latest.status;
        let has_no_process = status.pid.is_none()
            && matches!(
                status.phase,
                Phase::Stopped | Phase::Starting | Phase::BackOff | Phase::CrashLoop | Phase::Absent
            );
        // Before the first poll, and while a process that may run was not found, the daemon's clients are not known.
        if status.effective.is_none() && !has_no_process {
            return;
        }
        let now: BTreeMap<ClientId, TrackedClient> = latest
            .clients
            .iter()
            .map(|client| (client.id, self.tracked(client, server_log, server_ends)))
            .collect();
        let pids: BTreeSet<u32> = self.clients.keys().chain(now.keys()).map(|client| client.pid).collect();
        if latest.polled {
            server_log.polled(&now.keys().map(|client| client.pid).collect());
        }
        for visit in server_log.take_visits(|pid| pids.contains(&pid)) {
            self.observations.push(Observation::UnobservedClient(visit));
        }
        let mut waits = BTreeMap::new();
        if latest.polled && self.faulty.is_empty() && self.doubtful.is_empty() {
            self.left.clear();
        }
        for (client, tracked) in self.clients.iter().filter(|(client, _)| !now.contains_key(client)) {
            let server = tracked.server;
            let end = server.and_then(|server| server_ends.get(&server));
            let cause = match status.phase {
                Phase::Stopped => Some(EventType::DaemonStopped),
                _ if has_no_process && self.died => Some(EventType::DaemonDied),
                _ if has_no_process => Some(EventType::DaemonStopped),
                _ => end.and_then(|end| end.cause_for(client.pid)),
            };
            // Its server may have died under it, which is seen later than the client's end.
            let is_open =
                server.is_some() && end.is_none() && !has_no_process && status.phase != Phase::Stopping;
            let is_first = !latest.polled || !self.vanished.contains(client);
            if is_open && is_first && !server_log.has_disconnected(client.pid) {
                waits.insert(*client, tracked.clone());
                continue;
            }
            self.observations.push(Observation::ClientLeft(*client, cause));
            self.left.insert(*client, tracked.clone());
        }
        for client in latest.clients.iter().filter(|client| !self.clients.contains_key(&client.id)) {
            self.observations.push(Observation::ClientArrived(Box::new(client.clone())));
        }
        self.vanished = waits.keys().copied().collect();
        self.clients = now;
        self.clients.extend(waits);
        let pids: BTreeSet<u32> = self.clients.keys().map(|client| client.pid).collect();
        server_log.forget_disconnected(|pid| pids.contains(&pid));
        for (server, pid) in server_log.take_in_reset(|server| !self.faulty.contains_key(&server)) {
            let daemon = latest.desired.name.clone();
            self.emit(DomainEvent::ClientInReset { daemon, server, pid });
        }
        for refusal in server_log.take_refused() {
            self.emit(DomainEvent::ClientRefused(ClientRefusal {
                daemon: latest.desired.name.clone(),
                server: refusal.server,
                reason: refusal.reason,
                pid: refusal.pid,
                tenant: None,
                process: refusal.process,
                logged_at: refusal.at,
            }));
        }
        if server_log.take_missed() {
            let daemon = latest.desired.name.clone();
            self.emit(DomainEvent::EventsLost(LostEvents::LinesMissed { daemon }));
        }
    }

    /// Returns the facts about a client that is listed now. If its work is lost, its memory is the amount from before.
    fn tracked(
        &self,
        client: &ClientFacts,
        server_log: &ServerLogEvents,
        server_ends: &BTreeMap<u32, ServerEnd>,
    ) -> TrackedClient {
        let (now, before) = (TrackedClient::of(client), self.clients.get(&client.id));
        let is_lost = server_ends.contains_key(&client.server);
        let memory = before.and_then(|before| before.memory);
        TrackedClient {
            connected_at: before
                .map_or_else(|| server_log.connected_at(client.id.pid), |before| before.connected_at),
            memory: memory.filter(|_| is_lost).or(now.memory).or(memory),
            // A process that ends has none any more.
            command: before
                .map(|before| before.command.clone())
                .filter(|known| !known.is_empty())
                .unwrap_or(now.command),
            ..now
        }
    }

    fn detect_drift(&mut self, latest: &Snapshot<'_>) {
        let (drift, name) = (&latest.status.drift, &latest.desired.name);
        let same_process = self.pid == latest.status.pid;
        if drift.count > self.drift.count {
            let (drifted, command) = (drift.last.clone(), drift.command.clone());
            self.emit(DomainEvent::SettingsDrifted { daemon: name.clone(), drifted, command });
        }
        if (self.drift.present || drift.count > self.drift.count) && !drift.present && same_process {
            self.emit(DomainEvent::SettingsRepaired { daemon: name.clone() });
        }
        self.drift = drift.clone();
    }

    fn detect_layout(&mut self, latest: &Snapshot<'_>) {
        let Some(status) = &latest.status.layout else {
            self.layout = ReportedLayout::default();
            return;
        };
        let now = ReportedLayout {
            applied: status.version_ref(),
            failed: status.failure.as_ref().map(|failure| failure.message.clone()),
            degraded: status.degraded.len(),
            drifts: status.drift_seen.count,
            repairs: status.drift_seen.repairs,
        };
        if self.layout_found && status.is_decided() {
            self.layout_found = false;
            self.layout = ReportedLayout { drifts: 0, repairs: 0, ..now.clone() };
        }
        let layout = || DaemonLayout {
            daemon: latest.desired.name.clone(),
            layout: status.name.clone(),
            version: status.version,
            drift: status.drift_seen.last.clone(),
            degraded: status.degraded.clone(),
        };
        if status.is_decided()
            && std::mem::take(&mut self.layout_is_reported)
            && status.state == LayoutState::Applied
            && status.degraded.is_empty()
        {
            self.emit(DomainEvent::LayoutApplied(layout()));
        }
        let reported = std::mem::take(&mut self.layout);
        if now.drifts > reported.drifts {
            let command = latest.status.drift.command.clone();
            self.emit(DomainEvent::LayoutDrifted { layout: layout(), command });
        }
        if now.repairs > reported.repairs {
            self.emit(DomainEvent::LayoutRepaired(layout()));
        }
        let (applied, failed) = match status.state {
            LayoutState::Applied | LayoutState::Drifted => {
                if now.applied.is_some() && now.applied != reported.applied {
                    self.emit(DomainEvent::LayoutApplied(layout()));
                }
                (now.applied.or(reported.applied), None)
            }
            LayoutState::Failed => {
                let failure = now.failed.unwrap_or_default();
                if reported.failed.as_ref() != Some(&failure) {
                    let cause = status.failure.as_ref().map(|failure| &failure.cause);
                    let ids_differ = matches!(cause, Some(LayoutFailureCause::OtherId { .. }));
                    let failure = failure.clone();
                    self.emit(DomainEvent::LayoutFailed { layout: layout(), failure, ids_differ });
                }
                (None, Some(failure))
            }
            // Thread percentages are pending whenever a setting of the daemon is, and nothing is made anew.
            LayoutState::Pending | LayoutState::Applying if status.enforcement == Enforcement::Static => {
                (None, reported.failed)
            }
            LayoutState::Pending | LayoutState::Applying | LayoutState::Degraded => {
                (reported.applied, reported.failed)
            }
        };
        if now.degraded > reported.degraded {
            self.emit(DomainEvent::LayoutDegraded(layout()));
        }
        self.layout = ReportedLayout { applied, failed, ..now };
    }

    fn detect_queue(&mut self, latest: &Snapshot<'_>) {
        let waiting = latest.status.queue.iter().flat_map(|waiting| {
            let behind = (waiting.behind.server, waiting.behind.uid);
            waiting.waiting.iter().map(move |client| ((waiting.uid, client.pid), behind))
        });
        let changes = self.waiting.observe(waiting.collect());
        for ((uid, pid), (server, behind_uid)) in changes.appeared {
            let daemon = latest.desired.name.clone();
            self.emit(DomainEvent::ClientWaiting { daemon, server, pid, uid, behind_uid });
        }
    }
}

/// Moves each client's arrival before the first event that names it, so that its tenant is known there.
fn arrivals_first(observations: Vec<Observation>) -> Vec<Observation> {
    let named: BTreeSet<ClientId> = observations
        .iter()
        .filter_map(|observation| match observation {
            Observation::Event(event) => event.event.details(),
            _ => None,
        })
        .flat_map(|details| details.affected_clients().to_vec())
        .filter_map(|affected| affected.client)
        .collect();
    let is_named = |observation: &Observation| matches!(observation, Observation::ClientArrived(client) if named.contains(&client.id));
    let (mut first, rest): (Vec<Observation>, Vec<Observation>) =
        observations.into_iter().partition(is_named);
    first.extend(rest);
    first
}

#[cfg(test)]
mod tests;
