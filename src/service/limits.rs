//! Limits on callers: on the rate of their actions, and on the number of things that they may have at once.
//!
//! Invariant: the memory that a limit takes is bounded, and one caller never uses up the share of others.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::StateStore;
use governor::{Quota, RateLimiter};

use crate::domain::audit::AuditOutcome;

/// Maximum number of keys that a rate tracks at a time.
const KEYS: usize = 1024;

/// Source of a request or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallerSource {
    /// An IPv4 address, or the /64 of an IPv6 address, which belongs to one owner.
    Network(IpAddr),
    /// A user of this host on the unix socket, or all that the kernel does not identify.
    User(Option<u32>),
}

impl From<IpAddr> for CallerSource {
    fn from(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((v6.to_bits() >> 64 << 64).into()),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// A limit on the rate of an action with each key: a burst at once, and then one in every period (GCRA, by `governor`).
#[derive(Debug)]
pub struct Rate<K: Clone + Eq + Hash, C: Clock = DefaultClock> {
    limiter: RateLimiter<K, BoundedStates<K>, C, NoOpMiddleware<C::Instant>>,
}

impl<K: Clone + Eq + Hash, C: Clock + Default> Rate<K, C> {
    /// A rate that nothing has used yet.
    pub fn new(burst: u32, period: Duration) -> Self {
        Self::timed_by(C::default(), burst, period)
    }
}

impl<K: Clone + Eq + Hash, C: Clock> Rate<K, C> {
    fn timed_by(clock: C, burst: u32, period: Duration) -> Self {
        let burst = NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN);
        let quota = Quota::with_period(period).expect("no limit has a period of 0").allow_burst(burst);
        Self { limiter: RateLimiter::new(quota, BoundedStates(Mutex::default()), clock) }
    }

    /// Counts one use of a key; beyond the rate, returns the time until the next one is allowed.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        self.limiter.check_key(key).map_err(|until| until.wait_time_from(self.limiter.clock().now()))
    }
}

/// The time at which the burst of each tracked key is whole again.
#[derive(Debug)]
struct BoundedStates<K>(Mutex<HashMap<K, Nanos>>);

impl<K> BoundedStates<K> {
    fn keys(&self) -> MutexGuard<'_, HashMap<K, Nanos>> {
        // A panic leaves the map as it was before or after one insertion, which is consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Clone + Eq + Hash> StateStore for BoundedStates<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        let mut keys = self.keys();
        let (outcome, whole_at) = measure(keys.get(key).copied())?;
        if keys.len() >= KEYS && !keys.contains_key(key) {
            // The one that used least of its burst loses least.
            let least = keys.iter().min_by_key(|(_, whole_at)| **whole_at).map(|(key, _)| key.clone());
            least.map(|least| keys.remove(&least));
        }
        keys.insert(key.clone(), whole_at);
        Ok(outcome)
    }
}

/// A limit on the rate at which failed attempts to show a secret are answered: of one source, and of all sources together.
///
/// A valid secret is accepted whatever the number of failures beside it, so that no caller can lock another out. A secret of 256 random
/// bits needs no lock; the limit is against noise.
#[derive(Debug)]
pub struct FailureRate<C: Clock = DefaultClock> {
    by_source: Rate<CallerSource, C>,
    all: Rate<(), C>,
}

impl<C: Clock + Default> Default for FailureRate<C> {
    fn default() -> Self {
        Self {
            by_source: Rate::new(10, Duration::from_secs(6)),
            all: Rate::new(200, Duration::from_millis(100)),
        }
    }
}

impl<C: Clock> FailureRate<C> {
    /// Counts a failure of a source; beyond the rate, returns the time until the next one is answered.
    pub fn take(&self, source: CallerSource) -> Result<(), Duration> {
        self.by_source.take(&source).and_then(|()| self.all.take(&()))
    }
}

/// A time to wait as whole seconds, and never 0: an immediate retry would be refused again.
pub fn whole_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis().div_ceil(1000).max(1)).unwrap_or(u32::MAX)
}

/// A limit on the number in use at once: in total, and by each owner.
#[derive(Debug)]
pub struct Slots<K> {
    total: usize,
    share: usize,
    taken: Mutex<SlotCounts<K>>,
}

#[derive(Debug)]
struct SlotCounts<K> {
    total: usize,
    by_owner: HashMap<K, usize>,
}

/// Reason why no slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotsTaken {
    /// All are in use.
    All,
    /// The owner has its share.
    Share,
}

/// A slot, freed when dropped.
#[derive(Debug)]
pub struct Slot<K: Eq + Hash> {
    slots: Arc<Slots<K>>,
    owner: K,
}

impl<K: Clone + Eq + Hash> Slots<K> {
    /// `total` slots, of which one owner may have `share`.
    pub fn new(total: usize, share: usize) -> Arc<Self> {
        let taken = SlotCounts { total: 0, by_owner: HashMap::new() };
        Arc::new(Self { total, share, taken: Mutex::new(taken) })
    }

    /// The most that one owner may have.
    pub fn share(&self) -> usize {
        self.share
    }

    /// Takes a slot for an owner.
    pub fn take(self: &Arc<Self>, owner: K) -> Result<Slot<K>, SlotsTaken> {
        let mut taken = self.taken();
        // The share is reported even if all are in use too: the owner can free its own.
        if taken.by_owner.get(&owner).is_some_and(|count| *count >= self.share) {
            return Err(SlotsTaken::Share);
        }
        if taken.total >= self.total {
            return Err(SlotsTaken::All);
        }
        taken.total += 1;
        *taken.by_owner.entry(owner.clone()).or_default() += 1;
        drop(taken);
        Ok(Slot { slots: Arc::clone(self), owner })
    }
}

impl<K> Slots<K> {
    fn taken(&self) -> MutexGuard<'_, SlotCounts<K>> {
        // Nothing can panic between these counts.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        taken.total -= 1;
        if let Some(count) = taken.by_owner.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                taken.by_owner.remove(&self.owner);
            }
        }
    }
}

/// Limits on the rows of refused and failed attempts.
#[derive(Debug)]
pub(super) struct RefusalRows {
    /// Of an actor: refusals leave room for failures.
    pub(super) by_actor: Rate<(String, AuditOutcome)>,
    /// Of a source of callers without valid credentials.
    pub(super) by_source: Rate<CallerSource>,
    /// Of all those sources together: a few of them cannot hide the others.
    pub(super) of_strangers: Rate<()>,
}

impl Default for RefusalRows {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self {
            by_actor: Rate::new(60, minute),
            by_source: Rate::new(10, 6 * minute),
            of_strangers: Rate::new(600, minute / 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    const BURST: u32 = 10;
    const PERIOD: Duration = Duration::from_secs(6);

    fn rate() -> (FakeRelativeClock, Rate<CallerSource, FakeRelativeClock>) {
        let clock = FakeRelativeClock::default();
        (clock.clone(), Rate::timed_by(clock, BURST, PERIOD))
    }

    fn source(text: &str) -> CallerSource {
        text.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn uses_beyond_the_burst_are_refused() {
        let (clock, rate) = rate();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(source);
        for _ in 0..BURST {
            assert_eq!(rate.take(&one), Ok(()));
        }
        assert_eq!(rate.take(&one), Err(PERIOD));
        clock.advance(PERIOD.checked_sub(Duration::from_millis(1)).expect("longer"));
        assert_eq!(rate.take(&one), Err(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert_eq!(rate.take(&one), Ok(()));
        assert_eq!(rate.take(&one), Err(PERIOD));
        // Another source is another matter, and so is this one when all is over.
        assert_eq!(rate.take(&other), Ok(()));
        clock.advance(PERIOD * (BURST + 1));
        for _ in 0..BURST {
            assert_eq!(rate.take(&one), Ok(()));
        }
    }

    #[test]
    fn rate_memory_is_bounded_for_many_sources() {
        let (_, rate) = rate();
        let busy = source("203.0.113.1");
        let mut refused = 0;
        for number in 0..10_000_u32 {
            assert_eq!(rate.take(&IpAddr::from(number.to_be_bytes()).into()), Ok(()));
            refused += u32::from(rate.take(&busy).is_err());
        }
        assert_eq!(rate.limiter.into_state_store().keys().len(), KEYS);
        assert_eq!(refused, 10_000 - BURST, "the one that used most is not dropped for the others");
    }

    #[test]
    fn failures_of_many_sources_are_limited_together() {
        let rate = FailureRate::<FakeRelativeClock>::default();
        let refused =
            (0..10_000_u32).filter(|number| rate.take(IpAddr::from(number.to_be_bytes()).into()).is_err());
        assert_eq!(refused.count(), 10_000 - 200);
    }

    #[test]
    fn ipv6_network_is_one_source() {
        assert_eq!(source("2001:db8:0:1::1"), source("2001:db8:0:1:ffff::2"));
        assert_ne!(source("2001:db8:0:1::1"), source("2001:db8:0:2::1"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }

    #[test]
    fn one_owner_cannot_take_all_slots() {
        let slots = Slots::new(3, 2);
        let held = [slots.take("one").expect("free"), slots.take("one").expect("free")];
        assert_eq!(slots.take("one").expect_err("two of it"), SlotsTaken::Share);
        let last = slots.take("other").expect("free");
        assert_eq!(slots.take("third").expect_err("three"), SlotsTaken::All);
        assert_eq!(slots.take("one").expect_err("its share, too"), SlotsTaken::Share);
        drop(held);
        drop(last);
        assert!(slots.taken().by_owner.is_empty(), "owners without a slot are dropped");
        assert_eq!(slots.taken().total, 0);
        slots.take("one").expect("free again");
    }
}
