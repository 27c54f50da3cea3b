//! What is told of a daemon, change by change.

use super::super::wedge::Replacement;
use super::*;
use crate::domain::daemon::{
    Condition, Effective, Management, Mode, ServedUser, Server, SessionCounts, Waiting, WaitingClient,
};
use crate::domain::drift::{DriftPolicy, Drifted};
use crate::domain::event::{Cause, KnownFrom};
use crate::domain::gpu::GpuUuid;
use crate::domain::wedge::WedgeSettings;
use crate::domain::{Priority, ThreadPercentage};
use crate::mps::log;

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

fn desired() -> Desired {
    Desired {
        name: DaemonName::parse("gpu0").expect("name"),
        revision: 1,
        generation: 1,
        settings_since: 1,
        management: Management::Managed,
        running: true,
        share_gpus: false,
        schedulable: true,
        compute_mode: None,
        maintenance: None,
        gpus: vec![uuid()],
        mode: Mode::Shared,
        layout: None,
        multi_user: false,
        server_uid: 0,
        memory_limits: vec![None],
        percentage: ThreadPercentage::FULL,
        priority: Priority::Normal,
        drift_policy: DriftPolicy::Repair,
        wedge: WedgeSettings::default(),
        uids: vec![0],
        directories: std::collections::BTreeMap::new(),
    }
}

fn status(phase: Phase, pid: Option<u32>) -> DaemonStatus {
    DaemonStatus {
        phase,
        observed_generation: 1,
        conditions: vec![Condition::new("Ready", phase == Phase::Ready, "Word", "because")],
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
    }
}

/// One that was read, with these servers.
fn ready(servers: &[(u32, &str)]) -> DaemonStatus {
    let servers = servers.iter().map(|(pid, status)| Server {
        pid: *pid,
        start_time: 1,
        uid: Some(0),
        status: (*status).to_owned(),
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
        ancestors: Vec::new(),
        hint: None,
        sm_partition: None,
    }
}

/// Notes in short.
fn short(notes: &[Note]) -> Vec<String> {
    notes
        .iter()
        .map(|note| match note {
            Note::Happened(event) => event.kind.as_str().to_owned(),
            Note::Came(client) => format!("+{}", client.id.pid),
            Note::Left(client, None) => format!("-{}", client.pid),
            Note::Left(client, Some(why)) => format!("-{} after {}", client.pid, why.as_str()),
            Note::Visited(visit) => format!("~{}", visit.pid),
            Note::ReadTo(_) => "read".to_owned(),
        })
        .collect()
}

fn tell(
    chronicle: &mut Chronicle,
    status: &DaemonStatus,
    clients: &[ClientFacts],
    news: &mut News,
) -> Vec<Note> {
    chronicle.tell(&Seen { desired: &desired(), status, clients, trouble: None, looked: true }, news)
}

fn told(chronicle: &mut Chronicle, status: &DaemonStatus, clients: &[ClientFacts]) -> Vec<String> {
    short(&tell(chronicle, status, clients, &mut News::default()))
}

const FAULT: &str = "Client {PID: 5, Context: 1} encountered a fatal GPU error.";
const STICKY: &str = "The following client process have a sticky error set:";

/// Lines of the server's log.
fn hear(news: &mut News, texts: &[&str]) {
    let lines: String =
        texts.iter().flat_map(|text| ["[2026-11-21 10:37:17.446 Server    20] ", text, "\n"]).collect();
    for record in log::read(lines.as_bytes()) {
        news.hear(&record);
    }
}

/// The clients that the only event of this type names.
fn named(notes: &[Note], kind: EventType) -> Vec<u32> {
    let mut found = notes.iter().filter_map(|note| match note {
        Note::Happened(event) if event.kind == kind => event.details.as_ref(),
        _ => None,
    });
    let details = found.next().unwrap_or_else(|| panic!("no {kind:?} in {:?}", short(notes)));
    assert!(found.next().is_none(), "twice: {:?}", short(notes));
    details.affected_clients().iter().map(|client| client.pid).collect()
}

/// A step in which the clients of a server that was killed, and the server itself, are seen to be gone.
#[derive(Debug, Clone, Copy)]
enum Sight {
    /// The server's process has ended, and nobody has looked.
    ServerEnds,
    /// A look that lists the server still, and as many of its clients as these.
    LeftOf(usize),
    /// A look that lists neither.
    Nothing,
    /// A look that lists the next server.
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
            let (mut chronicle, mut news) = (Chronicle::default(), News::default());
            tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &all, &mut news);
            let (mut notes, mut listed) = (Vec::new(), all.clone());
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
                let looked = !matches!(sight, ServerEnds);
                let seen =
                    Seen { desired: &desired(), status: &status, clients: &listed, trouble: None, looked };
                notes.extend(chronicle.tell(&seen, &mut news));
            }
            let mut lost = named(&notes, EventType::ServerDied);
            lost.sort_unstable();
            if order.iter().filter(|sight| matches!(sight, LeftOf(_))).count() > 1 {
                // The others were gone for two looks under a server that lived on: they left by themselves.
                assert_eq!(lost, pids[..1], "{count} {order:?}");
                continue;
            }
            assert_eq!(lost, pids, "{count} {order:?}");
            let left: Vec<String> = short(&notes).into_iter().filter(|note| note.starts_with('-')).collect();
            assert_eq!(left.len(), pids.len(), "{count} {order:?}");
            assert!(
                left.iter().all(|note| note.ends_with("after server.died")),
                "{count} {order:?} {left:?}"
            );
            assert!(told(&mut chronicle, &ready(&[(21, "ACTIVE")]), &[]).is_empty(), "once");
        }
    }
}

#[test]
fn client_that_said_goodbye_lost_nothing() {
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)], &mut news);
    hear(&mut news, &["Client process 5 disconnected"]);
    let notes = tell(&mut chronicle, &ready(&[]), &[client(5), client(6)], &mut news);
    assert_eq!(named(&notes, EventType::ServerDied), [6]);
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut news);
    hear(&mut news, &["Client process 5 disconnected"]);
    assert_eq!(short(&tell(&mut chronicle, &ready(&[]), &[], &mut news)), ["server.exited", "-5"]);
}

/// A server that dies under client 6 after client 5 and this many others have said goodbye.
fn death_after_goodbyes(others: u32) -> Vec<Note> {
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)], &mut news);
    for pid in (1_000..1_000 + others).chain([5]) {
        hear(&mut news, &[&format!("Client process {pid} disconnected")]);
    }
    tell(&mut chronicle, &ready(&[]), &[client(5), client(6)], &mut news)
}

#[test]
fn thousands_of_goodbyes_hide_none() {
    let notes = death_after_goodbyes(5_000);
    assert_eq!(named(&notes, EventType::ServerDied), [6]);
    let Note::Happened(died) = &notes[0] else { panic!("{notes:?}") };
    assert!(died.message.ends_with("is lost"), "{}", died.message);
}

#[test]
fn missed_goodbyes_cast_doubt_on_lost_work() {
    let notes = death_after_goodbyes(70_000);
    assert_eq!(named(&notes, EventType::ServerDied), [5, 6], "the goodbye of 5 could not be kept");
    let Note::Happened(died) = &notes[0] else { panic!("{notes:?}") };
    assert!(died.message.ends_with("may have left before and lost nothing"), "{}", died.message);
}

#[test]
fn client_that_no_look_listed_lost_work_too() {
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[], &mut news);
    let connected = |pid, context| format!("Client {{PID: {pid}, Context ID: {context}}} connected");
    hear(&mut news, &[&connected(5, 0), &connected(5, 1), &connected(6, 0)]);
    let notes = tell(&mut chronicle, &ready(&[]), &[], &mut news);
    assert_eq!(named(&notes, EventType::ServerDied), [5], "6 had no context yet");
}

#[test]
fn replaced_server_names_who_waited() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let what = Replacement { at: 0, pid: 20, is_daemon: false, waiting: vec![9], working: Some(vec![5]) };
    chronicle.replaced(&desired().name, &what);
    let notes = tell(&mut chronicle, &ready(&[]), &[client(5)], &mut News::default());
    assert_eq!(short(&notes), ["server.replaced", "server.died"]);
    assert_eq!(
        (named(&notes, EventType::ServerReplaced), named(&notes, EventType::ServerDied)),
        (vec![5], vec![5])
    );
    let Note::Happened(replaced) = &notes[0] else { panic!("{notes:?}") };
    assert!(
        matches!(&replaced.details, Some(Details::Death { waiting, .. }) if waiting == &[9]),
        "{replaced:?}"
    );
    let Note::Happened(died) = &notes[1] else { panic!("{notes:?}") };
    assert_eq!(died.cause, Because::Latest(EventType::ServerReplaced));
}

#[test]
fn only_the_affected_leave_because_of_a_fault() {
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(6), client(7)], &mut news);
    hear(&mut news, &[FAULT, STICKY, "5", "6", "Client process 5 disconnected"]);
    let notes = tell(&mut chronicle, &ready(&[(20, "FAULT")]), &[client(6), client(7)], &mut news);
    assert_eq!(named(&notes, EventType::ServerFault), [5, 6]);
    assert_eq!(short(&notes), ["server.fault", "-5 after server.fault"]);
    // 7 ends normally before the server recovers.
    hear(&mut news, &["Client process 7 disconnected"]);
    assert_eq!(short(&tell(&mut chronicle, &ready(&[(20, "FAULT")]), &[client(6)], &mut news)), ["-7"]);
    hear(&mut news, &["Client process 6 disconnected"]);
    assert_eq!(
        short(&tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[], &mut news)),
        ["server.recovered", "-6 after server.fault"]
    );
}

#[test]
fn fault_waits_for_the_rest_of_its_lines() {
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut news);
    hear(&mut news, &[FAULT]);
    let faulty = ready(&[(20, "FAULT")]);
    assert!(short(&tell(&mut chronicle, &faulty, &[client(5)], &mut news)).is_empty());
    hear(&mut news, &[STICKY, "5", "6"]);
    let notes = tell(&mut chronicle, &faulty, &[client(5)], &mut news);
    assert_eq!(named(&notes, EventType::ServerFault), [5, 6]);
    // Not for ever.
    let (mut chronicle, mut news) = (Chronicle::default(), News::default());
    tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut news);
    hear(&mut news, &[FAULT]);
    tell(&mut chronicle, &faulty, &[client(5)], &mut news);
    assert_eq!(short(&tell(&mut chronicle, &faulty, &[client(5)], &mut news)), ["server.fault"]);
}

#[test]
fn quit_of_an_outsider_is_their_doing() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let failure = Trouble { reason: "QuitByOthers", message: "quit -t 1".into() };
    chronicle.died(&desired().name, 10, &failure, &News::default());
    let notes = tell(&mut chronicle, &status(Phase::Starting, None), &[], &mut News::default());
    let Note::Happened(died) = &notes[0] else { panic!("{notes:?}") };
    assert_eq!(died.cause, Cause::Outsider { command: None }.into());
    assert_eq!(named(&notes, EventType::DaemonDied), [5]);
}

#[test]
fn a_daemon_is_told_from_its_start_to_its_death_and_back() {
    let mut chronicle = Chronicle::default();
    let name = desired().name;
    assert!(told(&mut chronicle, &status(Phase::Unknown, None), &[]).is_empty());
    assert!(told(&mut chronicle, &status(Phase::Starting, None), &[]).is_empty());
    chronicle.started(&name, 10);
    assert_eq!(told(&mut chronicle, &status(Phase::Applying, Some(10)), &[]), ["daemon.started"]);
    let serves = ready(&[(20, "ACTIVE")]);
    let first = tell(&mut chronicle, &serves, &[], &mut News::default());
    assert_eq!(short(&first), ["daemon.ready", "server.started"]);
    let about_gpu = |note: &Note| matches!(note, Note::Happened(event) if event.subject.gpu == Some(uuid()));
    assert!(first.iter().all(about_gpu), "{first:?}");
    assert!(told(&mut chronicle, &serves, &[]).is_empty(), "once");
    assert_eq!(told(&mut chronicle, &serves, &[client(5)]), ["+5"]);
    let failure = Trouble { reason: "DiedOrDidNotStart", message: "secret".into() };
    chronicle.died(&name, 10, &failure, &News::default());
    let dead = status(Phase::Starting, None);
    assert_eq!(told(&mut chronicle, &dead, &[]), ["daemon.died", "server.exited", "-5 after daemon.died"]);
    assert_eq!(told(&mut chronicle, &status(Phase::BackOff, None), &[]), ["daemon.back_off"]);
    assert_eq!(told(&mut chronicle, &status(Phase::CrashLoop, None), &[]), ["daemon.crash_loop"]);
    chronicle.started(&name, 11);
    let again = tell(&mut chronicle, &status(Phase::Applying, Some(11)), &[], &mut News::default());
    let Note::Happened(started) = &again[0] else { panic!("{again:?}") };
    assert_eq!(started.cause, Because::Latest(EventType::DaemonDied));
}

#[test]
fn a_server_that_ends_under_its_clients_is_told_as_their_cause() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)]);
    assert_eq!(
        told(&mut chronicle, &ready(&[(21, "ACTIVE")]), &[]),
        ["server.died", "server.started", "-5 after server.died", "-6 after server.died"]
    );
    // Nobody loses anything by one that serves nobody.
    assert_eq!(told(&mut chronicle, &ready(&[(22, "ACTIVE")]), &[]), ["server.exited", "server.started"]);
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5)]);
    let stopping = DaemonStatus { phase: Phase::Stopping, ..ready(&[]) };
    assert_eq!(told(&mut chronicle, &stopping, &[])[..1], ["server.exited"], "it was asked for");
}

#[test]
fn who_leaves_a_server_with_a_fault_left_because_of_it() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)]);
    assert_eq!(
        told(&mut chronicle, &ready(&[(20, "FAULT")]), &[client(6)]),
        ["server.fault", "-5 after server.fault"]
    );
    assert_eq!(
        told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[]),
        ["server.recovered", "-6 after server.fault"]
    );
}

#[test]
fn a_change_that_is_applied_is_no_new_readiness() {
    let mut chronicle = Chronicle::default();
    assert_eq!(told(&mut chronicle, &ready(&[]), &[]), ["daemon.ready"]);
    assert!(told(&mut chronicle, &DaemonStatus { phase: Phase::Applying, ..ready(&[]) }, &[]).is_empty());
    let newer = DaemonStatus { observed_generation: 2, ..ready(&[]) };
    assert_eq!(told(&mut chronicle, &newer, &[]), ["settings.applied"]);
    assert_eq!(
        told(&mut chronicle, &DaemonStatus { phase: Phase::Wedged, ..newer.clone() }, &[]),
        ["daemon.wedged"]
    );
    assert_eq!(told(&mut chronicle, &newer, &[]), ["daemon.ready"]);
    let blocked = |reason: &str| DaemonStatus {
        conditions: vec![Condition::new("Ready", false, reason, "because")],
        phase: Phase::Blocked,
        ..newer.clone()
    };
    assert_eq!(told(&mut chronicle, &blocked("GpuMissing"), &[]), ["daemon.blocked"]);
    assert!(told(&mut chronicle, &blocked("GpuMissing"), &[]).is_empty());
    assert_eq!(told(&mut chronicle, &blocked("MigEnabled"), &[]), ["daemon.blocked"]);
}

#[test]
fn after_a_restart_of_the_manager_only_what_changed_meanwhile_is_told() {
    let known = [ClientId { pid: 5, start_time: 1 }, ClientId { pid: 6, start_time: 1 }];
    let mut chronicle = Chronicle::of(known);
    assert!(told(&mut chronicle, &status(Phase::Unknown, None), &[]).is_empty(), "nobody has looked");
    chronicle.found(&desired().name, 10, Some(0));
    let unread = status(Phase::Applying, Some(10));
    assert_eq!(told(&mut chronicle, &unread, &[]), ["daemon.found"]);
    // 5 is there, 6 went, 7 came; the server was there before.
    let seen = told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[client(5), client(7)]);
    assert_eq!(seen, ["daemon.ready", "-6", "+7"]);
    assert_eq!(
        told(&mut chronicle, &ready(&[(21, "ACTIVE")]), &[client(5), client(7)]),
        ["server.died", "server.started"],
        "under clients that have not noticed yet"
    );
}

#[test]
fn who_came_and_went_is_told_by_the_log_alone_and_a_line_alone_makes_no_client() {
    let mut chronicle = Chronicle::default();
    let mut news = News::default();
    let serves = ready(&[(20, "ACTIVE")]);
    told(&mut chronicle, &serves, &[]);
    hear(
        &mut news,
        &["Client {PID: 5, Context ID: 0} connected", "Client {PID: 6, Context ID: 0} connected"],
    );
    assert_eq!(short(&tell(&mut chronicle, &serves, &[client(5)], &mut news)), ["+5"]);
    hear(&mut news, &["Client process 5 disconnected", "Client process 6 disconnected"]);
    assert_eq!(short(&tell(&mut chronicle, &serves, &[], &mut news)), ["~6", "-5"]);
    hear(&mut news, &["Failed to accept new client. Maximum number of clients (48) reached."]);
    assert_eq!(short(&tell(&mut chronicle, &serves, &[], &mut news)), ["client.refused"]);
}

#[test]
fn a_fault_is_told_when_it_is_seen_and_as_hearsay_when_it_is_not() {
    let mut chronicle = Chronicle::default();
    let mut news = News::default();
    told(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[]);
    let hear = |news: &mut News| hear(news, &[FAULT, STICKY, "5"]);
    let from = |notes: &[Note]| match &notes[0] {
        Note::Happened(event) => match &event.details {
            Some(Details::Fault { known_from, reported, .. }) => (*known_from, reported.clone()),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    hear(&mut news);
    let faulty = tell(&mut chronicle, &ready(&[(20, "FAULT")]), &[], &mut news);
    assert_eq!(from(&faulty), (KnownFrom::Look, vec![5]));
    assert_eq!(short(&tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[], &mut news)), ["server.recovered"]);
    hear(&mut news);
    let heard = tell(&mut chronicle, &ready(&[(20, "ACTIVE")]), &[], &mut news);
    assert_eq!(from(&heard), (KnownFrom::ServerLog, vec![5]));
}

#[test]
fn drift_is_told_with_the_command_of_whoever_did_it() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[]), &[]);
    let drift = |present: bool| DriftStatus {
        count: 1,
        last_at: Some(1),
        last: vec![Drifted {
            setting: "priority".into(),
            wanted: "normal".into(),
            read: "below_normal".into(),
        }],
        command: Some("set_default_client_priority 1".into()),
        present,
    };
    let changed =
        tell(&mut chronicle, &DaemonStatus { drift: drift(true), ..ready(&[]) }, &[], &mut News::default());
    let Note::Happened(event) = &changed[0] else { panic!("{changed:?}") };
    assert_eq!(event.kind, EventType::SettingsDrifted);
    let by = Cause::Outsider { command: Some("set_default_client_priority 1".into()) };
    assert_eq!(event.cause, by.into());
    assert_eq!(
        told(&mut chronicle, &DaemonStatus { drift: drift(false), ..ready(&[]) }, &[]),
        ["settings.repaired"]
    );
}

#[test]
fn who_waits_is_told_once() {
    let mut chronicle = Chronicle::default();
    told(&mut chronicle, &ready(&[]), &[]);
    let waiting = Waiting {
        uid: 7,
        waiting: vec![WaitingClient { pid: 30, since: 0 }],
        behind: ServedUser { uid: 0, server: 20, clients: vec![5] },
    };
    let queue = DaemonStatus { queue: vec![waiting], ..ready(&[]) };
    assert_eq!(told(&mut chronicle, &queue, &[]), ["client.waiting"]);
    assert!(told(&mut chronicle, &queue, &[]).is_empty());
}
