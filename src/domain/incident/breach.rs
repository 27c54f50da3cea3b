//! Clients that hold more device memory than their limit allows, by what the driver reports.
//!
//! MPS counts a client's context against its limit and NVML may count parts of it differently, so the context's share and a margin are
//! added to the limit before anything counts as a breach. A breach has to be seen twice in a row, since a client that ends is listed a
//! moment longer.
//!
//! A client keeps the limit that it was started with (FACTS.md, "Limits"), so it is measured by the one that was in force when it was
//! first seen, whatever is written later.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::ClientId;
use crate::edges::Edges;
use crate::event::{DomainEvent, MemoryBreach};
use crate::memory::MIB;
use crate::resolution::context_bytes;
use crate::{DaemonName, GpuUuid, TenantName};

/// Memory that a client may hold beyond its limit and its context, in bytes.
pub const MARGIN: u64 = 64 * MIB;

/// Error of a process's start time, in milliseconds: it may seem earlier than it was, since the kernel states the boot time in whole
/// seconds.
const START_TIME_ERROR_MS: i64 = 2000;

/// Evidence for the limit of a client on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitEvidence {
    /// The limit in force now, in bytes.
    pub present: u64,
    /// Latest time at which the limit may have been changed, in unix milliseconds.
    pub changed_at: i64,
    /// The limit in the environment that the client was started with, in bytes.
    pub environment: Option<u64>,
    /// Time at which the client started, in unix milliseconds.
    pub started_at: i64,
}

impl LimitEvidence {
    /// Returns the limit that the client was started with, in bytes; `None` where nothing says so.
    fn at_start(self) -> Option<u64> {
        if self.started_at > self.changed_at.saturating_add(START_TIME_ERROR_MS) {
            return Some(self.present);
        }
        let is_older = self.started_at.saturating_add(START_TIME_ERROR_MS) < self.changed_at;
        // A client beside a change may have either; its environment is its own word, and better than none.
        self.environment.or((!is_older).then_some(self.present))
    }
}

/// The memory that a client holds on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its daemon.
    pub daemon: DaemonName,
    /// The client.
    pub client: ClientId,
    /// Its tenant, where that is known.
    pub tenant: Option<TenantName>,
    /// Its program, where that is known.
    pub program: Option<String>,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The SMs of that GPU.
    pub sms: u32,
    /// Memory that it holds, in bytes.
    pub used: u64,
    /// Evidence for its limit.
    pub limit: LimitEvidence,
}

impl MemoryUse {
    /// Returns true if the client holds more than this limit, the largest context and the margin allow together.
    fn is_beyond(&self, limit: u64) -> bool {
        self.used > limit.saturating_add(context_bytes(self.sms)).saturating_add(MARGIN)
    }

    /// Returns the breach of this limit.
    fn breach(&self, limit: u64) -> MemoryBreach {
        let Self { daemon, client, tenant, program, gpu, used, .. } = self.clone();
        MemoryBreach { daemon, client, tenant, program, gpu, used, limit }
    }
}

/// Tracks clients that are beyond their limits.
#[derive(Debug, Clone, Default)]
pub struct BreachTracker {
    /// The limit in bytes that each client was started with, where it is known.
    limits: BTreeMap<(ClientId, GpuUuid), u64>,
    /// Clients that the last reading, and none before it, showed beyond their limits.
    suspected: BTreeSet<(ClientId, GpuUuid)>,
    /// Breaches that an event has reported.
    reported: Edges<(ClientId, GpuUuid), MemoryBreach>,
}

impl BreachTracker {
    /// Creates a tracker that knows of breaches that an earlier manager reported.
    pub fn with(reported: impl IntoIterator<Item = MemoryBreach>) -> Self {
        let reported = reported.into_iter().map(|breach| ((breach.client, breach.gpu.clone()), breach));
        Self { reported: reported.collect(), ..Self::default() }
    }

    /// Returns the GPUs on which clients were seen beyond their limits once, which have to be read again.
    pub fn suspected_on(&self) -> BTreeSet<GpuUuid> {
        self.suspected.iter().map(|(_, gpu)| gpu.clone()).collect()
    }

    /// Takes the present memory of every client, and returns the breaches that began or ended.
    pub fn observe(&mut self, uses: &[MemoryUse]) -> Vec<DomainEvent> {
        let (mut limits, mut suspected, mut breaches) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        for one in uses {
            let key = (one.client, one.gpu.clone());
            let reported = self.reported.known().get(&key).cloned();
            let Some(limit) = self.limits.get(&key).copied().or_else(|| one.limit.at_start()) else {
                // What an earlier manager reported stays until it is seen to be over.
                breaches.extend(reported.map(|breach| (key, breach)));
                continue;
            };
            limits.insert(key.clone(), limit);
            if !one.is_beyond(limit) {
                continue;
            }
            let confirmed = reported.or_else(|| self.suspected.contains(&key).then(|| one.breach(limit)));
            match confirmed {
                Some(breach) => drop(breaches.insert(key, breach)),
                None => drop(suspected.insert(key)),
            }
        }
        (self.limits, self.suspected) = (limits, suspected);
        let changes = self.reported.observe(breaches);
        let ended = changes.ended.into_iter().map(|(_, breach)| DomainEvent::BreachEnded(breach));
        ended
            .chain(changes.appeared.into_iter().map(|(_, breach)| DomainEvent::BreachDetected(breach)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventType;

    fn held(mib: u64) -> MemoryUse {
        MemoryUse {
            daemon: DaemonName::parse("gpu0").expect("a name"),
            client: ClientId { pid: 7, start_time: 1 },
            tenant: None,
            program: None,
            gpu: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid"),
            sms: 132,
            used: mib * MIB,
            limit: LimitEvidence {
                present: 1024 * MIB,
                changed_at: 0,
                environment: None,
                started_at: 1_000_000,
            },
        }
    }

    /// Returns the memory of a client whose limit was lowered to 1 GiB after it had started.
    fn lowered(mib: u64, environment: Option<u64>) -> MemoryUse {
        let mut held = held(mib);
        held.limit.changed_at = 2_000_000;
        held.limit.environment = environment.map(|mib| mib * MIB);
        held
    }

    fn kinds(events: &[DomainEvent]) -> Vec<EventType> {
        events.iter().map(DomainEvent::kind).collect()
    }

    #[test]
    fn limit_context_and_margin_are_no_breach() {
        let context = context_bytes(132) / MIB;
        assert!((510..525).contains(&context), "{context} MiB, as NVML shows for an H200");
        assert!(!held(1024 + context + 64).is_beyond(1024 * MIB));
        assert!(held(1024 + context + 66).is_beyond(1024 * MIB));
    }

    #[test]
    fn lowered_limit_accuses_no_running_client() {
        let mut tracker = BreachTracker::default();
        let mut before = held(6500);
        before.limit.present = 8192 * MIB;
        assert!(tracker.observe(&[before]).is_empty());
        for _ in 0..3 {
            assert!(tracker.observe(&[lowered(6500, None)]).is_empty(), "it was seen with 8 GiB");
        }
        // Another manager knows its environment alone, or nothing.
        for environment in [Some(8192), None] {
            let mut next = BreachTracker::default();
            for _ in 0..3 {
                assert!(next.observe(&[lowered(6500, environment)]).is_empty(), "{environment:?}");
            }
        }
    }

    #[test]
    fn raised_limit_excuses_no_running_client() {
        let mut tracker = BreachTracker::default();
        tracker.observe(&[held(512)]);
        let mut raised = lowered(4096, None);
        raised.limit.present = 8192 * MIB;
        tracker.observe(std::slice::from_ref(&raised));
        assert_eq!(kinds(&tracker.observe(&[raised])), [EventType::BreachDetected]);
    }

    #[test]
    fn unknown_limit_ends_no_reported_breach() {
        let mut tracker = BreachTracker::default();
        tracker.observe(&[held(4096)]);
        let events = tracker.observe(&[held(4096)]);
        let [DomainEvent::BreachDetected(breach)] = events.as_slice() else { panic!("{events:?}") };
        let mut next = BreachTracker::with([breach.clone()]);
        assert!(next.observe(&[lowered(4096, None)]).is_empty());
        assert_eq!(kinds(&next.observe(&[])), [EventType::BreachEnded]);
    }

    #[test]
    fn breach_is_reported_once_after_two_readings() {
        let mut tracker = BreachTracker::default();
        assert!(tracker.observe(&[held(4096)]).is_empty(), "a single reading may be a client that ends");
        assert!(tracker.observe(&[held(512)]).is_empty());
        assert!(tracker.observe(&[held(4096)]).is_empty());
        assert_eq!(kinds(&tracker.observe(&[held(4096)])), [EventType::BreachDetected]);
        assert!(tracker.observe(&[held(8192)]).is_empty());
        assert_eq!(kinds(&tracker.observe(&[])), [EventType::BreachEnded]);
        assert!(tracker.observe(&[]).is_empty());
    }

    #[test]
    fn breach_of_an_earlier_manager_ends() {
        let mut tracker = BreachTracker::default();
        tracker.observe(&[held(4096)]);
        let events = tracker.observe(&[held(4096)]);
        let [DomainEvent::BreachDetected(breach)] = events.as_slice() else { panic!("{events:?}") };
        let mut next = BreachTracker::with([breach.clone()]);
        assert!(next.observe(&[held(4096)]).is_empty(), "it is reported already");
        assert_eq!(kinds(&next.observe(&[held(1024)])), [EventType::BreachEnded]);
    }
}
