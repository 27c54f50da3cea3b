//! Tones of states: how a state stands out, on a terminal as on a page.

/// Emphasis of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// Something does not work.
    Bad,
    /// Needs attention.
    Warn,
    /// In progress.
    Busy,
    /// As desired.
    Good,
    /// Neutral.
    Quiet,
}

impl Tone {
    /// Returns the tone of a state: a word of the API, of MPS, or made for people. Another word has none.
    pub(crate) fn of(word: &str) -> Option<Self> {
        Some(match word.replace(' ', "_").as_str() {
            "not_known" | "wedged" | "crash_loop" | "blocked" | "error" | "critical" | "failed"
            | "differs" | "no" | "FAULT" | "missing" | "fail" | "broken" => Self::Bad,
            "waiting_to_start_again"
            | "back_off"
            | "absent"
            | "drifted"
            | "degraded"
            | "warning"
            | "warn"
            | "not_verified"
            | "not_seen"
            | "refused"
            | "cordoned" => Self::Warn,
            "not_polled_yet" | "starting" | "applying" | "stopping" | "pending" | "waiting" | "running"
            | "draining" | "INITIALIZING" => Self::Busy,
            "ready" | "observed" | "succeeded" | "verified" | "holds" | "done" | "active" | "applied"
            | "yes" | "ACTIVE" | "same" => Self::Good,
            "stopped" | "info" | "cancelled" | "expired" | "revoked" | "unknown" | "-" | "skipped" => {
                Self::Quiet
            }
            _ => return None,
        })
    }

    /// Returns its CSS class; a page shows a sign too, never the colour alone.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Busy => "busy",
            Self::Good => "good",
            Self::Quiet => "quiet",
        }
    }
}
