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
    AuditDamage, ChangedTenant, ClientRefusal, ComputeModeChange, DaemonDeath, DaemonLayout, GrantedLease,
    HostConfirmation, IncidentNotice, LostEvents, LostWork, MemoryBreach, NewEvent, NotReadyReason,
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

/// How much an event matters.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// As it should be.
    Info,
    /// An operator should know.
    Warning,
    /// Something does not work.
    Error,
    /// Something does not work and will not by itself.
    Critical,
}

impl Severity {
    /// All, the least first.
    pub const ALL: [Self; 4] = [Self::Info, Self::Warning, Self::Error, Self::Critical];

    /// Its number in the store, by which severities are compared.
    pub fn number(self) -> i64 {
        match self {
            Self::Info => 1,
            Self::Warning => 2,
            Self::Error => 3,
            Self::Critical => 4,
        }
    }

    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
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

/// What an event is about; whatever it is not about is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventSubject {
    /// The daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub daemon: Option<DaemonName>,
    /// The GPU; for what happens to a daemon with one GPU, that one.
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
    /// A daemon.
    pub fn daemon(name: &DaemonName) -> Self {
        Self { daemon: Some(name.clone()), ..Self::default() }
    }
}

/// What made it happen, as far as that is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum EventCause {
    /// A caller of this API.
    Actor {
        /// Who, as the audit names them.
        subject: String,
    },
    /// What another event reports.
    Event {
        /// Its ID.
        id: i64,
    },
    /// MPS itself.
    Mps,
    /// The process that the event is about.
    Client,
    /// Another program that reaches the daemon.
    Outsider {
        /// The last command of another program that changes something, by control.log, where there is one: a hint, since
        /// anybody may write there.
        command: Option<String>,
    },
    /// This manager, by itself.
    Manager,
    /// The host: its hardware, its driver, its boot.
    Host,
}

/// What made it happen, as its reporter knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventTrigger {
    /// This.
    Known(EventCause),
    /// The last event of this type about the same operation, or else the same daemon; the manager where there is none.
    Latest(EventType),
}

impl From<EventCause> for EventTrigger {
    fn from(cause: EventCause) -> Self {
        Self::Known(cause)
    }
}

/// How something became known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum KnownFrom {
    /// A poll: the daemon's own list and /proc.
    Poll,
    /// server.log alone, for what came and went between two polls: a hint, since anybody who reaches the daemon's pipe
    /// directory may write there.
    ServerLog,
    /// server.log, and a poll that agrees: of a fault that was over before the next poll, the affected clients had been listed and
    /// are gone.
    ServerLogAndPoll,
}

/// How the manager before this one ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Predecessor {
    /// It recorded that it stopped.
    Stopped,
    /// It recorded nothing: it was killed, or the host went down.
    Died,
    /// Not known: a backup was put in the place of its database since.
    Restored,
    /// There was none that kept a journal.
    None,
}

/// What is reported beside the subject, by type.
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
    /// Why a daemon is not ready: the reason of its condition.
    Reason {
        /// One word, as `ForeignDaemon`.
        reason: String,
    },
    /// Settings of a daemon.
    Settings {
        /// Those that are otherwise than they had been read back.
        drifted: Vec<Drifted>,
    },
    /// What is in force.
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
        /// How it is known whose it is.
        attributed_by: AttributedBy,
        /// How it became known.
        known_from: KnownFrom,
        /// When the log reports it, where a log does.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// A lease.
    Lease {
        /// The process ID of its holder.
        pid: u32,
        /// When that started, in clock ticks since boot.
        start_time: u64,
        /// How it is known that the process is the tenant's.
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
        /// The user who is served.
        behind_uid: u32,
    },
    /// A client that was not admitted.
    Refused {
        /// What the server wrote.
        reason: String,
        /// The process, where that is known.
        #[serde(default)]
        pid: Option<u32>,
        /// When, by the log.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// The memory that a client holds on a GPU.
    Memory {
        /// Its process ID.
        pid: u32,
        /// What it holds, in bytes, its context included.
        used_bytes: u64,
        /// Its limit.
        limit_bytes: u64,
    },
    /// An incident.
    Incident {
        /// Its ID.
        incident: i64,
        /// What broke.
        incident_kind: IncidentKind,
        /// The tenants that it hit.
        #[schema(value_type = Vec<String>)]
        tenants: Vec<TenantName>,
    },
    /// A fatal error of a GPU.
    Fault {
        /// What server.log and the kernel's log report of it.
        report: GpuFaultReport,
        /// The processes whose work is lost, as far as server.log reports.
        affected: Vec<u32>,
        /// The same with what is known of each.
        #[serde(default)]
        clients: Vec<AffectedClient>,
        /// How it became known.
        known_from: KnownFrom,
        /// When it began, by server.log.
        #[serde(default, with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        logged_at: Option<i64>,
    },
    /// A spec that was written.
    Changed {
        /// The fields that are otherwise; empty for a new thing.
        fields: Vec<String>,
    },
    /// An operation.
    Operation {
        /// What it does, as `drain_daemon`.
        operation: String,
        /// The daemons that it works on.
        #[schema(value_type = Vec<String>)]
        daemons: Vec<DaemonName>,
        /// The GPUs that it works on, as they were when it was requested.
        #[serde(default)]
        gpus: Vec<GpuUuid>,
        /// Why it failed, where it did.
        error: Option<String>,
    },
    /// A step of an operation.
    Step {
        /// What was done.
        step: String,
        /// Its outcome.
        outcome: String,
    },
    /// The compute mode of a GPU.
    ComputeMode {
        /// What it was before; where it is restored, what it is again.
        previous: Option<ComputeMode>,
        /// What a daemon wants; `null` where it is restored.
        desired: Option<ComputeMode>,
    },
    /// A manager.
    Manager {
        /// Its version.
        version: String,
        /// Its process ID.
        pid: u32,
        /// How the one before ended.
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
        /// How many; `null` where that is not known.
        count: Option<u64>,
        /// When the first of them happened, where that is known.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        from: Option<i64>,
        /// When the last of them happened.
        #[serde(with = "crate::rfc3339::option")]
        #[schema(value_type = Option<String>, format = DateTime)]
        until: Option<i64>,
        /// The first event from which on the journal is whole again.
        whole_from: Option<i64>,
    },
}

impl Details {
    /// The clients that lost their work by it.
    pub fn affected_clients(&self) -> &[AffectedClient] {
        match self {
            Self::Death { clients, .. } | Self::Fault { clients, .. } => clients,
            _ => &[],
        }
    }

    /// Their tenants, or those that an incident hit; none where server.log alone reports it, which anybody may have written who reaches it.
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
    /// Returns the client that it is about, as one that lost its work; `None` where it is about none.
    pub fn client(&self) -> Option<AffectedClient> {
        let Some(Details::Client { pid, uid, program, .. }) = self.details.clone() else { return None };
        let EventSubject { client, tenant, .. } = self.subject.clone();
        Some(AffectedClient { client, tenant, uid, program, ..AffectedClient::of(pid) })
    }
}

/// A client that lost its work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
    /// When it started; `null` where that is not known.
    #[serde(default, with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<i64>,
    /// When it connected to its server, by server.log; `null` where that was before this manager read it.
    #[serde(default, with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub connected_at: Option<i64>,
    /// What it held on all GPUs when the driver listed it last before, in bytes; `null` where that was not reported.
    #[serde(default)]
    pub memory: Option<u64>,
    /// Whether its server wrote that its worker is in reset as it exited after a fatal GPU error, which it has not been seen to write of an
    /// innocent client.
    #[serde(default)]
    #[schema(required = true)]
    pub worker_in_reset: bool,
    /// Whether its context ended within 5 ms of the fatal GPU error, by server.log; those that ended before it are not in its list of whose work
    /// is lost.
    #[serde(default)]
    #[schema(required = true)]
    pub ended_with_it: bool,
}

impl AffectedClient {
    /// A process of which nothing else is known.
    pub fn of(pid: u32) -> Self {
        Self {
            pid,
            client: None,
            tenant: None,
            uid: None,
            program: None,
            started_at: None,
            connected_at: None,
            memory: None,
            worker_in_reset: false,
            ended_with_it: false,
        }
    }
}

/// Things of which an event is about more than one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherSubjects {
    /// Daemons.
    pub daemons: Vec<DaemonName>,
    /// GPUs.
    pub gpus: Vec<GpuUuid>,
}

/// The fields that are otherwise, of a spec that was there before and is there after.
pub fn changed_fields(before: Option<&serde_json::Value>, after: Option<&serde_json::Value>) -> Vec<String> {
    let object = |spec: Option<&serde_json::Value>| spec.and_then(|spec| spec.as_object()).cloned();
    let (Some(before), Some(after)) = (object(before), object(after)) else { return Vec::new() };
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    all.into_iter().filter(|key| before.get(*key) != after.get(*key)).cloned().collect()
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// Its number: it grows by one from commit to commit.
    #[schema(minimum = 0, example = 4711)]
    pub id: i64,
    /// When it was written.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// What happened.
    #[serde(rename = "type")]
    pub kind: EventType,
    /// How much it matters.
    pub severity: Severity,
    /// To what.
    pub subject: EventSubject,
    /// What made it happen.
    pub cause: EventCause,
    /// The same for people.
    pub message: String,
    /// What else is reported; `null` where there is nothing.
    pub details: Option<Details>,
}

/// Which events are wanted; whatever is not given is not requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Those of these types; empty is all.
    pub types: Vec<EventType>,
    /// Those that matter at least so much.
    pub severity: Option<Severity>,
    /// Those about this daemon.
    pub daemon: Option<DaemonName>,
    /// Those about this tenant.
    pub tenant: Option<TenantName>,
    /// Those about this GPU.
    pub gpu: Option<GpuUuid>,
    /// Those about this client.
    pub client: Option<ClientId>,
    /// Those about this operation.
    pub operation: Option<Uuid>,
    /// Those written at this time or later, in unix milliseconds.
    pub since: Option<i64>,
    /// Those written before this time, in unix milliseconds.
    pub until: Option<i64>,
    /// Those with this number or a higher one.
    pub from: Option<i64>,
    /// Those that follow on the event with this number.
    pub cause: Option<i64>,
}

impl EventFilter {
    /// Whether it asks for what is about a daemon, a GPU or a tenant, of which an event may have several.
    pub fn has_place(&self) -> bool {
        self.daemon.is_some() || self.gpu.is_some() || self.tenant.is_some()
    }

    /// One that no event passes.
    #[must_use]
    pub fn none() -> Self {
        Self { from: Some(i64::MAX), ..Self::default() }
    }

    /// Reads the types that are wanted: names with commas between, of which one that ends with a dot stands for all that
    /// begin with it.
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
