//! Tenants: created and read; and their environment.

pub(super) mod client_view;
pub mod clients;
mod committed;
mod conditions;
pub mod deletion;
mod directories;
pub(super) mod engine_files;
mod environment;
pub mod leases;
pub(super) mod percentage_layout;
mod placement;
mod prediction;
mod provisioning;
mod readiness;
mod verification;
mod writing;

pub use committed::TenantColours;
pub use environment::EnvironmentView;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::audit::Target;
use crate::domain::condition::{self, Condition, ConditionReason, ConditionType};
use crate::domain::daemon::{Daemon, DaemonStatus, Phase};
use crate::domain::gpu::{Gpu, GpuRef};
use crate::domain::neighbours::LimitsByGpu;
use crate::domain::provisioning::{ProvisioningStatus, ShareBasis};
use crate::domain::resolution::{Resolved, effective};
use crate::domain::tenant::{LabelSelector, Tenant, TenantEffective, TenantSpec, TenantStatus, named};
use crate::domain::verification::Verification;
use crate::domain::workload::Workload;
use crate::domain::{DaemonName, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::access::redaction::Redact as _;
use crate::service::change::ChangeScope;
use crate::service::error::{Found as _, conflict};
use crate::service::page::{Page, Paged};
use crate::service::tenants::clients::ClientView;
use crate::service::tenants::conditions::{
    above_maximum, closed_refusal, not_applied, socket_condition, socket_problem, too_small_for_a_context,
    weakened,
};
use crate::service::tenants::provisioning::{add_shares, keep_own_share, provisioning_status, share_basis};
use crate::service::tenants::readiness::TenantBlockers;
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions, Written, removed};
use crate::store::{self, transact};
use crate::supervisor::{Blocker, DirectoryStatus, Observed};

/// A tenant: desired state and status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantView {
    /// Its name.
    pub name: TenantName,
    /// Revision of the spec, which is also the entity tag.
    pub generation: i64,
    /// When it was created.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// When its spec was last changed.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: i64,
    /// Workload of the tenant, by its labels: `pod prod/web-0/app`, `job 4711 of alice`; `null` if they name none.
    #[serde(default)]
    pub workload: Option<String>,
    /// Its desired state.
    pub spec: TenantSpec,
    /// Its observed state.
    pub status: TenantStatus,
    /// In the answer to a PUT, also to a dry run: the fields that had a value and get their defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// The conditions of a tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantConditions {
    /// Its name.
    pub name: TenantName,
    /// Its daemon.
    pub daemon: DaemonName,
    /// The conditions.
    pub conditions: Vec<Condition>,
}

/// Filters for tenants.
#[derive(Debug, Clone, Default)]
pub struct TenantFilter {
    /// Tenants of this daemon.
    pub daemon: Option<DaemonName>,
    /// Tenants with this text in their names.
    pub text: Option<String>,
    /// Tenants with these labels.
    pub labels: LabelSelector,
}

impl TenantFilter {
    /// The tenants of a daemon.
    pub fn of(daemon: &DaemonName) -> Self {
        Self { daemon: Some(daemon.clone()), ..Self::default() }
    }

    fn fits(&self, tenant: &Tenant) -> bool {
        self.daemon.as_ref().is_none_or(|daemon| tenant.spec.daemon == *daemon)
            && self.text.as_ref().is_none_or(|text| tenant.name.as_str().contains(text.as_str()))
            && self.labels.fits(&tenant.spec.labels)
    }
}

/// Data that is read once for the tenants that are shown together.
struct TenantReads<'r> {
    ctx: &'r RequestContext,
    gpus: &'r [Gpu],
    blockers: &'r TenantBlockers,
    daemons: BTreeMap<&'r DaemonName, DaemonReads<'r>>,
    limits: LimitsByGpu<'r>,
    clients: BTreeMap<&'r TenantName, Vec<&'r ClientView>>,
}

/// Data that the tenants of a daemon have in common.
struct DaemonReads<'r> {
    stored: &'r Daemon,
    status: Option<Arc<DaemonStatus>>,
    basis: Result<Option<ShareBasis>, String>,
    provisioning: Option<ProvisioningStatus>,
}

impl Service {
    /// Creates or replaces a tenant; the supervisor applies it.
    pub async fn put_tenant(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        spec: TenantSpec<GpuRef>,
        options: WriteOptions,
    ) -> Result<Written<TenantView>> {
        let permit = ctx.require(Right::Administer)?.on(Target::Tenant(name.clone()));
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let (uid, on) = (spec.uid, spec.daemon.clone());
        if !options.must_be_new {
            backend.refuse_move_with_clients(&name, &on).await?;
        }
        let multi_user = backend.is_multi_user(&on).await?;
        let reachable = backend.parts.fleet.check_reachable(&on, multi_user, uid).await;
        let service = Arc::clone(backend);
        let (key, dry_run) = (name.clone(), options.dry_run);
        let scope = ChangeScope::Tenant(name.clone(), Some(on.clone()));
        let changed = transact!(backend, change(&permit, scope, dry_run), |change| {
            let spec = spec.resolve_gpus(&change.gpus).map_err(ServiceError::invalid)?;
            spec.check().map_err(ServiceError::invalid)?;
            spec.check_expiry(change.now).map_err(ServiceError::invalid)?;
            reachable.map_err(|unreachable| ServiceError::field("/uid", unreachable))?;
            let before = change.objects.tenants.get(&key).cloned();
            service.write_tenant(change, &key, spec, &options).await?;
            service.admit_tenant(change, &key)?;
            Ok(before)
        })?;
        // As they would be, also after a dry run.
        let of_daemon: Vec<Tenant> = changed.objects.tenants_of(&on).cloned().collect();
        let tenant = changed.objects.tenants.get(&name).found("tenant", &name)?.clone();
        let before = changed.value;
        let mut value = backend.tenant_view(ctx, tenant, &changed.gpus, Some(&of_daemon)).await?;
        value.removed = before.as_ref().map(|before| removed(&before.spec, &value.spec)).unwrap_or_default();
        Ok(Written { value, created: before.is_none() })
    }

    /// One tenant; with `fresh`, after a new poll of its daemon.
    pub async fn tenant(&self, ctx: &RequestContext, name: &TenantName, fresh: bool) -> Result<TenantView> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        let tenant = backend.stored_tenant(name).await?;
        if fresh && let Some(handle) = backend.parts.fleet.get(&tenant.spec.daemon) {
            handle.fresh(backend.parts.timeout).await?;
        }
        let gpus = backend.held_gpus().await?;
        backend.tenant_view(ctx, tenant, &gpus, None).await
    }

    /// Tenants by name.
    pub async fn tenants(
        &self,
        ctx: &RequestContext,
        filter: &TenantFilter,
        page: &Page,
    ) -> Result<Paged<TenantView>> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let (stored, paged) = backend.tenant_page(ctx, filter, page).await?;
        let mut verifications = match (paged.items.first(), paged.items.last()) {
            (Some(first), Some(last)) => {
                let mut reader = backend.parts.store.read().await?;
                let (first, last) = (&stored[*first].name, &stored[*last].name);
                store::verifications::between(&mut reader, first, last).await?
            }
            _ => BTreeMap::new(),
        };
        let view = |reads: &TenantReads<'_>, tenant: &Tenant| {
            let mut view = backend.view_with(reads, tenant, verifications.remove(&tenant.name));
            // A list of many tenants of one daemon would be mostly shares.
            keep_own_share(&view.name, &mut view.status);
            view
        };
        backend.each_of(ctx, &stored, paged, view).await
    }

    /// The conditions of tenants by name: a small part of a view.
    pub async fn tenant_conditions(
        &self,
        ctx: &RequestContext,
        page: &Page,
    ) -> Result<Paged<TenantConditions>> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let (stored, paged) = backend.tenant_page(ctx, &TenantFilter::default(), page).await?;
        let handouts = &backend.parts.fleet.context().handouts;
        // Without the processes that wait, which are no condition.
        let handed = |tenant: &Tenant| DirectoryStatus {
            waiting: Vec::new(),
            problem: handouts.problem(&tenant.directory),
        };
        let conditions = |reads: &TenantReads<'_>, tenant: &Tenant| TenantConditions {
            name: tenant.name.clone(),
            daemon: tenant.spec.daemon.clone(),
            conditions: backend.status_with(reads, tenant, None, handed(tenant)).conditions,
        };
        backend.each_of(ctx, &stored, paged, conditions).await
    }
}

impl Backend {
    /// A page of the tenants that an actor sees, as their places among all.
    async fn tenant_page(
        &self,
        ctx: &RequestContext,
        filter: &TenantFilter,
        page: &Page,
    ) -> Result<(Arc<Vec<Tenant>>, Paged<usize>)> {
        page.key::<TenantName>()?;
        let stored = self.stored_tenants().await?;
        let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
        let is_listed = |tenant: &Tenant| {
            tenant.name.as_str() > page.after.as_str()
                && ctx.actor.sees(Some(&tenant.name))
                && filter.fits(tenant)
        };
        let listed = stored.iter().enumerate().filter(|(_, tenant)| is_listed(tenant)).map(|(at, _)| at);
        let paged = page.cut(listed.take(rows).collect(), |at| stored[*at].name.to_string());
        Ok((stored, paged))
    }

    /// Makes something of each tenant of a page, with what they have in common read once.
    async fn each_of<T>(
        &self,
        ctx: &RequestContext,
        stored: &[Tenant],
        page: Paged<usize>,
        mut of: impl FnMut(&TenantReads<'_>, &Tenant) -> T,
    ) -> Result<Paged<T>> {
        let tenants: Vec<&Tenant> = page.items.iter().map(|at| &stored[*at]).collect();
        let daemons = self.stored_daemons().await?;
        let (gpus, clients) = (self.held_gpus().await?, self.attributed().await?);
        let is_used = |daemon: &&Daemon| tenants.iter().any(|tenant| tenant.spec.daemon == daemon.name);
        let daemons: Vec<&Daemon> = daemons.iter().filter(is_used).collect();
        let blockers = self.tenant_blockers(&tenants, &daemons).await?;
        let reads = self.tenant_reads(ctx, &gpus, &daemons, stored, &clients, &blockers);
        let items = tenants.into_iter().map(|tenant| of(&reads, tenant)).collect();
        Ok(Paged { items, next_cursor: page.next_cursor })
    }

    /// A process stays with the daemon it was started for, whatever happens to its tenant.
    pub(in crate::service) async fn refuse_move_with_clients(
        &self,
        name: &TenantName,
        to: &DaemonName,
    ) -> Result<()> {
        let tenants = self.stored_tenants().await?;
        let current = tenants.iter().find(|tenant| tenant.name == *name);
        let Some(from) = current.map(|tenant| &tenant.spec.daemon).filter(|from| *from != to) else {
            return Ok(());
        };
        match self.processes_of(name).await? {
            0 => Ok(()),
            running => Err(conflict!(
                "tenant {name} cannot move from daemon {from} to {to} while it has processes running ({running}): end or \
                 terminate them first"
            )),
        }
    }

    /// Returns true if a daemon serves several users at once; false if it does not exist.
    pub(super) async fn is_multi_user(&self, daemon: &DaemonName) -> Result<bool> {
        Ok(self.stored_daemon(daemon).await?.is_some_and(|daemon| daemon.spec.multi_user))
    }

    /// Returns a tenant's daemon as stored now.
    async fn daemon_of(&self, tenant: &Tenant) -> Result<Daemon> {
        self.stored_daemon(&tenant.spec.daemon).await?.ok_or_else(|| without_daemon(tenant))
    }

    /// Returns a tenant's daemon once its driver reports the layout for this generation, which mostly takes milliseconds after a write.
    pub(super) async fn followed_daemon(&self, tenant: &Tenant) -> Result<Daemon> {
        let daemon = self.daemon_of(tenant).await?;
        if let Some(handle) = self.parts.fleet.get(&daemon.name) {
            let followed = |observed: &Observed| match &observed.status.layout {
                Some(layout) => layout.generation >= daemon.generation,
                None => daemon.spec.layout.is_none(),
            };
            handle.wait_for(self.parts.timeout, followed).await;
        }
        Ok(daemon)
    }

    pub(super) async fn stored_tenant(&self, name: &TenantName) -> Result<Tenant> {
        let tenants = self.stored_tenants().await?;
        named(&tenants, name).cloned().found("tenant", name)
    }

    async fn tenant_view(
        &self,
        ctx: &RequestContext,
        tenant: Tenant,
        gpus: &[Gpu],
        of_daemon: Option<&[Tenant]>,
    ) -> Result<TenantView> {
        let clients = self.attributed().await?;
        let daemon = self.stored_daemon(&tenant.spec.daemon).await?;
        let mut reader = self.parts.store.read().await?;
        let verification = store::verifications::get(&mut reader, &tenant.name).await?;
        drop(reader);
        let daemons: Vec<&Daemon> = daemon.iter().collect();
        let blockers = self.tenant_blockers(&[&tenant], &daemons).await?;
        let stored = self.stored_tenants().await?;
        let neighbours = of_daemon.unwrap_or(&stored);
        let reads = self.tenant_reads(ctx, gpus, &daemons, neighbours, &clients, &blockers);
        Ok(self.view_with(&reads, &tenant, verification))
    }

    /// Reads what the tenants of these daemons have in common; `tenants` may be those of all daemons.
    fn tenant_reads<'r>(
        &self,
        ctx: &'r RequestContext,
        gpus: &'r [Gpu],
        daemons: &[&'r Daemon],
        tenants: &'r [Tenant],
        clients: &'r [ClientView],
        blockers: &'r TenantBlockers,
    ) -> TenantReads<'r> {
        let reads = |stored: &'r Daemon| DaemonReads {
            stored,
            status: self.parts.fleet.get(&stored.name).map(|handle| handle.observed().status),
            basis: share_basis(stored, tenants, gpus).map_err(|error| error.to_string()),
            provisioning: provisioning_status(stored, tenants, gpus, clients),
        };
        let mut by_tenant: BTreeMap<&TenantName, Vec<&ClientView>> = BTreeMap::new();
        for client in clients {
            if let Some(tenant) = &client.tenant {
                by_tenant.entry(tenant).or_default().push(client);
            }
        }
        TenantReads {
            ctx,
            gpus,
            blockers,
            daemons: daemons.iter().map(|stored| (&stored.name, reads(stored))).collect(),
            limits: LimitsByGpu::of(daemons.iter().copied(), tenants),
            clients: by_tenant,
        }
    }

    /// A tenant as an actor may see it.
    fn view_with(
        &self,
        reads: &TenantReads<'_>,
        tenant: &Tenant,
        verification: Option<Verification>,
    ) -> TenantView {
        let handed = self.parts.fleet.context().handouts.status(&tenant.directory);
        let status = self.status_with(reads, tenant, verification, handed);
        let Tenant { name, spec, generation, created_at, updated_at, .. } = tenant.clone();
        let workload = Workload::of(&spec.labels).map(|workload| workload.to_string());
        let removed = Vec::new();
        TenantView { name, generation, created_at, updated_at, workload, spec, status, removed }
    }

    /// The status of a tenant as an actor may see it.
    fn status_with(
        &self,
        reads: &TenantReads<'_>,
        tenant: &Tenant,
        verification: Option<Verification>,
        handed: DirectoryStatus,
    ) -> TenantStatus {
        let &TenantReads { ctx, gpus, blockers, ref limits, .. } = reads;
        let of_daemon = reads.daemons.get(&tenant.spec.daemon);
        let stored = of_daemon.map(|daemon| daemon.stored);
        let verification = verification
            .map(|verification| self.dated(verification, tenant, stored).redacted_for(&ctx.actor));
        let clients = reads.clients.get(&tenant.name).map_or(&[][..], Vec::as_slice);
        let mut status = TenantStatus {
            observed_generation: 0,
            conditions: Vec::new(),
            gpus: Vec::new(),
            effective: None,
            clients: u32::try_from(clients.len()).unwrap_or(u32::MAX),
            waiting: handed.waiting,
            queued: self.launches.count(&tenant.name),
            draining: tenant.draining,
            weakens: Vec::new(),
            provisioning: None,
            verification,
        };
        let resolved = of_daemon.ok_or_else(|| without_daemon(tenant)).and_then(|daemon| {
            let basis = daemon.basis.as_ref().map_err(|why| ServiceError::Conflict(why.clone()))?;
            Ok((self.resolved(tenant, daemon.stored, basis.as_ref(), gpus)?, daemon))
        });
        let daemon = of_daemon.and_then(|daemon| daemon.status.as_deref());
        match (daemon, resolved) {
            (Some(daemon), Ok((resolved, DaemonReads { stored, provisioning, .. }))) => {
                let applied = has_applied(daemon, tenant);
                if applied {
                    status.observed_generation = tenant.generation;
                }
                let observed = daemon.effective.as_ref().filter(|_| applied);
                status.effective = observed
                    .and_then(|observed| effective(&resolved, gpus, observed))
                    .map(|effective| with_older_clients(effective, &resolved, clients));
                status.conditions.extend(too_small_for_a_context(&resolved, gpus));
                status.conditions.extend(above_maximum(tenant, status.clients));
                status.conditions.extend(weakened(ctx, tenant, stored, limits, gpus));
                if let Some(provisioning) = provisioning {
                    add_shares(&mut status, tenant, provisioning);
                }
                if ctx.actor.scope().is_none() {
                    status.weakens = limits.weakened_by(tenant, stored);
                }
                let refused = match self.placement(tenant, &resolved, stored.generation) {
                    Err(error) => Some((ConditionReason::PartitionNotProven, error)),
                    Ok(placement) => {
                        if let Some(effective) = &mut status.effective {
                            effective.threads.partitions = placement.partitions();
                        }
                        blockers.refusal(tenant, stored, &placement)
                    }
                };
                let problem = handed.problem.as_ref();
                status.conditions.push(self.readiness(ctx, tenant, daemon, refused, problem));
                status.conditions.extend(problem.map(|problem| socket_condition(ctx, problem)));
                status.gpus = resolved.gpus;
            }
            (None, _) => status
                .conditions
                .push(not_ready(ConditionReason::DaemonNotReady, "its daemon is not managed yet".to_owned())),
            (Some(_), Err(error)) => status
                .conditions
                .push(not_ready(ConditionReason::CannotBeHeld, error.for_actor(&ctx.actor).to_string())),
        }
        if ctx.actor.scope().is_some() {
            keep_own_share(&tenant.name, &mut status);
        }
        status
    }

    /// The condition `Ready` of a tenant whose values are known. `refused` is why a new process would be refused although the
    /// daemon is ready, and `problem` why its socket cannot be handed out.
    fn readiness(
        &self,
        ctx: &RequestContext,
        tenant: &Tenant,
        daemon: &DaemonStatus,
        refused: Option<(ConditionReason, ServiceError)>,
        problem: Option<&Blocker>,
    ) -> Condition {
        let applied = has_applied(daemon, tenant);
        let unlinked = problem.filter(|_| applied && self.client_directory(tenant).is_err());
        let refused = closed_refusal(tenant, self.parts.clock.unix_ms()).or(refused.filter(|_| applied));
        let is_ready = applied && refused.is_none() && unlinked.is_none();
        let (reason, message) = match (refused, unlinked) {
            (Some((reason, error)), _) => (reason, error.for_actor(&ctx.actor).to_string()),
            (None, Some(problem)) => {
                (ConditionReason::SocketNotHandedOut, socket_problem(problem).text_for(&ctx.actor))
            }
            (None, None) if applied => (ConditionReason::AppliedAndReadBack, "limits in force".to_owned()),
            (None, None) => not_applied(ctx, &tenant.spec.daemon, condition::ready(&daemon.conditions)),
        };
        Condition::new(ConditionType::Ready, is_ready, reason, message)
    }
}

/// Returns true if a daemon has applied a tenant's limits and read them back.
fn has_applied(daemon: &DaemonStatus, tenant: &Tenant) -> bool {
    daemon.phase == Phase::Ready && daemon.observed_generation >= tenant.daemon_generation
}

fn not_ready(reason: ConditionReason, message: String) -> Condition {
    Condition::new(ConditionType::Ready, false, reason, message)
}

/// Counts the clients of a tenant that were started with limits that are not its present ones.
fn with_older_clients(
    effective: TenantEffective,
    now: &Resolved,
    clients: &[&ClientView],
) -> TenantEffective {
    let older = clients.iter().filter(|client| client.started_with.differ_from(now)).count();
    let clients_with_other_limits = u64::try_from(older).unwrap_or(u64::MAX);
    TenantEffective { clients_with_other_limits, ..effective }
}

fn without_daemon(tenant: &Tenant) -> ServiceError {
    let (daemon, name) = (&tenant.spec.daemon, &tenant.name);
    conflict!("daemon {daemon} of tenant {name} was deleted in the meantime: try again").visible_to_tenants()
}
