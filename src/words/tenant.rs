//! A tenant's limits, share, priority and clients in words.

use crate::domain::condition::{ConditionReason, ready};
use crate::domain::memory::Bytes;
use crate::domain::tenant::{EffectiveMemory, EnforcedBy, TenantEffective};
use crate::domain::{GpuUuid, TenantName};
use crate::service::tenants::TenantView;

/// The explanation of the mark of a limit that only the environment enforces.
pub(crate) const MARK: &str =
    "* set by the environment alone: a process that changes its environment escapes it";

/// Returns the mark of a limit that only the environment enforces.
fn mark(by: EnforcedBy) -> &'static str {
    if by == EnforcedBy::Environment { "*" } else { "" }
}

/// Returns true if the words about these tenants have the mark, which then has to be explained.
pub(crate) fn has_mark(tenants: &[TenantView]) -> bool {
    let of = |effective: &TenantEffective| {
        let mut limits = effective.device_memory_limits.iter().map(|limit| limit.enforced_by);
        [effective.threads.enforced_by, effective.priority.enforced_by].contains(&EnforcedBy::Environment)
            || limits.any(|by| by == EnforcedBy::Environment)
    };
    tenants.iter().filter_map(|tenant| tenant.status.effective.as_ref()).any(of)
}

/// Returns a tenant with its workload: `kube-81732caa7a79, pod prod/web-0/app`.
pub(crate) fn with_workload(tenant: &TenantName, workload: Option<&String>) -> String {
    workload.map_or_else(|| tenant.to_string(), |workload| format!("{tenant}, {workload}"))
}

/// Returns the memory limits of the GPUs; equal limits of adjacent GPUs are named once.
pub(crate) fn memory(effective: &TenantEffective) -> String {
    let mut limits: Vec<String> = effective.device_memory_limits.iter().map(limit).collect();
    limits.dedup();
    limits.join(", ")
}

fn limit(limit: &EffectiveMemory) -> String {
    match limit.bytes {
        Some(bytes) => format!("{}{}", Bytes(bytes), mark(limit.enforced_by)),
        None => "whole GPU".into(),
    }
}

/// Returns the memory limits, each with its GPU if they differ.
pub(crate) fn memory_by_gpu(effective: &TenantEffective, name: impl Fn(&GpuUuid) -> String) -> String {
    let limits = &effective.device_memory_limits;
    if limits.windows(2).all(|pair| limit(&pair[0]) == limit(&pair[1])) {
        return memory(effective);
    }
    let limits = limits.iter().map(|memory| format!("{}: {}", name(&memory.gpu), limit(memory)));
    limits.collect::<Vec<_>>().join(", ")
}

/// Returns the priority.
pub(crate) fn priority(effective: &TenantEffective) -> String {
    format!("{}{}", effective.priority.priority.as_str(), mark(effective.priority.enforced_by))
}

/// Describes the SMs of a tenant: those of its partitions, or those of its thread percentage.
pub(crate) fn share(tenant: &TenantView) -> Option<String> {
    let threads = &tenant.status.effective.as_ref()?.threads;
    if !threads.partitions.is_empty() {
        let partitions = threads.partitions.iter().map(|part| format!("{} in {}", part.sms, part.partition));
        return Some(partitions.collect::<Vec<_>>().join(", "));
    }
    let lacks_partition = ready(&tenant.status.conditions)
        .is_some_and(|ready| ready.reason == ConditionReason::PartitionNotProven);
    if lacks_partition {
        return Some("no partition".into());
    }
    let percentage = format!("{}%", threads.active_thread_percentage);
    let words =
        threads.predicted_sms.map_or_else(|| percentage.clone(), |sms| format!("{sms} ({percentage})"));
    Some(format!("{words}{}", mark(threads.enforced_by)))
}

/// Returns the number of its clients, out of the most that it may have if that is limited.
pub(crate) fn clients(tenant: &TenantView) -> String {
    match tenant.spec.max_clients {
        Some(max) if tenant.status.clients > max => format!("{}/{max} over", tenant.status.clients),
        Some(max) => format!("{}/{max}", tenant.status.clients),
        None => tenant.status.clients.to_string(),
    }
}
