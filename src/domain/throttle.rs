//! How many failed authentications are answered at once, and how often a caller may log in.
//!
//! Only failures are throttled: a valid secret is accepted however many failed beside it, so that no caller can lock
//! another out. A secret of 256 random bits needs no lock; throttling only reduces noise.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;

/// Failures of one source that are answered at once.
const BURST: u32 = 10;
/// After that, one in this time, in milliseconds.
const EVERY_MS: i64 = 6_000;
/// The same for all sources together.
const BURST_OF_ALL: u32 = 200;
/// After that, one in this time, in milliseconds.
const EVERY_MS_OF_ALL: i64 = 100;
/// The sources that are tracked at a time: this bounds their memory.
const SOURCES: usize = 1024;

/// The source of a failure, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A host, by its address; of IPv6, by the network of 64 bits that a host commonly has to itself.
    Host(IpAddr),
    /// A user of this host, through the unix socket.
    User(Option<u32>),
}

impl Source {
    /// The source of an address.
    pub fn of(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::from((u128::from(address) >> 64 << 64).to_be_bytes()),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// Whether an attempt is throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// It is answered.
    No,
    /// It is refused, and may be tried again after so many milliseconds.
    For(i64),
}

/// A bucket that holds so many attempts and empties with time.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    /// When it will be empty.
    empty_at: i64,
}

impl Bucket {
    /// Counts an attempt, if there is room.
    fn take(&mut self, now: i64, burst: u32, every: i64) -> Held {
        let from = self.empty_at.max(now);
        let over = from + every - now - i64::from(burst) * every;
        if over > 0 {
            return Held::For(over);
        }
        self.empty_at = from + every;
        Held::No
    }
}

/// Buckets of the tracked sources: each holds so many, and empties by one in a time.
#[derive(Debug)]
pub struct Buckets<K> {
    burst: u32,
    every_ms: i64,
    kept: HashMap<K, Bucket>,
}

impl<K: Clone + Eq + Hash> Buckets<K> {
    /// Empty ones that hold `burst`, and then one more in every `every_ms` milliseconds.
    pub fn new(burst: u32, every_ms: i64) -> Self {
        Self { burst, every_ms, kept: HashMap::new() }
    }

    /// Counts an attempt, if there is room.
    pub fn take(&mut self, key: K, now: i64) -> Held {
        if self.kept.len() >= SOURCES && !self.kept.contains_key(&key) {
            self.make_room(now);
        }
        let bucket = self.kept.entry(key).or_insert(Bucket { empty_at: i64::MIN });
        bucket.take(now, self.burst, self.every_ms)
    }

    /// Forgets those whose buckets are long empty, or else the one that is empty first.
    fn make_room(&mut self, now: i64) {
        self.kept.retain(|_, bucket| bucket.empty_at > now);
        if self.kept.len() < SOURCES {
            return;
        }
        let oldest = self.kept.iter().min_by_key(|(_, bucket)| bucket.empty_at);
        if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
            self.kept.remove(&oldest);
        }
    }
}

/// The recent failures.
#[derive(Debug)]
pub struct Throttle {
    sources: Buckets<Source>,
    all: Bucket,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { sources: Buckets::new(BURST, EVERY_MS), all: Bucket { empty_at: i64::MIN } }
    }
}

impl Throttle {
    /// Counts a failure, and says whether it is answered.
    pub fn failed(&mut self, source: Source, now: i64) -> Held {
        match self.sources.take(source, now) {
            Held::No => self.all.take(now, BURST_OF_ALL, EVERY_MS_OF_ALL),
            held @ Held::For(_) => held,
        }
    }

    /// How many sources are remembered.
    pub fn sources(&self) -> usize {
        self.sources.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(last: u8) -> Source {
        Source::of(IpAddr::from([192, 0, 2, last]))
    }

    #[test]
    fn failures_beyond_the_burst_are_delayed() {
        let mut throttle = Throttle::default();
        for _ in 0..BURST {
            assert_eq!(throttle.failed(host(1), 1_000), Held::No);
        }
        assert_eq!(throttle.failed(host(1), 1_000), Held::For(EVERY_MS));
        assert_eq!(throttle.failed(host(1), 1_000 + EVERY_MS - 1), Held::For(1));
        assert_eq!(throttle.failed(host(1), 1_000 + EVERY_MS), Held::No);
        assert_eq!(throttle.failed(host(1), 1_000 + EVERY_MS), Held::For(EVERY_MS));
        // Another host is another matter, and so is this one when all is over.
        assert_eq!(throttle.failed(host(2), 1_000), Held::No);
        let later = 1_000 + EVERY_MS * i64::from(BURST + 2);
        assert_eq!(throttle.failed(host(1), later), Held::No);
    }

    #[test]
    fn throttle_memory_is_bounded_for_many_sources() {
        let mut throttle = Throttle::default();
        let mut held = 0;
        for number in 0..10_000_u32 {
            let source = Source::of(IpAddr::from(number.to_be_bytes()));
            held += u32::from(throttle.failed(source, 1_000) != Held::No);
        }
        assert_eq!(throttle.sources(), SOURCES);
        assert_eq!(held, 10_000 - BURST_OF_ALL, "all together are held back, too");
    }

    #[test]
    fn ipv6_network_is_one_throttle_source() {
        let source = |text: &str| Source::of(text.parse().expect("an address"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:2"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:192.0.2.1"), host(1));
    }
}
