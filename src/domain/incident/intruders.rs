//! Finds changes of the processes that a daemon should not have beside it: those that have its own directory mounted, and control
//! daemons that serve its GPUs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::IncidentKind;
use crate::DaemonName;
use crate::client::ClientId;
use crate::edges::Edges;
use crate::event::DomainEvent;
use crate::exposure::SocketExposure;
use crate::foreign_owner::SharingDaemon;
use crate::foreign_user::ForeignUser;

/// A process, with true if it is not connected yet: it is reported again once it is.
type Reported = (ClientId, bool);

/// A kind of processes that are reported for as long as they are beside a daemon.
#[derive(Debug)]
pub struct IntruderKind<I> {
    /// Kind of their incidents.
    pub incident: IncidentKind,
    /// True if one sighting is not enough: a process that an engine starts has the host's mounts for a moment, until it has changed into
    /// its container.
    is_seen_twice: bool,
    process: fn(&I) -> Reported,
    /// Event for processes that are there now and differ from those reported before.
    appeared: fn(DaemonName, Vec<I>) -> DomainEvent,
    /// Event for a daemon that has no such process any longer.
    ended: fn(DaemonName) -> DomainEvent,
}

/// Processes that have a daemon's own directory mounted.
pub static EXPOSURES: IntruderKind<SocketExposure> = IntruderKind {
    incident: IncidentKind::SocketExposed,
    is_seen_twice: true,
    process: |one| (one.process, false),
    appeared: |daemon, present| DomainEvent::ExposureDetected { daemon, present },
    ended: |daemon| DomainEvent::ExposureEnded { daemon },
};

/// Processes of users who are no tenant's.
pub static FOREIGN_USERS: IntruderKind<ForeignUser> = IntruderKind {
    incident: IncidentKind::ForeignUser,
    is_seen_twice: false,
    process: |one| (one.process, one.waits),
    appeared: |daemon, present| DomainEvent::ForeignUserAppeared { daemon, present },
    ended: |daemon| DomainEvent::ForeignUserEnded { daemon },
};

/// Control daemons that serve a daemon's GPUs.
pub static SHARING: IntruderKind<SharingDaemon> = IntruderKind {
    incident: IncidentKind::GpuShared,
    is_seen_twice: false,
    process: |one| (one.process, false),
    appeared: |daemon, present| DomainEvent::ForeignDaemonAppeared { daemon, present },
    ended: |daemon| DomainEvent::ForeignDaemonEnded { daemon },
};

/// Tracks the intruders of one kind that have been reported, by daemon.
#[derive(Debug, Clone)]
pub struct IntruderTracker<I: 'static> {
    kind: &'static IntruderKind<I>,
    reported: Edges<DaemonName, BTreeSet<Reported>>,
    /// The processes that were there at the last observation.
    seen: BTreeSet<ClientId>,
}

impl<I: Clone> IntruderTracker<I> {
    /// Creates a tracker that knows of the processes that an earlier manager reported.
    pub fn of(
        kind: &'static IntruderKind<I>,
        reported: impl IntoIterator<Item = (DaemonName, BTreeSet<ClientId>)>,
    ) -> Self {
        let connected = |all: BTreeSet<ClientId>| all.into_iter().map(|process| (process, false)).collect();
        let reported = reported.into_iter().map(|(daemon, all)| (daemon, connected(all))).collect();
        Self { kind, reported, seen: BTreeSet::new() }
    }

    /// Takes the processes that are there now, with an entry for each existing daemon, and returns the changes to report. Unless the
    /// search `is_complete`, processes that were not found may still be there.
    pub fn observe(&mut self, now: &BTreeMap<DaemonName, Vec<I>>, is_complete: bool) -> Vec<DomainEvent> {
        let kind = self.kind;
        let all = now.values().flatten().map(|one| (kind.process)(one).0).collect();
        let seen = std::mem::replace(&mut self.seen, all);
        let (mut present, mut processes) = (BTreeMap::new(), BTreeMap::new());
        for (daemon, found) in now {
            let reported = self.reported.known().get(daemon);
            let counts = |one: &&I| {
                let process = (kind.process)(one);
                !kind.is_seen_twice
                    || seen.contains(&process.0)
                    || reported.is_some_and(|known| known.contains(&process))
            };
            let found: Vec<I> = found.iter().filter(counts).cloned().collect();
            let here: BTreeSet<Reported> = found.iter().map(kind.process).collect();
            match reported {
                Some(before) if !is_complete && here.is_subset(before) => {
                    processes.insert(daemon.clone(), before.clone());
                }
                _ if !here.is_empty() => drop(processes.insert(daemon.clone(), here)),
                _ => {}
            }
            present.insert(daemon, found);
        }
        let changes = self.reported.observe(processes);
        // The incident of a daemon that is gone ended with it.
        let ended = changes.ended.into_iter().filter(|(daemon, _)| now.contains_key(daemon));
        let ended = ended.map(|(daemon, _)| (kind.ended)(daemon));
        let reported = changes.appeared.into_iter().chain(changes.changed).map(|(daemon, _)| {
            let present = present.remove(&daemon).unwrap_or_default();
            (kind.appeared)(daemon, present)
        });
        ended.chain(reported).collect()
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
    fn twice(
        tracker: &mut IntruderTracker<SocketExposure>,
        pids: &[u32],
        is_complete: bool,
    ) -> Vec<DomainEvent> {
        let mut events = tracker.observe(&having(pids), is_complete);
        events.extend(tracker.observe(&having(pids), is_complete));
        events
    }

    #[test]
    fn each_change_is_reported_once() {
        let mut tracker = IntruderTracker::of(&EXPOSURES, []);
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
        let mut tracker = IntruderTracker::of(&EXPOSURES, []);
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
        let mut tracker = IntruderTracker::of(&FOREIGN_USERS, []);
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
        let mut tracker = IntruderTracker::of(&EXPOSURES, []);
        assert!(tracker.observe(&having(&[]), false).is_empty());
        assert_eq!(kinds(&twice(&mut tracker, &[7, 9], false)), [EventType::ExposureDetected]);
        assert!(tracker.observe(&having(&[9]), false).is_empty());
        assert!(tracker.observe(&having(&[]), false).is_empty());
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }

    #[test]
    fn exposure_without_recorded_process_ends() {
        // An incident keeps a limited number of processes.
        let mut tracker = IntruderTracker::of(&EXPOSURES, [(daemon("gpu0"), BTreeSet::new())]);
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }

    #[test]
    fn exposure_of_an_earlier_manager_ends() {
        let process = ClientId { pid: 7, start_time: 1 };
        let mut tracker = IntruderTracker::of(&EXPOSURES, [(daemon("gpu0"), BTreeSet::from([process]))]);
        assert!(tracker.observe(&having(&[7]), true).is_empty());
        let mut gone = tracker.clone();
        assert!(gone.observe(&BTreeMap::new(), true).is_empty(), "the daemon is deleted");
        assert_eq!(kinds(&tracker.observe(&having(&[]), true)), [EventType::ExposureEnded]);
    }
}
