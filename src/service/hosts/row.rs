//! Hosts beside each other, as they were read last.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::HostName;
use crate::domain::layout::comparison::HeldLayout;
use crate::domain::saved_host::SavedHost;

/// Time for which readings of other hosts are used again, however many look at them.
const FRESH: Duration = Duration::from_secs(4);

/// A host, and its reading or the reason why it cannot be read.
#[derive(Debug, Clone)]
pub struct HostState {
    /// The saved host; `None` for this one.
    pub saved: Option<SavedHost>,
    /// Its state.
    pub reading: Result<HostReading, String>,
}

/// The state of a host.
#[derive(Debug, Clone)]
pub struct HostReading {
    /// The name of its machine.
    pub hostname: String,
    /// True if it is simulated.
    pub simulated: bool,
    /// The version of its manager.
    pub manager_version: String,
    /// Number of its GPUs.
    pub gpus: usize,
    /// Number of its daemons.
    pub daemons: usize,
    /// Number of its daemons that are ready.
    pub ready_daemons: usize,
    /// Number of open incidents; at most 1000 are counted on another host.
    pub open_incidents: usize,
    /// Number of clients; at most 1000 are counted.
    pub clients: usize,
    /// The layouts of its daemons.
    pub layouts: Vec<HeldLayout>,
}

/// The last readings of the other hosts.
#[derive(Debug, Default)]
pub(in crate::service) struct OtherHosts(Mutex<Readings>);

#[derive(Debug, Default)]
struct Readings {
    /// Number of times that all were forgotten.
    changes: u64,
    hosts: BTreeMap<HostName, (Instant, Result<HostReading, String>)>,
    /// Of each host, the turn to read it.
    turns: BTreeMap<HostName, Arc<tokio::sync::Mutex<()>>>,
}

/// A reading that was made before.
pub(super) struct Kept {
    pub(super) reading: Result<HostReading, String>,
    /// True if it is used as it is.
    pub(super) is_fresh: bool,
}

impl OtherHosts {
    /// Forgets the readings, after something was changed.
    pub(super) fn forget(&self) {
        let mut readings = self.readings();
        *readings = Readings { changes: readings.changes + 1, ..Readings::default() };
    }

    /// Returns the number of times that the readings were forgotten.
    pub(super) fn changes(&self) -> u64 {
        self.readings().changes
    }

    pub(super) fn kept(&self, host: &HostName) -> Option<Kept> {
        let (at, reading) = self.readings().hosts.get(host).cloned()?;
        Some(Kept { reading, is_fresh: at.elapsed() < FRESH })
    }

    /// Keeps a reading, unless the readings were forgotten since it began.
    pub(super) fn keep(&self, host: HostName, since: u64, reading: Result<HostReading, String>) {
        let mut readings = self.readings();
        if readings.changes == since {
            readings.hosts.insert(host, (Instant::now(), reading));
        }
    }

    /// Returns the turn to read a host: one caller reads, and the others wait for it.
    pub(super) fn turn(&self, host: &HostName) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.readings().turns.entry(host.clone()).or_default())
    }

    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
