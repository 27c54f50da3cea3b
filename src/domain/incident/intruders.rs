//! Finds changes of the processes that a daemon should not have beside it: those that have its own directory mounted, and control
//! daemons that serve its GPUs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::DaemonName;
use crate::client::ClientId;
use crate::event::DomainEvent;
use crate::exposure::SocketExposure;
use crate::foreign_owner::SharingDaemon;
use crate::foreign_user::ForeignUser;

/// A process beside a daemon that is reported for as long as it is there.
pub trait Intruder: Clone {
    /// True if one sighting is not enough: a process that an engine starts has the host's mounts for a moment, until it has changed into
    /// its container.
    const IS_SEEN_TWICE: bool;
    /// Returns its process.
    fn process(&self) -> ClientId;
    /// Returns true if the process is not connected yet. It is reported again once it is.
    fn waits(&self) -> bool {
        false
    }
    /// Returns the event for processes that are there now and differ from those reported before.
    fn appeared(daemon: DaemonName, present: Vec<Self>) -> DomainEvent;
    /// Returns the event for a daemon that has no such process any longer.
    fn ended(daemon: DaemonName) -> DomainEvent;
}

impl Intruder for SocketExposure {
    const IS_SEEN_TWICE: bool = true;

    fn process(&self) -> ClientId {
        self.process
    }

    fn appeared(daemon: DaemonName, present: Vec<Self>) -> DomainEvent {
        DomainEvent::ExposureDetected { daemon, present }
    }

    fn ended(daemon: DaemonName) -> DomainEvent {
        DomainEvent::ExposureEnded { daemon }
    }
}

impl Intruder for ForeignUser {
    const IS_SEEN_TWICE: bool = false;

    fn process(&self) -> ClientId {
        self.process
    }

    fn waits(&self) -> bool {
        self.waits
    }

    fn appeared(daemon: DaemonName, present: Vec<Self>) -> DomainEvent {
        DomainEvent::ForeignUserAppeared { daemon, present }
    }

    fn ended(daemon: DaemonName) -> DomainEvent {
        DomainEvent::ForeignUserEnded { daemon }
    }
}

impl Intruder for SharingDaemon {
    const IS_SEEN_TWICE: bool = false;

    fn process(&self) -> ClientId {
        self.process
    }

    fn appeared(daemon: DaemonName, present: Vec<Self>) -> DomainEvent {
        DomainEvent::ForeignDaemonAppeared { daemon, present }
    }

    fn ended(daemon: DaemonName) -> DomainEvent {
        DomainEvent::ForeignDaemonEnded { daemon }
    }
}

/// A process, with true if it waits.
type Reported = (ClientId, bool);

/// Tracks the intruders that have been reported, by daemon.
#[derive(Debug, Clone, Default)]
pub struct IntruderTracker {
    reported: BTreeMap<DaemonName, BTreeSet<Reported>>,
    /// The processes that were there at the last observation.
    seen: BTreeSet<ClientId>,
}

impl IntruderTracker {
    /// Creates a tracker that knows of the processes that an earlier manager reported.
    pub fn with(reported: impl IntoIterator<Item = (DaemonName, BTreeSet<ClientId>)>) -> Self {
        let connected = |all: BTreeSet<ClientId>| all.into_iter().map(|process| (process, false)).collect();
        let reported = reported.into_iter().map(|(daemon, all)| (daemon, connected(all)));
        Self { reported: reported.collect(), ..Self::default() }
    }

    /// Takes the processes that are there now, with an entry for each existing daemon, and returns the changes to report. Unless the
    /// search `is_complete`, processes that were not found may still be there.
    pub fn observe<I: Intruder>(
        &mut self,
        now: &BTreeMap<DaemonName, Vec<I>>,
        is_complete: bool,
    ) -> Vec<DomainEvent> {
        // The incident of a daemon that is gone ended with it.
        self.reported.retain(|daemon, _| now.contains_key(daemon));
        let mut events = Vec::new();
        let all = now.values().flatten().map(Intruder::process).collect();
        let seen = std::mem::replace(&mut self.seen, all);
        for (daemon, present) in now {
            let reported = self.reported.get(daemon);
            let counts = |one: &&I| {
                let process = one.process();
                !I::IS_SEEN_TWICE
                    || seen.contains(&process)
                    || reported.is_some_and(|known| known.contains(&(process, one.waits())))
            };
            let present: Vec<I> = present.iter().filter(counts).cloned().collect();
            let processes: BTreeSet<Reported> =
                present.iter().map(|one| (one.process(), one.waits())).collect();
            let is_reported = match self.reported.get(daemon) {
                None => processes.is_empty(),
                Some(before) if is_complete => !processes.is_empty() && *before == processes,
                Some(before) => processes.is_subset(before),
            };
            if is_reported {
                continue;
            }
            let daemon = daemon.clone();
            if processes.is_empty() {
                self.reported.remove(&daemon);
                events.push(I::ended(daemon));
            } else {
                self.reported.insert(daemon.clone(), processes);
                events.push(I::appeared(daemon, present));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventType;

    fn daemon(name: &str) -> DaemonName {
        DaemonName::parse(name).expect("a name")
    }

    /// Returns exposures of gpu0 by processes of these numbers; gpu1 has none.
    fn having(pids: &[u32]) -> BTreeMap<DaemonName, Vec<SocketExposure>> {
        let exposure = |pid: &u32| SocketExposure {
            process: ClientId { pid: *pid, start_time: 1 },
            uid: None,
            program: None,
            container: None,
            point: "/mnt".into(),
        };
        BTreeMap::from([(daemon("gpu0"), pids.iter().map(exposure).collect()), (daemon("gpu1"), Vec::new())])
    }

    fn kinds(events: &[DomainEvent]) -> Vec<EventType> {
        events.iter().map(DomainEvent::kind).collect()
    }

    /// Returns the events of two observations of the same processes.
    fn twice(tracker: &mut IntruderTracker, pids: &[u32], is_complete: bool) -> Vec<DomainEvent> {
        let mut events = tracker.observe(&having(pids), is_complete);
        events.extend(tracker.observe(&having(pids), is_complete));
        events
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut tracker = IntruderTracker::default();
        assert!(tracker.observe(&having(&[]), true).is_empty());
        assert_eq!(kinds(&twice(&mut tracker, &[7], true)), [EventType::ExposureDetected]);
        assert!(tracker.observe(&having(&[7]), true).is_empty());
        let events = twice(&mut tracker, &[7, 9], true);
        let [DomainEvent::ExposureDetected { present, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(present.len(), 2, "all that are there");
        let events = tracker.observe(&having(&[9]), true);
        let [DomainEvent::ExposureDetected { present, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(present.len(), 1, "one is left");
        assert!(tracker.observe(&having(&[9]), true).is_empty());
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
        assert!(tracker.observe(&having(&[]), true).is_empty());
    }

    #[test]
    fn container_that_is_being_made_is_no_exposure() {
        let mut tracker = IntruderTracker::default();
        for pids in [&[7][..], &[], &[8], &[9], &[]] {
            assert!(tracker.observe(&having(pids), true).is_empty(), "{pids:?}");
        }
        assert!(tracker.observe(&having(&[7, 9]), true).is_empty());
        let events = tracker.observe(&having(&[7]), true);
        assert_eq!(kinds(&events), [EventType::ExposureDetected], "the one that stays");
    }

    #[test]
    fn who_waited_is_reported_again_once_connected() {
        let at = |waits: bool| {
            let process = ClientId { pid: 7, start_time: 1 };
            let user = ForeignUser { process, uid: 33, program: None, waits };
            BTreeMap::from([(daemon("gpu0"), vec![user])])
        };
        let mut tracker = IntruderTracker::default();
        for waits in [true, false, true] {
            let events = tracker.observe(&at(waits), true);
            let [DomainEvent::ForeignUserAppeared { present, .. }] = events.as_slice() else {
                panic!("{events:?}")
            };
            assert_eq!(present[0].waits, waits);
            assert!(tracker.observe(&at(waits), true).is_empty());
        }
    }

    #[test]
    fn incomplete_search_ends_nothing() {
        let mut tracker = IntruderTracker::default();
        assert!(tracker.observe(&having(&[]), false).is_empty());
        assert_eq!(kinds(&twice(&mut tracker, &[7, 9], false)), [EventType::ExposureDetected]);
        assert!(tracker.observe(&having(&[9]), false).is_empty());
        assert!(tracker.observe(&having(&[]), false).is_empty());
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }

    #[test]
    fn exposure_without_recorded_process_ends() {
        // An incident keeps a limited number of processes.
        let mut tracker = IntruderTracker::with([(daemon("gpu0"), BTreeSet::new())]);
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }

    #[test]
    fn exposure_of_an_earlier_manager_ends() {
        let process = ClientId { pid: 7, start_time: 1 };
        let mut tracker = IntruderTracker::with([(daemon("gpu0"), BTreeSet::from([process]))]);
        assert!(tracker.observe(&having(&[7]), true).is_empty());
        let mut gone = tracker.clone();
        assert!(gone.observe::<SocketExposure>(&BTreeMap::new(), true).is_empty(), "the daemon is deleted");
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }
}
