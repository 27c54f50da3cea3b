//! How far a layout is on a daemon, and what is next.

use crate::domain::ThreadPercentage;
use crate::domain::layout::active::ProvenLayout;
use crate::domain::layout::execution::LayoutFailureCause;
use crate::domain::layout::plan::Plan;
use crate::domain::layout::record::{PartitionDrift, PartitionRun};

/// How far the layout is.
#[derive(Debug, Clone, PartialEq)]
pub enum LayoutProgress {
    /// There is nothing to do.
    Complete,
    /// It was there, and others have made or removed partitions since, which stays; with why it is not repaired where
    /// the policy says that it is to be.
    Drifted(Vec<PartitionDrift>, Option<String>),
    /// Nothing can be done yet: the daemon was not read, or the desired layout is new.
    Waiting,
    /// Its partitions have to be made like this.
    Due(Box<Plan>),
    /// A CUDA client has to probe this percentage.
    ProbeDue(ThreadPercentage),
    /// A CUDA client is probing.
    Probing,
    /// It has to be written down first that the last run has ended.
    Unwritten,
    /// Something blocks it.
    Refused(LayoutFailureCause),
    /// It failed, and is not tried again by itself.
    Failed,
}

impl LayoutProgress {
    /// Whether what could be done was done: what drifted is reported and left.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::Drifted(..))
    }
}

/// What is to be done next for a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayoutAction {
    /// Make its partitions.
    Partition,
    /// Start a CUDA client that probes this percentage.
    Prove(ThreadPercentage),
    /// Write down that the last run has ended.
    Record,
}

/// What outlives the manager of a run that has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum LayoutRecord {
    /// The partitions of the control process.
    Partitions(PartitionRun),
    /// What CUDA clients saw.
    Percentages(ProvenLayout),
}
