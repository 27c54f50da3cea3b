//! A server as the daemon's child.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::environment::{SEVERAL_USERS, STAGE, USER, log_directory, pipe_directory};
use super::options::Mode;
use crate::profile::Gpu;
use crate::wire::Conn;
use crate::world::{SERVER, WORLD_VARIABLE, World};

/// Starts a server as a child of this process; it is called by a path if this process was (recordings 06 and 10).
pub(super) fn spawn_server(world: &World, mode: Mode, uid: u32) -> io::Result<Child> {
    let stdout = if mode.foreground { Stdio::inherit() } else { Stdio::null() };
    let own = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    Command::new(world.bin().join(SERVER))
        .arg0(own.with_file_name(SERVER))
        .env(WORLD_VARIABLE, world.dir())
        .env(STAGE, if mode.foreground { "foreground" } else { "server" })
        .env(USER, uid.to_string())
        .env(SEVERAL_USERS, if mode.multiuser { "1" } else { "0" })
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory())
        .env("CUDA_MPS_LOG_DIRECTORY", log_directory())
        .stdin(Stdio::null())
        .stdout(stdout)
        .spawn()
}

pub(super) struct Server {
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) uid: u32,
    /// True if its clients get MLOPart devices.
    pub(super) mlopart: bool,
    /// Its devices: those of the daemon, or the MLOPart devices of these.
    pub(super) gpus: Vec<Gpu>,
    /// The server's connection, open from the moment it connects until it dies.
    pub(super) conn: Option<Conn>,
    pub(super) ready: bool,
    /// True if it was given a client and has not confirmed it yet.
    pub(super) taking: bool,
    /// Time at which the kernel reports the end of a dead server.
    pub(super) reported_at: Option<Instant>,
}

impl Server {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if it takes clients and orders.
    pub(super) fn serves(&self) -> bool {
        self.ready && self.reported_at.is_none()
    }
}
