//! Compute modes that this manager has set, shared by all drivers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::{DaemonName, GpuUuid};

/// Compute modes that this manager has set, as the store has them.
#[derive(Debug, Default)]
pub struct OwnedComputeModes {
    pub(in crate::supervisor) held: Mutex<BTreeMap<GpuUuid, OwnedComputeMode>>,
    pub(in crate::supervisor) turn: tokio::sync::Mutex<()>,
    /// GPUs whose mode this manager has read as desired: one that differs later was changed by another program.
    pub(in crate::supervisor) confirmed: Mutex<BTreeSet<GpuUuid>>,
}

impl OwnedComputeModes {
    /// Loads the modes that the store remembers.
    pub fn load(&self, rows: Vec<(GpuUuid, OwnedComputeMode)>) {
        *self.held() = rows.into_iter().collect();
    }

    /// Returns those of the given GPUs whose mode this manager holds.
    pub fn among(&self, gpus: &[GpuUuid]) -> Vec<GpuUuid> {
        self.held().keys().filter(|gpu| gpus.contains(gpu)).cloned().collect()
    }

    /// Returns the daemons that hold modes.
    pub fn holders(&self) -> BTreeSet<DaemonName> {
        self.held().values().map(|held| held.daemon.clone()).collect()
    }

    /// Notes whether the mode of a GPU is as desired, and returns true if it was noted as desired before.
    pub(in crate::supervisor) fn confirm(&self, gpu: &GpuUuid, is_so: bool) -> bool {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_so { !confirmed.insert(gpu.clone()) } else { confirmed.remove(gpu) }
    }

    pub(in crate::supervisor) fn get(&self, gpu: &GpuUuid) -> Option<OwnedComputeMode> {
        self.held().get(gpu).cloned()
    }

    pub(in crate::supervisor) fn of(&self, daemon: &DaemonName) -> Vec<GpuUuid> {
        self.held().iter().filter(|(_, held)| held.daemon == *daemon).map(|(gpu, _)| gpu.clone()).collect()
    }

    pub(in crate::supervisor) fn held(&self) -> MutexGuard<'_, BTreeMap<GpuUuid, OwnedComputeMode>> {
        // A panic elsewhere leaves the map as it was before or after one insert: both are consistent.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
