//! A child of this process that never outlives the value that holds it.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use super::Signal;
use super::signal::{SignalReason, SignalTarget, send};

/// Longest time until a killed child is reaped; it takes longer only if it is stuck in the kernel.
const REAPED: Duration = Duration::from_secs(1);

/// A child, alone in a process group of its own. When it is dropped, it and its group are killed and it is reaped.
///
/// The group keeps a Ctrl-C at the manager's terminal from the child, and includes the programs that a wrapper runs.
#[derive(Debug)]
pub struct OwnChild(Option<Child>);

impl OwnChild {
    /// Starts a command.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        let child = command.process_group(0).kill_on_drop(false).spawn()?;
        Ok(Self(Some(child)))
    }

    /// Its standard input, the first time.
    pub fn stdin(&mut self) -> Option<ChildStdin> {
        self.0.as_mut()?.stdin.take()
    }

    /// Its standard output, the first time.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.as_mut()?.stdout.take()
    }

    /// Its standard error, the first time.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.as_mut()?.stderr.take()
    }

    /// Waits for its end.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Some(child) = self.0.as_mut() else { return Err(io::Error::other("it was reaped already")) };
        child.wait().await
    }

    /// Waits for its end, kills it if that does not come in time, and reaps it; `None` if it was killed.
    pub async fn end(&mut self, within: Duration) -> Option<ExitStatus> {
        let child = self.0.as_mut()?;
        if let Ok(status) = tokio::time::timeout(within, child.wait()).await {
            self.0 = None;
            return status.ok();
        }
        self.end_now().await;
        None
    }

    /// Kills it and reaps it.
    pub async fn end_now(&mut self) {
        let Some(child) = self.0.as_mut() else { return };
        kill_group(child);
        // If it takes longer, `drop` leaves it to a task of its own.
        if tokio::time::timeout(REAPED, child.wait()).await.is_ok() {
            self.0 = None;
        }
    }
}

impl Drop for OwnChild {
    /// Reaps in a task of its own: the runtime's own care for dropped children may wait for the next child.
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        kill_group(&child);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { child.wait().await });
        }
    }
}

fn kill_group(child: &Child) {
    if let Err(error) = send(SignalTarget::GroupOf(child), Signal::KILL, SignalReason::OwnChild) {
        tracing::debug!(%error, "a child is gone already");
    }
}

#[cfg(test)]
mod tests {
    use super::super::process::{children, death, identify};
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn dropped_child_dies_with_its_group() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & wait"]);
        let child = OwnChild::spawn(&mut command).expect("a shell");
        let pid = child.0.as_ref().and_then(Child::id).expect("not reaped");
        let leader = identify(pid).expect("alive");
        let until = std::time::Instant::now() + TIMEOUT;
        while children(pid).is_empty() {
            assert!(std::time::Instant::now() < until, "the shell starts nothing");
            tokio::task::yield_now().await;
        }
        let inner = children(pid)[0];
        drop(child);
        for id in [leader, inner] {
            tokio::time::timeout(TIMEOUT, death(id)).await.expect("dead");
        }
    }

    #[tokio::test]
    async fn child_that_ends_is_not_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        let mut child = OwnChild::spawn(&mut command).expect("a shell");
        assert_eq!(child.end(TIMEOUT).await.and_then(|status| status.code()), Some(3));
        assert!(child.wait().await.is_err());
    }
}
