//! The report of an event, before it is assigned to an incident.

use super::{IncidentKind, IncidentTopic, Suspect};
use crate::GpuUuid;
use crate::event::AffectedClient;
use crate::fault::GpuFaultReport;

/// Facts that an event reports of an incident.
pub(super) struct IncidentReport {
    pub(super) kind: IncidentKind,
    pub(super) topic: IncidentTopic,
    pub(super) gpus: Option<Vec<GpuUuid>>,
    pub(super) suspects: Vec<Suspect>,
    pub(super) fault: Option<GpuFaultReport>,
    pub(super) clients: Vec<AffectedClient>,
    pub(super) is_uncertain: bool,
    pub(super) is_hint: bool,
    /// Time at which it began, where that is known better than the time at which it was noticed.
    pub(super) began: Option<i64>,
    pub(super) detail: Option<String>,
}

impl IncidentReport {
    /// Creates a report without details.
    pub(super) fn of(kind: IncidentKind, topic: IncidentTopic) -> Self {
        Self {
            kind,
            topic,
            gpus: None,
            suspects: Vec::new(),
            fault: None,
            clients: Vec::new(),
            is_uncertain: false,
            is_hint: false,
            began: None,
            detail: None,
        }
    }
}
