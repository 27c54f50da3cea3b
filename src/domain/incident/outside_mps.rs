//! Incidents about processes outside MPS, processes that have a daemon's own directory mounted, foreign users, and control daemons that
//! serve the daemon's GPUs. Such an incident keeps all processes that were seen, and marks those that have ended.

use super::grouping::{Grouping, StoredIncident};
use super::report::IncidentReport;
use super::{Incident, IncidentKind, IncidentTopic, Suspect};
use crate::bypass::Bypass;
use crate::client::ClientId;
use crate::exposure::{SocketExposure, describe_exposures};
use crate::foreign_owner::{SharingDaemon, name_sharing};
use crate::foreign_user::{ForeignUser, describe_foreign_users};
use crate::gpu::ComputeMode;
use crate::{GpuUuid, TenantName};

impl Grouping<'_> {
    /// Takes processes that appeared outside MPS; `present` are all that are there now.
    pub(super) fn bypass_appeared(&mut self, processes: &[Bypass], present: &[Bypass]) {
        let all = || processes.iter().chain(present);
        let names = |incident: &Incident| {
            all().all(|process| incident.suspects.iter().any(|known| known.pid == process.pid))
        };
        // Processes known before anything was written of them count once, and processes that have ended open nothing.
        let is_it = |known: &&StoredIncident| {
            known.incident.kind == IncidentKind::Bypass && (known.incident.is_open() || present.is_empty())
        };
        let last = self.known.iter().rev().find(is_it).filter(|known| names(&known.incident));
        if let Some(known) = last {
            self.extended(known.id, known.incident.clone());
        } else {
            self.recurring(IncidentReport {
                suspects: all().map(suspect).collect(),
                gpus: Some(all().map(|process| process.gpu.clone()).collect()),
                ..IncidentReport::of(IncidentKind::Bypass, IncidentTopic::Processes)
            });
        }
        if let Some(change) = self.changes.last_mut() {
            mark_ended(&mut change.incident, present);
        }
    }

    /// Takes the end of some of the processes outside MPS; `present` are those that are left.
    pub(super) fn bypass_changed(&mut self, present: &[Bypass]) {
        let is_it =
            |known: &&StoredIncident| known.incident.is_open() && known.incident.kind == IncidentKind::Bypass;
        let Some(known) = self.known.iter().rev().find(is_it) else { return };
        let mut incident = known.incident.clone();
        mark_ended(&mut incident, present);
        self.extended(known.id, incident);
    }

    /// Takes processes that have the daemon's own directory mounted; `present` are all that have it now.
    pub(super) fn exposed(&mut self, present: &[SocketExposure]) {
        let suspect = |one: &SocketExposure| intruder(one.process, one.program.clone(), None);
        let suspects: Vec<Suspect> = present.iter().map(suspect).collect();
        self.intruded(IncidentKind::SocketExposed, &suspects, describe_exposures(present));
    }

    /// Takes processes of users who are no tenant's at the daemon; `present` are all of them now.
    pub(super) fn foreign_users(&mut self, present: &[ForeignUser]) {
        let suspect = |one: &ForeignUser| intruder(one.process, one.program.clone(), None);
        let suspects: Vec<Suspect> = present.iter().map(suspect).collect();
        self.intruded(IncidentKind::ForeignUser, &suspects, describe_foreign_users(present));
    }

    /// Takes other control daemons that serve a GPU of the daemon; `present` are all that do now.
    pub(super) fn shared(&mut self, present: &[SharingDaemon]) {
        let program = || Some("nvidia-cuda-mps-control".to_owned());
        let suspect = |one: &SharingDaemon| intruder(one.process, program(), one.owner.tenant.clone());
        let suspects: Vec<Suspect> = present.iter().map(suspect).collect();
        self.intruded(IncidentKind::GpuShared, &suspects, name_sharing(present));
    }

    /// Takes a compute mode that another program changed, and that is restored by the time of the event.
    pub(super) fn mode_repaired(&mut self, gpu: &GpuUuid, found: ComputeMode, set: ComputeMode) {
        let topic = IncidentTopic::Gpu { gpu: gpu.clone() };
        let report = IncidentReport {
            gpus: Some(vec![gpu.clone()]),
            detail: Some(format!("{gpu} was in mode {} instead of {}", found.as_str(), set.as_str())),
            ..IncidentReport::of(IncidentKind::Drift, topic.clone())
        };
        self.report_over(report, |known| {
            known.kind == IncidentKind::Drift && known.topic == topic && known.acknowledged.is_none()
        });
    }

    fn intruded(&mut self, kind: IncidentKind, present: &[Suspect], detail: String) {
        let detail = Some(detail);
        let is_it = |known: &&StoredIncident| {
            let incident = &known.incident;
            let is_known = |one: &Suspect| incident.suspects.iter().any(|known| known.is_same(one));
            incident.is_open() && incident.kind == kind && present.iter().all(is_known)
        };
        if let Some(known) = self.known.iter().rev().find(is_it) {
            // That fewer are left is not another occurrence.
            let mut incident = known.incident.clone();
            incident.detail = detail;
            self.extended(known.id, incident);
        } else {
            let suspects = present.to_vec();
            self.recurring(IncidentReport {
                suspects,
                detail,
                ..IncidentReport::of(kind, IncidentTopic::Daemon)
            });
        }
        if let Some(change) = self.changes.last_mut() {
            for suspect in &mut change.incident.suspects {
                suspect.has_ended = present.iter().all(|one| suspect.client != one.client);
            }
        }
    }
}

fn intruder(process: ClientId, program: Option<String>, tenant: Option<TenantName>) -> Suspect {
    Suspect { pid: process.pid, client: Some(process), tenant, program, has_ended: false }
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
