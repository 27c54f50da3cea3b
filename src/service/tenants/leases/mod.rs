//! The right of a process to be a client of a tenant.
//!
//! A process takes it for itself through the unix socket, whose peer the kernel identifies; that is proof enough to signal
//! the process later. A process recorded by an operator is not proven: it only counts.

mod held;
mod holder;
mod judgement;
mod living;
pub(in crate::service) mod queue;

use serde::{Deserialize, Serialize};

pub use held::HeldLease;
pub use holder::{LeaseCaller, LeaseRequest};
pub(super) use living::refuse_while_leased;

use holder::{command_of, holder_of};
use judgement::judge;
use living::{is_alive, living_holders};

use crate::domain::condition::{self, ConditionReason};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::access::redaction::{AudienceText, Redacted};
use crate::service::error::{Found as _, conflict};

use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::audit::Target;
use crate::domain::client::{ClientId, Lease, LeaseKind, LeaseRecord, places_taken};
use crate::domain::count::counted;
use crate::domain::daemon::{Daemon, DaemonStatus, DesiredState, Mode, Phase};
use crate::domain::gpu::Gpu;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::occupancy::{self, Lacking, Occupant};
use crate::domain::resolution::gpus_of;
use crate::domain::tenant::Tenant;
use crate::service::daemons::maintenance::refuse_cordoned;
use crate::service::tenants::EnvironmentView;
use crate::service::tenants::clients::ClientView;
use crate::service::tenants::conditions::refuse_closed;
use crate::service::tenants::placement::{occupy, started_before};
use crate::service::tenants::provisioning::share_basis;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::{self, TransactionEnd, transact};
use crate::supervisor::Observed;

/// Maximum number of attempts at a lease whose tenant changes meanwhile.
const LEASE_ATTEMPTS: u32 = 5;

/// The right to be a client of a tenant, with the user and environment that the process needs.
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
    /// Grants a process the right to be a client of a tenant, unless `max_clients` is reached.
    pub async fn lease(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        request: LeaseRequest,
        caller: LeaseCaller,
        dry_run: bool,
    ) -> Result<LeaseView> {
        let right = match request.kind {
            LeaseKind::Own => Right::UseTenant(&name),
            LeaseKind::Recorded => Right::Operate,
        };
        let permit = ctx.require(right)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let uid = backend.stored_tenant(&name).await?.spec.uid;
        let holder = ClientId::from(holder_of(request, caller, uid)?);
        let permit = permit.on(Target::Lease(name.clone(), holder));
        let waits = request.queue && !dry_run;
        let _pending = backend.launches.decide(holder);
        let admitted = if waits && backend.launches.awaits_return(holder) {
            Err(after_restart())
        } else {
            backend.admit(&permit, &name, holder, request.kind, dry_run).await
        };
        let refused = match admitted {
            Ok(lease) => {
                backend.launches.leave(holder);
                return Ok(lease);
            }
            Err(refused) => refused,
        };
        let Some(lacking) = refused.lacking().filter(|_| waits) else {
            return Err(refused);
        };
        backend.keep_turn(&name, holder, lacking).await?;
        Err(refused.keeping_turn())
    }
}

impl Backend {
    /// Grants the lease, if there is a slot for the process.
    async fn admit(
        &self,
        permit: &Permit,
        name: &TenantName,
        holder: ClientId,
        kind: LeaseKind,
        dry_run: bool,
    ) -> Result<LeaseView> {
        for _ in 0..LEASE_ATTEMPTS {
            let lease = self.lease_unless_changed(permit, name.clone(), holder, kind, dry_run);
            if let Some(lease) = lease.await? {
                return Ok(lease);
            }
        }
        let pid = holder.pid;
        Err(conflict!("tenant {name} was changed repeatedly while process {pid} took its lease: try again")
            .visible_to_tenants())
    }

    /// Keeps the turn of a process that found no slot.
    async fn keep_turn(&self, name: &TenantName, holder: ClientId, lacking: Lacking) -> Result<()> {
        let tenant = self.stored_tenant(name).await?;
        let daemon = self.followed_daemon(&tenant).await?;
        self.launches.wait(holder, name, gpus_of(&tenant.spec, &daemon.spec), lacking);
        Ok(())
    }

    /// Grants the lease; `None` if the tenant or its daemon was changed meanwhile: the verified settings and the environment then belong to
    /// another spec. Other tenants of the daemon may change.
    async fn lease_unless_changed(
        &self,
        permit: &Permit,
        name: TenantName,
        holder: ClientId,
        kind: LeaseKind,
        dry_run: bool,
    ) -> Result<Option<LeaseView>> {
        let tenant = self.stored_tenant(&name).await?;
        refuse_closed(&tenant, self.parts.clock.unix_ms())?;
        let before = self.followed_daemon(&tenant).await?;
        if kind == LeaseKind::Own {
            self.refuse_unless_first(&tenant, &before, holder).await?;
        }
        self.refuse_unless_serving(&tenant, &before).await?;
        let fleet = &self.parts.fleet;
        let (multi_user, uid) = (before.spec.multi_user, tenant.spec.uid);
        let reachable = fleet.check_reachable(&tenant.spec.daemon, multi_user, uid).await;
        reachable.map_err(ServiceError::Conflict)?;
        let gpus = self.held_gpus().await?;
        let tenants = self.stored_tenants().await?;
        let basis = share_basis(&before, &tenants, &gpus)?;
        let resolved = self.resolved(&tenant, &before, basis.as_ref(), &gpus)?;
        let placement = self.placement(&tenant, &resolved, before.generation)?;
        self.refuse_foreign_occupants(&tenant, &placement, Some(holder)).await?;
        let environment = self.environment_of(&tenant, &resolved, &placement, &gpus)?;
        let mut of_daemon = self.attributed().await?.to_vec();
        let clients = families_of(&of_daemon, &name);
        of_daemon.retain(|client| client.daemon == tenant.spec.daemon);
        let ceiling = self.parts.fleet.context().capability.client_ceiling();
        let all_gpus = gpus.clone();
        let visible: Vec<Gpu> = gpus.into_iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)).collect();
        let boot_id = self.parts.fleet.context().boot_id.clone();
        let (max, uid) = (tenant.spec.max_clients, tenant.spec.uid);
        let (command, clock) = (command_of(holder.pid), self.parts.clock);
        let unchanged = transact!(self, write(permit), |db| {
            let now = store::tenants::get(&mut *db, &name).await?.found("tenant", &name)?;
            if now.spec != tenant.spec || now.held != tenant.held {
                return Ok((false, TransactionEnd::RollBack));
            }
            // Again, in the transaction of the lease: a drain that began meanwhile relies on it.
            if let Some(daemon) = store::daemons::get(&mut *db, &tenant.spec.daemon).await? {
                refuse_cordoned(&mut *db, &daemon.name, &daemon.spec).await?;
                // Another layout may bind other tenants, and change this tenant's share.
                if daemon.revision != before.revision {
                    return Ok((false, TransactionEnd::RollBack));
                }
            }
            occupy(&mut *db, &now, holder, &placement, &boot_id, clock.unix_ms()).await?;
            let neighbours = store::tenants::of_daemon(&mut *db, &tenant.spec.daemon).await?;
            // The environment would hold the share that it had beside others.
            if share_basis(&before, &neighbours, &all_gpus)? != basis {
                return Ok((false, TransactionEnd::RollBack));
            }
            let records = store::leases::records(&mut *db, &boot_id).await?;
            let leases = judge(records, holder, &name, kind, is_alive)
                .map_err(|other| started_before(&name, holder, Some(&other), None))?;
            for ended in leases.dead {
                store::leases::delete(&mut *db, ended).await?;
            }
            refuse_over_max(&name, max, places_taken(&clients, &leases.of_tenant))?;
            // What MPS does with a process that runs already is decided.
            if leases.kind == LeaseKind::Own && of_daemon.iter().all(|client| client.id != holder) {
                refuse_if_full(&visible, &of_daemon, &leases.others, &neighbours, ceiling)?;
            }
            let record = LeaseRecord {
                lease: Lease { holder, tenant: name },
                kind: leases.kind,
                by_operator: leases.by_operator,
                command,
                created_at: clock.unix_ms(),
            };
            store::leases::put(db, &record, &boot_id).await?;
            Ok((true, if dry_run { TransactionEnd::RollBack } else { TransactionEnd::Commit }))
        })?;
        Ok(unchanged.then_some(LeaseView { holder, uid, environment }))
    }

    /// Fails closed: no process is sent to a daemon whose settings were not read back.
    ///
    /// The error names the daemon's layout if that is the cause.
    async fn refuse_unless_serving(&self, tenant: &Tenant, daemon: &Daemon) -> Result<()> {
        let mut reader = self.parts.store.read().await?;
        refuse_cordoned(&mut reader, &daemon.name, &daemon.spec).await?;
        drop(reader);
        self.await_serving(tenant, daemon).await.map_err(|error| match error.host_error() {
            ServiceError::Unavailable(_) | ServiceError::TimedOut(_) => {
                self.unplaced(tenant, daemon).unwrap_or(error)
            }
            _ => error,
        })
    }

    pub(super) async fn await_serving(&self, tenant: &Tenant, daemon: &Daemon) -> Result<()> {
        let (name, mode) = (&daemon.name, daemon.spec.mode);
        let Some(handle) = self.parts.fleet.get(name) else {
            return Err(
                ServiceError::Unavailable(format!("daemon {name} is not running yet")).visible_to_tenants()
            );
        };
        // Checked now: without its pipe directory the client would bypass MPS and get the whole GPU.
        handle.fresh(self.parts.timeout).await?;
        let stopped = handle.observed().status.phase == Phase::Stopped;
        if stopped && daemon.spec.desired_state == DesiredState::Stopped {
            // It stays stopped until someone starts it: waiting or retrying does not help.
            return Err(conflict!("daemon {name} is stopped: start it first").visible_to_tenants());
        }
        // Any change of a daemon in static mode may bind other tenants to its partitions, and with a strategy may raise this one's share,
        // to which the server still holds a client that connects before it is applied.
        let depends_on_all = mode == Mode::Static || daemon.spec.provisioning.is_active();
        let generation = if depends_on_all { daemon.generation } else { tenant.daemon_generation };
        let ready =
            |status: &DaemonStatus| status.phase == Phase::Ready && status.observed_generation >= generation;
        let failed = |status: &DaemonStatus| {
            let failed = |layout: &LayoutStatus| {
                layout.state == LayoutState::Failed && layout.generation >= daemon.generation
            };
            mode == Mode::Static && status.layout.as_ref().is_some_and(failed)
        };
        // A tenant written a moment ago is often verified within milliseconds.
        let decided = |observed: &Observed| ready(&observed.status) || failed(&observed.status);
        match handle.wait_for(self.parts.timeout, decided).await {
            Some(observed) if ready(&observed.status) => Ok(()),
            _ => {
                let status = handle.observed().status;
                let (reason, why) = match condition::ready(&status.conditions) {
                    Some(ready) => (ready.reason, ready.message.as_str()),
                    None => (ConditionReason::NotPolled, "it has not been polled yet"),
                };
                let what = match reason {
                    ConditionReason::ServerFault => "takes no clients",
                    _ => "has not applied the tenant's limits yet",
                };
                let redacted = Redacted::NotApplied(name, what, reason);
                let text = AudienceText::new(format!("daemon {name} {what}: {why}"), &redacted);
                Err(text.error(ServiceError::Unavailable))
            }
        }
    }

    /// Number of living processes of a tenant: its clients and the holders of its leases.
    pub(super) async fn processes_of(&self, name: &TenantName) -> Result<usize> {
        let clients = families_of(&self.attributed().await?, name);
        let boot_id = &self.parts.fleet.context().boot_id;
        let holders = living_holders(&mut *self.parts.store.read().await?, name, boot_id).await?;
        Ok(places_taken(&clients, &holders))
    }

    /// Refuses a process that came after others that wait for the same slot, unless it has one.
    async fn refuse_unless_first(&self, tenant: &Tenant, daemon: &Daemon, holder: ClientId) -> Result<()> {
        let name = &tenant.name;
        let gpus = gpus_of(&tenant.spec, &daemon.spec);
        let Some((before, lacking)) = self.launches.ahead(holder, name, &gpus) else { return Ok(()) };
        let is_leased =
            store::leases::of(&mut *self.parts.store.read().await?, name, holder).await?.is_some();
        let connected = self.parts.fleet.get(&daemon.name).map(|handle| handle.observed().clients);
        if is_leased || connected.is_some_and(|clients| clients.iter().any(|client| client.id == holder)) {
            return Ok(());
        }
        let full = format!(
            "{} for a slot of tenant {name} or of its GPUs before this one",
            if before == 1 { "1 process waits".to_owned() } else { format!("{before} processes wait") }
        );
        Err(no_slot(full, "wait too (mps-manager run --wait)", lacking))
    }
}

/// The clients of a tenant, each with its ancestors.
fn families_of(clients: &[ClientView], name: &TenantName) -> Vec<(ClientId, Vec<ClientId>)> {
    let mine = clients.iter().filter(|client| client.tenant.as_ref() == Some(name));
    mine.map(|client| (client.id, client.ancestors.clone())).collect()
}

/// Refuses a process for which `max_clients` leaves no slot.
fn refuse_over_max(name: &TenantName, max: Option<u32>, taken: usize) -> Result<()> {
    let Some(max) = max.filter(|max| taken > usize::try_from(*max).unwrap_or(usize::MAX)) else {
        return Ok(());
    };
    let full =
        format!("tenant {name} has {} running and max_clients is {max}", counted(taken - 1, "process"));
    let remedy = "wait for one to end (mps-manager run --wait), revoke a lease, or raise max_clients";
    Err(no_slot(full, remedy, Lacking::TenantSlot))
}

/// Refuses a process for which one of its GPUs has no slot: `clients` are connected, `leased` were admitted and may connect.
fn refuse_if_full(
    gpus: &[Gpu],
    clients: &[ClientView],
    leased: &[Lease],
    tenants: &[Tenant],
    ceiling: u32,
) -> Result<()> {
    for gpu in gpus {
        let sees = |tenant: &Tenant| tenant.spec.sees(&gpu.uuid);
        let of = |name: &TenantName| tenants.iter().find(|tenant| tenant.name == *name);
        // A client of no known tenant may be on each GPU of the daemon.
        let is_here = |client: &&ClientView| client.tenant.as_ref().and_then(of).is_none_or(sees);
        let occupant = |client: &ClientView| Occupant {
            id: client.id,
            ancestors: client.ancestors.clone(),
            connections: client.connections,
        };
        let present: Vec<Occupant> = clients.iter().filter(is_here).map(occupant).collect();
        let admitted = leased.iter().filter(|lease| of(&lease.tenant).is_some_and(sees));
        let admitted: Vec<ClientId> = admitted.map(|lease| lease.holder).collect();
        if let Some(no_room) = occupancy::no_room(&present, &admitted, gpu.client_ceiling(ceiling)) {
            let full = format!("GPU {} {no_room}", gpu.index);
            let remedy = "wait for one to end (mps-manager run --wait), or use another GPU";
            return Err(no_slot(full, remedy, Lacking::GpuSlot));
        }
    }
    Ok(())
}

/// A refusal because there is no slot. How full a GPU is, and who waits for it, concerns other tenants.
fn no_slot(full: String, remedy: &'static str, lacking: Lacking) -> ServiceError {
    let refused = |full, remedy| ServiceError::AtCapacity { full, remedy, lacking, keeps_turn: false };
    match lacking {
        Lacking::TenantSlot => refused(full, remedy),
        Lacking::GpuSlot => {
            let redacted =
                refused(Redacted::GpuFull.to_string(), "wait (mps-manager run --wait), or try again");
            ServiceError::for_audience(refused(full, remedy), redacted)
        }
    }
}

/// The refusal of a process that waited before the manager was restarted, while others may come back that waited longer.
fn after_restart() -> ServiceError {
    ServiceError::AtCapacity {
        full: "the manager was restarted, and processes that waited before come back to it".to_owned(),
        remedy: "wait (mps-manager run --wait)",
        // The stricter of the two, until its next request says what it lacks.
        lacking: Lacking::GpuSlot,
        keeps_turn: false,
    }
}
