//! Incidents: what broke, which clients lost their work, and when it recovered.
//!
//! An incident is made of events: [`group`] takes each event as it is written and says which incidents it opens, changes or ends.
//! Who lost work is what the events name, which is what MPS said at the time. Pure.

pub mod breach;
mod ending;
mod evidence;

mod grouping;
pub mod intruders;
mod kind;
mod linking;
mod outside_mps;
mod report;
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
use super::event::{AffectedClient, IncidentNotice, Severity};
use super::fault::GpuFaultReport;
use super::foreign_user::describe_gone_foreign_users;
use super::workload::Workload;
use super::{DaemonName, GpuUuid, TenantName};

/// For how long after its end people are shown an incident that nobody acknowledged, in milliseconds.
pub const RECENT_MS: i64 = 60 * 60 * 1000;

/// What a daemon's death has as its detail that another program asked for.
const QUIT_BY_OTHERS: &str = "another program sent the control daemon a quit";

/// Most clients and processes that an incident lists.
const MOST_CLIENTS: usize = 1000;
/// Most events that it lists, the ends of all its clients among them; `occurrences` counts on.
const MOST_EVENTS: usize = MOST_CLIENTS + 200;

impl IncidentKind {
    /// How much it matters.
    pub fn severity(self) -> Severity {
        match self {
            Self::CrashLoop => Severity::Critical,
            Self::GpuFault
            | Self::ServerDied
            | Self::DaemonDied
            | Self::DaemonWedged
            | Self::NoServer
            | Self::LayoutIdsDiffer
            | Self::LayoutDegraded
            | Self::GpuMissing => Severity::Error,
            Self::Drift
            | Self::Bypass
            | Self::SocketExposed
            | Self::ForeignUser
            | Self::GpuShared
            | Self::Breach
            | Self::ClientRefused
            | Self::UnknownOutcome => Severity::Warning,
        }
    }
}

/// What an incident is about, which distinguishes it from others of its kind on the same daemon.
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = IncidentSuspect)]
pub struct Suspect {
    /// Its process ID.
    pub pid: u32,
    /// The process, where it was a client or is known otherwise.
    #[schema(value_type = Option<String>, example = "1234-567890")]
    pub client: Option<ClientId>,
    /// Its tenant, where that is known.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Its program, without arguments, where that is known.
    pub program: Option<String>,
    /// Whether a process outside MPS has ended since, one with an exposed socket has it no longer, or a refused one ended before it was
    /// looked at; `false` in incidents of other kinds.
    #[serde(default)]
    #[schema(required = true)]
    pub has_ended: bool,
}

impl Suspect {
    /// Whether it is the same process: by its identity where both are known by it, else by its number.
    fn is_same(&self, other: &Self) -> bool {
        match (self.client, other.client) {
            (Some(one), Some(other)) => one == other,
            _ => self.pid == other.pid,
        }
    }
}

/// Who took note of an incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Acknowledgement {
    /// When.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Who, as the audit log names them; `null` for callers that are bound to a tenant.
    pub by: Option<String>,
    /// What they wrote.
    pub note: Option<String>,
}

/// Whether an incident has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum IncidentState {
    /// It lasts.
    Open,
    /// It has ended.
    Recovered,
}

/// Which incidents are wanted; whatever is not given is not requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IncidentFilter {
    /// Those in this state.
    pub state: Option<IncidentState>,
    /// Those that were acknowledged, or those that were not.
    pub acknowledged: Option<bool>,
    /// Those of this kind.
    pub kind: Option<IncidentKind>,
    /// Those of this daemon.
    pub daemon: Option<DaemonName>,
    /// Those that hit this tenant.
    pub tenant: Option<TenantName>,
    /// Those that concern this GPU.
    pub gpu: Option<GpuUuid>,
    /// Those that were open at this time or later, in unix milliseconds.
    pub since: Option<i64>,
    /// Those that are open, or that ended at this time or later and were not acknowledged, in unix milliseconds.
    pub current_since: Option<i64>,
    /// Those that were opened by the event with this number or a later one.
    pub from_event: Option<i64>,
}

impl IncidentFilter {
    /// Of these, those that people are shown without asking at this time.
    #[must_use]
    pub fn current(self, now: i64) -> Self {
        Self { current_since: Some(now - RECENT_MS), ..self }
    }
}

/// What ended an incident.
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

/// What broke, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// What broke.
    pub kind: IncidentKind,
    /// The daemon.
    pub daemon: DaemonName,
    /// Its GPUs that are concerned.
    pub gpus: Vec<GpuUuid>,
    /// What distinguishes it from others of its kind.
    pub topic: IncidentTopic,
    /// Whether a log alone reports it, which others may have written.
    pub is_hint: bool,
    /// When it began, in unix milliseconds.
    pub opened_at: i64,
    /// When it was opened last, where that was after an end.
    #[serde(default)]
    pub reopened_at: Option<i64>,
    /// When it ended.
    pub recovered_at: Option<i64>,
    /// What ended it.
    pub ended_by: Option<IncidentEnd>,
    /// Who took note of it.
    pub acknowledged: Option<Acknowledgement>,
    /// The processes that it is about, where it is about such and no GPU fault.
    pub suspects: Vec<Suspect>,
    /// What was reported of a GPU fault.
    #[serde(default)]
    pub fault: Option<GpuFaultReport>,
    /// The clients that lost their work.
    pub affected: Vec<AffectedClient>,
    /// Whether some of these may have left before.
    pub is_uncertain: bool,
    /// Whether the events name no client although some may have lost work: those who leave because of it are added.
    pub awaits_clients: bool,
    /// How many clients of the daemon kept their work, where that is known.
    pub unaffected: Option<u32>,
    /// How often it happened while it was open.
    pub occurrences: u32,
    /// What was found, in words.
    pub detail: Option<String>,
    /// Its events.
    pub events: Vec<i64>,
    /// What the tenants that it names were made for when it hit them: a pod's or a job's may be gone by the time that it is read.
    #[serde(default)]
    pub workloads: BTreeMap<TenantName, Workload>,
}

impl Incident {
    /// Whether it has not ended.
    pub fn is_open(&self) -> bool {
        self.recovered_at.is_none()
    }

    /// It is over; what it was about as long as it lasted has ended with it.
    pub(super) fn end(&mut self, at: i64, by: IncidentEnd) {
        (self.recovered_at, self.ended_by) = (Some(at), Some(by));
        if self.kind == IncidentKind::ForeignUser {
            self.detail = self.detail.as_deref().map(describe_gone_foreign_users);
        }
        if by == IncidentEnd::Recovered && self.kind.is_of_processes() {
            self.suspects.iter_mut().for_each(|suspect| suspect.has_ended = true);
        }
    }

    /// What is to be done: once it is over, no longer what was to be done for as long as it lasted.
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

    /// Whether it is the end of a control daemon that another program asked for.
    fn is_quit_by_others(&self) -> bool {
        self.kind == IncidentKind::DaemonDied && self.detail.as_deref() == Some(QUIT_BY_OTHERS)
    }

    /// Whether it was over each time that it became known, so that nothing recovered from it.
    fn is_momentary(&self) -> bool {
        self.is_hint
            || self.kind == IncidentKind::ClientRefused
            || (self.kind == IncidentKind::Drift && matches!(self.topic, IncidentTopic::Gpu { .. }))
    }

    /// How long it took to recover since it was opened last, in milliseconds; `None` for what is over when it becomes known.
    pub fn time_to_recovery_ms(&self) -> Option<i64> {
        let opened_at = self.reopened_at.unwrap_or(self.opened_at);
        self.recovered_at.filter(|_| !self.is_momentary()).map(|at| (at - opened_at).max(0))
    }

    /// The tenants that it hit, in order: those whose clients lost work, and for a breach, a bypass or a refusal, those whose process it
    /// is about.
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

    /// All tenants that it names, in order.
    pub fn named_tenants(&self) -> BTreeSet<&TenantName> {
        let affected = self.affected.iter().filter_map(|client| client.tenant.as_ref());
        affected.chain(self.suspects.iter().filter_map(|suspect| suspect.tenant.as_ref())).collect()
    }

    /// It, as the events about it report it.
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
