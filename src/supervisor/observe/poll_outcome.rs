//! Outcomes of polls, and of sessions that ended early. Pure.

use crate::domain::daemon::Effective;
use crate::mps::SessionError;
use crate::mps::session::NoReplyCause;

/// Outcome of a poll of the daemon, with or without writing.
#[derive(Debug, Clone, PartialEq)]
pub enum PollOutcome {
    /// Everything was read.
    Seen(Effective),
    /// Others kept the daemon busy until the deadline; nothing is known to have changed.
    Busy(String),
    /// A command did not answer and may still take effect.
    Unanswered(String),
    /// The answer could not be parsed.
    Unreadable(String),
    /// The control program failed: it crashed, or wrote something other than an answer.
    Misbehaved(String),
    /// Control processes ended without an answer and without reporting that others are served: they may have been turned away
    /// because of others, or the program reports nothing.
    Mute(String),
    /// No control process could be started: this process, or the host, has no file descriptor left.
    NoFiles(String),
    /// No control process could be started for another reason, or none answers within a session; contains the remedy.
    NotRun(String),
}

impl PollOutcome {
    /// Returns the reason why not everything was read.
    pub fn failure(&self) -> Option<&str> {
        match self {
            Self::Seen(_) => None,
            Self::Busy(why)
            | Self::Unanswered(why)
            | Self::Unreadable(why)
            | Self::Misbehaved(why)
            | Self::Mute(why)
            | Self::NoFiles(why)
            | Self::NotRun(why) => Some(why),
        }
    }
}

/// Returns the outcome of a poll whose session ended early.
pub(crate) fn unanswered(error: SessionError) -> PollOutcome {
    match error {
        // Not silence: whatever the effect of the command, the next poll reads everything again.
        SessionError::Unknown {
            command,
            cause: cause @ (NoReplyCause::Ended { .. } | NoReplyCause::TooLong),
        } => PollOutcome::Misbehaved(format!("{command}: {cause}")),
        SessionError::Unknown { command, cause } => PollOutcome::Unanswered(format!("{command}: {cause}")),
        SessionError::Misbehaved { what } => PollOutcome::Misbehaved(what),
        SessionError::Busy { said_so: false, .. } => PollOutcome::Mute(error.to_string()),
        SessionError::Unresponsive => PollOutcome::Unanswered(error.to_string()),
        SessionError::Spawn(cause) if out_of_files(&cause) => PollOutcome::NoFiles(cause.to_string()),
        SessionError::Spawn(_) => PollOutcome::NotRun(format!(
            "{error}; see that it is installed and that the host has memory and processes left"
        )),
        SessionError::Slow { .. } => PollOutcome::NotRun(error.to_string()),
        other => PollOutcome::Busy(other.to_string()),
    }
}

/// Returns true if this process, or the host, has no file descriptor left.
pub(crate) fn out_of_files(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}
