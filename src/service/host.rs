//! The host and its GPUs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::take_up::ReadOnly;
use super::{Service, ServiceError, unavailable};
use crate::domain::access::{Actor, Right};
use crate::domain::admission::budget_of;
use crate::domain::daemon::{Condition, Daemon};
use crate::domain::gpu::{ComputeCapability, ComputeMode, Gpu, GpuRef};
use crate::domain::listening::Listening;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::InventoryError;
use crate::host::process;
use crate::host::systemd::{Scopes, has_mounts_of_its_own};
use crate::store;
use crate::supervisor::is_server;

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
    /// The ID of this machine; `none` for one without.
    pub machine_id: String,
    /// What keeps daemons apart from the manager's own unit here.
    pub isolation: HostIsolation,
    /// Set while the database belongs to another machine: then nothing is adopted, started, stopped or changed.
    pub read_only: Option<ReadOnly>,
    /// The version of this manager.
    pub manager_version: String,
    /// The user that this manager runs as.
    pub manager_uid: u32,
    /// How many GPUs the host has.
    pub gpus: usize,
    /// Whether the driver is asked; while it is not, for maintenance, all of this is as it was seen last.
    pub live: bool,
    /// How the API is reached over TCP.
    pub listening: Listening,
    /// What is wrong with the manager itself, as with its database or its socket; empty where nothing is.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

/// What keeps daemons apart from the manager's own unit on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostIsolation {
    /// Whether daemons are started in systemd scopes of their own.
    pub scopes: bool,
    /// Whether the manager sees other mounts than process 1; `null` where that may not be asked.
    pub private_mounts: Option<bool>,
    /// What of this an operator should know, with the remedy where there is one.
    pub remarks: Vec<String>,
}

impl HostIsolation {
    /// What holds of a host with these scopes and mounts.
    pub fn of(scopes: &Scopes, private_mounts: Option<bool>) -> Self {
        let mut remarks = Vec::new();
        if let Scopes::Unavailable(reason) = scopes {
            remarks.push(format!(
                "no scopes: {reason}. Daemons have sessions of their own, and share what limits the manager's cgroup has"
            ));
        }
        if private_mounts == Some(true) {
            remarks.push(
                "the manager runs in a mount namespace of its own (as PrivateTmp=, ProtectSystem= or the like in its unit make \
                 one), and so does every daemon it starts: other processes may see other files at the same paths, and one that \
                 does not find its pipe directory runs outside MPS. Remove those directives, then restart manager and daemons"
                    .to_owned(),
            );
        }
        Self { scopes: matches!(scopes, Scopes::Available { .. }), private_mounts, remarks }
    }
}

/// A GPU, who holds it, and what is promised and used of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuView {
    /// Its UUID, the only name that survives a reboot and a change of slots.
    pub uuid: GpuUuid,
    /// Whether the driver lists it and can describe it. If not, a daemon holds it all the same, and what is told of it
    /// is what was last seen.
    pub present: bool,
    /// Its position among the GPUs of the host, in PCI order, from 0; `null` while it is missing.
    pub index: Option<u32>,
    /// Its PCI address, as `00000000:06:00.0`; `null` for one that was never seen.
    pub pci_bus_id: Option<String>,
    /// The product name, as `NVIDIA H200`; `null` for one that was never seen.
    pub name: Option<String>,
    /// Streaming multiprocessors; `null` where the driver does not tell.
    pub sms: Option<u32>,
    /// The compute capability; `null` where the driver does not tell.
    #[schema(value_type = Option<String>, example = "9.0")]
    pub compute_capability: Option<ComputeCapability>,
    /// Memory of the whole device, in bytes; `null` for one that was never seen.
    pub memory_total: Option<u64>,
    /// Memory in use by all processes and the driver, in bytes; `null` while it is missing.
    pub memory_used: Option<u64>,
    /// The compute mode; `null` while it is missing.
    pub compute_mode: Option<ComputeMode>,
    /// Whether it is in MIG mode: then it is listed and not managed; `null` while it is missing.
    pub mig_enabled: Option<bool>,
    /// The daemon that holds it.
    pub daemon: Option<DaemonName>,
    /// Memory that admission has promised to tenants, in bytes; a tenant without a limit counts as the whole GPU.
    pub memory_promised: u64,
    /// The processes that the driver lists on it; `null` when it does not say or is not asked, or the GPU is missing.
    pub processes: Option<Vec<GpuProcessView>>,
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
    /// Its user; `null` where it has ended meanwhile, or runs out of the manager's sight.
    pub uid: Option<u32>,
    /// Its command line, with spaces between the words; `null` as for `uid`.
    pub command: Option<String>,
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

/// What is said of the host on everything that is shown of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nameplate {
    /// Its name; `None` for whoever sees nothing of the host.
    pub hostname: Option<String>,
    /// Which simulated host it is; `None` for a real one.
    pub simulated: Option<String>,
    /// Whether nothing is changed here, since the database belongs to another machine.
    pub read_only: bool,
}

/// The daemons, and what their tenants are promised.
struct Promises {
    daemons: Vec<Daemon>,
    tenants: Arc<Vec<Tenant>>,
}

impl Promises {
    /// The daemon that holds a GPU.
    fn holder(&self, gpu: &GpuUuid) -> Option<&Daemon> {
        self.daemons.iter().find(|daemon| daemon.spec.gpus.contains(gpu))
    }

    /// What the tenants of its daemon are promised of a GPU, in bytes.
    fn of(&self, daemon: &Daemon, gpu: &Gpu) -> u64 {
        let specs = self.tenants.iter().map(|tenant| &tenant.spec);
        let here = specs.filter(|spec| {
            spec.daemon == daemon.name && (spec.gpus.is_empty() || spec.gpus.contains(&gpu.uuid))
        });
        here.fold(0, |sum, spec| {
            sum.saturating_add(budget_of(spec.device_memory_limit, spec.max_clients, &daemon.spec, gpu))
        })
    }
}

impl Service {
    /// What is said of the host to whoever asks for anything, even while the driver does not answer.
    pub async fn nameplate(&self, actor: &Actor) -> Nameplate {
        let hostname = actor.may(Right::View).is_ok().then(hostname);
        Nameplate { hostname, simulated: self.simulated().await, read_only: self.is_read_only() }
    }

    /// What keeps the manager itself from its work, by the types of its conditions, which anybody may know.
    pub fn blocking_conditions(&self) -> Vec<String> {
        self.parts.health.blocking()
    }

    /// The ID of this machine.
    pub fn machine_id(&self) -> String {
        self.parts.machine_id.clone()
    }

    /// The profile of a simulated host; `None` for a real one. Everybody may know that nothing is real.
    pub async fn simulated(&self) -> Option<String> {
        let driver = self.asked(crate::gpu::Inventory::known_driver).await.ok()?.ok()?;
        driver.simulated.then(|| driver.profile.unwrap_or_default())
    }

    /// The host.
    pub async fn host(&self, actor: &Actor) -> Result<HostView, ServiceError> {
        actor.may(Right::View)?;
        let (driver, gpus) =
            self.asked(|inventory| (inventory.known_driver(), inventory.known_gpus())).await?;
        let (driver, gpus) = (driver.map_err(unavailable)?, gpus.map_err(unavailable)?);
        let read_only = self.read_only().await?;
        let context = self.parts.fleet.context();
        Ok(HostView {
            hostname: hostname(),
            simulated: driver.simulated,
            profile: driver.profile,
            driver_version: driver.driver_version,
            cuda_version: driver.cuda_version,
            mps_binary_version: context.capability.binary_version,
            static_partitions: context.capability.static_partitions(),
            client_ceiling: context.capability.client_ceiling(),
            boot_id: context.boot_id.clone(),
            machine_id: self.parts.machine_id.clone(),
            isolation: HostIsolation::of(&context.scopes, has_mounts_of_its_own()),
            read_only,
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
            manager_uid: self.parts.manager_uid,
            gpus: gpus.len(),
            live: self.parts.inventory.live(),
            listening: self.parts.listening.borrow().clone(),
            conditions: self.parts.health.conditions(),
        })
    }

    /// All GPUs, in PCI order, and after them those that a daemon holds and that are missing.
    pub async fn gpu_views(&self, actor: &Actor) -> Result<Vec<GpuView>, ServiceError> {
        actor.may(Right::View)?;
        let known = self.seen_gpus().await?;
        let held = store::gpus::held(&mut *self.parts.store.read().await?).await?;
        let promises = self.promises().await?;
        let mut views = Vec::new();
        for gpu in &known {
            views.push(self.gpu_view(gpu, &promises).await?);
        }
        for uuid in held.into_keys().filter(|uuid| known.iter().all(|gpu| gpu.uuid != *uuid)) {
            views.push(self.never_seen(uuid).await?);
        }
        Ok(views)
    }

    /// One GPU by UUID, unique prefix, index or PCI address.
    pub async fn gpu(&self, actor: &Actor, name: &str) -> Result<GpuView, ServiceError> {
        actor.may(Right::View)?;
        let not_found = || ServiceError::NotFound { kind: "GPU", name: name.chars().take(80).collect() };
        let gpus = self.seen_gpus().await?;
        if let Ok(gpu) = GpuRef(name.to_owned()).resolve(&gpus) {
            return self.gpu_view(gpu, &self.promises().await?).await;
        }
        let uuid = GpuUuid::parse(name).map_err(|_| not_found())?;
        match self.never_seen(uuid).await? {
            view if view.daemon.is_some() => Ok(view),
            _ => Err(not_found()),
        }
    }

    /// The GPUs as the driver tells them now, and those that a daemon holds and that are missing.
    async fn seen_gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        let present = self.present_gpus().await?;
        Ok(store::gpus::all(&mut *self.parts.store.read().await?, present).await?)
    }

    /// What all GPUs are promised by.
    async fn promises(&self) -> Result<Promises, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let daemons = store::daemons::all(&mut reader).await?;
        Ok(Promises { daemons, tenants: self.tenants_now(&mut reader).await? })
    }

    async fn gpu_view(&self, gpu: &Gpu, promises: &Promises) -> Result<GpuView, ServiceError> {
        let holder = promises.holder(&gpu.uuid);
        Ok(GpuView {
            uuid: gpu.uuid.clone(),
            present: gpu.present,
            index: gpu.present.then_some(gpu.index),
            pci_bus_id: Some(gpu.pci_bus_id.clone()),
            name: Some(gpu.name.clone()),
            sms: gpu.sms,
            compute_capability: gpu.compute_capability,
            memory_total: Some(gpu.memory_total),
            memory_used: gpu.present.then_some(gpu.memory_used),
            compute_mode: gpu.present.then_some(gpu.compute_mode),
            mig_enabled: gpu.present.then_some(gpu.mig_enabled),
            daemon: holder.map(|daemon| daemon.name.clone()),
            memory_promised: holder.map_or(0, |daemon| promises.of(daemon, gpu)),
            processes: if gpu.present { self.processes_on(&gpu.uuid).await? } else { None },
            live: self.parts.inventory.live(),
        })
    }

    /// A GPU of which nothing is known but that a daemon was given it.
    async fn never_seen(&self, uuid: GpuUuid) -> Result<GpuView, ServiceError> {
        let daemon = store::daemons::holder(&mut *self.parts.store.read().await?, &uuid).await?;
        Ok(GpuView {
            uuid,
            present: false,
            index: None,
            pci_bus_id: None,
            name: None,
            sms: None,
            compute_capability: None,
            memory_total: None,
            memory_used: None,
            compute_mode: None,
            mig_enabled: None,
            daemon,
            memory_promised: 0,
            processes: None,
            live: self.parts.inventory.live(),
        })
    }

    /// The processes on a GPU; `None` when the driver does not tell, which hides no other GPU.
    async fn processes_on(&self, gpu: &GpuUuid) -> Result<Option<Vec<GpuProcessView>>, ServiceError> {
        let uuid = gpu.clone();
        let processes = match self.asked(move |inventory| inventory.processes(&uuid)).await? {
            Ok(processes) => processes,
            Err(InventoryError::Suspended | InventoryError::Silent { .. }) => return Ok(None),
            Err(error) => {
                tracing::warn!(%gpu, %error, "the driver did not list the processes of the GPU");
                return Ok(None);
            }
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
                    _ if is_server(process.pid) => GpuProcessKind::Server,
                    _ => GpuProcessKind::Bypass,
                },
                used_memory: process.used_memory,
                uid: process::uid(process.pid),
                command: process::command(process.pid).map(|words| words.join(" ")),
            })
            .collect();
        Ok(Some(processes))
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
