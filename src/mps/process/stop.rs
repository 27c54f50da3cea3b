//! Stopping a daemon, and removing what a dead one leaves.
//!
//! ```text
//!   quit -t GRACE ──▶ its death ──▶ Quit
//!        │ not dead: SIGTERM ──▶ its death ──▶ Terminated
//!        │                │ not dead: SIGKILL ──▶ its death ──▶ Killed
//!   then the same for servers that are still there
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::host::signal::{SignalError, SignalReason, Signalled, send};
use crate::host::{Identity, Signal, process};

use super::super::control_channel::ControlChannel;
use super::super::session::SessionError;
use super::PID_FILE;
use super::find::servers;

/// Time for a quit beyond its grace period.
const MARGIN: Duration = Duration::from_secs(3);
/// Time for which a daemon may live after `quit` was answered, before the quit is taken for unheard.
const UNHEARD: Duration = Duration::from_millis(500);
/// Longest time for a process to die of a signal.
const DYING: Duration = Duration::from_secs(2);

/// End of a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonEnd {
    /// It was dead already.
    AlreadyDead,
    /// It quit on request.
    Quit,
    /// It took SIGTERM.
    Terminated,
    /// It took SIGKILL.
    Killed,
}

/// A daemon that is gone, and its servers with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// End of the daemon.
    pub how: DaemonEnd,
    /// Servers that outlived it and were killed.
    pub servers_killed: u32,
}

/// Why a daemon still runs.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// A signal was refused.
    #[error("process {identity} cannot be signalled: {source}")]
    Signal {
        /// The process.
        identity: Identity,
        /// Why not.
        source: SignalError,
    },
    /// It outlived SIGKILL, as a process stuck in the driver does.
    #[error("process {identity} does not die of SIGKILL: it hangs in the kernel")]
    Immortal {
        /// The process.
        identity: Identity,
    },
}

/// Stops a daemon: asks it, and where that does not help, signals that very process.
///
/// Clients get `grace_s` seconds to leave; after that the daemon drops them. A daemon that hangs costs the grace
/// and some seconds more. Its servers die with it (recording 02); one that does not is killed, verified by its
/// parent before and by its start time after.
pub async fn stop(
    control: &dyn ControlChannel,
    identity: Identity,
    grace_s: u32,
) -> Result<Stopped, StopError> {
    let mut children = servers(identity.pid);
    let how = if !process::is_alive(identity) {
        children.clear();
        DaemonEnd::AlreadyDead
    } else if quit(control, identity, grace_s).await {
        DaemonEnd::Quit
    } else {
        // A server may have been replaced since; the daemon still lives, so its children are still its own.
        children.extend(servers(identity.pid));
        if kill(identity, Signal::TERM, SignalReason::ControlDaemon).await? {
            DaemonEnd::Terminated
        } else if kill(identity, Signal::KILL, SignalReason::ControlDaemon).await? {
            DaemonEnd::Killed
        } else {
            return Err(StopError::Immortal { identity });
        }
    };
    children.sort_unstable_by_key(|id| (id.pid, id.start_time));
    children.dedup();
    let mut servers_killed = 0;
    for server in children {
        if died(server, DYING).await {
            continue;
        }
        if !kill(server, Signal::KILL, SignalReason::Server).await? {
            return Err(StopError::Immortal { identity: server });
        }
        servers_killed += 1;
    }
    Ok(Stopped { how, servers_killed })
}

/// Asks the daemon to quit until it is dead or its time is over; says whether it is dead.
async fn quit(control: &dyn ControlChannel, identity: Identity, grace_s: u32) -> bool {
    let until = Instant::now() + Duration::from_secs(grace_s.into()) + MARGIN;
    while Instant::now() < until {
        let quit = tokio::select! {
            // Death is checked first: it is what counts, whatever the control process says about it.
            biased;
            () = process::death(identity) => return true,
            quit = control.quit(Some(grace_s), until) => quit,
        };
        match quit {
            // Answered, or no process is there to answer: dead in a moment, unless the quit was lost on the way.
            Ok(()) | Err(SessionError::NoDaemon) => {}
            Err(error) => {
                tracing::warn!(pid = identity.pid, %error, "the daemon does not quit on request");
                return died(identity, Duration::ZERO).await;
            }
        }
        if died(identity, UNHEARD).await {
            return true;
        }
        if matches!(quit, Err(SessionError::NoDaemon)) {
            // It lives and its socket is gone or not its own: asking again would reach another daemon.
            return false;
        }
    }
    false
}

/// Sends a signal to that very process and waits for its death; says whether it is dead.
async fn kill(identity: Identity, signal: Signal, grounds: SignalReason) -> Result<bool, StopError> {
    match send(identity, signal, grounds) {
        Ok(Signalled::Gone) => Ok(true),
        Ok(Signalled::Sent) => Ok(died(identity, DYING).await),
        Err(source) => Err(StopError::Signal { identity, source }),
    }
}

async fn died(identity: Identity, within: Duration) -> bool {
    tokio::time::timeout(within, process::death(identity)).await.is_ok() || !process::is_alive(identity)
}

/// Removes what a dead daemon leaves in its pipe directory: sockets, lock, FIFO and pid file, and nothing else.
///
/// Only for a directory whose daemon is known to be dead and that [`super::occupant`] calls free. A file of
/// another kind under one of those names is not the daemon's and stays.
pub fn clean_stale(pipe_directory: &Path) -> io::Result<()> {
    type Kind = fn(&fs::FileType) -> bool;
    let leftovers: [(&str, Kind); 5] = [
        ("control", FileTypeExt::is_socket),
        ("control_privileged", FileTypeExt::is_socket),
        ("control_lock", fs::FileType::is_file),
        ("log", FileTypeExt::is_fifo),
        (PID_FILE, fs::FileType::is_file),
    ];
    for (name, is_ours) in leftovers {
        let path = pipe_directory.join(name);
        let removed = fs::symlink_metadata(&path)
            .and_then(|file| if is_ours(&file.file_type()) { fs::remove_file(&path) } else { Ok(()) });
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_daemon_leftovers_are_removed() {
        let dir = tempfile::tempdir_in("/tmp").expect("directory");
        let path = |name: &str| dir.path().join(name);
        let listener = std::os::unix::net::UnixListener::bind(path("control")).expect("a socket");
        drop(listener);
        fs::write(path("control_lock"), "").expect("a file");
        fs::write(path(PID_FILE), "12\n").expect("a file");
        fs::write(path("notes.txt"), "mine").expect("a file");
        // A directory of logs in the pipe directory, as some set it up.
        fs::create_dir(path("log")).expect("a directory");
        clean_stale(dir.path()).expect("cleaned");
        clean_stale(dir.path()).expect("nothing left to do");
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).expect("list").map(|file| file.expect("file").file_name()).collect();
        left.sort();
        assert_eq!(left, ["log", "notes.txt"]);
    }
}
