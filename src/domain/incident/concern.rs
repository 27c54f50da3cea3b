//! Which events concern incidents.

use crate::DaemonName;
use crate::event::{DomainEvent, NotReadyReason, ServerFault};

/// The daemon whose incidents an event may concern; `None` for all other events.
pub fn may_concern_incidents(event: &DomainEvent) -> Option<&DaemonName> {
    match event {
        DomainEvent::DaemonChanged { daemon, .. }
        | DomainEvent::DaemonDeleted { daemon, .. }
        | DomainEvent::DaemonReleased { daemon }
        | DomainEvent::DaemonReady { daemon }
        | DomainEvent::DaemonObserved { daemon }
        | DomainEvent::DaemonDied { daemon, .. }
        | DomainEvent::DaemonBackOff(NotReadyReason { daemon, .. })
        | DomainEvent::DaemonCrashLoop(NotReadyReason { daemon, .. })
        | DomainEvent::DaemonWithoutServer(NotReadyReason { daemon, .. })
        | DomainEvent::DaemonWedged(NotReadyReason { daemon, .. })
        | DomainEvent::DaemonStopped { daemon, .. }
        | DomainEvent::DaemonReplaced { daemon, .. }
        | DomainEvent::SettingsApplied { daemon, .. }
        | DomainEvent::SettingsDrifted { daemon, .. }
        | DomainEvent::SettingsRepaired { daemon }
        | DomainEvent::ServerStarted { daemon, .. }
        | DomainEvent::ServerExited { daemon, .. }
        | DomainEvent::ServerDied { daemon, .. }
        | DomainEvent::ServerFault(ServerFault { daemon, .. })
        | DomainEvent::ServerReplaced { daemon, .. }
        | DomainEvent::ServerRecovered { daemon, .. }
        | DomainEvent::ClientInReset { daemon, .. }
        | DomainEvent::BypassAppeared { daemon, .. }
        | DomainEvent::BypassChanged { daemon, .. }
        | DomainEvent::BypassEnded { daemon }
        | DomainEvent::ExposureDetected { daemon, .. }
        | DomainEvent::ExposureEnded { daemon }
        | DomainEvent::ForeignUserAppeared { daemon, .. }
        | DomainEvent::ForeignUserEnded { daemon }
        | DomainEvent::ForeignDaemonAppeared { daemon, .. }
        | DomainEvent::ForeignDaemonEnded { daemon }
        | DomainEvent::ComputeModeRepaired { daemon, .. }
        | DomainEvent::GpuMissing { daemon, .. }
        | DomainEvent::GpuBack { daemon, .. }
        | DomainEvent::GpuReplaced { daemon, .. } => Some(daemon),
        DomainEvent::ClientLeft(client) => Some(&client.daemon),
        DomainEvent::ClientRefused(refusal) => Some(&refusal.daemon),
        DomainEvent::BreachDetected(breach) | DomainEvent::BreachEnded(breach) => Some(&breach.daemon),
        DomainEvent::LayoutApplied(layout)
        | DomainEvent::LayoutDegraded(layout)
        | DomainEvent::LayoutRepaired(layout)
        | DomainEvent::LayoutFailed { layout, ids_differ: true, .. }
        | DomainEvent::LayoutDrifted { layout, .. } => Some(&layout.daemon),
        DomainEvent::OperationFailed { operation, outcome_is_unknown: true, .. } => operation.daemons.first(),
        _ => None,
    }
}

/// Whether an event says who lost work, so that the other connected clients are those who kept theirs.
pub fn counts_unaffected(event: &DomainEvent) -> bool {
    match event {
        DomainEvent::ServerDied { .. }
        | DomainEvent::DaemonDied { .. }
        | DomainEvent::DaemonWedged(_)
        | DomainEvent::DaemonReplaced { .. }
        | DomainEvent::ServerReplaced { .. } => true,
        // Of a fault that names nobody it is not known who lost work.
        DomainEvent::ServerFault(fault) => !fault.clients.is_empty(),
        _ => false,
    }
}
