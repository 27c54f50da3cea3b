//! Where the GPUs and the programs come from: this host, or a simulated one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{CONTROL_PROGRAM, StartupError, refused};
use crate::config::Config;
use crate::domain::timings::Timings;
use crate::gpu::{
    GpuDriver, Inventory, InventoryError, Suspendable, SuspendedGpus, TimeLimited, nvml, sim::SimInventory,
};
use crate::host::kernel_log::KERNEL_LOG;
use crate::host::signal::{CONTROL, SERVER, WORLD_ENV};
use crate::mps::{Binaries, Capability, InstalledProgram, capability};
use crate::sim;

/// The GPUs and the programs.
pub(super) struct Platform {
    pub(super) inventory: Arc<TimeLimited<Suspendable>>,
    pub(super) binaries: Binaries,
    pub(super) extra_env: Vec<(OsString, OsString)>,
    pub(super) simulated: bool,
    /// The wait for the driver or its programs, if they are missing: then nothing is queried or started.
    pub(super) waiting: Option<DriverWait>,
}

/// Parts that a start waits for.
#[derive(Clone)]
pub(super) struct DriverWait {
    /// Description of the missing parts.
    pub(super) missing: String,
    /// GPUs as a maintenance remembers them.
    remembered: Option<SuspendedGpus>,
}

/// The control program, and what it can do.
pub(super) struct ProbedProgram {
    pub(super) program: InstalledProgram,
    pub(super) capability: Capability,
}

/// Longest time for a call of the driver that is under way at the start to end.
const CLOSING: std::time::Duration = std::time::Duration::from_secs(10);

impl Platform {
    /// Learns what the control program can do.
    pub(super) async fn probe(&self, runtime_dir: &Path) -> Result<ProbedProgram, StartupError> {
        let program = self.binaries.installed(self.extra_env.clone());
        if self.waiting.is_some() {
            return Ok(ProbedProgram { capability: Capability::unknown(&program), program });
        }
        let driver = self.inventory.known_driver().ok().and_then(GpuDriver::running);
        let place = runtime_dir.join(CONTROL_PROGRAM);
        let capability = capability::probe(&program, driver.as_ref(), &place).await.map_err(refused)?;
        Ok(ProbedProgram { program, capability })
    }

    /// Returns the log in which the driver reports errors of the GPUs.
    pub(super) fn kernel_log(&self) -> PathBuf {
        let world = self.extra_env.iter().find(|(name, _)| name == WORLD_ENV);
        world.map_or_else(|| PathBuf::from(KERNEL_LOG), |(_, world)| Path::new(world).join("kernel.log"))
    }

    /// Suspends or resumes the driver as the maintenance in the store says; the file that was read before may have said something else.
    pub(super) fn apply_maintenance(&self, remembered: Option<SuspendedGpus>) -> Result<(), StartupError> {
        match remembered {
            Some(remembered) if self.inventory.live() => {
                if let Err(error) = self.inventory.suspend(remembered, CLOSING) {
                    tracing::error!(%error, "the driver is not closed, though the host is in maintenance");
                }
            }
            None => self.inventory.resume().map_err(refused)?,
            Some(_) => {}
        }
        if !self.inventory.live() {
            tracing::info!("the host is in maintenance: the driver is not queried");
        }
        Ok(())
    }
}

/// Parses the GPUs that a maintenance remembers; an unreadable text counts as none.
pub(super) fn remembered(text: Option<&str>) -> Option<SuspendedGpus> {
    let read = serde_json::from_str(text?);
    read.inspect_err(|error| tracing::error!(%error, "what was remembered of the GPUs cannot be read")).ok()
}

/// Finds the GPUs and the programs; touches nothing of a real host, and reports all that is missing at once.
///
/// With `wait_for_driver`, missing parts are no error: the result says what to wait for.
pub(super) fn find(config: &Config, remembered: Option<SuspendedGpus>) -> Result<Platform, StartupError> {
    let is_simulated = config.sim.is_some();
    let kept = remembered.clone();
    let platform = if is_simulated { simulated(config, remembered) } else { real(config, remembered) };
    platform.or_else(|Missing { message, opener, directory }| match opener {
        Some(opener) if config.waits_for_driver() => {
            // The programs may come with the driver: one package may have both.
            let [control, server] = [CONTROL, SERVER].map(|name| directory.join(name));
            Ok(Platform {
                inventory: Arc::new(TimeLimited::new(Suspendable::closed(
                    opener,
                    SuspendedGpus::none(config.sim.clone()),
                ))),
                binaries: Binaries { control, server },
                extra_env: Vec::new(),
                simulated: is_simulated,
                waiting: Some(DriverWait { missing: message, remembered: kept }),
            })
        }
        _ if is_simulated => Err(StartupError(message)),
        _ => Err(StartupError(format!(
            "{message}\nTo try mps-manager without a GPU, start it with --sim h200x2: a simulated host."
        ))),
    })
}

/// Waits until the driver and its programs are present, then cancels the token.
pub(super) async fn arrives(config: Config, waiting: DriverWait, arrived: CancellationToken) {
    let config = Config { wait_for_driver: Some(false), ..config };
    let pause = Timings::duration(config.timings.driver_wait_ms);
    loop {
        tokio::time::sleep(pause).await;
        // A remembered maintenance keeps the driver untouched here too.
        let (config, remembered) = (config.clone(), waiting.remembered.clone());
        let attempt = tokio::task::spawn_blocking(move || find(&config, remembered).map(drop)).await;
        match attempt {
            Ok(Ok(())) => return arrived.cancel(),
            Ok(Err(missing)) => tracing::debug!(%missing, "still waiting for the driver"),
            Err(error) => tracing::error!(%error, "the driver could not be looked for"),
        }
    }
}

type Opener = fn() -> Result<Box<dyn Inventory>, InventoryError>;

/// Parts of a host that are missing.
struct Missing {
    message: String,
    /// Opens the driver once it is present; `None` where waiting would not help.
    opener: Option<Opener>,
    directory: PathBuf,
}

impl<E: std::fmt::Display> From<E> for Missing {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), opener: None, directory: PathBuf::new() }
    }
}

fn real(config: &Config, remembered: Option<SuspendedGpus>) -> Result<Platform, Missing> {
    let inventory = match remembered {
        // In maintenance the driver is not touched, and need not be present.
        Some(remembered) => Ok(TimeLimited::new(Suspendable::closed(open_nvml, remembered))),
        None => opened()?,
    };
    let binaries = Binaries::locate(config.mps_dir.as_deref()).map_err(|error| error.to_string());
    match (inventory, binaries) {
        (Ok(inventory), Ok(binaries)) => Ok(Platform {
            inventory: Arc::new(inventory),
            binaries,
            extra_env: Vec::new(),
            simulated: false,
            waiting: None,
        }),
        (inventory, binaries) => {
            let missing: Vec<String> = inventory.err().into_iter().chain(binaries.err()).collect();
            Err(Missing {
                message: missing.join("\n"),
                opener: Some(open_nvml),
                directory: config.mps_dir.clone().unwrap_or_default(),
            })
        }
    }
}

/// Opens the driver; the inner error describes a driver that is missing and may come later. One that hangs or fails ends the start.
fn opened() -> Result<Result<TimeLimited<Suspendable>, String>, InventoryError> {
    let inventory = match TimeLimited::open(open_nvml) {
        Err(error @ InventoryError::NoDriver { .. }) => return Ok(Err(error.to_string())),
        inventory => inventory?,
    };
    Ok(if inventory.gpus()?.is_empty() {
        Err("the NVIDIA driver lists no GPU on this host, or can describe none: the log says why".to_owned())
    } else {
        Ok(inventory)
    })
}

pub(super) fn open_nvml() -> Result<Box<dyn Inventory>, InventoryError> {
    Ok(Box::new(nvml::NvmlInventory::open()?))
}

/// Makes a simulated host in the runtime directory; `mps_dir` may name other programs than its own, as on a real host.
fn simulated(config: &Config, remembered: Option<SuspendedGpus>) -> Result<Platform, Missing> {
    let directory = config.runtime_dir.join("sim");
    sim::world::create(&directory, config.sim.as_deref().unwrap_or_default())?;
    let programs = config.mps_dir.clone().unwrap_or_else(|| directory.join("bin"));
    let world = directory.clone();
    let opener =
        move || -> Result<Box<dyn Inventory>, InventoryError> { Ok(Box::new(SimInventory::open(&world)?)) };
    let inventory = match remembered {
        Some(remembered) => Suspendable::closed(opener, remembered),
        None => Suspendable::open(opener).map_err(|error| match error {
            InventoryError::NoDriver { .. } => Missing {
                message: error.to_string(),
                opener: Some(|| Err(InventoryError::Suspended)),
                directory: programs.clone(),
            },
            error => error.into(),
        })?,
    };
    Ok(Platform {
        inventory: Arc::new(TimeLimited::with_deadline(
            inventory,
            Timings::duration(config.timings.driver_call_ms),
        )),
        binaries: Binaries::locate(Some(&programs))?,
        extra_env: vec![(WORLD_ENV.into(), directory.into_os_string())],
        simulated: true,
        waiting: None,
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn hand_over_names_the_world_as_programs_do() {
        assert_eq!(crate::domain::environment::SIMULATED_WORLD, super::WORLD_ENV);
    }
}
