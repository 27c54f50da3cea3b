//! The host and its GPUs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Service, ServiceError};
use crate::domain::DaemonName;
use crate::domain::gpu::{Gpu, GpuRef};
use crate::store;

/// The host, its driver and its MPS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostView {
    /// The host's name.
    pub hostname: String,
    /// Whether the host is simulated: then nothing said of GPUs, servers or clients is real.
    pub simulated: bool,
    /// Which simulated host it is.
    pub profile: Option<String>,
    /// The display driver's version.
    pub driver_version: String,
    /// The newest CUDA that the driver serves.
    pub cuda_version: Option<String>,
    /// The number that `nvidia-cuda-mps-control -v` prints.
    pub mps_binary_version: u32,
    /// Whether this MPS has static SM partitions.
    pub static_partitions: bool,
    /// Clients that one device takes with this MPS.
    pub client_ceiling: u32,
    /// This boot of the host.
    pub boot_id: String,
    /// The version of this manager.
    pub manager_version: String,
    /// The user that this manager runs as.
    pub manager_uid: u32,
    /// How many GPUs the host has.
    pub gpus: usize,
    /// Whether the driver is asked; while it is not, for maintenance, all of this is as it was seen last.
    pub live: bool,
}

/// A GPU, who holds it, and what is promised and used of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuView {
    /// The GPU.
    #[serde(flatten)]
    pub gpu: Gpu,
    /// The daemon that holds it.
    #[schema(value_type = Option<String>)]
    pub daemon: Option<DaemonName>,
    /// Memory that admission has promised to tenants, in bytes; a tenant without a limit counts as the whole GPU.
    pub memory_promised: u64,
    /// The processes that the driver lists on it; none while it is not asked.
    pub processes: Vec<GpuProcessView>,
    /// Whether the driver is asked; while it is not, for maintenance, the GPU is shown as it was seen last.
    pub live: bool,
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuProcessView {
    /// Process ID.
    pub pid: u32,
    /// What it is to MPS.
    pub kind: GpuProcessKind,
    /// Memory it holds, in bytes; `null` where the driver does not tell.
    pub used_memory: Option<u64>,
}

/// What a process on a GPU is to MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuProcessKind {
    /// A server of a daemon here.
    Server,
    /// An MPS client, of a daemon here or of another.
    Client,
    /// A process that goes past MPS: no limit holds it.
    Bypass,
}

impl Service {
    /// The host.
    pub async fn host(&self) -> Result<HostView, ServiceError> {
        let inventory = Arc::clone(&self.parts.inventory);
        let (driver, gpus) = tokio::task::spawn_blocking(move || (inventory.driver(), inventory.gpus()))
            .await
            .map_err(|error| ServiceError::Internal(error.to_string()))?;
        let unavailable = |error: crate::gpu::InventoryError| ServiceError::Unavailable(error.to_string());
        let (driver, gpus) = (driver.map_err(unavailable)?, gpus.map_err(unavailable)?);
        let context = self.parts.fleet.context();
        Ok(HostView {
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            simulated: driver.simulated,
            profile: driver.profile,
            driver_version: driver.driver_version,
            cuda_version: driver.cuda_version,
            mps_binary_version: context.capability.binary_version,
            static_partitions: context.capability.static_partitions(),
            client_ceiling: context.capability.client_ceiling(),
            boot_id: context.boot_id.clone(),
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
            manager_uid: self.parts.manager_uid,
            gpus: gpus.len(),
            live: self.parts.inventory.live(),
        })
    }

    /// All GPUs, in PCI order.
    pub async fn gpu_views(&self) -> Result<Vec<GpuView>, ServiceError> {
        let mut views = Vec::new();
        for gpu in self.gpus().await? {
            views.push(self.gpu_view(gpu).await?);
        }
        Ok(views)
    }

    /// One GPU by UUID, unique prefix, index or PCI address.
    pub async fn gpu(&self, name: &str) -> Result<GpuView, ServiceError> {
        let gpus = self.gpus().await?;
        let not_found = |_| ServiceError::NotFound { kind: "GPU", name: name.chars().take(80).collect() };
        let gpu = GpuRef(name.to_owned()).resolve(&gpus).map_err(not_found)?;
        self.gpu_view(gpu.clone()).await
    }

    async fn gpu_view(&self, gpu: Gpu) -> Result<GpuView, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let holder = store::daemons::holder(&mut reader, &gpu.uuid).await?;
        let mut memory_promised = 0;
        if let Some(name) = &holder
            && let Some(daemon) = store::daemons::get(&mut reader, name).await?
        {
            let tenants = store::tenants::of_daemon(&mut reader, name).await?;
            memory_promised = tenants
                .iter()
                .filter(|tenant| tenant.spec.gpus.is_empty() || tenant.spec.gpus.contains(&gpu.uuid))
                .map(|tenant| crate::domain::admission::budget(&tenant.spec, &daemon.spec, &gpu))
                .sum();
        }
        drop(reader);
        let inventory = Arc::clone(&self.parts.inventory);
        let uuid = gpu.uuid.clone();
        let processes = tokio::task::spawn_blocking(move || inventory.processes(&uuid))
            .await
            .map_err(|error| ServiceError::Internal(error.to_string()))?;
        let (processes, live) = match processes {
            Err(crate::gpu::InventoryError::Suspended) => (Vec::new(), false),
            processes => (processes.map_err(|error| ServiceError::Unavailable(error.to_string()))?, true),
        };
        let servers: Vec<u32> = self
            .parts
            .fleet
            .observed()
            .iter()
            .flat_map(|(_, observed)| observed.status.effective.iter().flat_map(|seen| &seen.servers))
            .map(|server| server.pid)
            .collect();
        let processes = processes
            .into_iter()
            .map(|process| GpuProcessView {
                pid: process.pid,
                kind: match process {
                    _ if servers.contains(&process.pid) => GpuProcessKind::Server,
                    _ if process.mps_client => GpuProcessKind::Client,
                    _ if is_mps_server(process.pid) => GpuProcessKind::Server,
                    _ => GpuProcessKind::Bypass,
                },
                used_memory: process.used_memory,
            })
            .collect();
        Ok(GpuView { gpu, daemon: holder, memory_promised, processes, live })
    }
}

/// Whether a process that no daemon here owns is a server of another daemon.
fn is_mps_server(pid: u32) -> bool {
    crate::host::process::command(pid)
        .and_then(|words| words.first().cloned())
        .is_some_and(|program| program.ends_with("nvidia-cuda-mps-server"))
}
