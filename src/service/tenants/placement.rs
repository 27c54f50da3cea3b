//! Placement of a tenant's processes on a daemon in static mode.
//!
//! A partition is handed out only while it is verified: created by the desired layout, and listed by the last poll. Its ID
//! names SMs and not a tenancy, so it is refused while a process lives that was admitted to it, or names it, for a tenant
//! that is no longer bound to it.

use crate::domain::attention::refusal;
use crate::domain::attribution::{PartitionOccupant, Signs};
use crate::domain::client::ClientId;
use crate::domain::daemon::{Daemon, Mode};
use crate::domain::environment::{SM_PARTITION, TENANT_HINT};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::partitions::{PartitionRef, named};
use crate::domain::resolution::Resolved;
use crate::domain::tenant::{EffectivePartition, Tenant};
use crate::domain::{GpuUuid, PartitionName, TenantName};
use crate::host;
use crate::service::access::redaction::{AudienceText, Redacted};
use crate::service::{Backend, Result, ServiceError};
use crate::store::partition_leases::PartitionLease;
use crate::store::{self, Transaction};
use crate::supervisor::{Handle, Handouts};

/// The partition of a tenant on one of its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::service) struct BoundPartition {
    name: PartitionName,
    sms: Option<u32>,
    partition: PartitionRef,
    /// The tenants bound to it.
    pub(super) bound: Vec<TenantName>,
}

/// The partitions of a tenant, one on each GPU it sees, in the daemon's order; none in shared mode.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Placement {
    places: Vec<BoundPartition>,
}

/// A process that was started with a partition in its environment.
pub(super) struct PartitionUser {
    pub(super) signs: Signs,
    pub(in crate::service) partitions: Vec<PartitionRef>,
}

impl Placement {
    /// The variable that assigns a process to its partitions.
    pub(super) fn variable(&self) -> Option<(String, String)> {
        let named: Vec<String> = self.places.iter().map(|place| place.partition.to_string()).collect();
        (!named.is_empty()).then(|| (SM_PARTITION.to_owned(), named.join(",")))
    }

    /// Returns the placement of a process that sees one of its GPUs alone.
    pub(super) fn on_gpu(&self, gpu: &GpuUuid) -> Self {
        let places = self.places.iter().filter(|place| place.partition.gpu == *gpu);
        Self { places: places.cloned().collect() }
    }

    /// The partition of this tenant that is among these.
    pub(in crate::service) fn held_by(&self, partitions: &[PartitionRef]) -> Option<&BoundPartition> {
        self.places.iter().find(|place| partitions.contains(&place.partition))
    }

    /// The tenant's partition of each GPU.
    pub(in crate::service) fn partitions(&self) -> Vec<EffectivePartition> {
        let of = |place: &BoundPartition| {
            let (gpu, partition) = (place.partition.gpu.clone(), place.name.clone());
            Some(EffectivePartition { gpu, partition, sms: place.sms? })
        };
        self.places.iter().filter_map(of).collect()
    }
}

impl Backend {
    /// The partitions of a tenant, verified by a poll that begins now.
    ///
    /// Refused if one of them is not: the process would get an error, or another tenant's SMs.
    pub(super) async fn proven_placement(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        generation: i64,
    ) -> Result<Placement> {
        if resolved.mode == Mode::Shared {
            return Ok(Placement::default());
        }
        if let Some(handle) = self.parts.fleet.get(&tenant.spec.daemon) {
            // The driver does not poll while it changes partitions, and they are not handed out then anyway.
            self.placement(tenant, resolved, generation)?;
            if let Err(error) = handle.fresh(self.parts.timeout).await {
                let redacted = Redacted::PartitionsUnread(error.reason());
                let why = AudienceText::new(format!("they cannot be read now: {error}"), &redacted);
                return Err(refused(tenant, why));
            }
        }
        let placement = self.placement(tenant, resolved, generation)?;
        self.refuse_foreign_occupants(tenant, &placement, None).await?;
        Ok(placement)
    }

    /// The partitions of a tenant as the last poll verifies them, for `generation` of the daemon or a later one; none in
    /// shared mode.
    pub(super) fn placement(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        generation: i64,
    ) -> Result<Placement> {
        if resolved.mode == Mode::Shared {
            return Ok(Placement::default());
        }
        let daemon = &tenant.spec.daemon;
        let Some(handle) = self.parts.fleet.get(daemon) else {
            let refused = ServiceError::Unavailable(format!("daemon {daemon} is not managed yet"));
            return Err(refused.visible_to_tenants());
        };
        let layout = applied_layout(tenant, &handle, generation)?;
        let mut places = Vec::with_capacity(resolved.gpus.len());
        for gpu in &resolved.gpus {
            let mine =
                layout.partitions.iter().find(|mine| mine.gpu == *gpu && mine.tenants.contains(&tenant.name));
            let Some(mine) = mine else {
                let why = format!(
                    "its layout has no partition of {gpu} for this tenant: bind it to one, or remove the GPU from the tenant's gpus"
                );
                return Err(refused(tenant, AudienceText::same(why)));
            };
            let Some(id) = mine.id.clone() else {
                let why = mine.withheld.as_deref().unwrap_or("it does not exist as the layout created it");
                let why = format!("partition {} of {gpu} is not handed out: {why}", mine.partition);
                return Err(refused(tenant, AudienceText::same(why)));
            };
            places.push(BoundPartition {
                name: mine.partition.clone(),
                sms: mine.sms,
                partition: PartitionRef { gpu: gpu.clone(), id },
                bound: mine.tenants.clone(),
            });
        }
        Ok(Placement { places })
    }

    /// Returns the reason why the layout of its daemon prevents new processes of a tenant.
    pub(super) fn unplaced(&self, tenant: &Tenant, daemon: &Daemon) -> Option<ServiceError> {
        let handle = self.parts.fleet.get(&daemon.name).filter(|_| daemon.spec.mode == Mode::Static)?;
        applied_layout(tenant, &handle, daemon.generation).err()
    }

    /// Refuses partitions with a process of another tenant, other than `holder`, by a scan made now.
    pub(super) async fn refuse_foreign_occupants(
        &self,
        tenant: &Tenant,
        placement: &Placement,
        holder: Option<ClientId>,
    ) -> Result<()> {
        if placement.places.is_empty() {
            return Ok(());
        }
        let occupants = self.occupants(&[tenant.spec.daemon.clone()].into()).await?;
        occupants.refuse(tenant, placement, holder)
    }
}

/// Records which process is admitted to which partitions; refuses those with a living process of another tenant.
pub(super) async fn occupy(
    db: Transaction<'_>,
    tenant: &Tenant,
    holder: ClientId,
    placement: &Placement,
    boot_id: &str,
    now: i64,
) -> Result<()> {
    if placement.places.is_empty() {
        return Ok(());
    }
    let admitted = store::partition_leases::all(&mut *db, boot_id).await?;
    for lease in &admitted {
        if !host::process::is_alive(lease.holder.into()) {
            store::partition_leases::delete(&mut *db, lease.holder).await?;
        } else if lease.holder == holder {
            refuse_another(tenant, lease, placement)?;
        }
    }
    refuse_leased(tenant, placement, Some(holder), &admitted)?;
    for place in &placement.places {
        let lease =
            PartitionLease { holder, partition: place.partition.clone(), tenant: Some(tenant.name.clone()) };
        store::partition_leases::put(&mut *db, &lease, boot_id, now).await?;
    }
    Ok(())
}

/// Refuses to admit a process for another tenant, or to another partition of a GPU, than before: its admission stays recorded
/// as long as it lives.
fn refuse_another(tenant: &Tenant, before: &PartitionLease, placement: &Placement) -> Result<()> {
    let another = |place: &BoundPartition| {
        place.partition.gpu == before.partition.gpu && place.partition.id != before.partition.id
    };
    if before.tenant.as_ref() == Some(&tenant.name) && !placement.places.iter().any(another) {
        return Ok(());
    }
    Err(started_before(&tenant.name, before.holder, before.tenant.as_ref(), Some(&before.partition)))
}

/// Refuses partitions that a living process of another tenant, other than `holder`, was admitted to.
pub(super) fn refuse_leased(
    tenant: &Tenant,
    placement: &Placement,
    holder: Option<ClientId>,
    admitted: &[PartitionLease],
) -> Result<()> {
    for lease in admitted {
        let of_another = |place: &&BoundPartition| {
            place.partition == lease.partition
                && Some(lease.holder) != holder
                && !lease.tenant.as_ref().is_some_and(|tenant| place.bound.contains(tenant))
        };
        if let Some(place) = placement.places.iter().find(of_another)
            && host::process::is_alive(lease.holder.into())
        {
            let occupant = lease.tenant.clone().map_or(PartitionOccupant::Unknown, PartitionOccupant::Of);
            return Err(partition_taken(tenant, place, lease.holder, &occupant));
        }
    }
    Ok(())
}

/// The layout of a tenant's daemon, if that generation or a later one has been applied.
fn applied_layout(tenant: &Tenant, handle: &Handle, generation: i64) -> Result<LayoutStatus> {
    let Some(layout) = handle.of_observed(|observed| observed.status.layout.clone()) else {
        return Err(refused(tenant, AudienceText::same("it has no layout: apply one that binds the tenant")));
    };
    match (&layout.failure, layout.state) {
        (_, LayoutState::Applied | LayoutState::Degraded | LayoutState::Drifted)
            if layout.generation >= generation =>
        {
            Ok(layout)
        }
        (Some(failure), _) => {
            let why = format!("its layout is not in force: {}", failure.message);
            Err(refused(tenant, AudienceText::new(why, &Redacted::LayoutNotInForce)))
        }
        (None, _) => {
            let why = "its layout is still being applied: try again when it is in force";
            Err(refused(tenant, AudienceText::same(why)))
        }
    }
}

/// Every process that was started with partitions in its environment; blocks.
pub(in crate::service) fn partition_users(handouts: &Handouts) -> Vec<PartitionUser> {
    let processes = host::process::having(SM_PARTITION);
    let mut mounted = handouts.mounted_in(processes.iter().map(|(id, _)| id.pid));
    let named = processes.into_iter().map(|(id, value)| {
        let ancestors = host::process::ancestors(id.pid).filter_map(host::process::identify);
        let hint = host::process::variable(id.pid, TENANT_HINT);
        let signs = Signs {
            id: id.into(),
            ancestors: ancestors.map(ClientId::from).collect(),
            uid: host::process::uid(id.pid),
            mounted: mounted.remove(&id.pid).unwrap_or_default(),
            hint: hint.map(|hint| hint.to_string_lossy().into_owned()),
        };
        PartitionUser { signs, partitions: named(&value.to_string_lossy()) }
    });
    named.collect()
}

fn refused(tenant: &Tenant, why: AudienceText) -> ServiceError {
    let (name, daemon) = (&tenant.name, &tenant.spec.daemon);
    let refused = |why: &str| {
        let why =
            format!("daemon {daemon} is in static mode, where each process runs in partitions, and {why}");
        refusal(name, &why)
    };
    why.map(refused).into()
}

/// Refuses a process that was admitted before for something else, which it may still use.
pub(super) fn started_before(
    tenant: &TenantName,
    holder: ClientId,
    before: Option<&TenantName>,
    into: Option<&PartitionRef>,
) -> ServiceError {
    let into = into.map(|partition| format!(" into partition {partition}")).unwrap_or_default();
    let whose = before.map_or_else(|| "a deleted tenant".to_owned(), |name| format!("tenant {name}"));
    let before_that = format!("for {whose}{into}");
    let text = if before == Some(tenant) {
        AudienceText::same(before_that)
    } else {
        AudienceText::new(before_that, &Redacted::AdmittedBefore)
    };
    let refused = |before: &str| {
        format!(
            "process {holder} cannot be admitted for tenant {tenant}: it was already admitted {before}: start a separate process \
             for each tenant and partition"
        )
    };
    text.map(refused).into()
}

pub(in crate::service) fn partition_taken(
    tenant: &Tenant,
    place: &BoundPartition,
    holder: ClientId,
    occupant: &PartitionOccupant,
) -> ServiceError {
    let whose = match occupant {
        PartitionOccupant::Of(owner) => format!("of tenant {owner}"),
        PartitionOccupant::Disputed(words) => words.clone(),
        PartitionOccupant::Unknown => "of no known tenant".to_owned(),
    };
    let refused = |why: &str| {
        format!("tenant {} cannot use partition {} ({}): {why}", tenant.name, place.name, place.partition)
    };
    let host = format!(
        "process {holder} {whose} runs in it or may join it, and is not bound to it: end that process first"
    );
    AudienceText::new(host, &Redacted::PartitionTaken).map(refused).into()
}
