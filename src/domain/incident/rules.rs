//! The rules of incidents: to which one a report belongs, and when one ends.
//!
//! A report belongs to an incident of its own kind and topic. Three rules merge others: a GPU fault takes in the death of the server that it
//! caused, as a daemon's death takes in its server's; a crash loop takes in the daemon's deaths; and a wedge takes in the replacement that
//! ends it.

use std::collections::BTreeSet;

use super::{Incident, IncidentEnd, IncidentKind as Kind, IncidentTopic as Topic};
use crate::event::{DaemonDeath, DomainEvent, KnownFrom, MemoryBreach, ServerFault};

/// Time after a daemon runs again for which a crash loop lasts: a death within it is one more of the loop.
pub(super) const CRASH_LOOP_MS: i64 = 60 * 1000;

/// Returns true if the report of an event belongs to this open incident.
pub(super) fn joins(event: &DomainEvent, report: &Incident, open: &Incident) -> bool {
    let is_same_topic = report.topic == open.topic;
    match (report.kind, open.kind) {
        (Kind::ServerDied, Kind::GpuFault) => is_same_topic,
        // A poll sees a fault before the death of its server.
        (Kind::GpuFault, Kind::ServerDied) => is_same_topic && is_logged(event),
        // The server dies with its daemon, and either may be seen first.
        (Kind::ServerDied, Kind::ServerDied | Kind::DaemonDied | Kind::CrashLoop | Kind::DaemonWedged)
        | (Kind::DaemonDied, Kind::ServerDied)
        | (Kind::DaemonDied | Kind::CrashLoop, Kind::DaemonDied | Kind::CrashLoop) => true,
        (Kind::DaemonDied, Kind::DaemonWedged) => {
            matches!(event, DomainEvent::DaemonDied { why: DaemonDeath::Killed, .. })
        }
        (kind, open) => kind == open && is_same_topic,
    }
}

/// Returns true if the report of an event at this time belongs to this incident, although it has ended.
pub(super) fn continues(event: &DomainEvent, report: &Incident, ended: &Incident, at: i64) -> bool {
    let is_new = ended.acknowledged.is_none();
    match event {
        DomainEvent::ServerFault(fault) => is_fault_of(fault, report, ended),
        _ if matches!(report.kind, Kind::DaemonDied | Kind::CrashLoop) => {
            ended.kind == Kind::CrashLoop
                && is_new
                && ended.ended_by == Some(IncidentEnd::Recovered)
                && ended.recovered_at.is_some_and(|recovered_at| recovered_at >= at - CRASH_LOOP_MS)
        }
        _ => {
            let is_same = (report.kind, &report.topic) == (ended.kind, &ended.topic);
            is_same && report.kind.recurs() && (is_new || ended.names_all_of(report))
        }
    }
}

/// Returns true if server.log reports a fault, which was over before it became known.
pub(super) fn is_logged(event: &DomainEvent) -> bool {
    matches!(event, DomainEvent::ServerFault(fault) if fault.known_from != KnownFrom::Poll)
}

/// Returns true if server.log reports the fault of an incident that has ended, or what a server died of.
fn is_fault_of(fault: &ServerFault, report: &Incident, ended: &Incident) -> bool {
    if fault.known_from == KnownFrom::Poll
        || report.topic != ended.topic
        || (ended.is_hint && !report.is_hint)
    {
        return false;
    }
    // A server that recovers can have another one, which has other clients: those of the first are gone.
    let named: BTreeSet<u32> = fault.report.named_by_mps.iter().chain(&fault.affected).copied().collect();
    let before = ended.fault.iter().flat_map(|fault| &fault.named_by_mps);
    let mut before = before.copied().chain(ended.affected.iter().map(|client| client.pid));
    match ended.kind {
        Kind::ServerDied => true,
        Kind::GpuFault => named.is_empty() || before.any(|pid| named.contains(&pid)),
        _ => false,
    }
}

/// Returns true if the event is a part of this open incident, and reports nothing by itself.
pub(super) fn is_part(event: &DomainEvent, open: &Incident) -> bool {
    match event {
        DomainEvent::DaemonBackOff(_) | DomainEvent::ServerExited { .. } => {
            matches!(open.kind, Kind::DaemonDied | Kind::CrashLoop)
        }
        // A server that handles a fault refuses everyone.
        DomainEvent::ClientRefused(_) => matches!(open.kind, Kind::GpuFault | Kind::DaemonWedged),
        _ => false,
    }
}

/// Returns the way in which the event ends this open incident, if it does.
pub(super) fn end_of(event: &DomainEvent, open: &Incident) -> Option<IncidentEnd> {
    use DomainEvent as Event;
    use IncidentEnd::{Recovered, Replaced, Stopped};
    let Incident { kind, topic, gpus, .. } = open;
    let is_gpu = |gpu| matches!(topic, Topic::Gpu { gpu: own } if own == gpu);
    let (end, ends) = match event {
        Event::DaemonReady { .. } | Event::DaemonObserved { .. } => {
            let is_drift = *kind == Kind::Drift && *topic == Topic::Settings;
            (
                Recovered,
                is_drift || *kind == Kind::NoServer || (kind.loses_work() && *kind != Kind::GpuMissing),
            )
        }
        // The daemon that had died runs again: what is wrong now is another thing.
        Event::DaemonWithoutServer(_) => (Recovered, matches!(kind, Kind::DaemonDied | Kind::CrashLoop)),
        Event::ServerStarted { pid, .. } => {
            (Recovered, matches!(topic, Topic::Server { pid: faulty } if faulty != pid))
        }
        Event::ServerRecovered { pid, .. } => (Recovered, *topic == Topic::Server { pid: *pid }),
        Event::SettingsRepaired { .. } | Event::SettingsApplied { .. } => {
            (Recovered, *topic == Topic::Settings)
        }
        Event::LayoutRepaired(_) => (Recovered, *topic == Topic::Layout && *kind == Kind::Drift),
        Event::LayoutApplied(_) => (Recovered, *topic == Topic::Layout),
        Event::BypassEnded { .. } => (Recovered, *kind == Kind::Bypass),
        Event::ExposureEnded { .. } => (Recovered, *kind == Kind::SocketExposed),
        Event::ForeignUserEnded { .. } => (Recovered, *kind == Kind::ForeignUser),
        Event::ForeignDaemonEnded { .. } => (Recovered, *kind == Kind::GpuShared),
        Event::BreachEnded(MemoryBreach { client, gpu, .. }) => {
            let of_client = Topic::Client { client: *client, operation: None };
            (Recovered, *kind == Kind::Breach && *topic == of_client && gpus.contains(gpu))
        }
        Event::GpuBack { gpu, .. } => (Recovered, is_gpu(gpu)),
        Event::GpuReplaced { old, .. } => (Replaced, is_gpu(old)),
        Event::ClientLeft(left) => {
            let is_its = |client| Some(client) == left.client;
            (Recovered, matches!(topic, Topic::Client { client, operation: Some(_) } if is_its(*client)))
        }
        // What another program started on its GPUs, or with its directory, remains.
        Event::DaemonStopped { .. } => {
            let remains = matches!(kind, Kind::Bypass | Kind::SocketExposed | Kind::GpuShared);
            (Stopped, !remains && !matches!(kind, Kind::GpuMissing | Kind::LayoutIdsDiffer))
        }
        Event::DaemonDeleted { .. } | Event::DaemonReleased { .. } => (Replaced, true),
        Event::DaemonChanged { gpus, fields, .. } => {
            let has = |field: &str| fields.iter().any(|changed| changed == field);
            let is_of_other = matches!(topic, Topic::Gpu { gpu } if !gpus.contains(gpu));
            (Replaced, (has("layout") && *topic == Topic::Layout) || (has("gpus") && is_of_other))
        }
        _ => return None,
    };
    ends.then_some(end)
}
