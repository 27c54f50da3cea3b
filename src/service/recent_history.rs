//! History of the last hour in memory, shared by all readers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
use crate::domain::TenantName;
use crate::domain::history::History;

/// The points in memory, shared by all readers.
#[derive(Debug)]
pub(super) struct RecentHistory {
    /// The time at which this manager began to record, in unix milliseconds.
    pub(super) since: i64,
    history: Mutex<History>,
}

impl RecentHistory {
    pub(super) fn new(clock: Clock) -> Self {
        Self { since: clock.unix_ms(), history: Mutex::default() }
    }

    pub(super) fn history(&self) -> MutexGuard<'_, History> {
        // A panic elsewhere leaves some lines longer than others, which the next record corrects.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a deleted tenant.
    pub(super) fn forget(&self, tenant: &TenantName) {
        self.history().forget(tenant);
    }
}
