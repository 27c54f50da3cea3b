//! Tenants of layouts that thread percentages enforce.

use std::collections::BTreeMap;

use crate::domain::access::Right;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::Enforcement;
use crate::domain::layout::percentage::own_share::own_shares;
use crate::domain::layout::status::LayoutState;
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::{GpuUuid, TenantName, ThreadPercentage};
use crate::service::access::context::RequestContext;
use crate::service::error::conflict;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store;

impl Service {
    /// The chunks of each GPU on which a CUDA client has counted them.
    pub async fn chunk_counts(&self, ctx: &RequestContext) -> Result<BTreeMap<GpuUuid, ChunkCensus>> {
        let backend = self.with(&ctx.require(Right::View)?);
        Ok(store::probe_results::chunks(&mut *backend.parts.store.read().await?).await?)
    }
}

impl Backend {
    /// The thread percentage of the tenant's partitions on its GPUs; `None` for a tenant outside any layout of this kind.
    ///
    /// Refused until the layout is in force for `generation` of the daemon or a later one: the environment would belong to another
    /// layout, or to none.
    pub(super) fn share_of(
        &self,
        tenant: &Tenant,
        gpus: &[GpuUuid],
        generation: i64,
    ) -> Result<Option<ThreadPercentage>> {
        let Some(handle) = self.parts.fleet.get(&tenant.spec.daemon) else { return Ok(None) };
        let status = handle.observed().status;
        let Some(layout) = &status.layout else { return Ok(None) };
        let mine: Vec<_> =
            layout.partitions.iter().filter(|partition| partition.tenants.contains(&tenant.name)).collect();
        if layout.enforcement != Enforcement::Percentage || mine.is_empty() {
            return Ok(None);
        }
        if layout.generation < generation || layout.state != LayoutState::Applied {
            return Err(conflict!(
                "the layout of daemon {} is not in force, and tenant {} is in it: wait until it is",
                tenant.spec.daemon,
                tenant.name
            )
            .visible_to_tenants());
        }
        if let Some(gpu) = gpus.iter().find(|gpu| mine.iter().all(|partition| partition.gpu != **gpu)) {
            return Err(conflict!(
                "tenant {} has no partition on {gpu}, but its processes have one thread percentage for all their GPUs: bind it to a \
                 partition there, or remove the GPU from the tenant's gpus",
                tenant.name
            ).visible_to_tenants());
        }
        Ok(mine.first().and_then(|partition| partition.percentage))
    }
}

/// Refuses a tenant that sets its own SMs while the layout of its daemon sets them.
pub(super) async fn refuse_own_share(
    db: store::Transaction<'_>,
    daemon: &Daemon,
    name: &TenantName,
    spec: &TenantSpec,
) -> Result<()> {
    let Some(active) = &daemon.spec.layout else { return Ok(()) };
    let layout = store::layouts::content(db, active).await?;
    if layout.enforcement != Enforcement::Percentage {
        return Ok(());
    }
    match own_shares(&layout, [(name, spec)]).next() {
        Some(share) => Err(ServiceError::Conflict(share.to_string())),
        None => Ok(()),
    }
}
