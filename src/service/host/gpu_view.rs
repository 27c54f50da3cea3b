//! A GPU as the API shows it.

use serde::{Deserialize, Serialize};

use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::gpu::{ComputeCapability, ComputeMode};
use crate::domain::mig::MigInstance;
use crate::domain::mlopart::MlopartDevice;
use crate::domain::vitals::GpuVitals;
use crate::domain::{DaemonName, GpuUuid};

/// A GPU, its daemon, and its memory in use and reserved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuView {
    /// Its UUID, the only name that survives a reboot and a change of slots.
    pub uuid: GpuUuid,
    /// True if the driver lists and describes the GPU. Otherwise its daemon keeps it, and the fields are as last seen.
    pub present: bool,
    /// Its index among the GPUs of the host, in PCI order, from 0: the driver's, and while it is missing its last one. A MIG instance has that
    /// of its GPU, and `mig` its number there: together they name it, as `0/mig1`. `mlopart` likewise. `null` if the driver
    /// has given that index to another GPU since: `pci_bus_id` shows the address of the missing one.
    pub index: Option<u32>,
    /// Its PCI address, as `00000000:06:00.0`; `null` if it was never seen, or the driver reports none.
    pub pci_bus_id: Option<String>,
    /// The product name, as `NVIDIA H200`; `null` if it was never seen.
    pub name: Option<String>,
    /// Streaming multiprocessors; `null` if the driver does not report them.
    pub sms: Option<u32>,
    /// The compute capability; `null` if the driver does not report it.
    #[schema(value_type = Option<String>, example = "9.0")]
    pub compute_capability: Option<ComputeCapability>,
    /// Total memory of the device in bytes; `null` if it was never seen or the driver does not report it, as of a GPU that shares the
    /// host's memory. Then nothing can be reserved of it, and no limit is compared with it.
    pub memory_total: Option<u64>,
    /// Memory in use by all processes and the driver, in bytes; `null` while it is missing, or if the driver does not report it.
    pub memory_used: Option<u64>,
    /// The compute mode; `null` while it is missing, or if the driver does not report it: then it cannot be set.
    pub compute_mode: Option<ComputeMode>,
    /// True if the GPU is in MIG mode: it is listed, and its instances are managed in its place; `null` while it is missing.
    pub mig_enabled: Option<bool>,
    /// The GPU and the profile of a MIG instance, which is listed after its GPU; `null` for a GPU.
    #[serde(default)]
    pub mig: Option<MigInstance>,
    /// An MLOPart device, which is listed after its GPU while a server has it: its SMs and memory are those that a verified client has seen;
    /// `null` for what the driver lists.
    #[serde(default)]
    pub mlopart: Option<MlopartDevice>,
    /// The daemon that has it.
    pub daemon: Option<DaemonName>,
    /// Sum of the memory limits of its daemon's tenants on it, in bytes: each limit times `max_clients`, or once if that is not set.
    /// Tenants without a limit are not included.
    pub memory_limits: u64,
    /// Upper bound of that sum in bytes: with `reserved` admission the total memory times `memory_overcommit`, otherwise the total, which
    /// the limits may exceed; `null` as for `memory_total`.
    #[serde(default)]
    pub memory_capacity: Option<u64>,
    /// Tenants of its daemon that have no memory limit on it.
    pub tenants_without_limit: usize,
    /// The processes that the driver lists on it; `null` if it does not report them or is not queried, or the GPU is missing.
    pub processes: Option<Vec<GpuProcessView>>,
    /// Its vitals at the last poll of the GPUs; `null` while it is missing, or the driver is not queried or does not answer.
    #[serde(default)]
    pub vitals: Option<GpuVitals>,
    /// True if the driver is queried; during maintenance it is not, and the GPU is shown as last seen.
    pub live: bool,
}

impl GpuView {
    /// Returns its place on the host, as `0` or `0/mig1`; `None` without an index.
    pub fn place(&self) -> Option<DeviceIndex> {
        let instance = self.mig.as_ref().map(|instance| DevicePart::Mig(instance.number));
        let part = instance.or_else(|| self.mlopart.as_ref().map(|device| DevicePart::Mlo(device.number)));
        self.index.map(|gpu| DeviceIndex { gpu, part })
    }
}

/// A process on a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuProcessView {
    /// Process ID.
    pub pid: u32,
    /// Role of the process in MPS.
    pub kind: GpuProcessKind,
    /// Memory it holds, in bytes; `null` if the driver does not report it.
    pub used_memory: Option<u64>,
    /// Its uid; `null` if it has ended or is invisible to the manager.
    pub uid: Option<u32>,
    /// Its command line; `null` as for `uid`.
    pub command: Option<String>,
}

/// Role of a process on a GPU in MPS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuProcessKind {
    /// A server of a daemon here.
    Server,
    /// An MPS client, of a daemon here or of another.
    Client,
    /// A process that bypasses MPS and its limits.
    Bypass,
}
