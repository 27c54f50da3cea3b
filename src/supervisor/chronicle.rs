//! What there is to tell of a daemon: found by comparing what is published with what was published before. Pure.
//!
//! Whatever changes between two looks and is as before at the second is not told: `ps`, /proc and the daemon's own answers say
//! what is true, and a log is asked only for what they cannot show ([`News`]).

mod servers;

use std::collections::{BTreeMap, BTreeSet};

use self::servers::Fate;
use super::journal::Note;
use super::news::News;
use super::trouble::Trouble;
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::domain::drift::DriftStatus;
use crate::domain::event::{Because, Cause, Details, EventType, NewEvent, Subject};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::plan::Desired;

/// What is published of a daemon at one time.
pub(super) struct Seen<'s> {
    pub(super) desired: &'s Desired,
    pub(super) status: &'s DaemonStatus,
    pub(super) clients: &'s [ClientFacts],
    /// Why the last look failed.
    pub(super) trouble: Option<&'s Trouble>,
    /// Whether a look has ended since the last time.
    pub(super) looked: bool,
}

/// What was told of a daemon so far.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each named")]
pub(super) struct Chronicle {
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
    /// Whether the layout that is found in place was told of by an earlier manager.
    layout_found: bool,
    /// Each with its server, once it was seen there.
    clients: BTreeMap<ClientId, Option<u32>>,
    /// Clients that are not listed any more though their server has not said goodbye to them: either it died under them, which
    /// the next look shows, or that line was missed.
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
    layout: Layout,
    waiting: BTreeSet<(u32, u32)>,
    /// What is told in the next turn, by whoever did it.
    notes: Vec<Note>,
}

/// What was told of a layout.
#[derive(Debug, Default)]
struct Layout {
    applied: Option<(String, u32)>,
    failed: Option<String>,
    degraded: usize,
    drifts: u64,
    repairs: u64,
}

impl Chronicle {
    /// One of a daemon of whose clients these were told to have come.
    pub(super) fn of(clients: impl IntoIterator<Item = ClientId>) -> Self {
        Self { clients: clients.into_iter().map(|client| (client, None)).collect(), ..Self::default() }
    }

    /// Something that nobody can tell from what is published.
    pub(super) fn happened(&mut self, event: NewEvent) {
        self.notes.push(Note::Happened(Box::new(event)));
    }

    /// The control process of an earlier manager, or of somebody else, was taken on.
    pub(super) fn found(&mut self, daemon: &DaemonName, pid: u32, uid: Option<u32>) {
        (self.found, self.layout_found) = (true, true);
        let message =
            format!("process {pid} runs as control daemon of {daemon}, and is looked after from here on");
        self.happened(
            NewEvent::new(EventType::DaemonFound, Subject::daemon(daemon), message)
                .with(Details::Process { pid, uid }),
        );
    }

    /// A control process was started.
    pub(super) fn started(&mut self, daemon: &DaemonName, pid: u32) {
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
        self.happened(event);
    }

    /// The control process was stopped.
    pub(super) fn stopped(&mut self, daemon: &DaemonName, pid: u32) {
        let message = format!("stopped process {pid}, the control daemon of {daemon}");
        self.happened(
            NewEvent::new(EventType::DaemonStopped, Subject::daemon(daemon), message)
                .with(Details::Process { pid, uid: None }),
        );
    }

    /// A client was ended.
    pub(super) fn terminated(&mut self, daemon: &DaemonName, client: ClientId, server: u32, how: &str) {
        let subject = Subject { client: Some(client), server: Some(server), ..Subject::daemon(daemon) };
        let message = format!("client {client} of daemon {daemon} was terminated: {how}");
        self.happened(
            NewEvent::new(EventType::ClientTerminated, subject, message)
                .because(Because::Latest(EventType::OperationStarted)),
        );
    }

    /// What is new since the last time.
    pub(super) fn tell(&mut self, seen: &Seen<'_>, news: &mut News) -> Vec<Note> {
        self.tell_phase(seen);
        let fates = self.tell_servers(seen, news);
        self.tell_clients(seen, news, &fates);
        self.forget_servers(seen);
        self.tell_drift(seen);
        self.tell_layout(seen);
        self.tell_queue(seen);
        self.pid = seen.status.pid;
        self.phase = Some(seen.status.phase);
        // Everything about a daemon with one GPU is about that GPU.
        let gpu = match seen.desired.gpus.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        let mut notes = arrivals_first(std::mem::take(&mut self.notes));
        for note in &mut notes {
            if let Note::Happened(event) = note {
                event.subject.gpu = event.subject.gpu.take().or_else(|| gpu.clone());
            }
        }
        notes
    }

    fn daemon(&mut self, seen: &Seen<'_>, kind: EventType, message: String, details: Option<Details>) {
        let mut event = NewEvent::new(kind, Subject::daemon(&seen.desired.name), message);
        event.details = details;
        self.happened(event);
    }

    fn tell_phase(&mut self, seen: &Seen<'_>) {
        let (status, name) = (seen.status, &seen.desired.name);
        let ready = status.conditions.iter().find(|condition| condition.kind == "Ready");
        let (reason, said) = ready.map_or(("", ""), |ready| (ready.reason.as_str(), ready.message.as_str()));
        if self.pid != status.pid {
            self.ready = false;
        }
        let news = self.phase != Some(status.phase);
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
            Phase::Observed if news => {
                self.daemon(seen, EventType::DaemonObserved, format!("daemon {name} is observed"), None);
            }
            Phase::BackOff if news => {
                self.daemon(seen, EventType::DaemonBackOff, format!("daemon {name}: {said}"), why());
            }
            Phase::CrashLoop if news => {
                self.daemon(seen, EventType::DaemonCrashLoop, format!("daemon {name}: {said}"), why());
            }
            Phase::Wedged if news => {
                self.daemon(seen, EventType::DaemonWedged, format!("daemon {name}: {said}"), why());
            }
            Phase::Blocked if news || other_reason => {
                self.daemon(seen, EventType::DaemonBlocked, format!("daemon {name}: {said}"), why());
            }
            Phase::Applying | Phase::Observed
                if seen.trouble.is_some() && (other_reason || self.phase == Some(Phase::Ready)) =>
            {
                self.daemon(seen, EventType::DaemonUnreadable, format!("daemon {name}: {said}"), why());
            }
            _ => {}
        }
        // A change is being applied: that is no end of readiness.
        self.ready &= matches!(status.phase, Phase::Ready | Phase::Applying) && seen.trouble.is_none();
        self.reason = Some(reason.to_owned());
    }

    fn tell_clients(&mut self, seen: &Seen<'_>, news: &mut News, fates: &BTreeMap<u32, Fate>) {
        let status = seen.status;
        let nobody = status.pid.is_none()
            && matches!(
                status.phase,
                Phase::Stopped | Phase::Starting | Phase::BackOff | Phase::CrashLoop | Phase::Absent
            );
        // Before the first look, and while one that may run was not found, nobody knows who is connected.
        if status.effective.is_none() && !nobody {
            return;
        }
        let now: BTreeMap<ClientId, Option<u32>> =
            seen.clients.iter().map(|client| (client.id, Some(client.server))).collect();
        let pids: BTreeSet<u32> = self.clients.keys().chain(now.keys()).map(|client| client.pid).collect();
        if seen.looked {
            news.looked(&now.keys().map(|client| client.pid).collect());
        }
        for visit in news.take_visits(|pid| pids.contains(&pid)) {
            self.notes.push(Note::Visited(visit));
        }
        let mut waits = BTreeMap::new();
        for (client, server) in self.clients.iter().filter(|(client, _)| !now.contains_key(client)) {
            let fate = server.and_then(|server| fates.get(&server));
            let cause = match status.phase {
                Phase::Stopped => Some(EventType::DaemonStopped),
                _ if nobody => Some(EventType::DaemonDied),
                _ => fate.and_then(|fate| fate.cause_for(client.pid)),
            };
            // Its server may have died under it, which is seen later than that the client is gone.
            let is_open = server.is_some() && fate.is_none() && !nobody && status.phase != Phase::Stopping;
            let is_first = !seen.looked || !self.vanished.contains(client);
            if is_open && is_first && !news.said_goodbye(client.pid) {
                waits.insert(*client, *server);
                continue;
            }
            self.notes.push(Note::Left(*client, cause));
        }
        for client in seen.clients.iter().filter(|client| !self.clients.contains_key(&client.id)) {
            self.notes.push(Note::Came(Box::new(client.clone())));
        }
        self.vanished = waits.keys().copied().collect();
        self.clients = now;
        self.clients.extend(waits);
        let known: BTreeSet<u32> = self.clients.keys().map(|client| client.pid).collect();
        news.forget_goodbyes(|pid| known.contains(&pid));
        for refusal in news.take_refused() {
            let subject = Subject { server: Some(refusal.server), ..Subject::daemon(&seen.desired.name) };
            let message = format!(
                "server {} of daemon {} let a client in not: {}",
                refusal.server, seen.desired.name, refusal.reason
            );
            let details = Details::Refused { reason: refusal.reason, logged_at: refusal.at };
            let event = NewEvent::new(EventType::ClientRefused, subject, message);
            self.happened(event.because(Cause::Mps).with(details));
        }
        if news.take_missed() {
            let message = format!(
                "lines of server.log of daemon {} were missed, or there were too many: who came and went between two looks is not known",
                seen.desired.name
            );
            let lost = Details::Lost { count: None, from: None, until: None, whole_from: None };
            self.daemon(seen, EventType::EventsLost, message, Some(lost));
        }
    }

    fn tell_drift(&mut self, seen: &Seen<'_>) {
        let (drift, name) = (&seen.status.drift, &seen.desired.name);
        let what =
            |drift: &DriftStatus| drift.last.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let same_process = self.pid == seen.status.pid;
        if drift.count > self.drift.count {
            let subject = Subject::daemon(name);
            let message = format!("somebody else changed daemon {name}: {}", what(drift));
            let event = NewEvent::new(EventType::SettingsDrifted, subject, message)
                .because(Cause::Outsider { command: drift.command.clone() })
                .with(Details::Settings { drifted: drift.last.clone() });
            self.happened(event);
        }
        if (self.drift.present || drift.count > self.drift.count) && !drift.present && same_process {
            let message = format!("the settings of daemon {name} are as wanted again");
            let event = NewEvent::new(EventType::SettingsRepaired, Subject::daemon(name), message);
            self.happened(event.because(Because::Latest(EventType::SettingsDrifted)));
        }
        self.drift = drift.clone();
    }

    fn tell_layout(&mut self, seen: &Seen<'_>) {
        let Some(status) = &seen.status.layout else {
            self.layout = Layout::default();
            return;
        };
        if self.layout_found && status.is_decided() {
            self.layout_found = false;
            self.layout = Layout {
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
        let tell = |kind: EventType, message: String| {
            NewEvent::new(kind, subject.clone(), message).with(details(status))
        };
        let mut told = std::mem::take(&mut self.layout);
        if status.drift_seen.count > told.drifts {
            let what: Vec<String> = status.drift_seen.last.iter().map(ToString::to_string).collect();
            let event =
                tell(EventType::LayoutDrifted, format!("somebody else changed {which}: {}", what.join(", ")));
            self.happened(event.because(Cause::Outsider { command: seen.status.drift.command.clone() }));
        }
        if status.drift_seen.repairs > told.repairs {
            let event = tell(EventType::LayoutRepaired, format!("{which} was put back"));
            self.happened(event.because(Because::Latest(EventType::LayoutDrifted)));
        }
        (told.drifts, told.repairs) = (status.drift_seen.count, status.drift_seen.repairs);
        let version = status.version_ref().map(|version| (version.name.to_string(), version.version));
        match status.state {
            LayoutState::Applied | LayoutState::Drifted => {
                if told.applied != version && version.is_some() {
                    self.happened(tell(EventType::LayoutApplied, format!("{which} is in force")));
                    told.applied = version;
                }
                told.failed = None;
            }
            LayoutState::Failed => {
                let failure =
                    status.failure.as_ref().map(|failure| failure.message.clone()).unwrap_or_default();
                if told.failed.as_ref() != Some(&failure) {
                    self.happened(tell(
                        EventType::LayoutFailed,
                        format!("{which} is not in force: {failure}"),
                    ));
                }
                (told.failed, told.applied) = (Some(failure), None);
            }
            LayoutState::Pending | LayoutState::Applying => told.applied = None,
            LayoutState::Degraded => {}
        }
        if status.degraded.len() > told.degraded {
            let what: Vec<String> = status.degraded.iter().map(ToString::to_string).collect();
            self.happened(tell(
                EventType::LayoutDegraded,
                format!("{which} is degraded: {}", what.join(", ")),
            ));
        }
        told.degraded = status.degraded.len();
        self.layout = told;
    }

    fn tell_queue(&mut self, seen: &Seen<'_>) {
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
                    self.happened(event.because(Cause::Mps).with(details));
                }
            }
        }
        self.waiting = now;
    }
}

/// The same with the coming of each client before an event that names it: whose it is, is known from then on.
fn arrivals_first(notes: Vec<Note>) -> Vec<Note> {
    let named: BTreeSet<ClientId> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Happened(event) => event.details.as_ref(),
            _ => None,
        })
        .flat_map(Details::affected_clients)
        .filter_map(|affected| affected.client)
        .collect();
    let is_named = |note: &Note| matches!(note, Note::Came(client) if named.contains(&client.id));
    let (mut first, rest): (Vec<Note>, Vec<Note>) = notes.into_iter().partition(is_named);
    first.extend(rest);
    first
}

#[cfg(test)]
mod tests;
