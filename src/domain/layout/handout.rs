//! Decides whether a partition may be handed out. No other code decides it; it depends on the daemon's list and the record.
//!
//! The outcome of the last operation on the daemon plays no part. A partition whose ID differs from the recorded one is made of other SMs,
//! so it stays withheld, whatever the reason, until an operator applies another version, whose IDs are then recorded.

use super::ResolvedStep;
use super::record::RecordedStep;
use crate::PartitionId;
use crate::partitions::{GpuPartitions, ListedPartition};

/// The facts about a partition of a layout.
#[derive(Debug, Clone, Copy)]
pub struct PartitionEvidence<'a> {
    /// The step that makes it.
    pub step: &'a ResolvedStep,
    /// The result of that step in the present control process.
    pub made: Option<&'a RecordedStep>,
    /// The recorded ID; `None` where nothing is recorded.
    pub expected: Option<&'a PartitionId>,
    /// Partitions that the daemon lists now.
    pub present: &'a [GpuPartitions],
}

/// Reason for withholding a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Withheld {
    /// The daemon does not list it as the layout made it.
    NotListed,
    /// Nothing is recorded to compare it with.
    NotRecorded,
    /// It has another ID than the recorded one.
    OtherId {
        /// The recorded ID.
        expected: PartitionId,
        /// The ID that it has.
        got: PartitionId,
    },
}

impl std::fmt::Display for Withheld {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotListed => write!(f, "it is not there as the layout made it: apply the layout again"),
            Self::NotRecorded => {
                write!(f, "its ID is not recorded yet: apply the layout again if this stays")
            }
            Self::OtherId { expected, got } => write!(
                f,
                "it has the ID {got}, and {expected} is recorded: apply the layout again with recreate, or a new version of it, \
                 whose IDs are then taken as they come"
            ),
        }
    }
}

/// Returns the partition as it is listed if it may be handed out, or the reason for withholding it.
pub fn may_hand_out<'a>(evidence: &PartitionEvidence<'a>) -> Result<&'a ListedPartition, Withheld> {
    let PartitionEvidence { step, made, expected, present } = *evidence;
    let made = made.filter(|made| made.gpu == step.gpu).ok_or(Withheld::NotListed)?;
    let expected = expected.ok_or(Withheld::NotRecorded)?;
    if *expected != made.id {
        return Err(Withheld::OtherId { expected: expected.clone(), got: made.id.clone() });
    }
    let listed = present.iter().find(|gpu| gpu.gpu == step.gpu).and_then(|gpu| gpu.get(&made.id));
    listed.filter(|listed| listed.chunks == step.chunks).ok_or(Withheld::NotListed)
}
