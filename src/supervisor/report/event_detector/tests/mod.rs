//! The events of a daemon, change by change.

mod faults;

use super::*;
use crate::domain::GpuUuid;
use crate::domain::client::MountedDirectories;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::daemon::{Effective, ServedUser, Server, SessionCounts, Waiting, WaitingClient};
use crate::domain::drift::Drifted;
use crate::domain::event::{Details, EventCause};
use crate::domain::wedge::ReplacedProcess;
use crate::mps::log;
use crate::supervisor::reconcile::daemon::tests::desired as managed;

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

fn desired() -> Desired {
    Desired { generation: 1, settings_since: 1, memory_limits: vec![None], ..managed() }
}

fn status(phase: Phase, pid: Option<u32>) -> DaemonStatus {
    DaemonStatus {
        phase,
        observed_generation: 1,
        conditions: vec![Condition::new(
            ConditionType::Ready,
            phase == Phase::Ready,
            ConditionReason::Unreadable,
            "because",
        )],
        pid,
        uid: None,
        incarnation: 1,
        deaths: 0,
        pipe_directory: String::new(),
        log_directory: String::new(),
        isolation: None,
        effective: None,
        drift: DriftStatus::default(),
        queue: Vec::new(),
        sessions: SessionCounts::default(),
        compute_modes: Vec::new(),
        layout: None,
        provisioning: None,
    }
}

/// Returns the status of a daemon that was read, with these servers.
fn ready(servers: &[(u32, &str)]) -> DaemonStatus {
    let servers = servers.iter().map(|(pid, status)| Server {
        mlopart_devices: None,
        pid: *pid,
        start_time: 1,
        uid: Some(0),
        status: status.to_string().into(),
        active_thread_percentage: None,
        memory_limits: Vec::new(),
        held_by: Vec::new(),
    });
    let effective = Effective {
        observed_at: 0,
        control_processes: 1,
        default_active_thread_percentage: None,
        default_priority: None,
        default_memory_limits: Vec::new(),
        servers: servers.collect(),
        partitions: None,
    };
    DaemonStatus { effective: Some(effective), ..status(Phase::Ready, Some(10)) }
}

fn client(pid: u32) -> ClientFacts {
    ClientFacts {
        id: ClientId { pid, start_time: 1 },
        server: 20,
        uid: Some(0),
        command: "train --epochs 3".into(),
        since: 0,
        memory: Vec::new(),
        container: None,
        mounted: MountedDirectories::default(),
        ancestors: Vec::new(),
        hint: None,
        sm_partition: None,
        connections: 2,
        active_thread_percentage: None,
        memory_limits: None,
    }
}

/// Describes observations in short.
fn short(observations: &[Observation]) -> Vec<String> {
    observations
        .iter()
        .map(|observation| match observation {
            Observation::Event(event) => event.event.kind().as_str().to_owned(),
            Observation::ClientArrived(client) => format!("+{}", client.id.pid),
            Observation::ClientLeft(client, None) => format!("-{}", client.pid),
            Observation::ClientLeft(client, Some(why)) => format!("-{} after {}", client.pid, why.as_str()),
            Observation::UnobservedClient(visit) => format!("~{}", visit.pid),
            Observation::ReadTo(_) => "read".to_owned(),
        })
        .collect()
}

fn detect(
    event_detector: &mut EventDetector,
    status: &DaemonStatus,
    clients: &[ClientFacts],
    server_log: &mut ServerLogEvents,
) -> Vec<Observation> {
    event_detector.detect(
        &Snapshot { desired: &desired(), status, clients, poll_failure: None, polled: true },
        server_log,
    )
}

fn reported(
    event_detector: &mut EventDetector,
    status: &DaemonStatus,
    clients: &[ClientFacts],
) -> Vec<String> {
    short(&detect(event_detector, status, clients, &mut ServerLogEvents::default()))
}

/// Reads these lines of the server's log.
fn read_record(server_log: &mut ServerLogEvents, texts: &[&str]) {
    let lines: String =
        texts.iter().flat_map(|text| ["[2026-11-21 10:37:17.446 Server    20] ", text, "\n"]).collect();
    for record in log::read(lines.as_bytes()) {
        server_log.read_record(&record);
    }
}

/// Returns the clients that the only event of this type names.
fn named(observations: &[Observation], kind: EventType) -> Vec<u32> {
    let mut events = observations.iter().filter_map(|observation| match observation {
        Observation::Event(event) if event.event.kind() == kind => Some(event.event.clone()),
        _ => None,
    });
    let mut event = events.next().unwrap_or_else(|| panic!("no {kind:?} in {:?}", short(observations)));
    assert!(events.next().is_none(), "twice: {:?}", short(observations));
    event.affected_clients_mut().iter().map(|client| client.pid).collect()
}

/// Step in which the clients of a killed server, and the server itself, are seen to be gone.
#[derive(Debug, Clone, Copy)]
enum Sight {
    /// The server's process has ended, before the next poll.
    ServerEnds,
    /// A poll that still lists the server, with this many of its clients.
    LeftOf(usize),
    /// A poll that lists neither.
    Nothing,
    /// A poll that lists the next server.
    Next,
}

#[test]
fn killed_server_names_its_clients_in_every_order() {
    use Sight::{LeftOf, Next, Nothing, ServerEnds};
    let orders: [&[Sight]; 8] = [
        &[ServerEnds, Nothing, Next],
        &[ServerEnds, Next],
        &[Nothing, Next],
        &[Next],
        &[LeftOf(0), Nothing, Next],
        &[LeftOf(0), ServerEnds, Next],
        &[LeftOf(1), Next],
        &[LeftOf(1), LeftOf(1), ServerEnds, Nothing, Next],
    ];
    for count in [1, 3, 20] {
        for order in orders {
            let all: Vec<ClientFacts> = (0..count).map(|number| client(100 + number)).collect();
            let pids: Vec<u32> = all.iter().map(|client| client.id.pid).collect();
            let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
            detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &all, &mut server_log);
            let (mut observations, mut listed) = (Vec::new(), all.clone());
            for sight in order {
                let status = match sight {
                    ServerEnds | Nothing => ready(&[]),
                    LeftOf(left) => {
                        listed.truncate(*left);
                        ready(&[(20, "ACTIVE")])
                    }
                    Next => ready(&[(21, "ACTIVE")]),
                };
                if matches!(sight, Nothing | Next) {
                    listed.clear();
                }
                let polled = !matches!(sight, ServerEnds);
                let seen = Snapshot {
                    desired: &desired(),
                    status: &status,
                    clients: &listed,
                    poll_failure: None,
                    polled,
                };
                observations.extend(event_detector.detect(&seen, &mut server_log));
            }
            let mut lost = named(&observations, EventType::ServerDied);
            lost.sort_unstable();
            if order.iter().filter(|sight| matches!(sight, LeftOf(_))).count() > 1 {
                // The others were gone for two polls under a server that lived on: they left by themselves.
                assert_eq!(lost, pids[..1], "{count} {order:?}");
                continue;
            }
            assert_eq!(lost, pids, "{count} {order:?}");
            let left: Vec<String> =
                short(&observations).into_iter().filter(|observation| observation.starts_with('-')).collect();
            assert_eq!(left.len(), pids.len(), "{count} {order:?}");
            assert!(
                left.iter().all(|observation| observation.ends_with("after server.died")),
                "{count} {order:?} {left:?}"
            );
            assert!(reported(&mut event_detector, &ready(&[(21, "ACTIVE")]), &[]).is_empty(), "once");
        }
    }
}

#[test]
fn disconnected_client_lost_no_work() {
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)], &mut server_log);
    read_record(&mut server_log, &["Client process 5 disconnected"]);
    let observations = detect(&mut event_detector, &ready(&[]), &[client(5), client(6)], &mut server_log);
    assert_eq!(named(&observations, EventType::ServerDied), [6]);
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut server_log);
    read_record(&mut server_log, &["Client process 5 disconnected"]);
    assert_eq!(
        short(&detect(&mut event_detector, &ready(&[]), &[], &mut server_log)),
        ["server.exited", "-5"]
    );
}

/// Lets a server die under client 6 after client 5 and this many others are logged as gone.
fn death_after_goodbyes(others: u32) -> Vec<Observation> {
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)], &mut server_log);
    for pid in (1_000..1_000 + others).chain([5]) {
        read_record(&mut server_log, &[&format!("Client process {pid} disconnected")]);
    }
    detect(&mut event_detector, &ready(&[]), &[client(5), client(6)], &mut server_log)
}

#[test]
fn thousands_of_disconnects_are_remembered() {
    let observations = death_after_goodbyes(5_000);
    assert_eq!(named(&observations, EventType::ServerDied), [6]);
    let Observation::Event(died) = &observations[0] else { panic!("{observations:?}") };
    assert!(died.event.message().ends_with("is lost"), "{}", died.event.message());
}

#[test]
fn missed_disconnects_make_lost_work_uncertain() {
    let observations = death_after_goodbyes(70_000);
    assert_eq!(named(&observations, EventType::ServerDied), [5, 6], "the goodbye of 5 could not be kept");
    let Observation::Event(died) = &observations[0] else { panic!("{observations:?}") };
    let message = died.event.message();
    assert!(message.ends_with("may have left before and lost nothing"), "{message}");
}

#[test]
fn client_missed_by_polls_can_lose_work() {
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[], &mut server_log);
    let connected = |pid, context| format!("Client {{PID: {pid}, Context ID: {context}}} connected");
    read_record(&mut server_log, &[&connected(5, 0), &connected(5, 1), &connected(6, 0)]);
    let observations = detect(&mut event_detector, &ready(&[]), &[], &mut server_log);
    assert_eq!(named(&observations, EventType::ServerDied), [5], "6 had no context yet");
}

#[test]
fn replaced_server_event_names_waiting_clients() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let what = ReplacedProcess { at: 0, pid: 20, is_daemon: false, waiting: vec![9], working: Some(vec![5]) };
    event_detector.replaced(&desired().name, &what);
    let observations =
        detect(&mut event_detector, &ready(&[]), &[client(5)], &mut ServerLogEvents::default());
    assert_eq!(short(&observations), ["server.replaced", "server.died"]);
    assert_eq!(
        (named(&observations, EventType::ServerReplaced), named(&observations, EventType::ServerDied)),
        (vec![5], vec![5])
    );
    let Observation::Event(replaced) = &observations[0] else { panic!("{observations:?}") };
    assert!(
        matches!(replaced.event.details(), Some(Details::Death { waiting, .. }) if waiting == [9]),
        "{replaced:?}"
    );
    let Observation::Event(died) = &observations[1] else { panic!("{observations:?}") };
    assert_eq!(died.cause, EventTrigger::Latest(EventType::ServerReplaced));
}

#[test]
fn external_quit_is_attributed_to_outsider() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let failure = Blocker { reason: ConditionReason::QuitByOthers, message: "quit -t 1".into() };
    event_detector.died(&desired().name, 10, &failure, &ServerLogEvents::default());
    let observations =
        detect(&mut event_detector, &status(Phase::Starting, None), &[], &mut ServerLogEvents::default());
    let Observation::Event(died) = &observations[0] else { panic!("{observations:?}") };
    assert_eq!(died.cause, EventCause::Outsider { command: None }.into());
    assert_eq!(named(&observations, EventType::DaemonDied), [5]);
}

#[test]
fn daemon_start_death_and_return_are_reported() {
    let mut event_detector = EventDetector::default();
    let name = desired().name;
    assert!(reported(&mut event_detector, &status(Phase::Unknown, None), &[]).is_empty());
    assert!(reported(&mut event_detector, &status(Phase::Starting, None), &[]).is_empty());
    event_detector.started(&name, 10);
    assert_eq!(reported(&mut event_detector, &status(Phase::Applying, Some(10)), &[]), ["daemon.started"]);
    let serves = ready(&[(20, "ACTIVE")]);
    let first = detect(&mut event_detector, &serves, &[], &mut ServerLogEvents::default());
    assert_eq!(short(&first), ["daemon.ready", "server.started"]);
    let about_gpu = |observation: &Observation| matches!(observation, Observation::Event(event) if event.subject().gpu == Some(uuid()));
    assert!(first.iter().all(about_gpu), "{first:?}");
    assert!(reported(&mut event_detector, &serves, &[]).is_empty(), "once");
    assert_eq!(reported(&mut event_detector, &serves, &[client(5)]), ["+5"]);
    let failure = Blocker { reason: ConditionReason::DiedOrDidNotStart, message: "secret".into() };
    event_detector.died(&name, 10, &failure, &ServerLogEvents::default());
    let dead = status(Phase::Starting, None);
    assert_eq!(
        reported(&mut event_detector, &dead, &[]),
        ["daemon.died", "server.exited", "-5 after daemon.died"]
    );
    assert_eq!(reported(&mut event_detector, &status(Phase::BackOff, None), &[]), ["daemon.back_off"]);
    assert_eq!(reported(&mut event_detector, &status(Phase::CrashLoop, None), &[]), ["daemon.crash_loop"]);
    event_detector.started(&name, 11);
    let again =
        detect(&mut event_detector, &status(Phase::Applying, Some(11)), &[], &mut ServerLogEvents::default());
    let Observation::Event(started) = &again[0] else { panic!("{again:?}") };
    assert_eq!(started.cause, EventTrigger::Latest(EventType::DaemonDied));
    let mut without = status(Phase::Applying, Some(11));
    without.conditions[0].reason = ConditionReason::ServerExits;
    assert_eq!(reported(&mut event_detector, &without, &[]), ["daemon.without_server"]);
    assert!(reported(&mut event_detector, &without, &[]).is_empty(), "once");
}

#[test]
fn server_death_is_cause_of_client_disconnects() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)]);
    assert_eq!(
        reported(&mut event_detector, &ready(&[(21, "ACTIVE")]), &[]),
        ["server.died", "server.started", "-5 after server.died", "-6 after server.died"]
    );
    // Nobody loses anything by the end of a server without clients.
    assert_eq!(
        reported(&mut event_detector, &ready(&[(22, "ACTIVE")]), &[]),
        ["server.exited", "server.started"]
    );
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let stopping = DaemonStatus { phase: Phase::Stopping, ..ready(&[]) };
    assert_eq!(reported(&mut event_detector, &stopping, &[])[..1], ["server.exited"], "it was requested");
}

#[test]
fn applied_change_emits_no_second_ready_event() {
    let mut event_detector = EventDetector::default();
    assert_eq!(reported(&mut event_detector, &ready(&[]), &[]), ["daemon.ready"]);
    assert!(
        reported(&mut event_detector, &DaemonStatus { phase: Phase::Applying, ..ready(&[]) }, &[]).is_empty()
    );
    let newer = DaemonStatus { observed_generation: 2, ..ready(&[]) };
    assert_eq!(reported(&mut event_detector, &newer, &[]), ["settings.applied"]);
    assert_eq!(
        reported(&mut event_detector, &DaemonStatus { phase: Phase::Wedged, ..newer.clone() }, &[]),
        ["daemon.wedged"]
    );
    assert_eq!(reported(&mut event_detector, &newer, &[]), ["daemon.ready"]);
    let blocked = |reason: ConditionReason| DaemonStatus {
        conditions: vec![Condition::new(ConditionType::Ready, false, reason, "because")],
        phase: Phase::Blocked,
        ..newer.clone()
    };
    assert_eq!(reported(&mut event_detector, &blocked(ConditionReason::GpuMissing), &[]), ["daemon.blocked"]);
    assert!(reported(&mut event_detector, &blocked(ConditionReason::GpuMissing), &[]).is_empty());
    assert_eq!(reported(&mut event_detector, &blocked(ConditionReason::MigEnabled), &[]), ["daemon.blocked"]);
}

#[test]
fn manager_restart_reports_only_changes_meanwhile() {
    let known = [ClientId { pid: 5, start_time: 1 }, ClientId { pid: 6, start_time: 1 }];
    let mut event_detector = EventDetector::of(known, false);
    assert!(
        reported(&mut event_detector, &status(Phase::Unknown, None), &[]).is_empty(),
        "before the first poll"
    );
    event_detector.found(&desired().name, 10, Some(0));
    let unread = status(Phase::Applying, Some(10));
    assert_eq!(reported(&mut event_detector, &unread, &[]), ["daemon.found"]);
    // Client 5 is present, 6 left, 7 came; the server existed before.
    let seen = reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5), client(7)]);
    assert_eq!(seen, ["daemon.ready", "-6", "+7"]);
    assert_eq!(
        reported(&mut event_detector, &ready(&[(21, "ACTIVE")]), &[client(5), client(7)]),
        ["server.died", "server.started"],
        "under clients that have not noticed yet"
    );
}

#[test]
fn connect_line_alone_reports_no_client() {
    let mut event_detector = EventDetector::default();
    let mut server_log = ServerLogEvents::default();
    let serves = ready(&[(20, "ACTIVE")]);
    reported(&mut event_detector, &serves, &[]);
    read_record(
        &mut server_log,
        &["Client {PID: 5, Context ID: 0} connected", "Client {PID: 6, Context ID: 0} connected"],
    );
    assert_eq!(short(&detect(&mut event_detector, &serves, &[client(5)], &mut server_log)), ["+5"]);
    read_record(&mut server_log, &["Client process 5 disconnected", "Client process 6 disconnected"]);
    assert_eq!(short(&detect(&mut event_detector, &serves, &[], &mut server_log)), ["~6", "-5"]);
    read_record(&mut server_log, &["Failed to accept new client. Maximum number of clients (48) reached."]);
    assert_eq!(short(&detect(&mut event_detector, &serves, &[], &mut server_log)), ["client.refused"]);
}

#[test]
fn drift_event_names_the_external_command() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[]), &[]);
    let drift = |present: bool| DriftStatus {
        count: 1,
        last_at: Some(1),
        last: vec![Drifted {
            setting: "priority".into(),
            desired: "normal".into(),
            read: "below_normal".into(),
        }],
        command: Some("set_default_client_priority 1".into()),
        present,
    };
    let changed = detect(
        &mut event_detector,
        &DaemonStatus { drift: drift(true), ..ready(&[]) },
        &[],
        &mut ServerLogEvents::default(),
    );
    let Observation::Event(event) = &changed[0] else { panic!("{changed:?}") };
    assert_eq!(event.event.kind(), EventType::SettingsDrifted);
    let by = EventCause::Outsider { command: Some("set_default_client_priority 1".into()) };
    assert_eq!(event.cause, by.into());
    assert_eq!(
        reported(&mut event_detector, &DaemonStatus { drift: drift(false), ..ready(&[]) }, &[]),
        ["settings.repaired"]
    );
}

#[test]
fn waiting_client_is_reported_once() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[]), &[]);
    let waiting = Waiting {
        uid: 7,
        waiting: vec![WaitingClient { pid: 30, since: 0 }],
        behind: ServedUser { uid: 0, server: 20, clients: vec![5] },
    };
    let queue = DaemonStatus { queue: vec![waiting], ..ready(&[]) };
    assert_eq!(reported(&mut event_detector, &queue, &[]), ["client.waiting"]);
    assert!(reported(&mut event_detector, &queue, &[]).is_empty());
}
