//! What stands in the way of a daemon.

/// Something that stands in the way and that the manager does not touch by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// One word, as `ForeignDaemon`.
    pub reason: &'static str,
    /// A sentence with the remedy.
    pub message: String,
}

impl Obstacle {
    /// Whether it is there until somebody does something about it; what is short or busy may pass by itself.
    pub fn takes_a_hand(&self) -> bool {
        matches!(
            self.reason,
            "DirectoryUnusable"
                | "DoubtfulProcess"
                | "ForeignDaemon"
                | "GpuMissing"
                | "GpuSharedWithForeignDaemon"
                | "LayoutBlocked"
                | "MigEnabled"
                | "PartitionIdDiffers"
                | "PartitionNotMade"
                | "PartitionNotProven"
                | "PartitionsInterfered"
                | "ServesOtherwise"
                | "StaticModeUnsupported"
        )
    }
}
