//! Operations that ended, by kind and outcome.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::domain::operation::{OperationRequest, OperationState};

/// Counts of operations; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    ended: Family<[(&'static str, &'static str); 2], Counter>,
}

impl Operations {
    /// An operation of this kind ended so, as the API names both.
    pub fn ended(&self, kind: &'static str, outcome: &'static str) {
        self.ended.get_or_create(&[("kind", kind), ("outcome", outcome)]).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // A series that begins at 0 shows its first operation; one that begins at 1 does not.
        for kind in OperationRequest::KINDS {
            for state in [OperationState::Succeeded, OperationState::Failed, OperationState::Cancelled] {
                let _ = self.ended.get_or_create(&[("kind", kind), ("outcome", state.as_str())]);
            }
        }
        registry.register(
            "operations",
            "Operations that ended since the manager started, by kind and outcome (succeeded, failed, cancelled)",
            self.ended.clone(),
        );
    }
}
