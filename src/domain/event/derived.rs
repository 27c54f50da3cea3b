//! Subjects, details and causes that rows of the catalogue share.

use uuid::Uuid;

use super::domain_event::{
    ClientRefusal, DaemonBlocker, DaemonDeath, DaemonLayout, GrantedLease, IncidentNotice, LostEvents,
    LostWork, MemoryBreach, NewEvent, ObservedClient, OperationFacts, ServerFault, SessionOwner, TokenFacts,
};
use super::{
    AffectedClient, Details, DomainEvent, EventCause, EventSubject, EventTrigger, EventType, KnownFrom,
    OtherSubjects, Predecessor, Severity,
};
use crate::bypass::Bypass;
use crate::client::ClientId;
use crate::maintenance::Maintenance;
use crate::wedge::ReplacedProcess;
use crate::{DaemonName, GpuUuid, LayoutName, TenantName};

impl NewEvent {
    /// Returns the subject of the event, with the daemon's only GPU where the event itself names none.
    pub fn subject(&self) -> EventSubject {
        let subject = self.event.subject();
        EventSubject { gpu: subject.gpu.or_else(|| self.gpu.clone()), ..subject }
    }
}

impl DomainEvent {
    /// Returns the severity of the event: that of the incident's kind for an incident that opened, otherwise that of its type.
    pub fn severity(&self) -> Severity {
        match self {
            Self::IncidentOpened(incident) => incident.kind.severity(),
            _ => self.kind().severity(),
        }
    }
}

/// Returns the subject of an event about a daemon.
pub(super) fn of(daemon: &DaemonName) -> EventSubject {
    EventSubject::daemon(daemon)
}

/// Returns the subject of an event about a tenant, and its daemon where the event names one.
pub(super) fn of_tenant(tenant: &TenantName, daemon: Option<&DaemonName>) -> EventSubject {
    EventSubject { daemon: daemon.cloned(), ..EventSubject::default() }.tenant(Some(tenant))
}

pub(super) fn of_maintenance(maintenance: &Maintenance) -> EventSubject {
    EventSubject::default().operation(Some(maintenance.operation)).gpu(only(&maintenance.gpus))
}

impl EventSubject {
    pub(super) fn server(self, pid: u32) -> Self {
        Self { server: Some(pid), ..self }
    }

    pub(super) fn client(self, client: Option<ClientId>) -> Self {
        Self { client, ..self }
    }

    pub(super) fn gpu(self, gpu: Option<&GpuUuid>) -> Self {
        Self { gpu: gpu.cloned(), ..self }
    }

    pub(super) fn tenant(self, tenant: Option<&TenantName>) -> Self {
        Self { tenant: tenant.cloned(), ..self }
    }

    pub(super) fn layout(self, layout: Option<&LayoutName>) -> Self {
        Self { layout: layout.cloned(), ..self }
    }

    pub(super) fn operation(self, operation: Option<Uuid>) -> Self {
        Self { operation, ..self }
    }
}

impl OtherSubjects {
    /// Returns these GPUs, unless there is one alone, which is the subject's.
    pub(super) fn gpus(gpus: &[GpuUuid]) -> Self {
        Self { gpus: several(gpus), ..Self::default() }
    }
}

/// Returns the GPU that the first of these processes uses.
pub(super) fn first_gpu(processes: &[Bypass]) -> Option<&GpuUuid> {
    processes.first().map(|bypass| &bypass.gpu)
}

/// Returns the details of an object that is new or gone.
pub(super) fn new() -> Details {
    Details::Changed { fields: Vec::new() }
}

pub(super) fn replaced(process: &ReplacedProcess, clients: &[AffectedClient]) -> Details {
    Details::Death { pid: process.pid, clients: clients.to_vec(), waiting: process.waiting.clone() }
}

/// Returns the last event of this type as the cause.
pub(super) fn after(kind: EventType) -> EventTrigger {
    EventTrigger::Latest(kind)
}

pub(super) fn outsider(command: Option<&String>) -> EventCause {
    EventCause::Outsider { command: command.cloned() }
}

/// Returns the start of the operation that did it, or the manager.
pub(super) fn by_operation(operation: Option<Uuid>) -> EventTrigger {
    operation.map_or_else(|| EventCause::Manager.into(), |_| after(EventType::OperationStarted))
}

impl DaemonDeath {
    pub(super) fn cause(self) -> EventTrigger {
        match self {
            Self::Killed => after(EventType::DaemonReplaced),
            Self::ForeignSession | Self::ForeignQuit => outsider(None).into(),
            Self::Unexplained => EventCause::Mps.into(),
        }
    }
}

impl LostWork {
    pub(super) fn details(&self, pid: u32) -> Details {
        Details::Death { pid, clients: self.clients.clone(), waiting: Vec::new() }
    }
}

impl DaemonBlocker {
    pub(super) fn details(&self) -> Details {
        Details::Reason { reason: self.reason.to_string() }
    }
}

impl MemoryBreach {
    pub(super) fn subject(&self) -> EventSubject {
        of(&self.daemon).client(Some(self.client)).tenant(self.tenant.as_ref()).gpu(Some(&self.gpu))
    }

    pub(super) fn details(&self) -> Details {
        Details::Memory { pid: self.client.pid, used_bytes: self.used, limit_bytes: self.limit }
    }
}

/// Returns the only one of these, if there is one alone.
pub(super) fn only<T>(all: &[T]) -> Option<&T> {
    match all {
        [one] => Some(one),
        _ => None,
    }
}

/// Returns all elements of a slice, or none if there is only one.
fn several<T: Clone>(all: &[T]) -> Vec<T> {
    if all.len() == 1 { Vec::new() } else { all.to_vec() }
}

pub(super) fn process(pid: u32, uid: Option<u32>) -> Details {
    Details::Process { pid, uid }
}

pub(super) fn layout_details(version: Option<u32>) -> Details {
    Details::Layout { version, drift: Vec::new(), degraded: Vec::new() }
}

pub(super) fn manager(pid: u32, predecessor: Predecessor) -> Details {
    Details::Manager { version: env!("CARGO_PKG_VERSION").to_owned(), pid, predecessor }
}

impl ObservedClient {
    pub(super) fn subject(&self) -> EventSubject {
        of(&self.daemon).server(self.server).client(self.client).tenant(self.tenant.as_ref())
    }

    pub(super) fn details(&self) -> Details {
        Details::Client {
            pid: self.pid,
            uid: self.uid,
            program: self.program.clone(),
            attributed_by: self.attributed_by,
            known_from: if self.client.is_some() { KnownFrom::Poll } else { KnownFrom::ServerLog },
            logged_at: self.logged_at,
        }
    }
}

impl ServerFault {
    pub(super) fn details(&self) -> Details {
        Details::Fault {
            report: self.report.clone(),
            affected: self.affected.clone(),
            clients: self.clients.clone(),
            known_from: self.known_from,
            logged_at: self.logged_at,
        }
    }
}

impl ClientRefusal {
    pub(super) fn details(&self) -> Details {
        Details::Refused { reason: self.reason.clone(), pid: self.pid, logged_at: self.logged_at }
    }
}

impl IncidentNotice {
    pub(super) fn subject(&self) -> EventSubject {
        of(&self.daemon).gpu(only(&self.gpus))
    }

    pub(super) fn details(&self) -> Details {
        Details::Incident { incident: self.incident, incident_kind: self.kind, tenants: self.tenants.clone() }
    }
}

impl GrantedLease {
    pub(super) fn details(&self) -> Details {
        Details::Lease {
            pid: self.holder.pid,
            start_time: self.holder.start_time,
            lease: self.kind,
            program: self.program.clone(),
        }
    }
}

impl DaemonLayout {
    pub(super) fn subject(&self) -> EventSubject {
        of(&self.daemon).layout(self.layout.as_ref())
    }

    pub(super) fn details(&self) -> Details {
        Details::Layout { version: self.version, drift: self.drift.clone(), degraded: self.degraded.clone() }
    }
}

impl OperationFacts {
    pub(super) fn subject(&self) -> EventSubject {
        let subject = EventSubject { daemon: only(&self.daemons).cloned(), ..EventSubject::default() };
        let subject = subject.gpu(only(&self.gpus)).client(self.client).operation(Some(self.id));
        subject.tenant(self.tenant.as_ref()).layout(self.layout.as_ref())
    }

    pub(super) fn also(&self) -> OtherSubjects {
        OtherSubjects { daemons: several(&self.daemons), gpus: several(&self.gpus) }
    }

    pub(super) fn details(&self, error: Option<&String>) -> Details {
        Details::Operation {
            operation: self.kind.to_owned(),
            daemons: self.daemons.clone(),
            gpus: self.gpus.clone(),
            error: error.cloned(),
        }
    }
}

impl TokenFacts {
    pub(super) fn subject(&self) -> EventSubject {
        EventSubject::default().tenant(self.grant.tenant())
    }

    pub(super) fn details(&self) -> Details {
        Details::Token { id: self.id.to_string(), name: self.name.to_string() }
    }
}

impl SessionOwner {
    pub(super) fn subject(&self) -> EventSubject {
        match self {
            Self::Token(token) => token.subject(),
            Self::AdminToken | Self::DeletedToken(_) | Self::User(_) => EventSubject::default(),
        }
    }

    pub(super) fn details(&self) -> Option<Details> {
        match self {
            Self::AdminToken => Some(Details::Token { id: "admin".to_owned(), name: "admin".to_owned() }),
            Self::Token(token) => Some(token.details()),
            Self::DeletedToken(_) | Self::User(_) => None,
        }
    }
}

impl LostEvents {
    pub(super) fn subject(&self) -> EventSubject {
        match self {
            Self::LinesMissed { daemon } => of(daemon),
            Self::NotWritten { .. } | Self::Restored { .. } | Self::Pruned { .. } => EventSubject::default(),
        }
    }

    pub(super) fn details(&self) -> Details {
        let (count, from, until, whole_from) = match *self {
            Self::NotWritten { count, from, until } => (Some(count), Some(from), Some(until), None),
            Self::LinesMissed { .. } => (None, None, None, None),
            Self::Restored { kept, given } => (u64::try_from(given - kept).ok(), None, None, Some(given + 1)),
            Self::Pruned { from, whole_from } => {
                (u64::try_from(whole_from - from).ok(), None, None, Some(whole_from))
            }
        };
        Details::Lost { count, from, until, whole_from }
    }
}
