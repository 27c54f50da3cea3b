//! Replacing a GPU that is permanently missing.

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::event::DomainEvent;
use crate::domain::gpu::{Gpu, GpuRef};
use crate::domain::layout::map_roles;
use crate::domain::tenant::TenantSpec;
use crate::domain::{DaemonName, DeviceMemoryLimit, GpuUuid, TenantName, admission};
use crate::service::access::context::RequestContext;
use crate::service::change::{Change, ChangeScope, Changed};
use crate::service::daemons::adoption::refuse_while_operated;
use crate::service::daemons::{DaemonView, refuse_mig_mode};
use crate::service::error::{Found as _, conflict};
use crate::service::{Result, Service, ServiceError, WriteOptions};
use crate::store::{self, transact};

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
    ) -> Result<Replacement> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let missing = self.gpu(ctx, &old).await?;
        let old = missing.uuid;
        if missing.present {
            return Err(conflict!(
                "{old} is still in this host: only a missing GPU can be replaced; to use another, change the gpus of \
                 its daemon"
            ));
        }
        let gpus = backend.gpus().await?;
        let new = replacement(&request, &gpus)?.clone();
        let ceiling = backend.parts.fleet.context().capability.client_ceiling();
        let dry_run = options.dry_run;
        let (replaced, with) = (old.clone(), new.uuid.clone());
        let changed = transact!(backend, change(&permit, ChangeScope::Whole, dry_run), |change| {
            let name = change.objects.holder(&old).cloned();
            let name = name.found("daemon with GPU", &old)?;
            refuse_while_operated(&mut *change.db, &name).await?;
            let mut either = change.daemon(&name)?.spec.clone();
            either.gpus = vec![old.clone(), new.uuid.clone()];
            change.refuse_in_maintenance(&name, &either)?;
            change.refuse_held(std::slice::from_ref(&new.uuid), None)?;
            let tenants = exchange(change, &name, (&old, &new.uuid), ceiling).await?;
            change.report(DomainEvent::GpuReplaced { daemon: name.clone(), old, new: new.uuid.clone() });
            change.exchanged_for = Some(new.uuid);
            Ok((name, tenants))
        })?;
        let Changed { value: (name, tenants), mut objects, .. } = changed;
        let daemon = objects.daemons.remove(&name).found("daemon", &name)?;
        if !dry_run {
            tracing::info!(%replaced, %with, daemon = %name, "a missing GPU was replaced");
        }
        Ok(Replacement { replaced, with, daemon: backend.daemon_view(daemon).await?, tenants })
    }
}

/// The replacing GPU.
fn replacement<'g>(request: &ReplaceRequest, gpus: &'g [Gpu]) -> Result<&'g Gpu> {
    let gpu = request.with.resolve(gpus).map_err(|error| ServiceError::field("/with", error.to_string()))?;
    if !gpu.present {
        return Err(conflict!("{} is missing too: choose one that is present", gpu.uuid));
    }
    refuse_mig_mode(gpu, gpus)?;
    Ok(gpu)
}

/// Writes the new GPU wherever the old one was, if the daemon can hold its tenants on it; returns the changed tenants.
async fn exchange(
    change: &mut Change<'_>,
    name: &DaemonName,
    (old, new): (&GpuUuid, &GpuUuid),
    ceiling: u32,
) -> Result<Vec<TenantName>> {
    let gpus = change.gpus.clone();
    let place = |list: &[GpuUuid]| in_its_place(list, old, new, &gpus);
    let mut spec = change.daemon(name)?.spec.clone();
    spec.gpus = place(&spec.gpus);
    spec.check(&gpus).map_err(|(_, error)| conflict!("daemon {name} cannot be on {new}: {error}"))?;
    let of_new = |limit: DeviceMemoryLimit| limit.exchanged(old, new, &gpus);
    spec.defaults.device_memory_limit = spec.defaults.device_memory_limit.map(of_new);
    if let Some(layout) = &mut spec.layout {
        let held = layout.gpu_map.clone();
        for gpu in layout.gpu_map.values_mut().filter(|gpu| *gpu == old) {
            *gpu = new.clone();
        }
        if layout.gpu_map != held {
            let content = store::layouts::content(&mut *change.db, layout).await?;
            map_roles(&content, &layout.gpu_map, &spec.gpus, &gpus).map_err(|error| {
                conflict!(
                    "layout {} of daemon {name} cannot be put on {new}: {error}. Choose another, or apply another layout first",
                    layout.version_ref()
                )
            })?;
            // Another die may give other IDs; those given now are recorded from then on.
            store::layouts::put_applied(&mut *change.db, name, None, change.now).await?;
        }
    }
    let mut changed = Vec::new();
    let tenants: Vec<(TenantName, TenantSpec)> =
        change.specs_of(name).into_iter().map(|(tenant, spec)| (tenant.clone(), spec.clone())).collect();
    for (tenant, mut spec) in tenants {
        let limit = spec.device_memory_limit.clone().map(of_new);
        if spec.gpus.contains(old) || spec.device_memory_limit != limit {
            spec.gpus = if spec.gpus.is_empty() { Vec::new() } else { place(&spec.gpus) };
            spec.device_memory_limit = limit;
            change.put_tenant(&tenant, spec)?;
            changed.push(tenant);
        }
    }
    admission::admit(name.as_str(), &spec, &change.specs_of(name), &gpus, ceiling)
        .map_err(|refusal| ServiceError::Conflict(refusal.detail))?;
    change.put_daemon(name, spec).await?;
    Ok(changed)
}

/// The list with `new` for `old`, in PCI order, which is MPS's order.
fn in_its_place(list: &[GpuUuid], old: &GpuUuid, new: &GpuUuid, gpus: &[Gpu]) -> Vec<GpuUuid> {
    let mut list: Vec<GpuUuid> =
        list.iter().map(|gpu| if gpu == old { new.clone() } else { gpu.clone() }).collect();
    list.sort_by_key(|uuid| gpus.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index));
    list
}
