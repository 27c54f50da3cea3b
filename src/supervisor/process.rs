//! What a control process is told apart by: the token of its start, and what it was started with.

use super::state::Process;
use crate::domain::GpuUuid;
use crate::domain::client::ClientId;
use crate::domain::daemon::Server;
use crate::host::{self, Identity};

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

/// What an adopted process was started with, from /proc.
pub(super) fn shape(identity: Identity) -> Process {
    let visible = host::process::environ(identity.pid).and_then(|variables| {
        let (_, value) = variables.into_iter().find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")?;
        value.into_string().ok()
    });
    let gpus = visible
        .iter()
        .flat_map(|list| list.split(','))
        .filter_map(|uuid| GpuUuid::parse(uuid).ok())
        .collect();
    let words = host::process::command(identity.pid).unwrap_or_default();
    Process {
        identity,
        gpus,
        multi_user: words.iter().any(|word| word == "-M" || word == "--multiuser-server"),
    }
}

/// 128 random bits, so that no other process carries them by chance.
pub(super) fn token() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel has random bytes once it has booted");
    hex::encode(bytes)
}
