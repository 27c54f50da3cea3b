//! Finds processes that newly have a daemon's own directory mounted, and that none has it any longer. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::DaemonName;
use crate::domain::client::ClientId;
use crate::domain::event::DomainEvent;
use crate::domain::exposure::SocketExposure;

/// Who is reported, by daemon.
#[derive(Debug, Clone, Default)]
pub struct ExposureTracker {
    reported: BTreeMap<DaemonName, BTreeSet<ClientId>>,
}

impl ExposureTracker {
    /// One that knows of those that an earlier manager reported.
    pub fn with(reported: impl IntoIterator<Item = (DaemonName, BTreeSet<ClientId>)>) -> Self {
        Self { reported: reported.into_iter().collect() }
    }

    /// Takes who has which daemon's directory now, with each daemon that there is; gives what there is to say of it.
    pub fn observe(&mut self, now: &BTreeMap<DaemonName, Vec<SocketExposure>>) -> Vec<DomainEvent> {
        // The incident of a daemon that is gone ended with it.
        self.reported.retain(|daemon, _| now.contains_key(daemon));
        let mut events = Vec::new();
        for (daemon, present) in now {
            if present.is_empty() {
                if self.reported.remove(daemon).is_some() {
                    events.push(DomainEvent::ExposureEnded { daemon: daemon.clone() });
                }
                continue;
            }
            let processes: BTreeSet<ClientId> = present.iter().map(|one| one.process).collect();
            let before = self.reported.insert(daemon.clone(), processes.clone()).unwrap_or_default();
            if !processes.is_subset(&before) {
                let (daemon, present) = (daemon.clone(), present.clone());
                events.push(DomainEvent::ExposureDetected { daemon, present });
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::EventType;

    fn daemon(name: &str) -> DaemonName {
        DaemonName::parse(name).expect("a name")
    }

    /// What processes of these numbers have of gpu0, beside gpu1 of which nobody has anything.
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

    #[test]
    fn each_process_is_reported_once() {
        let mut tracker = ExposureTracker::default();
        assert!(tracker.observe(&having(&[])).is_empty());
        assert_eq!(kinds(&tracker.observe(&having(&[7]))), [EventType::ExposureDetected]);
        assert!(tracker.observe(&having(&[7])).is_empty());
        let events = tracker.observe(&having(&[7, 9]));
        let [DomainEvent::ExposureDetected { present, .. }] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(present.len(), 2, "all that are there");
        assert!(tracker.observe(&having(&[9])).is_empty(), "one is left");
        assert_eq!(kinds(&tracker.observe(&having(&[]))), [EventType::ExposureEnded]);
        assert!(tracker.observe(&having(&[])).is_empty());
    }

    #[test]
    fn exposure_of_an_earlier_manager_ends() {
        let process = ClientId { pid: 7, start_time: 1 };
        let mut tracker = ExposureTracker::with([(daemon("gpu0"), BTreeSet::from([process]))]);
        assert!(tracker.observe(&having(&[7])).is_empty());
        let mut gone = tracker.clone();
        assert!(gone.observe(&BTreeMap::new()).is_empty(), "the daemon is deleted");
        assert_eq!(kinds(&tracker.observe(&having(&[]))), [EventType::ExposureEnded]);
    }
}
