//! Deaths of the control process and of its server.

use super::script::SessionFault;
use super::*;
use crate::domain::condition::{ConditionReason, ConditionType};

/// Kills the control process as soon as it exists, `times` in a row.
async fn kill(host: &ScriptedHost, times: usize) {
    let before = host.observed().status.deaths;
    for death in 1..=u64::try_from(times).expect("few") {
        host.wait_for("a process to kill", |observed| {
            observed.status.pid == host.script.control_pid() && observed.status.pid.is_some()
        })
        .await;
        host.script.kill_daemon();
        host.wait_for("the death is noticed", |observed| observed.status.deaths == before + death).await;
    }
}

#[tokio::test(start_paused = true)]
async fn repeated_deaths_back_off_and_recover() {
    let host = ScriptedHost::ready().await;
    kill(&host, 2).await;
    let seen = host.await_phase(Phase::BackOff).await;
    assert_eq!(seen.status.conditions[0].kind, ConditionType::Ready);
    kill(&host, 3).await;
    host.await_phase(Phase::CrashLoop).await;
    let failure = host.condition(ConditionType::LastFailure).expect("reported");
    assert!(failure.message.contains("control.log") && failure.message.lines().count() == 1, "{failure:?}");
    let seen = host.await_phase(Phase::Ready).await;
    assert_eq!((seen.status.incarnation, seen.status.deaths), (6, 5));
    let [condition] = seen.status.conditions.as_slice() else { panic!("{:?}", seen.status.conditions) };
    assert_eq!(condition.reason, ConditionReason::AppliedAndReadBack);
    let seconds = [1, 2, 4, 8].map(Duration::from_secs);
    let found = pauses(&host.script.starts());
    assert!(found[0] < Duration::from_millis(100), "the first death costs no pause");
    // From one start to the next: the kill comes at once.
    let late = Duration::from_millis(100);
    for (found, wanted) in found[1..].iter().zip(seconds) {
        assert!(*found >= wanted && *found <= wanted + late, "{found:?} for {wanted:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rare_deaths_cost_no_pause() {
    let host = ScriptedHost::ready().await;
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        let died = Instant::now();
        kill(&host, 1).await;
        host.await_ready_again().await;
        assert!(died.elapsed() < Duration::from_secs(1), "{:?}", died.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn failed_starts_back_off_and_recover() {
    let host = ScriptedHost::new();
    host.script.fail_to_start(true);
    host.publish(desired(1));
    host.wait_for("four starts", |_| host.script.starts().len() == 4).await;
    assert_pauses(&pauses(&host.script.starts()), &[0, 1, 2].map(Duration::from_secs));
    assert_eq!(host.observed().status.phase, Phase::BackOff);
    let failure = host.condition(ConditionType::LastFailure).expect("reported");
    assert!(failure.message.contains("left no daemon"), "{failure:?}");
    host.script.fail_to_start(false);
    host.await_phase(Phase::Ready).await;
    assert_eq!(host.condition(ConditionType::LastFailure), None);
}

#[tokio::test(start_paused = true)]
async fn dead_server_is_replaced_at_once() {
    let host = ScriptedHost::ready().await;
    let (control, server) = (host.script.control_pid(), host.script.server_pid());
    let died = Instant::now();
    host.script.kill_server();
    host.wait_for("readiness ends", |observed| observed.status.phase != Phase::Ready).await;
    assert!(died.elapsed() <= LATE, "before any poll");
    host.await_phase(Phase::Ready).await;
    assert!(died.elapsed() < Duration::from_secs(1), "{:?}", died.elapsed());
    assert_eq!(host.script.control_pid(), control);
    assert_ne!(host.script.server_pid(), server);
    let sessions = host.script.sessions();
    let requests = sessions.iter().flat_map(|session| &session.commands);
    assert_eq!(requests.filter(|command| command.starts_with("start_server")).count(), 2);
}

/// Kills a daemon in an open session, which was opened before one of the manager's or after it; returns the reported reason.
async fn blamed(before_ours: bool) -> Option<ConditionReason> {
    let host = ScriptedHost::ready().await;
    host.script.log_sessions(&host.log("control.log"));
    host.script.trouble(Some(SessionFault::Silent));
    let sessions = host.script.sessions().len();
    let ours = |_: &Observed| host.script.sessions().len() > sessions;
    if before_ours {
        host.script.open_session();
        host.wait_for("a session of the manager's", ours).await;
    } else {
        host.wait_for("a session of the manager's", ours).await;
        host.script.open_session();
    }
    host.script.kill_daemon();
    host.script.trouble(None);
    host.wait_for("the death is noticed", |observed| observed.status.deaths == 1).await;
    host.await_phase(Phase::Ready).await;
    host.condition(ConditionType::LastFailure).map(|failure| failure.reason)
}

#[tokio::test(start_paused = true)]
async fn session_open_before_ours_is_blamed() {
    assert_eq!(blamed(true).await, Some(ConditionReason::DiedInSession));
}

#[tokio::test(start_paused = true)]
async fn session_that_may_be_ours_accuses_nobody() {
    assert_eq!(blamed(false).await, None);
}
