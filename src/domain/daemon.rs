//! Control daemons: the desired and the observed state of each.

use super::condition::Condition;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::compute_mode::ComputeModeStatus;
use super::drift::{DriftPolicy, DriftStatus};
pub use super::effective::{Effective, FaultHolder, MemoryReading, Server, ServerStatus};
use super::foreign_user::ForeignUserPolicy;
use super::gpu::{ComputeMode, Gpu, GpuRef};
use super::isolation::Isolation;
use super::layout::active::ActiveLayout;
use super::layout::status::LayoutStatus;
pub use super::management::{CurrentDaemon, check_management};
use super::provisioning::{Provisioning, ProvisioningStatus};
pub use super::reservation::{AdmissionMode, OvercommitRatio};
use super::wedge::{WedgeGrace, WedgePolicy, WedgeSettings};
use super::{DaemonName, DeviceMemoryLimit, GpuUuid, Inode, InvalidValue, Priority, ThreadPercentage};

/// Desired state of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "independent settings, each named as in the API")]
pub struct DaemonSpec<G = GpuUuid> {
    /// The GPUs that the daemon offers, in PCI order; one is the safe choice (see `docs/limits.md`).
    #[schema(min_items = 1)]
    pub gpus: Vec<G>,
    /// Sharing of a GPU's SMs among its clients.
    #[serde(default)]
    pub mode: Mode,
    /// The partition layout that is in force or being put in force; it is changed by applying another layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<ActiveLayout>,
    /// True if clients get MLOPart devices, parts of a GPU that are each near a part of its memory, in place of whole GPUs (CUDA 13.1 and
    /// later, on some GPUs from Blackwell on). A tenant names one in its `gpus`, as `0/mlo1`, or has all of a GPU. Built from NVIDIA's
    /// documentation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub mlopart: bool,
    /// True if clients of several users may be connected at once (`-M`).
    #[serde(default)]
    pub multi_user: bool,
    /// Further users who may reach the daemon, beside those of its tenants: for containers that do not run as their tenant's user.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub users: Vec<u32>,
    /// True if every user of the host may reach it.
    #[serde(default)]
    pub any_user: bool,
    /// Desired run state.
    #[serde(default)]
    pub desired_state: DesiredState,
    /// Management mode: the manager keeps the daemon as this spec says, or only observes it.
    #[serde(default)]
    pub management: Management,
    /// True if it is started even while another control daemon serves one of its GPUs: two servers then take turns on the GPU, and
    /// each counts limits for itself.
    #[serde(default)]
    pub share_gpus: bool,
    /// True if `run` may start new clients on it.
    #[serde(default = "yes")]
    pub schedulable: bool,
    /// The compute mode of its GPUs while it runs: `exclusive_process` admits its server alone, so that no process goes
    /// past MPS. Without it, the mode is left as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode: Option<ComputeMode>,
    /// Values for tenants that leave them out.
    #[serde(default = "Defaults::default")]
    #[schema(value_type = Defaults)]
    pub defaults: Defaults<G>,
    /// Assignment of thread percentages to tenants that state neither a percentage nor SMs; in shared mode only, and without a layout.
    #[serde(default)]
    pub provisioning: Provisioning,
    /// Admission of tenants: with or without reservation of memory and clients.
    #[serde(default)]
    pub admission: AdmissionMode,
    /// Ratio of reservable memory to a GPU's memory with `reserved`: 1 is no over-commit.
    #[serde(default)]
    #[schema(value_type = f64, minimum = 1.0)]
    pub memory_overcommit: OvercommitRatio,
    /// Policy for settings that another program changes.
    #[serde(default)]
    pub drift_policy: DriftPolicy,
    /// Policy for clients of users who belong to no tenant, on a daemon that serves one user at a time.
    #[serde(default)]
    pub foreign_user_policy: ForeignUserPolicy,
    /// Policy for clients of a server that hangs and keeps the daemon from answering.
    #[serde(default)]
    pub wedge_policy: WedgePolicy,
    /// Seconds that these clients are waited for before the server is replaced, which ends their work.
    #[serde(default)]
    #[schema(value_type = u32, minimum = 0, maximum = 3600)]
    pub wedge_grace_s: WedgeGrace,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(value: &bool) -> bool {
    !value
}

fn yes() -> bool {
    true
}

/// Sharing of a GPU's SMs among the clients of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All clients share all SMs, each within its thread percentage.
    #[default]
    Shared,
    /// Each client has the SMs of the static partition that it names and no others (`-S`, CUDA 13.1 and later).
    Static,
}

api_words!(Mode: Shared "shared", Static "static");

/// Desired run state of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DesiredState {
    /// It should run, and is started again when it dies.
    #[default]
    Running,
    /// It should not run.
    Stopped,
}

/// Management mode of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Management {
    /// It is brought to the state in its spec, and kept there.
    #[default]
    Managed,
    /// It is shown and measured only: nothing is ever written to it, and it is never started, stopped or restarted.
    Observed,
}

/// Values for tenants of a daemon that leave them out, and for the daemon while it has no tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Defaults<G = GpuUuid> {
    /// Memory limit per client process, one for all GPUs or one for each; without one, the whole GPU.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeviceMemoryLimit>)]
    pub device_memory_limit: Option<DeviceMemoryLimit<G>>,
    /// Active thread percentage; without one, 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// Priority, a hint to the GPU; without one, normal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

fn none<T>() -> Option<T> {
    None
}

impl<G> Default for Defaults<G> {
    fn default() -> Self {
        Self { device_memory_limit: None, active_thread_percentage: None, priority: None }
    }
}

/// A daemon as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Daemon {
    /// Its name.
    pub name: DaemonName,
    /// Its desired state.
    pub spec: DaemonSpec,
    /// Counts the changes of `spec`; the entity tag.
    pub revision: i64,
    /// Counts the changes of everything that feeds the daemon, its tenants included.
    pub generation: i64,
    /// When it was first written, in unix milliseconds.
    pub created_at: i64,
    /// When its spec was last written, in unix milliseconds.
    pub updated_at: i64,
}

impl Daemon {
    /// Writes another spec.
    pub fn change(&mut self, spec: DaemonSpec, now: i64) {
        (self.spec, self.updated_at) = (spec, now);
        self.revision += 1;
        self.generation += 1;
    }
}

/// The control process a daemon has, or had when it was last seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// The token in its environment.
    pub token: String,
    /// The boot in which it was started.
    pub boot_id: String,
    /// Its process and start time; `None` between the writing of the token and the start, and once the manager has stopped it.
    pub process: Option<(u32, u64)>,
    /// Its pipe directory, distinguished from a later one.
    pub pipe_inode: Option<Inode>,
    /// The generation that it was last read to hold.
    pub applied: i64,
    /// Directories of a process that was adopted; `None` if this manager started it in the directories that it chooses.
    pub home: Option<DaemonDirectories>,
}

impl Incarnation {
    /// Returns true if it was started outside this manager.
    pub fn is_foreign(&self) -> bool {
        self.home.as_ref().is_some_and(|home| home.foreign)
    }
}

/// The directories of a control process that are not the ones this manager would give it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonDirectories {
    /// The directory of its sockets.
    pub pipe_directory: PathBuf,
    /// The directory of its logs.
    pub log_directory: PathBuf,
    /// True if the process was started outside this manager, so that its environment has no token of this manager.
    pub foreign: bool,
}

/// The phase of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Not polled yet.
    Unknown,
    /// Being started or adopted.
    Starting,
    /// Running; its settings are being written and read back.
    Applying,
    /// Running, and every setting was read back as desired.
    Ready,
    /// Running, but a command of the manager was not answered; only reads are sent until one is answered.
    Wedged,
    /// Not running; the next start is due after a pause that grows.
    BackOff,
    /// Died five times in a row within a minute of its start; the next try is due after a minute.
    CrashLoop,
    /// Being stopped.
    Stopping,
    /// Not running, as desired.
    Stopped,
    /// Blocked by something that the manager does not change by itself; the condition has the details.
    Blocked,
    /// Running and only observed, as its spec says.
    Observed,
    /// Only observed, and not running at present; the manager observes it again when it is started.
    Absent,
}

api_words!(Phase:
    Unknown "unknown", Starting "starting", Applying "applying", Ready "ready", Wedged "wedged", BackOff "back_off",
    CrashLoop "crash_loop", Stopping "stopping", Stopped "stopped", Blocked "blocked", Observed "observed", Absent "absent",
);

/// Observed state of a daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DaemonStatus {
    /// Its phase.
    pub phase: Phase,
    /// The generation that was last applied and read back, 0 for none.
    pub observed_generation: i64,
    /// Statements about it, each with a reason.
    pub conditions: Vec<Condition>,
    /// Process ID of the control daemon.
    pub pid: Option<u32>,
    /// User that the control daemon runs as.
    pub uid: Option<u32>,
    /// Control processes started or adopted since this manager started.
    pub incarnation: u64,
    /// Deaths of a control process seen since this manager started.
    pub deaths: u64,
    /// The directory of its sockets, which `CUDA_MPS_PIPE_DIRECTORY` of a client names.
    pub pipe_directory: String,
    /// The directory of its logs.
    pub log_directory: String,
    /// Its session, its cgroup and its systemd scope; `null` before the first poll of this incarnation.
    pub isolation: Option<Isolation>,
    /// Settings that were last read back; `null` before the first poll of this incarnation.
    pub effective: Option<Effective>,
    /// Settings that others changed.
    pub drift: DriftStatus,
    /// Clients that wait until the clients of another user have ended.
    pub queue: Vec<Waiting>,
    /// Cost of polling it.
    pub sessions: SessionCounts,
    /// Compute modes of its GPUs that the manager sets.
    pub compute_modes: Vec<ComputeModeStatus>,
    /// The layout of its partitions; `null` where it has none.
    pub layout: Option<LayoutStatus>,
    /// Shares that its strategy gives its tenants, and the number of clients that it divides by; left out without a strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<ProvisioningStatus>,
}

impl DaemonStatus {
    /// Explains why no partitions of the daemon can be seen now, with the remedy.
    pub fn without_partitions(&self, daemon: &DaemonName) -> String {
        let why = self.conditions.iter().find(|condition| !condition.status && !condition.message.is_empty());
        let why = why.map(|condition| format!(" ({}: {})", condition.reason, condition.message));
        format!(
            "daemon {daemon} lists no partitions now{}: start it in static mode if it is stopped, and wait until it is ready",
            why.unwrap_or_default()
        )
    }
}

/// Cost of polling a daemon since this manager started or adopted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionCounts {
    /// Polls, failed ones included.
    pub polls: u64,
    /// Polls that failed.
    pub failed: u64,
    /// Control processes started, for polls and everything else.
    pub control_processes: u64,
    /// Control processes that the daemon rejected because of another caller; each was retried within its deadline.
    pub retried: u64,
}

/// Clients of one user that wait until those of another have ended, since the daemon serves one user at a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Waiting {
    /// User of the clients that wait.
    pub uid: u32,
    /// The clients that wait, in the order of their arrival.
    pub waiting: Vec<WaitingClient>,
    /// User that they wait for.
    pub behind: ServedUser,
}

/// A process that waits to become a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WaitingClient {
    /// Its process ID.
    pub pid: u32,
    /// Time since which it waits, by the daemon's log.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: i64,
}

/// The user that a daemon serves at present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ServedUser {
    /// The user.
    pub uid: u32,
    /// Its server, by process ID.
    pub server: u32,
    /// Its clients, by process ID.
    pub clients: Vec<u32>,
}

/// Path of a field that is refused in combination with others.
pub(super) const DEFAULT_LIMIT: &str = "defaults/device_memory_limit";

impl DaemonSpec<GpuRef> {
    /// Resolves its GPUs to UUIDs, in PCI order; an error comes with the field that names an unknown GPU.
    pub fn resolve_gpus(self, host: &[Gpu]) -> Result<DaemonSpec, (&'static str, InvalidValue)> {
        let gpus = self.gpus.iter().map(|gpu| gpu.resolve_device(host)).collect::<Result<Vec<_>, _>>();
        let mut gpus = gpus.map_err(|error| ("gpus", error))?;
        gpus.sort_by_key(|(index, _)| *index);
        let gpus = gpus.into_iter().map(|(_, uuid)| uuid).collect();
        let Defaults { device_memory_limit, active_thread_percentage, priority } = self.defaults;
        let limit = device_memory_limit.map(|limit| limit.resolve_gpus(host)).transpose();
        let limit = limit.map_err(|error| (DEFAULT_LIMIT, error))?;
        Ok(DaemonSpec {
            gpus,
            mode: self.mode,
            layout: self.layout,
            mlopart: self.mlopart,
            multi_user: self.multi_user,
            users: self.users,
            any_user: self.any_user,
            desired_state: self.desired_state,
            management: self.management,
            share_gpus: self.share_gpus,
            schedulable: self.schedulable,
            compute_mode: self.compute_mode,
            defaults: Defaults { device_memory_limit: limit, active_thread_percentage, priority },
            provisioning: self.provisioning,
            admission: self.admission,
            memory_overcommit: self.memory_overcommit,
            drift_policy: self.drift_policy,
            foreign_user_policy: self.foreign_user_policy,
            wedge_policy: self.wedge_policy,
            wedge_grace_s: self.wedge_grace_s,
        })
    }
}

impl<G> DaemonSpec<G> {
    /// Builds a spec with these GPUs and the default of every other field.
    pub fn of(gpus: Vec<G>) -> Self {
        Self {
            gpus,
            mode: Mode::default(),
            layout: None,
            mlopart: false,
            multi_user: false,
            users: Vec::new(),
            any_user: false,
            desired_state: DesiredState::default(),
            management: Management::default(),
            share_gpus: false,
            schedulable: yes(),
            compute_mode: None,
            defaults: Defaults::default(),
            provisioning: Provisioning::default(),
            admission: AdmissionMode::default(),
            memory_overcommit: OvercommitRatio::default(),
            drift_policy: DriftPolicy::default(),
            foreign_user_policy: ForeignUserPolicy::default(),
            wedge_policy: WedgePolicy::default(),
            wedge_grace_s: WedgeGrace::default(),
        }
    }

    /// Returns the settings for a server that hangs.
    pub fn wedge(&self) -> WedgeSettings {
        WedgeSettings { policy: self.wedge_policy, grace: self.wedge_grace_s }
    }

    /// Returns true if its tenants reserve memory and clients.
    pub fn reserves(&self) -> bool {
        self.admission == AdmissionMode::Reserved
    }

    /// Returns true if it is only observed.
    pub fn is_observed(&self) -> bool {
        self.management == Management::Observed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_refused() {
        let spec = r#"{"gpus":["GPU-514466a0-8e68-f857-9f73-e438010e48cb"],"colour":1}"#;
        assert!(
            serde_json::from_str::<DaemonSpec>(spec).expect_err("unknown").to_string().contains("colour")
        );
    }
}
