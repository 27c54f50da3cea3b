//! Waiting for the death of a process that is no child of ours.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

use super::process::is_alive;
use super::{Identity, readable};

/// How often `/proc` is looked at where a pidfd cannot be had.
const POLL: Duration = Duration::from_millis(200);

/// Completes when that very process is gone or a zombie; at once when it is already.
///
/// Dropping the future lets go of the process and has no other effect.
pub async fn death(id: Identity) {
    let Ok(pidfd) = open(id) else { return poll(id).await };
    // The pidfd may belong to a later process of that PID: it was opened by number.
    if !is_alive(id) {
        return;
    }
    if pidfd.readable().await.is_err() {
        poll(id).await;
        return;
    }
    // A pidfd turns readable when every thread has ended; `/proc` may lag by a moment.
    while is_alive(id) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn open(id: Identity) -> io::Result<AsyncFd<OwnedFd>> {
    let pid = i32::try_from(id.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let pidfd = pidfd_open(pid, PidfdFlags::NONBLOCK)?;
    readable(pidfd)
}

async fn poll(id: Identity) {
    while is_alive(id) {
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::super::process::identify;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn it_completes_when_the_process_ends_and_not_before() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = identify(child.id()).expect("alive");
        let mut waiting = Box::pin(death(id));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        child.kill().expect("kill");
        // Nobody has reaped it: a zombie is enough.
        tokio::time::timeout(PATIENCE, waiting).await.expect("noticed");
        child.wait().expect("reaped");
        tokio::time::timeout(PATIENCE, death(id)).await.expect("at once");
        let mut by_polling = Box::pin(poll(id));
        assert!(futures_util::poll!(&mut by_polling).is_ready());
    }

    #[tokio::test]
    async fn another_process_with_that_pid_is_no_reason_to_wait() {
        let me = identify(std::process::id()).expect("alive");
        let earlier = Identity { start_time: me.start_time - 1, ..me };
        tokio::time::timeout(PATIENCE, death(earlier)).await.expect("at once");
    }
}
