//! The end of a daemon on request, and of the manager.

use super::*;
use crate::host::process::identify;

#[tokio::test(start_paused = true)]
async fn requested_grace_applies_to_one_stop() {
    let host = ScriptedHost::ready().await;
    host.handle().set_grace(0);
    for incarnation in 2..=3 {
        host.handle().restart().await.expect("requested");
        host.wait_for("restarted", |observed| {
            observed.status.incarnation == incarnation && observed.status.phase == Phase::Ready
        })
        .await;
    }
    host.publish(Desired { running: false, ..desired(2) });
    host.await_phase(Phase::Stopped).await;
    assert_eq!(host.script.quits(), [Some(0), Some(7), Some(7)]);
    assert_eq!(host.observed().status.deaths, 0, "each was requested");
}

#[tokio::test(start_paused = true)]
async fn shutdown_leaves_the_daemon_running() {
    let host = ScriptedHost::ready().await;
    host.fleet.shutdown().await;
    assert!(host.script.quits().is_empty());
    let control = host.script.control_pid().expect("there");
    assert!(identify(control).is_some());
    assert_eq!(host.script.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_await_a_stop() {
    let host = ScriptedHost::ready().await;
    host.script.stay_on_quit();
    host.handle().set_grace(600);
    host.publish(Desired { running: false, ..desired(2) });
    host.await_phase(Phase::Stopping).await;
    let began = Instant::now();
    host.fleet.shutdown().await;
    assert_pauses(&[began.elapsed()], &[Duration::from_secs(2)]);
    assert!(identify(host.script.control_pid().expect("there")).is_some());
}
