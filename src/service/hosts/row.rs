//! Hosts beside each other, as they were read last.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

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

/// The last reading of the other hosts.
#[derive(Debug, Default)]
pub(in crate::service) struct OtherHosts(Mutex<Option<(Instant, Vec<HostState>)>>);

impl OtherHosts {
    /// Forgets the reading, after something was changed.
    pub(super) async fn forget(&self) {
        *self.0.lock().await = None;
    }

    /// Returns the reading, which is made again where it is too old: by one caller, while the others wait for it.
    pub(super) async fn read<E>(
        &self,
        again: impl Future<Output = Result<Vec<HostState>, E>>,
    ) -> Result<Vec<HostState>, E> {
        let mut kept = self.0.lock().await;
        if let Some((_, rows)) = kept.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
            return Ok(rows.clone());
        }
        let rows = again.await?;
        *kept = Some((Instant::now(), rows.clone()));
        Ok(rows)
    }
}
