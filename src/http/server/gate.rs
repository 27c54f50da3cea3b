//! Who may connect: so many at once, and so many of one address.

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

/// Why a connection is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// There are as many as there may be.
    Full,
    /// There are as many of this address as there may be.
    OfAddress,
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
    of: HashMap<Network, usize>,
}

/// The place of a connection, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    gate: Arc<Gate>,
    network: Option<Network>,
}

impl Gate {
    pub(super) fn new(all: u32, of_one: u32) -> Arc<Self> {
        let count = |value| usize::try_from(value).unwrap_or(usize::MAX);
        Arc::new(Self { all: count(all), of_one: count(of_one), open: Mutex::default() })
    }

    /// Takes a place; a connection of no network counts among all only.
    pub(super) fn enter(self: &Arc<Self>, network: Option<Network>) -> Result<Place, Refused> {
        let mut open = self.open();
        if let Some(network) = network {
            // An address that holds too many is told so even when the gate is full.
            if open.of.get(&network).is_some_and(|of_it| *of_it >= self.of_one) {
                return Err(Refused::OfAddress);
            }
        }
        if open.all >= self.all {
            return Err(Refused::Full);
        }
        open.all += 1;
        if let Some(network) = network {
            *open.of.entry(network).or_default() += 1;
        }
        drop(open);
        Ok(Place { gate: Arc::clone(self), network })
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
        if let Some(network) = self.network
            && let Some(of_it) = open.of.get_mut(&network)
        {
            *of_it -= 1;
            if *of_it == 0 {
                open.of.remove(&network);
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
        let (one, other) = (Some(network("192.0.2.1")), Some(network("192.0.2.2")));
        let places = [gate.enter(one).expect("free"), gate.enter(one).expect("free")];
        assert_eq!(gate.enter(one).expect_err("two of it"), Refused::OfAddress);
        let last = gate.enter(other).expect("free");
        assert_eq!(gate.enter(Some(network("192.0.2.3"))).expect_err("three"), Refused::Full);
        assert_eq!(gate.enter(None).expect_err("three"), Refused::Full);
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
