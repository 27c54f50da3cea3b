//! What a driver publishes.

use super::report::blocker::Blocker;
use super::report::diagnosis::Diagnosis;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::DaemonStatus;

/// What was observed of a daemon.
#[derive(Debug, Clone)]
pub struct Observed {
    /// For the API.
    pub status: DaemonStatus,
    /// Its clients at the last poll.
    pub clients: Vec<ClientFacts>,
    /// The last request for a fresh poll that this answers.
    pub(super) served: u64,
    /// Whether that poll failed.
    pub(super) failed: Option<Diagnosis>,
    /// The generation that the driver works by; whatever it did by an earlier one is over.
    pub(super) follows: i64,
    /// What blocks the daemon, if the daemon is blocked.
    pub(super) blocker: Option<Blocker>,
    /// The last request to try again that this answers.
    pub(super) tried: u64,
}

impl Observed {
    /// Whether what was seen came after this request to try again.
    pub fn has_tried(&self, tried: u64) -> bool {
        self.tried >= tried
    }

    /// The generation that the driver works by.
    pub fn follows(&self) -> i64 {
        self.follows
    }

    /// What blocks the daemon, found after it was tried again on this request.
    pub fn blocker(&self, tried: u64) -> Option<&Blocker> {
        self.blocker.as_ref().filter(|_| self.tried >= tried)
    }
}
