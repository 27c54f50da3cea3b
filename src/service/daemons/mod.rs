//! Daemons: created, read, started, stopped.

pub mod adoption;
pub mod foreign;
pub(in crate::service) mod layout_fit;
pub mod logs;
pub mod lost;
pub mod maintenance;
pub mod replace;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::admission::AdmissionError;
use crate::domain::audit::Target;
use crate::domain::daemon::{Daemon, DaemonSpec, DaemonStatus, Incarnation, Management, Mode, Phase};
use crate::domain::gpu::{Gpu, GpuRef, instances_to_choose};
use crate::domain::operation::{Operation, OperationRequest};
use crate::domain::plan::Desired;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, admission};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::change::{Change, ChangeScope};
use crate::service::daemons::foreign::refuse_held;
use crate::service::daemons::layout_fit::{DesiredDaemon, fit_layout};
use crate::service::daemons::maintenance::{checked_drain, refuse_in_maintenance};
use crate::service::error::{Found as _, conflict};
use crate::service::page::{Page, Paged};
use crate::service::{
    Backend, Result, Service, ServiceError, WriteOptions, Written, check_precondition, removed,
};
use crate::store::{self, transact};
use crate::supervisor::LONGEST_PATH;

/// Longest wait for a driver to release a daemon; an action in progress may take two seconds more.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A daemon: desired state and status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DaemonView {
    /// Its name.
    pub name: DaemonName,
    /// Rises with every change of its desired state, including changes of its tenants.
    pub generation: i64,
    /// When it was created.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// When its spec was last changed.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: i64,
    /// Its desired state.
    pub spec: DaemonSpec,
    /// Its observed state; `null` if it has no driver: in the dry run of a new daemon, while the database is read-only, or if
    /// the shares of its tenants cannot be computed.
    pub status: Option<DaemonStatus>,
    /// In the answer to a PUT, also to a dry run: the fields that had a value and get their defaults.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// Revision of the spec, which is also the entity tag.
    #[serde(skip)]
    pub revision: i64,
}

impl Service {
    /// Creates or replaces a daemon; the supervisor reconciles it.
    pub async fn put_daemon(
        &self,
        ctx: &RequestContext,
        name: DaemonName,
        spec: DaemonSpec<GpuRef>,
        options: WriteOptions,
    ) -> Result<Written<DaemonView>> {
        let permit = ctx.require(Right::Administer)?.on(Target::Daemon(name.clone()));
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let gpus = backend.gpus().await?;
        let spec = spec.resolve_gpus(&gpus).map_err(ServiceError::invalid)?;
        spec.check(&gpus).map_err(ServiceError::invalid)?;
        backend.check_name_fits(&name)?;
        let objection = backend.objection_to(&name, &spec, &gpus).await?;
        let service = Arc::clone(backend);
        let (key, dry_run) = (name.clone(), options.dry_run);
        let mut changed =
            transact!(backend, change(&permit, ChangeScope::Daemon(name.clone()), dry_run), |change| {
                let before = change.objects.daemons.get(&key).cloned();
                let written = WrittenDaemon { name: key.clone(), spec, objection, in_host_file: false };
                service.write_daemon(change, written, &options).await?;
                service
                    .admit_tenants(change, &key)?
                    .map_err(|refusal| ServiceError::Conflict(refusal.detail))?;
                Ok(before)
            })?;
        let before = changed.value;
        let daemon = changed.objects.daemons.remove(&name).found("daemon", &name)?;
        let released =
            daemon.spec.is_observed() && before.as_ref().is_some_and(|before| !before.spec.is_observed());
        if let Some(handle) = backend.parts.fleet.get(&daemon.name).filter(|_| released && !dry_run) {
            // No command is written to it after the answer: a running session ends first.
            let timeout = backend.parts.fleet.context().deadline + RELEASE_TIMEOUT;
            if !handle.followed(timeout).await {
                tracing::warn!(daemon = %daemon.name, ?timeout, "an action is still running on a daemon that is to be only observed");
            }
        }
        let mut value = backend.daemon_view(daemon).await?;
        value.removed = before.as_ref().map(|before| removed(&before.spec, &value.spec)).unwrap_or_default();
        Ok(Written { value, created: before.is_none() })
    }

    /// Sets whether a daemon takes new clients, and nothing else.
    pub async fn set_schedulable(
        &self,
        ctx: &RequestContext,
        name: DaemonName,
        schedulable: bool,
        options: WriteOptions,
    ) -> Result<Written<DaemonView>> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let key = name.clone();
        let mut changed = transact!(
            backend,
            change(&permit, ChangeScope::Daemon(name.clone()), options.dry_run),
            |change| {
                let daemon = change.daemon(&key)?.clone();
                check_precondition(&options, Some(daemon.revision))?;
                change.put_daemon(&key, DaemonSpec { schedulable, ..daemon.spec }).await?;
                Ok(())
            }
        )?;
        let daemon = changed.objects.daemons.remove(&name).found("daemon", &name)?;
        Ok(Written { value: backend.daemon_view(daemon).await?, created: false })
    }

    /// One daemon; with `fresh`, after a new poll.
    pub async fn daemon(&self, ctx: &RequestContext, name: &DaemonName, fresh: bool) -> Result<DaemonView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let daemon = backend.stored_daemon(name).await?.found("daemon", name)?;
        if fresh && let Some(handle) = backend.parts.fleet.get(name) {
            handle.fresh(backend.parts.timeout).await?;
        }
        backend.daemon_view(daemon).await
    }

    /// The desired state computed from a daemon's spec and tenants; `None` if it has no driver.
    pub fn daemon_desired(&self, ctx: &RequestContext, name: &DaemonName) -> Result<Option<Desired>> {
        let backend = self.with(&ctx.require(Right::View)?);
        Ok(backend.parts.fleet.get(name).map(|handle| handle.desired()))
    }

    /// Daemons by name.
    pub async fn daemons(&self, ctx: &RequestContext, page: &Page) -> Result<Paged<DaemonView>> {
        let backend = self.with(&ctx.require(Right::View)?);
        page.key::<DaemonName>()?;
        let daemons = backend.stored_daemons().await?;
        let rest = daemons.iter().filter(|daemon| daemon.name.as_str() > page.after.as_str());
        let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
        let daemons: Vec<Daemon> = rest.take(rows).cloned().collect();
        let paged = page.cut(daemons, |daemon| daemon.name.to_string());
        let mut items = Vec::with_capacity(paged.items.len());
        for daemon in paged.items {
            let mut view = backend.daemon_view(daemon).await?;
            if let Some(provisioning) = view.status.as_mut().and_then(|status| status.provisioning.as_mut()) {
                // A list of many daemons, each with many tenants, would be mostly shares.
                provisioning.shares.clear();
            }
            items.push(view);
        }
        Ok(Paged { items, next_cursor: paged.next_cursor })
    }

    /// Requests an operation on a daemon.
    pub async fn operate(
        &self,
        ctx: &RequestContext,
        name: DaemonName,
        request: OperationRequest,
        options: WriteOptions,
    ) -> Result<Operation> {
        // Only an admin changes a daemon's definition, which includes deleting it.
        let right = match request {
            OperationRequest::DeleteDaemon { .. } => Right::Administer,
            _ => Right::Operate,
        };
        let permit = ctx.require(right)?;
        let backend = self.with(&permit);
        backend.operate_now(&permit, name, request, options).await
    }
}

/// A daemon's spec that is to be written, with its GPUs known and checked in itself.
pub(in crate::service) struct WrittenDaemon {
    pub(in crate::service) name: DaemonName,
    pub(in crate::service) spec: DaemonSpec,
    /// Reason why it cannot be managed, if it was only observed so far.
    pub(in crate::service) objection: Option<String>,
    /// True if the spec comes from a host file, where a layout stands under `bindings`.
    pub(in crate::service) in_host_file: bool,
}

impl Backend {
    /// Returns the reason why a daemon that was only observed cannot be managed; `None` if it can.
    pub(in crate::service) async fn objection_to(
        &self,
        name: &DaemonName,
        spec: &DaemonSpec,
        gpus: &[Gpu],
    ) -> Result<Option<String>> {
        match spec.management {
            Management::Managed => Box::pin(self.objection_to_manage(name, gpus)).await,
            Management::Observed => Ok(None),
        }
    }

    /// Writes a spec; refuses one that the host cannot follow. The caller checks with [`Backend::admit_tenants`] that it fits its tenants,
    /// once all of them are written.
    pub(in crate::service) async fn write_daemon(
        &self,
        change: &mut Change<'_>,
        written: WrittenDaemon,
        options: &WriteOptions,
    ) -> Result<()> {
        let WrittenDaemon { name, mut spec, objection, in_host_file } = written;
        let current = change.objects.daemons.get(&name).cloned();
        let current = current.as_ref();
        check_precondition(options, current.map(|daemon| daemon.revision))?;
        change.refuse_namesake("daemon", name.as_str()).await?;
        self.check_management(change, current, &name, &spec).await?;
        if let Some(current) = current.filter(|current| current.spec.gpus != spec.gpus) {
            // Clients of GPUs in maintenance would not be drained.
            change.refuse_in_maintenance(&name, &current.spec)?;
            change.refuse_in_maintenance(&name, &spec)?;
        }
        if let Some(reason) = objection.filter(|_| current.is_some_and(|daemon| daemon.spec.is_observed())) {
            return Err(conflict!("daemon {name} cannot be managed: {reason}"));
        }
        if spec.management == Management::Managed {
            change.refuse_held(&spec.gpus, Some(&name))?;
        }
        refuse_mig(&spec, current, &change.gpus)?;
        let capability = &self.parts.fleet.context().capability;
        let lacks = [capability.lacks_static(), capability.lacks_multi_user(), capability.lacks_mlopart()];
        refuse_unsupported(&name, &spec, current, lacks)?;
        let runs = self.runs(&name);
        let desired = DesiredDaemon { name: &name, spec: &spec, runs, in_host_file };
        spec.layout = fit_layout(change, current, &desired).await?;
        Ok(change.put_daemon(&name, spec).await?)
    }

    /// Checks that a daemon can hold its tenants.
    pub(in crate::service) fn admit_tenants(
        &self,
        change: &Change<'_>,
        name: &DaemonName,
    ) -> Result<Result<(), AdmissionError>> {
        let (spec, gpus) = (&change.daemon(name)?.spec, &change.gpus);
        let ceiling = self.parts.fleet.context().capability.client_ceiling();
        Ok(admission::expected_clients_fit(name.as_str(), spec, gpus, ceiling)
            .and_then(|()| admission::admit(name.as_str(), spec, &change.specs_of(name), gpus, ceiling)))
    }

    pub(super) async fn daemon_view(&self, daemon: Daemon) -> Result<DaemonView> {
        let mut status = self.parts.fleet.get(&daemon.name).map(|handle| handle.status());
        if let Some(status) = &mut status {
            status.provisioning = self.provisioning_of(&daemon).await?;
        }
        let Daemon { name, spec, revision, generation, created_at, updated_at } = daemon;
        Ok(DaemonView {
            name,
            generation,
            created_at,
            updated_at,
            spec,
            status,
            removed: Vec::new(),
            revision,
        })
    }

    /// Returns true if a daemon has a control process, or may have one that was not found yet.
    pub(in crate::service) fn runs(&self, name: &DaemonName) -> bool {
        self.parts.fleet.get(name).is_some_and(|handle| {
            let status = handle.observed().status;
            status.pid.is_some() || status.phase == Phase::Unknown
        })
    }

    /// Refuses a name whose pipe directory would be too long for sockets.
    pub(in crate::service) fn check_name_fits(&self, name: &DaemonName) -> Result<()> {
        let pipe = self.parts.fleet.context().pipe_directory(name);
        let length = pipe.as_os_str().len();
        if length <= LONGEST_PATH {
            return Ok(());
        }
        Err(conflict!(
            "the pipe directory {} would have {length} bytes, and the path of a socket leaves room for {LONGEST_PATH}: \
             choose a shorter name, or serve with a shorter --runtime-dir",
            pipe.display()
        ))
    }

    /// Requests an operation on a daemon for a caller whose right was already checked.
    pub(super) async fn operate_now(
        &self,
        permit: &Permit,
        name: DaemonName,
        request: OperationRequest,
        options: WriteOptions,
    ) -> Result<Operation> {
        self.refuse_read_only().await?;
        if let OperationRequest::DrainDaemon { timeout_s, .. } = request {
            checked_drain("/timeout_s", timeout_s)?;
        }
        let precondition = options.clone();
        transact!(self, request_operation(permit, options), |db, _| {
            let daemon = store::daemons::get(&mut *db, &name).await?.found("daemon", &name)?;
            check_precondition(&precondition, Some(daemon.revision))?;
            refuse_observed(&mut *db, &daemon, &request).await?;
            if matches!(request, OperationRequest::DeleteDaemon { .. }) {
                refuse_with_tenants(&name, &store::tenants::of_daemon(&mut *db, &name).await?)?;
            }
            let brings_up = matches!(
                request,
                OperationRequest::StartDaemon
                    | OperationRequest::RestartDaemon { .. }
                    | OperationRequest::DrainDaemon { .. }
            );
            if matches!(request, OperationRequest::StartDaemon) {
                // A host file replaced it, and its deletion failed: its GPUs are another one's.
                refuse_held(&mut *db, &daemon.spec.gpus, Some(&name), &[]).await?;
            }
            if brings_up {
                refuse_in_maintenance(&mut *db, &name, &daemon.spec).await?;
            }
            Ok((request, vec![name]))
        })
    }

    /// Checks that the store can be read.
    pub async fn check_store(&self) -> Result<()> {
        store::daemons::page(&mut *self.parts.store.read().await?, "", 1).await?;
        Ok(())
    }

    /// The daemons that have not reached their desired state, with their phase; all or one of them.
    ///
    /// A stored daemon without a driver, as when its GPUs are gone, has an unknown phase and is never ready.
    pub async fn not_ready(&self, daemon: Option<&DaemonName>) -> Result<Vec<(DaemonName, Phase)>> {
        let stored = self.stored_daemons().await?;
        let mut names = stored.iter().map(|daemon| daemon.name.clone());
        let names: Vec<DaemonName> = match daemon {
            Some(name) => vec![names.find(|stored| stored == name).found("daemon", name)?],
            None => names.collect(),
        };
        let mut phases: std::collections::BTreeMap<_, _> = self.parts.fleet.not_ready().into_iter().collect();
        let unready = names.into_iter().filter_map(|name| {
            let unmanaged = || self.parts.fleet.get(&name).is_none().then_some(Phase::Unknown);
            let phase = phases.remove(&name).or_else(unmanaged)?;
            Some((name, phase))
        });
        Ok(unready.collect())
    }
}

/// Refuses a GPU in MIG mode as a whole; a daemon whose GPU was switched to MIG mode later may still be changed.
fn refuse_mig(spec: &DaemonSpec, current: Option<&Daemon>, gpus: &[Gpu]) -> Result<()> {
    let taken = spec.gpus.iter().filter(|uuid| current.is_none_or(|daemon| !daemon.spec.gpus.contains(uuid)));
    let mut described = taken.filter_map(|uuid| gpus.iter().find(|gpu| gpu.uuid == *uuid));
    described.try_for_each(|gpu| refuse_mig_mode(gpu, gpus))
}

/// Refuses what the control program lacks. A daemon that has had it since before the program was replaced may still be changed, and
/// reports why it does not start.
fn refuse_unsupported(
    name: &DaemonName,
    spec: &DaemonSpec,
    current: Option<&Daemon>,
    [lacks_static, lacks_multi_user, lacks_mlopart]: [Option<String>; 3],
) -> Result<()> {
    let begins = |has: fn(&DaemonSpec) -> bool| has(spec) && current.is_none_or(|daemon| !has(&daemon.spec));
    if let Some(reason) = lacks_static.filter(|_| begins(|spec| spec.mode == Mode::Static)) {
        return Err(conflict!("daemon {name} cannot be in static mode: {reason}, or leave its mode shared"));
    }
    if let Some(reason) = lacks_multi_user.filter(|_| begins(|spec| spec.multi_user)) {
        return Err(conflict!("daemon {name} cannot have multi_user: {reason}, or leave multi_user out"));
    }
    if let Some(reason) = lacks_mlopart.filter(|_| begins(|spec| spec.mlopart)) {
        return Err(conflict!("daemon {name} cannot have mlopart: {reason}, or leave mlopart out"));
    }
    Ok(())
}

/// Refuses a GPU in MIG mode as a whole.
pub(super) fn refuse_mig_mode(gpu: &Gpu, gpus: &[Gpu]) -> Result<()> {
    if gpu.mig_enabled {
        return Err(conflict!(
            "GPU {} ({}) is in MIG mode, where MPS serves its instances: {}, or switch MIG mode off (nvidia-smi -i {} -mig 0)",
            gpu.index,
            gpu.uuid,
            instances_to_choose(gpu, gpus),
            gpu.index
        ));
    }
    Ok(())
}

pub(super) fn refuse_with_tenants(name: &DaemonName, tenants: &[Tenant]) -> Result<()> {
    if tenants.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = tenants.iter().map(|tenant| tenant.name.to_string()).collect();
    Err(conflict!("daemon {name} serves the tenants {}: delete or move them first", names.join(", ")))
}

/// Refuses to change a daemon that is only observed.
async fn refuse_observed(
    db: store::Transaction<'_>,
    daemon: &Daemon,
    request: &OperationRequest,
) -> Result<()> {
    if daemon.spec.management == Management::Managed {
        return Ok(());
    }
    let earlier = store::daemons::incarnation(db, &daemon.name).await?;
    let foreign = earlier.as_ref().is_some_and(Incarnation::is_foreign);
    let remedy = match request {
        OperationRequest::DeleteDaemon { .. } if foreign => "release it, which leaves its process running",
        OperationRequest::DeleteDaemon { .. } => {
            "set its management to managed first, or release it once it no longer runs"
        }
        _ => "set its management to managed first, or have its owner do it",
    };
    Err(conflict!(
        "daemon {} is only observed and never changed ({} refused): {remedy}",
        daemon.name,
        request.kind()
    )
    .visible_to_tenants())
}
