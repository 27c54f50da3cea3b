//! Newer generations that change no setting.

use super::DaemonReconciler;
use crate::domain::plan::Desired;

impl DaemonReconciler {
    /// Counts a newer generation that changes no setting as applied if the previous one is; returns true if it now is.
    pub fn carry_over(&mut self, desired: &Desired) -> bool {
        if self.applied == desired.generation || !desired.holds_since(self.applied) {
            return false;
        }
        let before = Desired { generation: self.applied, ..desired.clone() };
        let holds = if desired.is_observed() {
            self.seen.is_some() && self.poll_failure.is_none()
        } else {
            self.is_ready(&before)
        };
        if holds {
            self.applied = desired.generation;
        }
        holds
    }
}
