//! The report of an event: the incident that the event would be by itself.

use super::grouping::Grouping;
use super::{Incident, IncidentKind as Kind, IncidentTopic as Topic, QUIT_BY_OTHERS, Suspect};
use crate::bypass::Bypass;
use crate::client::ClientId;
use crate::event::{
    AffectedClient, ClientRefusal, DaemonDeath, DomainEvent as Event, KnownFrom, MemoryBreach, ServerFault,
};
use crate::exposure::describe_exposures;
use crate::foreign_owner::name_sharing;
use crate::foreign_user::describe_foreign_users;
use crate::layout::record::PartitionDrift;
use crate::memory::Bytes;
use crate::{GpuUuid, TenantName};

/// Longest time between the beginning of a fault by server.log and the moment at which it is noticed.
const LOGGED_MS: i64 = 5 * 60 * 1000;

impl Grouping<'_> {
    /// Returns what the event reports, if it reports anything.
    pub(super) fn report(&self) -> Option<Incident> {
        Some(match self.seen.event {
            Event::ServerFault(fault) => self.fault(fault),
            Event::ServerDied { pid, lost, .. } => {
                self.loss(Kind::ServerDied, Topic::Server { pid: *pid }, &lost.clients, lost.is_uncertain)
            }
            Event::ServerReplaced { clients, process, .. }
            | Event::DaemonReplaced { clients, process, .. } => {
                self.loss(Kind::DaemonWedged, Topic::Daemon, clients, process.working.is_none())
            }
            Event::DaemonDied { why, lost, .. } => Incident {
                detail: (*why == DaemonDeath::ForeignQuit).then(|| QUIT_BY_OTHERS.to_owned()),
                ..self.loss(Kind::DaemonDied, Topic::Daemon, &lost.clients, lost.is_uncertain)
            },
            Event::DaemonWedged(why) => self.detailed(Kind::DaemonWedged, Topic::Daemon, &[&why.message]),
            Event::DaemonCrashLoop(_) => self.of(Kind::CrashLoop, Topic::Daemon),
            Event::DaemonWithoutServer(why) => self.detailed(Kind::NoServer, Topic::Daemon, &[&why.message]),
            Event::SettingsDrifted { drifted, .. } => self.detailed(Kind::Drift, Topic::Settings, drifted),
            Event::LayoutDrifted { layout, .. } => {
                let drift: Vec<String> = layout.drift.iter().map(PartitionDrift::brief).collect();
                self.detailed(Kind::Drift, Topic::Layout, &drift)
            }
            Event::LayoutDegraded(layout) => {
                self.detailed(Kind::LayoutDegraded, Topic::Layout, &layout.degraded)
            }
            Event::LayoutFailed { failure, .. } => {
                self.detailed(Kind::LayoutIdsDiffer, Topic::Layout, &[failure])
            }
            Event::ComputeModeRepaired { gpu, found, set, .. } => {
                let detail = format!("{gpu} was in mode {} instead of {}", found.as_str(), set.as_str());
                on_gpu(gpu, self.detailed(Kind::Drift, Topic::Gpu { gpu: gpu.clone() }, &[detail]))
            }
            Event::GpuMissing { gpu, board, left, .. } => {
                let clients: Vec<AffectedClient> = left.iter().map(|(_, client)| client.clone()).collect();
                // MPS says nothing of it, and one may have left by itself.
                let lost =
                    self.loss(Kind::GpuMissing, Topic::Gpu { gpu: gpu.clone() }, &clients, !left.is_empty());
                on_gpu(gpu, Incident { detail: board.clone(), ..lost })
            }
            Event::BypassAppeared { processes, present, .. } => self.bypass(processes, present),
            Event::BypassChanged { present, .. } => self.bypass(&[], present),
            Event::ExposureDetected { present, .. } => {
                let suspects = present.iter().map(|one| suspect(one.process, one.program.as_ref(), None));
                self.beside(Kind::SocketExposed, describe_exposures(present), suspects)
            }
            Event::ForeignUserAppeared { present, .. } => {
                let suspects = present.iter().map(|one| suspect(one.process, one.program.as_ref(), None));
                self.beside(Kind::ForeignUser, describe_foreign_users(present), suspects)
            }
            Event::ForeignDaemonAppeared { present, .. } => {
                let program = "nvidia-cuda-mps-control".to_owned();
                let suspects =
                    present.iter().map(|one| suspect(one.process, Some(&program), one.owner.tenant.as_ref()));
                self.beside(Kind::GpuShared, name_sharing(present), suspects)
            }
            Event::BreachDetected(MemoryBreach { client, tenant, program, gpu, used, limit, .. }) => {
                let topic = Topic::Client { client: *client, operation: None };
                let detail = format!("{} of {}", Bytes(*used), Bytes(*limit));
                let suspects = vec![suspect(*client, program.as_ref(), tenant.as_ref())];
                on_gpu(gpu, Incident { suspects, ..self.detailed(Kind::Breach, topic, &[detail]) })
            }
            Event::ClientRefused(refusal) => self.refusal(refusal),
            Event::OperationFailed { operation, error, .. } => {
                let client = operation.client?;
                let topic = Topic::Client { client, operation: Some(operation.id) };
                let suspects = vec![suspect(client, None, operation.tenant.as_ref())];
                Incident { suspects, ..self.detailed(Kind::UnknownOutcome, topic, &[error]) }
            }
            _ => return None,
        })
    }

    /// Returns a report that some clients lost their work.
    fn loss(&self, kind: Kind, topic: Topic, clients: &[AffectedClient], is_uncertain: bool) -> Incident {
        Incident { affected: clients.to_vec(), is_uncertain, ..self.of(kind, topic) }
    }

    /// Returns a report with these findings, joined in one line.
    fn detailed(&self, kind: Kind, topic: Topic, findings: &[impl ToString]) -> Incident {
        let findings: Vec<String> = findings.iter().map(ToString::to_string).collect();
        Incident {
            detail: Some(findings.join(", ")).filter(|words| !words.is_empty()),
            ..self.of(kind, topic)
        }
    }

    /// Returns a report of processes that are beside the daemon, in words and one by one.
    fn beside(&self, kind: Kind, detail: String, suspects: impl Iterator<Item = Suspect>) -> Incident {
        Incident { suspects: suspects.collect(), ..self.detailed(kind, Topic::Daemon, &[detail]) }
    }

    fn fault(&self, fault: &ServerFault) -> Incident {
        let is_hint = fault.known_from == KnownFrom::ServerLog;
        // The log may be in another time zone or have been read long after, so the time of notice is nearer.
        let at = self.seen.at;
        let began = fault.logged_at.filter(|began| !is_hint && (at - LOGGED_MS..=at).contains(began));
        Incident {
            fault: Some(fault.report.clone()),
            is_hint,
            opened_at: began.unwrap_or(at),
            // A fault of which server.log says nothing names nobody, and yet clients lost work.
            awaits_clients: fault.clients.is_empty() && !is_hint,
            ..self.loss(Kind::GpuFault, Topic::Server { pid: fault.server }, &fault.clients, false)
        }
    }

    /// Returns a report of processes outside MPS: those that appeared, some of which may be gone again, and all that are `present`.
    fn bypass(&self, appeared: &[Bypass], present: &[Bypass]) -> Incident {
        let all = || appeared.iter().chain(present);
        let suspects = all().map(|one| Suspect {
            pid: one.pid,
            tenant: one.tenant.clone(),
            program: one.program.clone(),
            has_ended: present.iter().all(|here| here.pid != one.pid),
            ..Suspect::default()
        });
        Incident {
            suspects: suspects.collect(),
            gpus: all().map(|one| one.gpu.clone()).collect(),
            ..self.of(Kind::Bypass, Topic::Processes)
        }
    }

    fn refusal(&self, refusal: &ClientRefusal) -> Incident {
        let (tenant, has_ended) = (&refusal.tenant, refusal.has_ended());
        let suspect = |pid| Suspect { pid, tenant: tenant.clone(), has_ended, ..Suspect::default() };
        Incident {
            suspects: refusal.pid.map(suspect).into_iter().collect(),
            ..self.detailed(Kind::ClientRefused, Topic::Processes, &[&refusal.reason])
        }
    }
}

/// Limits a report to one of the daemon's GPUs.
fn on_gpu(gpu: &GpuUuid, report: Incident) -> Incident {
    Incident { gpus: vec![gpu.clone()], ..report }
}

fn suspect(client: ClientId, program: Option<&String>, tenant: Option<&TenantName>) -> Suspect {
    Suspect {
        pid: client.pid,
        client: Some(client),
        tenant: tenant.cloned(),
        program: program.cloned(),
        has_ended: false,
    }
}
