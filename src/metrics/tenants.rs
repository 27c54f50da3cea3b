//! Families about tenants and their clients.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::registry::Unit;

use super::families::{Families, number};
use super::snapshot::MetricsSnapshot;
use crate::domain::attribution::{Candidate, Signs, attribute};
use crate::domain::tenant::Tenant;
use crate::domain::workload::Workload;
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// Whose clients there are, and what they hold of each GPU.
#[derive(Debug, Default)]
struct Tally<'w> {
    clients: BTreeMap<&'w TenantName, u64>,
    memory: BTreeMap<(&'w TenantName, &'w GpuUuid), Option<u64>>,
    unattributed: BTreeMap<&'w str, u64>,
}

impl<'w> Tally<'w> {
    fn of(snapshot: &'w MetricsSnapshot) -> Self {
        let mut tally = Self::default();
        for observed in &snapshot.seen {
            *tally.unattributed.entry(&observed.name).or_default() += 0;
            let Ok(daemon) = DaemonName::parse(&observed.name) else { continue };
            let candidates = Candidate::of(&snapshot.committed.tenants, &daemon);
            for client in observed.clients.iter() {
                let (owner, _) =
                    attribute(&Signs::from(client), &daemon, &snapshot.committed.leases, &candidates);
                // A client of a deleted tenant counts for none.
                let Some(owner) = owner.and_then(|name| snapshot.tenant(&name)) else {
                    *tally.unattributed.entry(&observed.name).or_default() += 1;
                    continue;
                };
                *tally.clients.entry(&owner.name).or_default() += 1;
                for (gpu, used) in &client.memory {
                    let sum = tally.memory.entry((&owner.name, gpu)).or_insert(Some(0));
                    *sum = sum.zip(*used).map(|(sum, used)| sum + used);
                }
            }
        }
        tally
    }
}

impl MetricsSnapshot {
    fn tenant(&self, name: &TenantName) -> Option<&Tenant> {
        self.committed.tenants.iter().find(|tenant| tenant.name == *name)
    }

    /// The GPUs that a tenant sees, each with what one of its processes may take of it.
    fn limits<'w>(&'w self, tenant: &'w Tenant) -> impl Iterator<Item = (&'w GpuUuid, u64)> + 'w {
        let daemon = self.committed.daemons.iter().find(|daemon| daemon.name == tenant.spec.daemon);
        daemon.into_iter().flat_map(move |daemon| {
            let gpus = daemon.spec.gpus.iter();
            gpus.filter(|gpu| tenant.spec.sees(gpu)).filter_map(move |gpu| {
                // Without a limit it is the whole GPU.
                let whole = || self.committed.gpus.iter().find(|listed| listed.uuid == *gpu)?.memory_total;
                let own = tenant.spec.memory_limit(&daemon.spec, gpu);
                Some((gpu, own.map(crate::domain::MemoryLimit::bytes).or_else(whole)?))
            })
        })
    }
}

pub(super) fn encode(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    let tally = Tally::of(snapshot);
    let tenants = || snapshot.committed.tenants.iter();
    let labels =
        |tenant: &Tenant| [("daemon", tenant.spec.daemon.to_string()), ("tenant", tenant.name.to_string())];
    families.gauges(
        "tenant_clients",
        "Processes of the tenant that its daemon's ps lists",
        tenants()
            .map(|tenant| (labels(tenant), number(tally.clients.get(&tenant.name).copied().unwrap_or(0)))),
    )?;
    families.gauges(
        "tenant_waiting_processes",
        "Processes of the tenant that wait for its daemon to be back",
        tenants()
            .map(|tenant| (labels(tenant), number(snapshot.waiting.get(&tenant.name).copied().unwrap_or(0)))),
    )?;
    families.gauges(
        "tenant_queued_processes",
        "Processes of the tenant that wait for a slot, as mps-manager run --wait does",
        tenants()
            .map(|tenant| (labels(tenant), number(snapshot.queued.get(&tenant.name).copied().unwrap_or(0)))),
    )?;
    families.gauges(
        "tenant_clients_limit",
        "Processes of the tenant that may be connected at once; missing where it states none",
        tenants().filter_map(|tenant| Some((labels(tenant), f64::from(tenant.spec.max_clients?)))),
    )?;
    families.gauges(
        "tenant_info",
        "What the tenant was made for, as its labels say: always 1",
        tenants().filter_map(|tenant| {
            let ([daemon, name], [namespace, pod, container, job, user]) =
                (labels(tenant), Workload::of(&tenant.spec.labels)?.metric_labels());
            Some(([daemon, name, namespace, pod, container, job, user], 1.0))
        }),
    )?;
    families.gauges(
        "clients_unattributed",
        "Processes that the daemon's ps lists and that are no tenant's",
        tally.unattributed.iter().map(|(daemon, count)| ([("daemon", (*daemon).to_owned())], number(*count))),
    )?;
    let on = |tenant: &Tenant, gpu: &GpuUuid| {
        let [daemon, name] = labels(tenant);
        [daemon, name, ("gpu", gpu.to_string())]
    };
    families.gauges_in(
        Unit::Bytes,
        "tenant_memory_used",
        "Memory that the tenant's processes hold on the GPU, as last reported by the driver; missing where it does not report it",
        tenants().flat_map(|tenant| {
            let tally = &tally;
            snapshot.limits(tenant).filter_map(move |(gpu, _)| {
                let used = tally.memory.get(&(&tenant.name, gpu)).copied().unwrap_or(Some(0))?;
                Some((on(tenant, gpu), number(used)))
            })
        }),
    )?;
    families.gauges_in(
        Unit::Bytes,
        "tenant_memory_limit",
        "Memory that each process of the tenant may take on the GPU; the whole GPU where there is no limit",
        tenants().flat_map(|tenant| {
            snapshot.limits(tenant).map(move |(gpu, bytes)| (on(tenant, gpu), number(bytes)))
        }),
    )
}
