//! Reasons why a daemon cannot be read or used.

use crate::domain::condition::ConditionReason;

/// Problem that keeps a daemon from being read, run or handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocker {
    /// Reason in one word, for example `ForeignDaemon`.
    pub reason: ConditionReason,
    /// Sentence with the remedy.
    pub message: String,
}

impl std::fmt::Display for Blocker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl Blocker {
    /// Creates a blocker for facts that contradict each other, so that nothing is touched.
    pub fn doubtful(message: String) -> Self {
        Self { reason: ConditionReason::DoubtfulProcess, message }
    }

    /// Returns true if it stays until an operator acts; a shortage or a busy daemon may pass by itself.
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
                | ConditionReason::PartitionsInterfered
                | ConditionReason::ProgramsOfAnotherDriver
                | ConditionReason::ShapeDiffers
                | ConditionReason::StaticModeUnsupported
                | ConditionReason::MlopartUnsupported
                | ConditionReason::MultiUserUnsupported
        )
    }
}
