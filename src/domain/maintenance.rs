//! Maintenance of the host: which GPUs are released, how far that is, and which processes still hold them.
//!
//! ```text
//!   draining ──nobody left──▶ quitting ──daemons down──▶ active ──end──▶ ending ──▶ (none)
//!      │ cancelled, or the time is over       │ a daemon does not stop, or a process of ours holds a GPU
//!      └──────────────────▶ (none) ◀──────────┘
//! ```

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::GpuUuid;
use super::client::ClientId;
use super::gpu::GpuRef;

/// What happens to the clients that are still there when the time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Nothing: the operation fails, and its daemons take clients again as before.
    #[default]
    Fail,
    /// They are ended in the safe order: by MPS first, and by a signal after MPS has confirmed that their work is ended.
    Terminate,
}

/// How long clients are waited for, and what happens then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DrainLimit {
    /// Seconds, counted from when the waiting began, also over a restart of the manager.
    pub timeout_s: u32,
    /// What happens then.
    pub on_timeout: OnTimeout,
}

/// Longest time that clients may be waited for: a day, in seconds.
pub const LONGEST_DRAIN_S: u32 = 24 * 60 * 60;

/// How long clients are waited for by default, in seconds.
pub const DEFAULT_DRAIN_S: u32 = 300;

fn default_drain() -> u32 {
    DEFAULT_DRAIN_S
}

/// What is requested to begin maintenance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceRequest {
    /// The GPUs to release; all of the host without it. A daemon with one of them is stopped as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_items = 1)]
    pub gpus: Option<Vec<GpuRef>>,
    /// Seconds that clients get to end by themselves.
    #[serde(default = "default_drain")]
    #[schema(maximum = 86400, default = 300)]
    pub timeout_s: u32,
    /// What happens to those that are still there then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
}

/// How far a maintenance is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MaintenanceState {
    /// Its daemons take no new clients, and those that are there are waited for.
    Draining,
    /// Its daemons are stopped and compute modes restored.
    Quitting,
    /// Its daemons are down, and the driver is not queried.
    Active,
    /// Its daemons are being started again.
    Ending,
}

impl MaintenanceState {
    /// The word in the store and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Quitting => "quitting",
            Self::Active => "active",
            Self::Ending => "ending",
        }
    }

    /// Whether daemons stay down although their specs say that they run.
    pub fn holds_down(self) -> bool {
        matches!(self, Self::Quitting | Self::Active)
    }
}

/// The maintenance of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Maintenance {
    /// The operation that began it.
    pub operation: uuid::Uuid,
    /// How far it is.
    pub state: MaintenanceState,
    /// The GPUs that are released.
    pub gpus: Vec<GpuUuid>,
    /// When it began, in unix milliseconds.
    pub since: i64,
}

impl Maintenance {
    /// Whether a daemon with these GPUs is part of it: one of them is enough.
    pub fn covers(&self, gpus: &[GpuUuid]) -> bool {
        gpus.iter().any(|gpu| self.gpus.contains(gpu))
    }
}

/// A process that has the device file of a GPU open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DeviceHolder {
    /// Its process ID and start time, which identify it forever.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// Its user; `null` when it has gone meanwhile.
    pub uid: Option<u32>,
    /// Its command line.
    pub command: String,
    /// The GPUs whose files it has open.
    pub gpus: Vec<GpuUuid>,
    /// Whether it is the manager, one of its control daemons or servers, or a program that the manager started.
    pub ours: bool,
}

impl std::fmt::Display for DeviceHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let command: String = self.command.chars().take(80).collect();
        write!(f, "{} ({})", self.pid, command.trim_end())
    }
}

/// What is known of this manager and its daemons.
#[derive(Debug, Clone, Default)]
pub struct OwnProcesses {
    /// The manager's process ID.
    pub manager: u32,
    /// The directory of all daemons that it gives directories to.
    pub daemons: PathBuf,
    /// The control processes, adopted ones included.
    pub controls: Vec<ClientId>,
    /// The tokens of their starts.
    pub tokens: Vec<String>,
    /// The pipe directories of those that were adopted where they are.
    pub pipe_directories: Vec<PathBuf>,
    /// The tokens of daemons that are only observed from now on: those are their owners'.
    pub left_alone: Vec<String>,
}

/// What shows whose a process is.
#[derive(Debug, Clone, Default)]
pub struct OwnershipSigns<'a> {
    /// Its process ID.
    pub pid: u32,
    /// Its parents, nearest first.
    pub ancestors: &'a [u32],
    /// The control processes of ours that live.
    pub controls: &'a [u32],
    /// The token of a control daemon's start in its environment.
    pub token: Option<String>,
    /// The pipe directory in its environment, if it is the one of that name here.
    pub pipe_directory: Option<PathBuf>,
    /// The name of its program.
    pub program: Option<&'a str>,
}

/// NVIDIA's two programs.
const PROGRAMS: [&str; 2] = ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];

/// Whether a process is one of ours: this manager, a program that it started, or a control daemon or server of it.
///
/// Daemons and servers leave the manager's family, and have the token of their start instead. Another manager's have
/// one too, but a pipe directory outside `daemons`. One that was adopted has no token: it is known by its process, its
/// servers by their parent, and those that have lost it by their program and the directory that was adopted.
pub fn is_ours(signs: &OwnershipSigns<'_>, ours: &OwnProcesses) -> bool {
    let family = signs.pid == ours.manager || signs.ancestors.contains(&ours.manager);
    let pipe = signs.pipe_directory.as_deref();
    let marked = signs.token.as_ref().filter(|token| !ours.left_alone.contains(token)).is_some_and(|token| {
        ours.tokens.contains(token) || pipe.is_some_and(|pipe| pipe.starts_with(&ours.daemons))
    });
    let parent = signs.ancestors.first();
    let control =
        signs.controls.contains(&signs.pid) || parent.is_some_and(|pid| signs.controls.contains(pid));
    let left = signs.program.is_some_and(|program| PROGRAMS.contains(&program))
        && pipe.is_some_and(|pipe| ours.pipe_directories.iter().any(|known| known == pipe));
    family || marked || control || left
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
        let known = OwnProcesses {
            manager: 100,
            daemons: "/run/mps-manager/daemons".into(),
            tokens: vec!["known".into()],
            left_alone: vec!["observed".into()],
            pipe_directories: vec!["/run/theirs".into()],
            ..OwnProcesses::default()
        };
        let ours = |signs: OwnershipSigns<'_>| is_ours(&signs, &known);
        let (pipe, token) = (|path: &str| Some(PathBuf::from(path)), Some("some".to_owned()));
        assert!(ours(OwnershipSigns { pid: 100, ..OwnershipSigns::default() }));
        assert!(
            ours(OwnershipSigns { pid: 7, ancestors: &[6, 100, 1], ..OwnershipSigns::default() }),
            "a probe"
        );
        let server = pipe("/run/mps-manager/daemons/gpu0/pipe");
        assert!(ours(OwnershipSigns {
            pid: 8,
            token: token.clone(),
            pipe_directory: server.clone(),
            ..OwnershipSigns::default()
        }));
        let observed = Some("observed".to_owned());
        assert!(!ours(OwnershipSigns {
            pid: 8,
            token: observed,
            pipe_directory: server.clone(),
            ..OwnershipSigns::default()
        }));
        assert!(
            !ours(OwnershipSigns { pid: 9, pipe_directory: server, ..OwnershipSigns::default() }),
            "a tenant's client"
        );
        let other = pipe("/run/other/daemons/gpu0/pipe");
        assert!(!ours(OwnershipSigns {
            pid: 9,
            token: token.clone(),
            pipe_directory: other,
            ..OwnershipSigns::default()
        }));
        assert!(!ours(OwnershipSigns { pid: 9, token, ..OwnershipSigns::default() }));
        assert!(!ours(OwnershipSigns { pid: 9, ancestors: &[1], ..OwnershipSigns::default() }));
        assert!(ours(OwnershipSigns { pid: 9, token: Some("known".into()), ..OwnershipSigns::default() }));

        // Adopted: the control process, its server, a server that has lost it, and a client, which is its tenant's.
        let controls = [50];
        assert!(ours(OwnershipSigns { pid: 50, controls: &controls, ..OwnershipSigns::default() }));
        assert!(ours(OwnershipSigns {
            pid: 51,
            ancestors: &[50, 1],
            controls: &controls,
            ..OwnershipSigns::default()
        }));
        let theirs = pipe("/run/theirs");
        let program = Some("nvidia-cuda-mps-server");
        assert!(ours(OwnershipSigns {
            pid: 52,
            program,
            pipe_directory: theirs.clone(),
            ..OwnershipSigns::default()
        }));
        assert!(!ours(OwnershipSigns {
            pid: 53,
            program: Some("python"),
            pipe_directory: theirs,
            ..OwnershipSigns::default()
        }));
        let elsewhere = pipe("/run/elsewhere");
        assert!(!ours(OwnershipSigns {
            pid: 54,
            program,
            pipe_directory: elsewhere,
            ..OwnershipSigns::default()
        }));
    }
}
