//! Why a session gave no reply.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::metrics::control::Failed;

/// The longest reply that is read, in bytes.
pub const LONGEST_REPLY: usize = 1 << 20;

/// Why a session gave no reply.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No daemon listens in the pipe directory. Nothing ran.
    #[error("no MPS control daemon answers in the pipe directory")]
    NoDaemon,
    /// Other callers kept the daemon busy up to the deadline. Nothing ran.
    #[error("{attempts} control processes in a row got no answer of the daemon; the last one: {last}")]
    Busy {
        /// Control processes that were turned away.
        attempts: u32,
        /// Description of how the last one ended.
        last: String,
        /// True if any of them reported that the daemon did not take its command. One that is turned away may say nothing (recording 08),
        /// but not each time.
        said_so: bool,
    },
    /// The control program crashed, or wrote something that no control program writes. Nothing ran.
    #[error("{what}")]
    Misbehaved {
        /// Description of its behaviour.
        what: String,
    },
    /// The daemon accepted a caller and sent nothing up to the deadline, not even at the end of the input. Nothing ran; the daemon hangs,
    /// as it does while it terminates a stopped client.
    #[error("the daemon does not answer; nothing was sent to it")]
    Unresponsive,
    /// The control program is too slow for the deadline, or holds its answer back up to the end of its input. Nothing ran; the daemon
    /// answers.
    #[error(
        "the control program gave no answer ended by a prompt within {:.1} s, and one at the end of its input, in a session of at most {:.1} s: \
         raise control_deadline_s if {} is slow, or find out what holds its output back, for example a pipe",
        took.as_secs_f64(), allowed.as_secs_f64(), program.display()
    )]
    Slow {
        /// The time that an answer was waited for in vain.
        took: Duration,
        /// Longest time for a session.
        allowed: Duration,
        /// The control program.
        program: PathBuf,
    },
    /// The command was sent and its reply never came: it may have run, and may still run later.
    #[error("the outcome of {command:?} is unknown: {cause}")]
    Unknown {
        /// The line that was sent.
        command: String,
        /// Reason why the reply never came.
        cause: NoReplyCause,
    },
    /// The command cannot be written as a safe line. Nothing was sent.
    #[error("{line:?} cannot be sent: {reason}")]
    Line {
        /// The line.
        line: String,
        /// Reason why it is not safe.
        reason: &'static str,
    },
    /// The command must have a session of its own. Nothing was sent.
    #[error("{command:?} has to run alone")]
    NotAlone {
        /// The line.
        command: String,
    },
    /// The daemon refuses this uid.
    #[error("the daemon refused: {text}")]
    Refused {
        /// The daemon's message.
        text: String,
    },
    /// The session ended with an earlier error. Nothing was sent.
    #[error("the session is over")]
    Over,
    /// The control program could not be run.
    #[error("the control program cannot be run: {0}")]
    Spawn(io::Error),
}

impl From<&SessionError> for Failed {
    fn from(error: &SessionError) -> Self {
        match error {
            SessionError::NoDaemon => Self::NoDaemon,
            SessionError::Busy { .. } => Self::Busy,
            SessionError::Unresponsive => Self::Unresponsive,
            SessionError::Unknown { .. } => Self::Unknown,
            SessionError::Refused { .. } => Self::Refused,
            SessionError::Line { .. }
            | SessionError::NotAlone { .. }
            | SessionError::Over
            | SessionError::Misbehaved { .. }
            | SessionError::Slow { .. }
            | SessionError::Spawn(_) => Self::NotSent,
        }
    }
}

/// Reason why a reply never came.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoReplyCause {
    /// The deadline passed; the daemon hangs.
    #[error("no reply before the deadline")]
    Deadline,
    /// The control process ended, most likely with its daemon.
    #[error("the control process ended: {ending}")]
    Ended {
        /// Its exit status and its last output.
        ending: String,
    },
    /// The reply passed [`LONGEST_REPLY`].
    #[error("the reply is longer than {LONGEST_REPLY} bytes")]
    TooLong,
    /// The caller dropped the future that was waiting for the reply.
    #[error("nobody waited for the reply")]
    Abandoned,
}
