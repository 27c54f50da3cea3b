//! The examination of a host: checks what a manager needs, and finds what is missing, with or without a manager that serves.
//!
//! It changes nothing, leaves no process behind and does not use CUDA, which would make this process a client. It checks with the same
//! code as `serve`, so that both find the same.

mod around;
mod clients;
mod devices;
mod files;
mod neighbours;

use std::path::PathBuf;

pub use self::neighbours::refuse_beside_nvidia;
use super::{StartupError, refused};
use crate::config::Config;
use crate::domain::capability::RunningDriver;
use crate::domain::checkup::{Check, Checkup};
use crate::domain::condition::Condition;
use crate::domain::gpu::Gpu;
use crate::host;
use crate::service::host::startup::NO_MACHINE_ID;
use crate::sim;
use crate::store::{self, inspect::Contents};

/// Every check, in the order in which they are made and shown.
pub const CHECKS: [&str; 36] = [
    "configuration",
    "driver",
    "gpus",
    "compute_capability",
    "mig",
    "compute_mode",
    "outside_mps",
    "pid_namespace",
    "programs",
    "capabilities",
    "manager",
    "state_directory",
    "database",
    "machine",
    "disk_space",
    "runtime_directory",
    "pipe_directories",
    "default_pipe_directory",
    "tenants",
    "daemons",
    "waiting_users",
    "privileged_socket",
    "open_files",
    "tasks",
    "environment",
    "foreign_daemons",
    "mps_services",
    "other_managers",
    "slurm_mps",
    "kernel_log",
    "device_cgroup",
    "cdi",
    "isolation",
    "listen",
    "certificate",
    "clock",
];

/// Conditions of each daemon, as a running manager reports them; the error says why it did not.
pub type DaemonReport = Result<Vec<(String, Option<Vec<Condition>>)>, String>;

/// The manager that serves from the state directory, if any.
#[derive(Clone, Copy)]
enum Manager {
    /// No manager serves.
    None,
    /// The process with this PID serves.
    Process(u32),
    /// A manager serves whose process this user may not see.
    Unseen,
}

impl Manager {
    fn pid(self) -> Option<u32> {
        if let Self::Process(pid) = self { Some(pid) } else { None }
    }
}

/// State that the checks share.
struct Examination {
    config: Config,
    checks: Vec<Check>,
    /// The directory of the simulated host, where one is examined.
    world: Option<PathBuf>,
    machine_id: String,
    manager: Manager,
    running_driver: Option<RunningDriver>,
    gpus: Vec<Gpu>,
    /// The processes that the driver lists on them.
    gpu_processes: Vec<u32>,
    contents: Option<Contents>,
}

/// Refuses, as `serve` does, a simulated host of an unknown profile, which could not be examined.
pub fn refuse_unknown(profile: &str) -> Result<(), StartupError> {
    sim::world::check_profile(profile).map_err(refused)
}

/// Examines the host as a manager with this configuration would find it. `fault` is the reason why a configuration file was refused, and
/// `report` the state of the daemons as the manager that serves reports it.
pub async fn examine(config: Config, fault: Option<String>, report: Option<DaemonReport>) -> Checkup {
    let sim = config.sim.clone();
    let world = sim.as_ref().map(|_| config.runtime_dir.join("sim"));
    let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
    let mut examination = Examination {
        config,
        checks: Vec::new(),
        world,
        machine_id,
        manager: Manager::None,
        running_driver: None,
        gpus: Vec::new(),
        gpu_processes: Vec::new(),
        contents: None,
    };
    examination.add(match fault {
        Some(why) => Check::fail("configuration", why, "fix the file, then run `mps-manager config check`"),
        None => Check::ok(
            "configuration",
            format!(
                "state in {}, runtime in {}",
                examination.config.state_dir.display(),
                examination.config.runtime_dir.display()
            ),
        ),
    });
    let database = examination.config.state_dir.join(super::DATABASE);
    let in_maintenance =
        store::maintenance::peek_inventory(&database, &examination.machine_id).await.is_some();
    examination.devices(in_maintenance);
    examination.programs().await;
    examination.manager().await;
    examination.state_directory();
    examination.database(&database).await;
    examination.space();
    examination.runtime_directory();
    examination.pipe_directories();
    examination.tenants();
    examination.daemons(report);
    examination.waiting_users();
    examination.privileged_socket();
    examination.limits();
    examination.environment();
    examination.foreign_daemons();
    examination.mps_services();
    examination.other_managers();
    examination.slurm_mps();
    examination.kernel_log();
    examination.device_cgroup();
    examination.cdi();
    examination.isolation();
    examination.listen().await;
    examination.certificate();
    examination.clock();
    Checkup { manager_version: env!("CARGO_PKG_VERSION"), sim, checks: examination.checks }
}

impl Examination {
    fn add(&mut self, check: Check) {
        debug_assert_eq!(CHECKS.get(self.checks.len()), Some(&check.id), "in the order of the list");
        self.checks.push(check);
    }
}
