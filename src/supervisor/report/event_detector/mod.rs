//! What there is to report a daemon: found by comparing what is published with what was published before. Pure.
//!
//! A change that is undone before the next poll makes no event: `ps`, /proc and the daemon's own answers say
//! what is true, and a log is used only for what they cannot show ([`ServerLogEvents`]).

mod servers;

use std::collections::{BTreeMap, BTreeSet};

use self::servers::ServerEnd;
use super::diagnosis::Diagnosis;
use super::event_queue::Observation;
use super::server_log_events::ServerLogEvents;
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::domain::drift::DriftStatus;
use crate::domain::event::{Because, Cause, Details, EventType, NewEvent, Subject};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::plan::Desired;

/// What is published of a daemon at one time.
pub(crate) struct Snapshot<'s> {
    pub(crate) desired: &'s Desired,
    pub(crate) status: &'s DaemonStatus,
    pub(crate) clients: &'s [ClientFacts],
    /// Why the last poll failed.
    pub(crate) poll_failure: Option<&'s Diagnosis>,
    /// Whether a poll has ended since the last time.
    pub(crate) polled: bool,
}

/// What was reported a daemon so far.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each named")]
pub(crate) struct EventDetector {
    phase: Option<Phase>,
    pid: Option<u32>,
    /// Whether the last one died.
    died: bool,
    /// Whether the present control process was found and not started: what it has was there before.
    found: bool,
    /// Whether it was said to be ready, and of which generation last.
    ready: bool,
    applied: i64,
    reason: Option<String>,
    /// Whether the layout that is found in place was reported by an earlier manager.
    layout_found: bool,
    /// Each with its server, once it was seen there.
    clients: BTreeMap<ClientId, Option<u32>>,
    /// Clients that are not listed any more though their server has not said goodbye to them: either it died under them, which
    /// the next poll shows, or that line was missed.
    vanished: BTreeSet<ClientId>,
    servers: BTreeMap<(u32, u64), String>,
    /// Servers that died, until their last client is gone.
    dead: BTreeSet<u32>,
    /// Servers that the manager killed.
    killed: BTreeSet<u32>,
    /// Servers whose fault has no event yet, and whether that waits for the rest of what server.log says of it.
    faulty: BTreeMap<u32, bool>,
    /// The processes that the fault of a server affects, as its event says; empty where that is not known.
    affected: BTreeMap<u32, BTreeSet<u32>>,
    drift: DriftStatus,
    layout: ReportedLayout,
    waiting: BTreeSet<(u32, u32)>,
    /// Events of the driver's own actions, published in the next turn.
    observations: Vec<Observation>,
}

/// What was reported a layout.
#[derive(Debug, Default)]
struct ReportedLayout {
    applied: Option<(String, u32)>,
    failed: Option<String>,
    degraded: usize,
    drifts: u64,
    repairs: u64,
}

impl EventDetector {
    /// For a daemon whose journal has these clients as connected.
    pub(crate) fn of(clients: impl IntoIterator<Item = ClientId>) -> Self {
        Self { clients: clients.into_iter().map(|client| (client, None)).collect(), ..Self::default() }
    }

    /// Adds an event that cannot be derived from what is published.
    pub(crate) fn emit(&mut self, event: NewEvent) {
        self.observations.push(Observation::Event(Box::new(event)));
    }

    /// The control process of an earlier manager, or of another program, was taken on.
    pub(crate) fn found(&mut self, daemon: &DaemonName, pid: u32, uid: Option<u32>) {
        (self.found, self.layout_found) = (true, true);
        let message =
            format!("process {pid} runs as control daemon of {daemon}, and is managed from here on");
        self.emit(
            NewEvent::new(EventType::DaemonFound, Subject::daemon(daemon), message)
                .with(Details::Process { pid, uid }),
        );
    }

    /// A control process was started.
    pub(crate) fn started(&mut self, daemon: &DaemonName, pid: u32) {
        (self.found, self.layout_found) = (false, false);
        let mut event = NewEvent::new(
            EventType::DaemonStarted,
            Subject::daemon(daemon),
            format!("started process {pid} as control daemon of {daemon}"),
        )
        .with(Details::Process { pid, uid: None });
        if std::mem::take(&mut self.died) {
            event = event.because(Because::Latest(EventType::DaemonDied));
        }
        self.emit(event);
    }

    /// The control process was stopped.
    pub(crate) fn stopped(&mut self, daemon: &DaemonName, pid: u32) {
        let message = format!("stopped process {pid}, the control daemon of {daemon}");
        self.emit(
            NewEvent::new(EventType::DaemonStopped, Subject::daemon(daemon), message)
                .with(Details::Process { pid, uid: None }),
        );
    }

    /// A client was ended.
    pub(crate) fn terminated(&mut self, daemon: &DaemonName, client: ClientId, server: u32, how: &str) {
        let subject = Subject { client: Some(client), server: Some(server), ..Subject::daemon(daemon) };
        let message = format!("client {client} of daemon {daemon} was terminated: {how}");
        self.emit(
            NewEvent::new(EventType::ClientTerminated, subject, message)
                .because(Because::Latest(EventType::OperationStarted)),
        );
    }

    /// What is new since the last time.
    pub(crate) fn detect(
        &mut self,
        seen: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
    ) -> Vec<Observation> {
        self.detect_phase(seen);
        let server_ends = self.detect_servers(seen, server_log);
        self.detect_clients(seen, server_log, &server_ends);
        self.forget_servers(seen);
        self.detect_drift(seen);
        self.detect_layout(seen);
        self.detect_queue(seen);
        self.pid = seen.status.pid;
        self.phase = Some(seen.status.phase);
        // Everything about a daemon with one GPU is about that GPU.
        let gpu = match seen.desired.gpus.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        let mut observations = arrivals_first(std::mem::take(&mut self.observations));
        for observation in &mut observations {
            if let Observation::Event(event) = observation {
                event.subject.gpu = event.subject.gpu.take().or_else(|| gpu.clone());
            }
        }
        observations
    }

    fn daemon(&mut self, seen: &Snapshot<'_>, kind: EventType, message: String, details: Option<Details>) {
        let mut event = NewEvent::new(kind, Subject::daemon(&seen.desired.name), message);
        event.details = details;
        self.emit(event);
    }

    fn detect_phase(&mut self, seen: &Snapshot<'_>) {
        let (status, name) = (seen.status, &seen.desired.name);
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
        let (reason, said) = ready.map_or(("", ""), |ready| (ready.reason.as_str(), ready.message.as_str()));
        if self.pid != status.pid {
            self.ready = false;
        }
        let is_new = self.phase != Some(status.phase);
        let why = || Some(Details::Reason { reason: reason.to_owned() });
        let other_reason = self.reason.as_deref() != Some(reason);
        match status.phase {
            Phase::Ready if !self.ready => {
                self.daemon(seen, EventType::DaemonReady, format!("daemon {name} is ready"), None);
                (self.ready, self.applied) = (true, status.observed_generation);
            }
            Phase::Ready if status.observed_generation > self.applied => {
                let generation = status.observed_generation;
                let message =
                    format!("generation {generation} of daemon {name} was read back to be in force");
                let details = Some(Details::Generation { generation });
                self.daemon(seen, EventType::SettingsApplied, message, details);
                self.applied = generation;
            }
            Phase::Observed if is_new => {
                self.daemon(seen, EventType::DaemonObserved, format!("daemon {name} is observed"), None);
            }
            Phase::BackOff if is_new => {
                self.daemon(seen, EventType::DaemonBackOff, format!("daemon {name}: {said}"), why());
            }
            Phase::CrashLoop if is_new => {
                self.daemon(seen, EventType::DaemonCrashLoop, format!("daemon {name}: {said}"), why());
            }
            Phase::Wedged if is_new => {
                self.daemon(seen, EventType::DaemonWedged, format!("daemon {name}: {said}"), why());
            }
            Phase::Blocked if is_new || other_reason => {
                self.daemon(seen, EventType::DaemonBlocked, format!("daemon {name}: {said}"), why());
            }
            Phase::Applying | Phase::Observed
                if seen.poll_failure.is_some() && (other_reason || self.phase == Some(Phase::Ready)) =>
            {
                self.daemon(seen, EventType::DaemonUnreadable, format!("daemon {name}: {said}"), why());
            }
            _ => {}
        }
        // A change is being applied: that is no end of readiness.
        self.ready &= matches!(status.phase, Phase::Ready | Phase::Applying) && seen.poll_failure.is_none();
        self.reason = Some(reason.to_owned());
    }

    fn detect_clients(
        &mut self,
        seen: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
        server_ends: &BTreeMap<u32, ServerEnd>,
    ) {
        let status = seen.status;
        let has_no_process = status.pid.is_none()
            && matches!(
                status.phase,
                Phase::Stopped | Phase::Starting | Phase::BackOff | Phase::CrashLoop | Phase::Absent
            );
        // Before the first poll, and while one that may run was not found, its clients are not known.
        if status.effective.is_none() && !has_no_process {
            return;
        }
        let now: BTreeMap<ClientId, Option<u32>> =
            seen.clients.iter().map(|client| (client.id, Some(client.server))).collect();
        let pids: BTreeSet<u32> = self.clients.keys().chain(now.keys()).map(|client| client.pid).collect();
        if seen.polled {
            server_log.polled(&now.keys().map(|client| client.pid).collect());
        }
        for visit in server_log.take_visits(|pid| pids.contains(&pid)) {
            self.observations.push(Observation::UnobservedClient(visit));
        }
        let mut waits = BTreeMap::new();
        for (client, server) in self.clients.iter().filter(|(client, _)| !now.contains_key(client)) {
            let end = server.and_then(|server| server_ends.get(&server));
            let cause = match status.phase {
                Phase::Stopped => Some(EventType::DaemonStopped),
                _ if has_no_process => Some(EventType::DaemonDied),
                _ => end.and_then(|end| end.cause_for(client.pid)),
            };
            // Its server may have died under it, which is seen later than that the client is gone.
            let is_open =
                server.is_some() && end.is_none() && !has_no_process && status.phase != Phase::Stopping;
            let is_first = !seen.polled || !self.vanished.contains(client);
            if is_open && is_first && !server_log.has_disconnected(client.pid) {
                waits.insert(*client, *server);
                continue;
            }
            self.observations.push(Observation::ClientLeft(*client, cause));
        }
        for client in seen.clients.iter().filter(|client| !self.clients.contains_key(&client.id)) {
            self.observations.push(Observation::ClientArrived(Box::new(client.clone())));
        }
        self.vanished = waits.keys().copied().collect();
        self.clients = now;
        self.clients.extend(waits);
        let known: BTreeSet<u32> = self.clients.keys().map(|client| client.pid).collect();
        server_log.forget_disconnected(|pid| known.contains(&pid));
        for refusal in server_log.take_refused() {
            let subject = Subject { server: Some(refusal.server), ..Subject::daemon(&seen.desired.name) };
            let message = format!(
                "server {} of daemon {} refused a client: {}",
                refusal.server, seen.desired.name, refusal.reason
            );
            let details = Details::Refused { reason: refusal.reason, logged_at: refusal.at };
            let event = NewEvent::new(EventType::ClientRefused, subject, message);
            self.emit(event.because(Cause::Mps).with(details));
        }
        if server_log.take_missed() {
            let message = format!(
                "lines of server.log of daemon {} were missed, or there were too many: who came and went between two polls is not known",
                seen.desired.name
            );
            let lost = Details::Lost { count: None, from: None, until: None, whole_from: None };
            self.daemon(seen, EventType::EventsLost, message, Some(lost));
        }
    }

    fn detect_drift(&mut self, seen: &Snapshot<'_>) {
        let (drift, name) = (&seen.status.drift, &seen.desired.name);
        let what =
            |drift: &DriftStatus| drift.last.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let same_process = self.pid == seen.status.pid;
        if drift.count > self.drift.count {
            let subject = Subject::daemon(name);
            let message = format!("another program changed daemon {name}: {}", what(drift));
            let event = NewEvent::new(EventType::SettingsDrifted, subject, message)
                .because(Cause::Outsider { command: drift.command.clone() })
                .with(Details::Settings { drifted: drift.last.clone() });
            self.emit(event);
        }
        if (self.drift.present || drift.count > self.drift.count) && !drift.present && same_process {
            let message = format!("the settings of daemon {name} are as wanted again");
            let event = NewEvent::new(EventType::SettingsRepaired, Subject::daemon(name), message);
            self.emit(event.because(Because::Latest(EventType::SettingsDrifted)));
        }
        self.drift = drift.clone();
    }

    fn detect_layout(&mut self, seen: &Snapshot<'_>) {
        let Some(status) = &seen.status.layout else {
            self.layout = ReportedLayout::default();
            return;
        };
        if self.layout_found && status.is_decided() {
            self.layout_found = false;
            self.layout = ReportedLayout {
                applied: status.version_ref().map(|version| (version.name.to_string(), version.version)),
                failed: status.failure.as_ref().map(|failure| failure.message.clone()),
                degraded: status.degraded.len(),
                drifts: 0,
                repairs: 0,
            };
        }
        let name = &seen.desired.name;
        let subject = Subject { layout: status.name.clone(), ..Subject::daemon(name) };
        let details = |status: &LayoutStatus| Details::Layout {
            version: status.version,
            drift: status.drift_seen.last.clone(),
            degraded: status.degraded.clone(),
        };
        let which = match (&status.name, status.version) {
            (Some(layout), Some(version)) => format!("layout {layout} version {version} of daemon {name}"),
            _ => format!("the layout of daemon {name}"),
        };
        let layout_event = |kind: EventType, message: String| {
            NewEvent::new(kind, subject.clone(), message).with(details(status))
        };
        let mut reported = std::mem::take(&mut self.layout);
        if status.drift_seen.count > reported.drifts {
            let what: Vec<String> = status.drift_seen.last.iter().map(ToString::to_string).collect();
            let event = layout_event(
                EventType::LayoutDrifted,
                format!("another program changed {which}: {}", what.join(", ")),
            );
            self.emit(event.because(Cause::Outsider { command: seen.status.drift.command.clone() }));
        }
        if status.drift_seen.repairs > reported.repairs {
            let event = layout_event(EventType::LayoutRepaired, format!("{which} was put back"));
            self.emit(event.because(Because::Latest(EventType::LayoutDrifted)));
        }
        (reported.drifts, reported.repairs) = (status.drift_seen.count, status.drift_seen.repairs);
        let version = status.version_ref().map(|version| (version.name.to_string(), version.version));
        match status.state {
            LayoutState::Applied | LayoutState::Drifted => {
                if reported.applied != version && version.is_some() {
                    self.emit(layout_event(EventType::LayoutApplied, format!("{which} is in force")));
                    reported.applied = version;
                }
                reported.failed = None;
            }
            LayoutState::Failed => {
                let failure =
                    status.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
                if reported.failed.as_ref() != Some(&failure) {
                    self.emit(layout_event(
                        EventType::LayoutFailed,
                        format!("{which} is not in force: {failure}"),
                    ));
                }
                (reported.failed, reported.applied) = (Some(failure), None);
            }
            LayoutState::Pending | LayoutState::Applying => reported.applied = None,
            LayoutState::Degraded => {}
        }
        if status.degraded.len() > reported.degraded {
            let what: Vec<String> = status.degraded.iter().map(ToString::to_string).collect();
            self.emit(layout_event(
                EventType::LayoutDegraded,
                format!("{which} is degraded: {}", what.join(", ")),
            ));
        }
        reported.degraded = status.degraded.len();
        self.layout = reported;
    }

    fn detect_queue(&mut self, seen: &Snapshot<'_>) {
        let mut now = BTreeSet::new();
        for waiting in &seen.status.queue {
            for client in &waiting.waiting {
                if now.insert((waiting.uid, client.pid)) && !self.waiting.contains(&(waiting.uid, client.pid))
                {
                    let message = format!(
                        "process {} of uid {} waits until the clients of uid {} are gone",
                        client.pid, waiting.uid, waiting.behind.uid
                    );
                    let subject = Subject {
                        server: Some(waiting.behind.server),
                        ..Subject::daemon(&seen.desired.name)
                    };
                    let details = Details::Waiting {
                        pid: client.pid,
                        uid: waiting.uid,
                        behind_uid: waiting.behind.uid,
                    };
                    let event = NewEvent::new(EventType::ClientWaiting, subject, message);
                    self.emit(event.because(Cause::Mps).with(details));
                }
            }
        }
        self.waiting = now;
    }
}

/// The same with the coming of each client before an event that names it: whose it is, is known from then on.
fn arrivals_first(observations: Vec<Observation>) -> Vec<Observation> {
    let named: BTreeSet<ClientId> = observations
        .iter()
        .filter_map(|observation| match observation {
            Observation::Event(event) => event.details.as_ref(),
            _ => None,
        })
        .flat_map(Details::affected_clients)
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
