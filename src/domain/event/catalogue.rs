//! The types of events: a closed set whose names never change.

use serde::{Deserialize, Serialize};

use super::Severity;

macro_rules! types {
    ($($variant:ident = $name:literal, $severity:ident, $meaning:literal;)*) => {
        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum EventType {
            $(
                #[doc = $meaning]
                #[serde(rename = $name)]
                $variant,
            )*
        }

        impl EventType {
            /// All types, in the order of the catalogue.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// How much it matters.
            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$variant => Severity::$severity,)*
                }
            }

            /// What it means, in one sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)*
                }
            }
        }
    };
}

types! {
    DaemonCreated = "daemon.created", Info, "A daemon was created.";
    DaemonChanged = "daemon.changed", Info, "The spec of a daemon was changed.";
    DaemonDeleted = "daemon.deleted", Info, "A daemon was deleted.";
    DaemonStarted = "daemon.started", Info, "The manager started a control process.";
    DaemonFound = "daemon.found", Info, "A control process that was already running was found and is managed from now on, as after a restart of the manager.";
    DaemonReady = "daemon.ready", Info, "The daemon is ready: all settings were read back from a server that accepts clients. Written when it was not ready before, for another reason than a change.";
    DaemonObserved = "daemon.observed", Info, "A daemon that is only observed was read.";
    DaemonDied = "daemon.died", Error, "A control process was found dead.";
    DaemonBackOff = "daemon.back_off", Warning, "A control process died or did not start, and the next start waits.";
    DaemonWithoutServer = "daemon.without_server", Error, "Each server of a daemon ends before it takes a client.";
    DaemonCrashLoop = "daemon.crash_loop", Critical, "A control process died or did not start five times within a minute.";
    DaemonUnreadable = "daemon.unreadable", Warning, "A poll of a daemon failed; the reason is that of its condition Ready.";
    DaemonWedged = "daemon.wedged", Error, "A daemon did not answer a command, and is only polled until it answers.";
    DaemonReplaced = "daemon.replaced", Error, "The manager killed a control process that hung on without its server, to start another.";
    DaemonBlocked = "daemon.blocked", Error, "A daemon is blocked by something that the manager does not touch by itself.";
    DaemonStopped = "daemon.stopped", Info, "The manager stopped a control process.";
    DaemonAdopted = "daemon.adopted", Info, "A control process that was started outside this manager was adopted.";
    DaemonReleased = "daemon.released", Info, "A daemon was released, and its process left as it is.";
    SettingsApplied = "settings.applied", Info, "The settings of a changed spec were applied and confirmed.";
    SettingsDrifted = "settings.drifted", Warning, "Settings that had been read back were changed by another program.";
    SettingsRepaired = "settings.repaired", Info, "Settings that another program had changed were restored.";
    ServerStarted = "server.started", Info, "A server was started.";
    ServerExited = "server.exited", Info, "A server exited.";
    ServerDied = "server.died", Error, "A server ended while it had clients, whose work is lost, and no restart or stop was requested here.";
    ServerReplaced = "server.replaced", Error, "The manager killed a server that hung, so that another one accepts clients.";
    ServerFault = "server.fault", Error, "A server had a fatal GPU error.";
    ServerRecovered = "server.recovered", Info, "A server that had a fatal GPU error accepts clients again.";
    ClientConnected = "client.connected", Info, "A client connected.";
    ClientLeft = "client.left", Info, "A client disconnected.";
    ClientTerminated = "client.terminated", Warning, "The manager ended a client, as requested.";
    ClientWaiting = "client.waiting", Warning, "A process waits until the clients of another user are gone.";
    ClientInReset = "client.in_reset", Info, "A server wrote that the worker of a client is in reset, after a fatal GPU error.";
    ClientRefused = "client.refused", Warning, "A server refused a client.";
    BypassAppeared = "bypass.appeared", Warning, "Processes use a GPU of a running daemon outside MPS, so no limit holds them; at most one such event a minute for each daemon.";
    BypassChanged = "bypass.changed", Info, "Some of the processes that used a GPU of the daemon outside MPS have ended, and others have not; at most one event a minute about either.";
    BypassEnded = "bypass.ended", Info, "The processes that used a GPU of the daemon outside MPS have ended.";
    ExposureDetected = "exposure.detected", Warning, "A container or another mount namespace has a daemon's own directory mounted, through which every limit can be changed.";
    ExposureEnded = "exposure.ended", Info, "No other mount namespace has the daemon's own directory mounted any longer.";
    ForeignDaemonAppeared = "foreign_daemon.appeared", Warning, "A control daemon that is not this manager's serves a GPU of a daemon.";
    ForeignDaemonEnded = "foreign_daemon.ended", Info, "No other control daemon serves the GPUs of the daemon any longer.";
    ForeignUserAppeared = "foreign_user.appeared", Warning, "A process of a user who is no tenant's of the daemon is connected to it, or waits to be.";
    ForeignUserEnded = "foreign_user.ended", Info, "No process of a user who is no tenant's is at the daemon any longer.";
    BreachDetected = "breach.detected", Warning, "A client holds more device memory than its limit allows.";
    BreachEnded = "breach.ended", Info, "A client that held more device memory than its limit allows has ended, or holds less.";
    TenantCreated = "tenant.created", Info, "A tenant was created.";
    TenantChanged = "tenant.changed", Info, "The spec of a tenant was changed.";
    TenantDeleted = "tenant.deleted", Info, "A tenant was deleted.";
    TenantVerified = "tenant.verified", Info, "A CUDA client in a tenant's environment saw what is configured.";
    TenantVerificationFailed = "tenant.verification_failed", Warning, "A CUDA client in a tenant's environment saw something else than configured, or none could run.";
    LeaseGranted = "lease.granted", Info, "A process took a lease of a tenant, or an operator recorded it as the tenant's.";
    LeaseRevoked = "lease.revoked", Warning, "A lease was revoked; its process was left as it is.";
    LayoutVersionWritten = "layout.version_written", Info, "A version of a layout was created.";
    LayoutDeleted = "layout.deleted", Info, "A layout was deleted.";
    LayoutApplied = "layout.applied", Info, "The partitions of a daemon's layout exist, as was confirmed by reading them back.";
    LayoutDegraded = "layout.degraded", Error, "Partitions of a layout are not as they were, since something had to be undone or restored.";
    LayoutFailed = "layout.failed", Error, "A layout could not be applied.";
    LayoutDrifted = "layout.drifted", Warning, "Partitions of a layout were made or removed by another program.";
    LayoutRepaired = "layout.repaired", Info, "Partitions that another program had changed were restored.";
    IncidentOpened = "incident.opened", Warning, "An incident was opened, opened again, or became a crash loop.";
    IncidentRecovered = "incident.recovered", Info, "An incident has ended.";
    IncidentAcknowledged = "incident.acknowledged", Info, "An incident was acknowledged.";
    OperationRequested = "operation.requested", Info, "An operation was requested.";
    OperationStarted = "operation.started", Info, "An operation began.";
    OperationStep = "operation.step", Info, "A step of an operation ended.";
    OperationCancelRequested = "operation.cancel_requested", Info, "A running operation was asked to stop.";
    OperationFinished = "operation.finished", Info, "An operation succeeded.";
    OperationFailed = "operation.failed", Error, "An operation failed.";
    OperationCancelled = "operation.cancelled", Info, "An operation was cancelled.";
    GpuMissing = "gpu.missing", Error, "A GPU that a daemon holds is no longer listed by the driver.";
    GpuBack = "gpu.back", Info, "A GPU that was missing is listed again.";
    GpuReplaced = "gpu.replaced", Info, "A GPU took the place of another in a daemon's spec.";
    ComputeModeRepaired = "compute_mode.repaired", Warning, "A compute mode that the manager had set was changed by another program or a reset of the GPU, and was set again.";
    ComputeModeChanged = "compute_mode.changed", Info, "A compute mode is about to be set for a daemon, or was restored.";
    MaintenanceBegun = "host.maintenance_begun", Info, "Maintenance of the host began.";
    MaintenanceActive = "host.maintenance_active", Info, "The driver was released for maintenance.";
    MaintenanceEnded = "host.maintenance_ended", Info, "Maintenance of the host is over.";
    HostConfirmed = "host.confirmed", Warning, "An operator confirmed that the database belongs to this machine, or accepted it without rows that it lost.";
    ManagerStarted = "manager.started", Info, "A manager started and loaded its state.";
    ManagerStopped = "manager.stopped", Info, "A manager ended as requested; daemons and clients run on.";
    DatabaseBackedUp = "database.backed_up", Info, "A backup of the database was made.";
    DatabaseRestored = "database.restored", Warning, "A backup was put in the place of the database.";
    DatabaseRowsLost = "database.rows_lost", Critical, "The database lacks a row of the audit that was on the disk before, and with it what else was written then.";
    TokenCreated = "token.created", Info, "A token was created.";
    TokenRevoked = "token.revoked", Info, "A token was revoked.";
    SessionOpened = "session.opened", Info, "A user logged in with a browser.";
    SessionEnded = "session.ended", Info, "A user logged out, or a session was ended by another log-in or by an admin.";
    EventUnknown = "event.unknown", Info, "An event that this version cannot read, as one that a later version wrote; its message begins with the type that it has.";
    EventsLost = "events.lost", Warning, "Events are missing here: there were more than could be written, they were pruned before they were read, or an older backup was restored.";
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
