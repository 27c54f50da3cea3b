//! Operations: actions that take time, with a journal of their steps.

use serde::{Deserialize, Serialize};

use super::DaemonName;
use super::client::ClientId;

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OperationRequest {
    /// Brings the daemon to what its spec says, running.
    StartDaemon,
    /// Stops the daemon.
    StopDaemon {
        /// Seconds its clients are given to end; after that they lose their server.
        grace_s: u32,
    },
    /// Stops the daemon and starts it again.
    RestartDaemon {
        /// Seconds its clients are given to end.
        grace_s: u32,
    },
    /// Stops the daemon and forgets it.
    DeleteDaemon {
        /// Seconds its clients are given to end.
        grace_s: u32,
    },
    /// Ends a client in the safe order.
    TerminateClient {
        /// The client.
        #[schema(value_type = String, pattern = "^[0-9]+-[0-9]+$", example = "1234-567890")]
        client: ClientId,
    },
}

impl OperationRequest {
    /// One word for logs and lists.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::StartDaemon => "start_daemon",
            Self::StopDaemon { .. } => "stop_daemon",
            Self::RestartDaemon { .. } => "restart_daemon",
            Self::DeleteDaemon { .. } => "delete_daemon",
            Self::TerminateClient { .. } => "terminate_client",
        }
    }
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Waiting for its turn on each of its daemons.
    Pending,
    /// Under way.
    Running,
    /// Done, and seen to be done.
    Succeeded,
    /// Given up; `error` says why.
    Failed,
    /// Called off: before it began, or where its last step says.
    Cancelled,
}

impl OperationState {
    /// The word in the store and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen to it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// One step of an operation: written before it is taken, completed after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Step {
    /// What is done.
    pub name: String,
    /// When it began, in unix milliseconds.
    pub started_at: i64,
    /// When it ended; `null` while it runs, or when the manager died in it.
    pub finished_at: Option<i64>,
    /// What came of it.
    pub outcome: Option<String>,
}

/// An operation with its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Operation {
    /// Its ID, a UUID of version 7.
    pub id: uuid::Uuid,
    /// What it does.
    pub request: OperationRequest,
    /// The daemons it works on; one operation at a time runs on each.
    #[schema(value_type = Vec<String>)]
    pub daemons: Vec<DaemonName>,
    /// Where it stands.
    pub state: OperationState,
    /// Why it failed.
    pub error: Option<String>,
    /// When it was asked for, in unix milliseconds.
    pub created_at: i64,
    /// When it began.
    pub started_at: Option<i64>,
    /// When it ended.
    pub finished_at: Option<i64>,
    /// Whether it is running and can be stopped where it is.
    pub cancellable: bool,
    /// When it was asked to stop while it ran.
    pub cancel_requested_at: Option<i64>,
    /// Its steps so far.
    pub steps: Vec<Step>,
}

/// What a restarted manager does with an operation that was under way when it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Take it up again: its steps say what should be, and doing them twice is harmless.
    Finish,
    /// Its effect is seen already.
    Done,
    /// It cannot be known, or should not be done any more.
    Abandon(&'static str),
}

/// Decides what becomes of an operation found running at start.
///
/// `client_alive` is whether the client that a termination named still runs.
pub fn resume(operation: &Operation, client_alive: bool) -> Resume {
    match operation.request {
        OperationRequest::StartDaemon
        | OperationRequest::StopDaemon { .. }
        | OperationRequest::DeleteDaemon { .. } => Resume::Finish,
        OperationRequest::RestartDaemon { .. } => {
            // Once the stop has been journalled as done, the driver brings the daemon up by itself; a second
            // stop would cost the clients that came since.
            let stopped =
                operation.steps.iter().any(|step| step.name == "stop" && step.finished_at.is_some());
            if stopped { Resume::Done } else { Resume::Finish }
        }
        OperationRequest::TerminateClient { .. } if !client_alive => Resume::Done,
        OperationRequest::TerminateClient { .. } => Resume::Abandon(
            "the manager was restarted while the client was being terminated, and the client still runs: ask again if it should end",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(request: OperationRequest, steps: Vec<Step>) -> Operation {
        Operation {
            id: uuid::Uuid::nil(),
            request,
            daemons: vec![DaemonName::parse("gpu0").expect("name")],
            state: OperationState::Running,
            error: None,
            created_at: 0,
            started_at: Some(0),
            finished_at: None,
            cancellable: false,
            cancel_requested_at: None,
            steps,
        }
    }

    #[test]
    fn a_restart_is_not_done_twice() {
        let request = OperationRequest::RestartDaemon { grace_s: 1 };
        let step = Step { name: "stop".into(), started_at: 0, finished_at: Some(1), outcome: None };
        assert_eq!(resume(&operation(request.clone(), vec![step]), false), Resume::Done);
        assert_eq!(resume(&operation(request, vec![]), false), Resume::Finish);
    }

    #[test]
    fn an_unfinished_termination_is_never_repeated_unasked() {
        let client = ClientId { pid: 1, start_time: 1 };
        let request = OperationRequest::TerminateClient { client };
        assert_eq!(resume(&operation(request.clone(), vec![]), false), Resume::Done);
        assert!(matches!(resume(&operation(request, vec![]), true), Resume::Abandon(_)));
    }
}
