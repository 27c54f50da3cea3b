//! Events, counted as they are read from the journal.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::domain::event::EventType;

/// Counts of events; clones count together.
#[derive(Debug, Clone, Default)]
pub struct EventCounts {
    happened: Family<[(&'static str, &'static str); 2], Counter>,
}

impl EventCounts {
    /// An event of this type and severity, as the API names both, was written.
    pub fn happened(&self, kind: &'static str, severity: &'static str) {
        self.happened.get_or_create(&[("type", kind), ("severity", severity)]).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // A series that begins at 0 shows its first event; one that begins at 1 does not.
        for kind in EventType::ALL {
            let labels = [("type", kind.as_str()), ("severity", kind.severity().as_str())];
            let _ = self.happened.get_or_create(&labels);
        }
        registry.register(
            "events",
            "Events that were written since the manager began to serve, by type and severity",
            self.happened.clone(),
        );
    }
}
