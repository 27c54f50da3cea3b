//! Incidents: each groups the events of one failure, with the clients that lost their work and the time of recovery.
//!
//! An incident is made of events: [`group`] takes each event as it is written and returns the incidents that it opens, changes or ends.
//! The affected clients are those that the events name, which is what MPS reported at the time. Pure.

pub mod breach;
mod evidence;

mod grouping;
pub mod intruders;
mod kind;
mod report;
mod rules;
mod sentence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use evidence::{Evidence, EvidenceKind, EvidenceWorth, RankedClient, TenantPresence};
pub use grouping::{
    IncidentChange, MEMORY_MS, Occurrence, StoredIncident, Transition, counts_unaffected, group,
};
pub use kind::IncidentKind;
pub use sentence::recovery_words;

use super::client::ClientId;
use super::event::{AffectedClient, IncidentNotice};
use super::fault::GpuFaultReport;
use super::foreign_user::describe_gone_foreign_users;
use super::workload::Workload;
use super::{DaemonName, GpuUuid, TenantName};

/// Time after its end for which people are shown an incident that nobody acknowledged, in milliseconds.
pub const RECENT_MS: i64 = 60 * 60 * 1000;

/// Detail of a daemon's death for which another program asked.
const QUIT_BY_OTHERS: &str = "another program sent the control daemon a quit";

/// Most clients and processes that an incident lists.
const MOST_CLIENTS: usize = 1000;
/// Most events that it lists, the ends of all its clients among them; `occurrences` counts on.
const MOST_EVENTS: usize = MOST_CLIENTS + 200;

/// The topic of an incident, which distinguishes it from others of its kind on the same daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", rename_all = "snake_case")]
pub enum IncidentTopic {
    /// The daemon.
    Daemon,
    /// A server of it.
    Server {
        /// Its process ID.
        pid: u32,
    },
    /// Its settings.
    Settings,
    /// Its layout.
    Layout,
    /// The processes on its GPUs.
    Processes,
    /// One client.
    Client {
        /// The client.
        client: ClientId,
        /// The operation on it, if that is what the incident is about.
        operation: Option<Uuid>,
    },
    /// One GPU.
    Gpu {
        /// The GPU.
        gpu: GpuUuid,
    },
}

/// A process that an incident is about, or that is suspected of having caused it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = IncidentSuspect)]
pub struct Suspect {
    /// Its process ID.
    pub pid: u32,
    /// The process itself, where it was a client or is known from elsewhere.
    #[schema(value_type = Option<String>, example = "1234-567890")]
    pub client: Option<ClientId>,
    /// Its tenant, where that is known.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Its program, without arguments, where that is known.
    pub program: Option<String>,
    /// True if the process is no longer concerned: a process outside MPS, one of a foreign user or another control daemon has ended, one
    /// with an exposed socket no longer has it mounted, or a refused one ended before it was examined. `false` in incidents of other
    /// kinds.
    #[serde(default)]
    #[schema(required = true)]
    pub has_ended: bool,
}

impl Suspect {
    fn is_same(&self, other: &Self) -> bool {
        is_same_process((self.pid, self.client), (other.pid, other.client))
    }
}

impl AffectedClient {
    fn is_same(&self, other: &Self) -> bool {
        is_same_process((self.pid, self.client), (other.pid, other.client))
    }
}

/// Returns true if both are the same process: by identity where both are known by it, otherwise by process ID.
fn is_same_process(one: (u32, Option<ClientId>), other: (u32, Option<ClientId>)) -> bool {
    match (one, other) {
        ((_, Some(one)), (_, Some(other))) => one == other,
        _ => one.0 == other.0,
    }
}

/// The acknowledgement of an incident by a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Acknowledgement {
    /// Time of the acknowledgement.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Name of the caller, as in the audit log; `null` for callers that are bound to a tenant.
    pub by: Option<String>,
    /// Note by the caller.
    pub note: Option<String>,
}

/// State of an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncidentState {
    /// The incident has not ended.
    Open,
    /// The incident has ended.
    Recovered,
}

/// A filter of incidents. Criteria that are not set match every incident.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncidentFilter {
    /// State to match.
    pub state: Option<IncidentState>,
    /// `true` matches acknowledged incidents, `false` those that are not.
    pub acknowledged: Option<bool>,
    /// Kind to match.
    pub kind: Option<IncidentKind>,
    /// Daemon of the incident.
    pub daemon: Option<DaemonName>,
    /// Tenant that the incident hit.
    pub tenant: Option<TenantName>,
    /// GPU that the incident concerns.
    pub gpu: Option<GpuUuid>,
    /// Matches incidents that were open at this time or later, in unix milliseconds.
    pub since: Option<i64>,
    /// Matches incidents that are open, or that ended at this time or later and were not acknowledged, in unix milliseconds.
    pub current_since: Option<i64>,
    /// Matches incidents that were opened by the event with this number or a later one.
    pub from_event: Option<i64>,
    /// Client that lost its work by the incident.
    pub affected: Option<ClientId>,
}

impl IncidentFilter {
    /// Restricts the filter to incidents that are shown without being asked for at this time: see [`RECENT_MS`].
    #[must_use]
    pub fn current(self, now: i64) -> Self {
        Self { current_since: Some(now - RECENT_MS), ..self }
    }
}

/// Reason for the end of an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncidentEnd {
    /// It works again, or what was wrong is gone.
    Recovered,
    /// The daemon was stopped on request.
    Stopped,
    /// The daemon was deleted, released, or configured otherwise.
    Replaced,
}

/// A failure or an irregularity of a daemon, with everything that is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The kind.
    pub kind: IncidentKind,
    /// The daemon.
    pub daemon: DaemonName,
    /// The daemon's GPUs that are concerned.
    pub gpus: Vec<GpuUuid>,
    /// The topic that distinguishes it from others of its kind.
    pub topic: IncidentTopic,
    /// True if a log alone reports it, which others may have written.
    pub is_hint: bool,
    /// Time at which it began, in unix milliseconds.
    pub opened_at: i64,
    /// Time at which it was last opened again after an end.
    #[serde(default)]
    pub reopened_at: Option<i64>,
    /// Time at which it ended.
    pub recovered_at: Option<i64>,
    /// Reason for its end.
    pub ended_by: Option<IncidentEnd>,
    /// Its acknowledgement.
    pub acknowledged: Option<Acknowledgement>,
    /// The processes that it is about; none for a GPU fault, whose suspects are found among the affected clients.
    pub suspects: Vec<Suspect>,
    /// Reports of a GPU fault.
    #[serde(default)]
    pub fault: Option<GpuFaultReport>,
    /// The clients that lost their work.
    pub affected: Vec<AffectedClient>,
    /// True if some of these may have left before.
    pub is_uncertain: bool,
    /// True if the events name no client although some may have lost work. Clients that leave because of it are added.
    pub awaits_clients: bool,
    /// Number of the daemon's clients that kept their work, where it is known.
    pub unaffected: Option<u32>,
    /// Number of times that it happened.
    pub occurrences: u32,
    /// The finding in words.
    pub detail: Option<String>,
    /// Numbers of its events.
    pub events: Vec<i64>,
    /// The workloads of the tenants that it names, as they were when it hit them: a pod or a job may be gone by the time that the incident
    /// is read.
    #[serde(default)]
    pub workloads: BTreeMap<TenantName, Workload>,
}

impl Incident {
    /// Returns true if the incident has not ended.
    pub fn is_open(&self) -> bool {
        self.recovered_at.is_none()
    }

    /// Ends the incident. Processes that it was about for as long as it lasted are marked as ended.
    pub(super) fn end(&mut self, at: i64, by: IncidentEnd) {
        (self.recovered_at, self.ended_by) = (Some(at), Some(by));
        if self.kind == IncidentKind::ForeignUser {
            self.detail = self.detail.as_deref().map(describe_gone_foreign_users);
        }
        if by == IncidentEnd::Recovered && self.kind.is_of_processes() {
            self.suspects.iter_mut().for_each(|suspect| suspect.has_ended = true);
        }
    }

    /// Returns true if a report of processes has none that this incident lacks, nor, if it has ended, one that is still there.
    fn names_all_of(&self, report: &Self) -> bool {
        let is_named = |one: &Suspect| self.suspects.iter().any(|known| known.is_same(one));
        report.kind.is_of_processes()
            && report.suspects.iter().all(|one| is_named(one) && (one.has_ended || self.is_open()))
    }

    /// Marks the processes that are gone by a report of those that are there.
    fn mark_ended(&mut self, report: &Self) {
        for suspect in &mut self.suspects {
            let is_here = |one: &Suspect| !one.has_ended && one.is_same(suspect);
            suspect.has_ended = !report.suspects.iter().any(is_here);
        }
    }

    /// Returns the advice for an operator. Once the incident is over, advice that held only while it lasted is left out.
    pub fn remedy(&self) -> String {
        let words = match self.kind {
            IncidentKind::GpuFault if !self.is_open() => "Restart the affected work.",
            IncidentKind::Breach if !self.is_open() => {
                "The client may have changed its own MPS environment, which escapes limits that only the environment enforces: see how it is started."
            }
            IncidentKind::UnknownOutcome if self.ended_by == Some(IncidentEnd::Recovered) => {
                "Nothing is left to do: the client is gone."
            }
            IncidentKind::Drift if matches!(self.topic, IncidentTopic::Gpu { .. }) => {
                "Find the program that sets the compute mode (nvidia-smi -c, a prolog, another manager) and stop it: the daemon's mode is \
                 restored each time, whatever its drift_policy is."
            }
            IncidentKind::Drift if self.topic == IncidentTopic::Layout => {
                "Find the program that makes or removes partitions of this daemon and stop it. With drift_policy report, apply the daemon's \
                 layout again to restore its partitions."
            }
            IncidentKind::DaemonDied if self.is_quit_by_others() => {
                "Find the program that sends quit to the daemon (`echo quit | nvidia-cuda-mps-control`, a job's epilog) and take that out: the \
                 manager stops its daemons itself (mps-manager daemon stop)."
            }
            kind => kind.remedy(),
        };
        let client =
            self.suspects.first().and_then(|suspect| suspect.client).map(|client| client.to_string());
        words.replace("NAME", self.daemon.as_str()).replace("CLIENT", client.as_deref().unwrap_or("CLIENT"))
    }

    /// Returns true if a control daemon ended since another program asked it to.
    fn is_quit_by_others(&self) -> bool {
        self.kind == IncidentKind::DaemonDied && self.detail.as_deref() == Some(QUIT_BY_OTHERS)
    }

    /// Returns true if the incident was over each time that it became known, so that it has no recovery to measure.
    fn is_momentary(&self) -> bool {
        self.is_hint
            || self.kind == IncidentKind::ClientRefused
            || (self.kind == IncidentKind::Drift && matches!(self.topic, IncidentTopic::Gpu { .. }))
    }

    /// Returns the time from its last opening to its recovery, in milliseconds; `None` if it is open or was over when it became known.
    pub fn time_to_recovery_ms(&self) -> Option<i64> {
        let opened_at = self.reopened_at.unwrap_or(self.opened_at);
        self.recovered_at.filter(|_| !self.is_momentary()).map(|at| (at - opened_at).max(0))
    }

    /// Returns the tenants that it hit, in order: those whose clients lost work, or for kinds that lose no work (a breach, a bypass, a
    /// refusal), those of the processes that it is about. A hint hits none.
    pub fn tenants(&self) -> Vec<TenantName> {
        if self.is_hint {
            return Vec::new();
        }
        let affected = self.affected.iter().filter_map(|client| client.tenant.clone());
        let own = !self.kind.loses_work();
        let suspects = self.suspects.iter().filter(|_| own).filter_map(|suspect| suspect.tenant.clone());
        let mut tenants: Vec<TenantName> = affected.chain(suspects).collect();
        tenants.sort();
        tenants.dedup();
        tenants
    }

    /// Returns all tenants that it names, in order.
    pub fn named_tenants(&self) -> BTreeSet<&TenantName> {
        let affected = self.affected.iter().filter_map(|client| client.tenant.as_ref());
        affected.chain(self.suspects.iter().filter_map(|suspect| suspect.tenant.as_ref())).collect()
    }

    /// Returns the incident as the events about it report it.
    pub fn notice(&self, id: i64) -> IncidentNotice {
        IncidentNotice {
            incident: id,
            kind: self.kind,
            daemon: self.daemon.clone(),
            gpus: self.gpus.clone(),
            tenants: self.tenants(),
            summary: self.summary(),
        }
    }
}
