//! Errors of calls.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::StatusCode;

use crate::http::problem::Problem;

/// Error of a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server cannot be reached.
    #[error(
        "{target} cannot be reached: {detail}; is `mps-manager serve` running? If it runs elsewhere, give --runtime-dir or --url"
    )]
    Unreachable {
        /// The address.
        target: String,
        /// Cause of the failure.
        detail: String,
    },
    /// The connection ended before the answer came.
    #[error(
        "{target} cannot be reached any more: {detail}; whether this was done is not known: read it again"
    )]
    Interrupted {
        /// The address.
        target: String,
        /// Cause of the failure.
        detail: String,
    },
    /// The listener at the socket is not known to be the manager.
    #[error(
        "{socket} is served by uid {uid}, which is neither root nor you, so nothing was sent: if the manager of this host runs as \
         that user, let root write `manager_user = {uid}` into /etc/mps-manager/client.toml"
    )]
    Stranger {
        /// The socket.
        socket: PathBuf,
        /// The listener's user.
        uid: u32,
    },
    /// The server wants a token, and none was given.
    #[error("{target} requires a token: set MPS_MANAGER_TOKEN (`mps-manager token create` makes one)")]
    NoToken {
        /// The address.
        target: String,
    },
    /// The server refused.
    #[error("{}", describe(.0))]
    Refused(Box<Problem>),
    /// The answer is not one that this version can read.
    #[error("the server's answer cannot be read: {0}; is it of the same version?")]
    Unreadable(String),
    /// The caller was asked, and declined.
    #[error("nothing was done")]
    Declined,
    /// The address, or what the client needs for it, is invalid; the text is the whole message.
    #[error("{0}")]
    Address(String),
    /// The caller cannot go on, because of its arguments, its terminal or what it was answered; the text is the whole message.
    #[error("{0}")]
    Caller(String),
    /// The caller stopped waiting for the answer.
    #[error("the manager did not answer within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
}

impl From<String> for ClientError {
    fn from(message: String) -> Self {
        Self::Caller(message)
    }
}

impl From<&str> for ClientError {
    fn from(message: &str) -> Self {
        Self::Caller(message.to_owned())
    }
}

impl ClientError {
    /// Returns true if the server is away, as while it restarts.
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Interrupted { .. })
    }

    /// Returns true if waiting can change this answer.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Interrupted { .. } => true,
            Self::Refused(problem) => ["at-capacity", "unavailable", "timed-out", "too-many-requests"]
                .iter()
                .any(|kind| problem.is(kind)),
            _ => false,
        }
    }

    /// Returns true if the server refused with this status.
    pub fn has_status(&self, status: StatusCode) -> bool {
        matches!(self, Self::Refused(problem) if problem.status == status.as_u16())
    }
}

fn describe(problem: &Problem) -> String {
    let errors = &problem.errors;
    // Where the detail is only the first of several faults, none of them stands out.
    let is_list = errors.len() > 1 && errors.iter().any(|error| error.detail == problem.detail);
    let detail = if is_list { format!("{} faults", errors.len()) } else { problem.detail.clone() };
    let mut text = format!("{}: {detail}", problem.title);
    for error in errors {
        if error.detail != detail {
            let _ = write!(text, "\n  {}: {}", error.pointer, error.detail);
        } else if !error.pointer.is_empty() {
            let _ = write!(text, " (at {})", error.pointer);
        }
    }
    text
}
