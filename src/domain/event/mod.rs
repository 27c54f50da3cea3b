//! Events: what happened to daemons, servers, clients, tenants, layouts and operations, in the order of the commits.
//!
//! The set of types is closed, and their names never change: `docs/events.md` is the catalogue, and a test compares the two.

mod catalogue;
mod derived;
mod domain_event;
mod message;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use catalogue::{DomainEvent, EventType};
pub use domain_event::{
    AuditDamage, ChangedTenant, ClientRefusal, ComputeModeChange, DaemonBlocker, DaemonDeath, DaemonLayout,
    GrantedLease, HostConfirmation, IncidentNotice, LostEvents, LostWork, MemoryBreach, NewEvent,
    ObservedClient, OperationFacts, ServerFault, SessionOwner, TokenFacts, VerificationFailure,
};

use super::attribution::AttributedBy;
use super::client::{ClientId, LeaseKind};
use super::drift::Drifted;
use super::fault::GpuFaultReport;
use super::gpu::ComputeMode;
use super::incident::IncidentKind;
use super::layout::record::{Degraded, PartitionDrift};
use super::{DaemonName, GpuUuid, InvalidValue, LayoutName, PartitionName, TenantName};

/// Severity of an event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Everything is as it should be.
    Info,
    /// An operator should know.
    Warning,
    /// Something does not work.
    Error,
    /// Something does not work and will not by itself.
    Critical,
}

api_words!(Severity: Info "info", Warning "warning", Error "error", Critical "critical");

impl Severity {
    /// Returns the number in the store, by which severities are compared.
    pub fn number(self) -> i64 {
        match self {
            Self::Info => 1,
            Self::Warning => 2,
            Self::Error => 3,
            Self::Critical => 4,
        }
    }
}

/// The part of an event about a tenant that users bound to that tenant see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventVisibility {
    /// All of it: it concerns nothing else.
    Full,
    /// All of it, unless it is about a whole daemon.
    FullWithoutDaemon,
    /// The step, and its outcome if that is known to name no one else.
    StepOutcome,
    /// The operation that failed, and not why.
    Failure,
    /// The incident that it is about, and the meaning of its type.
    Incident,
    /// The meaning of its type alone.
    TypeOnly,
}

/// The subject of an event. Fields that do not apply are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventSubject {
    /// The daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub daemon: Option<DaemonName>,
    /// The GPU; for an event of a daemon with one GPU, that GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuUuid>,
    /// The server, by process ID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<u32>,
    /// The client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1234-567890")]
    pub client: Option<ClientId>,
    /// The tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// The layout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub layout: Option<LayoutName>,
    /// The partition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub partition: Option<PartitionName>,
    /// The operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<Uuid>,
}

impl EventSubject {
    /// Returns the subject of an event about a daemon.
    pub fn daemon(name: &DaemonName) -> Self {
        Self { daemon: Some(name.clone()), ..Self::default() }
    }
}

/// Cause of an event, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum EventCause {
    /// A caller of this API.
    Actor {
        /// Name of the caller, as in the audit log.
        subject: String,
    },
    /// Another event.
    Event {
        /// ID of that event.
        id: i64,
    },
    /// MPS itself.
    Mps,
    /// The process that the event is about.
    Client,
    /// Another program that reaches the daemon.
    Outsider {
        /// The last command by another program that changes something, as control.log reports it, where there is one. A hint only, since
        /// anybody may write to that log.
        command: Option<String>,
    },
    /// This manager, by itself.
    Manager,
    /// The host: its hardware, its driver, its boot.
    Host,
}

/// Cause of an event, as its reporter knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventTrigger {
    /// This cause.
    Known(EventCause),
    /// The last event of this type about the same operation, or else the same daemon; the manager where there is none.
    Latest(EventType),
}

impl From<EventCause> for EventTrigger {
    fn from(cause: EventCause) -> Self {
        Self::Known(cause)
    }
}

/// Source of an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnownFrom {
    /// A poll: the daemon's own list and /proc.
    Poll,
    /// server.log alone, for a client that came and went between two polls. A hint only, since anybody who reaches the daemon's pipe
    /// directory may write there.
    ServerLog,
    /// server.log, and a poll that agrees: the fault was over before the next poll, and the affected clients had been listed and are gone.
    ServerLogAndPoll,
}

/// The way in which the previous manager ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Predecessor {
    /// It recorded that it stopped.
    Stopped,
    /// It recorded nothing: it was killed, or the host went down.
    Died,
    /// Not known, since a backup has replaced the database.
    Restored,
    /// There was no previous manager that kept a journal.
    None,
}

/// Facts that are reported beside the subject, by the type of the event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[schema(as = EventDetails)]
pub enum Details {
    /// A control daemon or a server.
    Process {
        /// Its process ID.
        pid: u32,
        /// The user that it serves or runs as, where that is known.
        uid: Option<u32>,
    },
    /// The end of a server or of a control daemon.
    Death {
        /// Its process ID.
        pid: u32,
        /// The clients that were connected to it, and lost their work.
        clients: Vec<AffectedClient>,
        /// Processes that waited to become clients.
        waiting: Vec<u32>,
    },
    /// The reason for which a daemon is not ready.
    Reason {
        /// Reason of the condition in one word, as `ForeignDaemon`.
        reason: String,
    },
    /// Settings of a daemon.
    Settings {
        /// Settings whose present value differs from the one that had been read back.
        drifted: Vec<Drifted>,
    },
    /// The settings that are in force.
    Generation {
        /// The generation of the daemon that was read back.
        generation: i64,
    },
    /// A layout, or a version of it.
    Layout {
        /// The version.
        version: Option<u32>,
        /// Partitions that another program made or removed.
        drift: Vec<PartitionDrift>,
        /// Partitions that are not as they were.
        degraded: Vec<Degraded>,
    },
    /// A client.
    Client {
        /// Its process ID.
        pid: u32,
        /// Its user.
        uid: Option<u32>,
        /// Its program, without arguments.
        program: Option<String>,
        /// Evidence for the tenant of the client.
        attributed_by: AttributedBy,
        /// Source of the observation.
        known_from: KnownFrom,
        /// Time by server.log, where it reports the client.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// A lease.
    Lease {
        /// The process ID of its holder.
        pid: u32,
        /// Start time of the holder, in clock ticks since boot.
        start_time: u64,
        /// Evidence that the process belongs to the tenant.
        lease: LeaseKind,
        /// Its program when the lease was granted, without arguments.
        program: Option<String>,
    },
    /// A process that waits for another user's clients to be gone.
    Waiting {
        /// Its process ID.
        pid: u32,
        /// Its user.
        uid: u32,
        /// The user whose clients are served at present.
        behind_uid: u32,
    },
    /// A client that was not admitted.
    Refused {
        /// Reason that the server wrote.
        reason: String,
        /// The process, where that is known.
        #[serde(default)]
        pid: Option<u32>,
        /// Time of the refusal by server.log.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// The memory that a client holds on a GPU.
    Memory {
        /// Its process ID.
        pid: u32,
        /// Memory that the client holds on the GPU, its context included, in bytes.
        used_bytes: u64,
        /// Limit of the client in bytes.
        limit_bytes: u64,
    },
    /// An incident.
    Incident {
        /// Its ID.
        incident: i64,
        /// Kind of the incident.
        incident_kind: IncidentKind,
        /// The tenants that it hit.
        #[schema(value_type = Vec<String>)]
        tenants: Vec<TenantName>,
    },
    /// A fatal error of a GPU.
    Fault {
        /// Report of the fault in server.log and the kernel's log.
        report: GpuFaultReport,
        /// The processes whose work is lost, as far as server.log reports.
        affected: Vec<u32>,
        /// The affected processes, each with all that is known of it.
        #[serde(default)]
        clients: Vec<AffectedClient>,
        /// Source of the observation.
        known_from: KnownFrom,
        /// Time at which the fault began, by server.log.
        #[serde(default, with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// A spec that was written.
    Changed {
        /// The fields that changed; empty if the object was created.
        fields: Vec<String>,
    },
    /// An operation.
    Operation {
        /// Kind of the operation, as `drain_daemon`.
        operation: String,
        /// The daemons that it works on.
        #[schema(value_type = Vec<String>)]
        daemons: Vec<DaemonName>,
        /// The GPUs that it works on, as they were when it was requested.
        #[serde(default)]
        gpus: Vec<GpuUuid>,
        /// Reason for the failure, if the operation failed.
        error: Option<String>,
    },
    /// A step of an operation.
    Step {
        /// The action that was taken.
        step: String,
        /// Its outcome.
        outcome: String,
    },
    /// The compute mode of a GPU.
    ComputeMode {
        /// The mode before the change; where a mode is restored, the mode that is in force again.
        previous: Option<ComputeMode>,
        /// The mode that a daemon wants; `null` where the previous mode is restored.
        desired: Option<ComputeMode>,
    },
    /// A manager.
    Manager {
        /// Its version.
        version: String,
        /// Its process ID.
        pid: u32,
        /// The way in which the previous manager ended.
        predecessor: Predecessor,
    },
    /// A token or a session.
    Token {
        /// Its ID, which is no secret.
        id: String,
        /// Its name.
        name: String,
    },
    /// Events that were lost.
    Lost {
        /// Number of lost events; `null` where it is not known.
        count: Option<u64>,
        /// Time of the first of them, where it is known.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        from: Option<i64>,
        /// Time of the last of them, where it is known.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        until: Option<i64>,
        /// ID of the first event from which on the journal is complete again.
        whole_from: Option<i64>,
    },
}

impl Details {
    /// Returns the clients that lost their work by the event.
    pub fn affected_clients(&self) -> &[AffectedClient] {
        match self {
            Self::Death { clients, .. } | Self::Fault { clients, .. } => clients,
            _ => &[],
        }
    }

    /// Returns the tenants of the affected clients, or those that an incident hit. Returns none of a fault that server.log alone reports,
    /// since anybody who reaches that log may write to it.
    pub fn affected_tenants(&self) -> impl Iterator<Item = &TenantName> {
        let is_seen = !matches!(self, Self::Fault { known_from: KnownFrom::ServerLog, .. });
        let clients = self.affected_clients().iter().filter(move |_| is_seen);
        let hit: &[TenantName] = match self {
            Self::Incident { tenants, .. } => tenants,
            _ => &[],
        };
        clients.filter_map(|client| client.tenant.as_ref()).chain(hit)
    }
}

impl Event {
    /// Returns the client of the event as one that lost its work; `None` if the event is not about a client.
    pub fn client(&self) -> Option<AffectedClient> {
        let Some(Details::Client { pid, uid, program, .. }) = self.details.clone() else { return None };
        let EventSubject { client, tenant, .. } = self.subject.clone();
        Some(AffectedClient { client, tenant, uid, program, ..AffectedClient::of(pid) })
    }
}

/// A client that lost its work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AffectedClient {
    /// Its process ID.
    pub pid: u32,
    /// Its process, identified forever; `null` where server.log alone reports it.
    #[schema(value_type = Option<String>, example = "1234-567890")]
    pub client: Option<ClientId>,
    /// Its tenant, where that is known.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<TenantName>,
    /// Its user, where that is known.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Its program, without arguments, where that is known.
    #[serde(default)]
    pub program: Option<String>,
    /// Its command line, as a lease shows it: the first 512 characters, without tokens. `null` where it is not known.
    #[serde(default)]
    pub command: Option<String>,
    /// Time at which the process started; `null` where it is not known.
    #[serde(default, with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<i64>,
    /// Time at which the client connected to its server, by server.log; `null` if it connected before this manager read the log.
    #[serde(default, with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub connected_at: Option<i64>,
    /// Memory that the client held on all GPUs when the driver last listed it, in bytes; `null` where that was not reported.
    #[serde(default)]
    pub memory: Option<u64>,
    /// True if the server wrote that the client's worker is in reset as the server exited after a fatal GPU error. No server has been seen
    /// to write this of an innocent client.
    #[serde(default)]
    #[schema(required = true)]
    pub worker_in_reset: bool,
    /// True if the client's context ended within 5 ms of the fatal GPU error, by server.log. Clients whose context ended before the error
    /// are missing from the server's list of the clients that lost their work.
    #[serde(default)]
    #[schema(required = true)]
    pub ended_with_it: bool,
}

impl AffectedClient {
    /// Returns a process of which nothing else is known.
    pub fn of(pid: u32) -> Self {
        Self { pid, ..Self::default() }
    }
}

/// The daemons and GPUs of an event that is about more than one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherSubjects {
    /// Daemons.
    pub daemons: Vec<DaemonName>,
    /// GPUs.
    pub gpus: Vec<GpuUuid>,
}

/// Returns the names of the fields whose values differ between two versions of a spec; none if the spec was created or deleted.
pub fn changed_fields(before: Option<&serde_json::Value>, after: Option<&serde_json::Value>) -> Vec<String> {
    let object = |spec: Option<&serde_json::Value>| spec.and_then(|spec| spec.as_object()).cloned();
    let (Some(before), Some(after)) = (object(before), object(after)) else { return Vec::new() };
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    all.into_iter().filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Number of the event; it grows by one from commit to commit.
    #[schema(minimum = 0, example = 4711)]
    pub id: i64,
    /// Time at which the event was written.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Type of the event.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// Severity of the event.
    pub severity: Severity,
    /// Subject of the event.
    pub subject: EventSubject,
    /// Cause of the event.
    pub cause: EventCause,
    /// Message for people.
    pub message: String,
    /// Further facts by type; `null` where there are none.
    pub details: Option<Details>,
}

/// A filter of events. Criteria that are not set match every event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Types to match; empty matches all types.
    pub types: Vec<EventType>,
    /// Lowest severity to match.
    pub severity: Option<Severity>,
    /// Daemon that the event is about.
    pub daemon: Option<DaemonName>,
    /// Tenant that the event is about.
    pub tenant: Option<TenantName>,
    /// GPU that the event is about.
    pub gpu: Option<GpuUuid>,
    /// Client that the event is about.
    pub client: Option<ClientId>,
    /// Operation that the event is about.
    pub operation: Option<Uuid>,
    /// Earliest time at which the event was written, in unix milliseconds.
    pub since: Option<i64>,
    /// Time before which the event was written, in unix milliseconds.
    pub until: Option<i64>,
    /// Lowest number of the event.
    pub from: Option<i64>,
    /// Number of the event that caused the event.
    pub cause: Option<i64>,
    /// Incident whose first events include the event.
    pub incident: Option<i64>,
}

impl EventFilter {
    /// Returns true if the filter names a daemon, a GPU or a tenant. An event may be about several of these.
    pub fn has_place(&self) -> bool {
        self.daemon.is_some() || self.gpu.is_some() || self.tenant.is_some()
    }

    /// Returns a filter that no event passes.
    #[must_use]
    pub fn none() -> Self {
        Self { from: Some(i64::MAX), ..Self::default() }
    }

    /// Reads a list of types: names with commas between them. A name that ends with a dot stands for all types that begin with it.
    pub fn parse_types(text: &str) -> Result<Vec<EventType>, InvalidValue> {
        let mut types = Vec::new();
        for word in text.split(',').map(str::trim) {
            let fits = |kind: &&EventType| {
                kind.as_str() == word || (word.ends_with('.') && kind.as_str().starts_with(word))
            };
            let found: Vec<EventType> = EventType::ALL.iter().filter(fits).copied().collect();
            if found.is_empty() {
                let shown: String = word.chars().take(80).collect();
                return Err(InvalidValue(format!(
                    "{shown:?} is neither a type of event nor the beginning of one: give names as daemon.died, or daemon. for all of \
                     them, with commas between; docs/events.md lists them"
                )));
            }
            types.extend(found);
        }
        types.sort_unstable();
        types.dedup();
        Ok(types)
    }
}
