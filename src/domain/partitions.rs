//! Static SM partitions as a daemon lists them, and the processes that say they are in one.
//!
//! The daemon's report on a partition and the environment of its clients in /proc are kept side by side: MPS lets a client choose
//! any partition, whatever its tenant (FACTS.md, "Static SM partitions"), and nothing is inferred where the two disagree.

use serde::{Deserialize, Serialize};

use super::client::{ClientFacts, ClientId};
use super::{GpuUuid, InvalidValue, PartitionId};

/// Partitions of one GPU, as `lspart` lists them.
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
    /// Its SMs, which may be more than those of its chunks: SMs that fit no chunk may be added to it.
    pub sms: u32,
    /// True if a client uses it, as the daemon reports; `null` if the daemon does not report it.
    pub in_use: Option<bool>,
    /// The connected clients that named it in the environment they were started with. They and `in_use` come from
    /// different places and may disagree.
    pub clients: Vec<ClientId>,
}

impl ListedPartition {
    /// Returns true if a removal would be refused, or might be.
    pub fn is_held(&self) -> bool {
        self.in_use.unwrap_or(!self.clients.is_empty())
    }
}

impl GpuPartitions {
    /// Returns the partition with that ID.
    pub fn get(&self, id: &PartitionId) -> Option<&ListedPartition> {
        self.partitions.iter().find(|partition| partition.id == *id)
    }
}

/// A partition of a GPU, as programs name it: `<uuid>/<id>`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartitionRef {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition within it.
    pub id: PartitionId,
}

impl PartitionRef {
    /// Parses `<uuid>/<id>`; the ID begins after the first `/` and may hold more of them.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let Some((gpu, id)) = text.split_once('/') else {
            let shown: String = text.chars().take(80).collect();
            return Err(InvalidValue(format!(
                "{shown:?} names no partition: it is the UUID of a GPU, a slash and the ID of a partition"
            )));
        };
        Ok(Self { gpu: GpuUuid::parse(gpu)?, id: PartitionId::parse(id)? })
    }
}

impl TryFrom<String> for PartitionRef {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<PartitionRef> for String {
    fn from(partition: PartitionRef) -> Self {
        partition.to_string()
    }
}

impl std::fmt::Display for PartitionRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.gpu, self.id)
    }
}

/// Returns the partitions that a value of `CUDA_MPS_SM_PARTITION` names; words that name none are skipped.
pub fn named(variable: &str) -> Vec<PartitionRef> {
    variable.split(',').filter_map(|word| PartitionRef::parse(word.trim()).ok()).collect()
}

/// Puts each client under the partitions that it named, where they are listed.
pub fn place(listed: &mut [GpuPartitions], clients: &[ClientFacts]) {
    for client in clients {
        for PartitionRef { gpu, id } in client.sm_partition.iter().flat_map(|variable| named(variable)) {
            let on_gpu = listed.iter_mut().filter(|listing| listing.gpu == gpu);
            let mut partitions = on_gpu.flat_map(|listing| &mut listing.partitions);
            if let Some(partition) = partitions.find(|partition| partition.id == id)
                && !partition.clients.contains(&client.id)
            {
                partition.clients.push(client.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::MountedDirectories;

    const GPU: &str = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
    const OTHER: &str = "GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc";

    #[test]
    fn partition_id_is_split_at_first_slash() {
        let text = format!("{GPU}/D/79e/Dg+wYMD");
        let partition = PartitionRef::parse(&text).expect("good");
        assert_eq!((partition.gpu.as_str(), partition.id.as_str()), (GPU, "D/79e/Dg+wYMD"));
        assert_eq!(partition.to_string(), text);
        for bad in ["", GPU, "GPU-aa/x", &format!("{GPU}/"), &format!("{GPU}/a b")] {
            assert!(PartitionRef::parse(bad).is_err(), "{bad:?}");
        }
    }

    fn client(pid: u32, sm_partition: Option<&str>) -> ClientFacts {
        ClientFacts {
            id: ClientId { pid, start_time: 1 },
            server: 1,
            uid: Some(0),
            command: String::new(),
            since: 0,
            memory: vec![],
            container: None,
            mounted: MountedDirectories::default(),
            ancestors: vec![],
            hint: None,
            sm_partition: sm_partition.map(str::to_owned),
            connections: 2,
            active_thread_percentage: None,
            memory_limits: None,
        }
    }

    fn listing(gpu: &str, ids: &[(&str, Option<bool>)]) -> GpuPartitions {
        let partition = |(id, in_use): &(&str, Option<bool>)| ListedPartition {
            id: PartitionId::parse(id).expect("id"),
            chunks: 1,
            sms: 8,
            in_use: *in_use,
            clients: vec![],
        };
        GpuPartitions {
            gpu: GpuUuid::parse(gpu).expect("uuid"),
            free_chunks: 13,
            used_chunks: 2,
            free_sms: 116,
            used_sms: 16,
            partitions: ids.iter().map(partition).collect(),
        }
    }

    #[test]
    fn clients_are_placed_by_their_named_partition() {
        let mut listed =
            [listing(GPU, &[("a/b", Some(false)), ("c", Some(true))]), listing(OTHER, &[("c", None)])];
        let clients = [
            client(7, Some(&format!("{GPU}/a/b, {OTHER}/c,{GPU}/a/b"))),
            client(8, Some(&format!("{GPU}/gone,nonsense"))),
            client(9, None),
        ];
        place(&mut listed, &clients);
        let placed: Vec<(Option<bool>, Vec<u32>)> = listed
            .iter()
            .flat_map(|listing| &listing.partitions)
            .map(|partition| (partition.in_use, partition.clients.iter().map(|id| id.pid).collect()))
            .collect();
        assert_eq!(placed, [(Some(false), vec![7]), (Some(true), vec![]), (None, vec![7])]);
    }
}
