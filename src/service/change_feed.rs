//! Commits and publications, as those who wait for a change follow them.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// When it is read again though nothing was committed or published.
const AGAIN: Duration = Duration::from_millis(250);

/// What is committed and published until a time.
pub(super) struct ChangeFeed {
    pub(super) until: Instant,
    pub(super) commits: watch::Receiver<u64>,
    pub(super) publications: watch::Receiver<u64>,
}

impl ChangeFeed {
    /// Waits for the next one since the last; `false` once the time is over.
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
