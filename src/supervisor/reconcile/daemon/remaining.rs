//! What is left to do for a layout once all settings are right.

use super::{DaemonReconciler, ReconcileStep};
use crate::domain::plan::Desired;
use crate::supervisor::reconcile::partitions;
use crate::supervisor::reconcile::percentage_layout::PercentageLayoutState;

impl DaemonReconciler {
    /// What is left to do for a layout once all settings are right, and when.
    pub(super) fn remaining_step(&self, desired: &Desired) -> Option<(i64, ReconcileStep)> {
        match self.layout_state(desired) {
            partitions::PartitionLayoutState::Due(_) | partitions::PartitionLayoutState::Unwritten => {
                return Some((self.partitioning.retry_at(), ReconcileStep::Partition));
            }
            partitions::PartitionLayoutState::Drifted(..) => {
                if let Some(at) = self.partitioning.repair_postponed_until() {
                    return Some((at.max(self.partitioning.retry_at()), ReconcileStep::Partition));
                }
            }
            _ => {}
        }
        match self.shares.layout_state(desired) {
            // In maintenance no new client is admitted, and this would be one.
            PercentageLayoutState::Due(percentage, at) if desired.maintenance.is_none() => {
                Some((at, ReconcileStep::Prove(percentage)))
            }
            _ => None,
        }
    }
}
