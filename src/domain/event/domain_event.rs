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

/// Why a daemon is not ready: its condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReadyReason {
    /// The daemon.
    pub daemon: DaemonName,
    /// Why, as `ForeignDaemon`.
    pub reason: ConditionReason,
    /// The condition's message.
    pub message: String,
}

/// What is known of why a control process died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonDeath {
    /// The manager killed it, since it hung.
    Killed,
    /// It died while another program had a session open.
    ForeignSession,
    /// Another program sent it a quit.
    ForeignQuit,
    /// Nothing.
    Unexplained,
}

/// The clients that were connected to a process that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostWork {
    /// The clients.
    pub clients: Vec<AffectedClient>,
    /// Whether some may have left before, since lines of server.log were missed.
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
    /// What the server wrote.
    pub reason: String,
    /// The process, where that is known.
    pub pid: Option<u32>,
    /// Its tenant, where that is known.
    pub tenant: Option<TenantName>,
    /// What was read of the process while it lived, by which its tenant is found; it is not stored.
    pub process: Option<Signs>,
    /// When, by server.log, in unix milliseconds.
    pub logged_at: Option<i64>,
}

impl ClientRefusal {
    /// Whether the process had ended before anything was read of it.
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
    /// What it holds, its context included, in bytes, by the driver.
    pub used: u64,
    /// Its limit in bytes.
    pub limit: u64,
}

/// An incident, as its events report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentNotice {
    /// Its number.
    pub incident: i64,
    /// What broke.
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
    /// How that is known.
    pub attributed_by: AttributedBy,
    /// When, by server.log, in unix milliseconds.
    pub logged_at: Option<i64>,
}

impl ObservedClient {
    /// Returns it as a client that lost its work.
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
    /// The fields that are otherwise.
    pub fields: Vec<String>,
}

/// Why a tenant could not be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerificationFailure {
    /// A client saw other values of these.
    Differs(Vec<VerifiedSetting>),
    /// No client could run.
    NotVerified(Option<BlockerCode>),
}

/// A lease, as its events report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedLease {
    /// The tenant.
    pub tenant: TenantName,
    /// The process.
    pub holder: ClientId,
    /// How it is known that the process is the tenant's.
    pub kind: LeaseKind,
    /// Its program when the lease was granted, without arguments.
    pub program: Option<String>,
}

/// The layout of a daemon, as it is in force or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonLayout {
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout; `None` if its partitions are not one's of a name.
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
    /// What it does, as `drain_daemon`.
    pub kind: &'static str,
    /// The daemons that it works on.
    pub daemons: Vec<DaemonName>,
    /// The GPUs that it works on.
    pub gpus: Vec<GpuUuid>,
    /// The client that it ends.
    pub client: Option<ClientId>,
    /// Whose that is.
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
    /// What it was before; where it is restored, what it is again.
    pub previous: Option<ComputeMode>,
    /// What the daemon wants; `None` where it is restored.
    pub desired: Option<ComputeMode>,
}

/// What an operator confirmed of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostConfirmation {
    /// The database belongs to the machine of this ID.
    Machine(String),
    /// The database is accepted without the rows that its audit log lost.
    LossAccepted,
}

/// How the end of the audit differs from the one on the disk.
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
    /// The file of this name, which says where the audit ended, is not readable.
    HeadChanged(&'static str),
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenFacts {
    /// Its ID.
    pub id: TokenId,
    /// Its name.
    pub name: TokenName,
    /// What it grants.
    pub grant: Grant,
}

impl From<&Token> for TokenFacts {
    fn from(Token { id, name, grant, .. }: &Token) -> Self {
        Self { id: id.clone(), name: name.clone(), grant: grant.clone() }
    }
}

/// Whose a session is.
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

/// Which events are missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LostEvents {
    /// They could not be written.
    NotWritten {
        /// How many.
        count: u64,
        /// When the first of them happened, in unix milliseconds.
        from: i64,
        /// When the last of them did.
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

/// An event that is not written yet, and what made it happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// What happened.
    pub event: DomainEvent,
    /// What made it happen.
    pub cause: EventTrigger,
    /// The GPU, where the event names none: the only one of its daemon.
    pub gpu: Option<GpuUuid>,
    /// Whether it changes incidents alone and is not written: one of many of its kind, of which only some are.
    pub is_quiet: bool,
}

impl From<DomainEvent> for NewEvent {
    fn from(event: DomainEvent) -> Self {
        Self { cause: event.usual_cause(), event, gpu: None, is_quiet: false }
    }
}

impl DomainEvent {
    /// The event with another cause than the usual one.
    pub fn because(self, cause: impl Into<EventTrigger>) -> NewEvent {
        NewEvent { event: self, cause: cause.into(), gpu: None, is_quiet: false }
    }

    /// The clients that lost their work by it.
    pub fn affected_clients(&self) -> &[AffectedClient] {
        match self {
            Self::DaemonDied { lost, .. } | Self::ServerDied { lost, .. } => &lost.clients,
            Self::DaemonReplaced { clients, .. }
            | Self::ServerReplaced { clients, .. }
            | Self::ServerFault(ServerFault { clients, .. }) => clients,
            _ => &[],
        }
    }

    /// The same, to complete what is known of them.
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
