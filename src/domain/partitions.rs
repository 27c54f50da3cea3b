//! The static SM partitions that a daemon lists.

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::{GpuUuid, PartitionId};

/// What `lspart` lists of one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuPartitions {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Chunks that a new partition could have.
    pub free_chunks: u32,
    /// Chunks in partitions.
    pub used_chunks: u32,
    /// SMs outside partitions, those that make no whole chunk included.
    pub free_sms: u32,
    /// SMs in partitions.
    pub used_sms: u32,
    /// Its partitions, in the daemon's order.
    pub partitions: Vec<ListedPartition>,
}

/// A partition as the daemon lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ListedPartition {
    /// Its ID.
    pub id: PartitionId,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs, which may be more than its chunks make: the left-over ones go somewhere.
    pub sms: u32,
    /// Whether a client uses it, by the daemon's word; `null` where it does not say.
    pub in_use: Option<bool>,
    /// The clients whose environment names it. They and `in_use` come from different places and may disagree.
    #[schema(value_type = Vec<String>)]
    pub clients: Vec<ClientId>,
}

impl ListedPartition {
    /// Whether a removal would be refused, or might be.
    pub fn is_held(&self) -> bool {
        self.in_use.unwrap_or(!self.clients.is_empty())
    }
}

impl GpuPartitions {
    /// The partition of that ID.
    pub fn get(&self, id: &PartitionId) -> Option<&ListedPartition> {
        self.partitions.iter().find(|partition| partition.id == *id)
    }
}
