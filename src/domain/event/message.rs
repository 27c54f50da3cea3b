//! The message of each event: the only place where events are put into words.

use super::KnownFrom;
use super::Predecessor;
use super::domain_event::{
    AuditDamage, ChangedTenant, ClientRefusal, ComputeModeChange, DaemonDeath, DaemonLayout, DomainEvent,
    HostConfirmation, LostEvents, LostWork, MemoryBreach, NotReadyReason, ObservedClient, OperationFacts,
    ServerFault, SessionOwner, TokenFacts, VerificationFailure,
};
use crate::bypass::{Bypass, describe_bypasses};
use crate::client::LeaseKind;
use crate::count::counted;
use crate::exposure::describe_exposures;
use crate::foreign_owner::describe_sharing;
use crate::foreign_user::describe_foreign_users;
use crate::maintenance::Maintenance;
use crate::memory::Bytes;
use crate::rfc3339;
use crate::verification::VerifiedSetting;

impl DomainEvent {
    /// The event in one sentence.
    #[allow(clippy::too_many_lines, reason = "one arm for each type")]
    pub fn message(&self) -> String {
        match self {
            Self::DaemonCreated { daemon } => format!("daemon {daemon} was created"),
            Self::DaemonAdopted { daemon } => format!("daemon {daemon} was adopted with its running process"),
            Self::DaemonChanged { daemon, .. } => format!("daemon {daemon} was changed"),
            Self::DaemonDeleted { daemon, .. } => format!("daemon {daemon} was deleted"),
            Self::DaemonReleased { daemon } => {
                format!("daemon {daemon} was released, and its process left running")
            }
            Self::DaemonStarted { daemon, pid } => {
                format!("the control daemon of {daemon} was started (process {pid})")
            }
            Self::DaemonFound { daemon, pid, .. } => {
                format!("process {pid} runs as the control daemon of {daemon} and is managed from now on")
            }
            Self::DaemonReady { daemon } => format!("daemon {daemon} is ready"),
            Self::DaemonObserved { daemon } => format!("daemon {daemon} is observed"),
            Self::DaemonDied { daemon, pid, why, lost } => {
                format!("the control daemon of {daemon} (process {pid}) died{}{}", why.words(), lost.doubt())
            }
            Self::DaemonBackOff(NotReadyReason { daemon, message, .. })
            | Self::DaemonCrashLoop(NotReadyReason { daemon, message, .. })
            | Self::DaemonWithoutServer(NotReadyReason { daemon, message, .. })
            | Self::DaemonUnreadable(NotReadyReason { daemon, message, .. })
            | Self::DaemonWedged(NotReadyReason { daemon, message, .. })
            | Self::DaemonBlocked(NotReadyReason { daemon, message, .. }) => format!("daemon {daemon}: {message}"),
            Self::DaemonStopped { daemon, pid } => {
                format!("the control daemon of {daemon} was stopped (process {pid})")
            }
            Self::DaemonReplaced { daemon, process, .. } | Self::ServerReplaced { daemon, process, .. } => format!("daemon {daemon}: {process}"),
            Self::SettingsApplied { daemon, generation } => {
                format!("{daemon}: settings of generation {generation} were applied and confirmed")
            }
            Self::SettingsDrifted { daemon, drifted, .. } => {
                format!("another program changed daemon {daemon}: {}", joined(drifted))
            }
            Self::SettingsRepaired { daemon } => {
                format!("the settings of daemon {daemon} were restored")
            }
            Self::ServerStarted { daemon, pid, .. } => format!("server {pid} of daemon {daemon} was started"),
            Self::ServerExited { daemon, pid } => format!("server {pid} of daemon {daemon} exited"),
            Self::ServerDied { daemon, pid, lost } => {
                let clients = match lost.clients.len() {
                    1 => "a client".to_owned(),
                    several => format!("{several} clients"),
                };
                format!(
                    "server {pid} of daemon {daemon} ended while it had {clients}: what they had on the GPU is lost{}",
                    lost.doubt()
                )
            }
            Self::ServerFault(ServerFault { daemon, server, known_from, .. }) => match known_from {
                KnownFrom::Poll => format!(
                    "server {server} of daemon {daemon} had a fatal GPU error: the clients it affects have lost their work, and \
                     no other is accepted until they are gone"
                ),
                KnownFrom::ServerLogAndPoll => format!(
                    "server {server} of daemon {daemon} had a fatal GPU error, which was over before the next poll: the clients it \
                     affected have lost their work"
                ),
                KnownFrom::ServerLog => format!(
                    "server.log reports a fatal GPU error of server {server} of daemon {daemon}, of which nothing else was seen"
                ),
            },
            Self::ServerRecovered { daemon, pid } => {
                format!("server {pid} of daemon {daemon} accepts clients again")
            }
            Self::ClientConnected(client) => client.connected(),
            Self::ClientLeft(client) => client.left(),
            Self::ClientTerminated { daemon, client, outcome, .. } => {
                format!("client {client} of daemon {daemon} was terminated: {outcome}")
            }
            Self::ClientInReset { daemon, server, pid } => format!(
                "server {server} of daemon {daemon} wrote that the worker of client {pid} is in reset as it exited, which it has not been seen \
                 to write of a client that did not cause the fatal GPU error"
            ),
            Self::ClientWaiting { pid, uid, behind_uid, .. } => {
                format!("process {pid} of uid {uid} waits until the clients of uid {behind_uid} are gone")
            }
            Self::ClientRefused(ClientRefusal { daemon, server, reason, pid, tenant, .. }) => {
                let pid = pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
                let tenant = tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
                format!("server {server} of daemon {daemon} refused a client{pid}{tenant}: {reason}")
            }
            Self::BreachDetected(breach) => breach.words("holds"),
            Self::BreachEnded(breach) => breach.words("no longer holds"),
            Self::IncidentOpened(incident) => {
                format!("incident {} ({}) was opened: {}", incident.incident, incident.kind.as_str(), incident.summary)
            }
            Self::IncidentRecovered(incident) => {
                format!("incident {} ({}) has ended: {}", incident.incident, incident.kind.as_str(), incident.summary)
            }
            Self::IncidentAcknowledged(incident) => format!(
                "incident {} ({}) was acknowledged: {}",
                incident.incident,
                incident.kind.as_str(),
                incident.summary
            ),
            Self::BypassAppeared { daemon, processes, unnamed, present } => {
                let is_gone = |process: &Bypass| present.iter().all(|one| one.pid != process.pid);
                let who = match (processes.len() + unnamed, processes.iter().all(is_gone)) {
                    (1, false) => "a process uses",
                    (1, true) => "a process that has ended used",
                    (_, false) => "processes use",
                    (_, true) => "processes that have ended used",
                };
                let named = describe_bypasses(processes.iter(), *unnamed);
                format!("{who} a GPU of daemon {daemon} outside MPS: {named}")
            }
            Self::BypassChanged { daemon, present } => {
                let left = if present.len() == 1 { "1 is left" } else { "these are left" };
                let named = describe_bypasses(present.iter(), 0);
                format!(
                    "some of the processes that used a GPU of daemon {daemon} outside MPS have ended; {left}: {named}"
                )
            }
            Self::BypassEnded { daemon } => {
                format!("the processes that used a GPU of daemon {daemon} outside MPS have ended")
            }
            Self::ExposureDetected { daemon, present } => {
                let named = describe_exposures(present);
                format!("daemon {daemon}'s own directory is mounted in another mount namespace: {named}")
            }
            Self::ForeignUserAppeared { daemon, present } => {
                let named = describe_foreign_users(present);
                format!("users who are no tenant's are at daemon {daemon}: {named}")
            }
            Self::ForeignUserEnded { daemon } => {
                format!("no process of a user who is no tenant's is at daemon {daemon} any longer")
            }
            Self::ForeignDaemonAppeared { daemon, present } => {
                format!("a GPU of daemon {daemon} is also served by another control daemon: {}", describe_sharing(present))
            }
            Self::ForeignDaemonEnded { daemon } => {
                format!("no other control daemon serves the GPUs of daemon {daemon} any longer")
            }
            Self::ComputeModeRepaired { daemon, gpu, found, set } => format!(
                "the compute mode of {gpu}, which daemon {daemon} has set to {}, was found to be {}, and was set again: another program \
                 changed it, or the GPU was reset",
                set.as_str(),
                found.as_str()
            ),
            Self::ExposureEnded { daemon } => {
                format!("daemon {daemon}'s own directory is no longer mounted in another mount namespace")
            }
            Self::TenantCreated { tenant, .. } => format!("tenant {tenant} was created"),
            Self::TenantChanged(ChangedTenant { tenant, .. }) => format!("tenant {tenant} was changed"),
            Self::TenantDeleted { tenant, expired_at: None, .. } => format!("tenant {tenant} was deleted"),
            Self::TenantDeleted { tenant, expired_at: Some(at), .. } => {
                format!("tenant {tenant} expired at {} and was deleted", rfc3339::format(*at))
            }
            Self::TenantVerified { tenant, .. } => {
                format!("verification of tenant {tenant}: a CUDA client saw what is configured")
            }
            Self::TenantVerificationFailed { tenant, failure, .. } => match failure {
                VerificationFailure::Differs(settings) => {
                    let settings: Vec<&str> =
                        settings.iter().copied().map(VerifiedSetting::as_str).collect();
                    format!(
                        "verification of tenant {tenant}: a CUDA client saw values that differ from the configuration: {}",
                        settings.join(", ")
                    )
                }
                VerificationFailure::NotVerified(blocker) => {
                    let why = blocker.map_or("", |code| code.redacted_message());
                    format!("tenant {tenant} could not be verified: {why}")
                }
            },
            Self::LeaseGranted(lease) => {
                let (pid, tenant) = (lease.holder.pid, &lease.tenant);
                match lease.kind {
                    LeaseKind::Own => format!("process {pid} took a lease of tenant {tenant}"),
                    LeaseKind::Recorded => {
                        format!("process {pid} was recorded as a process of tenant {tenant}")
                    }
                }
            }
            Self::LeaseRevoked(lease) => format!(
                "the lease of process {} for tenant {} was revoked; the process was left as it is",
                lease.holder.pid, lease.tenant
            ),
            Self::LayoutVersionWritten { layout, version } => {
                format!("layout {layout} has a version {version}")
            }
            Self::LayoutDeleted { layout, .. } => format!("layout {layout} was deleted"),
            Self::LayoutApplied(layout) => format!("{} is applied", layout.words()),
            Self::LayoutDegraded(layout) => {
                format!("{} is degraded: {}", layout.words(), joined(&layout.degraded))
            }
            Self::LayoutFailed { layout, failure, .. } => {
                format!("{} is not applied: {failure}", layout.words())
            }
            Self::LayoutDrifted { layout, .. } => {
                format!("another program changed {}: {}", layout.words(), joined(&layout.drift))
            }
            Self::LayoutRepaired(layout) => format!("{} was restored", layout.words()),
            Self::OperationRequested(operation) => format!("{} was requested", operation.words()),
            Self::OperationStarted(operation) => format!("{} began", operation.words()),
            Self::OperationStep { operation, step, outcome } => {
                format!("{}: {step}: {outcome}", operation.kind)
            }
            Self::OperationCancelRequested(operation) => {
                format!("{} was asked to stop", operation.words())
            }
            Self::OperationFinished(operation) => format!("{} succeeded", operation.words()),
            Self::OperationFailed { operation, error, .. } => format!("{} failed: {error}", operation.words()),
            Self::OperationCancelled(operation) => format!("{} was cancelled", operation.words()),
            Self::GpuMissing { gpu, daemon, board, .. } => {
                let board = board.as_deref().unwrap_or("a GPU");
                format!("{board} of daemon {daemon} is not listed by the driver: {gpu}")
            }
            Self::GpuBack { gpu, daemon } => {
                format!("{gpu} of daemon {daemon} is listed by the driver again")
            }
            Self::GpuReplaced { daemon, old, new } => format!("{new} replaced {old} in daemon {daemon}"),
            Self::ComputeModeChanged(change) => change.words(),
            Self::MaintenanceBegun(Maintenance { gpus, .. }) => {
                format!("maintenance of {} began: its daemons take no new clients", joined(gpus))
            }
            Self::MaintenanceActive(Maintenance { gpus, .. }) => {
                format!("maintenance of {} continues without the driver: its daemons are down", joined(gpus))
            }
            Self::MaintenanceEnded(Maintenance { gpus, .. }) => {
                format!("maintenance of {} is over", joined(gpus))
            }
            Self::HostConfirmed(HostConfirmation::Machine(id)) => {
                format!("the database was confirmed to belong to machine {id}")
            }
            Self::HostConfirmed(HostConfirmation::LossAccepted) => {
                "the database was accepted as it is, without the lost rows of its audit log".to_owned()
            }
            Self::ManagerStarted { predecessor, .. } => match predecessor {
                Predecessor::Died => {
                    "the manager started; its predecessor died, and what happened in between is reconstructed as far as possible"
                }
                Predecessor::Restored => "the manager started with a database that was restored from a backup",
                Predecessor::Stopped | Predecessor::None => "the manager started",
            }
            .to_owned(),
            Self::ManagerStopped { .. } => "the manager stops".to_owned(),
            Self::DatabaseBackedUp { file } => format!("the database was backed up to {file}"),
            Self::DatabaseRestored { file } => format!("{file} was put in the place of the database"),
            Self::DatabaseRowsLost(damage) => damage.to_string(),
            Self::TokenCreated(token) => format!("{token}, which grants {}, was created", token.grant),
            Self::TokenRevoked(token) => format!("{token}, which grants {}, was revoked", token.grant),
            Self::SessionOpened(owner) => format!("a session of {owner} was opened"),
            Self::SessionEnded(owner) => format!("a session of {owner} was ended"),
            Self::EventsLost(lost) => lost.words(),
        }
    }
}

fn joined<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl ComputeModeChange {
    fn words(&self) -> String {
        let Self { daemon, gpu, previous, desired } = self;
        let previous = previous.map(|mode| format!("{mode:?}")).unwrap_or_default();
        match desired {
            Some(desired) => format!(
                "the compute mode of {gpu} is set to {desired:?} for daemon {daemon}; it was {previous}"
            ),
            None => format!("the compute mode of {gpu} was restored to {previous}"),
        }
    }
}

impl DaemonDeath {
    fn words(self) -> &'static str {
        match self {
            Self::ForeignSession => ", while a session of another program was open",
            Self::ForeignQuit => ", since another program sent it a quit",
            // What its log says stays in the status: anybody may have written it.
            Self::Killed | Self::Unexplained => "",
        }
    }
}

impl LostWork {
    fn doubt(&self) -> &'static str {
        if self.is_uncertain && !self.clients.is_empty() {
            "; lines of server.log were missed, so some of the clients listed here may have left before and lost nothing"
        } else {
            ""
        }
    }
}

impl MemoryBreach {
    fn words(&self, holds: &str) -> String {
        let Self { daemon, client, tenant, program, gpu, used, limit } = self;
        let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        let tenant = tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
        let (used, limit) = (Bytes(*used), Bytes(*limit));
        format!(
            "process {}{program}{tenant}, a client of daemon {daemon}, {holds} more memory on {gpu} than its limit of {limit} allows: {used}",
            client.pid
        )
    }
}

impl ObservedClient {
    fn connected(&self) -> String {
        format!("{} connected to {}{}", self.who(), self.daemon, self.source())
    }

    fn left(&self) -> String {
        format!("{} disconnected from {}{}", self.who(), self.daemon, self.source())
    }

    fn who(&self) -> String {
        match &self.tenant {
            Some(tenant) => format!("PID {} ({tenant})", self.pid),
            None => format!("PID {}", self.pid),
        }
    }

    /// Where it is known from, unless a poll listed it.
    fn source(&self) -> &'static str {
        if self.client.is_some() { "" } else { " (seen in server.log only)" }
    }
}

impl DaemonLayout {
    fn words(&self) -> String {
        let daemon = &self.daemon;
        match (&self.layout, self.version) {
            (Some(layout), Some(version)) => format!("layout {layout} version {version} of daemon {daemon}"),
            _ => format!("the layout of daemon {daemon}"),
        }
    }
}

impl OperationFacts {
    fn words(&self) -> String {
        match self.daemons.as_slice() {
            [] => self.kind.to_owned(),
            daemons => format!("{} on {}", self.kind, joined(daemons)),
        }
    }
}

impl LostEvents {
    fn words(&self) -> String {
        match self {
            Self::NotWritten { count, .. } => {
                let verb = if *count == 1 { "was" } else { "were" };
                format!("{} could not be written and {verb} lost", counted(*count, "event"))
            }
            Self::LinesMissed { daemon } => format!(
                "lines of server.log of daemon {daemon} were missed, or there were too many: who came and went between two polls \
                 is not known"
            ),
            Self::Restored { kept, given } => format!(
                "a backup was restored that ends with event {kept}: what was written after it, up to event {given}, is gone"
            ),
            Self::Pruned { from, whole_from } => format!(
                "events {from} to {} were pruned before they were read, whether or not they match the filter: from event \
                 {whole_from} on nothing is missing",
                whole_from - 1
            ),
        }
    }
}

impl std::fmt::Display for AuditDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Truncated { known, found } => {
                write!(f, "the audit ends with row {found}, and row {known} was on the disk before")
            }
            Self::RowReplaced(row) => {
                write!(f, "row {row} of the audit is another one than was on the disk before")
            }
            Self::HeadChanged(file) => {
                write!(f, "{file} in the state directory, which says where the audit ended, was changed")
            }
        }
    }
}

impl std::fmt::Display for TokenFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "token {} ({})", self.id, self.name)
    }
}

impl std::fmt::Display for SessionOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AdminToken => f.write_str("the admin token"),
            Self::Token(token) => token.fmt(f),
            Self::DeletedToken(id) => write!(f, "token {id}"),
            Self::User(uid) => write!(f, "uid {uid}"),
        }
    }
}
