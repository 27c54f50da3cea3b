//! Commits and publications, as those who wait for a change follow them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Longest wait for a change: after that, values are read again although nothing was committed or published.
const AGAIN: Duration = Duration::from_millis(250);

/// Commits and publications up to a time limit.
pub(super) struct ChangeFeed {
    pub(super) until: Instant,
    pub(super) commits: watch::Receiver<u64>,
    pub(super) publications: watch::Receiver<u64>,
}

impl ChangeFeed {
    /// Waits for the next change, or a short interval at most; returns `false` once the time limit has passed.
    pub(super) async fn next(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        tokio::select! {
            // A channel that has ended says nothing any more.
            Ok(()) = self.commits.changed() => {}
            Ok(()) = self.publications.changed() => {}
            () = sleep_until(self.until.min(Instant::now() + AGAIN)) => {}
        }
        true
    }
}
