//! Requests to a driver, and their results.

use tokio::sync::oneshot;

use crate::domain::client::{ClientId, StoppedPolicy};

/// Requests that a driver carries out once, in turn.
pub(super) enum DriverRequest {
    Restart,
    /// Answered with the number of the request.
    TryAgain(oneshot::Sender<u64>),
    /// Applies to this generation, whatever the policy says about drift; answered with the number of the request.
    ReconcileLayout(i64, oneshot::Sender<u64>),
    Terminate {
        client: ClientId,
        stopped: StoppedPolicy,
        /// Notified when MPS has ended the client's work and only its process is left.
        work_ended: oneshot::Sender<()>,
        answer: oneshot::Sender<Result<Termination, TerminateError>>,
    },
}

/// Way in which a client ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// MPS ended its work, and it is off the server's list.
    ByMps,
    /// It was gone before anything was sent.
    AlreadyGone,
    /// Its process was killed after MPS had ended its work.
    ByMpsAndSignal,
    /// It was stopped, and was killed without asking MPS, as the request chose.
    StoppedAndKilled,
}

impl Termination {
    /// Describes the end in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByMps => "MPS ended its work, and the process ended",
            Self::AlreadyGone => "the process was gone already",
            Self::ByMpsAndSignal => "MPS ended its work, and the process was then killed",
            Self::StoppedAndKilled => "it was stopped, and was killed without asking MPS",
        }
    }
}

/// Reason why a client was not ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TerminateError {
    /// It is no client of this daemon.
    #[error("process {0} is not a client of this daemon: list the clients for those that are")]
    NotAClient(ClientId),
    /// It is stopped, and nothing was sent.
    #[error(
        "client {0} is stopped (by SIGSTOP or a debugger), and MPS hangs when it is asked to end a stopped client, so nothing was \
         sent: ask with stopped=continue to continue it first, or with stopped=kill to kill it"
    )]
    Stopped(ClientId),
    /// It is a process that is never signalled as a client, and it was left running.
    #[error(
        "{}process {client} is {what}, which is never signalled as a client, so it was left running",
        if *.work_ended { "MPS ended its work, but " } else { "" }
    )]
    Protected {
        /// The process.
        client: ClientId,
        /// Description of the process.
        what: String,
        /// True if MPS has ended its work.
        work_ended: bool,
    },
    /// The daemon refused.
    #[error("the daemon refused to terminate it: {0}")]
    Refused(String),
    /// The daemon did not answer in time; the termination may still take effect.
    #[error(
        "the daemon did not answer in time ({0}), and the termination may still take effect: a client that was \
         stopped (SIGSTOP) in that moment holds it up, so continue the client (SIGCONT) and check again"
    )]
    Unanswered(String),
    /// Its work was ended, and its process lives on.
    #[error("MPS ended its work, but process {client} {why}")]
    Lives {
        /// The client.
        client: ClientId,
        /// Result of the signals.
        why: String,
    },
    /// The daemon could not be reached.
    #[error("the daemon could not be reached: {0}")]
    Unreachable(String),
}

/// Termination of a client in progress.
#[derive(Debug)]
pub struct Terminating {
    has_ended_work: oneshot::Receiver<()>,
    answered: oneshot::Receiver<Result<Termination, TerminateError>>,
}

impl Terminating {
    /// Creates a termination whose progress and result come through the two senders.
    pub(crate) fn begin() -> (oneshot::Sender<()>, oneshot::Sender<Result<Termination, TerminateError>>, Self)
    {
        let (work_ended, has_ended_work) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        (work_ended, answer, Self { has_ended_work, answered })
    }

    /// Waits until MPS has ended the client's work, and returns true; returns false if it did not, in which case the result is ready.
    pub async fn work_ended(&mut self) -> bool {
        (&mut self.has_ended_work).await.is_ok()
    }

    /// Waits for the result of the termination.
    pub async fn ended(self) -> Result<Termination, TerminateError> {
        self.answered.await.map_err(|_| unmanaged())?
    }
}

pub(crate) fn unmanaged() -> TerminateError {
    TerminateError::Unreachable("it is no longer managed".into())
}
