//! The observations that a driver publishes.

use std::sync::Arc;

use super::blocker::Blocker;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::DaemonStatus;

/// Observation of a daemon.
#[derive(Debug, Clone)]
pub struct Observed {
    /// Status of the daemon, for the API.
    pub status: Arc<DaemonStatus>,
    /// Clients of the daemon at the last poll.
    pub clients: Arc<Vec<ClientFacts>>,
    /// Last request for a fresh poll that this observation answers.
    pub(super) served: u64,
    /// Failure of that poll; `None` if it succeeded.
    pub(super) failed: Option<Blocker>,
    /// Generation that the driver follows; all actions for earlier ones are over.
    pub(super) follows: i64,
    /// Reason why the daemon is blocked, if it is.
    pub(super) blocker: Option<Blocker>,
    /// Last request to try again that this observation answers.
    pub(super) tried: u64,
}

impl Observed {
    /// Returns true if this observation came after the request to try again with this number.
    pub fn has_tried(&self, tried: u64) -> bool {
        self.tried >= tried
    }

    /// Returns the generation that the driver follows.
    pub fn follows(&self) -> i64 {
        self.follows
    }

    /// Returns the reason why the daemon is still blocked after it was tried again on this request.
    pub fn blocker(&self, tried: u64) -> Option<&Blocker> {
        self.blocker.as_ref().filter(|_| self.tried >= tried)
    }
}
