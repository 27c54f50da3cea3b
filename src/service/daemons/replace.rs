//! Replacing a GPU that is permanently missing.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::domain::access::Right;
use crate::domain::event::{ChangedTenant, DomainEvent};
use crate::domain::gpu::{Gpu, GpuRef};
use crate::domain::layout::map_roles;
use crate::domain::{DaemonName, DeviceMemoryLimit, GpuUuid, TenantName, admission};
use crate::service::access::context::RequestContext;
use crate::service::daemons::adoption::refuse_while_operated;
use crate::service::daemons::foreign::refuse_held;
use crate::service::daemons::maintenance::refuse_in_maintenance;
use crate::service::daemons::{DaemonView, refuse_mig_mode};
use crate::service::{Service, ServiceError, WriteOptions, transaction_end};
use crate::store;

/// The GPU that replaces the missing one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// The new GPU, which no daemon holds.
    pub with: GpuRef,
}

/// A completed replacement of a missing GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Replacement {
    /// The missing GPU.
    pub replaced: GpuUuid,
    /// Its replacement.
    pub with: GpuUuid,
    /// The daemon that had the missing GPU.
    pub daemon: DaemonView,
    /// The tenants whose spec named the missing GPU.
    pub tenants: Vec<TenantName>,
}

impl Service {
    /// Replaces a missing GPU by one that is present, for its daemon and all tenants that name it.
    pub async fn replace_gpu(
        &self,
        ctx: &RequestContext,
        old: String,
        request: ReplaceRequest,
        options: WriteOptions,
    ) -> Result<Replacement, ServiceError> {
        let permit = ctx.require(Right::Administer)?.on_any_spec();
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let missing = self.gpu(ctx, &old).await?;
        let old = missing.uuid;
        if missing.present {
            return Err(ServiceError::Conflict(format!(
                "{old} is still in this host: only a missing GPU can be replaced; to use another, change the gpus of \
                 its daemon"
            )));
        }
        let gpus = backend.gpus().await?;
        let new = replacement(&request, &gpus)?.clone();
        let ceiling = backend.parts.fleet.context().capability.client_ceiling();
        let manager_uid = backend.parts.manager_uid;
        let dry_run = options.dry_run;
        let (replaced, with) = (old.clone(), new.uuid.clone());
        let (by, clock) = (ctx.cause(), ctx.clock);
        let (daemon, tenants, desired) = backend
            .write(&permit, move |db| {
                Box::pin(async move {
                    let name = holder(db, &old).await?;
                    let current = store::daemons::get(&mut *db, &name).await?.ok_or_else(|| lost(&name))?;
                    refuse_while_operated(&mut *db, &name).await?;
                    let before = current.spec.clone();
                    let mut either = current.spec;
                    either.gpus = vec![old.clone(), new.uuid.clone()];
                    refuse_in_maintenance(&mut *db, &name, &either).await?;
                    refuse_held(&mut *db, std::slice::from_ref(&new.uuid), None, &gpus).await?;
                    let tenants = exchange(db, &name, (&old, &new.uuid), &gpus, ceiling, clock).await?;
                    store::gpus::remember(&mut *db, &gpus, clock.unix_ms()).await?;
                    let daemon = store::daemons::get(&mut *db, &name).await?.ok_or_else(|| lost(&name))?;
                    let mut events =
                        vec![DomainEvent::GpuReplaced { daemon: name.clone(), old, new: new.uuid.clone() }];
                    events.extend(store::operations::daemon_changed(&name, &before, &daemon.spec, None)?);
                    events.extend(tenants.iter().map(|tenant| tenant_changed(tenant, &name, &new.uuid)));
                    for event in events {
                        store::events::append(&mut *db, &event.because(by.clone()), clock.unix_ms()).await?;
                    }
                    let desired = store::plans::desired(db, &name, &gpus, manager_uid).await?;
                    Ok(((daemon, tenants, desired), transaction_end(&options)))
                })
            })
            .await?;
        if !dry_run {
            tracing::info!(%replaced, %with, daemon = %daemon.name, "a missing GPU was replaced");
            backend.publish(desired);
        }
        Ok(Replacement { replaced, with, daemon: backend.daemon_view(daemon).await?, tenants })
    }
}

/// The event for a tenant that named the old GPU.
fn tenant_changed(tenant: &TenantName, daemon: &DaemonName, new: &GpuUuid) -> DomainEvent {
    DomainEvent::TenantChanged(ChangedTenant {
        tenant: tenant.clone(),
        daemon: Some(daemon.clone()),
        gpu: Some(new.clone()),
        fields: vec!["gpus".to_owned()],
    })
}

/// The replacing GPU.
fn replacement<'g>(request: &ReplaceRequest, gpus: &'g [Gpu]) -> Result<&'g Gpu, ServiceError> {
    let gpu = request.with.resolve(gpus).map_err(|error| ServiceError::field("/with", error.to_string()))?;
    if !gpu.present {
        return Err(ServiceError::Conflict(format!(
            "{} is missing too: choose one that is present",
            gpu.uuid
        )));
    }
    refuse_mig_mode(gpu)?;
    Ok(gpu)
}

async fn holder(db: store::Transaction<'_>, gpu: &GpuUuid) -> Result<DaemonName, ServiceError> {
    let holder = store::daemons::holder(db, gpu).await?;
    holder.ok_or_else(|| ServiceError::NotFound { kind: "daemon with GPU", name: gpu.to_string() })
}

/// Writes the new GPU wherever the old one was, if the daemon can hold its tenants on it; returns the changed tenants.
async fn exchange(
    db: store::Transaction<'_>,
    name: &DaemonName,
    (old, new): (&GpuUuid, &GpuUuid),
    gpus: &[Gpu],
    ceiling: u32,
    clock: Clock,
) -> Result<Vec<TenantName>, ServiceError> {
    let place = |list: &[GpuUuid]| in_its_place(list, old, new, gpus);
    let mut spec = store::daemons::get(&mut *db, name).await?.ok_or_else(|| lost(name))?.spec;
    spec.gpus = place(&spec.gpus);
    let of_new = |limit: DeviceMemoryLimit| limit.exchanged(old, new, gpus);
    spec.defaults.device_memory_limit = spec.defaults.device_memory_limit.map(of_new);
    if let Some(layout) = &mut spec.layout {
        let held = layout.gpu_map.clone();
        for gpu in layout.gpu_map.values_mut().filter(|gpu| *gpu == old) {
            *gpu = new.clone();
        }
        if layout.gpu_map != held {
            let content = store::layouts::content(&mut *db, layout).await?;
            map_roles(&content, &layout.gpu_map, &spec.gpus, gpus).map_err(|error| {
                ServiceError::Conflict(format!(
                    "layout {} of daemon {name} cannot be put on {new}: {error}. Choose another, or apply another layout first",
                    layout.version_ref()
                ))
            })?;
            // Another die may give other IDs; those given now are recorded from then on.
            store::layouts::put_applied(&mut *db, name, None, clock.unix_ms()).await?;
        }
    }
    let stored = store::tenants::of_daemon(&mut *db, name).await?;
    let mut changed = Vec::new();
    let mut tenants = Vec::new();
    for mut tenant in stored {
        let limit = tenant.spec.device_memory_limit.clone().map(of_new);
        if tenant.spec.gpus.contains(old) || tenant.spec.device_memory_limit != limit {
            tenant.spec.gpus =
                if tenant.spec.gpus.is_empty() { Vec::new() } else { place(&tenant.spec.gpus) };
            tenant.spec.device_memory_limit = limit;
            changed.push(tenant.name.clone());
        }
        tenants.push((tenant.name, tenant.spec));
    }
    admission::admit(name.as_str(), &spec, &tenants, gpus, ceiling)
        .map_err(|refusal| ServiceError::Conflict(refusal.detail))?;
    store::daemons::put(&mut *db, name, &spec, clock.unix_ms()).await?;
    let generation = store::daemons::get(&mut *db, name).await?.ok_or_else(|| lost(name))?.generation;
    for (tenant, spec) in tenants.iter().filter(|(tenant, _)| changed.contains(tenant)) {
        store::tenants::put(&mut *db, tenant, spec, generation, clock.unix_ms()).await?;
    }
    Ok(changed)
}

/// The list with `new` for `old`, in PCI order, which is MPS's order.
fn in_its_place(list: &[GpuUuid], old: &GpuUuid, new: &GpuUuid, gpus: &[Gpu]) -> Vec<GpuUuid> {
    let mut list: Vec<GpuUuid> =
        list.iter().map(|gpu| if gpu == old { new.clone() } else { gpu.clone() }).collect();
    list.sort_by_key(|uuid| gpus.iter().find(|gpu| gpu.uuid == *uuid).map_or(u32::MAX, |gpu| gpu.index));
    list
}

fn lost(name: &DaemonName) -> ServiceError {
    ServiceError::Internal(format!("daemon {name} disappeared during a transaction"))
}
