//! The driver, its GPUs and who is on them, and NVIDIA's two programs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::Examination;
use crate::app::CONTROL_PROGRAM;
use crate::app::platform::open_nvml;
use crate::domain::checkup::{Check, CheckFinding, CheckVerdict};
use crate::domain::gpu::{ComputeMode, Gpu};
use crate::gpu::{GpuDriver, Inventory, InventoryError, TimeLimited, sim::SimInventory};
use crate::host::own_directory::OwnDirectory;
use crate::host::signal::{SERVER, WORLD_ENV, runs};
use crate::mps::process::is_server;
use crate::mps::{Binaries, Capability, capability};

impl Examination {
    fn inventory(&self) -> Result<Box<dyn Inventory>, InventoryError> {
        match &self.world {
            Some(world) => Ok(Box::new(TimeLimited::new(SimInventory::open(world)?))),
            None => Ok(Box::new(TimeLimited::open(open_nvml)?)),
        }
    }

    pub(super) fn devices(&mut self, in_maintenance: bool) {
        let rest = ["gpus", "compute_capability", "mig", "compute_mode", "outside_mps", "pid_namespace"];
        let unmade = self.world.as_ref().is_some_and(|world| !world.join("world.json").exists());
        let why = if in_maintenance {
            Some("the host is in maintenance, so the driver is left alone")
        } else if unmade {
            Some("the simulated host is made by the first start of its manager")
        } else {
            None
        };
        if let Some(why) = why {
            self.add(Check::skipped("driver", why));
            for id in rest {
                self.add(Check::skipped(id, why));
            }
            return;
        }
        let seen = self.inventory().and_then(|inventory| {
            let (driver, gpus) = (inventory.driver()?, inventory.gpus()?);
            Ok((inventory, driver, gpus))
        });
        match seen {
            Ok((_, driver, gpus)) if gpus.is_empty() => {
                self.add(driver_check(&driver));
                self.running_driver = driver.running();
                self.add(gpus_check(&gpus));
                for id in &rest[1..] {
                    self.add(Check::skipped(id, "the driver lists no GPU"));
                }
            }
            Ok((inventory, driver, gpus)) => {
                self.add(driver_check(&driver));
                self.running_driver = driver.running();
                self.add(gpus_check(&gpus));
                self.add(capability_check(&gpus));
                self.add(mig_check(&gpus));
                self.add(compute_mode_check(&gpus));
                self.add(outside_check(inventory.as_ref(), &gpus));
                let processes = gpus.iter().filter_map(|gpu| inventory.processes(&gpu.uuid).ok());
                self.gpu_processes = processes.flatten().map(|process| process.pid).collect();
                self.pid_namespace();
                self.gpus = gpus;
            }
            Err(error) => {
                let remedy = "install the driver, or start it: nvidia-smi has to list the GPUs; to try mps-manager without any, \
                              give --sim h200x2";
                self.add(Check::fail("driver", error.to_string(), remedy));
                for id in rest {
                    self.add(Check::skipped(id, "the driver did not answer"));
                }
            }
        }
    }

    pub(super) async fn programs(&mut self) {
        let simulated = self.world.as_ref().map(|world| world.join("bin"));
        if self.config.mps_dir.is_none() && simulated.as_ref().is_some_and(|programs| !programs.exists()) {
            let why = "the simulated host is made by the first start of its manager";
            self.add(Check::skipped("programs", why));
            self.add(Check::skipped("capabilities", why));
            return;
        }
        let directory = self.config.mps_dir.clone().or(simulated);
        let binaries = match Binaries::locate(directory.as_deref()) {
            Ok(binaries) => binaries,
            Err(error) => {
                let remedy = "install the driver's MPS programs, or name their directory with --mps-dir";
                self.add(Check::fail("programs", error.to_string(), remedy));
                self.add(Check::skipped("capabilities", "the programs were not found"));
                return;
            }
        };
        let environment =
            self.world.iter().map(|world| (WORLD_ENV.into(), world.clone().into_os_string())).collect();
        let probed = match self.directory_for_asking() {
            Ok(own) => {
                let probed = capability::probe(
                    &binaries.installed(environment),
                    self.running_driver.as_ref(),
                    &own.path().join(CONTROL_PROGRAM),
                )
                .await;
                probed.map_err(|error| error.to_string())
            }
            Err(error) => Err(format!("there is no directory to ask the control program in: {error}")),
        };
        match probed {
            Ok(capability) => {
                let driver = self.running_driver.as_ref();
                self.add(match driver.and_then(|driver| capability.other_driver(driver)) {
                    None => Check::ok(
                        "programs",
                        format!(
                            "{}, version {} (CUDA {}), {} clients on one GPU at most",
                            binaries.control.display(),
                            capability.binary_version,
                            capability.cuda_version(),
                            capability.client_ceiling()
                        ),
                    ),
                    Some(why) => {
                        Check::fail("programs", why, "install the MPS programs of the running driver")
                    }
                });
                self.add(capabilities_check(&capability));
            }
            Err(error) => {
                self.add(Check::fail("programs", error, "reinstall the MPS programs of the running driver"));
                self.add(Check::skipped("capabilities", "the control program did not say"));
            }
        }
    }
}

impl Examination {
    /// Makes a directory in which an old control program can be asked, with a copy of the answers that the manager got from it.
    fn directory_for_asking(&self) -> std::io::Result<OwnDirectory> {
        let own = OwnDirectory::new()?;
        let kept = Path::new(CONTROL_PROGRAM).with_extension("json");
        // Without the right to read that file, the program is asked again.
        let _ = fs::copy(self.config.runtime_dir.join(&kept), own.path().join(&kept));
        Ok(own)
    }
}

/// Checks the capabilities that the version of the programs lacks. Only a lack that strangers can exploit calls for action.
fn capabilities_check(capability: &Capability) -> Check {
    let missing: Vec<String> = capability
        .list()
        .into_iter()
        .filter_map(|one| one.reason.map(|why| format!("{}: {why}", one.name.title())))
        .collect();
    if missing.is_empty() {
        return Check::ok(
            "capabilities",
            "static partitions and everything else that depends on the version",
        );
    }
    let seen = missing.join("; ");
    if capability.guarded_defaults() {
        Check::skipped(
            "capabilities",
            format!("{seen}; daemons in shared mode, and layouts by percentage, work"),
        )
    } else {
        Check::warn(
            "capabilities",
            seen,
            "install a driver from 550 on, or give accounts on this host to none but the tenants' users",
        )
    }
}

fn driver_check(driver: &GpuDriver) -> Check {
    let cuda = driver.cuda_version.as_deref().map(|version| format!(", CUDA {version}")).unwrap_or_default();
    let simulated = driver.profile.as_deref().map(|profile| format!(", SIMULATED ({profile})"));
    Check::ok("driver", format!("version {}{cuda}{}", driver.driver_version, simulated.unwrap_or_default()))
}

fn gpus_check(gpus: &[Gpu]) -> Check {
    if gpus.is_empty() {
        return Check::fail(
            "gpus",
            "the driver lists no GPU, or can describe none",
            "see nvidia-smi and dmesg for a GPU that fell off the bus",
        );
    }
    let names: Vec<String> = gpus.iter().map(|gpu| format!("{} {}", gpu.index, gpu.name)).collect();
    Check::ok("gpus", names.join(", "))
}

/// Lists the indices of the GPUs that satisfy `which`, in words.
fn those(gpus: &[Gpu], which: impl Fn(&Gpu) -> bool) -> Option<String> {
    let found: Vec<String> =
        gpus.iter().filter(|gpu| which(gpu)).map(|gpu| format!("GPU {}", gpu.index)).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// Checks the capabilities that the generation of the GPUs lacks.
fn capability_check(gpus: &[Gpu]) -> Check {
    if let Some(found) = those(gpus, Gpu::is_before_volta) {
        return Check::warn(
            "compute_capability",
            format!(
                "before Volta: {found}; MPS has no limits there, one user at a time, and containers need the host's /dev/shm"
            ),
            "nvidia-smi --query-gpu=index,compute_cap --format=csv (leave GPUs below 7.0 out of the daemons)",
        );
    }
    let unknown = those(gpus, |gpu| gpu.compute_capability.is_none());
    if let Some(unknown) = unknown {
        return Check::skipped(
            "compute_capability",
            format!(
                "the driver does not report the compute capability of {unknown}: whether limits work there shows when a tenant is verified"
            ),
        );
    }
    Check::ok(
        "compute_capability",
        match those(gpus, Gpu::is_before_ampere) {
            Some(found) => {
                format!("limits work on every GPU; before Ampere, so without static partitions: {found}")
            }
            None => "limits work on every GPU, and static partitions where MPS has them".to_owned(),
        },
    )
}

fn mig_check(gpus: &[Gpu]) -> Check {
    let found = gpus.iter().filter(|gpu| gpu.mig_enabled).map(|gpu| CheckFinding {
        seen: format!("GPU {} is in MIG mode, so it is listed and not managed", gpu.index),
        remedy: format!("nvidia-smi -i {} -mig 0", gpu.index),
    });
    let found: Vec<CheckFinding> = found.collect();
    if found.is_empty() {
        Check::ok("mig", "no GPU is in MIG mode")
    } else {
        Check::each("mig", CheckVerdict::Warn, found)
    }
}

fn compute_mode_check(gpus: &[Gpu]) -> Check {
    let prohibited = gpus.iter().filter(|gpu| gpu.compute_mode == Some(ComputeMode::Prohibited));
    let prohibited: Vec<CheckFinding> = prohibited
        .map(|gpu| CheckFinding {
            seen: format!("prohibited: GPU {}, where no process may use CUDA, nor an MPS server", gpu.index),
            remedy: format!("nvidia-smi -i {} -c DEFAULT", gpu.index),
        })
        .collect();
    if !prohibited.is_empty() {
        return Check::each("compute_mode", CheckVerdict::Fail, prohibited);
    }
    if let Some(unknown) = those(gpus, |gpu| gpu.compute_mode.is_none()) {
        return Check::skipped(
            "compute_mode",
            format!("the driver does not report the compute mode of {unknown}, which cannot be set there"),
        );
    }
    let seen = match those(gpus, |gpu| gpu.compute_mode == Some(ComputeMode::Default)) {
        Some(found) => format!(
            "default: {found}; processes that miss the pipe directory run outside MPS there. A daemon's compute_mode can say \
             otherwise while it runs"
        ),
        None => "exclusive_process on every GPU: a process outside MPS is refused".to_owned(),
    };
    Check::ok("compute_mode", seen)
}

fn outside_check(inventory: &dyn Inventory, gpus: &[Gpu]) -> Check {
    let (mut outside, mut pids, mut listed, mut unread) = (Vec::new(), BTreeSet::new(), 0, None);
    for gpu in gpus {
        match inventory.processes(&gpu.uuid) {
            Ok(processes) => {
                listed += processes.len();
                let found =
                    processes.into_iter().filter(|process| !process.mps_client && !is_server(process.pid));
                for process in found {
                    outside.push(format!("{} on GPU {}", process.pid, gpu.index));
                    pids.insert(process.pid);
                }
            }
            Err(error) => unread = Some(error.to_string()),
        }
    }
    if let Some(why) = unread.filter(|_| outside.is_empty()) {
        return Check::skipped("outside_mps", why);
    }
    if outside.is_empty() {
        let well = "every process on a GPU is an MPS client or server";
        return Check::ok_of("outside_mps", listed, "the driver lists no process on a GPU", well);
    }
    let exclusive = those(gpus, |gpu| gpu.compute_mode == Some(ComputeMode::ExclusiveProcess));
    let effect = exclusive.map_or_else(
        || "no limit holds them".to_owned(),
        |found| {
            format!("no limit holds them, and one on {found} keeps MPS and everybody else off it (error 46)")
        },
    );
    // Any process that is named like the server of MPS may be one.
    let (servers, others): (Vec<u32>, Vec<u32>) = pids.into_iter().partition(|pid| runs(*pid, SERVER));
    let words =
        |pids: &[u32], between: &str| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(between);
    let remedy = if others.is_empty() {
        format!("see whose these servers are: ps -o pid,ppid,user,args -p {}", words(&servers, ","))
    } else {
        format!("kill {}", words(&others, " "))
    };
    Check::warn(
        "outside_mps",
        format!(
            "not under MPS: {}; {effect}. Start them with `mps-manager run --tenant NAME` instead",
            outside.join(", ")
        ),
        remedy,
    )
}
