//! Ending a client in the safe order: MPS first, and the signal only after MPS has replied `0`.
//!
//! The other order can take the server down, and with it every other client (FACTS.md, "Faults").

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::domain::client::{ClientId, StoppedPolicy};
use crate::host::process::{EndProcessError, EndedBy, death, end_process, is_stopped};
use crate::host::signal::{SignalError, SignalReason, send};
use crate::host::{Identity, Signal};
use crate::mps::session::SessionError;
use crate::mps::{Command, ControlChannel, parse};
use crate::supervisor::requests::{TerminateError, Termination};

/// Pause between two checks of whether a client has been continued.
const STOP_POLL: Duration = Duration::from_millis(2);
/// Time that a terminated client gets to end by itself, and then after each signal.
const CLIENT_END: Duration = Duration::from_secs(2);

/// Makes sure that a client is not stopped before MPS is asked to end it; returns `Some` if the client has ended by this.
pub(crate) async fn resume(
    client: ClientId,
    policy: StoppedPolicy,
) -> Result<Option<Termination>, TerminateError> {
    let identity = Identity::from(client);
    if !is_stopped(client.pid) {
        return Ok(None);
    }
    let signal = match policy {
        StoppedPolicy::Refuse => return Err(TerminateError::Stopped(client)),
        StoppedPolicy::Continue => Signal::CONT,
        StoppedPolicy::Kill => Signal::KILL,
    };
    let lives = |why: String| TerminateError::Lives { client, why };
    match send(identity, signal, SignalReason::ListedClient) {
        Ok(_) => {}
        Err(SignalError::Protected { what, .. }) => {
            return Err(TerminateError::Protected { client, what: what.to_string(), work_ended: false });
        }
        Err(error) => return Err(lives(format!("could not be signalled: {error}"))),
    }
    let until = Instant::now() + CLIENT_END;
    if policy == StoppedPolicy::Kill {
        return match tokio::time::timeout_at(until, death(identity)).await {
            Ok(()) => Ok(Some(Termination::StoppedAndKilled)),
            Err(_) => Err(lives("does not die of SIGKILL: it hangs in the kernel".to_owned())),
        };
    }
    while is_stopped(client.pid) {
        // A process that a debugger holds does not continue on SIGCONT.
        if Instant::now() >= until {
            return Err(TerminateError::Stopped(client));
        }
        tokio::time::sleep(STOP_POLL).await;
    }
    Ok(None)
}

/// Ends a client of `server`, and reports when MPS has released it. No other command shares the session, since a stopped client blocks it.
pub(crate) async fn terminate(
    control: &dyn ControlChannel,
    server: u32,
    client: ClientId,
    deadline: Instant,
    work_ended: oneshot::Sender<()>,
) -> Result<Termination, TerminateError> {
    let mut session = control.session(deadline).map_err(explained)?;
    let reply =
        session.send(&Command::TerminateClient { server, client: client.pid }).await.map_err(explained)?;
    session.close().await;
    match parse::terminate(&reply) {
        Ok(parse::Terminated::Done) => {
            let _ = work_ended.send(());
            end_client_process(client).await
        }
        Ok(parse::Terminated::Refused { text, .. }) => Err(TerminateError::Refused(text)),
        Err(error) => Err(TerminateError::Refused(error.to_string())),
    }
}

/// Ends the process of a client whose work MPS has ended.
async fn end_client_process(client: ClientId) -> Result<Termination, TerminateError> {
    match end_process(client.into(), CLIENT_END, SignalReason::ListedClient).await {
        Ok(EndedBy::ByItself) => Ok(Termination::ByMps),
        Ok(EndedBy::BySignal) => Ok(Termination::ByMpsAndSignal),
        Err(EndProcessError::Signal(SignalError::Protected { what, .. })) => {
            Err(TerminateError::Protected { client, what: what.to_string(), work_ended: true })
        }
        Err(error) => Err(TerminateError::Lives { client, why: error.to_string() }),
    }
}

fn explained(error: SessionError) -> TerminateError {
    match error {
        SessionError::Unknown { command, cause } => TerminateError::Unanswered(format!("{command}: {cause}")),
        other => TerminateError::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::identify;

    /// This process, which is never signalled.
    fn protected() -> ClientId {
        let Identity { pid, start_time } = identify(std::process::id()).expect("alive");
        ClientId { pid, start_time }
    }

    #[tokio::test]
    async fn protected_client_is_still_passed_to_mps() {
        for policy in [StoppedPolicy::Refuse, StoppedPolicy::Continue, StoppedPolicy::Kill] {
            assert_eq!(resume(protected(), policy).await, Ok(None), "{policy:?}");
        }
    }

    #[tokio::test]
    async fn protected_process_outlives_its_termination() {
        let error = end_client_process(protected()).await.expect_err("this test lives on");
        assert!(matches!(error, TerminateError::Protected { work_ended: true, .. }), "{error:?}");
        let message = error.to_string();
        assert!(
            message.starts_with("MPS ended its work, but process") && message.contains("left running"),
            "{message}"
        );
    }
}
