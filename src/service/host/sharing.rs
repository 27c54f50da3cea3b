//! Sharing of the GPUs of each daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::domain::access::Right;
use crate::domain::sharing::{Held, SharedDaemon, SharedGpus};
use crate::domain::tenant::Tenant;
use crate::domain::{GpuUuid, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::{Result, Service};

impl Service {
    /// Returns who shares each GPU that a daemon has, by the last poll of the daemon.
    pub async fn sharing(&self, ctx: &RequestContext) -> Result<Arc<SharedGpus>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let (version, gpus) = (backend.version(), backend.held_gpus().await?);
        if let Some(cached) = backend.cache.sharing.at(version).filter(|cached| cached.is_of(&gpus)) {
            return Ok(cached);
        }
        let daemons = backend.stored_daemons().await?;
        let tenants = backend.stored_tenants().await?;
        let clients = backend.attributed().await?;
        let mut held: BTreeMap<&GpuUuid, BTreeMap<Option<&TenantName>, Held>> = BTreeMap::new();
        for client in clients.iter() {
            for memory in &client.memory {
                let of_gpu = held.entry(&memory.gpu).or_default();
                of_gpu.entry(client.tenant.as_ref()).or_default().add(memory.used_bytes);
            }
        }
        let statuses = backend.parts.fleet.of_each(|observed| observed.status.clone());
        let mut sharing = BTreeMap::new();
        for daemon in daemons.iter() {
            let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
            let of_daemon: Vec<&Tenant> = of_daemon.collect();
            let status = statuses.iter().find(|(name, _)| *name == daemon.name).map(|(_, status)| status);
            let layout = status.and_then(|status| status.layout.as_ref());
            let shared = SharedDaemon {
                daemon,
                tenants: &of_daemon,
                effective: status.and_then(|status| status.effective.as_ref()),
                partitions: layout.map(|layout| layout.partitions.as_slice()).unwrap_or_default(),
                gpus: &gpus,
            };
            for gpu in gpus.iter().filter(|gpu| daemon.spec.gpus.contains(&gpu.uuid.whole())) {
                let of_gpu = held.get(&gpu.uuid);
                let held = |tenant: Option<&TenantName>| {
                    of_gpu.and_then(|held| held.get(&tenant)).copied().unwrap_or_default()
                };
                sharing.insert(gpu.uuid.clone(), shared.on(gpu, held));
            }
        }
        Ok(backend.cache.sharing.keep(version, SharedGpus::new(gpus, sharing)))
    }
}
