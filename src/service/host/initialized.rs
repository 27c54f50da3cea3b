//! State of the start: complete, or the reason why nothing may be changed.

use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

/// Reason why nothing may be changed on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReadOnly {
    /// The reason, with the remedy.
    pub reason: String,
    /// True if the state ends by itself once the NVIDIA driver is present.
    #[serde(default)]
    pub waiting_for_driver: bool,
    /// The machine that the database belongs to; `none` for one without an ID.
    pub stored_machine_id: String,
    /// The ID of this machine; `none` if it has none.
    pub machine_id: String,
}

/// Progress of the start. An unsealed store does not prove that it is complete: the rest of a confirmation may have failed.
#[derive(Debug, Default)]
pub(in crate::service) struct Initialized {
    pub(super) done: AtomicBool,
    /// True if the event of the start was written.
    pub(super) start_recorded: AtomicBool,
    /// Held during a confirmation, so that a second one waits.
    pub(super) confirming: Mutex<()>,
}

impl Initialized {
    pub(super) fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}
