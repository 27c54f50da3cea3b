//! Ending a client in the safe order: MPS first, and the signal only after MPS has said `0`.
//!
//! The other order can take the server down, and with it every other client (FACTS.md, "Faults").

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{TerminateError, Termination};
use crate::domain::client::ClientId;
use crate::host::Identity;
use crate::host::process::{Ended, see_off};
use crate::mps::session::SessionError;
use crate::mps::{Command, Control, parse};

/// How long a terminated client gets to end by itself, and then after each signal.
const CLIENT_END: Duration = Duration::from_secs(2);

/// Ends a client of `server`, and says when MPS has let go of it; the session runs alone, since a client that is stopped holds it up.
pub(super) async fn terminate(
    control: &Control,
    server: u32,
    client: ClientId,
    deadline: Instant,
    let_go: oneshot::Sender<()>,
) -> Result<Termination, TerminateError> {
    let mut session = control.session(deadline).await.map_err(explained)?;
    let reply =
        session.send(&Command::TerminateClient { server, client: client.pid }).await.map_err(explained)?;
    session.close().await;
    match parse::terminate(&reply) {
        Ok(parse::Terminated::Done) => {
            let _ = let_go.send(());
            let identity = Identity { pid: client.pid, start_time: client.start_time };
            match see_off(identity, CLIENT_END).await {
                Ok(Ended::ByItself) => Ok(Termination::ByMps),
                Ok(Ended::BySignal) => Ok(Termination::ByMpsAndSignal),
                Err(error) => Err(TerminateError::Lives { client, why: error.to_string() }),
            }
        }
        Ok(parse::Terminated::Refused { text, .. }) => Err(TerminateError::Refused(text)),
        Err(error) => Err(TerminateError::Refused(error.to_string())),
    }
}

fn explained(error: SessionError) -> TerminateError {
    match error {
        SessionError::Unknown { command, cause } => TerminateError::Unanswered(format!("{command}: {cause}")),
        other => TerminateError::Unreachable(other.to_string()),
    }
}
