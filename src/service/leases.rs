//! The right of a process to be a client of a tenant.

use serde::{Deserialize, Serialize};

use super::maintenance::refuse_cordoned;
use super::placement::{occupy, started_before};
use super::tenants::{EnvironmentView, not_found};
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::TenantName;
use crate::domain::access::{Actor, Right};
use crate::domain::client::{ClientId, Lease, places_taken};
use crate::domain::daemon::{Daemon, DaemonStatus, DesiredState, Mode, Phase};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::tenant::Tenant;
use crate::host;
use crate::store::{self, Fate};
use crate::supervisor::Observed;

/// How often a process is let in anew because its tenant was changed meanwhile.
const LEASE_ATTEMPTS: u32 = 5;

/// A process that wants to become a client of a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// Its process ID in the host's namespace.
    #[schema(minimum = 1)]
    pub pid: u32,
}

/// The right to be a client of a tenant, and what is needed for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LeaseView {
    /// The process, with its start time.
    pub holder: ClientId,
    /// The user it must run as.
    pub uid: u32,
    /// The environment it must have.
    pub environment: EnvironmentView,
}

impl Service {
    /// Gives a process the right to be a client of a tenant, unless `max_clients` are there already.
    pub async fn lease(
        &self,
        actor: &Actor,
        name: TenantName,
        request: LeaseRequest,
        dry_run: bool,
    ) -> Result<LeaseView, ServiceError> {
        actor.may(Right::UseTenant(&name))?;
        let (service, actor) = (self.clone(), actor.clone());
        self.to_the_end(async move {
            if actor.scope().is_some() {
                service.refuse_strange_process(&name, request).await?;
            }
            service.lease_now(name, request, dry_run).await
        })
        .await
    }

    /// Refuses a process that does not run as the tenant's user to whoever is bound to the tenant: it would be taken for
    /// the tenant's, which may end what is its. It is not told whether there is such a process.
    async fn refuse_strange_process(
        &self,
        name: &TenantName,
        LeaseRequest { pid }: LeaseRequest,
    ) -> Result<(), ServiceError> {
        let tenant = self.stored_tenant(name).await?;
        let uid = tenant.spec.uid;
        if host::process::uid(pid) == Some(uid) && host::process::identify(pid).is_some() {
            return Ok(());
        }
        Err(ServiceError::field(
            "/pid",
            format!("there is no process {pid} on this host that runs as the tenant's user, uid {uid}"),
        ))
    }

    async fn lease_now(
        &self,
        name: TenantName,
        request: LeaseRequest,
        dry_run: bool,
    ) -> Result<LeaseView, ServiceError> {
        for _ in 0..LEASE_ATTEMPTS {
            if let Some(lease) = self.lease_unless_changed(name.clone(), request, dry_run).await? {
                return Ok(lease);
            }
        }
        let pid = request.pid;
        let refused =
            format!("tenant {name} was changed again and again while process {pid} was let in: try again");
        Err(ServiceError::Conflict(refused).for_all())
    }

    /// `None` when the tenant or its daemon was changed meanwhile: what was read back, and the environment, are then those
    /// of another spec. Other tenants of the daemon may come and go.
    async fn lease_unless_changed(
        &self,
        name: TenantName,
        request: LeaseRequest,
        dry_run: bool,
    ) -> Result<Option<LeaseView>, ServiceError> {
        let Some(identity) = host::process::identify(request.pid) else {
            return Err(ServiceError::field(
                "/pid",
                format!("there is no process {} on this host", request.pid),
            ));
        };
        let tenant = self.stored_tenant(&name).await?;
        let before = self.followed_daemon(&tenant).await?;
        self.refuse_unless_serving(&tenant, &before).await?;
        let pipe = self.parts.fleet.pipe_directory(&tenant.spec.daemon);
        let reachable = self.parts.fleet.context().check_reachable(pipe, tenant.spec.uid).await;
        reachable.map_err(ServiceError::Conflict)?;
        let resolved = self.resolved(&tenant, &before, &self.held_gpus().await?)?;
        let holder = ClientId { pid: identity.pid, start_time: identity.start_time };
        let placement = self.placement(&tenant, &resolved, before.generation)?;
        self.refuse_squatters(&tenant, &placement, Some(holder)).await?;
        let environment = self.environment_of(&tenant, &resolved, &placement)?;
        let clients = self.families_of(&name).await?;
        let boot_id = self.parts.fleet.context().boot_id.clone();
        let (max, uid) = (tenant.spec.max_clients, tenant.spec.uid);
        let unchanged = self
            .write(move |db| {
                Box::pin(async move {
                    let now = store::tenants::get(&mut *db, &name).await?.ok_or_else(|| not_found(&name))?;
                    if now.spec != tenant.spec {
                        return Ok((false, Fate::RollBack));
                    }
                    // Again, in the transaction that lets the process in: a drain that began meanwhile counts on it.
                    if let Some(daemon) = store::daemons::get(&mut *db, &tenant.spec.daemon).await? {
                        refuse_cordoned(&mut *db, &daemon.name, &daemon.spec).await?;
                        // Another layout may bind others, and give this tenant another share.
                        if daemon.revision != before.revision {
                            return Ok((false, Fate::RollBack));
                        }
                    }
                    occupy(&mut *db, &now, holder, &placement, &boot_id).await?;
                    let mut holders = Vec::new();
                    for lease in store::leases::all(&mut *db, &boot_id).await? {
                        if !is_alive(lease.holder) {
                            store::leases::delete(&mut *db, lease.holder).await?;
                        } else if lease.holder == holder && lease.tenant != name {
                            return Err(started_before(&name, holder, Some(&lease.tenant), None));
                        } else if lease.tenant == name && lease.holder != holder {
                            holders.push(lease.holder);
                        }
                    }
                    let running = places_taken(&clients, &holders);
                    if running >= usize::try_from(max).unwrap_or(usize::MAX) {
                        let refused = format!(
                            "tenant {name} has {running} of at most {max} processes running: wait for one to end, or raise max_clients"
                        );
                        return Err(ServiceError::Conflict(refused).for_all());
                    }
                    store::leases::put(db, &Lease { holder, tenant: name }, &boot_id, unix_ms()).await?;
                    Ok::<_, ServiceError>((true, if dry_run { Fate::RollBack } else { Fate::Commit }))
                })
            })
            .await?;
        Ok(unchanged.then_some(LeaseView { holder, uid, environment }))
    }

    /// Fails closed: no process is sent to a daemon whose settings were not read back.
    ///
    /// Where that is because of its layout, that is what is said.
    async fn refuse_unless_serving(&self, tenant: &Tenant, daemon: &Daemon) -> Result<(), ServiceError> {
        let mut reader = self.parts.store.read().await?;
        refuse_cordoned(&mut reader, &daemon.name, &daemon.spec).await?;
        drop(reader);
        self.await_serving(tenant, daemon).await.map_err(|error| match error.whole() {
            ServiceError::Unavailable(_) | ServiceError::TimedOut(_) => {
                self.unplaced(tenant, daemon).unwrap_or(error)
            }
            _ => error,
        })
    }

    pub(super) async fn await_serving(&self, tenant: &Tenant, daemon: &Daemon) -> Result<(), ServiceError> {
        let (name, mode) = (&daemon.name, daemon.spec.mode);
        let Some(handle) = self.parts.fleet.get(name) else {
            return Err(ServiceError::Unavailable(format!("daemon {name} is not running yet")).for_all());
        };
        // Looked at now: a pipe directory that is gone would send the client past MPS, to the whole GPU.
        handle.fresh(self.parts.patience).await?;
        let stopped = handle.observed().status.phase == Phase::Stopped;
        if stopped && daemon.spec.desired_state == DesiredState::Stopped {
            // It stays so until somebody starts it: waiting here, or trying again, helps nobody.
            return Err(ServiceError::Conflict(format!("daemon {name} is stopped: start it first")).for_all());
        }
        // Any change of a daemon in static mode may bind others to its partitions.
        let wanted = if mode == Mode::Static { daemon.generation } else { tenant.daemon_generation };
        let ready =
            |status: &DaemonStatus| status.phase == Phase::Ready && status.observed_generation >= wanted;
        let failed = |status: &DaemonStatus| {
            let failed = |layout: &LayoutStatus| {
                layout.state == LayoutState::Failed && layout.generation >= daemon.generation
            };
            mode == Mode::Static && status.layout.as_ref().is_some_and(failed)
        };
        // A tenant written a moment ago is often read back within milliseconds.
        let decided = |observed: &Observed| ready(&observed.status) || failed(&observed.status);
        match handle.wait_for(self.parts.patience, decided).await {
            Some(observed) if ready(&observed.status) => Ok(()),
            _ => {
                let status = handle.observed().status;
                let (reason, why) = match status.conditions.first() {
                    Some(ready) => (ready.reason.as_str(), ready.message.as_str()),
                    None => ("NotLookedAt", "it has not been looked at yet"),
                };
                let host = format!("daemon {name} does not hold the tenant's limits yet: {why}");
                let told = format!(
                    "daemon {name} does not hold the tenant's limits yet ({reason}): try again, or ask the host's operator"
                );
                Err(ServiceError::apart(ServiceError::Unavailable(host), ServiceError::Unavailable(told)))
            }
        }
    }

    /// Processes of a tenant that live: its clients and the holders of its leases.
    pub(super) async fn processes_of(&self, name: &TenantName) -> Result<usize, ServiceError> {
        let clients = self.families_of(name).await?;
        let boot_id = &self.parts.fleet.context().boot_id;
        let holders = living_holders(&mut *self.parts.store.read().await?, name, boot_id).await?;
        Ok(places_taken(&clients, &holders))
    }

    /// The clients of a tenant, each with its ancestors.
    async fn families_of(&self, name: &TenantName) -> Result<Vec<(ClientId, Vec<ClientId>)>, ServiceError> {
        let clients = self.attributed().await?.into_iter();
        let mine = clients.filter(|client| client.tenant.as_ref() == Some(name));
        Ok(mine.map(|client| (client.id, client.ancestors)).collect())
    }
}

/// Whether the very process that a lease was given to still runs.
fn is_alive(holder: ClientId) -> bool {
    host::process::is_alive(holder.into())
}

/// The processes that hold a lease of the tenant and still run.
async fn living_holders(
    db: store::Transaction<'_>,
    name: &TenantName,
    boot_id: &str,
) -> Result<Vec<ClientId>, ServiceError> {
    let leases = store::leases::all(db, boot_id).await?;
    let mine = leases.into_iter().filter(|lease| lease.tenant == *name).map(|lease| lease.holder);
    Ok(mine.filter(|holder| is_alive(*holder)).collect())
}

/// Refuses to take a tenant away from processes that were let in since its processes were counted.
pub(super) async fn refuse_while_leased(
    db: store::Transaction<'_>,
    name: &TenantName,
    boot_id: &str,
) -> Result<(), ServiceError> {
    match living_holders(db, name, boot_id).await?.first() {
        None => Ok(()),
        Some(holder) => Err(ServiceError::Conflict(format!(
            "process {holder} of tenant {name} was started a moment ago: end it first"
        ))),
    }
}
