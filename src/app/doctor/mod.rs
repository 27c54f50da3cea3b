//! The examination of a host: checks what a manager needs, and finds what is missing, with or without a manager that serves.
//!
//! The facts are gathered once ([`HostFacts`]), with the code that `serve` uses, so that both find the same; each check is a pure function
//! of them. Nothing here changes the host, leaves a process behind or uses CUDA, which would make this process a client.

mod around;
mod clients;
mod devices;
mod facts;
mod files;
mod gather;
mod neighbours;
#[cfg(test)]
mod tests;

pub use self::facts::{HostFacts, ManagerReport};
pub use self::gather::neighbours::refuse_beside_nvidia;
use super::{StartupError, refused};
use crate::config::Config;
use crate::domain::checkup::{Check, Checkup, Judgement};
use crate::sim;

/// Judges a host by its facts.
pub type Judge = fn(&HostFacts) -> Judgement;

/// Every check by its name, in the order in which they are shown.
pub const CHECKS: [(&str, Judge); 36] = [
    ("configuration", files::configuration),
    ("driver", devices::driver),
    ("gpus", devices::gpus),
    ("compute_capability", devices::compute_capability),
    ("mig", devices::mig),
    ("compute_mode", devices::compute_mode),
    ("outside_mps", devices::outside_mps),
    ("pid_namespace", devices::pid_namespace),
    ("programs", devices::programs),
    ("capabilities", devices::capabilities),
    ("manager", files::manager),
    ("state_directory", files::state_directory),
    ("database", files::database),
    ("machine", files::machine),
    ("disk_space", files::disk_space),
    ("runtime_directory", files::runtime_directory),
    ("pipe_directories", files::pipe_directories),
    ("default_pipe_directory", files::default_pipe_directory),
    ("tenants", files::tenants),
    ("daemons", clients::daemons),
    ("waiting_users", clients::waiting_users),
    ("privileged_socket", clients::privileged_socket),
    ("open_files", around::open_files),
    ("tasks", around::tasks),
    ("environment", around::environment),
    ("foreign_daemons", clients::foreign_daemons),
    ("mps_services", neighbours::mps_services),
    ("other_managers", neighbours::other_managers),
    ("slurm_mps", neighbours::slurm_mps),
    ("kernel_log", neighbours::kernel_log),
    ("device_cgroup", neighbours::device_cgroup),
    ("cdi", neighbours::cdi),
    ("isolation", around::isolation),
    ("listen", around::listen),
    ("certificate", around::certificate),
    ("clock", around::clock),
];

/// Refuses, as `serve` does, a simulated host of an unknown profile, which could not be examined.
pub fn refuse_unknown(profile: &str) -> Result<(), StartupError> {
    sim::world::check_profile(profile).map_err(refused)
}

/// Examines the host as a manager with this configuration would find it. `fault` is the reason why a configuration file was refused, and
/// `report` what the manager that serves reports, or the reason why it did not.
pub async fn examine(
    config: Config,
    fault: Option<String>,
    report: Option<Result<ManagerReport, String>>,
) -> Checkup {
    let sim = config.sim.clone();
    let host = HostFacts::gather(config, fault, report).await;
    let checks = CHECKS.iter().map(|(id, judge)| Check { id, outcome: judge(&host).into() }).collect();
    Checkup { manager_version: env!("CARGO_PKG_VERSION"), sim, checks }
}
