//! A newer generation that changes no setting.

use super::DaemonReconciler;
use crate::domain::plan::Desired;

impl DaemonReconciler {
    /// Takes a newer generation that changes no setting for applied, where the one before is; true if it is now.
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
