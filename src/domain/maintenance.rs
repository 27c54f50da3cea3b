//! Maintenance of the host: the GPUs that are released, the state of the release, and the processes that still hold them.
//!
//! ```text
//!   draining ──nobody left──▶ quitting ──daemons down──▶ active ──end──▶ ending ──▶ (none)
//!      │ cancelled, or the time is over       │ a daemon does not stop, or a process of ours holds a GPU
//!      └──────────────────▶ (none) ◀──────────┘
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::gpu::GpuRef;
use super::{DaemonName, GpuUuid};

/// Action on clients that are still connected at the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// None: the operation fails, and its daemons take clients again as before.
    #[default]
    Fail,
    /// They are ended in the safe order: by MPS first, and by a signal after MPS has confirmed that their work has ended.
    Terminate,
}

/// Time limit of a drain, and the action at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainLimit {
    /// Seconds to wait for clients, counted from the start of the drain, also over a restart of the manager.
    #[serde(default = "default_drain")]
    #[schema(maximum = 86400, default = 300)]
    pub timeout_s: u32,
    /// Action on clients that are still connected then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// Longest time to wait for clients, in seconds: a day.
pub const LONGEST_DRAIN_S: u32 = 24 * 60 * 60;

/// Default time to wait for clients, in seconds.
pub const DEFAULT_DRAIN_S: u32 = 300;

fn default_drain() -> u32 {
    DEFAULT_DRAIN_S
}

/// Request to begin maintenance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceRequest {
    /// The GPUs to release; if it is left out, all GPUs of the host. A daemon with one of them is stopped as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    pub gpus: Option<Vec<GpuRef>>,
    /// Seconds that clients get to end by themselves.
    #[serde(default = "default_drain")]
    #[schema(maximum = 86400, default = 300)]
    pub timeout_s: u32,
    /// Action on clients that are still connected then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// State of a maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaintenanceState {
    /// Its daemons take no new clients, and the manager waits for those that are connected.
    Draining,
    /// Its daemons are stopped and compute modes restored.
    Quitting,
    /// Its daemons are down, and the driver is not queried.
    Active,
    /// Its daemons are being started again.
    Ending,
}

api_words!(MaintenanceState: Draining "draining", Quitting "quitting", Active "active", Ending "ending");

impl MaintenanceState {
    /// Returns true if daemons stay down in this state although their specs say that they run.
    pub fn holds_down(self) -> bool {
        matches!(self, Self::Quitting | Self::Active)
    }
}

/// The maintenance of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// The operation that began it.
    pub operation: uuid::Uuid,
    /// Its state.
    pub state: MaintenanceState,
    /// The GPUs that are released.
    pub gpus: Vec<GpuUuid>,
    /// When it began, in unix milliseconds.
    pub since: i64,
}

impl Maintenance {
    /// Returns true if a daemon with these GPUs is part of it: one of them is enough.
    pub fn covers(&self, gpus: &[GpuUuid]) -> bool {
        gpus.iter().any(|gpu| self.gpus.contains(gpu))
    }
}

/// A process that has device files of GPUs, or of the whole driver, open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeviceHolder {
    /// Its process ID and start time, which identify it forever.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// Its user; `null` if it has ended meanwhile.
    pub uid: Option<u32>,
    /// Its command line.
    pub command: String,
    /// The GPUs whose files it has open.
    pub gpus: Vec<GpuUuid>,
    /// The device files that it has open, as `/dev/nvidiactl`.
    #[serde(default)]
    pub files: Vec<String>,
    /// The systemd service that it belongs to, which may start it again; `null` if there is none.
    #[serde(default)]
    pub unit: Option<String>,
    /// True if it is the manager, one of its control daemons or servers, or a program that the manager started.
    pub ours: bool,
    /// The daemon of this manager whose process it is.
    #[serde(default)]
    pub daemon: Option<DaemonName>,
    /// True if it is the manager itself or a program that it started, which closes the files by itself.
    #[serde(skip)]
    pub is_manager: bool,
}

impl DeviceHolder {
    /// Returns true if it belongs to this manager and does not end when these daemons are stopped.
    pub fn outlasts(&self, stopped: &[DaemonName]) -> bool {
        self.ours && !self.is_manager && self.daemon.as_ref().is_none_or(|daemon| !stopped.contains(daemon))
    }
}

/// A loaded module of the driver, and the references that keep it from being unloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriverModule {
    /// Its name, as `nvidia_uvm`.
    pub name: String,
    /// Number of references to it: by open files, by the kernel itself, and one by each of `used_by`.
    pub references: u32,
    /// The modules that use it.
    pub used_by: Vec<String>,
}

/// Reads the modules of NVIDIA's driver from `/proc/modules`.
///
/// ```text
/// nvidia 56823808 42 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (PO)
/// ```
pub fn driver_modules(text: &str) -> Vec<DriverModule> {
    let lines = text.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    let modules = lines.filter_map(|words| {
        let [name, _, references, used_by, ..] = words[..] else { return None };
        let is_the_drivers = name == "nvidia" || name.starts_with("nvidia_");
        is_the_drivers.then_some(DriverModule {
            name: name.to_owned(),
            references: references.parse().ok()?,
            used_by: used_by
                .split(',')
                .filter(|user| !matches!(*user, "" | "-"))
                .map(str::to_owned)
                .collect(),
        })
    });
    modules.collect()
}

impl std::fmt::Display for DeviceHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command: String = self.command.chars().take(80).collect();
        write!(f, "{} ({})", self.pid, command.trim_end())?;
        self.unit.as_ref().map_or(Ok(()), |unit| write!(f, " of {unit}"))
    }
}

/// Known processes of this manager and its daemons.
#[derive(Debug, Clone, Default)]
pub struct OwnProcesses {
    /// The manager's process ID.
    pub manager: u32,
    /// The directory of all daemons whose directories it chooses.
    pub directory: PathBuf,
    /// Its daemons, those that are only observed left out.
    pub daemons: Vec<OwnDaemon>,
    /// The tokens of daemons that are only observed from now on: these belong to their owners.
    pub left_alone: Vec<String>,
}

/// Known processes of a daemon.
#[derive(Debug, Clone)]
pub struct OwnDaemon {
    /// The daemon.
    pub name: DaemonName,
    /// Its control process, if that lives.
    pub control: Option<u32>,
    /// The token of its start.
    pub token: String,
    /// Its pipe directory, if it was adopted and keeps its own.
    pub pipe_directory: Option<PathBuf>,
}

/// Owner of a process that belongs to this manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessOwner<'a> {
    /// The manager itself, or a program that it started.
    Manager,
    /// A daemon of it.
    Daemon(&'a DaemonName),
    /// A daemon of the manager that is no longer recorded.
    Unrecorded,
}

/// Evidence of the owner of a process.
#[derive(Debug, Clone, Default)]
pub struct OwnershipSigns {
    /// Its process ID.
    pub pid: u32,
    /// Its parents, nearest first.
    pub ancestors: Vec<u32>,
    /// The token of a control daemon's start in its environment.
    pub token: Option<String>,
    /// The pipe directory in its environment, if it is the one of that name here.
    pub pipe_directory: Option<PathBuf>,
    /// True if it runs the server program and its parent is no longer a control program.
    pub stranded_server: bool,
}

/// Returns the owner of a process, by process and token; `None` if it does not belong to this manager.
///
/// Daemons and servers leave the manager's process family, and have the token of their start instead. Those of another manager
/// have one too, but a pipe directory outside `directory`. An adopted daemon has no token: it is known by its process, and its
/// servers by their parent. The directory alone proves nothing, since anybody may start a control daemon there later;
/// only a server that has lost its control daemon is known by it.
pub fn owner<'a>(signs: &OwnershipSigns, processes: &'a OwnProcesses) -> Option<ProcessOwner<'a>> {
    let pipe = signs.pipe_directory.as_deref();
    let token = signs.token.as_ref().filter(|token| !processes.left_alone.contains(token));
    let parent = signs.ancestors.first();
    let daemon = processes.daemons.iter().find(|daemon| {
        token == Some(&daemon.token)
            || daemon.control.is_some_and(|pid| pid == signs.pid || Some(&pid) == parent)
            || (signs.stranded_server && pipe.is_some() && pipe == daemon.pipe_directory.as_deref())
    });
    let unrecorded = || {
        let is_marked = token.is_some() && pipe.is_some_and(|pipe| pipe.starts_with(&processes.directory));
        is_marked.then_some(ProcessOwner::Unrecorded)
    };
    let family = || {
        let is_family = signs.pid == processes.manager || signs.ancestors.contains(&processes.manager);
        is_family.then_some(ProcessOwner::Manager)
    };
    daemon.map(|daemon| ProcessOwner::Daemon(&daemon.name)).or_else(unrecorded).or_else(family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    #[test]
    fn maintenance_covers_daemons_spanning_its_gpu() {
        let maintenance = Maintenance {
            operation: uuid::Uuid::nil(),
            state: MaintenanceState::Draining,
            gpus: vec![h200(0).uuid],
            since: 0,
        };
        assert!(maintenance.covers(&[h200(1).uuid, h200(0).uuid]));
        assert!(!maintenance.covers(&[h200(1).uuid]));
        assert!(!maintenance.covers(&[]));
    }

    #[test]
    fn daemons_are_down_from_quitting_until_ending() {
        let down: Vec<bool> = [
            MaintenanceState::Draining,
            MaintenanceState::Quitting,
            MaintenanceState::Active,
            MaintenanceState::Ending,
        ]
        .map(MaintenanceState::holds_down)
        .into();
        assert_eq!(down, [false, true, true, false]);
    }

    #[test]
    fn own_processes_are_recognised_by_kin_and_token() {
        let name = |name: &str| DaemonName::parse(name).expect("a name");
        let processes = OwnProcesses {
            manager: 100,
            directory: "/run/mps-manager/daemons".into(),
            daemons: vec![
                OwnDaemon { name: name("gpu0"), control: None, token: "known".into(), pipe_directory: None },
                OwnDaemon {
                    name: name("adopted"),
                    control: Some(50),
                    token: "unused".into(),
                    pipe_directory: Some("/run/theirs".into()),
                },
            ],
            left_alone: vec!["observed".into()],
        };
        let (gpu0, adopted) = (name("gpu0"), name("adopted"));
        let pipe = |path: &str| Some(PathBuf::from(path));
        let token = |token: &str| Some(token.to_owned());
        let server = pipe("/run/mps-manager/daemons/gpu0/pipe");
        let signs = OwnershipSigns::default;
        let stranded =
            |pipe_directory| OwnershipSigns { pid: 52, pipe_directory, stranded_server: true, ..signs() };
        let cases = [
            (OwnershipSigns { pid: 100, ..signs() }, Some(ProcessOwner::Manager), "the manager"),
            (
                OwnershipSigns { pid: 7, ancestors: vec![6, 100, 1], ..signs() },
                Some(ProcessOwner::Manager),
                "its probe",
            ),
            (
                OwnershipSigns { pid: 9, token: token("known"), ..signs() },
                Some(ProcessOwner::Daemon(&gpu0)),
                "a known token",
            ),
            (
                OwnershipSigns { pid: 8, token: token("some"), pipe_directory: server.clone(), ..signs() },
                Some(ProcessOwner::Unrecorded),
                "an unknown token below our directory",
            ),
            (
                OwnershipSigns {
                    pid: 8,
                    token: token("observed"),
                    pipe_directory: server.clone(),
                    ..signs()
                },
                None,
                "one that is only observed now",
            ),
            (OwnershipSigns { pid: 9, pipe_directory: server, ..signs() }, None, "a tenant's client"),
            (
                OwnershipSigns {
                    pid: 9,
                    token: token("some"),
                    pipe_directory: pipe("/run/other/daemons/gpu0/pipe"),
                    ..signs()
                },
                None,
                "another manager's",
            ),
            (OwnershipSigns { pid: 9, token: token("some"), ..signs() }, None, "a token that says nothing"),
            (OwnershipSigns { pid: 9, ancestors: vec![1], ..signs() }, None, "a stranger"),
            (
                OwnershipSigns { pid: 50, ..signs() },
                Some(ProcessOwner::Daemon(&adopted)),
                "an adopted control process",
            ),
            (
                OwnershipSigns { pid: 51, ancestors: vec![50, 1], ..signs() },
                Some(ProcessOwner::Daemon(&adopted)),
                "its server",
            ),
            (
                stranded(pipe("/run/theirs")),
                Some(ProcessOwner::Daemon(&adopted)),
                "a server that has lost it",
            ),
            (stranded(pipe("/run/elsewhere")), None, "a server of nobody here"),
            (
                OwnershipSigns { pid: 53, pipe_directory: pipe("/run/theirs"), ..signs() },
                None,
                "a client, or a control daemon that another started there",
            ),
        ];
        for (signs, expected, description) in cases {
            assert_eq!(owner(&signs, &processes), expected, "{description}");
        }
    }

    #[test]
    fn modules_are_read_with_their_users() {
        let text = "nvidia_uvm 4857856 2 - Live 0x0000000000000000 (PO)\n\
                    nvidia_drm 131072 0 - Live 0x0000000000000000 (PO)\n\
                    nvidia 56823808 42 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (PO)\n\
                    nvidiafb 61440 1 - Live 0x0\nnvme 61440 3 - Live 0x0\nnonsense\n";
        let modules = driver_modules(text);
        let described: Vec<_> = modules
            .iter()
            .map(|module| (module.name.as_str(), module.references, module.used_by.join("+")))
            .collect();
        let both = "nvidia_uvm+nvidia_modeset".to_owned();
        assert_eq!(
            described,
            [("nvidia_uvm", 2, String::new()), ("nvidia_drm", 0, String::new()), ("nvidia", 42, both)]
        );
    }
}
