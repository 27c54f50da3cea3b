//! Commits of the database's writer, which counts them itself.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Upper bounds of the time of a commit, in seconds: one fsync on a fast disk is in the first.
const SECONDS: [f64; 8] = [0.001, 0.0025, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0];

/// Upper bounds of the time of one change, in seconds: none should be beyond the fifth.
const HOLDS: [f64; 8] = [0.001, 0.0025, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0];

/// Commits; clones count together.
#[derive(Debug, Clone)]
pub struct Commits {
    /// Time from the beginning of a transaction to its end, in seconds; one may hold many jobs.
    pub took: Histogram,
    /// Time for which one change held the writer, in seconds.
    pub held: Histogram,
    /// Transactions of which nothing was kept.
    pub failed: Counter,
}

impl Default for Commits {
    fn default() -> Self {
        Self { took: Histogram::new(SECONDS), held: Histogram::new(HOLDS), failed: Counter::default() }
    }
}

impl Commits {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "store_commit_duration",
            "Time of one transaction of the database's writer, which may hold many changes",
            Unit::Seconds,
            self.took.clone(),
        );
        registry.register_with_unit(
            "store_writer_hold",
            "Time for which one change held the database's writer",
            Unit::Seconds,
            self.held.clone(),
        );
        registry.register(
            "store_commits_failed",
            "Transactions of the database's writer of which nothing was kept",
            self.failed.clone(),
        );
    }
}
