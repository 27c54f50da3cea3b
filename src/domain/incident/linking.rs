//! The events that an incident lists: those that opened, changed and ended it, and those that follow from them.

use super::grouping::{Grouping, IncidentChange, StoredIncident, Transition, is_same};
use super::{Incident, MOST_EVENTS};
use crate::event::DomainEvent;

impl Grouping<'_> {
    /// Adds the event to every incident that it belongs to and does not change: it is about the incident, one of the incident's events
    /// caused it, or it is the end of a client that lost its work.
    pub(super) fn link(&mut self) {
        let seen = self.seen;
        let belongs = |StoredIncident { id, incident }: &&StoredIncident| match seen.event {
            DomainEvent::IncidentOpened(one) | DomainEvent::IncidentRecovered(one) => one.incident == *id,
            DomainEvent::ClientLeft(left) => {
                incident.affected.iter().any(|one| is_same(one, &left.affected()))
            }
            _ => seen.cause.is_some_and(|cause| incident.events.contains(&cause)),
        };
        for known in self.known.iter().filter(belongs) {
            if self.changes.iter().all(|change| change.id != Some(known.id)) {
                self.extended(known.id, known.incident.clone());
            }
        }
    }

    /// Adds the event to an incident, which may have changed.
    pub(super) fn extended(&mut self, id: i64, mut incident: Incident) {
        self.note_event(&mut incident);
        self.changes.push(IncidentChange { id: Some(id), incident, transition: Transition::Extended });
    }

    /// Adds the event to the last open incident that it belongs to.
    pub(super) fn attach(&mut self, belongs: impl Fn(&Incident) -> bool) {
        let open = self.known.iter().rev().find(|known| known.incident.is_open() && belongs(&known.incident));
        let Some(known) = open else { return };
        self.extended(known.id, known.incident.clone());
    }

    pub(super) fn note_event(&self, incident: &mut Incident) {
        if let DomainEvent::GpuMissing { left, .. } = self.seen.event {
            incident.events.extend(left.iter().map(|(event, _)| event));
        }
        if incident.events.len() < MOST_EVENTS {
            incident.events.extend(self.seen.id);
        }
    }
}
