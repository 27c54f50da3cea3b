//! The facts about a host that the checks judge: plain data.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::config::Config;
use crate::domain::checkup::{CheckOutcome, skipped};
use crate::domain::condition::Condition;
use crate::domain::device_index::DeviceIndex;
use crate::domain::gpu::Gpu;
use crate::gpu::GpuDriver;
use crate::host::kernel_log::LoggedXid;
use crate::host::systemd::Scopes;
use crate::host::trust::Untrusted;
use crate::mps::Capability;
use crate::mps::process::foreign::Running;
use crate::store::inspect::{Contents, Inspection};
use crate::supervisor::ExposureSearch;

/// Conditions that a running manager reports.
#[derive(Debug)]
pub struct ManagerReport {
    /// Those of the host.
    pub host: Vec<Condition>,
    /// Those of each daemon; `None` while nothing is known of it.
    pub daemons: Vec<(String, Option<Vec<Condition>>)>,
}

/// Facts about a host, gathered at one time.
#[derive(Debug)]
pub struct HostFacts {
    pub(super) config: Config,
    /// Reason why the configuration file was refused.
    pub(super) config_fault: Option<String>,
    pub(super) machine_id: String,
    pub(super) driver: Result<DriverFacts, NoDriver>,
    pub(super) programs: Result<ProgramFacts, NoPrograms>,
    pub(super) manager: ManagerFacts,
    pub(super) state_directory: DirectoryFacts,
    pub(super) runtime_directory: DirectoryFacts,
    pub(super) database: Result<Inspection, NoDatabase>,
    /// Free bytes of each of the two directories.
    pub(super) free: Result<Vec<(u64, PathBuf)>, String>,
    /// A pipe directory of the daemons; the reason why one cannot be used.
    pub(super) pipes: Result<PathBuf, String>,
    pub(super) has_default_pipes: bool,
    /// Tenants whose users do not reach their directories, each with the reason.
    pub(super) unreachable: Vec<String>,
    /// Report of the manager that serves, or the reason why it gave none; `None` if none serves.
    pub(super) report: Option<Result<ManagerReport, String>>,
    /// Every control daemon of the host.
    pub(super) daemons: Vec<Running>,
    pub(super) waiting: Vec<WaitingUsers>,
    pub(super) exposed: Result<ExposureSearch, String>,
    /// Limit on open files that daemons inherit: from the manager that serves, or else from this process.
    pub(super) open_files: Option<u64>,
    /// Limit on threads and processes that they inherit, and the file that sets it.
    pub(super) tasks: Option<(u64, String)>,
    /// Variables of this process that change what a CUDA program sees.
    pub(super) variables: Vec<String>,
    /// Services that start a control daemon at boot.
    pub(super) services: Vec<String>,
    /// Other programs that share GPUs, by name and PID.
    pub(super) other_managers: Vec<(&'static str, u32)>,
    pub(super) slurm: SlurmFacts,
    pub(super) xids: Result<Vec<LoggedXid>, String>,
    pub(super) cgroup: CgroupFacts,
    pub(super) cdi: CdiFacts,
    pub(super) scopes: Scopes,
    pub(super) private_mounts: Option<bool>,
    /// Error of binding the API's address.
    pub(super) bound: Result<(), String>,
    /// True if the manager that serves listens on its port; `None` if that is unknown.
    pub(super) listens: Option<bool>,
    /// End of the certificate's validity, in seconds.
    pub(super) certificate: Result<Option<i64>, String>,
    pub(super) boot_id: Result<String, String>,
    pub(super) now_ms: i64,
}

/// Answers of the driver.
#[derive(Debug)]
pub(super) struct DriverFacts {
    pub(super) driver: GpuDriver,
    pub(super) gpus: Vec<Gpu>,
    pub(super) processes: Vec<GpuProcessFacts>,
    /// Reason why the processes of a GPU are unknown.
    pub(super) unread: Option<String>,
}

/// Reason why there are no answers of the driver.
#[derive(Debug)]
pub(super) enum NoDriver {
    NotAsked(&'static str),
    Failed(String),
}

/// A process on a GPU.
#[derive(Debug)]
pub(super) struct GpuProcessFacts {
    pub(super) gpu: DeviceIndex,
    pub(super) pid: u32,
    /// True if it is an MPS client, or executes the file of a server.
    pub(super) is_of_mps: bool,
    /// True if it is called like the server of MPS.
    pub(super) is_like_server: bool,
    /// True if it is in this process's PID namespace.
    pub(super) is_visible: bool,
}

/// NVIDIA's programs.
#[derive(Debug)]
pub(super) struct ProgramFacts {
    pub(super) capability: Capability,
    /// Reason why they do not work with the driver that runs.
    pub(super) other_driver: Option<String>,
}

/// Reason why nothing is known of NVIDIA's programs.
#[derive(Debug)]
pub(super) enum NoPrograms {
    NotMade,
    NotFound(String),
    Silent(String),
}

/// The manager of the state directory.
#[derive(Debug)]
pub(super) enum ManagerFacts {
    NeverServed,
    Unknown(String),
    Stopped,
    /// It holds the lock; `pid` is `None` if this user may not see its process, and `health` says why it is not healthy.
    Serves {
        pid: Option<u32>,
        health: Result<(), String>,
    },
}

/// A directory that has to exist or be made.
#[derive(Debug)]
pub(super) struct DirectoryFacts {
    pub(super) place: Result<DirectoryPlace, String>,
    /// The file system over a network that it is on.
    pub(super) network: Option<&'static str>,
    pub(super) untrusted: Option<Untrusted>,
    /// Files that others than their owner reach, each with its mode.
    pub(super) open: Vec<String>,
}

/// Place of a usable directory.
#[derive(Debug)]
pub(super) enum DirectoryPlace {
    There {
        uid: u32,
        mode: u32,
    },
    /// It is missing, and this is its nearest parent that exists.
    CanBeMade(PathBuf),
}

/// Reason why there are no facts from the database.
#[derive(Debug)]
pub(super) enum NoDatabase {
    /// None was ever made.
    NotMade,
    Lost(String),
    Unreadable(String),
}

/// Clients that wait while a daemon's server belongs to other users.
#[derive(Debug)]
pub(super) struct WaitingUsers {
    /// PID of the control daemon.
    pub(super) control: u32,
    /// Name of a daemon in the manager's runtime directory.
    pub(super) managed: Option<String>,
    /// Users of its servers.
    pub(super) served: BTreeSet<u32>,
    /// The clients, by PID and user.
    pub(super) clients: Vec<(u32, u32)>,
}

/// Slurm's configuration.
#[derive(Debug, Default)]
pub(super) struct SlurmFacts {
    pub(super) files: usize,
    /// Files that enable the MPS plugin.
    pub(super) enabling: Vec<String>,
    pub(super) unreadable: Vec<String>,
}

/// Limits on device memory by cgroup.
#[derive(Debug)]
pub(super) struct CgroupFacts {
    /// True if the kernel can set any; `None` without cgroup v2.
    pub(super) has_dmem: Option<bool>,
    pub(super) limited: Vec<String>,
}

/// CDI specifications.
#[derive(Debug)]
pub(super) struct CdiFacts {
    pub(super) count: usize,
    /// Specifications that mount the directory of a deleted tenant, each with that directory.
    pub(super) stale: Vec<(PathBuf, PathBuf)>,
    /// Devices of NVIDIA's container toolkit; `None` if no engine needs any.
    pub(super) gpus: Option<BTreeSet<String>>,
    /// Reason why the manager's own specification cannot be kept, and the remedy.
    pub(super) unusable: Option<(String, String)>,
}

impl HostFacts {
    /// Returns the answers of the driver, or skips the check.
    pub(super) fn answers(&self) -> Result<&DriverFacts, CheckOutcome> {
        match &self.driver {
            Ok(facts) => Ok(facts),
            Err(NoDriver::NotAsked(why)) => skipped(*why),
            Err(NoDriver::Failed(_)) => skipped("the driver did not answer"),
        }
    }

    /// Returns the GPUs and their processes, or skips the check.
    pub(super) fn gpus(&self) -> Result<&DriverFacts, CheckOutcome> {
        let facts = self.answers()?;
        if facts.gpus.is_empty() { skipped("the driver lists no GPU") } else { Ok(facts) }
    }

    /// Returns the GPUs that are known.
    pub(super) fn known_gpus(&self) -> &[Gpu] {
        self.driver.as_ref().map_or(&[], |facts| &facts.gpus)
    }

    /// Returns the contents of an intact database of this version.
    pub(super) fn contents(&self) -> Option<&Contents> {
        self.database.as_ref().ok()?.contents.as_ref()
    }
}

impl ManagerFacts {
    /// Returns the process that serves, if this user may see it.
    pub(super) fn pid(&self) -> Option<u32> {
        if let Self::Serves { pid, .. } = self { *pid } else { None }
    }
}
