//! Connection limits: in total, and per address or user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An IPv4 address, or the /64 of an IPv6 address, which belongs to one owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => Self(IpAddr::V6((v6.to_bits() >> 64 << 64).into())),
            v4 @ IpAddr::V4(_) => Self(v4),
        }
    }
}

/// The owner by which connections are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ConnectionOwner {
    /// Over TCP, by network.
    Network(Network),
    /// On the unix socket: this user, or all that the kernel does not identify.
    User(Option<u32>),
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The total limit is reached.
    Full,
    /// The limit of this address or user is reached.
    OfOne,
}

/// Counts connections.
#[derive(Debug)]
pub(super) struct Gate {
    all: usize,
    of_one: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    of: HashMap<ConnectionOwner, usize>,
}

/// The slot of a connection, freed when dropped.
#[derive(Debug)]
pub(super) struct ConnectionSlot {
    gate: Arc<Gate>,
    owner: ConnectionOwner,
}

impl Gate {
    pub(super) fn new(all: u32, of_one: u32) -> Arc<Self> {
        let count = |value| usize::try_from(value).unwrap_or(usize::MAX);
        Arc::new(Self { all: count(all), of_one: count(of_one), open: Mutex::default() })
    }

    /// Takes a slot.
    pub(super) fn enter(self: &Arc<Self>, owner: ConnectionOwner) -> Result<ConnectionSlot, Refused> {
        let mut open = self.open();
        // The per-owner limit is reported even if the total is reached too.
        if open.of.get(&owner).is_some_and(|of_one| *of_one >= self.of_one) {
            return Err(Refused::OfOne);
        }
        if open.all >= self.all {
            return Err(Refused::Full);
        }
        open.all += 1;
        *open.of.entry(owner).or_default() += 1;
        drop(open);
        Ok(ConnectionSlot { gate: Arc::clone(self), owner })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing can panic between these counts.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut open = self.gate.open();
        open.all -= 1;
        if let Some(of_one) = open.of.get_mut(&self.owner) {
            *of_one -= 1;
            if *of_one == 0 {
                open.of.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Network {
        text.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn one_address_cannot_take_all_slots() {
        let gate = Gate::new(3, 2);
        let [one, other, third] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|address| ConnectionOwner::Network(network(address)));
        let places = [gate.enter(one).expect("free"), gate.enter(one).expect("free")];
        assert_eq!(gate.enter(one).expect_err("two of it"), Refused::OfOne);
        let last = gate.enter(other).expect("free");
        assert_eq!(gate.enter(third).expect_err("three"), Refused::Full);
        assert_eq!(gate.enter(ConnectionOwner::User(Some(0))).expect_err("three"), Refused::Full);
        drop(places);
        drop(last);
        assert!(gate.open().of.is_empty(), "addresses without connections are dropped");
        assert_eq!(gate.open().all, 0);
        gate.enter(one).expect("free again");
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff::2"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }
}
