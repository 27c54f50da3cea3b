//! The decisions of [`State`], one by one.

use super::*;
use crate::domain::daemon::{Management, MemoryReading, Mode};
use crate::domain::wedge::WedgeSettings;
use crate::domain::{DaemonName, MemoryLimit, Priority, ThreadPercentage};

const RHYTHM: Rhythm = Rhythm(8_000);

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

pub(in super::super) fn desired() -> Desired {
    Desired {
        name: DaemonName::parse("gpu0").expect("name"),
        revision: 1,
        generation: 3,
        settings_since: 3,
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
        memory_limits: vec![Some(MemoryLimit::parse("4G").expect("4G"))],
        percentage: ThreadPercentage::FULL,
        priority: Priority::Normal,
        drift_policy: DriftPolicy::Repair,
        wedge: WedgeSettings::default(),
        uids: vec![0],
        directories: std::collections::BTreeMap::new(),
    }
}

fn process() -> Process {
    Process {
        identity: Identity { pid: 10, start_time: 1 },
        gpus: vec![uuid()],
        mode: Mode::Shared,
        multi_user: false,
    }
}

fn seen(limit: Option<u64>, servers: &[(u32, &str)]) -> Effective {
    let reading = || {
        vec![MemoryReading { gpu: uuid(), bytes: limit, exact: true, unreadable: None, in_server_log: None }]
    };
    Effective {
        observed_at: 0,
        control_processes: 1,
        default_active_thread_percentage: Some(ThreadPercentage::FULL),
        default_priority: Some(Priority::Normal),
        default_memory_limits: reading(),
        servers: servers
            .iter()
            .map(|(pid, status)| Server {
                pid: *pid,
                start_time: 1,
                uid: Some(0),
                status: (*status).into(),
                active_thread_percentage: Some(ThreadPercentage::FULL),
                memory_limits: reading(),
                held_by: Vec::new(),
            })
            .collect(),
        partitions: None,
    }
}

fn gone() -> Trouble {
    Trouble { reason: "DiedOrDidNotStart", message: "gone".into() }
}

fn running() -> State {
    let mut state = State::default();
    state.searched(Ok(Some(process())), 0);
    state
}

#[test]
fn an_earlier_process_is_looked_for_before_anything_is_started() {
    assert_eq!(State::default().decide(&desired(), 0, 0), Action::Search);
    let mut state = State::default();
    state.searched(Ok(None), 0);
    assert_eq!(state.decide(&desired(), 0, 0), Action::Start);
}

#[test]
fn defaults_are_written_before_the_first_server_and_checked_after_it() {
    let (desired, mut state) = (desired(), running());
    assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![]));
    state.looked(Look::Seen(seen(None, &[])), false, &desired, 0, RHYTHM);
    assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![Difference::DefaultMemory(0)]));
    state.looked(Look::Seen(seen(Some(4 << 30), &[])), true, &desired, 0, RHYTHM);
    assert_eq!(state.phase(&desired, 0), Phase::Applying);
    assert_eq!(state.decide(&desired, 0, 0), Action::StartServer(0));
    state.server_asked(0);
    assert_eq!(state.decide(&desired, 0, 0), Action::Wait(20));
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 20, RHYTHM);
    assert_eq!(state.phase(&desired, 20), Phase::Ready);
    assert_eq!(state.decide(&desired, 0, 20), Action::Wait(8_020));
}

#[test]
fn a_server_that_does_not_come_is_asked_for_again() {
    let (desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, 0, RHYTHM);
    state.server_asked(0);
    state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, SERVER_LISTED_MS, RHYTHM);
    assert_eq!(state.decide(&desired, 0, SERVER_LISTED_MS), Action::StartServer(0));
    state.server_asked(SERVER_LISTED_MS);
    let listed = Look::Seen(seen(Some(4 << 30), &[(20, "INITIALIZING")]));
    state.looked(listed, false, &desired, 2 * SERVER_LISTED_MS, RHYTHM);
    assert_eq!(
        state.decide(&desired, 0, 2 * SERVER_LISTED_MS),
        Action::Wait(2 * SERVER_LISTED_MS + SERVER_POLL_MS)
    );
}

#[test]
fn a_new_generation_is_not_ready_before_it_was_read_back() {
    let (mut desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    assert!(state.is_ready(&desired));
    desired.generation += 1;
    desired.settings_since += 1;
    assert!(!state.is_ready(&desired), "the same settings, but not read under this generation");
    assert!(!state.carry_over(&desired));
}

#[test]
fn a_generation_without_new_settings_stays_ready() {
    let (mut desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    desired.generation += 1;
    desired.schedulable = false;
    assert!(state.carry_over(&desired));
    assert_eq!((state.applied, state.phase(&desired, 1)), (desired.generation, Phase::Ready));
    assert!(!state.carry_over(&desired), "once");
    // What somebody else changed is still to be written.
    desired.generation += 1;
    state.looked(Look::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")])), false, &desired, 2, RHYTHM);
    assert!(!state.carry_over(&desired));
}

#[test]
fn without_its_gpu_a_daemon_is_read_and_nothing_else_and_is_well_when_it_is_back() {
    let (desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    let lost = Obstacle { reason: "GpuMissing", message: String::new() };
    state.gpus_lost(Some(lost));
    assert_eq!(state.phase(&desired, 1), Phase::Blocked);
    // Its server died of it, and its settings differ: neither is put right.
    state.looked(Look::Seen(seen(None, &[])), false, &desired, 1, RHYTHM);
    assert_eq!(state.decide(&desired, 0, 2), Action::Wait(8_001));
    assert_eq!(state.decide(&desired, 0, 8_001), Action::Sync(vec![]));
    state.gpus_lost(None);
    assert_eq!(state.decide(&desired, 0, 8_001), Action::Sync(vec![Difference::DefaultMemory(0)]));
}

#[test]
fn drift_is_written_again_and_not_for_ever_at_full_speed() {
    let (desired, mut state) = (desired(), running());
    let drifted = || Look::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.looked(drifted(), false, &desired, 0, RHYTHM);
    for _ in 0..EAGER_WRITES {
        assert!(matches!(state.decide(&desired, 0, 1), Action::Sync(wrong) if wrong.len() == 2));
        state.looked(drifted(), true, &desired, 1, RHYTHM);
    }
    assert_eq!(state.decide(&desired, 0, 2), Action::Wait(8_001));
    assert_eq!(state.phase(&desired, 2), Phase::Applying);
}

#[test]
fn nothing_but_reads_goes_to_a_wedged_daemon() {
    let (desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(1 << 30), &[])), false, &desired, 0, RHYTHM);
    state.looked(Look::Unanswered("terminate_client 1 2".into()), false, &desired, 0, RHYTHM);
    assert_eq!(state.phase(&desired, 0), Phase::Wedged);
    assert_eq!(state.decide(&desired, 0, 0), Action::Wait(1_000));
    assert_eq!(state.decide(&desired, 0, 1_000), Action::Sync(vec![]));
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 1_000, RHYTHM);
    assert_eq!(state.phase(&desired, 1_000), Phase::Ready);
}

#[test]
fn the_first_death_costs_no_pause_and_the_next_ones_more_and_more() {
    let (desired, mut state) = (desired(), running());
    let mut now = 0;
    for pause in [0, 1_000, 2_000, 4_000, 8_000] {
        state.failed(gone(), now);
        let expected = if pause == 0 { Action::Start } else { Action::Wait(now + pause) };
        assert_eq!(state.decide(&desired, 0, now), expected);
        now += pause;
        state.started(process());
    }
    state.failed(gone(), now);
    assert_eq!(state.phase(&desired, now), Phase::CrashLoop);
    assert_eq!(state.last_failure, Some(gone()));
    now += FAILURE_WINDOW_MS;
    state.failed(gone(), now);
    assert_eq!(state.decide(&desired, 0, now), Action::Start, "a minute later all is forgiven");
}

#[test]
fn a_daemon_that_was_started_otherwise_is_replaced_only_when_it_serves_nobody() {
    let (mut desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    let multi_user = Desired { multi_user: true, ..desired.clone() };
    desired.mode = Mode::Static;
    for desired in [desired, multi_user] {
        assert!(state.needs_restart(&desired) && !state.is_ready(&desired));
        assert_eq!(state.decide(&desired, 1, 1), Action::Wait(8_000));
        assert_eq!(state.decide(&desired, 0, 1), Action::Stop);
    }
}

#[test]
fn a_dead_server_ends_readiness_and_is_looked_for_before_another_is_started() {
    let (desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    state.server_died(|_| false);
    assert_eq!(state.phase(&desired, 1), Phase::Applying);
    assert_eq!(state.decide(&desired, 0, 1), Action::Sync(vec![]));
    state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, 1, RHYTHM);
    assert_eq!(state.decide(&desired, 0, 1), Action::StartServer(0));
}

#[test]
fn nothing_but_looks_comes_of_a_daemon_that_is_only_observed() {
    let (desired, mut state) = (Desired { management: Management::Observed, ..desired() }, running());
    assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![]));
    let differs = Look::Seen(seen(Some(1 << 30), &[]));
    state.looked(differs, false, &desired, 0, RHYTHM);
    state.restart = true;
    for now in [1, 8_000] {
        let expected = if now < 8_000 { Action::Wait(8_000) } else { Action::Sync(vec![]) };
        assert_eq!(state.decide(&desired, 0, now), expected);
        let stopped = Desired { running: false, multi_user: true, ..desired.clone() };
        assert_eq!(state.decide(&stopped, 0, now), expected, "whatever the rest of its spec says");
    }
    assert_eq!(state.phase(&desired, 1), Phase::Observed);
    state.absent(gone(), 9_000);
    assert_eq!(state.phase(&desired, 9_000), Phase::Absent);
    assert_eq!(state.decide(&desired, 0, 9_000), Action::Search);
    state.searched(Ok(None), 9_000);
    assert_eq!(state.decide(&desired, 0, 9_001), Action::Wait(14_000), "looked for again, never started");

    // What stands in the way of taking it up again stays in the way: it is looked for at the same pace.
    let (mut now, mut searches) = (14_000, 0);
    while now < 74_000 {
        match state.decide(&desired, 0, now) {
            Action::Search => {
                searches += 1;
                state.searched(Err(Obstacle { reason: "ServesOtherwise", message: String::new() }), now);
            }
            Action::Wait(until) => now = until,
            other => panic!("{other:?}"),
        }
        assert!(searches <= 12, "{searches} by {now}");
    }
    assert_eq!(searches, 12);
    assert_eq!(state.phase(&desired, now), Phase::Blocked);
}

#[test]
fn what_cannot_be_read_is_not_ready() {
    let (desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    state.looked(Look::Busy("others use it".into()), false, &desired, 1, RHYTHM);
    assert_eq!(state.phase(&desired, 1), Phase::Applying);
}

#[test]
fn a_server_of_another_user_is_replaced_only_when_it_serves_nobody() {
    let (mut desired, mut state) = (desired(), running());
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    desired.server_uid = 1000;
    assert!(!state.is_ready(&desired), "clients of uid 1000 would wait");
    assert_eq!(state.decide(&desired, 1, 1), Action::Wait(8_000));
    assert_eq!(state.decide(&desired, 0, 1), Action::StartServer(1000));
    // Asked once: a daemon that keeps the old server is not asked again and again.
    state.server_asked(1);
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 2, RHYTHM);
    assert_eq!(state.decide(&desired, 0, 2), Action::Wait(8_002));
}

#[test]
fn settings_that_were_in_force_and_are_not_are_drift_and_put_back() {
    let (desired, mut state) = (desired(), running());
    let right = || Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")]));
    let drifted = || Look::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.looked(drifted(), false, &desired, 0, RHYTHM);
    assert_eq!(state.drift, DriftStatus::default(), "never in force yet");
    state.looked(right(), true, &desired, 1, RHYTHM);
    state.looked(drifted(), false, &desired, 2, RHYTHM);
    assert_eq!((state.drift.count, state.drift.last_at, state.drift.present), (1, Some(2), true));
    assert_eq!(state.drift.last.len(), 2, "the default and the server's");
    assert_eq!(state.phase(&desired, 2), Phase::Applying);
    assert!(matches!(state.decide(&desired, 0, 2), Action::Sync(wrong) if wrong.len() == 2));
    state.looked(right(), true, &desired, 3, RHYTHM);
    assert_eq!((state.drift.count, state.drift.present), (1, false), "put back, and still told");
    assert_eq!(state.phase(&desired, 3), Phase::Ready);
    state.looked(drifted(), false, &desired, 4, RHYTHM);
    state.looked(drifted(), true, &desired, 5, RHYTHM);
    assert_eq!(state.drift.count, 3, "again, and again after it was put back");
}

#[test]
fn drift_that_is_only_to_be_reported_stays_until_the_next_generation() {
    let (mut desired, mut state) = (desired(), running());
    desired.drift_policy = DriftPolicy::Report;
    let drifted = || Look::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.looked(drifted(), false, &desired, 0, RHYTHM);
    assert!(
        matches!(state.decide(&desired, 0, 0), Action::Sync(wrong) if wrong.len() == 2),
        "the first time"
    );
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), true, &desired, 0, RHYTHM);
    for now in 1..4 {
        state.looked(drifted(), false, &desired, now, RHYTHM);
        assert_eq!(state.decide(&desired, 0, now), Action::Wait(now + RHYTHM.0));
        assert_eq!((state.drift.count, state.drift.present), (1, true), "found once");
    }
    assert!(!state.is_ready(&desired));
    desired.generation += 1;
    assert!(matches!(state.decide(&desired, 0, 9), Action::Sync(wrong) if wrong.len() == 2));
}

#[test]
fn a_log_line_asks_for_one_look_soon() {
    let (desired, mut state) = (desired(), running());
    let right = || Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")]));
    state.looked(right(), false, &desired, 10_000, RHYTHM);
    state.wake(10_001);
    state.wake(10_050);
    assert_eq!(state.decide(&desired, 0, 10_051), Action::Wait(10_100));
    assert_eq!(state.decide(&desired, 0, 10_100), Action::Sync(vec![]));
    state.looked(right(), false, &desired, 10_101, RHYTHM);
    assert_eq!(state.decide(&desired, 0, 10_102), Action::Wait(18_101), "asked for once");
    state.wake(12_000);
    assert_eq!(state.decide(&desired, 0, 12_000), Action::Wait(12_030), "a burst ends first");
    state.looked(Look::Busy("others".into()), false, &desired, 12_030, RHYTHM);
    state.wake(12_031);
    assert_eq!(state.decide(&desired, 0, 12_100), Action::Wait(12_130));
}

#[test]
fn what_could_not_be_read_has_a_name_until_it_can() {
    let (desired, mut state) = (desired(), running());
    let reason = |state: &State| state.trouble.as_ref().map(|trouble| trouble.reason);
    for (look, expected) in [
        (Look::Busy("x".into()), "OthersInterfere"),
        (Look::Unreadable("x".into()), "Unreadable"),
        (Look::NoFiles("x".into()), "FilesExhausted"),
        (Look::NotRun("x".into()), "ControlProgramFailed"),
        (Look::Misbehaved("x".into()), "ControlProgramFailed"),
        (Look::Mute("x".into()), "ControlProgramFailed"),
        (Look::Unanswered("x".into()), "Wedged"),
    ] {
        state.looked(look, false, &desired, 0, RHYTHM);
        assert_eq!(reason(&state), Some(expected));
        assert_ne!(state.phase(&desired, 0), Phase::Ready);
    }
    state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
    assert_eq!((reason(&state), state.phase(&desired, 0)), (None, Phase::Ready));
}
