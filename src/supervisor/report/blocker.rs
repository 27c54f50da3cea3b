//! What blocks a daemon.

use crate::domain::condition::ConditionReason;

/// A condition that blocks a daemon and that the manager does not touch by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// One word, as `ForeignDaemon`.
    pub reason: ConditionReason,
    /// A sentence with the remedy.
    pub message: String,
}

impl Blocker {
    /// Two things that should agree do not, so nothing is touched.
    pub fn doubtful(message: String) -> Self {
        Self { reason: ConditionReason::DoubtfulProcess, message }
    }

    /// Whether it stays until an operator acts; a shortage or a busy daemon may pass by itself.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self.reason,
            ConditionReason::DirectoryUnusable
                | ConditionReason::DoubtfulProcess
                | ConditionReason::ForeignDaemon
                | ConditionReason::GpuMissing
                | ConditionReason::GpuSharedWithForeignDaemon
                | ConditionReason::LayoutBlocked
                | ConditionReason::MigEnabled
                | ConditionReason::PartitionIdDiffers
                | ConditionReason::PartitionNotMade
                | ConditionReason::PartitionNotProven
                | ConditionReason::PartitionsInterfered
                | ConditionReason::ProgramsOfAnotherDriver
                | ConditionReason::ShapeDiffers
                | ConditionReason::StaticModeUnsupported
                | ConditionReason::MultiUserUnsupported
        )
    }
}
