//! What is told of a daemon, change by change.

use super::*;
use crate::domain::daemon::{
    Condition, Effective, Management, Mode, ServedUser, SessionCounts, Waiting, WaitingClient,
};
use crate::domain::drift::{DriftPolicy, Drifted};
use crate::domain::gpu::GpuUuid;
use crate::domain::{Priority, ThreadPercentage};
use crate::mps::log;

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

fn desired() -> Desired {
    Desired {
        name: DaemonName::parse("gpu0").expect("name"),
        generation: 1,
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
        uids: vec![0],
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
    chronicle.died(&name, 10, &Trouble { reason: "DiedOrDidNotStart", message: "secret".into() });
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
        ["server.exited", "server.started"]
    );
}

#[test]
fn who_came_and_went_is_told_by_the_log_alone_and_a_line_alone_makes_no_client() {
    let mut chronicle = Chronicle::default();
    let mut news = News::default();
    let serves = ready(&[(20, "ACTIVE")]);
    told(&mut chronicle, &serves, &[]);
    let hear = |news: &mut News, texts: &[&str]| {
        for text in texts {
            let line = format!("[2026-11-21 10:37:17.446 Server    20] {text}\n");
            for record in log::read(line.as_bytes()) {
                news.hear(&record);
            }
        }
    };
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
    let hear = |news: &mut News| {
        let line = "[2026-11-21 10:37:17.446 Server    20] Client {PID: 5, Context: 1} encountered a fatal GPU error.\n";
        for record in log::read(line.as_bytes()) {
            news.hear(&record);
        }
    };
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
