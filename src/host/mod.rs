//! Facts from the operating system about processes and about itself.
//!
//! A process is named by its PID and its start time together, since PIDs come back. A zombie counts as dead
//! everywhere here: where PID 1 does not reap, a dead control daemon stays one forever (FACTS.md, "Starting,
//! stopping, dying").

pub mod access;
pub mod cdi;
mod child;
pub mod container;
mod death;
pub mod durable_file;
pub mod files;
#[cfg(test)]
mod fuzz;
pub mod kernel_log;
pub mod memory;
pub mod mounts;
pub mod own_directory;
mod peer;
pub mod process;
pub mod seqpacket;
pub mod signal;
pub mod sockets;
pub mod systemd;
pub mod trust;
pub mod user;
mod watch;

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

pub use rustix::process::Signal;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use child::OwnChild;
pub use peer::{SocketPeer, peer};
pub use watch::Watch;

/// A process that cannot be mistaken for a later one with the same PID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Process ID, as this process's PID namespace counts.
    pub pid: u32,
    /// Clock ticks from boot to its start: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.pid, self.start_time)
    }
}

/// The ID of this boot, as in `/proc/sys/kernel/random/boot_id`.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The ID of this machine; `None` where the host has none, as some containers do not.
pub fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .iter()
        .find_map(|path| machine_id_in(&fs::read_to_string(path).ok()?))
}

/// Reads 32 hexadecimal digits; the word of an image before its first boot, `uninitialized`, is no ID.
fn machine_id_in(text: &str) -> Option<String> {
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())).then(|| id.to_owned())
}

/// Returns the time at which this boot began, in milliseconds of Unix time. It moves when the clock is set.
///
/// `btime` of `/proc/stat` is not used: it is cut to seconds, so a process could seem to start up to a second before its cause.
pub fn boot_time() -> i64 {
    let ms = |clock| {
        let now = clock_gettime(clock);
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    };
    ms(ClockId::Realtime) - ms(ClockId::Boottime)
}

/// Raises the soft limit on open files to the hard one, for this process and its children; returns it.
///
/// A daemon and its servers want at least 16384 (FACTS.md, "Starting, stopping, dying"), and inherit it.
pub fn raise_fd_limit() -> io::Result<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    }
    Ok(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Registers a descriptor in non-blocking mode, so that a task can wait until it can be read.
///
/// tokio 1.54 deprecates its safe constructors for an unsafe one, because a type of the caller's may close or swap
/// its descriptor while it is watched. An [`OwnedFd`] cannot, so the safe one is right for it, and this is the one
/// place that uses it.
#[allow(deprecated, reason = "an OwnedFd keeps the promise that the unsafe constructor asks for")]
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_has_an_id_and_a_time() {
        assert_eq!(boot_id().expect("boot id").len(), 36);
        assert!(boot_time() > 0);
    }

    #[test]
    fn open_file_limit_is_only_raised() {
        let before = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let after = raise_fd_limit().expect("raising to the hard limit is always allowed");
        assert!(after >= before);
    }
}
