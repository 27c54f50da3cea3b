//! The driver, its GPUs and who is on them, and NVIDIA's two programs.

use std::fs;
use std::path::Path;

use crate::app::CONTROL_PROGRAM;
use crate::app::doctor::facts::{DriverFacts, GpuProcessFacts, NoDriver, NoPrograms, ProgramFacts};
use crate::app::platform::open_nvml;
use crate::config::Config;
use crate::domain::gpu::GpuProcess;
use crate::gpu::{Inventory, InventoryError, TimeLimited, sim::SimInventory};
use crate::host::own_directory::OwnDirectory;
use crate::host::signal::{SERVER, WORLD_ENV, runs};
use crate::mps::process::is_server;
use crate::mps::{Binaries, capability};

pub(super) fn driver(world: Option<&Path>, in_maintenance: bool) -> Result<DriverFacts, NoDriver> {
    if in_maintenance {
        return Err(NoDriver::NotAsked("the host is in maintenance, so the driver is left alone"));
    }
    if world.is_some_and(|world| !world.join("world.json").exists()) {
        return Err(NoDriver::NotAsked("the simulated host is made by the first start of its manager"));
    }
    answers(world).map_err(|error| NoDriver::Failed(error.to_string()))
}

fn answers(world: Option<&Path>) -> Result<DriverFacts, InventoryError> {
    let inventory: Box<dyn Inventory> = match world {
        Some(world) => Box::new(TimeLimited::new(SimInventory::open(world)?)),
        None => Box::new(TimeLimited::open(open_nvml)?),
    };
    let (driver, gpus) = (inventory.driver()?, inventory.gpus()?);
    let (mut processes, mut unread) = (Vec::new(), None);
    for gpu in &gpus {
        let facts = |GpuProcess { pid, mps_client, .. }| GpuProcessFacts {
            gpu: gpu.index,
            pid,
            is_of_mps: mps_client || is_server(pid),
            is_like_server: runs(pid, SERVER),
            is_visible: Path::new(&format!("/proc/{pid}")).exists(),
        };
        match inventory.processes(&gpu.uuid) {
            Ok(listed) => processes.extend(listed.into_iter().map(facts)),
            Err(error) => unread = Some(error.to_string()),
        }
    }
    Ok(DriverFacts { driver, gpus, processes, unread })
}

pub(super) async fn programs(
    config: &Config,
    world: Option<&Path>,
    driver: Option<&DriverFacts>,
) -> Result<ProgramFacts, NoPrograms> {
    let simulated = world.map(|world| world.join("bin"));
    if config.mps_dir.is_none() && simulated.as_ref().is_some_and(|programs| !programs.exists()) {
        return Err(NoPrograms::NotMade);
    }
    let directory = config.mps_dir.clone().or(simulated);
    let located = Binaries::locate(directory.as_deref());
    let binaries = located.map_err(|error| NoPrograms::NotFound(error.to_string()))?;
    let own = directory_for_asking(&config.runtime_dir).map_err(|error| {
        NoPrograms::Silent(format!("there is no directory to ask the control program in: {error}"))
    })?;
    let driver = driver.and_then(|facts| facts.driver.clone().running());
    let program = binaries.installed(world.iter().map(|world| (WORLD_ENV.into(), world.into())).collect());
    let probed = capability::probe(&program, driver.as_ref(), &own.path().join(CONTROL_PROGRAM)).await;
    let capability = probed.map_err(|error| NoPrograms::Silent(error.to_string()))?;
    Ok(ProgramFacts { other_driver: driver.and_then(|driver| capability.other_driver(&driver)), capability })
}

/// Makes a directory in which an old control program can be asked, with a copy of the answers that the manager got from it.
fn directory_for_asking(runtime_dir: &Path) -> std::io::Result<OwnDirectory> {
    let own = OwnDirectory::new()?;
    let kept = Path::new(CONTROL_PROGRAM).with_extension("json");
    // Without the right to read that file, the program is asked again.
    let _ = fs::copy(runtime_dir.join(&kept), own.path().join(&kept));
    Ok(own)
}
