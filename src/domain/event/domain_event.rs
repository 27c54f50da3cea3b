//! The payloads of events, and an event that is not written yet.
//!
//! Code that does or detects something returns a [`DomainEvent`]; everything stored about it is derived from it in this folder.

use uuid::Uuid;

use super::{AffectedClient, DomainEvent, EventTrigger, KnownFrom};
use crate::access::Grant;
use crate::attribution::{AttributedBy, Signs};
use crate::client::{ClientId, LeaseKind};
use crate::condition::ConditionReason;
use crate::fault::GpuFaultReport;
use crate::gpu::ComputeMode;
use crate::incident::IncidentKind;
use crate::layout::record::{Degraded, PartitionDrift};
use crate::token::{Token, TokenId};
use crate::verification::{BlockerCode, VerifiedSetting};
use crate::{DaemonName, GpuUuid, LayoutName, TenantName, TokenName};

/// The condition of a daemon that is not ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonBlocker {
    /// The daemon.
    pub daemon: DaemonName,
    /// The reason of the condition, as `ForeignDaemon`.
    pub reason: ConditionReason,
    /// The condition's message.
    pub message: String,
}

/// The cause of a control process's death, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonDeath {
    /// The manager killed it, since it hung.
    Killed,
    /// It died while another program had a session open.
    ForeignSession,
    /// Another program sent it a quit.
    ForeignQuit,
    /// The cause is not known.
    Unexplained,
}

/// The clients that were connected to a process that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostWork {
    /// The clients.
    pub clients: Vec<AffectedClient>,
    /// True if some of the clients may have left before, since lines of server.log were missed.
    pub is_uncertain: bool,
}

/// A fatal GPU error of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of `Details::Fault`")]
pub struct ServerFault {
    pub daemon: DaemonName,
    pub server: u32,
    pub report: GpuFaultReport,
    pub affected: Vec<u32>,
    pub clients: Vec<AffectedClient>,
    pub known_from: KnownFrom,
    pub logged_at: Option<i64>,
}

/// A client that MPS refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientRefusal {
    /// The daemon.
    pub daemon: DaemonName,
    /// Its server.
    pub server: u32,
    /// Reason that the server wrote.
    pub reason: String,
    /// The process, where that is known.
    pub pid: Option<u32>,
    /// Its tenant, where that is known.
    pub tenant: Option<TenantName>,
    /// Signs that were read of the process while it lived, by which its tenant is found. They are not stored.
    pub process: Option<Signs>,
    /// Time of the refusal by server.log, in unix milliseconds.
    pub logged_at: Option<i64>,
}

impl ClientRefusal {
    /// Returns true if the process had ended before anything was read of it.
    pub fn has_ended(&self) -> bool {
        self.pid.is_some() && self.process.is_none()
    }
}

/// A client and the memory that it holds on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryBreach {
    /// The daemon.
    pub daemon: DaemonName,
    /// The client.
    pub client: ClientId,
    /// Its tenant, where that is known.
    pub tenant: Option<TenantName>,
    /// Its program, where that is known.
    pub program: Option<String>,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Memory that the client holds on the GPU by the driver, its context included, in bytes.
    pub used: u64,
    /// Its limit in bytes.
    pub limit: u64,
}

/// An incident, as its events report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentNotice {
    /// Its number.
    pub incident: i64,
    /// The kind of the incident.
    pub kind: IncidentKind,
    /// The daemon.
    pub daemon: DaemonName,
    /// The GPUs.
    pub gpus: Vec<GpuUuid>,
    /// The tenants that it hit.
    pub tenants: Vec<TenantName>,
    /// The incident in one sentence.
    pub summary: String,
}

/// A client that connected or left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedClient {
    /// Its daemon.
    pub daemon: DaemonName,
    /// Its server.
    pub server: u32,
    /// Its process ID.
    pub pid: u32,
    /// Its process, identified forever; `None` where server.log alone reports it.
    pub client: Option<ClientId>,
    /// Its user.
    pub uid: Option<u32>,
    /// Its program, without arguments.
    pub program: Option<String>,
    /// Its tenant.
    pub tenant: Option<TenantName>,
    /// Evidence for the tenant.
    pub attributed_by: AttributedBy,
    /// Time by server.log, in unix milliseconds.
    pub logged_at: Option<i64>,
}

impl ObservedClient {
    /// Returns the client as one that lost its work.
    pub fn affected(&self) -> AffectedClient {
        let Self { pid, client, tenant, uid, program, .. } = self.clone();
        AffectedClient { client, tenant, uid, program, ..AffectedClient::of(pid) }
    }
}

/// A tenant whose spec was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedTenant {
    /// The tenant.
    pub tenant: TenantName,
    /// Its daemon.
    pub daemon: Option<DaemonName>,
    /// The GPU that it got instead of another.
    pub gpu: Option<GpuUuid>,
    /// The fields that changed.
    pub fields: Vec<String>,
}

/// Reason for which a tenant could not be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationFailure {
    /// A client saw values of these settings that differ from the configuration.
    Differs(Vec<VerifiedSetting>),
    /// No client could run, for this reason where it is known.
    NotVerified(Option<BlockerCode>),
}

/// A lease, as its events report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// The tenant.
    pub tenant: TenantName,
    /// The process.
    pub holder: ClientId,
    /// Evidence that the process belongs to the tenant.
    pub kind: LeaseKind,
    /// Its program when the lease was granted, without arguments.
    pub program: Option<String>,
}

/// The layout of a daemon, as it is in force or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonLayout {
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout; `None` if the daemon's partitions do not come from a named layout.
    pub layout: Option<LayoutName>,
    /// Its version.
    pub version: Option<u32>,
    /// Partitions that another program made or removed.
    pub drift: Vec<PartitionDrift>,
    /// Partitions that are not as they were.
    pub degraded: Vec<Degraded>,
}

/// An operation, as its events report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationFacts {
    /// Its ID.
    pub id: Uuid,
    /// Kind of the operation, as `drain_daemon`.
    pub kind: &'static str,
    /// The daemons that it works on.
    pub daemons: Vec<DaemonName>,
    /// The GPUs that it works on.
    pub gpus: Vec<GpuUuid>,
    /// The client that the operation ends.
    pub client: Option<ClientId>,
    /// The tenant of that client.
    pub tenant: Option<TenantName>,
    /// The layout that it applies or replays.
    pub layout: Option<LayoutName>,
}

/// A compute mode that is about to be set, or was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeModeChange {
    /// The daemon.
    pub daemon: DaemonName,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The compute mode before the change; where the mode is restored, the mode that is in force again.
    pub previous: Option<ComputeMode>,
    /// The mode that the daemon wants; `None` where the previous mode is restored.
    pub desired: Option<ComputeMode>,
}

/// A confirmation by an operator about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostConfirmation {
    /// The database belongs to the machine of this ID.
    Machine(String),
    /// The database is accepted without the rows that its audit log lost.
    LossAccepted,
}

/// A difference between the end of the audit log and the end that is known to have been on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditDamage {
    /// It ends too early.
    Truncated {
        /// The last row that was on the disk.
        known: i64,
        /// The last row now.
        found: i64,
    },
    /// The row of this number is another one.
    RowReplaced(i64),
    /// The file of this name, which says where the audit ended, was changed or is not readable.
    HeadChanged(&'static str),
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFacts {
    /// Its ID.
    pub id: TokenId,
    /// Its name.
    pub name: TokenName,
    /// Rights that the token grants.
    pub grant: Grant,
}

impl From<&Token> for TokenFacts {
    fn from(Token { id, name, grant, .. }: &Token) -> Self {
        Self { id: id.clone(), name: name.clone(), grant: grant.clone() }
    }
}

/// The owner of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionOwner {
    /// The holder of the admin token.
    AdminToken,
    /// The holder of this token.
    Token(TokenFacts),
    /// The holder of a token of which only the ID is known.
    DeletedToken(TokenId),
    /// A user of this host.
    User(u32),
}

/// Events that are missing from the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostEvents {
    /// They could not be written.
    NotWritten {
        /// Number of events.
        count: u64,
        /// Time of the first of them, in unix milliseconds.
        from: i64,
        /// Time of the last of them, in unix milliseconds.
        until: i64,
    },
    /// Lines of server.log of this daemon were missed.
    LinesMissed {
        /// The daemon.
        daemon: DaemonName,
    },
    /// A backup was restored.
    Restored {
        /// The last event that the backup has.
        kept: i64,
        /// The last event that was written.
        given: i64,
    },
    /// They were pruned before they were read.
    Pruned {
        /// The first of them.
        from: i64,
        /// The first that is there.
        whole_from: i64,
    },
}

/// An event that is not written yet, with its cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// The event.
    pub event: DomainEvent,
    /// The cause, as the reporter knows it.
    pub cause: EventTrigger,
    /// The GPU, where the event names none: the only one of its daemon.
    pub gpu: Option<GpuUuid>,
    /// True if the event is only written when it opens an incident, and otherwise changes incidents alone: events of some kinds are
    /// limited in rate.
    pub is_quiet: bool,
}

impl From<DomainEvent> for NewEvent {
    fn from(event: DomainEvent) -> Self {
        Self { cause: event.usual_cause(), event, gpu: None, is_quiet: false }
    }
}

impl DomainEvent {
    /// Returns the event with this cause instead of the usual one.
    pub fn because(self, cause: impl Into<EventTrigger>) -> NewEvent {
        NewEvent { event: self, cause: cause.into(), gpu: None, is_quiet: false }
    }

    /// Returns the clients that lost their work by this event, so that their facts can be completed.
    pub fn affected_clients_mut(&mut self) -> &mut [AffectedClient] {
        match self {
            Self::DaemonDied { lost, .. } | Self::ServerDied { lost, .. } => &mut lost.clients,
            Self::DaemonReplaced { clients, .. }
            | Self::ServerReplaced { clients, .. }
            | Self::ServerFault(ServerFault { clients, .. }) => clients,
            _ => &mut [],
        }
    }
}
