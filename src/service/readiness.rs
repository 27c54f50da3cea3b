//! Whether a process of a tenant would be let in now: what the store and /proc say against it, read once for all tenants that
//! are shown together.
//!
//! What `run` and `env` would refuse is what the tenant's condition `Ready` says, made by the same functions.

use std::collections::{BTreeMap, BTreeSet};

use super::clients::candidates;
use super::maintenance::cordoned;
use super::placement::{Naming, Placement, naming, refuse_leased, taken};
use super::{Service, ServiceError};
use crate::domain::client::{Candidate, ClientId, Lease, Occupant, occupant};
use crate::domain::daemon::{Daemon, Mode};
use crate::domain::layout::moves::PartitionHolder;
use crate::domain::maintenance::Maintenance;
use crate::domain::partitions::PartitionRef;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, TenantName};
use crate::host;
use crate::store;
use crate::store::partition_leases::PartitionLease;

/// What stands in the way of new processes, beside the daemons' own state.
#[derive(Default)]
pub(super) struct Obstacles {
    maintenance: Option<Maintenance>,
    /// Why processes of a user do not get to the directory of a daemon.
    unreachable: BTreeMap<(DaemonName, u32), String>,
    occupants: Occupants,
}

/// Who is in partitions, as far as the store and /proc tell.
#[derive(Default)]
pub(super) struct Occupants {
    partition_leases: Vec<PartitionLease>,
    leases: Vec<Lease>,
    candidates: BTreeMap<DaemonName, Vec<Candidate>>,
    naming: Vec<Naming>,
}

impl Obstacles {
    /// Why no process of a tenant is let in now, with a word for it, where its daemon is ready and its partitions are proven.
    pub(super) fn refusal(
        &self,
        tenant: &Tenant,
        daemon: &Daemon,
        placement: &Placement,
    ) -> Option<(&'static str, ServiceError)> {
        if let Err(error) = cordoned(&daemon.name, &daemon.spec, self.maintenance.as_ref()) {
            let covered = |maintenance: &Maintenance| maintenance.covers(&daemon.spec.gpus);
            let in_maintenance = self.maintenance.as_ref().is_some_and(covered);
            return Some((if in_maintenance { "Maintenance" } else { "Cordoned" }, error));
        }
        if let Some(why) = self.unreachable.get(&(daemon.name.clone(), tenant.spec.uid)) {
            return Some(("DirectoryUnreachable", ServiceError::Conflict(why.clone())));
        }
        let held = self.occupants.refuse(tenant, placement, None).err();
        held.map(|error| ("PartitionInUse", error))
    }
}

impl Occupants {
    /// Refuses partitions that are held by a living process, other than `holder`, of somebody who is not bound to them: one
    /// that was let in, or one that was started with them in its environment, whoever started it.
    pub(super) fn refuse(
        &self,
        tenant: &Tenant,
        placement: &Placement,
        holder: Option<ClientId>,
    ) -> Result<(), ServiceError> {
        refuse_leased(tenant, placement, holder, &self.partition_leases)?;
        let none = Vec::new();
        let candidates = self.candidates.get(&tenant.spec.daemon).unwrap_or(&none);
        for found in self.naming.iter().filter(|found| Some(found.signs.id) != holder) {
            let Some(place) = placement.held_by(&found.partitions) else { continue };
            match occupant(&found.signs, &tenant.spec.daemon, &self.leases, candidates) {
                Occupant::Of(owner) if place.is_bound(&owner) => {}
                occupant => return Err(taken(tenant, place, found.signs.id, &occupant)),
            }
        }
        Ok(())
    }
}

impl Occupants {
    /// The living processes in a partition that are not of the tenants bound to it.
    pub(super) fn strangers(
        &self,
        daemon: &DaemonName,
        partition: &PartitionRef,
        bound: &[TenantName],
    ) -> Vec<PartitionHolder> {
        let mut found: Vec<PartitionHolder> = Vec::new();
        let leased = self.partition_leases.iter().filter(|lease| lease.partition == *partition);
        for lease in leased.filter(|lease| host::process::is_alive(lease.holder.into())) {
            found.push(PartitionHolder { process: lease.holder, tenant: lease.tenant.clone() });
        }
        let none = Vec::new();
        let candidates = self.candidates.get(daemon).unwrap_or(&none);
        for one in self.naming.iter().filter(|one| one.partitions.contains(partition)) {
            let tenant = match occupant(&one.signs, daemon, &self.leases, candidates) {
                Occupant::Of(owner) => Some(owner),
                Occupant::Disputed(_) | Occupant::Unknown => None,
            };
            if found.iter().all(|known| known.process != one.signs.id) {
                found.push(PartitionHolder { process: one.signs.id, tenant });
            }
        }
        found.retain(|holder| !holder.tenant.as_ref().is_some_and(|tenant| bound.contains(tenant)));
        found
    }
}

impl Service {
    /// What stands in the way of new processes of these tenants.
    pub(super) async fn obstacles(
        &self,
        shown: impl Iterator<Item = (&Tenant, &Daemon)>,
    ) -> Result<Obstacles, ServiceError> {
        let (mut users, mut partitioned) = (BTreeSet::new(), BTreeSet::new());
        for (tenant, daemon) in shown {
            users.insert((daemon.name.clone(), daemon.spec.multi_user, tenant.spec.uid));
            if daemon.spec.mode == Mode::Static {
                partitioned.insert(daemon.name.clone());
            }
        }
        let maintenance = store::maintenance::get(&mut *self.parts.store.read().await?).await?;
        let mut unreachable = BTreeMap::new();
        for (daemon, multi_user, uid) in users {
            if let Err(why) = self.parts.fleet.check_reachable(&daemon, multi_user, uid).await {
                unreachable.insert((daemon, uid), why);
            }
        }
        Ok(Obstacles { maintenance, unreachable, occupants: self.occupants(&partitioned).await? })
    }

    /// Who is in partitions of these daemons; every process of the host is looked at, unless there is no such daemon.
    pub(super) async fn occupants(&self, daemons: &BTreeSet<DaemonName>) -> Result<Occupants, ServiceError> {
        if daemons.is_empty() {
            return Ok(Occupants::default());
        }
        let boot_id = &self.parts.fleet.context().boot_id;
        let mut reader = self.parts.store.read().await?;
        let partition_leases = store::partition_leases::all(&mut reader, boot_id).await?;
        // What a process was let into outlives its tenant, and comes first.
        let of_tenants = partition_leases.iter().filter_map(|lease| {
            let tenant: TenantName = lease.tenant.clone()?;
            Some(Lease { holder: lease.holder, tenant })
        });
        let mut leases: Vec<Lease> = of_tenants.collect();
        leases.extend(store::leases::all(&mut reader, boot_id).await?);
        let mut of_daemons = BTreeMap::new();
        for daemon in daemons {
            of_daemons.insert(daemon.clone(), candidates(&mut reader, daemon).await?);
        }
        drop(reader);
        let naming = tokio::task::spawn_blocking(naming).await;
        let naming = naming.map_err(|error| ServiceError::Internal(error.to_string()))?;
        Ok(Occupants { partition_leases, leases, candidates: of_daemons, naming })
    }
}
