//! Who may connect: so many at once, and so many of one address or user.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An IPv4 address, or the /64 that an IPv6 address is in: whoever has one address of it has all.
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

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Whom {
    /// Over TCP: everybody there.
    Network(Network),
    /// On the unix socket: this user, or all whom the kernel does not name.
    User(Option<u32>),
}

/// Why a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// There are as many as there may be.
    Full,
    /// There are as many of this address or user as there may be.
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
    of: HashMap<Whom, usize>,
}

/// The place of a connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    whom: Whom,
}

impl Gate {
    pub(super) fn new(all: u32, of_one: u32) -> Arc<Self> {
        let count = |value| usize::try_from(value).unwrap_or(usize::MAX);
        Arc::new(Self { all: count(all), of_one: count(of_one), open: Mutex::default() })
    }

    /// Takes a place.
    pub(super) fn enter(self: &Arc<Self>, whom: Whom) -> Result<Place, Refused> {
        let mut open = self.open();
        // Who holds too many is told so even when the gate is full.
        if open.of.get(&whom).is_some_and(|of_one| *of_one >= self.of_one) {
            return Err(Refused::OfOne);
        }
        if open.all >= self.all {
            return Err(Refused::Full);
        }
        open.all += 1;
        *open.of.entry(whom).or_default() += 1;
        drop(open);
        Ok(Place { gate: Arc::clone(self), whom })
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Nothing in here can panic between two of its counts.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.gate.open();
        open.all -= 1;
        if let Some(of_one) = open.of.get_mut(&self.whom) {
            *of_one -= 1;
            if *of_one == 0 {
                open.of.remove(&self.whom);
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
    fn one_address_cannot_take_the_places_of_all() {
        let gate = Gate::new(3, 2);
        let [one, other, third] =
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|address| Whom::Network(network(address)));
        let places = [gate.enter(one).expect("free"), gate.enter(one).expect("free")];
        assert_eq!(gate.enter(one).expect_err("two of it"), Refused::OfOne);
        let last = gate.enter(other).expect("free");
        assert_eq!(gate.enter(third).expect_err("three"), Refused::Full);
        assert_eq!(gate.enter(Whom::User(Some(0))).expect_err("three"), Refused::Full);
        drop(places);
        drop(last);
        assert!(gate.open().of.is_empty(), "nothing is kept of an address without a connection");
        assert_eq!(gate.open().all, 0);
        gate.enter(one).expect("free again");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one_and_a_mapped_address_is_its_own() {
        assert_eq!(network("2001:db8:0:1::1"), network("2001:db8:0:1:ffff::2"));
        assert_ne!(network("2001:db8:0:1::1"), network("2001:db8:0:2::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
    }
}
