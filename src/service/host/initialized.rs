//! Whether the start is complete, and why nothing may be changed.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

/// Why nothing may be changed on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReadOnly {
    /// The reason, and what to do.
    pub reason: String,
    /// Whether it ends by itself, once the NVIDIA driver is here.
    #[serde(default)]
    pub waiting_for_driver: bool,
    /// The machine that the database belongs to; `none` for one without an ID.
    pub stored_machine_id: String,
    /// This machine.
    pub machine_id: String,
}

/// Whether startup is complete. An unsealed store does not show that: the rest of a confirmation may have failed.
#[derive(Debug, Default)]
pub(in crate::service) struct Initialized {
    pub(super) done: AtomicBool,
    /// Whether the event of the start was written.
    pub(super) start_recorded: AtomicBool,
    /// Held during a confirmation, so that a second one waits.
    pub(super) confirming: Mutex<()>,
}

impl Initialized {
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}
