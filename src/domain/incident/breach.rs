//! Clients that hold more device memory than their limit allows, by what the driver reports.
//!
//! MPS counts a client's context against its limit and NVML may count parts of it otherwise, so the context's share and a margin are
//! added to the limit before anything counts as a breach. And it has to be seen twice in a row: a client that ends is listed a moment longer.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::client::ClientId;
use crate::domain::event::{DomainEvent, MemoryBreach};
use crate::domain::memory::MIB;
use crate::domain::resolution::context_bytes;
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// What a client may hold beyond its limit and its context, in bytes.
pub const MARGIN: u64 = 64 * MIB;
/// How many readings in a row have to show a breach.
const READINGS: u8 = 2;

/// What a client holds on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryUse {
    /// Its daemon.
    pub daemon: DaemonName,
    /// The client.
    pub client: ClientId,
    /// Its tenant, where that is known.
    pub tenant: Option<TenantName>,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The SMs of that GPU.
    pub sms: u32,
    /// What it holds, in bytes.
    pub used: u64,
    /// Its limit in bytes.
    pub limit: u64,
}

impl MemoryUse {
    /// Whether it is more than the limit, the largest context and the margin allow together.
    pub fn is_breach(&self) -> bool {
        self.used > self.limit.saturating_add(context_bytes(self.sms)).saturating_add(MARGIN)
    }
}

/// Which clients are beyond their limits.
#[derive(Debug, Default)]
pub struct BreachTracker {
    /// How often in a row each was seen beyond its limit.
    suspected: BTreeMap<(ClientId, GpuUuid), u8>,
    /// Those that an event reports.
    reported: BTreeMap<(ClientId, GpuUuid), MemoryBreach>,
}

impl BreachTracker {
    /// One that knows of breaches that an earlier manager reported.
    pub fn with(reported: impl IntoIterator<Item = MemoryBreach>) -> Self {
        let reported = reported.into_iter().map(|breach| ((breach.client, breach.gpu.clone()), breach));
        Self { suspected: BTreeMap::new(), reported: reported.collect() }
    }

    /// Takes what every client holds now; gives what there is to report.
    pub fn observe(&mut self, uses: &[MemoryUse]) -> Vec<DomainEvent> {
        let over: Vec<&MemoryUse> = uses.iter().filter(|one| one.is_breach()).collect();
        let keys: BTreeSet<(ClientId, GpuUuid)> =
            over.iter().map(|one| (one.client, one.gpu.clone())).collect();
        let mut events = Vec::new();
        let ended = |key: &(ClientId, GpuUuid)| !keys.contains(key);
        for key in self.reported.keys().filter(|key| ended(key)).cloned().collect::<Vec<_>>() {
            events.extend(self.reported.remove(&key).map(DomainEvent::BreachEnded));
        }
        self.suspected.retain(|key, _| keys.contains(key));
        for one in over {
            let key = (one.client, one.gpu.clone());
            if self.reported.contains_key(&key) {
                continue;
            }
            let seen = self.suspected.entry(key.clone()).or_default();
            *seen = seen.saturating_add(1);
            if *seen >= READINGS {
                self.suspected.remove(&key);
                let breach = MemoryBreach {
                    daemon: one.daemon.clone(),
                    client: one.client,
                    tenant: one.tenant.clone(),
                    gpu: one.gpu.clone(),
                    used: one.used,
                    limit: one.limit,
                };
                self.reported.insert(key, breach.clone());
                events.push(DomainEvent::BreachDetected(breach));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::EventType;

    fn held(mib: u64) -> MemoryUse {
        MemoryUse {
            daemon: DaemonName::parse("gpu0").expect("a name"),
            client: ClientId { pid: 7, start_time: 1 },
            tenant: None,
            gpu: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid"),
            sms: 132,
            used: mib * MIB,
            limit: 1024 * MIB,
        }
    }

    fn kinds(events: &[DomainEvent]) -> Vec<EventType> {
        events.iter().map(DomainEvent::kind).collect()
    }

    #[test]
    fn limit_context_and_margin_are_no_breach() {
        let context = context_bytes(132) / MIB;
        assert!((510..525).contains(&context), "{context} MiB, as NVML shows for an H200");
        assert!(!held(1024 + context + 64).is_breach());
        assert!(held(1024 + context + 66).is_breach());
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
