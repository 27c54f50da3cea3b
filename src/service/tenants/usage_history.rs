//! Usage history of tenants in the last hour, shared by all readers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
use crate::domain::TenantName;
use crate::domain::history::History;

/// The history, shared by all readers.
#[derive(Debug)]
pub(in crate::service) struct UsageHistory {
    /// The time at which this manager began to record, in unix milliseconds.
    pub(in crate::service) since: i64,
    history: Mutex<History>,
}

impl UsageHistory {
    pub(in crate::service) fn new(clock: Clock) -> Self {
        Self { since: clock.unix_ms(), history: Mutex::default() }
    }

    pub(in crate::service) fn history(&self) -> MutexGuard<'_, History> {
        // A panic elsewhere leaves some lines longer than others, which the next record corrects.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a deleted tenant.
    pub(in crate::service) fn forget(&self, tenant: &TenantName) {
        self.history().forget(tenant);
    }
}
