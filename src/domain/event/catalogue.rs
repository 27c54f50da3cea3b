//! The catalogue of events: one row for each type, and everything that depends on the type alone.
//!
//! A row gives the payload, the stable name, the severity and the meaning, and then, where it is not the default:
//! `tenants` – what users bound to a tenant see of an event about it (default: the meaning of its type);
//! `incidents` – the daemon whose incidents it may concern (default: none);
//! `about` – its subject (default: the host); `also` – what else it is found by;
//! `details` – what is reported beside the subject (default: nothing);
//! `by` – what makes it happen, where nothing else is known (default: the manager);
//! `says` – its message.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::derived::{
    after, by_operation, first_gpu, layout_details, manager, new, of, of_maintenance, of_tenant, only,
    outsider, process, replaced,
};
use super::domain_event::{
    AuditDamage, ChangedTenant, ClientRefusal, ComputeModeChange, DaemonBlocker, DaemonDeath, DaemonLayout,
    GrantedLease, HostConfirmation, IncidentNotice, LostEvents, LostWork, MemoryBreach, ObservedClient,
    OperationFacts, ServerFault, SessionOwner, TokenFacts, VerificationFailure,
};
use super::message::{ended, joined, who_bypasses};
use super::{
    AffectedClient, Details, EventCause, EventSubject, EventTrigger, EventVisibility, OtherSubjects,
    Predecessor, Severity,
};
use crate::bypass::{Bypass, describe_bypasses};
use crate::client::ClientId;
use crate::drift::Drifted;
use crate::exposure::{SocketExposure, describe_exposures};
use crate::foreign_owner::{SharingDaemon, describe_sharing};
use crate::foreign_user::{ForeignUser, describe_foreign_users};
use crate::gpu::ComputeMode;
use crate::maintenance::Maintenance;
use crate::wedge::ReplacedProcess;
use crate::{DaemonName, GpuUuid, LayoutName, TenantName};

/// The value of a row, or the default where the row has none.
macro_rules! or {
    ($default:expr, $value:expr) => {
        $value
    };
    ($default:expr,) => {
        $default
    };
}

macro_rules! events {
    ($(
        $variant:ident $({ $($field:ident: $type:ty),+ })? $(($facts:ident: $payload:ty))?
            = $name:literal, $severity:ident, $meaning:literal
            $(, tenants $visibility:ident)?
            $(, incidents $daemon:expr)?
            $(, about $about:expr)?
            $(, also $also:expr)?
            $(, details $details:expr)?
            $(, by $cause:expr)?
            , says ($($words:tt)+);
    )+) => {
        /// Something that happened: one variant per type, of the same name.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(missing_docs, reason = "`EventType` documents the types, and `EventSubject` and `Details` the fields")]
        pub enum DomainEvent {
            $($variant $({ $($field: $type),+ })? $(($payload))?,)+
        }

        /// The type of an event.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum EventType {
            $(
                #[doc = $meaning]
                #[serde(rename = $name)]
                $variant,
            )+
            /// An event that this version cannot read, as one that a later version wrote; its message begins with the type that it has.
            #[serde(rename = "event.unknown")]
            EventUnknown,
        }

        impl EventType {
            /// All types, in the order of the catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+ Self::EventUnknown];

            fn row(self) -> (&'static str, Severity, &'static str, EventVisibility) {
                match self {
                    $(Self::$variant => (
                        $name,
                        Severity::$severity,
                        $meaning,
                        or!(EventVisibility::TypeOnly, $(EventVisibility::$visibility)?),
                    ),)+
                    Self::EventUnknown => (
                        "event.unknown",
                        Severity::Info,
                        "An event that this version cannot read, as one that a later version wrote; its message begins with the type that it has.",
                        EventVisibility::TypeOnly,
                    ),
                }
            }
        }

        #[allow(unused_variables, clippy::too_many_lines, reason = "one arm for each type, which binds all of its fields")]
        impl DomainEvent {
            /// Returns the type.
            pub fn kind(&self) -> EventType {
                match self {
                    $(Self::$variant { .. } => EventType::$variant,)+
                }
            }

            /// Returns its subject.
            pub fn subject(&self) -> EventSubject {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => or!(EventSubject::default(), $($about)?),)+
                }
            }

            /// Returns the daemons and GPUs that it is found by beside its subject, which names one of each.
            pub fn also(&self) -> OtherSubjects {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => or!(OtherSubjects::default(), $($also)?),)+
                }
            }

            /// Returns the details reported beside the subject.
            pub fn details(&self) -> Option<Details> {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => or!(None, $($details.into())?),)+
                }
            }

            /// Returns its cause where nothing else is known.
            pub(super) fn usual_cause(&self) -> EventTrigger {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => or!(EventCause::Manager, $($cause)?).into(),)+
                }
            }

            /// Returns the daemon whose incidents it may concern; `None` for all other events.
            pub fn concerned_daemon(&self) -> Option<&DaemonName> {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => or!(None, $($daemon.into())?),)+
                }
            }

            /// Returns the event in one sentence.
            pub fn message(&self) -> String {
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($facts))? => format!($($words)+),)+
                }
            }
        }
    };
}

events! {
    DaemonCreated { daemon: DaemonName } = "daemon.created", Info, "A daemon was created.",
        about of(daemon), details new(), says ("daemon {daemon} was created");
    DaemonChanged { daemon: DaemonName, gpus: Vec<GpuUuid>, fields: Vec<String>, operation: Option<Uuid> }
        = "daemon.changed", Info, "The spec of a daemon was changed.",
        incidents daemon, about of(daemon).gpu(only(gpus)).operation(*operation), also OtherSubjects::gpus(gpus),
        details Details::Changed { fields: fields.clone() }, by by_operation(*operation), says ("daemon {daemon} was changed");
    DaemonDeleted { daemon: DaemonName, gpus: Vec<GpuUuid>, operation: Option<Uuid> }
        = "daemon.deleted", Info, "A daemon was deleted.",
        incidents daemon, about of(daemon).gpu(only(gpus)).operation(*operation), also OtherSubjects::gpus(gpus),
        details operation.is_none().then(new), by by_operation(*operation), says ("daemon {daemon} was deleted");
    DaemonStarted { daemon: DaemonName, pid: u32 } = "daemon.started", Info, "The manager started a control process.",
        about of(daemon), details process(*pid, None), says ("the control daemon of {daemon} was started (process {pid})");
    DaemonFound { daemon: DaemonName, pid: u32, uid: Option<u32> }
        = "daemon.found", Info, "A control process that was already running was found and is managed from now on, as after a restart of the manager.",
        about of(daemon), details process(*pid, *uid),
        says ("process {pid} runs as the control daemon of {daemon} and is managed from now on");
    DaemonReady { daemon: DaemonName }
        = "daemon.ready", Info, "The daemon is ready: all settings were read back from a server that accepts clients. Written when it was not ready before, for another reason than a change.",
        incidents daemon, about of(daemon), says ("daemon {daemon} is ready");
    DaemonObserved { daemon: DaemonName } = "daemon.observed", Info, "A daemon that is only observed was read.",
        incidents daemon, about of(daemon), says ("daemon {daemon} is observed");
    DaemonDied { daemon: DaemonName, pid: u32, why: DaemonDeath, lost: LostWork }
        = "daemon.died", Error, "A control process was found dead.",
        incidents daemon, about of(daemon), details lost.details(*pid), by why.cause(),
        says ("the control daemon of {daemon} (process {pid}) died{}{}", why.words(), lost.doubt());
    DaemonBackOff(why: DaemonBlocker)
        = "daemon.back_off", Warning, "A control process died or did not start, and the next start waits.",
        incidents &why.daemon, about of(&why.daemon), details why.details(), says ("{why}");
    DaemonWithoutServer(why: DaemonBlocker)
        = "daemon.without_server", Error, "Each server of a daemon ends before it takes a client.",
        incidents &why.daemon, about of(&why.daemon), details why.details(), says ("{why}");
    DaemonCrashLoop(why: DaemonBlocker)
        = "daemon.crash_loop", Critical, "A control process died or did not start five times within a minute.",
        incidents &why.daemon, about of(&why.daemon), details why.details(), says ("{why}");
    DaemonUnreadable(why: DaemonBlocker)
        = "daemon.unreadable", Warning, "A poll of a daemon failed; the reason is that of its condition Ready.",
        about of(&why.daemon), details why.details(), says ("{why}");
    DaemonWedged(why: DaemonBlocker)
        = "daemon.wedged", Error, "A daemon did not answer a command, and is only polled until it answers.",
        incidents &why.daemon, about of(&why.daemon), details why.details(), says ("{why}");
    DaemonReplaced { daemon: DaemonName, process: ReplacedProcess, clients: Vec<AffectedClient> }
        = "daemon.replaced", Error, "The manager killed a control process that hung on without its server, to start another.",
        incidents daemon, about of(daemon), details replaced(process, clients), by after(EventType::DaemonWedged),
        says ("daemon {daemon}: {process}");
    DaemonBlocked(why: DaemonBlocker)
        = "daemon.blocked", Error, "A daemon is blocked by something that the manager does not touch by itself.",
        about of(&why.daemon), details why.details(), says ("{why}");
    DaemonStopped { daemon: DaemonName, pid: u32 } = "daemon.stopped", Info, "The manager stopped a control process.",
        incidents daemon, about of(daemon), details process(*pid, None),
        says ("the control daemon of {daemon} was stopped (process {pid})");
    DaemonAdopted { daemon: DaemonName }
        = "daemon.adopted", Info, "A control process that was started outside this manager was adopted.",
        about of(daemon), details new(), says ("daemon {daemon} was adopted with its running process");
    DaemonReleased { daemon: DaemonName } = "daemon.released", Info, "A daemon was released, and its process left as it is.",
        incidents daemon, about of(daemon), details new(), says ("daemon {daemon} was released, and its process left running");
    SettingsApplied { daemon: DaemonName, generation: i64 }
        = "settings.applied", Info, "The settings of a changed spec were applied and confirmed.",
        incidents daemon, about of(daemon), details Details::Generation { generation: *generation },
        says ("{daemon}: settings of generation {generation} were applied and confirmed");
    SettingsDrifted { daemon: DaemonName, drifted: Vec<Drifted>, command: Option<String> }
        = "settings.drifted", Warning, "Settings that had been read back were changed by another program.",
        incidents daemon, about of(daemon), details Details::Settings { drifted: drifted.clone() }, by outsider(command.as_ref()),
        says ("another program changed daemon {daemon}: {}", joined(drifted));
    SettingsRepaired { daemon: DaemonName }
        = "settings.repaired", Info, "Settings that another program had changed were restored.",
        incidents daemon, about of(daemon), by after(EventType::SettingsDrifted), says ("the settings of daemon {daemon} were restored");
    ServerStarted { daemon: DaemonName, pid: u32, uid: Option<u32> } = "server.started", Info, "A server was started.",
        incidents daemon, about of(daemon).server(*pid), details process(*pid, *uid), by EventCause::Mps,
        says ("server {pid} of daemon {daemon} was started");
    ServerExited { daemon: DaemonName, pid: u32 } = "server.exited", Info, "A server exited.",
        incidents daemon, about of(daemon).server(*pid), details process(*pid, None), by EventCause::Mps,
        says ("server {pid} of daemon {daemon} exited");
    ServerDied { daemon: DaemonName, pid: u32, lost: LostWork }
        = "server.died", Error, "A server ended while it had clients, whose work is lost, and no restart or stop was requested here.",
        incidents daemon, about of(daemon).server(*pid), details lost.details(*pid), by EventCause::Mps,
        says ("server {pid} of daemon {daemon} ended while it had {}: what they had on the GPU is lost{}", lost.counted(), lost.doubt());
    ServerReplaced { daemon: DaemonName, process: ReplacedProcess, clients: Vec<AffectedClient> }
        = "server.replaced", Error, "The manager killed a server that hung, so that another one accepts clients.",
        incidents daemon, about of(daemon).server(process.pid), details replaced(process, clients), by after(EventType::DaemonWedged),
        says ("daemon {daemon}: {process}");
    ServerFault(fault: ServerFault) = "server.fault", Error, "A server had a fatal GPU error.",
        incidents &fault.daemon, about of(&fault.daemon).server(fault.server), details fault.details(), by EventCause::Mps,
        says ("{fault}");
    ServerRecovered { daemon: DaemonName, pid: u32 }
        = "server.recovered", Info, "A server that had a fatal GPU error accepts clients again.",
        incidents daemon, about of(daemon).server(*pid), by EventCause::Mps,
        says ("server {pid} of daemon {daemon} accepts clients again");
    ClientConnected(client: ObservedClient) = "client.connected", Info, "A client connected.",
        tenants Full, about client.subject(), details client.details(), by EventCause::Client,
        says ("{} connected to {}{}", client.who(), client.daemon, client.source());
    ClientLeft(client: ObservedClient) = "client.left", Info, "A client disconnected.",
        tenants Full, incidents &client.daemon, about client.subject(), details client.details(), by EventCause::Client,
        says ("{} disconnected from {}{}", client.who(), client.daemon, client.source());
    ClientTerminated { daemon: DaemonName, server: u32, client: ClientId, outcome: &'static str }
        = "client.terminated", Warning, "The manager ended a client, as requested.",
        tenants Full, about of(daemon).server(*server).client(Some(*client)), by after(EventType::OperationStarted),
        says ("client {client} of daemon {daemon} was terminated: {outcome}");
    ClientWaiting { daemon: DaemonName, server: u32, pid: u32, uid: u32, behind_uid: u32 }
        = "client.waiting", Warning, "A process waits until the clients of another user are gone.",
        about of(daemon).server(*server), details Details::Waiting { pid: *pid, uid: *uid, behind_uid: *behind_uid }, by EventCause::Mps,
        says ("process {pid} of uid {uid} waits until the clients of uid {behind_uid} are gone");
    ClientInReset { daemon: DaemonName, server: u32, pid: u32 }
        = "client.in_reset", Info, "A server wrote that the worker of a client is in reset, after a fatal GPU error.",
        incidents daemon, about of(daemon).server(*server), details process(*pid, None), by EventCause::Mps,
        says (
            "server {server} of daemon {daemon} wrote that the worker of client {pid} is in reset as it exited, which it has not been seen \
             to write of a client that did not cause the fatal GPU error"
        );
    ClientRefused(refusal: ClientRefusal) = "client.refused", Warning, "A server refused a client.",
        incidents &refusal.daemon, about of(&refusal.daemon).server(refusal.server).tenant(refusal.tenant.as_ref()),
        details refusal.details(), by EventCause::Mps, says ("{refusal}");
    BypassAppeared { daemon: DaemonName, processes: Vec<Bypass>, unnamed: usize, present: Vec<Bypass> }
        = "bypass.appeared", Warning, "Processes use a GPU of a running daemon outside MPS, so no limits apply to them; at most one such event a minute for each daemon.",
        incidents daemon, about of(daemon).gpu(first_gpu(processes)),
        details processes.first().map(|one| process(one.pid, one.uid)), by outsider(None),
        says (
            "{} a GPU of daemon {daemon} outside MPS: {}",
            who_bypasses(processes, *unnamed, present),
            describe_bypasses(processes.iter(), *unnamed)
        );
    BypassChanged { daemon: DaemonName, present: Vec<Bypass> }
        = "bypass.changed", Info, "Some of the processes that used a GPU of the daemon outside MPS have ended, and others have not; at most one event a minute about either.",
        incidents daemon, about of(daemon).gpu(first_gpu(present)),
        details present.first().map(|one| process(one.pid, one.uid)), by outsider(None),
        says (
            "some of the processes that used a GPU of daemon {daemon} outside MPS have ended; {}: {}",
            if present.len() == 1 { "1 is left" } else { "these are left" },
            describe_bypasses(present.iter(), 0)
        );
    BypassEnded { daemon: DaemonName }
        = "bypass.ended", Info, "The processes that used a GPU of the daemon outside MPS have ended.",
        incidents daemon, about of(daemon), says ("the processes that used a GPU of daemon {daemon} outside MPS have ended");
    ExposureDetected { daemon: DaemonName, present: Vec<SocketExposure> }
        = "exposure.detected", Warning, "A container or another mount namespace has a daemon's own directory mounted, through which every limit can be changed.",
        incidents daemon, about of(daemon), details present.first().map(|one| process(one.process.pid, one.uid)), by outsider(None),
        says ("daemon {daemon}'s own directory is mounted in another mount namespace: {}", describe_exposures(present));
    ExposureEnded { daemon: DaemonName }
        = "exposure.ended", Info, "No other mount namespace has the daemon's own directory mounted any longer.",
        incidents daemon, about of(daemon), says ("daemon {daemon}'s own directory is no longer mounted in another mount namespace");
    ForeignDaemonAppeared { daemon: DaemonName, present: Vec<SharingDaemon> }
        = "foreign_daemon.appeared", Warning, "A control daemon that is not this manager's serves a GPU of a daemon.",
        incidents daemon, about of(daemon), details present.first().map(|one| process(one.process.pid, one.uid)), by outsider(None),
        says ("a GPU of daemon {daemon} is also served by another control daemon: {}", describe_sharing(present));
    ForeignDaemonEnded { daemon: DaemonName }
        = "foreign_daemon.ended", Info, "No other control daemon serves the GPUs of the daemon any longer.",
        incidents daemon, about of(daemon), says ("no other control daemon serves the GPUs of daemon {daemon} any longer");
    ForeignUserAppeared { daemon: DaemonName, present: Vec<ForeignUser> }
        = "foreign_user.appeared", Warning, "A process of a user who is no tenant's of the daemon is connected to it, or waits to be.",
        incidents daemon, about of(daemon), details present.first().map(|one| process(one.process.pid, Some(one.uid))), by outsider(None),
        says ("users who are no tenant's are at daemon {daemon}: {}", describe_foreign_users(present));
    ForeignUserEnded { daemon: DaemonName }
        = "foreign_user.ended", Info, "No process of a user who is no tenant's is at the daemon any longer.",
        incidents daemon, about of(daemon), says ("no process of a user who is no tenant's is at daemon {daemon} any longer");
    BreachDetected(breach: MemoryBreach) = "breach.detected", Warning, "A client holds more device memory than its limit allows.",
        tenants Full, incidents &breach.daemon, about breach.subject(), details breach.details(), by EventCause::Client,
        says ("{}", breach.words("holds"));
    BreachEnded(breach: MemoryBreach)
        = "breach.ended", Info, "A client that held more device memory than its limit allows has ended, or holds less.",
        tenants Full, incidents &breach.daemon, about breach.subject(), details breach.details(), by EventCause::Client,
        says ("{}", breach.words("no longer holds"));
    TenantCreated { tenant: TenantName, daemon: Option<DaemonName> } = "tenant.created", Info, "A tenant was created.",
        tenants Full, about of_tenant(tenant, daemon.as_ref()), details new(), says ("tenant {tenant} was created");
    TenantChanged(changed: ChangedTenant) = "tenant.changed", Info, "The spec of a tenant was changed.",
        tenants Full, about of_tenant(&changed.tenant, changed.daemon.as_ref()).gpu(changed.gpu.as_ref()),
        details Details::Changed { fields: changed.fields.clone() }, says ("tenant {} was changed", changed.tenant);
    TenantDeleted { tenant: TenantName, daemon: Option<DaemonName>, expired_at: Option<i64> }
        = "tenant.deleted", Info, "A tenant was deleted.",
        tenants Full, about of_tenant(tenant, daemon.as_ref()), details new(), says ("tenant {tenant} {}", ended(*expired_at));
    TenantVerified { tenant: TenantName, daemon: DaemonName }
        = "tenant.verified", Info, "A CUDA client in a tenant's environment saw what is configured.",
        tenants Full, about of_tenant(tenant, Some(daemon)),
        says ("verification of tenant {tenant}: a CUDA client saw what is configured");
    TenantVerificationFailed { tenant: TenantName, daemon: DaemonName, failure: VerificationFailure }
        = "tenant.verification_failed", Warning, "A CUDA client in a tenant's environment saw something else than configured, or none could run.",
        tenants Full, about of_tenant(tenant, Some(daemon)), says ("{}", failure.of(tenant));
    LeaseGranted(lease: GrantedLease)
        = "lease.granted", Info, "A process took a lease of a tenant, or an operator recorded it as the tenant's.",
        tenants Full, about of_tenant(&lease.tenant, None).client(Some(lease.holder)), details lease.details(), says ("{}", lease.granted());
    LeaseRevoked(lease: GrantedLease) = "lease.revoked", Warning, "A lease was revoked; its process was left as it is.",
        tenants Full, about of_tenant(&lease.tenant, None).client(Some(lease.holder)), details lease.details(),
        says ("the lease of process {} for tenant {} was revoked; the process was left as it is", lease.holder.pid, lease.tenant);
    LayoutVersionWritten { layout: LayoutName, version: u32 } = "layout.version_written", Info, "A version of a layout was created.",
        about EventSubject::default().layout(Some(layout)), details layout_details(Some(*version)),
        says ("layout {layout} has a version {version}");
    LayoutDeleted { layout: LayoutName, version: Option<u32> } = "layout.deleted", Info, "A layout was deleted.",
        about EventSubject::default().layout(Some(layout)), details layout_details(*version), says ("layout {layout} was deleted");
    LayoutApplied(layout: DaemonLayout)
        = "layout.applied", Info, "The partitions of a daemon's layout exist, as was confirmed by reading them back.",
        incidents &layout.daemon, about layout.subject(), details layout.details(), says ("{layout} is applied");
    LayoutDegraded(layout: DaemonLayout)
        = "layout.degraded", Error, "Partitions of a layout are not as they were, since something had to be undone or restored.",
        incidents &layout.daemon, about layout.subject(), details layout.details(), says ("{layout} is degraded: {}", joined(&layout.degraded));
    LayoutFailed { layout: DaemonLayout, failure: String, ids_differ: bool } = "layout.failed", Error, "A layout could not be applied.",
        incidents ids_differ.then_some(&layout.daemon), about layout.subject(), details layout.details(),
        says ("{layout} is not applied: {failure}");
    LayoutDrifted { layout: DaemonLayout, command: Option<String> }
        = "layout.drifted", Warning, "Partitions of a layout were made or removed by another program.",
        incidents &layout.daemon, about layout.subject(), details layout.details(), by outsider(command.as_ref()),
        says ("another program changed {layout}: {}", joined(&layout.drift));
    LayoutRepaired(layout: DaemonLayout)
        = "layout.repaired", Info, "Partitions that another program had changed were restored.",
        incidents &layout.daemon, about layout.subject(), details layout.details(), by after(EventType::LayoutDrifted),
        says ("{layout} was restored");
    IncidentOpened(incident: IncidentNotice)
        = "incident.opened", Warning, "An incident was opened, opened again, or became a crash loop.",
        tenants Incident, about incident.subject(), also OtherSubjects::gpus(&incident.gpus), details incident.details(),
        says ("{}", incident.words("was opened"));
    IncidentRecovered(incident: IncidentNotice) = "incident.recovered", Info, "An incident has ended.",
        tenants Incident, about incident.subject(), also OtherSubjects::gpus(&incident.gpus), details incident.details(),
        says ("{}", incident.words("has ended"));
    IncidentAcknowledged(incident: IncidentNotice) = "incident.acknowledged", Info, "An incident was acknowledged.",
        tenants Incident, about incident.subject(), also OtherSubjects::gpus(&incident.gpus), details incident.details(),
        says ("{}", incident.words("was acknowledged"));
    OperationRequested(operation: OperationFacts) = "operation.requested", Info, "An operation was requested.",
        tenants Full, about operation.subject(), also operation.also(), details operation.details(None), says ("{operation} was requested");
    OperationStarted(operation: OperationFacts) = "operation.started", Info, "An operation began.",
        tenants Full, about operation.subject(), also operation.also(), details operation.details(None),
        by after(EventType::OperationRequested), says ("{operation} began");
    OperationStep { operation: OperationFacts, step: String, outcome: String } = "operation.step", Info, "A step of an operation ended.",
        tenants StepOutcome, about operation.subject(), also operation.also(),
        details Details::Step { step: step.clone(), outcome: outcome.clone() }, by after(EventType::OperationStarted),
        says ("{}: {step}: {outcome}", operation.kind);
    OperationCancelRequested(operation: OperationFacts)
        = "operation.cancel_requested", Info, "A running operation was asked to stop.",
        tenants Full, about operation.subject(), also operation.also(), details operation.details(None), says ("{operation} was asked to stop");
    OperationFinished(operation: OperationFacts) = "operation.finished", Info, "An operation succeeded.",
        tenants Full, about operation.subject(), also operation.also(), details operation.details(None),
        by after(EventType::OperationStarted), says ("{operation} succeeded");
    OperationFailed { operation: OperationFacts, error: String, outcome_is_unknown: bool }
        = "operation.failed", Error, "An operation failed.",
        tenants Failure, incidents operation.daemons.first().filter(|_| *outcome_is_unknown), about operation.subject(),
        also operation.also(), details operation.details(Some(error)), by after(EventType::OperationStarted),
        says ("{operation} failed: {error}");
    OperationCancelled(operation: OperationFacts) = "operation.cancelled", Info, "An operation was cancelled.",
        tenants Full, about operation.subject(), also operation.also(), details operation.details(None),
        by after(EventType::OperationCancelRequested), says ("{operation} was cancelled");
    GpuMissing { gpu: GpuUuid, daemon: DaemonName, board: Option<String>, left: Vec<(i64, AffectedClient)> }
        = "gpu.missing", Error, "A GPU that a daemon holds is no longer listed by the driver.",
        incidents daemon, about of(daemon).gpu(Some(gpu)), by EventCause::Host,
        says ("{} of daemon {daemon} is not listed by the driver: {gpu}", board.as_deref().unwrap_or("a GPU"));
    GpuBack { gpu: GpuUuid, daemon: DaemonName } = "gpu.back", Info, "A GPU that was missing is listed again.",
        incidents daemon, about of(daemon).gpu(Some(gpu)), by EventCause::Host,
        says ("{gpu} of daemon {daemon} is listed by the driver again");
    GpuReplaced { daemon: DaemonName, old: GpuUuid, new: GpuUuid }
        = "gpu.replaced", Info, "A GPU took the place of another in a daemon's spec.",
        incidents daemon, about of(daemon).gpu(Some(old)), says ("{new} replaced {old} in daemon {daemon}");
    ComputeModeRepaired { daemon: DaemonName, gpu: GpuUuid, found: ComputeMode, set: ComputeMode }
        = "compute_mode.repaired", Warning, "A compute mode that the manager had set was changed by another program or a reset of the GPU, and was set again.",
        incidents daemon, about of(daemon).gpu(Some(gpu)), by outsider(None),
        says (
            "the compute mode of {gpu}, which daemon {daemon} has set to {}, was found to be {}, and was set again: another program \
             changed it, or the GPU was reset",
            set.as_str(),
            found.as_str()
        );
    ComputeModeChanged(change: ComputeModeChange)
        = "compute_mode.changed", Info, "A compute mode is about to be set for a daemon, or was restored.",
        about of(&change.daemon).gpu(Some(&change.gpu)),
        details Details::ComputeMode { previous: change.previous, desired: change.desired }, says ("{change}");
    MaintenanceBegun(maintenance: Maintenance) = "host.maintenance_begun", Info, "Maintenance of the host began.",
        about of_maintenance(maintenance), by after(EventType::OperationStarted),
        says ("maintenance of {} began: its daemons take no new clients", joined(&maintenance.gpus));
    MaintenanceActive(maintenance: Maintenance)
        = "host.maintenance_active", Info, "The driver was released for maintenance.",
        about of_maintenance(maintenance), by after(EventType::OperationStarted),
        says ("maintenance of {} continues without the driver: its daemons are down", joined(&maintenance.gpus));
    MaintenanceEnded(maintenance: Maintenance) = "host.maintenance_ended", Info, "Maintenance of the host is over.",
        about of_maintenance(maintenance), by after(EventType::OperationStarted),
        says ("maintenance of {} is over", joined(&maintenance.gpus));
    HostConfirmed(confirmation: HostConfirmation)
        = "host.confirmed", Warning, "An operator confirmed that the database belongs to this machine, or accepted it without rows that it lost.",
        says ("{confirmation}");
    ManagerStarted { pid: u32, predecessor: Predecessor } = "manager.started", Info, "A manager started and loaded its state.",
        details manager(*pid, *predecessor), says ("the manager started{}", predecessor.words());
    ManagerStopped { pid: u32 } = "manager.stopped", Info, "A manager ended as requested; daemons and clients run on.",
        details manager(*pid, Predecessor::Stopped), says ("the manager stops");
    DatabaseBackedUp { file: String } = "database.backed_up", Info, "A backup of the database was made.",
        says ("the database was backed up to {file}");
    DatabaseRestored { file: String } = "database.restored", Warning, "A backup was put in the place of the database.",
        says ("{file} was put in the place of the database");
    DatabaseRowsLost(damage: AuditDamage)
        = "database.rows_lost", Critical, "The database lacks a row of the audit that was on the disk before, and with it what else was written then.",
        says ("{damage}");
    TokenCreated(token: TokenFacts) = "token.created", Info, "A token was created.",
        tenants Full, about token.subject(), details token.details(), says ("{token}, which grants {}, was created", token.grant);
    TokenRevoked(token: TokenFacts) = "token.revoked", Info, "A token was revoked.",
        tenants Full, about token.subject(), details token.details(), says ("{token}, which grants {}, was revoked", token.grant);
    SessionOpened(owner: SessionOwner) = "session.opened", Info, "A user logged in with a browser.",
        tenants Full, about owner.subject(), details owner.details(), says ("a session of {owner} was opened");
    SessionEnded(owner: SessionOwner)
        = "session.ended", Info, "A user logged out, or a session was ended by another log-in or by an admin.",
        tenants Full, about owner.subject(), details owner.details(), says ("a session of {owner} was ended");
    EventsLost(lost: LostEvents)
        = "events.lost", Warning, "Events are missing here: there were more than could be written, they were pruned before they were read, or an older backup was restored.",
        tenants FullWithoutDaemon, about lost.subject(), details lost.details(), says ("{lost}");
}

impl EventType {
    /// The stable name.
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    /// Returns its severity.
    pub fn severity(self) -> Severity {
        self.row().1
    }

    /// Returns its meaning in one sentence.
    pub fn meaning(self) -> &'static str {
        self.row().2
    }

    /// Returns the part that users bound to a tenant see of such an event about it.
    pub fn visibility(self) -> EventVisibility {
        self.row().3
    }
}

impl std::str::FromStr for EventType {
    type Err = super::InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|kind| kind.as_str() == text);
        found.copied().ok_or_else(|| super::InvalidValue(format!("{text:?} is not a type of event")))
    }
}

/// No `enum`: a later version has more types, and a program that knows these must still read those.
impl utoipa::PartialSchema for EventType {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::extensions::ExtensionsBuilder;
        use utoipa::openapi::schema::{ObjectBuilder, Type};
        let known: Vec<&str> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("What happened: one of `x-extensible-enum`, or of a later version's."))
            .pattern(Some("^[a-z_]+\\.[a-z_]+$"))
            .examples([serde_json::json!("daemon.ready")])
            .extensions(Some(ExtensionsBuilder::new().add("x-extensible-enum", known).build()))
            .into()
    }
}

impl utoipa::ToSchema for EventType {
    fn name() -> std::borrow::Cow<'static, str> {
        "EventType".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_in_the_docs_is_this_one() {
        let documented = include_str!("../../../docs/events.md");
        let rows: Vec<&str> = documented.lines().filter(|line| line.starts_with("| `")).collect();
        let types: Vec<String> = EventType::ALL
            .iter()
            .map(|kind| {
                format!("| `{}` | {} | {} |", kind.as_str(), kind.severity().as_str(), kind.meaning())
            })
            .collect();
        let rows: Vec<&str> = rows.into_iter().filter(|row| row.matches('|').count() == 4).collect();
        assert_eq!(rows, types, "rewrite the table of docs/events.md:\n{}", types.join("\n"));
    }

    #[test]
    fn names_are_of_one_shape_and_read_back() {
        for kind in EventType::ALL {
            let name = kind.as_str();
            let (of, what) = name.split_once('.').expect("a dot");
            let word =
                |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
            assert!(word(of) && word(what), "{name}");
            assert_eq!(name.parse::<EventType>().expect("read"), *kind);
            assert_eq!(serde_json::to_value(kind).expect("a word"), name);
        }
    }
}
