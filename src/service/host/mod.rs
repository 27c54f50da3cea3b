//! The host and its GPUs.

pub(super) mod gpu_view;
pub(super) mod initialized;
mod mlopart;
pub mod operations;
mod sharing;
pub mod startup;
mod vitals;

pub use gpu_view::{GpuProcessKind, GpuProcessView, GpuView};
pub use initialized::ReadOnly;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::admission::memory_of;
use crate::domain::capability::{CapabilityName, HostCapability};
use crate::domain::condition::Condition;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::{Gpu, GpuProcess, GpuRef, cuda_version, known, lacks_mlopart, shown_index};
use crate::domain::listening::HostListening;
use crate::domain::tenant::Tenant;
use crate::domain::{GpuUuid, shares};
use crate::host::process;
use crate::host::systemd::{Scopes, has_mounts_of_its_own};
use crate::service::access::context::RequestContext;
use crate::service::cache::LimitSum;
use crate::service::readings::once;
use crate::service::{Backend, Result, Service, ServiceError, unavailable};
use crate::store;
use crate::supervisor::is_server;

/// The host, its driver and its MPS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostView {
    /// The host's name.
    pub hostname: String,
    /// True if the host is simulated: its GPUs, servers and clients are not real.
    pub simulated: bool,
    /// The profile of a simulated host.
    pub profile: Option<String>,
    /// The display driver's version.
    pub driver_version: String,
    /// The newest CUDA version that the driver supports.
    pub cuda_version: Option<String>,
    /// The version of MPS, 13000 for CUDA 13.0: what `nvidia-cuda-mps-control -v` prints, or else the driver's CUDA version, since before
    /// CUDA 13.0 a program does not print its own.
    pub mps_binary_version: u32,
    /// True if `mps_binary_version` is only a lower bound, inferred from the abilities of the control program: before driver 580 that
    /// program reports no version, and on this host the driver reports none either.
    #[serde(default)]
    pub mps_binary_version_is_least: bool,
    /// Features that depend on the version of MPS, each with its availability and the reason if it is missing.
    pub capabilities: Vec<HostCapability>,
    /// Most clients of a GPU with this MPS.
    pub client_ceiling: u32,
    /// The current boot of the host.
    pub boot_id: String,
    /// The ID of this machine; `none` for one without.
    pub machine_id: String,
    /// Isolation of the daemons from the manager's own unit.
    pub isolation: HostIsolation,
    /// Reason why nothing is adopted, started, stopped or changed, while the database belongs to another machine or the driver is waited
    /// for.
    pub read_only: Option<ReadOnly>,
    /// The version of this manager.
    pub manager_version: String,
    /// The uid this manager runs as.
    pub manager_uid: u32,
    /// Number of GPUs of the host.
    pub gpus: usize,
    /// Number of MIG instances of these GPUs. The manager makes and destroys none: that is for nvidia-smi, or for mig-parted.
    #[serde(default)]
    pub mig_instances: usize,
    /// Features of this host that follow NVIDIA's documentation alone: nobody has tried them on real hardware yet.
    #[serde(default)]
    pub documented_only: Vec<DocumentedOnly>,
    /// Number of clients among which the GPUs of all daemons are divided: the sum of their `capacity`; `null` if none states how many it
    /// expects, or the daemons cannot be read.
    #[serde(default)]
    pub capacity: Option<u64>,
    /// True if the driver is queried; during maintenance it is not, and these values are as last seen.
    pub live: bool,
    /// Address and TLS of the API's TCP listener.
    pub listening: HostListening,
    /// Faults of the manager itself, as of its database or its socket.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}

impl HostView {
    /// The CUDA version of the MPS programs, as `13.0` or `12.4 or later`; `None` as long as they are waited for.
    pub fn mps_cuda_version(&self) -> Option<String> {
        let version = (self.mps_binary_version > 0).then(|| cuda_version(self.mps_binary_version))?;
        Some(if self.mps_binary_version_is_least { format!("{version} or later") } else { version })
    }

    /// The availability of a capability in words.
    pub fn availability(&self, capability: &HostCapability) -> String {
        let mlopart = DocumentedOnly::MlopartDevices;
        match &capability.reason {
            Some(reason) => format!("not supported: {reason}"),
            None if capability.name != CapabilityName::Mlopart => "supported".to_owned(),
            None if self.documented_only.contains(&mlopart) => {
                format!("supported, documented only: {}", mlopart.remark())
            }
            None => "supported by the control program, and by none of the GPUs".to_owned(),
        }
    }

    /// The driver and MPS in a line, as `driver 580.82.07, MPS of CUDA 13.0`.
    pub fn software(&self) -> String {
        match self.mps_cuda_version() {
            Some(version) => format!("driver {}, MPS of CUDA {version}", self.driver_version),
            None => "no driver yet".to_owned(),
        }
    }
}

/// A feature that was built from NVIDIA's documentation, on the simulated host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DocumentedOnly {
    /// Daemons on MIG instances.
    MigInstances,
    /// Daemons with MLOPart devices.
    MlopartDevices,
}

impl DocumentedOnly {
    /// Returns the feature in words, with what to do about it.
    pub fn words(self) -> String {
        let name = match self {
            Self::MigInstances => "MIG instances",
            Self::MlopartDevices => CapabilityName::Mlopart.title(),
        };
        format!("{name}: {}", self.remark())
    }

    /// Returns what documented only means for the feature.
    fn remark(self) -> &'static str {
        match self {
            Self::MigInstances => {
                "built from NVIDIA's documentation and never tried on real hardware; verify each tenant, and make and destroy instances with \
                 mig-parted or nvidia-smi"
            }
            Self::MlopartDevices => {
                "built from NVIDIA's documentation and never tried on real hardware; verify each tenant"
            }
        }
    }
}

/// Isolation of daemons from the manager's own unit on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostIsolation {
    /// True if daemons are started in their own systemd scopes.
    pub scopes: bool,
    /// True if the manager sees other mounts than process 1; `null` if unknown.
    pub private_mounts: Option<bool>,
    /// Warnings for an operator, with remedies.
    pub remarks: Vec<String>,
}

impl HostIsolation {
    /// The isolation that these scopes and mounts give.
    pub fn of(scopes: &Scopes, private_mounts: Option<bool>) -> Self {
        let mut remarks = Vec::new();
        if let Scopes::Unavailable(reason) = scopes {
            remarks.push(format!(
                "no scopes: {reason}. Daemons run in their own sessions, within the limits of the manager's cgroup"
            ));
        }
        if private_mounts == Some(true) {
            remarks.push(
                "the manager runs in its own mount namespace (because of PrivateTmp=, ProtectSystem= or the like in its unit), and \
                 so does every daemon it starts: other processes may see other files at the same paths, and one that does not \
                 find its pipe directory runs outside MPS. Remove those directives, then restart manager and daemons"
                    .to_owned(),
            );
        }
        Self { scopes: matches!(scopes, Scopes::Available { .. }), private_mounts, remarks }
    }
}

/// The identity of the host that every page shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIdentity {
    /// Its name; `None` for users who may not see the host.
    pub hostname: Option<String>,
    /// The profile of a simulated host; `None` for a real one.
    pub simulated: Option<String>,
    /// True if nothing may be changed because the database belongs to another machine, or the driver is not present yet.
    pub read_only: bool,
    /// True if nothing may be changed because the driver is not present yet.
    pub waiting_for_driver: bool,
}

/// Sums the limits of a daemon's tenants on one of its GPUs, or on an MLOPart device of one.
fn limit_sum(daemon: &Daemon, tenants: &[Tenant], gpu: &GpuUuid) -> LimitSum {
    let of_daemon = tenants.iter().map(|tenant| &tenant.spec).filter(|spec| spec.daemon == daemon.name);
    of_daemon.filter(|tenant| tenant.sees(gpu)).fold((0, 0), |(sum, without), tenant| {
        match memory_of(tenant, &daemon.spec, gpu) {
            Some(bytes) => (bytes.saturating_add(sum), without),
            None => (sum, without + 1),
        }
    })
}

impl Service {
    /// The host.
    pub async fn host(&self, ctx: &RequestContext) -> Result<HostView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let (driver, gpus) =
            backend.query_inventory(|inventory| (inventory.known_driver(), inventory.known_gpus())).await?;
        let (driver, gpus) = (driver.map_err(unavailable)?, gpus.map_err(unavailable)?);
        let read_only = backend.read_only().await?;
        // An operator who looks for why the database cannot be read still sees the host.
        let daemons = backend.stored_daemons().await.unwrap_or_default();
        let context = backend.parts.fleet.context();
        let of_version = context.capability.client_ceiling();
        let mig_instances = gpus.iter().filter(|gpu| gpu.mig.is_some()).count();
        let may_have_mlopart =
            |gpu: &Gpu| gpu.mig.is_none() && !gpu.mig_enabled && lacks_mlopart(gpu).is_none();
        let has_mlopart = context.capability.lacks_mlopart().is_none() && gpus.iter().any(may_have_mlopart);
        Ok(HostView {
            hostname: hostname(),
            simulated: driver.simulated,
            profile: driver.profile,
            driver_version: driver.driver_version,
            cuda_version: driver.cuda_version,
            mps_binary_version: context.capability.binary_version,
            mps_binary_version_is_least: context.capability.is_least(),
            capabilities: context.capability.list(),
            client_ceiling: gpus.iter().map(|gpu| gpu.client_ceiling(of_version)).max().unwrap_or(of_version),
            boot_id: context.boot_id.clone(),
            machine_id: backend.parts.machine_id.clone(),
            isolation: HostIsolation::of(&context.scopes, has_mounts_of_its_own("self")),
            read_only,
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
            manager_uid: backend.parts.manager_uid,
            gpus: gpus.len() - mig_instances,
            mig_instances,
            documented_only: [
                (mig_instances > 0).then_some(DocumentedOnly::MigInstances),
                has_mlopart.then_some(DocumentedOnly::MlopartDevices),
            ]
            .into_iter()
            .flatten()
            .collect(),
            capacity: shares::capacity(daemons.iter().map(|daemon| &daemon.spec)),
            live: backend.parts.inventory.live(),
            listening: backend.parts.listening.borrow().clone(),
            conditions: backend.parts.health.conditions(),
        })
    }

    /// All GPUs in PCI order, with missing ones that a daemon has; those without an index come last.
    pub async fn gpu_views(&self, ctx: &RequestContext) -> Result<Vec<GpuView>> {
        let backend = self.with(&ctx.require(Right::View)?);
        once(|readings| &readings.gpu_views, backend.gpu_views()).await
    }

    /// One GPU by UUID, unique prefix, index or PCI address.
    pub async fn gpu(&self, ctx: &RequestContext, name: &str) -> Result<GpuView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let not_found = || ServiceError::NotFound { kind: "GPU", name: name.chars().take(80).collect() };
        let gpus = backend.seen_gpus().await?;
        if let Ok(gpu) = GpuRef(name.to_owned()).resolve(&gpus) {
            // Its MLOPart devices follow it.
            let with_parts: Vec<Gpu> =
                gpus.iter().filter(|listed| listed.uuid.is_of(&gpu.uuid)).cloned().collect();
            let view = backend.views_of(&with_parts).await?.into_iter().next().ok_or_else(not_found)?;
            return Ok(GpuView { index: shown_index(gpu, &gpus).map(|index| index.gpu), ..view });
        }
        let uuid = GpuUuid::parse(name).map_err(|_| not_found())?;
        match backend.never_seen(uuid).await? {
            view if view.daemon.is_some() => Ok(view),
            _ => Err(not_found()),
        }
    }
}

impl Backend {
    /// The identity of the host for any authenticated user, even while the driver does not answer.
    pub async fn host_identity(&self, ctx: &RequestContext) -> HostIdentity {
        let hostname = ctx.actor.may(Right::View).is_ok().then(hostname);
        HostIdentity {
            hostname,
            simulated: self.simulated().await,
            read_only: self.is_read_only(),
            waiting_for_driver: self.parts.waiting_for_driver.is_some(),
        }
    }

    /// Condition types of the faults that keep the manager from working, which anyone may know.
    pub fn blocking_conditions(&self) -> Vec<String> {
        self.parts.health.blocking()
    }

    /// The ID of this machine.
    pub fn machine_id(&self) -> String {
        self.parts.machine_id.clone()
    }

    /// The profile of a simulated host; `None` for a real one. Anyone may know that it is simulated.
    pub async fn simulated(&self) -> Option<String> {
        let read = async {
            let driver = self.query_inventory(crate::gpu::Inventory::known_driver).await?;
            let driver = driver.map_err(unavailable)?;
            Ok::<_, ServiceError>(driver.simulated.then(|| driver.profile.unwrap_or_default()))
        };
        // A host never becomes another while a manager runs.
        self.simulated.get_or_try_init(|| read).await.ok()?.clone()
    }

    async fn gpu_views(&self) -> Result<Vec<GpuView>> {
        let gpus = self.seen_gpus().await?;
        let held = self.stored_gpus().await?;
        let mut views = self.views_of(&gpus).await?;
        for (view, gpu) in views.iter_mut().zip(&gpus) {
            view.index = shown_index(gpu, &gpus).map(|index| index.gpu);
        }
        for uuid in held.keys().filter(|uuid| gpus.iter().all(|gpu| gpu.uuid != **uuid)) {
            views.push(self.never_seen(uuid.clone()).await?);
        }
        views.sort_by_key(|view| (view.index.is_none(), view.place()));
        Ok(views)
    }

    /// The GPUs as the driver reports them now, and missing ones that a daemon has.
    async fn seen_gpus(&self) -> Result<Vec<Gpu>> {
        let present = self.present_gpus().await?;
        self.with_mlopart(known(present, &*self.stored_gpus().await?)).await
    }

    /// The sums of limits as of the last commit.
    async fn limit_sums(&self) -> Result<Arc<BTreeMap<GpuUuid, LimitSum>>> {
        // Before everything that is read, as in [`Cached::committed`].
        let commit = self.parts.store.last_commit();
        if let Some(kept) = self.cache.limit_sums.at(commit) {
            return Ok(kept);
        }
        let (daemons, tenants) = (self.stored_daemons().await?, self.stored_tenants().await?);
        let on_gpus = daemons.iter().flat_map(|daemon| {
            daemon.spec.gpus.iter().map(|gpu| (gpu.clone(), limit_sum(daemon, &tenants, gpu)))
        });
        Ok(self.cache.limit_sums.keep(commit, on_gpus.collect()))
    }

    /// Returns the views of GPUs, in their order.
    async fn views_of(&self, gpus: &[Gpu]) -> Result<Vec<GpuView>> {
        let daemons = self.stored_daemons().await?;
        let (sums, tenants) = (self.limit_sums().await?, self.stored_tenants().await?);
        let mut processes = self.processes_on(gpus).await?;
        let view = |gpu: &Gpu| {
            let holder = daemons.iter().find(|daemon| daemon.spec.gpus.contains(&gpu.uuid.whole()));
            let sum_on =
                |device: &Gpu| holder.map_or((0, 0), |daemon| limit_sum(daemon, &tenants, &device.uuid));
            let (memory_limits, tenants_without_limit) = if gpu.mlopart.is_some() {
                sum_on(gpu)
            } else {
                let (bytes, without) = sums.get(&gpu.uuid).copied().unwrap_or_default();
                // A limit is one of each MLOPart device.
                let parts = gpus.iter().filter(|part| part.mlopart.is_some() && part.uuid.is_of(&gpu.uuid));
                (parts.map(|part| sum_on(part).0).reduce(u64::saturating_add).unwrap_or(bytes), without)
            };
            GpuView {
                uuid: gpu.uuid.clone(),
                present: gpu.present,
                index: gpu.present.then_some(gpu.index.gpu),
                pci_bus_id: gpu.pci_bus_id.clone(),
                name: Some(gpu.name.clone()),
                sms: gpu.sms,
                compute_capability: gpu.compute_capability,
                memory_total: gpu.memory_total,
                memory_used: gpu.memory_used.filter(|_| gpu.present),
                compute_mode: gpu.compute_mode.filter(|_| gpu.present),
                mig_enabled: gpu.present.then_some(gpu.mig_enabled),
                mig: gpu.mig.clone(),
                mlopart: gpu.mlopart.clone(),
                daemon: holder.map(|daemon| daemon.name.clone()),
                memory_limits,
                memory_capacity: gpu.memory_total.map(|total| match holder.map(|daemon| &daemon.spec) {
                    Some(spec) if spec.reserves() => spec.memory_overcommit.budget(total),
                    _ => total,
                }),
                tenants_without_limit,
                processes: processes.remove(&gpu.uuid),
                vitals: self.vitals_of(&gpu.uuid).filter(|_| gpu.present),
                live: self.parts.inventory.live(),
            }
        };
        Ok(gpus.iter().map(view).collect())
    }

    /// Returns the view of a GPU that was never seen: only its daemon is known.
    async fn never_seen(&self, uuid: GpuUuid) -> Result<GpuView> {
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
            mig: None,
            mlopart: None,
            daemon,
            memory_limits: 0,
            memory_capacity: None,
            tenants_without_limit: 0,
            processes: None,
            vitals: None,
            live: self.parts.inventory.live(),
        })
    }

    /// The processes on GPUs, without the GPUs whose processes the driver does not report: one does not hide the others.
    async fn processes_on(&self, gpus: &[Gpu]) -> Result<BTreeMap<GpuUuid, Vec<GpuProcessView>>> {
        let effective = self.parts.fleet.of_each(|observed| observed.status.effective.clone());
        let servers = effective.into_iter().filter_map(|(_, effective)| Some(effective?.servers));
        let servers: BTreeSet<u32> = servers.flatten().map(|server| server.pid).collect();
        let present: Vec<GpuUuid> = gpus
            .iter()
            .filter(|gpu| gpu.present && gpu.mlopart.is_none())
            .map(|gpu| gpu.uuid.clone())
            .collect();
        let view = move |process: GpuProcess| GpuProcessView {
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
        };
        // All at once: the driver and `/proc` are read on a thread that may wait.
        self.query_inventory(move |inventory| {
            let mut listed = BTreeMap::new();
            for gpu in present {
                match inventory.processes(&gpu) {
                    Ok(processes) => {
                        listed.insert(gpu, processes.into_iter().map(&view).collect());
                    }
                    Err(error) if !error.is_news() => {}
                    Err(error) => {
                        tracing::warn!(%gpu, %error, "the driver did not list the processes of the GPU");
                    }
                }
            }
            listed
        })
        .await
    }
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
