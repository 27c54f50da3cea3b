//! Incidents that were opened, counted as their events are read from the journal.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::domain::incident::IncidentKind;

/// Counts of incidents; clones count together.
#[derive(Debug, Clone, Default)]
pub struct IncidentCounts {
    opened: Family<[(&'static str, &'static str); 2], Counter>,
}

fn labels(kind: IncidentKind) -> [(&'static str, &'static str); 2] {
    [("kind", kind.as_str()), ("severity", kind.severity().as_str())]
}

impl IncidentCounts {
    /// An incident of this kind was opened.
    pub fn opened(&self, kind: IncidentKind) {
        self.opened.get_or_create(&labels(kind)).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // A series that begins at 0 shows its first incident; one that begins at 1 does not.
        for kind in IncidentKind::ALL {
            let _ = self.opened.get_or_create(&labels(*kind));
        }
        registry.register(
            "incidents",
            "Incidents that were opened since the manager began to serve, by kind and severity",
            self.opened.clone(),
        );
    }
}
