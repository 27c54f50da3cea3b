//! Blockers of a plan, with messages that state the remedy.

use serde::{Deserialize, Serialize};

use crate::client::ClientId;
use crate::count::counted;
use crate::{GpuUuid, PartitionId, PartitionName, TenantName};

/// A tenant that is bound to a partition and says itself how many SMs it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[error(
    "tenant {tenant} has {field} of its own and is bound to partition {partition}, whose chunks say how many SMs it has: take \
     {field} away from the tenant, or the tenant out of the layout"
)]
pub struct OwnShare {
    /// The tenant.
    pub tenant: TenantName,
    /// The field of its spec.
    pub field: String,
    /// The partition.
    pub partition: PartitionName,
}

/// A blocker of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Blocked {
    /// A step asks for more chunks than there are.
    TooManyChunks {
        /// The step of the layout, counted from 0.
        step: usize,
        /// The partition.
        partition: PartitionName,
        /// The GPU.
        gpu: GpuUuid,
        /// Chunks requested.
        requested: u32,
        /// Chunks free at that step, which is also the most that fits.
        free: u32,
    },
    /// A partition has to go and is in use.
    InUse {
        /// The partition.
        partition: Option<PartitionName>,
        /// The GPU.
        gpu: GpuUuid,
        /// Its ID.
        id: PartitionId,
        /// The clients that hold it, as far as they can be determined.
        clients: Vec<ClientId>,
    },
    /// A partition would have to be made again, which may change its ID; done only with `recreate`.
    MadeAgain {
        /// The partition.
        partition: PartitionName,
        /// The GPU.
        gpu: GpuUuid,
        /// The ID that it has.
        id: PartitionId,
    },
    /// The daemon lists no partitions for a GPU, or its chunks were not counted.
    NotListed {
        /// The GPU.
        gpu: GpuUuid,
    },
    /// A tenant says itself how many SMs it has, and so does its partition.
    OwnShare(OwnShare),
}

impl std::fmt::Display for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooManyChunks { step, partition, gpu, requested, free } => write!(
                f,
                "partition {partition} (step {}) asks for {} of {gpu}, and {} free at that step: give at most {free}",
                step + 1,
                counted(*requested, "chunk"),
                if *free == 1 { "1 is".to_owned() } else { format!("{free} are") },
            ),
            Self::InUse { partition, gpu, id, clients } => {
                let name = partition
                    .as_ref()
                    .map_or_else(|| "a partition".to_owned(), |name| format!("partition {name}"));
                let who: Vec<String> = clients.iter().map(ToString::to_string).collect();
                let who = if who.is_empty() {
                    "clients that cannot be determined".to_owned()
                } else {
                    who.join(", ")
                };
                write!(
                    f,
                    "{name} ({gpu}/{id}) has to be removed and is in use by {who}, connected or admitted: end or terminate them \
                     first"
                )
            }
            Self::MadeAgain { partition, gpu, id } => {
                let remedy =
                    "apply the layout with `mps-manager layout apply LAYOUT --daemon NAME --recreate`";
                f.write_str(&made_again(partition, gpu, id, remedy))
            }
            Self::NotListed { gpu } => write!(f, "the daemon lists no partitions of {gpu}"),
            Self::OwnShare(own) => write!(f, "{own}"),
        }
    }
}

fn made_again(partition: &PartitionName, gpu: &GpuUuid, id: &PartitionId, remedy: &str) -> String {
    format!(
        "partition {partition} ({gpu}/{id}) must be recreated in the layout's order, which may change its ID: stop its clients, \
         then {remedy}"
    )
}

impl Blocked {
    /// Describes the blocker; `recreate` says how partitions are recreated where the message is shown.
    pub fn in_words(&self, recreate: &str) -> String {
        match self {
            Self::MadeAgain { partition, gpu, id } => made_again(partition, gpu, id, recreate),
            reason => reason.to_string(),
        }
    }

    /// Describes the blocker where the clients and the box that allows it are shown beside it; `name` gives the name of a GPU.
    pub fn in_brief(&self, name: impl Fn(&GpuUuid) -> String) -> String {
        match self {
            Self::TooManyChunks { step, partition, requested, free, .. } => {
                let (step, requested) = (step + 1, counted(*requested, "chunk"));
                format!(
                    "{partition} (step {step}) asks for {requested}, and at most {free} can be had at that step"
                )
            }
            Self::InUse { partition, id, clients, .. } => {
                let partition = partition.as_ref().map_or_else(|| id.to_string(), ToString::to_string);
                let clients = match clients.len() {
                    0 => "clients that cannot be determined".to_owned(),
                    some => counted(some, "client"),
                };
                format!("{partition} has to be removed and is in use by {clients}")
            }
            Self::MadeAgain { partition, .. } => {
                format!("{partition} must be recreated in the layout's order, which may change its ID")
            }
            Self::NotListed { gpu } => format!("the daemon lists no partitions of {}", name(gpu)),
            Self::OwnShare(own) => own.to_string(),
        }
    }

    /// Returns the part of a request to apply a layout that this blocks, as a JSON pointer.
    pub fn pointer(&self) -> &'static str {
        match self {
            Self::TooManyChunks { .. } | Self::OwnShare(_) => "/version",
            Self::InUse { .. } | Self::NotListed { .. } => "/daemon",
            Self::MadeAgain { .. } => "/recreate",
        }
    }
}
