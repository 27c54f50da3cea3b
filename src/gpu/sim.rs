//! The simulated host's GPUs, read from the files of its world.
//!
//! The world plays the kernel driver's part. A process on a GPU is a file that the process keeps an exclusive
//! `flock` on for as long as it lives, so a killed process is gone from the inventory at once, as from a real
//! one. Every call rereads the files, and nothing here writes but a compute mode that is set. A device file of each GPU
//! is kept open, as NVML keeps those of a real host.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde::Deserialize;

use super::{DeviceFile, GpuDriver, Inventory, InventoryError, cuda_version_text};
use crate::domain::GpuUuid;
use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::gpu::{ComputeCapability, ComputeMode, Gpu, GpuProcess};
use crate::domain::mig::MigInstance;
use crate::domain::vitals::GpuVitals;

/// Memory in use beside that of the processes: on an H200 whose one process, an MPS server, had 66 MiB, the driver showed 74 MiB
/// (tests/fixtures/hardware/10-h200-x1-probe.txt).
const DRIVER_OVERHEAD: u64 = 8 << 20;

/// The file that marks a GPU as gone, and the one that marks it as in MIG mode and lists its instances.
const LOST: &str = "lost";
/// The content of the first if the GPUs after it have moved up by one.
const RENUMBERED: &[u8] = b"renumbered";
const MIG: &str = "mig";
/// The file that sets vitals of a GPU: JSON with their names in the API, `null` for one that the driver does not report.
const VITALS: &str = "vitals";

/// The file that marks the driver as not loaded.
const ABSENT: &str = "driver-absent";

/// The only version of the world's files that this reads.
const WORLD_SCHEMA: u32 = 1;

/// Number of readings of a process's file while its owner is writing it, and the pause between them.
const READ_ATTEMPTS: u32 = 50;
const READ_PAUSE: Duration = Duration::from_millis(2);

/// The inventory of the simulated host.
#[derive(Debug)]
pub struct SimInventory {
    world: PathBuf,
    /// Open for as long as the inventory exists, as NVML keeps them.
    #[allow(dead_code, reason = "held and never read")]
    devices: Vec<File>,
}

impl SimInventory {
    /// Refuses a fact that the driver of this GPU does not report.
    fn refuse_unreported(&self, gpu: &GpuUuid, fact: &str, what: &'static str) -> Result<(), InventoryError> {
        let listed = self.read_world()?.gpus.into_iter().find(|listed| listed.uuid == *gpu);
        let is_unreported = listed.is_some_and(|listed| listed.unreported.iter().any(|name| name == fact));
        if is_unreported { Err(InventoryError::NotReported { what, gpu: gpu.clone() }) } else { Ok(()) }
    }

    /// Opens the world in a directory, which must describe its GPUs already.
    pub fn open(world: &Path) -> Result<Self, InventoryError> {
        let absent = world.join(ABSENT);
        if absent.exists() {
            let detail = format!(
                "the driver of the simulated host is not loaded, since there is {}",
                absent.display()
            );
            return Err(InventoryError::NoDriver { detail });
        }
        let mut inventory = Self { world: world.to_path_buf(), devices: Vec::new() };
        let minors = inventory.read_world()?.gpus.into_iter().map(|gpu| gpu.minor);
        inventory.devices =
            minors.filter_map(|minor| File::open(inventory.device_file(minor)).ok()).collect();
        Ok(inventory)
    }

    fn read_world(&self) -> Result<World, InventoryError> {
        let path = self.world.join("world.json");
        let text = fs::read(&path).map_err(|error| unreadable(&path, error))?;
        let world: World = serde_json::from_slice(&text).map_err(|error| unreadable(&path, error))?;
        if world.schema == WORLD_SCHEMA {
            Ok(world)
        } else {
            Err(unreadable(&path, format!("schema {} is not {WORLD_SCHEMA}", world.schema)))
        }
    }

    fn gpu_dir(&self, gpu: &GpuUuid) -> PathBuf {
        self.world.join("gpus").join(gpu.as_str())
    }

    fn device_file(&self, minor: u32) -> PathBuf {
        self.world.join("dev").join(format!("nvidia{minor}"))
    }

    fn compute_mode(&self, gpu: &GpuUuid) -> Result<ComputeMode, InventoryError> {
        let path = self.gpu_dir(gpu).join("compute_mode");
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
        let mode = ComputeMode::ALL.into_iter().find(|mode| mode.as_str() == text.trim());
        mode.ok_or_else(|| unreadable(&path, format!("{:?} is not a compute mode", text.trim())))
    }

    /// Returns true if a file of that name lies in the GPU's directory: tests take a GPU out, or switch its mode, by such a file.
    fn is_marked(&self, gpu: &GpuUuid, mark: &str) -> bool {
        self.gpu_dir(gpu).join(mark).exists()
    }

    /// The live processes of a GPU of this world, in order of their PIDs.
    fn live_processes(&self, gpu: &GpuUuid) -> Result<Vec<WorldProcess>, InventoryError> {
        let dir = self.gpu_dir(gpu).join("processes");
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(&dir, error)),
        };
        let mut live = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| unreadable(&dir, error))?;
            // Anything not named by a PID is a file on its way into place.
            // A process on both MLOPart devices of a GPU has a second file, as `1234-1`.
            let name = entry.file_name();
            if name
                .to_str()
                .and_then(|name| name.split('-').next())
                .is_some_and(|pid| pid.parse::<u32>().is_ok())
            {
                live.extend(read_process(&entry.path())?);
            }
        }
        live.sort_by_key(|process| process.pid);
        live.dedup_by(|second, first| {
            let is_same = second.pid == first.pid;
            if is_same {
                first.used_memory += second.used_memory;
            }
            is_same
        });
        Ok(live)
    }

    /// The MIG instances of a GPU: a line of its file has an instance's number, UUID, profile, SMs, and memory in bytes.
    fn instances(&self, gpu: &Gpu) -> Result<Vec<Gpu>, InventoryError> {
        let path = self.gpu_dir(&gpu.uuid).join(MIG);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unreadable(&path, error)),
        };
        let instance = |line: &str| {
            let mut words = line.split_whitespace();
            let number = words.next()?.parse().ok()?;
            let uuid = GpuUuid::parse(words.next()?).ok()?;
            let profile = words.next()?;
            let (sms, memory) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            let held =
                self.live_processes(&uuid).ok()?.iter().map(|process| process.used_memory).sum::<u64>();
            Some(Gpu {
                uuid,
                index: DeviceIndex { part: Some(DevicePart::Mig(number)), ..gpu.index },
                name: format!("{} MIG {profile}", gpu.name),
                sms: Some(sms),
                memory_total: Some(memory),
                memory_used: Some(held.saturating_add(DRIVER_OVERHEAD).min(memory)),
                compute_mode: None,
                mig_enabled: false,
                mig: Some(MigInstance {
                    parent: gpu.uuid.clone(),
                    number,
                    profile: Some(profile.to_owned()),
                }),
                ..gpu.clone()
            })
        };
        let read = |line: &str| {
            instance(line).ok_or_else(|| unreadable(&path, format!("{line:?} is no MIG instance")))
        };
        let mut instances = text.lines().map(read).collect::<Result<Vec<Gpu>, _>>()?;
        instances.sort_by_key(|instance| instance.index);
        Ok(instances)
    }
}

impl SimInventory {
    /// Returns vitals that follow the clients on a GPU: figures near those of an H200, replaced by those in its file.
    fn vitals_of(&self, gpu: &WorldGpu) -> Result<GpuVitals, InventoryError> {
        let live = self.live_processes(&gpu.uuid)?;
        let clients = live.iter().filter(|process| process.kind == "M+C").map(|_| 1).sum::<u32>();
        // Each further client adds less, as the GPU fills up.
        let busy = 100 - 800 / (8 + 5 * clients);
        let unreported = gpu.unreported.iter().any(|name| name == VITALS);
        let vitals = if unreported {
            GpuVitals::default()
        } else {
            GpuVitals {
                utilization_percent: Some(busy),
                power_watts: Some(76.0 + 5.75 * f64::from(busy)),
                power_limit_watts: Some(700.0),
                temperature_celsius: Some(31 + busy / 3),
                slowdown_celsius: Some(87),
                sm_clock_mhz: Some(if busy == 0 { 345 } else { 1980 }),
                uncorrected_ecc_errors: Some(0),
                throttle_reasons: Some(Vec::new()),
                xids: None,
            }
        };
        let path = self.gpu_dir(&gpu.uuid).join(VITALS);
        let Ok(text) = fs::read(&path) else { return Ok(vitals) };
        let set: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(|error| unreadable(&path, error))?;
        let mut merged = serde_json::json!(vitals);
        set.into_iter().for_each(|(name, value)| merged[name] = value);
        serde_json::from_value(merged).map_err(|error| unreadable(&path, error))
    }
}

impl Inventory for SimInventory {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        let world = self.read_world()?;
        Ok(GpuDriver {
            driver_version: world.driver_version,
            cuda_version: cuda_version_text(world.cuda_driver_version),
            simulated: true,
            profile: Some(world.profile),
        })
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        let mut gpus = self.read_world()?.gpus;
        // After a boot without it the driver numbers the others from 0 again: the mark shows that.
        gpus.retain(|gpu| fs::read(self.gpu_dir(&gpu.uuid).join(LOST)).unwrap_or_default() != RENUMBERED);
        // The address has a fixed width, so its order as text is PCI order.
        gpus.sort_by(|a, b| a.pci_bus_id.cmp(&b.pci_bus_id));
        let listed = (0..)
            .zip(gpus)
            .filter(|(_, gpu)| !self.is_marked(&gpu.uuid, LOST))
            .map(|(index, gpu): (u32, WorldGpu)| {
                let reported = |fact: &str| !gpu.unreported.iter().any(|name| name == fact);
                let held: u64 = self.live_processes(&gpu.uuid)?.iter().map(|p| p.used_memory).sum();
                Ok(Gpu {
                    index: index.into(),
                    mig: None,
                    mlopart: None,
                    mig_enabled: gpu.mig_enabled || self.is_marked(&gpu.uuid, MIG),
                    present: true,
                    device_file: reported("device_file").then(|| self.device_file(gpu.minor)),
                    sms: reported("sms").then_some(gpu.sms),
                    compute_capability: reported("compute_capability").then_some(ComputeCapability {
                        major: gpu.compute_capability[0],
                        minor: gpu.compute_capability[1],
                    }),
                    memory_used: reported("memory")
                        .then(|| held.saturating_add(DRIVER_OVERHEAD).min(gpu.memory_total)),
                    compute_mode: reported("compute_mode")
                        .then(|| self.compute_mode(&gpu.uuid))
                        .transpose()?,
                    pci_bus_id: reported("pci").then_some(gpu.pci_bus_id),
                    memory_total: reported("memory").then_some(gpu.memory_total),
                    uuid: gpu.uuid,
                    name: gpu.name,
                })
            })
            .collect::<Result<Vec<Gpu>, InventoryError>>()?;
        let mut devices = Vec::new();
        for gpu in listed {
            let instances = self.instances(&gpu)?;
            devices.push(gpu);
            devices.extend(instances);
        }
        Ok(devices)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        if !self.gpus()?.iter().any(|listed| listed.uuid == *gpu) {
            return Err(InventoryError::UnknownGpu(gpu.clone()));
        }
        self.refuse_unreported(gpu, "processes", "the processes")?;
        let live = self.live_processes(gpu)?;
        Ok(live
            .into_iter()
            .map(|process| GpuProcess {
                pid: process.pid,
                used_memory: Some(process.used_memory),
                mps_client: process.kind == "M+C",
            })
            .collect())
    }

    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
        if !self.read_world()?.gpus.iter().any(|listed| listed.uuid == *gpu) {
            return Err(InventoryError::UnknownGpu(gpu.clone()));
        }
        let path = self.gpu_dir(gpu).join("compute_mode");
        let draft = path.with_extension(format!("set-{}", std::process::id()));
        fs::write(&draft, format!("{}\n", mode.as_str())).map_err(|error| unreadable(&draft, error))?;
        fs::rename(&draft, &path).map_err(|error| unreadable(&path, error))
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        let mut present = self.read_world()?.gpus;
        present.retain(|gpu| !self.is_marked(&gpu.uuid, LOST));
        let listed = self.gpus()?;
        gpus.iter()
            .map(|uuid| {
                let parent = listed.iter().find(|gpu| gpu.uuid == *uuid).and_then(|gpu| gpu.mig.as_ref());
                let board = parent.map_or(uuid, |instance| &instance.parent);
                let gpu = present.iter().find(|gpu| gpu.uuid == *board);
                let gpu = gpu.ok_or_else(|| InventoryError::UnknownGpu(uuid.clone()))?;
                self.refuse_unreported(uuid, "device_file", "the device file")?;
                Ok(DeviceFile { gpu: uuid.clone(), path: self.device_file(gpu.minor) })
            })
            .collect()
    }

    fn vitals(&self, gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, GpuVitals>, InventoryError> {
        let mut listed = self.read_world()?.gpus;
        listed.retain(|gpu| gpus.contains(&gpu.uuid) && !self.is_marked(&gpu.uuid, LOST));
        listed.into_iter().map(|gpu| Ok((gpu.uuid.clone(), self.vitals_of(&gpu)?))).collect()
    }
}

/// `world.json`, as far as an inventory needs it; other keys are ignored.
#[derive(Deserialize)]
struct World {
    schema: u32,
    profile: String,
    driver_version: String,
    cuda_driver_version: i32,
    gpus: Vec<WorldGpu>,
}

/// A GPU in `world.json`.
#[derive(Deserialize)]
struct WorldGpu {
    uuid: GpuUuid,
    minor: u32,
    pci_bus_id: String,
    name: String,
    sms: u32,
    compute_capability: [u32; 2],
    memory_total: u64,
    mig_enabled: bool,
    /// Facts that its driver does not report.
    #[serde(default)]
    unreported: Vec<String>,
}

/// A file under `processes`.
#[derive(Deserialize)]
struct WorldProcess {
    pid: u32,
    kind: String,
    used_memory: u64,
}

/// Reads a process's file; `None` if its process is dead or has not written anything yet.
fn read_process(path: &Path) -> Result<Option<WorldProcess>, InventoryError> {
    let mut attempt = 1;
    loop {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(path, error)),
        };
        // A shared lock that is granted means that nobody holds the exclusive one. Readers do not disturb each
        // other by it, and it goes with `file` at once.
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => {}
            Err(error) => return Err(unreadable(path, error)),
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|error| unreadable(path, error))?;
        // The owner rewrites its file in place, since the lock is on it: what follows the first object is the
        // rest of a longer one that stood there before.
        match serde_json::Deserializer::from_slice(&text).into_iter().next() {
            Some(Ok(process)) => return Ok(Some(process)),
            None if attempt == READ_ATTEMPTS => return Ok(None),
            Some(Err(error)) if attempt == READ_ATTEMPTS => return Err(unreadable(path, error)),
            _ => {
                attempt += 1;
                std::thread::sleep(READ_PAUSE);
            }
        }
    }
}

fn unreadable(path: &Path, detail: impl std::fmt::Display) -> InventoryError {
    InventoryError::World { path: path.display().to_string(), detail: detail.to_string() }
}
