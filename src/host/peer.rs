//! The process at the other end of a unix socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Identity;
use super::process::{identify, uid};

/// The process that connected to a unix socket, as the kernel noted it at that time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketPeer {
    /// The user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Number of the process, which may be another one's by now; `None` for a process in a PID namespace that this process does not see.
    pub pid: Option<u32>,
    /// The process that connected, if it still lives.
    pub process: Option<Identity>,
}

/// Returns the process that connected to this socket.
///
/// The start time is read while a pidfd holds the process. The kernel gives the peer's pidfd since Linux 6.5 (`SO_PEERPIDFD`). An older
/// kernel gives only the number: then the process that has it now is held. Callers use this for a connection that was just accepted, so
/// that process did not start later than the peer. One case remains there: a peer that ended between its connection and that moment, and
/// whose number was given to another process of its user at once.
pub fn peer(socket: &impl AsFd) -> io::Result<SocketPeer> {
    let credentials = getsockopt(&socket.as_fd(), PeerCredentials)?;
    let pid = u32::try_from(credentials.pid()).ok().filter(|pid| *pid > 0);
    let held = match getsockopt(&socket.as_fd(), PeerPidfd) {
        Ok(pidfd) => Some(pidfd),
        // A kernel without the option; `EINVAL` and `ESRCH` come from one that has it.
        Err(nix::Error::ENOPROTOOPT) => pid.and_then(|pid| of_user(pid, credentials.uid())),
        Err(_) => None,
    };
    let process = pid.zip(held).and_then(|(pid, pidfd)| {
        let id = identify(pid)?;
        lives(&pidfd).then_some(id)
    });
    Ok(SocketPeer { uid: credentials.uid(), gid: credentials.gid(), pid, process })
}

/// Holds the process that has this number now, if it is of this user: otherwise it is not the peer.
fn of_user(pid: u32, user: u32) -> Option<OwnedFd> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let held = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    (uid(pid) == Some(user)).then_some(held)
}

/// Returns true if the process of a pidfd has not ended, so that its number is still its own.
fn lives(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn peer_of_own_connection_is_this_process() {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("bound");
        let _caller = UnixStream::connect(&path).expect("connected");
        let (accepted, _) = listener.accept().expect("accepted");
        let peer = peer(&accepted).expect("credentials");
        let me = identify(std::process::id()).expect("alive");
        assert_eq!((peer.pid, peer.process), (Some(me.pid), Some(me)));
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn peer_that_ended_is_no_process() {
        let directory = tempfile::tempdir_in("/tmp").expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("bound");
        let script = format!("import socket; s = socket.socket(socket.AF_UNIX); s.connect({path:?})");
        let ended = std::process::Command::new("python3").args(["-c", &script]).status().expect("python3");
        assert!(ended.success());
        let (accepted, _) = listener.accept().expect("accepted");
        let peer = peer(&accepted).expect("credentials");
        assert!(peer.pid.is_some());
        assert_eq!(peer.process, None);
    }
}
