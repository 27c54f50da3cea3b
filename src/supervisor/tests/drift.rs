//! Settings that another program changes.

use super::*;
use crate::domain::MemoryLimit;
use crate::domain::condition::{ConditionReason, ConditionType};
use crate::domain::drift::DriftPolicy;

const CHANGE: &str = "set_default_active_thread_percentage 30";

/// Returns a ready host whose logs report every change.
async fn with_live_logs(policy: DriftPolicy) -> ScriptedHost {
    let host = ScriptedHost::new();
    host.script.log_sessions(&host.log("control.log"));
    host.publish(Desired { drift_policy: policy, ..desired(1) });
    host.await_phase(Phase::Ready).await;
    tokio::time::sleep(CHECK_INTERVAL).await;
    host
}

/// Returns the number of times that the percentage was written.
fn writes(host: &ScriptedHost) -> usize {
    let sessions = host.script.sessions();
    let commands = sessions.iter().flat_map(|session| &session.commands);
    commands.filter(|command| command.starts_with("set_default_active_thread_percentage")).count()
}

#[tokio::test(start_paused = true)]
async fn logged_change_is_repaired_at_once() {
    let host = with_live_logs(DriftPolicy::Repair).await;
    for count in 1..=2 {
        let (written, changed) = (writes(&host), Instant::now());
        host.script.external(CHANGE);
        let seen = host
            .wait_for("counted and restored", |observed| {
                observed.status.drift.count == count && observed.status.phase == Phase::Ready
            })
            .await;
        assert!(changed.elapsed() < Duration::from_millis(250), "{:?}", changed.elapsed());
        let drift = seen.status.drift.clone();
        assert!(!drift.present && drift.last_at.is_some());
        let [last] = drift.last.as_slice() else { panic!("{drift:?}") };
        assert_eq!(last.setting, "default active thread percentage");
        assert_eq!((last.desired.as_str(), last.read.as_str()), ("50.0", "30.0"));
        assert_eq!(drift.command.as_deref(), Some(CHANGE));
        assert_eq!(writes(&host), written + 1);
        let condition =
            host.condition(ConditionType::SettingsDrifted).expect("reported after it was restored");
        assert_eq!((condition.status, condition.reason), (false, ConditionReason::Restored));
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unlogged_change_is_noticed_at_next_poll() {
    let host = ScriptedHost::ready().await;
    tokio::time::sleep(CHECK_INTERVAL / 2).await;
    let changed = Instant::now();
    host.script.external(CHANGE);
    host.wait_for("counted and restored", |observed| {
        observed.status.drift.count == 1 && observed.status.phase == Phase::Ready
    })
    .await;
    assert!(changed.elapsed() <= CHECK_INTERVAL / 2 + LATE, "{:?}", changed.elapsed());
    assert_eq!(writes(&host), 2);
}

#[tokio::test(start_paused = true)]
async fn reported_drift_is_left_and_ends_readiness() {
    let host = with_live_logs(DriftPolicy::Report).await;
    let written = writes(&host);
    host.script.external(CHANGE);
    host.wait_for("it is noticed", |observed| observed.status.phase != Phase::Ready).await;
    let condition = host.condition(ConditionType::SettingsDrifted).expect("reported");
    assert_eq!((condition.status, condition.reason), (true, ConditionReason::ChangedByOthers));
    let ready = host.condition(ConditionType::Ready).expect("always there");
    let message = "default active thread percentage is 30 % instead of 50 %";
    assert!(!ready.status && ready.message.contains(message), "{ready:?}");
    tokio::time::sleep(3 * POLL_INTERVAL).await;
    host.handle().fresh(TIMEOUT).await.expect("read");
    let drift = host.observed().status.drift.clone();
    assert_eq!((drift.present, drift.count, writes(&host)), (true, 1, written), "nothing of ours");
    host.publish(Desired { drift_policy: DriftPolicy::Repair, ..desired(2) });
    host.await_phase(Phase::Ready).await;
    assert_eq!(writes(&host), written + 1);
}

#[tokio::test(start_paused = true)]
async fn change_behind_a_reading_is_not_written_over() {
    let host = ScriptedHost::new();
    host.script.log_sessions(&host.log("control.log"));
    let limits = vec![Some(MemoryLimit::from_mib(4096).expect("a limit"))];
    host.publish(Desired { drift_policy: DriftPolicy::Report, memory_limits: limits, ..desired(1) });
    host.await_phase(Phase::Ready).await;
    tokio::time::sleep(CHECK_INTERVAL).await;
    let writing = || host.script.sessions().iter().filter(|session| session.writes()).count();
    let written = writing();
    // The getters show 4G, and the log that is read next has the command that made it 1G.
    host.script.external_after_session("set_default_device_pinned_mem_limit 0 1G");
    host.script.external(CHANGE);
    host.wait_for("both are noticed", |observed| observed.status.drift.last.len() == 2).await;
    tokio::time::sleep(POLL_INTERVAL).await;
    let drift = host.observed().status.drift.clone();
    let read: Vec<&str> = drift.last.iter().map(|one| one.read.as_str()).collect();
    assert_eq!((drift.present, read.as_slice()), (true, ["30.0", "1024 MiB"].as_slice()));
    assert_eq!(writing(), written, "nothing of ours");
}

#[tokio::test(start_paused = true)]
async fn dying_server_is_no_drift() {
    for command in ["get_device_pinned_mem_limit", "ps"] {
        let host = ScriptedHost::new();
        let limit = MemoryLimit::parse("4096M").ok();
        host.publish(Desired {
            gpus: vec![h200(0).uuid, h200(1).uuid],
            memory_limits: vec![limit; 2],
            ..desired(1)
        });
        host.await_phase(Phase::Ready).await;
        let server = host.script.server_pid().expect("a server");
        let during = if command == "ps" { command.to_owned() } else { format!("{command} {server} 1") };
        host.script.kill_server_during(during);
        let seen = host
            .wait_for("replaced", |observed| {
                observed.status.phase == Phase::Ready
                    && host.script.server_pid().is_some_and(|now| now != server)
            })
            .await;
        assert_eq!(seen.status.drift.count, 0, "{command}: {:?}", seen.status.drift);
    }
}
