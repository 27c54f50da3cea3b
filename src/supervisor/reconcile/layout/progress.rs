//! Progress of a layout on a daemon, and its next step.

use crate::domain::layout::execution::LayoutFailureCause;
use crate::domain::layout::plan::Plan;
use crate::domain::layout::record::PartitionDrift;

/// Progress of a layout.
#[derive(Debug, Clone, PartialEq)]
pub enum LayoutProgress {
    /// Nothing is left to do.
    Complete,
    /// It was complete, and others have made or removed partitions since, which stays. If the policy demands a repair, the
    /// reason why there is none is given.
    Drifted(Vec<PartitionDrift>, Option<String>),
    /// Nothing can be done yet: the daemon was not read, or the desired layout is new.
    Waiting,
    /// Its partitions have to be made by this plan.
    Due(Box<Plan>),
    /// The end of the last run has to be written down first.
    Unwritten,
    /// Something blocks it.
    Refused(LayoutFailureCause),
    /// It failed, and is not tried again by itself.
    Failed,
}

impl LayoutProgress {
    /// Returns true if everything possible was done: drift is reported and left.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::Drifted(..))
    }
}

/// Next step for a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutAction {
    /// Make its partitions.
    Partition,
    /// Write down that the last run has ended.
    Record,
}
