//! The real host's GPUs, as reported by NVML.
//!
//! NVML is loaded when it is opened, so the program starts on a host that has none and says so. Unlike CUDA it
//! makes no context: asking costs no GPU memory and is not seen by MPS.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode as NvmlComputeMode, EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use super::{DeviceFile, GpuDriver, Inventory, InventoryError, cuda_version_text};
use crate::domain::GpuUuid;
use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::gpu::{ComputeCapability, ComputeMode, Gpu, GpuProcess};
use crate::domain::mig::MigInstance;
use crate::domain::vitals::{GpuVitals, ThrottleReason};

/// Number of tries to read a list of processes, which may grow between its count and its reading.
const LIST_ATTEMPTS: u32 = 5;
/// Name of a GPU whose name the driver does not report.
const UNNAMED: &str = "GPU of an unknown model";

/// The inventory of a host with an NVIDIA driver.
#[derive(Debug)]
pub struct NvmlInventory {
    nvml: Nvml,
    /// Positions of GPUs that cannot be described, so that each is logged once and not at every poll.
    silent: Mutex<BTreeSet<u32>>,
}

impl NvmlInventory {
    /// Loads NVML and connects it to the driver.
    pub fn open() -> Result<Self, InventoryError> {
        match Nvml::init() {
            Ok(nvml) => Ok(Self { nvml, silent: Mutex::default() }),
            Err(error) => Err(InventoryError::NoDriver { detail: why_no_driver(&error) }),
        }
    }

    fn device(&self, gpu: &GpuUuid) -> Result<Device<'_>, InventoryError> {
        let device = self.nvml.device_by_uuid(gpu.as_str());
        device.map_err(refused("nvmlDeviceGetHandleByUUID", Some(gpu)))
    }

    /// Describes the GPU at NVML's `position`, which is in PCI order, and its MIG instances. An error concerns this GPU only: the others are
    /// still listed.
    fn describe(&self, position: u32) -> Result<(PciAddress, Vec<Gpu>), InventoryError> {
        let device =
            self.nvml.device_by_index(position).map_err(refused("nvmlDeviceGetHandleByIndex", None))?;
        let uuid = device.uuid().map_err(refused("nvmlDeviceGetUUID", None))?;
        let uuid = GpuUuid::parse(&uuid).map_err(|error| InventoryError::Driver {
            call: "nvmlDeviceGetUUID",
            detail: error.to_string(),
        })?;
        // Each fact is optional: an integrated GPU has no memory of its own to report, a Tegra no compute mode, and both are GPUs all the
        // same.
        let pci = optional(device.pci_info(), "nvmlDeviceGetPciInfo", &uuid)?;
        let memory = optional(device.memory_info(), "nvmlDeviceGetMemoryInfo", &uuid)?;
        let mode = optional(device.compute_mode(), "nvmlDeviceGetComputeMode", &uuid)?;
        let name = optional(device.name(), "nvmlDeviceGetName", &uuid)?;
        // The driver reserves memory that nobody can use (616 MiB of an H200). Without it, this is the total that CUDA reports, and an idle
        // GPU uses nothing.
        let total = memory.as_ref().map(|memory| memory.total.saturating_sub(memory.reserved));
        let address =
            pci.as_ref().map_or((u32::MAX, u32::MAX, position), |pci| (pci.domain, pci.bus, pci.device));
        let gpu = Gpu {
            index: position.into(),
            pci_bus_id: pci.map(|pci| pci.bus_id),
            name: name.unwrap_or_else(|| UNNAMED.to_owned()),
            sms: sm_count(&device),
            compute_capability: compute_capability(&device),
            memory_total: total.filter(|total| *total > 0),
            memory_used: total
                .filter(|total| *total > 0)
                .zip(memory)
                .map(|(total, memory)| total.saturating_sub(memory.free)),
            compute_mode: mode.map(|mode| match mode {
                NvmlComputeMode::Default => ComputeMode::Default,
                // A driver that still knew the thread mode admitted one process at a time, too.
                NvmlComputeMode::ExclusiveProcess | NvmlComputeMode::ExclusiveThread => {
                    ComputeMode::ExclusiveProcess
                }
                NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
            }),
            // A GPU that cannot do MIG answers "not supported".
            mig_enabled: device.mig_mode().is_ok_and(|mode| mode.current == 1),
            mig: None,
            mlopart: None,
            present: true,
            device_file: device.minor_number().ok().map(device_file),
            uuid,
        };
        let instances = if gpu.mig_enabled { instances(&device, &gpu) } else { Vec::new() };
        Ok((address, [vec![gpu], instances].concat()))
    }
}

/// Describes the MIG instances of a GPU, without those that vanish meanwhile. NVML numbers them with gaps.
fn instances(device: &Device<'_>, gpu: &Gpu) -> Vec<Gpu> {
    let numbers = 0..device.mig_device_count().unwrap_or(0);
    numbers.filter_map(|number| instance(&device.mig_device_by_index(number).ok()?, gpu, number)).collect()
}

/// Describes a MIG instance; what NVML reports of the GPU alone is the GPU's.
fn instance(device: &Device<'_>, gpu: &Gpu, number: u32) -> Option<Gpu> {
    let memory = device.memory_info().ok();
    let name = device.name().unwrap_or_else(|_| gpu.name.clone());
    let profile = name.rsplit_once("MIG ").map(|(_, profile)| profile.to_owned());
    let total = memory.as_ref().map(|memory| memory.total.saturating_sub(memory.reserved));
    Some(Gpu {
        uuid: GpuUuid::parse(&device.uuid().ok()?).ok()?,
        index: DeviceIndex { part: Some(DevicePart::Mig(number)), ..gpu.index },
        name,
        sms: device
            .attributes()
            .ok()
            .map(|attributes| attributes.multiprocessor_count)
            .filter(|sms| *sms > 0),
        memory_total: total.filter(|total| *total > 0),
        memory_used: total.zip(memory).map(|(total, memory)| total.saturating_sub(memory.free)),
        // There is none in MIG mode.
        compute_mode: None,
        mig_enabled: false,
        mig: Some(MigInstance { parent: gpu.uuid.clone(), number, profile }),
        ..gpu.clone()
    })
}

/// Domain, bus and device, which define PCI order.
type PciAddress = (u32, u32, u32);

impl Inventory for NvmlInventory {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        Ok(GpuDriver {
            driver_version: self
                .nvml
                .sys_driver_version()
                .map_err(refused("nvmlSystemGetDriverVersion", None))?,
            // NVML finds this in libcuda, which a host may lack while it has a driver.
            cuda_version: self.nvml.sys_cuda_driver_version().ok().and_then(cuda_version_text),
            simulated: false,
            profile: None,
        })
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        let count = self.nvml.device_count().map_err(refused("nvmlDeviceGetCount", None))?;
        let mut gpus = Vec::new();
        for position in 0..count {
            let described = self.describe(position);
            let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
            match described {
                Ok(described) => {
                    if silent.remove(&position) {
                        tracing::info!(position, "the driver describes the GPU again");
                    }
                    gpus.push(described);
                }
                Err(error) => {
                    if silent.insert(position) {
                        tracing::warn!(position, %error, "a GPU is left out of the inventory: the driver cannot describe it");
                    }
                }
            }
        }
        Ok(in_pci_order(gpus))
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        let device = self.device(gpu)?;
        // A client is on both lists, so one that comes or goes while they are read must not look like a process
        // outside MPS: the MPS list is read before and after.
        let read_mps = || {
            list(gpu, "nvmlDeviceGetMPSComputeRunningProcesses", || device.mps_running_compute_processes())
        };
        // Before Volta there is no MPS list of this kind.
        let read_mps = || read_mps().map(Option::unwrap_or_default);
        let mut mps = read_mps()?;
        let compute =
            list(gpu, "nvmlDeviceGetComputeRunningProcesses", || device.running_compute_processes())?;
        let not_reported = || InventoryError::NotReported { what: "the processes", gpu: gpu.clone() };
        let compute = compute.ok_or_else(not_reported)?;
        mps.extend(read_mps()?);
        // A process that is on the earlier MPS list only is gone.
        mps.retain(|client| compute.iter().any(|process| process.pid == client.pid));
        Ok(union(compute, mps))
    }

    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
        let mut device = self.device(gpu)?;
        let mode = match mode {
            ComputeMode::Default => NvmlComputeMode::Default,
            ComputeMode::ExclusiveProcess => NvmlComputeMode::ExclusiveProcess,
            ComputeMode::Prohibited => NvmlComputeMode::Prohibited,
        };
        device.set_compute_mode(mode).map_err(refused("nvmlDeviceSetComputeMode", Some(gpu)))
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        gpus.iter()
            .map(|gpu| {
                let device = self.device(gpu)?;
                // A MIG instance is opened through the device file of its GPU.
                let device = if gpu.is_mig() {
                    device
                        .mig_parent_device()
                        .map_err(refused("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", Some(gpu)))?
                } else {
                    device
                };
                let minor = optional(device.minor_number(), "nvmlDeviceGetMinorNumber", gpu)?;
                let not_reported =
                    || InventoryError::NotReported { what: "the device file", gpu: gpu.clone() };
                let minor = minor.ok_or_else(not_reported)?;
                Ok(DeviceFile { gpu: gpu.clone(), path: device_file(minor) })
            })
            .collect()
    }

    fn vitals(&self, gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, GpuVitals>, InventoryError> {
        // A GPU in trouble has none, which does not hide those of the others.
        let readable = gpus.iter().filter_map(|gpu| Some((gpu.clone(), vitals(&self.device(gpu).ok()?))));
        Ok(readable.collect())
    }
}

/// Reads the vitals of a GPU, each of which the driver may not report.
fn vitals(device: &Device<'_>) -> GpuVitals {
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1000.0;
    GpuVitals {
        utilization_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        power_watts: device.power_usage().ok().map(watts),
        power_limit_watts: device.enforced_power_limit().ok().map(watts),
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        slowdown_celsius: device.temperature_threshold(TemperatureThreshold::Slowdown).ok(),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        uncorrected_ecc_errors: device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok(),
        throttle_reasons: device.current_throttle_reasons().ok().map(throttle_reasons),
        xids: None,
    }
}

/// Returns the reasons that hold the clocks of a busy GPU down.
fn throttle_reasons(flags: ThrottleReasons) -> Vec<ThrottleReason> {
    let of = |reason: &ThrottleReason| match reason {
        ThrottleReason::ApplicationsClocksSetting => ThrottleReasons::APPLICATIONS_CLOCKS_SETTING,
        ThrottleReason::SwPowerCap => ThrottleReasons::SW_POWER_CAP,
        ThrottleReason::HwSlowdown => ThrottleReasons::HW_SLOWDOWN,
        ThrottleReason::SyncBoost => ThrottleReasons::SYNC_BOOST,
        ThrottleReason::SwThermalSlowdown => ThrottleReasons::SW_THERMAL_SLOWDOWN,
        ThrottleReason::HwThermalSlowdown => ThrottleReasons::HW_THERMAL_SLOWDOWN,
        ThrottleReason::HwPowerBrakeSlowdown => ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
        ThrottleReason::DisplayClockSetting => ThrottleReasons::DISPLAY_CLOCK_SETTING,
    };
    ThrottleReason::ALL.into_iter().filter(|reason| flags.contains(of(reason))).collect()
}

fn device_file(minor: u32) -> PathBuf {
    format!("/dev/nvidia{minor}").into()
}

/// Sorts GPUs by PCI address, each before its MIG instances, which gives the lowest index to the first one.
fn in_pci_order(mut gpus: Vec<(PciAddress, Vec<Gpu>)>) -> Vec<Gpu> {
    let indices: BTreeSet<u32> = gpus.iter().flat_map(|(_, gpus)| gpus).map(|gpu| gpu.index.gpu).collect();
    gpus.sort_by_key(|(address, _)| *address);
    let placed = |(gpu, (_, devices)): (u32, (_, Vec<Gpu>))| {
        devices.into_iter().map(move |device| Gpu { index: DeviceIndex { gpu, ..device.index }, ..device })
    };
    indices.into_iter().zip(gpus).flat_map(placed).collect()
}

/// Reads one of NVML's process lists; `None` if NVML has no such list of this GPU. Fails if a process starts between its count and its
/// reading.
fn list(
    gpu: &GpuUuid,
    call: &'static str,
    read: impl Fn() -> Result<Vec<ProcessInfo>, NvmlError>,
) -> Result<Option<Vec<ProcessInfo>>, InventoryError> {
    let mut attempt = 1;
    loop {
        match read() {
            Err(NvmlError::InsufficientSize(_)) if attempt < LIST_ATTEMPTS => attempt += 1,
            Err(NvmlError::NotSupported) => return Ok(None),
            outcome => return outcome.map(Some).map_err(refused(call, Some(gpu))),
        }
    }
}

/// Merges both lists; a process that is on both appears once.
fn union(compute: Vec<ProcessInfo>, mps: Vec<ProcessInfo>) -> Vec<GpuProcess> {
    let mut by_pid = BTreeMap::new();
    let entries = compute.into_iter().map(|p| (p, false)).chain(mps.into_iter().map(|p| (p, true)));
    for (process, mps_client) in entries {
        let used = match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        let merged = by_pid.entry(process.pid).or_insert(GpuProcess {
            pid: process.pid,
            used_memory: None,
            mps_client: false,
        });
        merged.used_memory = merged.used_memory.max(used);
        merged.mps_client |= mps_client;
    }
    by_pid.into_values().collect()
}

fn compute_capability(device: &Device<'_>) -> Option<ComputeCapability> {
    let capability = device.cuda_compute_capability().ok()?;
    Some(ComputeCapability {
        major: capability.major.try_into().ok()?,
        minor: capability.minor.try_into().ok()?,
    })
}

/// Returns the number of streaming multiprocessors, which NVML reports only as CUDA cores.
fn sm_count(device: &Device<'_>) -> Option<u32> {
    sms_of(device.num_cores().ok()?, compute_capability(device)?)
}

/// Computes SMs from cores, by the cores of an SM of the compute capability; `None` for a capability that is not known here.
fn sms_of(cores: u32, capability: ComputeCapability) -> Option<u32> {
    let per_sm = match (capability.major, capability.minor) {
        (7, 0 | 2 | 5) | (8, 0) => 64,
        (8, 6 | 7 | 9) | (9, 0) | (10 | 12, _) => 128,
        _ => return None,
    };
    // A remainder means that the table is wrong about this GPU: better no number than a wrong one.
    cores.is_multiple_of(per_sm).then_some(cores / per_sm).filter(|sms| *sms > 0)
}

/// Reads a fact that the driver may not report of every GPU as `None`; passes on other errors, which are those of a GPU in trouble.
fn optional<T>(
    read: Result<T, NvmlError>,
    call: &'static str,
    gpu: &GpuUuid,
) -> Result<Option<T>, InventoryError> {
    match read {
        Ok(fact) => Ok(Some(fact)),
        Err(
            NvmlError::NotSupported
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::NotFound
            | NvmlError::UnexpectedVariant(_)
            | NvmlError::Utf8Error(_),
        ) => Ok(None),
        Err(error) => Err(refused(call, Some(gpu))(error)),
    }
}

/// Converts the driver's refusal of `call`, about `gpu` if that is known.
fn refused(call: &'static str, gpu: Option<&GpuUuid>) -> impl FnOnce(NvmlError) -> InventoryError {
    let gpu = gpu.cloned();
    move |error| match (error, gpu) {
        // A UUID that NVML does not know is "not found" or "invalid argument", by version.
        (NvmlError::NotFound | NvmlError::InvalidArg, Some(gpu)) => InventoryError::UnknownGpu(gpu),
        (error, Some(gpu)) => InventoryError::Driver { call, detail: format!("{error} ({gpu})") },
        (error, None) => InventoryError::Driver { call, detail: error.to_string() },
    }
}

/// Describes the missing part of a host where NVML does not start, and the remedy.
fn why_no_driver(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "libnvidia-ml.so.1 was not found. Install the NVIDIA driver; in a container, start it with the GPUs \
             (as with --gpus all) so that the runtime brings the driver's libraries in"
                .to_owned()
        }
        NvmlError::DriverNotLoaded => {
            "libnvidia-ml.so.1 is there, but the kernel module is not loaded. Load it (modprobe nvidia) and look \
             at the kernel's log for why it did not load by itself"
                .to_owned()
        }
        NvmlError::LibRmVersionMismatch => {
            "libnvidia-ml.so.1 and the loaded kernel module are of different versions, as after an upgrade of the \
             driver. Reboot, or load the new module"
                .to_owned()
        }
        NvmlError::NoPermission => {
            "this user may not talk to the driver. Run as root or give it access to /dev/nvidia*".to_owned()
        }
        error => format!("NVML did not start: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn idle_gpu_is_not_throttled() {
        assert_eq!(throttle_reasons(ThrottleReasons::GPU_IDLE), []);
        let both =
            ThrottleReasons::GPU_IDLE | ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(throttle_reasons(both), [ThrottleReason::SwPowerCap, ThrottleReason::HwThermalSlowdown]);
    }

    #[test]
    fn sms_come_from_cores() {
        let sms = |cores, major, minor| sms_of(cores, ComputeCapability { major, minor });
        assert_eq!(sms(16896, 9, 0), Some(132), "H200");
        assert_eq!(sms(6912, 8, 0), Some(108), "A100");
        assert_eq!(sms(18176, 8, 9), Some(142), "L40S");
        assert_eq!(sms(5120, 7, 0), Some(80), "V100");
        assert_eq!(sms(16896, 11, 0), None, "not known");
        assert_eq!(sms(100, 9, 0), None, "does not divide");
        assert_eq!(sms(0, 9, 0), None);
    }

    #[test]
    fn a_process_on_both_lists_is_one_client() {
        let joined = union(
            vec![process(30, UsedGpuMemory::Used(66)), process(10, UsedGpuMemory::Unavailable)],
            vec![process(10, UsedGpuMemory::Used(5)), process(20, UsedGpuMemory::Used(7))],
        );
        assert_eq!(
            joined,
            [
                GpuProcess { pid: 10, used_memory: Some(5), mps_client: true },
                GpuProcess { pid: 20, used_memory: Some(7), mps_client: true },
                GpuProcess { pid: 30, used_memory: Some(66), mps_client: false },
            ]
        );
    }

    #[test]
    fn indices_follow_pci_order() {
        let gpu = |index: u32, name: &str| vec![Gpu { name: name.to_owned(), ..crate::testing::h200(index) }];
        let sorted = in_pci_order(vec![
            ((1, 0, 0), gpu(0, "c")),
            ((0, 0xa0, 0), gpu(1, "b")),
            ((0, 0x1b, 0), gpu(2, "a")),
        ]);
        let named: Vec<_> = sorted.iter().map(|gpu| (gpu.index.gpu, gpu.name.as_str())).collect();
        assert_eq!(named, [(0, "a"), (1, "b"), (2, "c")]);
        // The driver could not describe the one at 1.
        let left = in_pci_order(vec![((0, 0x1b, 0), gpu(0, "a")), ((1, 0, 0), gpu(2, "c"))]);
        assert_eq!(left.iter().map(|gpu| gpu.index.gpu).collect::<Vec<_>>(), [0, 2]);
        // Instances stay with their GPU.
        let instance =
            Gpu { index: DeviceIndex { gpu: 1, part: Some(DevicePart::Mig(3)) }, ..crate::testing::h200(1) };
        let with_instance = [gpu(1, "b"), vec![instance]].concat();
        let sorted = in_pci_order(vec![((1, 0, 0), gpu(0, "c")), ((0, 0x1b, 0), with_instance)]);
        let places: Vec<String> = sorted.iter().map(|gpu| gpu.index.to_string()).collect();
        assert_eq!(places, ["0", "0/mig3", "1"]);
    }

    #[test]
    fn a_list_that_grew_is_read_again() {
        let uuid = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("good");
        let calls = std::cell::Cell::new(0);
        let read = || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 { Err(NvmlError::InsufficientSize(None)) } else { Ok(Vec::new()) }
        };
        assert!(list(&uuid, "list", read).is_ok());
        assert_eq!(calls.get(), 3);
        let never = list(&uuid, "list", || Err(NvmlError::InsufficientSize(None)));
        assert!(matches!(never, Err(InventoryError::Driver { call: "list", .. })));
    }

    #[test]
    fn missing_nvml_library_is_explained() {
        // This holds on a machine without a driver; one with a driver has nothing to check here.
        if let Err(error) = NvmlInventory::open() {
            assert!(matches!(&error, InventoryError::NoDriver { detail } if !detail.is_empty()), "{error}");
        }
    }
}
