//! The GPUs that are present: polled in one place for all daemons, and checked for each of them.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use crate::domain::GpuUuid;
use crate::domain::condition::ConditionReason;
use crate::domain::gpu::{Gpu, GpuFacts};
use crate::domain::plan::Desired;
use crate::supervisor::blocker::Blocker;

/// GPUs that the driver listed last, with their MIG mode; holds no information before the first list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPresence {
    listed: Option<BTreeMap<GpuUuid, ListedGpu>>,
}

/// Facts about a GPU that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ListedGpu {
    mig: bool,
    facts: GpuFacts,
}

impl GpuPresence {
    /// Takes the GPUs that the driver lists now.
    pub fn of(gpus: &[Gpu]) -> Self {
        let listed = gpus.iter().filter(|gpu| gpu.present);
        let facts = |gpu: &Gpu| ListedGpu { mig: gpu.mig_enabled, facts: GpuFacts::of(gpu) };
        Self { listed: Some(listed.map(|gpu| (gpu.uuid.clone(), facts(gpu))).collect()) }
    }

    /// Returns the GPUs that the driver listed; `None` before its first list.
    pub fn present(&self) -> Option<BTreeSet<GpuUuid>> {
        self.listed.as_ref().map(|listed| listed.keys().cloned().collect())
    }

    /// Returns the PCI addresses of these GPUs, as NVML writes them.
    pub(crate) fn pci_addresses(&self, gpus: &[GpuUuid]) -> Vec<&str> {
        let listed = self.listed.iter().flatten().filter(|(uuid, _)| gpus.contains(uuid));
        listed.filter_map(|(_, gpu)| gpu.facts.pci_bus_id.as_deref()).collect()
    }

    /// Sends this list to all drivers, if it differs from the last one.
    pub fn publish_to(self, drivers: &watch::Sender<Self>) {
        drivers.send_if_modified(|current| {
            let changed = *current != self;
            *current = self;
            changed
        });
    }

    /// Returns the blocker for a daemon if one of its GPUs is missing or in MIG mode.
    pub(crate) fn blocker(&self, desired: &Desired) -> Option<Blocker> {
        let listed = self.listed.as_ref()?;
        desired.gpus.iter().find_map(|uuid| match listed.get(uuid).map(|gpu| gpu.mig) {
            None if uuid.is_mig() => Some(Blocker {
                reason: ConditionReason::GpuMissing,
                message: format!(
                    "MIG instance {uuid} is missing: it was destroyed, its GPU has left MIG mode, or the driver cannot describe it \
                     (nvidia-smi -L lists the instances). Make it again, or put another in its place: \
                     `mps-manager gpu replace {uuid} --with GPU`"
                ),
            }),
            None => Some(Blocker {
                reason: ConditionReason::GpuMissing,
                message: format!(
                    "{uuid} is missing: the driver does not list it, or cannot describe it (nvidia-smi and the kernel's \
                     log say why). Put it back, or put another in its place: `mps-manager gpu replace {uuid} --with GPU`"
                ),
            }),
            Some(true) => Some(Blocker {
                reason: ConditionReason::MigEnabled,
                message: format!(
                    "{uuid} is in MIG mode, where MPS serves its instances and not the whole GPU: change the daemon's gpus to one of its \
                     instances (`mps-manager gpu list`), or switch MIG mode off (nvidia-smi -mig 0)"
                ),
            }),
            Some(false) => None,
        })
    }
}
