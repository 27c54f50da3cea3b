//! Identity of a control process: the token of its start, and the settings that it was started with.

use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::daemon::{Mode, Server};
use crate::domain::plan::Desired;
use crate::host::{self, Identity};
use crate::mps::process::{MULTI_USER_OPTIONS, mode};

impl From<ClientId> for Identity {
    fn from(client: ClientId) -> Self {
        Self { pid: client.pid, start_time: client.start_time }
    }
}

impl From<Identity> for ClientId {
    fn from(process: Identity) -> Self {
        Self { pid: process.pid, start_time: process.start_time }
    }
}

impl From<&Server> for Identity {
    fn from(server: &Server) -> Self {
        Self { pid: server.pid, start_time: server.start_time }
    }
}

/// Control process of a daemon.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlProcess {
    /// Identity of the process.
    pub identity: Identity,
    /// GPUs with which it was started.
    pub gpus: Vec<GpuUuid>,
    /// Mode according to its command line: with static partitions or without.
    pub mode: Mode,
    /// True if it was started with `-M`.
    pub multi_user: bool,
}

impl ControlProcess {
    /// Returns true if it was started as desired; only a new process can change that.
    pub fn fits(&self, desired: &Desired) -> bool {
        (&self.gpus, self.mode, self.multi_user) == (&desired.gpus, desired.mode, desired.multi_user)
    }

    /// Returns the GPUs whose partitions it lists: none in shared mode.
    pub fn partitioned(&self) -> &[GpuUuid] {
        if self.mode == Mode::Static { &self.gpus } else { &[] }
    }
}

/// Reads from /proc the settings that an adopted process was started with.
pub(crate) fn shape(identity: Identity) -> ControlProcess {
    let visible = host::process::variable(identity.pid, "CUDA_VISIBLE_DEVICES");
    let visible = visible.and_then(|value| value.into_string().ok());
    let gpus = visible
        .iter()
        .flat_map(|list| list.split(','))
        .filter_map(|uuid| GpuUuid::parse(uuid).ok())
        .collect();
    let words = host::process::command(identity.pid).unwrap_or_default();
    ControlProcess {
        identity,
        gpus,
        mode: mode(identity.pid),
        multi_user: words.iter().any(|word| MULTI_USER_OPTIONS.contains(&word.as_str())),
    }
}

/// Returns 128 random bits in hexadecimal, so that no other process carries them by chance.
pub fn token() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes once it has booted");
    hex::encode(bytes)
}
