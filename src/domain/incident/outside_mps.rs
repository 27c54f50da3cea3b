//! What processes that are no clients are to an incident: of those outside MPS, and of those that have a daemon's own directory
//! mounted, it keeps all that were seen, and which have ended.

use super::grouping::{Grouping, IncidentChange, StoredIncident, Transition};
use super::report::IncidentReport;
use super::{Incident, IncidentKind, IncidentTopic, Suspect};
use crate::bypass::Bypass;
use crate::exposure::{SocketExposure, describe_exposures};

impl Grouping<'_> {
    /// Processes appeared outside MPS; `present` are all that are there now.
    pub(super) fn bypass_appeared(&mut self, processes: &[Bypass], present: &[Bypass]) {
        let known = || processes.iter().chain(present);
        self.recurring(IncidentReport {
            suspects: known().map(suspect).collect(),
            gpus: Some(known().map(|process| process.gpu.clone()).collect()),
            ..IncidentReport::of(IncidentKind::Bypass, IncidentTopic::Processes)
        });
        if let Some(change) = self.changes.last_mut() {
            mark_ended(&mut change.incident, present);
        }
    }

    /// Some of the processes have ended, and `present` are left.
    pub(super) fn bypass_changed(&mut self, present: &[Bypass]) {
        let is_it =
            |known: &&StoredIncident| known.incident.is_open() && known.incident.kind == IncidentKind::Bypass;
        let Some(known) = self.known.iter().rev().find(is_it) else { return };
        let mut incident = known.incident.clone();
        mark_ended(&mut incident, present);
        self.note_event(&mut incident);
        self.changes.push(IncidentChange { id: Some(known.id), incident, transition: Transition::Extended });
    }

    /// Processes have the daemon's own directory mounted; `present` are all that have it now.
    pub(super) fn exposed(&mut self, present: &[SocketExposure]) {
        let suspects: Vec<Suspect> = present
            .iter()
            .map(|one| Suspect {
                pid: one.process.pid,
                client: Some(one.process),
                tenant: None,
                program: one.program.clone(),
                has_ended: false,
            })
            .collect();
        let detail = Some(describe_exposures(present));
        let is_it = |known: &&StoredIncident| {
            let incident = &known.incident;
            let is_known = |one: &Suspect| incident.suspects.iter().any(|known| known.is_same(one));
            let is_open = incident.is_open() && incident.kind == IncidentKind::SocketExposed;
            is_open && suspects.iter().all(is_known)
        };
        if let Some(known) = self.known.iter().rev().find(is_it) {
            // That fewer are left is not one more time.
            let mut incident = known.incident.clone();
            incident.detail = detail;
            self.note_event(&mut incident);
            let transition = Transition::Extended;
            self.changes.push(IncidentChange { id: Some(known.id), incident, transition });
        } else {
            self.recurring(IncidentReport {
                suspects,
                detail,
                ..IncidentReport::of(IncidentKind::SocketExposed, IncidentTopic::Daemon)
            });
        }
        if let Some(change) = self.changes.last_mut() {
            for suspect in &mut change.incident.suspects {
                suspect.has_ended = present.iter().all(|one| suspect.client != Some(one.process));
            }
        }
    }
}

fn suspect(process: &Bypass) -> Suspect {
    Suspect {
        pid: process.pid,
        client: None,
        tenant: process.tenant.clone(),
        program: process.program.clone(),
        has_ended: false,
    }
}

fn mark_ended(incident: &mut Incident, present: &[Bypass]) {
    for suspect in &mut incident.suspects {
        suspect.has_ended = present.iter().all(|process| process.pid != suspect.pid);
    }
}
