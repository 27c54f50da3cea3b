//! What is stored of an event beside its message: type, severity, subject, details, and the usual cause.

use super::domain_event::{
    ChangedTenant, ClientRefusal, ComputeModeChange, DaemonDeath, DaemonLayout, DomainEvent, GrantedLease,
    IncidentNotice, LostEvents, NewEvent, NotReadyReason, ObservedClient, OperationFacts, ServerFault,
    SessionOwner, TokenFacts,
};
use super::{
    Details, EventCause, EventSubject, EventTrigger, EventType, KnownFrom, OtherSubjects, Predecessor,
    Severity,
};

/// The type of a variant, which has its name.
macro_rules! same_name {
    ($event:ident, $($variant:ident)*) => {
        match $event {
            $(Self::$variant { .. } => EventType::$variant,)*
        }
    };
}

impl NewEvent {
    /// To what it happened.
    pub fn subject(&self) -> EventSubject {
        let subject = self.event.subject();
        EventSubject { gpu: subject.gpu.or_else(|| self.gpu.clone()), ..subject }
    }
}

impl DomainEvent {
    /// The type.
    pub fn kind(&self) -> EventType {
        same_name! { self,
            DaemonCreated DaemonChanged DaemonDeleted DaemonAdopted DaemonReleased DaemonStarted DaemonFound
            DaemonReady DaemonObserved DaemonDied DaemonBackOff DaemonCrashLoop DaemonWithoutServer DaemonUnreadable
            DaemonWedged DaemonBlocked DaemonStopped DaemonReplaced SettingsApplied SettingsDrifted
            SettingsRepaired ServerStarted ServerExited ServerDied ServerFault ServerReplaced
            ServerRecovered ClientConnected ClientLeft ClientTerminated ClientWaiting ClientRefused ClientInReset
            BypassAppeared BypassChanged BypassEnded ExposureDetected ExposureEnded ForeignUserAppeared ForeignUserEnded ForeignDaemonAppeared ForeignDaemonEnded BreachDetected
            BreachEnded IncidentOpened IncidentRecovered IncidentAcknowledged TenantCreated TenantChanged
            TenantDeleted TenantVerified TenantVerificationFailed LeaseGranted LeaseRevoked
            LayoutVersionWritten LayoutDeleted LayoutApplied LayoutDegraded LayoutFailed LayoutDrifted
            LayoutRepaired OperationRequested OperationStarted OperationStep OperationCancelRequested
            OperationFinished OperationFailed OperationCancelled GpuMissing GpuBack GpuReplaced
            ComputeModeChanged ComputeModeRepaired MaintenanceBegun MaintenanceActive MaintenanceEnded HostConfirmed
            ManagerStarted ManagerStopped DatabaseBackedUp DatabaseRestored DatabaseRowsLost TokenCreated
            TokenRevoked SessionOpened SessionEnded EventsLost
        }
    }

    /// How much it matters.
    pub fn severity(&self) -> Severity {
        match self {
            Self::IncidentOpened(incident) => incident.kind.severity(),
            _ => self.kind().severity(),
        }
    }

    /// To what it happened.
    pub fn subject(&self) -> EventSubject {
        self.about().0
    }

    /// What it is about beside its subject, which names one of each: it is found by these too.
    pub fn also(&self) -> OtherSubjects {
        self.about().1
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each type")]
    fn about(&self) -> (EventSubject, OtherSubjects) {
        let mut also = OtherSubjects::default();
        let subject = match self {
            Self::DaemonCreated { daemon }
            | Self::DaemonAdopted { daemon }
            | Self::DaemonReleased { daemon }
            | Self::DaemonStarted { daemon, .. }
            | Self::DaemonFound { daemon, .. }
            | Self::DaemonReady { daemon }
            | Self::DaemonObserved { daemon }
            | Self::DaemonDied { daemon, .. }
            | Self::DaemonBackOff(NotReadyReason { daemon, .. })
            | Self::DaemonCrashLoop(NotReadyReason { daemon, .. })
            | Self::DaemonWithoutServer(NotReadyReason { daemon, .. })
            | Self::DaemonUnreadable(NotReadyReason { daemon, .. })
            | Self::DaemonWedged(NotReadyReason { daemon, .. })
            | Self::DaemonBlocked(NotReadyReason { daemon, .. })
            | Self::DaemonStopped { daemon, .. }
            | Self::DaemonReplaced { daemon, .. }
            | Self::SettingsApplied { daemon, .. }
            | Self::SettingsDrifted { daemon, .. }
            | Self::SettingsRepaired { daemon }
            | Self::BypassEnded { daemon }
            | Self::ExposureDetected { daemon, .. }
            | Self::ExposureEnded { daemon }
            | Self::ForeignUserAppeared { daemon, .. }
            | Self::ForeignUserEnded { daemon }
            | Self::ForeignDaemonAppeared { daemon, .. }
            | Self::ForeignDaemonEnded { daemon }
            | Self::EventsLost(LostEvents::LinesMissed { daemon }) => EventSubject::daemon(daemon),
            Self::DaemonChanged { daemon, gpus, operation, .. }
            | Self::DaemonDeleted { daemon, gpus, operation } => {
                also.gpus = several(gpus);
                EventSubject { operation: *operation, gpu: only(gpus), ..EventSubject::daemon(daemon) }
            }
            Self::ServerReplaced { daemon, process, .. } => {
                EventSubject { server: Some(process.pid), ..EventSubject::daemon(daemon) }
            }
            Self::ServerStarted { daemon, pid: server, .. }
            | Self::ServerExited { daemon, pid: server }
            | Self::ServerDied { daemon, pid: server, .. }
            | Self::ServerFault(ServerFault { daemon, server, .. })
            | Self::ServerRecovered { daemon, pid: server }
            | Self::ClientInReset { daemon, server, .. }
            | Self::ClientWaiting { daemon, server, .. } => {
                EventSubject { server: Some(*server), ..EventSubject::daemon(daemon) }
            }
            Self::ClientConnected(client) | Self::ClientLeft(client) => EventSubject {
                client: client.client,
                server: Some(client.server),
                tenant: client.tenant.clone(),
                ..EventSubject::daemon(&client.daemon)
            },
            Self::ClientRefused(refusal) => EventSubject {
                server: Some(refusal.server),
                tenant: refusal.tenant.clone(),
                ..EventSubject::daemon(&refusal.daemon)
            },
            Self::BreachDetected(breach) | Self::BreachEnded(breach) => EventSubject {
                client: Some(breach.client),
                tenant: breach.tenant.clone(),
                gpu: Some(breach.gpu.clone()),
                ..EventSubject::daemon(&breach.daemon)
            },
            Self::IncidentOpened(incident)
            | Self::IncidentRecovered(incident)
            | Self::IncidentAcknowledged(incident) => {
                also.gpus = several(&incident.gpus);
                EventSubject { gpu: only(&incident.gpus), ..EventSubject::daemon(&incident.daemon) }
            }
            Self::ClientTerminated { daemon, server, client, .. } => {
                EventSubject { client: Some(*client), server: Some(*server), ..EventSubject::daemon(daemon) }
            }
            Self::BypassAppeared { daemon, processes, .. }
            | Self::BypassChanged { daemon, present: processes } => {
                let gpu = processes.first().map(|bypass| bypass.gpu.clone());
                EventSubject { gpu, ..EventSubject::daemon(daemon) }
            }
            Self::TenantCreated { tenant, daemon } | Self::TenantDeleted { tenant, daemon, .. } => {
                EventSubject {
                    tenant: Some(tenant.clone()),
                    daemon: daemon.clone(),
                    ..EventSubject::default()
                }
            }
            Self::TenantChanged(ChangedTenant { tenant, daemon, gpu, .. }) => EventSubject {
                tenant: Some(tenant.clone()),
                daemon: daemon.clone(),
                gpu: gpu.clone(),
                ..EventSubject::default()
            },
            Self::TenantVerified { tenant, daemon }
            | Self::TenantVerificationFailed { tenant, daemon, .. } => {
                EventSubject { tenant: Some(tenant.clone()), ..EventSubject::daemon(daemon) }
            }
            Self::LeaseGranted(lease) | Self::LeaseRevoked(lease) => EventSubject {
                tenant: Some(lease.tenant.clone()),
                client: Some(lease.holder),
                ..EventSubject::default()
            },
            Self::LayoutVersionWritten { layout, .. } | Self::LayoutDeleted { layout, .. } => {
                EventSubject { layout: Some(layout.clone()), ..EventSubject::default() }
            }
            Self::LayoutApplied(layout)
            | Self::LayoutDegraded(layout)
            | Self::LayoutRepaired(layout)
            | Self::LayoutFailed { layout, .. }
            | Self::LayoutDrifted { layout, .. } => {
                EventSubject { layout: layout.layout.clone(), ..EventSubject::daemon(&layout.daemon) }
            }
            Self::OperationRequested(operation)
            | Self::OperationStarted(operation)
            | Self::OperationCancelRequested(operation)
            | Self::OperationFinished(operation)
            | Self::OperationCancelled(operation)
            | Self::OperationFailed { operation, .. }
            | Self::OperationStep { operation, .. } => {
                also = OtherSubjects { daemons: several(&operation.daemons), gpus: several(&operation.gpus) };
                EventSubject {
                    daemon: only(&operation.daemons),
                    gpu: only(&operation.gpus),
                    client: operation.client,
                    tenant: operation.tenant.clone(),
                    layout: operation.layout.clone(),
                    operation: Some(operation.id),
                    ..EventSubject::default()
                }
            }
            Self::GpuMissing { gpu, daemon, .. }
            | Self::GpuBack { gpu, daemon }
            | Self::GpuReplaced { old: gpu, daemon, .. }
            | Self::ComputeModeRepaired { gpu, daemon, .. }
            | Self::ComputeModeChanged(ComputeModeChange { gpu, daemon, .. }) => {
                EventSubject { gpu: Some(gpu.clone()), ..EventSubject::daemon(daemon) }
            }
            Self::MaintenanceBegun(maintenance)
            | Self::MaintenanceActive(maintenance)
            | Self::MaintenanceEnded(maintenance) => EventSubject {
                operation: Some(maintenance.operation),
                gpu: only(&maintenance.gpus),
                ..EventSubject::default()
            },
            Self::TokenCreated(token)
            | Self::TokenRevoked(token)
            | Self::SessionOpened(SessionOwner::Token(token))
            | Self::SessionEnded(SessionOwner::Token(token)) => {
                EventSubject { tenant: token.grant.tenant().cloned(), ..EventSubject::default() }
            }
            Self::SessionOpened(_)
            | Self::SessionEnded(_)
            | Self::HostConfirmed(_)
            | Self::ManagerStarted { .. }
            | Self::ManagerStopped { .. }
            | Self::DatabaseBackedUp { .. }
            | Self::DatabaseRestored { .. }
            | Self::DatabaseRowsLost(_)
            | Self::EventsLost(_) => EventSubject::default(),
        };
        (subject, also)
    }

    /// The first of the processes that a daemon should not have beside it.
    fn first_intruder(&self) -> Option<Details> {
        let (pid, uid) = match self {
            Self::BypassAppeared { processes, .. } | Self::BypassChanged { present: processes, .. } => {
                processes.first().map(|one| (one.pid, one.uid))?
            }
            Self::ExposureDetected { present, .. } => {
                present.first().map(|one| (one.process.pid, one.uid))?
            }
            Self::ForeignUserAppeared { present, .. } => {
                present.first().map(|one| (one.process.pid, Some(one.uid)))?
            }
            Self::ForeignDaemonAppeared { present, .. } => {
                present.first().map(|one| (one.process.pid, one.uid))?
            }
            _ => return None,
        };
        Some(Details::Process { pid, uid })
    }

    /// What else is reported.
    pub fn details(&self) -> Option<Details> {
        Some(match self {
            Self::DaemonCreated { .. }
            | Self::DaemonAdopted { .. }
            | Self::DaemonReleased { .. }
            | Self::DaemonDeleted { operation: None, .. }
            | Self::TenantCreated { .. }
            | Self::TenantDeleted { .. } => Details::Changed { fields: Vec::new() },
            Self::DaemonChanged { fields, .. } | Self::TenantChanged(ChangedTenant { fields, .. }) => {
                Details::Changed { fields: fields.clone() }
            }
            Self::DaemonStarted { pid, .. }
            | Self::DaemonStopped { pid, .. }
            | Self::ClientInReset { pid, .. }
            | Self::ServerExited { pid, .. } => process(*pid, None),
            Self::DaemonFound { pid, uid, .. } | Self::ServerStarted { pid, uid, .. } => process(*pid, *uid),
            Self::BypassAppeared { .. }
            | Self::BypassChanged { .. }
            | Self::ExposureDetected { .. }
            | Self::ForeignUserAppeared { .. }
            | Self::ForeignDaemonAppeared { .. } => self.first_intruder()?,
            Self::DaemonDied { pid, lost, .. } | Self::ServerDied { pid, lost, .. } => {
                Details::Death { pid: *pid, clients: lost.clients.clone(), waiting: Vec::new() }
            }
            Self::DaemonReplaced { process, clients, .. } | Self::ServerReplaced { process, clients, .. } => {
                Details::Death {
                    pid: process.pid,
                    clients: clients.clone(),
                    waiting: process.waiting.clone(),
                }
            }
            Self::DaemonBackOff(why)
            | Self::DaemonCrashLoop(why)
            | Self::DaemonWithoutServer(why)
            | Self::DaemonUnreadable(why)
            | Self::DaemonWedged(why)
            | Self::DaemonBlocked(why) => Details::Reason { reason: why.reason.to_string() },
            Self::SettingsApplied { generation, .. } => Details::Generation { generation: *generation },
            Self::SettingsDrifted { drifted, .. } => Details::Settings { drifted: drifted.clone() },
            Self::ServerFault(fault) => fault.details(),
            Self::ClientConnected(client) | Self::ClientLeft(client) => client.details(),
            Self::ClientWaiting { pid, uid, behind_uid, .. } => {
                Details::Waiting { pid: *pid, uid: *uid, behind_uid: *behind_uid }
            }
            Self::ClientRefused(refusal) => refusal.details(),
            Self::BreachDetected(breach) | Self::BreachEnded(breach) => {
                Details::Memory { pid: breach.client.pid, used_bytes: breach.used, limit_bytes: breach.limit }
            }
            Self::IncidentOpened(notice)
            | Self::IncidentRecovered(notice)
            | Self::IncidentAcknowledged(notice) => notice.details(),
            Self::LeaseGranted(lease) | Self::LeaseRevoked(lease) => lease.details(),
            Self::LayoutVersionWritten { version, .. } => layout_details(Some(*version)),
            Self::LayoutDeleted { version, .. } => layout_details(*version),
            Self::LayoutApplied(layout)
            | Self::LayoutDegraded(layout)
            | Self::LayoutRepaired(layout)
            | Self::LayoutFailed { layout, .. }
            | Self::LayoutDrifted { layout, .. } => layout.details(),
            Self::OperationRequested(operation)
            | Self::OperationStarted(operation)
            | Self::OperationCancelRequested(operation)
            | Self::OperationFinished(operation)
            | Self::OperationCancelled(operation) => operation.details(None),
            Self::OperationFailed { operation, error, .. } => operation.details(Some(error)),
            Self::OperationStep { step, outcome, .. } => {
                Details::Step { step: step.clone(), outcome: outcome.clone() }
            }
            Self::ComputeModeChanged(change) => {
                Details::ComputeMode { previous: change.previous, desired: change.desired }
            }
            Self::ManagerStarted { pid, predecessor } => manager(*pid, *predecessor),
            Self::ManagerStopped { pid } => manager(*pid, Predecessor::Stopped),
            Self::TokenCreated(token) | Self::TokenRevoked(token) => token.details(),
            Self::SessionOpened(owner) | Self::SessionEnded(owner) => return owner.details(),
            Self::EventsLost(lost) => lost.details(),
            Self::DaemonDeleted { operation: Some(_), .. }
            | Self::DaemonReady { .. }
            | Self::DaemonObserved { .. }
            | Self::SettingsRepaired { .. }
            | Self::ServerRecovered { .. }
            | Self::ClientTerminated { .. }
            | Self::BypassEnded { .. }
            | Self::ExposureEnded { .. }
            | Self::ForeignUserEnded { .. }
            | Self::ForeignDaemonEnded { .. }
            | Self::ComputeModeRepaired { .. }
            | Self::TenantVerified { .. }
            | Self::TenantVerificationFailed { .. }
            | Self::GpuMissing { .. }
            | Self::GpuBack { .. }
            | Self::GpuReplaced { .. }
            | Self::MaintenanceBegun(_)
            | Self::MaintenanceActive(_)
            | Self::MaintenanceEnded(_)
            | Self::HostConfirmed(_)
            | Self::DatabaseBackedUp { .. }
            | Self::DatabaseRestored { .. }
            | Self::DatabaseRowsLost(_) => return None,
        })
    }

    /// What makes it happen, where nothing else is known.
    pub(super) fn usual_cause(&self) -> EventTrigger {
        let outsider = |command: &Option<String>| EventCause::Outsider { command: command.clone() }.into();
        match self {
            Self::DaemonDied { why: DaemonDeath::Killed, .. } => {
                EventTrigger::Latest(EventType::DaemonReplaced)
            }
            Self::DaemonDied { why: DaemonDeath::ForeignSession | DaemonDeath::ForeignQuit, .. }
            | Self::BypassAppeared { .. }
            | Self::BypassChanged { .. }
            | Self::ExposureDetected { .. }
            | Self::ForeignUserAppeared { .. }
            | Self::ForeignDaemonAppeared { .. }
            | Self::ComputeModeRepaired { .. } => outsider(&None),
            Self::SettingsDrifted { command, .. } | Self::LayoutDrifted { command, .. } => outsider(command),
            Self::SettingsRepaired { .. } => EventTrigger::Latest(EventType::SettingsDrifted),
            Self::LayoutRepaired(_) => EventTrigger::Latest(EventType::LayoutDrifted),
            Self::DaemonReplaced { .. } | Self::ServerReplaced { .. } => {
                EventTrigger::Latest(EventType::DaemonWedged)
            }
            Self::DaemonDied { why: DaemonDeath::Unexplained, .. }
            | Self::ServerStarted { .. }
            | Self::ServerExited { .. }
            | Self::ServerDied { .. }
            | Self::ServerFault(_)
            | Self::ServerRecovered { .. }
            | Self::ClientWaiting { .. }
            | Self::ClientInReset { .. }
            | Self::ClientRefused { .. } => EventCause::Mps.into(),
            Self::ClientConnected(_)
            | Self::ClientLeft(_)
            | Self::BreachDetected(_)
            | Self::BreachEnded(_) => EventCause::Client.into(),
            Self::GpuMissing { .. } | Self::GpuBack { .. } => EventCause::Host.into(),
            Self::OperationStarted(_) => EventTrigger::Latest(EventType::OperationRequested),
            Self::OperationCancelled(_) => EventTrigger::Latest(EventType::OperationCancelRequested),
            Self::OperationStep { .. }
            | Self::OperationFinished(_)
            | Self::OperationFailed { .. }
            | Self::DaemonChanged { operation: Some(_), .. }
            | Self::DaemonDeleted { operation: Some(_), .. }
            | Self::MaintenanceBegun(_)
            | Self::MaintenanceActive(_)
            | Self::MaintenanceEnded(_)
            | Self::ClientTerminated { .. } => EventTrigger::Latest(EventType::OperationStarted),
            _ => EventCause::Manager.into(),
        }
    }
}

/// The one of these, if there is one alone.
fn only<T: Clone>(all: &[T]) -> Option<T> {
    match all {
        [one] => Some(one.clone()),
        _ => None,
    }
}

/// These, unless there is one alone.
fn several<T: Clone>(all: &[T]) -> Vec<T> {
    if all.len() == 1 { Vec::new() } else { all.to_vec() }
}

fn process(pid: u32, uid: Option<u32>) -> Details {
    Details::Process { pid, uid }
}

fn layout_details(version: Option<u32>) -> Details {
    Details::Layout { version, drift: Vec::new(), degraded: Vec::new() }
}

fn manager(pid: u32, predecessor: Predecessor) -> Details {
    Details::Manager { version: env!("CARGO_PKG_VERSION").to_owned(), pid, predecessor }
}

impl ObservedClient {
    fn details(&self) -> Details {
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
    fn details(&self) -> Details {
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
    fn details(&self) -> Details {
        Details::Refused { reason: self.reason.clone(), pid: self.pid, logged_at: self.logged_at }
    }
}

impl IncidentNotice {
    fn details(&self) -> Details {
        Details::Incident { incident: self.incident, incident_kind: self.kind, tenants: self.tenants.clone() }
    }
}

impl GrantedLease {
    fn details(&self) -> Details {
        Details::Lease {
            pid: self.holder.pid,
            start_time: self.holder.start_time,
            lease: self.kind,
            program: self.program.clone(),
        }
    }
}

impl DaemonLayout {
    fn details(&self) -> Details {
        Details::Layout { version: self.version, drift: self.drift.clone(), degraded: self.degraded.clone() }
    }
}

impl OperationFacts {
    fn details(&self, error: Option<&String>) -> Details {
        Details::Operation {
            operation: self.kind.to_owned(),
            daemons: self.daemons.clone(),
            gpus: self.gpus.clone(),
            error: error.cloned(),
        }
    }
}

impl TokenFacts {
    fn details(&self) -> Details {
        Details::Token { id: self.id.to_string(), name: self.name.to_string() }
    }
}

impl SessionOwner {
    fn details(&self) -> Option<Details> {
        match self {
            Self::AdminToken => Some(Details::Token { id: "admin".to_owned(), name: "admin".to_owned() }),
            Self::Token(token) => Some(token.details()),
            Self::DeletedToken(_) | Self::User(_) => None,
        }
    }
}

impl LostEvents {
    fn details(&self) -> Details {
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
