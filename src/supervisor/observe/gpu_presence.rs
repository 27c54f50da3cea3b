//! Which GPUs are here: polled in one place for all daemons, and what it means for one of them.

use std::collections::{BTreeMap, BTreeSet};

use tokio::sync::watch;

use crate::domain::GpuUuid;
use crate::domain::condition::ConditionReason;
use crate::domain::gpu::Gpu;
use crate::domain::plan::Desired;
use crate::supervisor::reconcile::daemon::Blocker;

/// The GPUs that the driver listed last, and whether each is in MIG mode; empty of meaning before the first list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuPresence {
    mig: Option<BTreeMap<GpuUuid, bool>>,
}

impl GpuPresence {
    /// What the driver lists now.
    pub fn of(gpus: &[Gpu]) -> Self {
        let listed = gpus.iter().filter(|gpu| gpu.present);
        Self { mig: Some(listed.map(|gpu| (gpu.uuid.clone(), gpu.mig_enabled)).collect()) }
    }

    /// The GPUs that the driver listed; `None` before its first list.
    pub fn present(&self) -> Option<BTreeSet<GpuUuid>> {
        self.mig.as_ref().map(|listed| listed.keys().cloned().collect())
    }

    /// Sends all drivers what the driver lists now, if it is another list.
    pub fn publish_to(self, drivers: &watch::Sender<Self>) {
        drivers.send_if_modified(|known| {
            let changed = *known != self;
            *known = self;
            changed
        });
    }

    /// What of this keeps a daemon from its GPUs.
    pub(crate) fn blocker(&self, desired: &Desired) -> Option<Blocker> {
        let mig = self.mig.as_ref()?;
        desired.gpus.iter().find_map(|uuid| match mig.get(uuid) {
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
                    "{uuid} is in MIG mode, which this manager lists and does not manage: switch MIG mode off \
                     (nvidia-smi -mig 0), or change the daemon's gpus"
                ),
            }),
            Some(false) => None,
        })
    }
}
