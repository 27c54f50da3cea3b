//! Predicts the partitions of each tenant after a plan, and the tenants that it moves to another partition. A move is a change even if no
//! command is sent for it.

use serde::{Deserialize, Serialize};

use super::status::PartitionStatus;
use crate::client::ClientId;
use crate::partitions::PartitionRef;
use crate::{GpuUuid, PartitionId, PartitionName, TenantName};

/// The predicted partitions of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantPrediction {
    /// The tenant.
    pub tenant: TenantName,
    /// True if such a tenant exists.
    pub known: bool,
    /// Its partition of each GPU.
    pub partitions: Vec<TenantPartition>,
    /// Reason for which the tenant would not be admitted, if there is one.
    pub remark: Option<String>,
}

/// The partition of a tenant on a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantPartition {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition.
    pub partition: PartitionName,
    /// Its chunks.
    pub chunks: u32,
    /// The SMs that its chunks make.
    pub sms: u32,
    /// The ID that it has, or is to have by the record; `null` where it is not known.
    pub id: Option<PartitionId>,
}

/// A tenant whose partition of a GPU becomes another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantMove {
    /// The tenant.
    pub tenant: TenantName,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition that it is bound to now; `null` where it is bound to none.
    pub from: Option<PartitionName>,
    /// The partition that it is bound to after the plan; `null` where it is bound to none.
    pub to: Option<PartitionName>,
    /// Processes in the new partition that belong to no tenant bound to it. Until they end, no process of the tenant is started there.
    pub held_by: Vec<PartitionHolder>,
}

/// A process in a partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartitionHolder {
    /// The process.
    pub process: ClientId,
    /// The tenant of the process; `null` where it is not known.
    pub tenant: Option<TenantName>,
}

/// The partition of a tenant on a GPU, with its ID where that is known.
type Binding<'a> = (&'a PartitionName, Option<&'a PartitionId>);

/// Returns the tenants that have another partition after a plan; none if the daemon holds no layout yet. `holders` returns the processes
/// in a partition that do not belong to these tenants.
pub fn moves(
    before: &[PartitionStatus],
    after: &[TenantPrediction],
    holders: impl Fn(&PartitionRef, &[TenantName]) -> Vec<PartitionHolder>,
) -> Vec<TenantMove> {
    if before.is_empty() {
        return Vec::new();
    }
    let mut gpus: Vec<&GpuUuid> = Vec::new();
    let planned = after.iter().flat_map(|tenant| &tenant.partitions).map(|partition| &partition.gpu);
    for gpu in before.iter().map(|partition| &partition.gpu).chain(planned) {
        if !gpus.contains(&gpu) {
            gpus.push(gpu);
        }
    }
    let mut changes = Vec::new();
    for TenantPrediction { tenant, partitions, .. } in after {
        for gpu in &gpus {
            let held = before.iter().find(|binding| binding.gpu == **gpu && binding.tenants.contains(tenant));
            let from: Option<Binding<'_>> = held.map(|binding| (&binding.partition, binding.id.as_ref()));
            let given = partitions.iter().find(|binding| binding.gpu == **gpu);
            let to: Option<Binding<'_>> = given.map(|binding| (&binding.partition, binding.id.as_ref()));
            if is_same(from, to) {
                continue;
            }
            let bound = |name: &PartitionName| -> Vec<TenantName> {
                let has = |prediction: &&TenantPrediction| {
                    prediction.partitions.iter().any(|other| other.gpu == **gpu && other.partition == *name)
                };
                after.iter().filter(has).map(|prediction| prediction.tenant.clone()).collect()
            };
            let held_by = match to {
                Some((name, Some(id))) => {
                    holders(&PartitionRef { gpu: (*gpu).clone(), id: id.clone() }, &bound(name))
                }
                _ => Vec::new(),
            };
            changes.push(TenantMove {
                tenant: tenant.clone(),
                gpu: (*gpu).clone(),
                from: from.map(|(name, _)| name.clone()),
                to: to.map(|(name, _)| name.clone()),
                held_by,
            });
        }
    }
    changes
}

/// Returns true if both are the same partition: by ID where both are known, otherwise by name.
fn is_same(from: Option<Binding<'_>>, to: Option<Binding<'_>>) -> bool {
    match (from, to) {
        (None, None) => true,
        (Some((_, Some(from))), Some((_, Some(to)))) => from == to,
        (Some((from, _)), Some((to, _))) => from == to,
        _ => false,
    }
}

impl std::fmt::Display for TenantPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} SMs of {} in {}", self.sms, self.gpu, self.partition)
    }
}

impl std::fmt::Display for PartitionHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.tenant {
            Some(tenant) => write!(f, "{} of tenant {tenant}", self.process),
            None => write!(f, "{} of an unknown tenant", self.process),
        }
    }
}

impl TenantMove {
    /// Describes the move in a few words.
    pub fn in_words(&self) -> String {
        let Self { tenant, .. } = self;
        match (&self.from, &self.to) {
            (Some(from), Some(to)) if from != to => format!("tenant {tenant} moves from {from} to {to}"),
            (None, Some(to)) => format!("tenant {tenant} is bound to {to}"),
            (_, Some(to)) => format!("tenant {tenant} gets a new {to}"),
            (_, None) => format!("tenant {tenant} loses its partition"),
        }
    }
}

impl std::fmt::Display for TenantMove {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |name: &Option<PartitionName>| {
            name.as_ref().map_or_else(|| "no partition".to_owned(), |name| format!("partition {name}"))
        };
        write!(
            f,
            "tenant {} moves from {} to {} of {}",
            self.tenant,
            name(&self.from),
            name(&self.to),
            self.gpu
        )?;
        if !self.held_by.is_empty() {
            let holders: Vec<String> = self.held_by.iter().map(ToString::to_string).collect();
            write!(
                f,
                "; it is occupied by {}: end them before the tenant can start there",
                holders.join(", ")
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> GpuUuid {
        GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
    }

    fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
        text.parse().expect("a name")
    }

    fn held(partition: &str, id: &str, tenants: &[&str]) -> PartitionStatus {
        serde_json::from_value(serde_json::json!({
            "partition": partition, "gpu": gpu(), "id": id, "expected": id, "chunks": 7, "sms": 56, "tenants": tenants,
        }))
        .expect("a partition")
    }

    fn planned(tenant: &str, partition: &str, id: Option<&str>) -> TenantPrediction {
        let partition = TenantPartition {
            gpu: gpu(),
            partition: name(partition),
            chunks: 7,
            sms: 56,
            id: id.map(|id| PartitionId::parse(id).expect("an ID")),
        };
        TenantPrediction { tenant: name(tenant), known: true, partitions: vec![partition], remark: None }
    }

    #[test]
    fn swapped_tenants_are_moves_with_their_holders() {
        let before = [held("left", "a", &["web"]), held("right", "b", &["jobs"])];
        let after = [planned("web", "right", Some("b")), planned("jobs", "left", Some("a"))];
        let process = ClientId { pid: 7, start_time: 8 };
        let holders = |partition: &PartitionRef, bound: &[TenantName]| {
            let is_a = partition.id.as_str() == "a" && bound.iter().all(|tenant| tenant.as_str() == "jobs");
            if is_a { vec![PartitionHolder { process, tenant: Some(name("web")) }] } else { Vec::new() }
        };
        let changes = moves(&before, &after, holders);
        let words: Vec<String> = changes.iter().map(ToString::to_string).collect();
        assert_eq!(words[0], format!("tenant web moves from partition left to partition right of {}", gpu()));
        assert!(words[1].contains("occupied by 7-8 of tenant web: end them"), "{words:?}");
        assert_eq!(changes.len(), 2);
    }

    #[test]
    fn renamed_partition_and_first_layout_move_no_tenant() {
        let nobody = |_: &PartitionRef, _: &[TenantName]| Vec::new();
        let after = [planned("web", "right", Some("a"))];
        assert_eq!(moves(&[held("left", "a", &["web"])], &after, nobody), []);
        assert_eq!(moves(&[], &after, nobody), []);
        // Partitions whose IDs are not both known are compared by name.
        let changes = moves(&[held("left", "a", &["web"])], &[planned("web", "right", None)], nobody);
        assert_eq!(changes.len(), 1);
        let unbound = TenantPrediction { partitions: Vec::new(), ..planned("web", "right", None) };
        let changes = moves(&[held("left", "a", &["web"])], &[unbound], nobody);
        assert_eq!((changes[0].from.is_some(), &changes[0].to), (true, &None));
    }
}
