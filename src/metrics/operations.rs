//! Operations that ended, by kind and outcome.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::domain::operation::{OperationRequest, OperationState};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabels {
    kind: &'static str,
    outcome: &'static str,
}

/// Counts of operations; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Operations {
    ended: Family<EndedLabels, Counter>,
}

impl Operations {
    /// An operation of this kind ended so, as the API names both.
    pub fn ended(&self, kind: &'static str, outcome: &'static str) {
        self.ended.get_or_create(&EndedLabels { kind, outcome }).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // A series that begins at 0 shows its first operation; one that begins at 1 does not.
        for kind in OperationRequest::KINDS {
            for state in [OperationState::Succeeded, OperationState::Failed, OperationState::Cancelled] {
                let _ = self.ended.get_or_create(&EndedLabels { kind, outcome: state.as_str() });
            }
        }
        registry.register(
            "operations",
            "Operations that ended since the manager started, by kind and outcome (succeeded, failed, cancelled)",
            self.ended.clone(),
        );
    }
}
