//! Counts and times of the commands to one daemon, taken where its sessions run.

use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::histogram::Histogram;

use crate::domain::api_words;

/// Upper bounds of the time of a command, in seconds: a daemon alone takes 1 to 2 ms, and the deadline is 5 s by default.
const SECONDS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Why a command got no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// No daemon listens.
    NoDaemon,
    /// Other callers kept it busy.
    Busy,
    /// It accepted a connection and sent nothing.
    Unresponsive,
    /// The command was sent and its reply never came.
    Unknown,
    /// The daemon refused this user.
    Refused,
    /// Nothing was sent.
    NotSent,
}

api_words!(Failed:
    NoDaemon "no_daemon", Busy "busy", Unresponsive "unresponsive", Unknown "unknown", Refused "refused", NotSent "not_sent",
);

/// Commands to one daemon.
#[derive(Debug)]
pub struct Commands {
    took: Histogram,
    failed: [AtomicU64; Failed::ALL.len()],
}

impl Default for Commands {
    fn default() -> Self {
        Self { took: Histogram::new(SECONDS), failed: Default::default() }
    }
}

impl Commands {
    /// Counts a command that was answered after so many seconds, the wait until the daemon accepted it included.
    pub fn answered(&self, seconds: f64) {
        self.took.observe(seconds);
    }

    /// Counts a command that was not answered.
    pub fn failed(&self, why: Failed) {
        if let Some(index) = Failed::ALL.iter().position(|failure| *failure == why) {
            self.failed[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the times of answered commands.
    pub(super) fn took(&self) -> &Histogram {
        &self.took
    }

    /// Returns the number of commands that were not answered, by reason.
    pub(super) fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Failed::ALL.iter().zip(&self.failed).map(|(why, count)| (why.as_str(), count.load(Ordering::Relaxed)))
    }
}
