//! Checks for the admission of new processes of tenants, by the store and /proc, read once for all tenants shown together.
//!
//! `run` and `env` refuse exactly what the tenant's condition `Ready` reports, because both use these functions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::attribution::{Candidate, PartitionOccupant, occupant};
use crate::domain::client::{ClientId, Lease};
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::{Daemon, Mode};
use crate::domain::layout::moves::PartitionHolder;
use crate::domain::maintenance::Maintenance;
use crate::domain::partitions::PartitionRef;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, TenantName};
use crate::host;
use crate::service::daemons::maintenance::cordoned;
use crate::service::tenants::placement::{
    PartitionUser, Placement, partition_taken, partition_users, refuse_leased,
};
use crate::service::{Backend, Result, ServiceError};
use crate::store;
use crate::store::partition_leases::PartitionLease;

/// Blockers of new processes, apart from the daemons' own state.
#[derive(Default)]
pub(super) struct TenantBlockers {
    maintenance: Option<Maintenance>,
    /// Reasons why processes of a user cannot reach the directory of a daemon.
    unreachable: BTreeMap<(DaemonName, u32), String>,
    occupants: Occupants,
}

/// Processes in partitions, by the store and /proc.
#[derive(Default)]
pub(in crate::service) struct Occupants {
    partition_leases: Vec<PartitionLease>,
    leases: Vec<Lease>,
    candidates: BTreeMap<DaemonName, Vec<Candidate>>,
    users: Vec<PartitionUser>,
}

impl TenantBlockers {
    /// Returns the reason code and error with which a new process of a tenant is refused although its daemon is ready and its partitions
    /// are verified.
    pub(in crate::service) fn refusal(
        &self,
        tenant: &Tenant,
        daemon: &Daemon,
        placement: &Placement,
    ) -> Option<(ConditionReason, ServiceError)> {
        if let Err(error) = cordoned(&daemon.name, &daemon.spec, self.maintenance.as_ref()) {
            let covered = |maintenance: &Maintenance| maintenance.covers(&daemon.spec.gpus);
            let in_maintenance = self.maintenance.as_ref().is_some_and(covered);
            return Some((
                if in_maintenance { ConditionReason::Maintenance } else { ConditionReason::Cordoned },
                error,
            ));
        }
        if let Some(why) = self.unreachable.get(&(daemon.name.clone(), tenant.spec.uid)) {
            return Some((ConditionReason::DirectoryUnreachable, ServiceError::Conflict(why.clone())));
        }
        let held = self.occupants.refuse(tenant, placement, None).err();
        held.map(|error| (ConditionReason::PartitionInUse, error))
    }
}

impl Occupants {
    /// Refuses partitions with a living process, other than `holder`, of a tenant that is not bound to them: one that was
    /// admitted, or one started with them in its environment by whatever means.
    pub(super) fn refuse(
        &self,
        tenant: &Tenant,
        placement: &Placement,
        holder: Option<ClientId>,
    ) -> Result<()> {
        refuse_leased(tenant, placement, holder, &self.partition_leases)?;
        let none = Vec::new();
        let candidates = self.candidates.get(&tenant.spec.daemon).unwrap_or(&none);
        for user in self.users.iter().filter(|user| Some(user.signs.id) != holder) {
            let Some(place) = placement.held_by(&user.partitions) else { continue };
            match occupant(&user.signs, &tenant.spec.daemon, &self.leases, candidates) {
                PartitionOccupant::Of(owner) if place.bound.contains(&owner) => {}
                occupant => return Err(partition_taken(tenant, place, user.signs.id, &occupant)),
            }
        }
        Ok(())
    }
}

impl Occupants {
    /// The living processes in a partition whose tenant is not bound to it.
    pub(in crate::service) fn foreign_occupants(
        &self,
        daemon: &DaemonName,
        partition: &PartitionRef,
        bound: &[TenantName],
    ) -> Vec<PartitionHolder> {
        let mut holders: Vec<PartitionHolder> = Vec::new();
        let leased = self.partition_leases.iter().filter(|lease| lease.partition == *partition);
        for lease in leased.filter(|lease| host::process::is_alive(lease.holder.into())) {
            holders.push(PartitionHolder { process: lease.holder, tenant: lease.tenant.clone() });
        }
        let none = Vec::new();
        let candidates = self.candidates.get(daemon).unwrap_or(&none);
        for user in self.users.iter().filter(|user| user.partitions.contains(partition)) {
            let tenant = match occupant(&user.signs, daemon, &self.leases, candidates) {
                PartitionOccupant::Of(owner) => Some(owner),
                PartitionOccupant::Disputed(_) | PartitionOccupant::Unknown => None,
            };
            if holders.iter().all(|listed| listed.process != user.signs.id) {
                holders.push(PartitionHolder { process: user.signs.id, tenant });
            }
        }
        holders.retain(|holder| !holder.tenant.as_ref().is_some_and(|tenant| bound.contains(tenant)));
        holders
    }
}

impl Backend {
    /// Blockers of new processes of these tenants.
    pub(super) async fn tenant_blockers(
        &self,
        tenants: &[&Tenant],
        daemons: &[&Daemon],
    ) -> Result<TenantBlockers> {
        let mut users = BTreeSet::new();
        for daemon in daemons {
            let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
            let uids: BTreeSet<u32> = of_daemon.map(|tenant| tenant.spec.uid).collect();
            users.extend(uids.into_iter().map(|uid| (daemon.name.clone(), daemon.spec.multi_user, uid)));
        }
        let partitioned = daemons.iter().filter(|daemon| daemon.spec.mode == Mode::Static);
        let partitioned = partitioned.map(|daemon| daemon.name.clone()).collect();
        let maintenance = Option::clone(&*self.stored_maintenance().await?);
        let mut unreachable = BTreeMap::new();
        for (daemon, multi_user, uid) in users {
            if let Err(why) = self.parts.fleet.check_reachable(&daemon, multi_user, uid).await {
                unreachable.insert((daemon, uid), why);
            }
        }
        let occupants = self.occupants(&partitioned).await?;
        Ok(TenantBlockers { maintenance, unreachable, occupants })
    }

    /// The processes in partitions of these daemons; scans every process of the host, unless the list is empty.
    pub(in crate::service) async fn occupants(&self, daemons: &BTreeSet<DaemonName>) -> Result<Occupants> {
        if daemons.is_empty() {
            return Ok(Occupants::default());
        }
        let boot_id = &self.parts.fleet.context().boot_id;
        let mut reader = self.parts.store.read().await?;
        let partition_leases = store::partition_leases::all(&mut reader, boot_id).await?;
        // An admission outlives its tenant, and comes first.
        let of_tenants = partition_leases.iter().filter_map(|lease| {
            let tenant: TenantName = lease.tenant.clone()?;
            Some(Lease { holder: lease.holder, tenant })
        });
        let mut leases: Vec<Lease> = of_tenants.collect();
        leases.extend(store::leases::all(&mut reader, boot_id).await?);
        let mut of_daemons = BTreeMap::new();
        for daemon in daemons {
            of_daemons.insert(daemon.clone(), store::tenants::candidates(&mut reader, daemon).await?);
        }
        drop(reader);
        let handouts = Arc::clone(&self.parts.fleet.context().handouts);
        let users = tokio::task::spawn_blocking(move || partition_users(&handouts)).await;
        let users = users.map_err(|error| ServiceError::Internal(error.to_string()))?;
        Ok(Occupants { partition_leases, leases, candidates: of_daemons, users })
    }
}
