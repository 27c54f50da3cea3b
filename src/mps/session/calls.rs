//! Cost of the calls of a daemon, counted for as long as it has a driver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::metrics::control::Commands;

/// The control processes that were spawned for one daemon, and what its commands took.
#[derive(Debug, Default)]
pub struct Calls {
    processes: AtomicU64,
    turned_away: AtomicU64,
    /// True if the daemon has yet to show that it heard the last of them.
    unheard: AtomicBool,
    commands: Arc<Commands>,
}

impl Calls {
    /// Control processes spawned so far.
    pub fn processes(&self) -> u64 {
        self.processes.load(Ordering::Relaxed)
    }

    /// Those of them that the daemon turned away for another caller; each was followed by another attempt, or by
    /// the end of its deadline.
    pub fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// Returns true if the daemon has yet to show that it heard the last control process: a session that control.log shows without a
    /// command may be the one of that process.
    pub fn is_unheard(&self) -> bool {
        self.unheard.load(Ordering::Relaxed)
    }

    /// Returns the times of commands, and the reasons why some of them got no reply.
    pub fn commands(&self) -> Arc<Commands> {
        Arc::clone(&self.commands)
    }

    /// A control process was spawned.
    pub(crate) fn spawned(&self) {
        self.processes.fetch_add(1, Ordering::Relaxed);
        self.set_unheard(true);
    }

    /// The daemon turned one away.
    pub(in crate::mps) fn count_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
    }

    /// Records whether the daemon has yet to show that it heard the last control process.
    pub(crate) fn set_unheard(&self, unheard: bool) {
        self.unheard.store(unheard, Ordering::Relaxed);
    }
}
