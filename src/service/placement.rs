//! Where the processes of a tenant run on a daemon in static mode.
//!
//! A partition is handed out only while it is proven: made by the layout that is wanted now, and listed by the last look. Its ID
//! names SMs and no tenancy, so it is refused while a process lives that was let into it, or names it, for somebody who is not
//! bound to it any more.

use super::told::Words;
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::client::{ClientId, Occupant, Signs};
use crate::domain::daemon::{Daemon, Mode};
use crate::domain::environment::{SM_PARTITION, TENANT_HINT};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::partitions::{PartitionRef, named};
use crate::domain::tenant::{EffectivePartition, Resolved, Tenant};
use crate::domain::{PartitionName, TenantName};
use crate::host;
use crate::store::partition_leases::PartitionLease;
use crate::store::{self, Transaction};
use crate::supervisor::Handle;

/// The partition of a tenant on one of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    name: PartitionName,
    sms: Option<u32>,
    partition: PartitionRef,
    /// Who is bound to it.
    bound: Vec<TenantName>,
}

/// The partitions of a tenant, one on each GPU that it sees, in the daemon's order; none in shared mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placement {
    places: Vec<Place>,
}

/// A process that was started with a partition in its environment.
pub(super) struct Naming {
    pub(super) signs: Signs,
    pub(super) partitions: Vec<PartitionRef>,
}

impl Placement {
    /// The variable that puts a process into its partitions.
    pub(super) fn variable(&self) -> Option<(String, String)> {
        let named: Vec<String> = self.places.iter().map(|place| place.partition.to_string()).collect();
        (!named.is_empty()).then(|| (SM_PARTITION.to_owned(), named.join(",")))
    }

    /// The place that one of these partitions is.
    pub(super) fn held_by(&self, partitions: &[PartitionRef]) -> Option<&Place> {
        self.places.iter().find(|place| partitions.contains(&place.partition))
    }

    /// What the tenant has of each GPU.
    pub(super) fn partitions(&self) -> Vec<EffectivePartition> {
        let of = |place: &Place| {
            let (gpu, partition) = (place.partition.gpu.clone(), place.name.clone());
            Some(EffectivePartition { gpu, partition, sms: place.sms? })
        };
        self.places.iter().filter_map(of).collect()
    }
}

impl Place {
    /// Whether a tenant is bound to it.
    pub(super) fn is_bound(&self, tenant: &TenantName) -> bool {
        self.bound.contains(tenant)
    }
}

impl Service {
    /// The partitions of a tenant as they are proven by a look that begins now.
    ///
    /// Refused where one of them is not: the process would get an error, or somebody else's SMs.
    pub(super) async fn proven_placement(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        generation: i64,
    ) -> Result<Placement, ServiceError> {
        if resolved.mode == Mode::Shared {
            return Ok(Placement::default());
        }
        if let Some(handle) = self.parts.fleet.get(&tenant.spec.daemon) {
            // While the driver changes partitions it does not look, and they are not handed out anyway.
            self.placement(tenant, resolved, generation)?;
            if let Err(error) = handle.fresh(self.parts.patience).await {
                let word = error.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
                let told = format!("they cannot be read now{word}: try again, or ask the host's operator");
                return Err(refused(tenant, Words::apart(format!("they cannot be read now: {error}"), told)));
            }
        }
        let placement = self.placement(tenant, resolved, generation)?;
        self.refuse_squatters(tenant, &placement, None).await?;
        Ok(placement)
    }

    /// The partitions of a tenant as the last look proves them, for `generation` of the daemon or for a later one; none in
    /// shared mode.
    pub(super) fn placement(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        generation: i64,
    ) -> Result<Placement, ServiceError> {
        if resolved.mode == Mode::Shared {
            return Ok(Placement::default());
        }
        let daemon = &tenant.spec.daemon;
        let Some(handle) = self.parts.fleet.get(daemon) else {
            let refused = ServiceError::Unavailable(format!("daemon {daemon} is not managed yet"));
            return Err(refused.for_all());
        };
        let layout = settled(tenant, &handle, generation)?;
        let mut places = Vec::with_capacity(resolved.gpus.len());
        for gpu in &resolved.gpus {
            let mine =
                layout.partitions.iter().find(|one| one.gpu == *gpu && one.tenants.contains(&tenant.name));
            let Some(mine) = mine else {
                let why = format!(
                    "its layout binds this tenant to none of GPU {gpu}: bind it, or take the GPU out of the tenant's gpus"
                );
                return Err(refused(tenant, Words::same(&why)));
            };
            let Some(id) = mine.id.clone() else {
                let why = mine.withheld.as_deref().unwrap_or("it is not there as the layout made it");
                let why = format!("partition {} of GPU {gpu} is not handed out: {why}", mine.partition);
                return Err(refused(tenant, Words::same(&why)));
            };
            places.push(Place {
                name: mine.partition.clone(),
                sms: mine.sms,
                partition: PartitionRef { gpu: gpu.clone(), id },
                bound: mine.tenants.clone(),
            });
        }
        Ok(Placement { places })
    }

    /// Why no process of a tenant is let in, where that is because of the layout of its daemon.
    pub(super) fn unplaced(&self, tenant: &Tenant, daemon: &Daemon) -> Option<ServiceError> {
        let handle = self.parts.fleet.get(&daemon.name).filter(|_| daemon.spec.mode == Mode::Static)?;
        settled(tenant, &handle, daemon.generation).err()
    }

    /// Refuses partitions that somebody else is in, other than `holder`, by a look that is taken now.
    pub(super) async fn refuse_squatters(
        &self,
        tenant: &Tenant,
        placement: &Placement,
        holder: Option<ClientId>,
    ) -> Result<(), ServiceError> {
        if placement.places.is_empty() {
            return Ok(());
        }
        let occupants = self.occupants(&[tenant.spec.daemon.clone()].into()).await?;
        occupants.refuse(tenant, placement, holder)
    }
}

/// Writes who is let into which partitions, and refuses those that a living process of somebody else was let into before.
pub(super) async fn occupy(
    db: Transaction<'_>,
    tenant: &Tenant,
    holder: ClientId,
    placement: &Placement,
    boot_id: &str,
) -> Result<(), ServiceError> {
    if placement.places.is_empty() {
        return Ok(());
    }
    let let_in = store::partition_leases::all(&mut *db, boot_id).await?;
    for lease in &let_in {
        if !host::process::is_alive(lease.holder.into()) {
            store::partition_leases::delete(&mut *db, lease.holder).await?;
        } else if lease.holder == holder {
            refuse_another(tenant, lease, placement)?;
        }
    }
    refuse_leased(tenant, placement, Some(holder), &let_in)?;
    for place in &placement.places {
        let lease =
            PartitionLease { holder, partition: place.partition.clone(), tenant: Some(tenant.name.clone()) };
        store::partition_leases::put(&mut *db, &lease, boot_id, unix_ms()).await?;
    }
    Ok(())
}

/// Refuses to let a process in for another tenant, or into another partition of a GPU, than before: what it was let into stays
/// known as long as it lives.
fn refuse_another(
    tenant: &Tenant,
    before: &PartitionLease,
    placement: &Placement,
) -> Result<(), ServiceError> {
    let another = |place: &Place| {
        place.partition.gpu == before.partition.gpu && place.partition.id != before.partition.id
    };
    if before.tenant.as_ref() == Some(&tenant.name) && !placement.places.iter().any(another) {
        return Ok(());
    }
    Err(started_before(&tenant.name, before.holder, before.tenant.as_ref(), Some(&before.partition)))
}

/// Refuses partitions that a living process, other than `holder`, of somebody else was let into.
pub(super) fn refuse_leased(
    tenant: &Tenant,
    placement: &Placement,
    holder: Option<ClientId>,
    let_in: &[PartitionLease],
) -> Result<(), ServiceError> {
    for lease in let_in {
        let of_another = |place: &&Place| {
            place.partition == lease.partition
                && Some(lease.holder) != holder
                && !lease.tenant.as_ref().is_some_and(|tenant| place.bound.contains(tenant))
        };
        if let Some(place) = placement.places.iter().find(of_another)
            && host::process::is_alive(lease.holder.into())
        {
            let occupant = lease.tenant.clone().map_or(Occupant::Unknown, Occupant::Of);
            return Err(taken(tenant, place, lease.holder, &occupant));
        }
    }
    Ok(())
}

/// The layout of a tenant's daemon, if what is wanted at that generation was brought about, or what is wanted since.
fn settled(tenant: &Tenant, handle: &Handle, generation: i64) -> Result<LayoutStatus, ServiceError> {
    let Some(layout) = handle.observed().status.layout else {
        return Err(refused(tenant, Words::same("it has no layout: apply one that binds the tenant")));
    };
    match (&layout.failure, layout.state) {
        (_, LayoutState::Applied | LayoutState::Degraded | LayoutState::Drifted)
            if layout.generation >= generation =>
        {
            Ok(layout)
        }
        (Some(failure), _) => {
            let told = "its layout is not in force: ask the host's operator";
            Err(refused(
                tenant,
                Words::apart(format!("its layout is not in force: {}", failure.message), told),
            ))
        }
        (None, _) => {
            let why = "its layout is still being brought about: try again when it is applied";
            Err(refused(tenant, Words::same(why)))
        }
    }
}

/// Every process that was started with partitions in its environment.
pub(super) fn naming() -> Vec<Naming> {
    let processes = host::process::having(SM_PARTITION).into_iter();
    let named = processes.map(|(id, value)| {
        let ancestors = host::process::ancestors(id.pid).filter_map(host::process::identify);
        let hint = host::process::variable(id.pid, TENANT_HINT);
        let signs = Signs {
            id: id.into(),
            ancestors: ancestors.map(ClientId::from).collect(),
            uid: host::process::uid(id.pid),
            hint: hint.map(|hint| hint.to_string_lossy().into_owned()),
        };
        Naming { signs, partitions: named(&value.to_string_lossy()) }
    });
    named.collect()
}

fn refused(tenant: &Tenant, why: Words) -> ServiceError {
    let (name, daemon) = (&tenant.name, &tenant.spec.daemon);
    let refused = |why: &str| {
        format!(
            "tenant {name} cannot be let in: daemon {daemon} is in static mode, where each process runs in partitions, and {why}"
        )
    };
    why.framed(refused).into()
}

/// Refuses a process that was let in before for something else: it may go on with what it was told then.
pub(super) fn started_before(
    tenant: &TenantName,
    holder: ClientId,
    before: Option<&TenantName>,
    into: Option<&PartitionRef>,
) -> ServiceError {
    let into = into.map(|partition| format!(" into partition {partition}")).unwrap_or_default();
    let whose =
        before.map_or_else(|| "a tenant that is forgotten".to_owned(), |name| format!("tenant {name}"));
    let before_that = format!("for {whose}{into}");
    // What another tenant has is not told, nor who that is.
    let told = if before == Some(tenant) { before_that.clone() } else { "for something else".to_owned() };
    let refused = |before: &str| {
        format!(
            "process {holder} cannot be let in for tenant {tenant}: it was let in {before} before and lives: start one process for \
             each tenant and partition"
        )
    };
    Words::apart(before_that, told).framed(refused).into()
}

pub(super) fn taken(tenant: &Tenant, place: &Place, holder: ClientId, occupant: &Occupant) -> ServiceError {
    let whose = match occupant {
        Occupant::Of(owner) => format!("of tenant {owner}"),
        Occupant::Disputed(words) => words.clone(),
        Occupant::Unknown => "of no known tenant".to_owned(),
    };
    let refused = |why: &str| {
        format!(
            "tenant {} cannot be let into partition {} ({}): {why}",
            tenant.name, place.name, place.partition
        )
    };
    let host = format!(
        "process {holder} {whose} was let into it or started in it, and is not bound to it: end that first"
    );
    Words::apart(host, "somebody else's process is in it. Ask the host's operator").framed(refused).into()
}
