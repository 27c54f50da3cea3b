//! The decisions of [`DaemonReconciler`], one by one.

use super::decide::{EAGER_WRITES, SERVER_LISTED_MS};
use super::*;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::{Management, MemoryReading, Mode, Phase, Server};
use crate::domain::difference::SettingDifference;
use crate::domain::drift::DriftPolicy;
use crate::domain::mlopart::MlopartDevice;
use crate::domain::wedge::WedgeSettings;
use crate::domain::{DaemonName, GpuUuid, MemoryLimit, Priority, ThreadPercentage};
use crate::supervisor::observe::poll_outcome::PollOutcome;

const INTERVAL: PollInterval = PollInterval(8_000);

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

pub(crate) fn desired() -> Desired {
    Desired {
        name: DaemonName::parse("gpu0").expect("name"),
        revision: 1,
        generation: 3,
        settings_since: 3,
        management: Management::Managed,
        running: true,
        share_gpus: false,
        mlopart: false,
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
        others: crate::domain::plan::OtherUsers::default(),
        directories: std::collections::BTreeMap::new(),
        draining: std::collections::BTreeSet::new(),
    }
}

fn process() -> ControlProcess {
    ControlProcess {
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
                mlopart_devices: None,
                pid: *pid,
                start_time: 1,
                uid: Some(0),
                status: status.to_string().into(),
                active_thread_percentage: Some(ThreadPercentage::FULL),
                memory_limits: reading(),
                held_by: Vec::new(),
            })
            .collect(),
        partitions: None,
    }
}

fn gone() -> Blocker {
    Blocker { reason: ConditionReason::DiedOrDidNotStart, message: "gone".into() }
}

fn running() -> DaemonReconciler {
    let mut state = DaemonReconciler::default();
    state.searched(Ok(Some(process())), 0);
    state
}

#[test]
fn earlier_process_is_searched_before_start() {
    assert_eq!(DaemonReconciler::default().decide(&desired(), 0, 0), ReconcileStep::Search);
    let mut state = DaemonReconciler::default();
    state.searched(Ok(None), 0);
    assert_eq!(state.decide(&desired(), 0, 0), ReconcileStep::Start);
}

#[test]
fn defaults_are_written_before_first_server_starts() {
    let (desired, mut state) = (desired(), running());
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Sync(vec![]));
    state.polled(PollOutcome::Seen(seen(None, &[])), false, &desired, 0, INTERVAL);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Sync(vec![SettingDifference::DefaultMemory(0)]));
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), true, &desired, 0, INTERVAL);
    assert_eq!(state.phase(&desired, 0), Phase::Applying);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::StartServer(0));
    state.server_requested(0, 0);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Wait(20));
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 20, INTERVAL);
    assert_eq!(state.phase(&desired, 20), Phase::Ready);
    assert_eq!(state.decide(&desired, 0, 20), ReconcileStep::Wait(8_020));
}

#[test]
fn server_without_mlopart_devices_is_replaced() {
    let desired = Desired { mlopart: true, memory_limits: vec![None], ..desired() };
    let read = |pid: u32, devices: &[u32]| {
        let mut effective = seen(None, &[(pid, "ACTIVE")]);
        let device =
            |number: &u32| MlopartDevice { gpu: uuid(), number: *number, uuid: format!("GPU-{number}") };
        effective.servers[0].mlopart_devices = Some(devices.iter().map(device).collect());
        PollOutcome::Seen(effective)
    };
    let mut state = running();
    // MPS has started one for a client that came first.
    state.polled(read(20, &[]), false, &desired, 0, INTERVAL);
    assert_eq!(state.phase(&desired, 0), Phase::Applying);
    assert_eq!(state.decide(&desired, 1, 0), ReconcileStep::StartServer(0), "whether it has clients or not");
    state.server_requested(0, 0);
    assert!(matches!(state.decide(&desired, 1, 0), ReconcileStep::Wait(_)), "MPS waits for the client");
    state.polled(read(21, &[0, 1]), false, &desired, 40, INTERVAL);
    assert_eq!(state.phase(&desired, 40), Phase::Ready);
    // Whole GPUs are desired again: MPS replaces no such server by itself.
    let whole = Desired { mlopart: false, ..desired };
    assert!(state.needs_restart(&whole));
    assert_eq!(state.decide(&whole, 0, 50), ReconcileStep::Stop);
}

#[test]
fn changed_defaults_are_drift_before_any_server_runs() {
    let (desired, mut state) = (desired(), running());
    let read = |limit| PollOutcome::Seen(seen(limit, &[]));
    state.polled(read(None), false, &desired, 0, INTERVAL);
    assert_eq!(state.drift.count, 0, "nothing was set yet");
    state.polled(read(Some(4 << 30)), true, &desired, 1, INTERVAL);
    state.polled(read(Some(1 << 30)), false, &desired, 2, INTERVAL);
    assert_eq!((state.drift.count, state.drift.present), (1, true));
    assert!(matches!(state.decide(&desired, 0, 2), ReconcileStep::Sync(wrong) if wrong.len() == 1));
    let reports = Desired { drift_policy: DriftPolicy::Report, ..desired.clone() };
    assert_eq!(state.decide(&reports, 0, 2), ReconcileStep::StartServer(0), "it stays as others made it");
    state.polled(read(Some(4 << 30)), true, &desired, 3, INTERVAL);
    assert_eq!((state.drift.count, state.drift.present), (1, false));
}

#[test]
fn failing_server_is_requested_after_a_pause() {
    let (desired, mut state) = (desired(), running());
    let failed = |pid| FailedServer { pid, status: 1 };
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), false, &desired, 0, INTERVAL);
    state.server_failed(failed(19), 0);
    assert_eq!(state.failed_server, None, "a line that nobody asked for");
    let mut now = 0;
    for (pid, pause) in [(20, 0), (21, 1_000), (22, 2_000), (23, 4_000)] {
        assert_eq!(state.decide(&desired, 0, now), ReconcileStep::StartServer(0));
        state.server_requested(0, now);
        state.server_failed(failed(pid), now);
        state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), false, &desired, now, INTERVAL);
        if pause > 0 {
            assert_eq!(state.decide(&desired, 0, now), ReconcileStep::Wait(now + pause));
        }
        now += pause;
    }
    assert_eq!((state.failed_server, state.failed_servers()), (Some(failed(23)), 4));
    // An explicit request tries at once, and a server that takes clients ends the failure.
    state.try_again();
    assert_eq!(state.decide(&desired, 0, now), ReconcileStep::StartServer(0));
    assert_eq!((state.failed_server, state.failed_servers()), (None, 0), "nothing is counted before that");
    state.server_requested(0, now);
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(24, "ACTIVE")])), false, &desired, now, INTERVAL);
    assert_eq!((state.failed_server, state.failed_servers()), (None, 0));
}

#[test]
fn missing_server_is_requested_again() {
    let (desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), false, &desired, 0, INTERVAL);
    state.server_requested(0, 0);
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), false, &desired, SERVER_LISTED_MS, INTERVAL);
    assert_eq!(state.decide(&desired, 0, SERVER_LISTED_MS), ReconcileStep::StartServer(0));
    state.server_requested(0, SERVER_LISTED_MS);
    let listed = PollOutcome::Seen(seen(Some(4 << 30), &[(20, "INITIALIZING")]));
    state.polled(listed, false, &desired, 2 * SERVER_LISTED_MS, INTERVAL);
    assert_eq!(
        state.decide(&desired, 0, 2 * SERVER_LISTED_MS),
        ReconcileStep::Wait(2 * SERVER_LISTED_MS + SERVER_POLL_MS)
    );
}

#[test]
fn server_that_no_log_speaks_of_is_counted() {
    let (desired, mut state) = (desired(), running());
    let none = || PollOutcome::Seen(seen(Some(4 << 30), &[]));
    state.polled(none(), false, &desired, 0, INTERVAL);
    let mut now = 0;
    for (times, pause) in [(1, 0), (2, 1_000), (3, 2_000)] {
        assert_eq!(state.decide(&desired, 0, now), ReconcileStep::StartServer(0));
        state.server_requested(0, now);
        state.polled(none(), false, &desired, now + SERVER_LISTED_MS - 1, INTERVAL);
        assert_eq!(state.failed_servers(), times - 1, "it may be on its way");
        now += SERVER_LISTED_MS;
        state.polled(none(), false, &desired, now, INTERVAL);
        assert_eq!((state.failed_server, state.failed_servers()), (None, times));
        if pause > 0 {
            assert_eq!(state.decide(&desired, 0, now), ReconcileStep::Wait(now + pause));
        }
        now += pause;
    }
}

#[test]
fn new_generation_is_unready_until_read_back() {
    let (mut desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    assert!(state.is_ready(&desired));
    desired.generation += 1;
    desired.settings_since += 1;
    assert!(!state.is_ready(&desired), "the same settings, but not read under this generation");
    assert!(!state.carry_over(&desired));
}

#[test]
fn a_generation_without_new_settings_stays_ready() {
    let (mut desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    desired.generation += 1;
    desired.schedulable = false;
    assert!(state.carry_over(&desired));
    assert_eq!((state.applied, state.phase(&desired, 1)), (desired.generation, Phase::Ready));
    assert!(!state.carry_over(&desired), "once");
    // A setting that another program changed is still to be written, unless the newer generation only reports drift.
    desired.generation += 1;
    state.polled(PollOutcome::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")])), false, &desired, 2, INTERVAL);
    assert!(!state.carry_over(&desired));
    assert!(matches!(state.decide(&desired, 0, 3), ReconcileStep::Sync(wrong) if !wrong.is_empty()));
    desired.generation += 1;
    desired.drift_policy = DriftPolicy::Report;
    assert!(!state.carry_over(&desired));
    let decided = state.decide(&desired, 0, 3);
    assert!(matches!(decided, ReconcileStep::Wait(_)), "{decided:?}");
}

#[test]
fn daemon_without_gpu_is_only_read() {
    let (desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    let lost = Blocker { reason: ConditionReason::GpuMissing, message: String::new() };
    state.gpus_lost(Some(lost));
    assert_eq!(state.phase(&desired, 1), Phase::Blocked);
    // Its server died of the change, and its settings differ: neither is restored.
    state.polled(PollOutcome::Seen(seen(None, &[])), false, &desired, 1, INTERVAL);
    assert_eq!(state.decide(&desired, 0, 2), ReconcileStep::Wait(8_001));
    assert_eq!(state.decide(&desired, 0, 8_001), ReconcileStep::Sync(vec![]));
    state.gpus_lost(None);
    assert_eq!(
        state.decide(&desired, 0, 8_001),
        ReconcileStep::Sync(vec![SettingDifference::DefaultMemory(0)])
    );
}

#[test]
fn repeated_drift_repair_slows_down() {
    let (desired, mut state) = (desired(), running());
    let drifted = || PollOutcome::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.polled(drifted(), false, &desired, 0, INTERVAL);
    for _ in 0..EAGER_WRITES {
        assert!(matches!(state.decide(&desired, 0, 1), ReconcileStep::Sync(wrong) if wrong.len() == 2));
        state.polled(drifted(), true, &desired, 1, INTERVAL);
    }
    assert_eq!(state.decide(&desired, 0, 2), ReconcileStep::Wait(8_001));
    assert_eq!(state.phase(&desired, 2), Phase::Applying);
}

#[test]
fn wedged_daemon_is_only_read() {
    let (desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(1 << 30), &[])), false, &desired, 0, INTERVAL);
    state.polled(PollOutcome::Unanswered("terminate_client 1 2".into()), false, &desired, 0, INTERVAL);
    assert_eq!(state.phase(&desired, 0), Phase::Wedged);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Wait(1_000));
    assert_eq!(state.decide(&desired, 0, 1_000), ReconcileStep::Sync(vec![]));
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 1_000, INTERVAL);
    assert_eq!(state.phase(&desired, 1_000), Phase::Ready);
}

#[test]
fn first_restart_is_immediate_then_backs_off() {
    let (desired, mut state) = (desired(), running());
    let mut now = 0;
    for pause in [0, 1_000, 2_000, 4_000, 8_000] {
        state.failed(gone(), now);
        let expected = if pause == 0 { ReconcileStep::Start } else { ReconcileStep::Wait(now + pause) };
        assert_eq!(state.decide(&desired, 0, now), expected);
        now += pause;
        state.started(process());
    }
    state.failed(gone(), now);
    assert_eq!(state.phase(&desired, now), Phase::CrashLoop);
    assert_eq!(state.last_failure, Some(gone()));
    now += FAILURE_WINDOW_MS;
    state.failed(gone(), now);
    assert_eq!(state.decide(&desired, 0, now), ReconcileStep::Start, "a minute later all is forgiven");
    state.stopped();
    assert_eq!(state.last_failure, None, "a daemon that is stopped on request has no failure");
}

#[test]
fn explicit_start_resets_the_backoff() {
    let (desired, mut state) = (desired(), running());
    for _ in 0..5 {
        state.failed(gone(), 0);
    }
    assert_eq!(state.phase(&desired, 0), Phase::CrashLoop);
    state.try_again();
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Start);
    state.failed(gone(), 0);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Start, "the first failure costs no pause");
    state.failed(gone(), 0);
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Wait(1_000));
}

#[test]
fn mode_change_restarts_daemon_only_when_idle() {
    let (mut desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    let multi_user = Desired { multi_user: true, ..desired.clone() };
    desired.mode = Mode::Static;
    for desired in [desired, multi_user] {
        assert!(state.needs_restart(&desired) && !state.is_ready(&desired));
        assert_eq!(state.decide(&desired, 1, 1), ReconcileStep::Wait(8_000));
        assert_eq!(state.decide(&desired, 0, 1), ReconcileStep::Stop);
    }
}

#[test]
fn dead_server_ends_readiness_before_replacement() {
    let (desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    state.server_died(|_| false);
    assert_eq!(state.phase(&desired, 1), Phase::Applying);
    assert_eq!(state.decide(&desired, 0, 1), ReconcileStep::Sync(vec![]));
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[])), false, &desired, 1, INTERVAL);
    assert_eq!(state.decide(&desired, 0, 1), ReconcileStep::StartServer(0));
}

#[test]
fn observed_daemon_is_only_polled() {
    let (desired, mut state) = (Desired { management: Management::Observed, ..desired() }, running());
    assert_eq!(state.decide(&desired, 0, 0), ReconcileStep::Sync(vec![]));
    let differs = PollOutcome::Seen(seen(Some(1 << 30), &[]));
    state.polled(differs, false, &desired, 0, INTERVAL);
    state.restart = true;
    for now in [1, 8_000] {
        let expected = if now < 8_000 { ReconcileStep::Wait(8_000) } else { ReconcileStep::Sync(vec![]) };
        assert_eq!(state.decide(&desired, 0, now), expected);
        let stopped = Desired { running: false, multi_user: true, ..desired.clone() };
        assert_eq!(state.decide(&stopped, 0, now), expected, "whatever the rest of its spec says");
    }
    assert_eq!(state.phase(&desired, 1), Phase::Observed);
    state.absent(gone(), 9_000);
    assert_eq!(state.phase(&desired, 9_000), Phase::Absent);
    assert_eq!(state.decide(&desired, 0, 9_000), ReconcileStep::Search);
    state.searched(Ok(None), 9_000);
    assert_eq!(
        state.decide(&desired, 0, 9_001),
        ReconcileStep::Wait(14_000),
        "searched for again, never started"
    );

    // A blocker of the adoption persists: the daemon is searched for at the same pace.
    let (mut now, mut searches) = (14_000, 0);
    while now < 74_000 {
        match state.decide(&desired, 0, now) {
            ReconcileStep::Search => {
                searches += 1;
                state.searched(
                    Err(Blocker { reason: ConditionReason::ShapeDiffers, message: String::new() }),
                    now,
                );
            }
            ReconcileStep::Wait(until) => now = until,
            other => panic!("{other:?}"),
        }
        assert!(searches <= 12, "{searches} by {now}");
    }
    assert_eq!(searches, 12);
    assert_eq!(state.phase(&desired, now), Phase::Blocked);
}

#[test]
fn unreadable_daemon_is_not_ready() {
    let (desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    state.polled(PollOutcome::Busy("others use it".into()), false, &desired, 1, INTERVAL);
    assert_eq!(state.phase(&desired, 1), Phase::Applying);
}

#[test]
fn other_users_server_is_replaced_when_idle() {
    let (mut desired, mut state) = (desired(), running());
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    desired.server_uid = 1000;
    assert!(!state.is_ready(&desired), "clients of uid 1000 would wait");
    assert_eq!(state.decide(&desired, 1, 1), ReconcileStep::Wait(8_000));
    assert_eq!(state.decide(&desired, 0, 1), ReconcileStep::StartServer(1000));
    // The request is sent once, even to a daemon that keeps the old server.
    state.server_requested(1000, 1);
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 2, INTERVAL);
    assert_eq!(state.decide(&desired, 0, 2), ReconcileStep::Wait(8_002));
    // The server of the user desired until now is no reason to wait until it comes up.
    desired.server_uid = 2000;
    assert_eq!(state.decide(&desired, 0, 3), ReconcileStep::StartServer(2000));
}

#[test]
fn changed_effective_settings_are_drift_and_repaired() {
    let (desired, mut state) = (desired(), running());
    let right = || PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")]));
    let drifted = || PollOutcome::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.polled(drifted(), false, &desired, 0, INTERVAL);
    assert_eq!(state.drift, DriftStatus::default(), "never in force yet");
    state.polled(right(), true, &desired, 1, INTERVAL);
    state.polled(drifted(), false, &desired, 2, INTERVAL);
    assert_eq!((state.drift.count, state.drift.last_at, state.drift.present), (1, Some(2), true));
    assert_eq!(state.drift.last.len(), 2, "the default and the server's");
    assert_eq!(state.phase(&desired, 2), Phase::Applying);
    assert!(matches!(state.decide(&desired, 0, 2), ReconcileStep::Sync(wrong) if wrong.len() == 2));
    state.polled(right(), true, &desired, 3, INTERVAL);
    assert_eq!((state.drift.count, state.drift.present), (1, false), "restored, and still shown");
    assert_eq!(state.phase(&desired, 3), Phase::Ready);
    state.polled(drifted(), false, &desired, 4, INTERVAL);
    state.polled(drifted(), true, &desired, 5, INTERVAL);
    assert_eq!(state.drift.count, 3, "again, and again after it was restored");
}

#[test]
fn reported_drift_stays_until_settings_are_written() {
    let (mut desired, mut state) = (desired(), running());
    desired.drift_policy = DriftPolicy::Report;
    let drifted = || PollOutcome::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
    state.polled(drifted(), false, &desired, 0, INTERVAL);
    assert!(
        matches!(state.decide(&desired, 0, 0), ReconcileStep::Sync(wrong) if wrong.len() == 2),
        "the first time"
    );
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), true, &desired, 0, INTERVAL);
    for now in 1..4 {
        state.polled(drifted(), false, &desired, now, INTERVAL);
        assert_eq!(state.decide(&desired, 0, now), ReconcileStep::Wait(now + INTERVAL.0));
        assert_eq!((state.drift.count, state.drift.present), (1, true), "found once");
    }
    assert!(!state.is_ready(&desired));
    desired.generation += 1;
    assert!(matches!(state.decide(&desired, 0, 9), ReconcileStep::Wait(_)), "as after a cordon");
    desired.generation += 1;
    desired.settings_since = desired.generation;
    assert!(matches!(state.decide(&desired, 0, 9), ReconcileStep::Sync(wrong) if wrong.len() == 2));
}

#[test]
fn log_line_schedules_one_poll_soon() {
    let (desired, mut state) = (desired(), running());
    let right = || PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")]));
    state.polled(right(), false, &desired, 10_000, INTERVAL);
    state.wake(10_001);
    state.wake(10_050);
    assert_eq!(state.decide(&desired, 0, 10_051), ReconcileStep::Wait(10_100));
    assert_eq!(state.decide(&desired, 0, 10_100), ReconcileStep::Sync(vec![]));
    state.polled(right(), false, &desired, 10_101, INTERVAL);
    assert_eq!(state.decide(&desired, 0, 10_102), ReconcileStep::Wait(18_101), "requested once");
    state.wake(12_000);
    assert_eq!(state.decide(&desired, 0, 12_000), ReconcileStep::Wait(12_030), "a burst ends first");
    state.polled(PollOutcome::Busy("others".into()), false, &desired, 12_030, INTERVAL);
    state.wake(12_031);
    assert_eq!(state.decide(&desired, 0, 12_100), ReconcileStep::Wait(12_130));
}

#[test]
fn failed_poll_has_reason_until_next_success() {
    let (desired, mut state) = (desired(), running());
    let reason =
        |state: &DaemonReconciler| state.poll_failure.as_ref().map(|poll_failure| poll_failure.reason);
    for (outcome, expected) in [
        (PollOutcome::Busy("x".into()), ConditionReason::OthersInterfere),
        (PollOutcome::Unreadable("x".into()), ConditionReason::Unreadable),
        (PollOutcome::NoFiles("x".into()), ConditionReason::FilesExhausted),
        (PollOutcome::NotRun("x".into()), ConditionReason::ControlProgramFailed),
        (PollOutcome::Misbehaved("x".into()), ConditionReason::ControlProgramFailed),
        (PollOutcome::Mute("x".into()), ConditionReason::ControlProgramFailed),
        (PollOutcome::Unanswered("x".into()), ConditionReason::Wedged),
    ] {
        state.polled(outcome, false, &desired, 0, INTERVAL);
        assert_eq!(reason(&state), Some(expected));
        assert_ne!(state.phase(&desired, 0), Phase::Ready);
    }
    state.polled(PollOutcome::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, INTERVAL);
    assert_eq!((reason(&state), state.phase(&desired, 0)), (None, Phase::Ready));
}
