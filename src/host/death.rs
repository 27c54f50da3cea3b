//! The death of a process that is no child of ours: waited for, or caused.

use std::future::ready;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;

use super::process::is_alive;
use super::signal::{SignalError, SignalReason, send};
use super::{Identity, Signal, readable};

/// Pause between two checks of `/proc` where a pidfd is not available.
const POLL: Duration = Duration::from_millis(200);

/// Completes when that very process is gone or a zombie; at once if it is so already.
///
/// Dropping the future closes its pidfd and has no other effect.
pub async fn death(id: Identity) {
    let Ok(pidfd) = open(id) else { return poll(id).await };
    // The pidfd was opened by number, so it may belong to a later process with that PID.
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

/// End of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndedBy {
    /// Nothing was sent to it.
    ByItself,
    /// It was sent a signal.
    BySignal,
}

/// Reason why a process still lives; the text follows the name of the process.
#[derive(Debug, thiserror::Error)]
pub enum EndProcessError {
    /// A signal was refused.
    #[error("could not be signalled: {0}")]
    Signal(#[from] SignalError),
    /// It outlived SIGKILL.
    #[error("does not die of SIGKILL: it hangs in the kernel")]
    Immortal,
    /// There is no reason any more to end it.
    #[error("is left as it is: there is no reason any more to end it")]
    Spared,
    /// It could not be found out whether there still is a reason.
    #[error("is left as it is: {0}")]
    Unknown(String),
}

/// Waits for that very process to end, and signals it if it does not; `timeout` is for its own end and for each signal.
///
/// A process that is stopped takes no SIGTERM, and is killed after it.
pub async fn end_process(
    id: Identity,
    timeout: Duration,
    grounds: SignalReason,
) -> Result<EndedBy, EndProcessError> {
    end_process_while(id, timeout, grounds, || ready(Ok(true))).await
}

/// Ends a process as [`end_process`] does, as long as there is a reason, which is checked before each signal.
pub async fn end_process_while<F: Future<Output = Result<bool, String>>>(
    id: Identity,
    timeout: Duration,
    grounds: SignalReason,
    has_reason: impl FnMut() -> F,
) -> Result<EndedBy, EndProcessError> {
    end_process_with(id, timeout, grounds, [Signal::TERM, Signal::KILL], has_reason).await
}

async fn end_process_with<F: Future<Output = Result<bool, String>>>(
    id: Identity,
    timeout: Duration,
    grounds: SignalReason,
    signals: [Signal; 2],
    mut has_reason: impl FnMut() -> F,
) -> Result<EndedBy, EndProcessError> {
    if tokio::time::timeout(timeout, death(id)).await.is_ok() {
        return Ok(EndedBy::ByItself);
    }
    for next in signals {
        if !has_reason().await.map_err(EndProcessError::Unknown)? {
            return Err(EndProcessError::Spared);
        }
        send(id, next, grounds)?;
        if tokio::time::timeout(timeout, death(id)).await.is_ok() {
            return Ok(EndedBy::BySignal);
        }
    }
    Err(EndProcessError::Immortal)
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

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn death_completes_only_when_process_ends() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = identify(child.id()).expect("alive");
        let mut waiting = Box::pin(death(id));
        assert!(futures_util::poll!(&mut waiting).is_pending());
        child.kill().expect("kill");
        // Nobody has reaped it: a zombie is enough.
        tokio::time::timeout(TIMEOUT, waiting).await.expect("noticed");
        child.wait().expect("reaped");
        tokio::time::timeout(TIMEOUT, death(id)).await.expect("at once");
        let mut by_polling = Box::pin(poll(id));
        assert!(futures_util::poll!(&mut by_polling).is_ready());
    }

    #[tokio::test]
    async fn reused_pid_is_not_waited_for() {
        let me = identify(std::process::id()).expect("alive");
        let earlier = Identity { start_time: me.start_time - 1, ..me };
        tokio::time::timeout(TIMEOUT, death(earlier)).await.expect("at once");
    }

    #[tokio::test]
    async fn surviving_process_is_reported_as_error() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = identify(child.id()).expect("alive");
        let moment = Duration::from_millis(20);
        // As with a process that hangs in the kernel: signals do nothing to it.
        let always = || ready(Ok(true));
        let lives =
            end_process_with(id, moment, SignalReason::OwnChild, [Signal::CONT, Signal::WINCH], always).await;
        assert!(matches!(lives, Err(EndProcessError::Immortal)) && is_alive(id), "{lives:?}");
        let killed =
            end_process_with(id, TIMEOUT, SignalReason::OwnChild, [Signal::KILL, Signal::KILL], always);
        let (ended, ()) = tokio::join!(killed, async { child.kill().expect("kill") });
        assert_eq!(ended.expect("dead"), EndedBy::ByItself);
        child.wait().expect("reaped");

        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = identify(child.id()).expect("alive");
        assert_eq!(
            end_process(id, Duration::from_secs(1), SignalReason::ListedClient).await.expect("dead"),
            EndedBy::BySignal
        );
        child.wait().expect("reaped");

        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let id = identify(child.id()).expect("alive");
        let spared = end_process_while(id, moment, SignalReason::ListedClient, || ready(Ok(false))).await;
        let unknown =
            end_process_while(id, moment, SignalReason::ListedClient, || ready(Err("why".to_owned()))).await;
        assert!(matches!(spared, Err(EndProcessError::Spared)), "{spared:?}");
        assert!(matches!(unknown, Err(EndProcessError::Unknown(_))) && is_alive(id), "{unknown:?}");
        child.kill().expect("kill");
        child.wait().expect("reaped");

        // No request ends it: this process lives on.
        let me = identify(std::process::id()).expect("alive");
        let refused = end_process(me, moment, SignalReason::RanUnderLease).await;
        assert!(matches!(refused, Err(EndProcessError::Signal(_))), "{refused:?}");
    }
}
