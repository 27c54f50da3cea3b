//! Times of polls, their sharing among callers, and retries of what was blocked.

use std::fs::File;
use std::io::Write as _;

use super::script::SessionFault;
use super::*;

/// Tolerance for the last of several pauses.
const SECOND: Duration = Duration::from_secs(1);

/// Returns the times at which the sessions after the first `before` were opened.
fn opened_after(host: &ScriptedHost, before: usize) -> Vec<Duration> {
    host.script.sessions().iter().skip(before).map(|session| session.at).collect()
}

#[tokio::test(start_paused = true)]
async fn idle_daemon_is_polled_at_check_interval() {
    let host = ScriptedHost::ready().await;
    let last = host.script.sessions().len() - 1;
    tokio::time::sleep(4 * CHECK_INTERVAL + SECOND).await;
    assert_pauses(&pauses(&opened_after(&host, last)), &[CHECK_INTERVAL; 4]);
}

#[tokio::test(start_paused = true)]
async fn live_logs_make_polls_rare() {
    let host = ScriptedHost::new();
    host.script.log_sessions(&host.log("control.log"));
    host.publish(desired(1));
    host.await_phase(Phase::Ready).await;
    let last = host.script.sessions().len() - 1;
    tokio::time::sleep(3 * POLL_INTERVAL + SECOND).await;
    assert_pauses(&pauses(&opened_after(&host, last)), &[POLL_INTERVAL; 3]);
}

#[tokio::test(start_paused = true)]
async fn forged_log_line_only_causes_a_poll() {
    let host = ScriptedHost::new();
    host.script.log_sessions(&host.log("control.log"));
    host.publish(desired(1));
    let before = host.await_phase(Phase::Ready).await;
    tokio::time::sleep(CHECK_INTERVAL).await;
    let (sessions, me) = (host.script.sessions().len(), std::process::id());
    for (name, text) in [
        (
            "control.log",
            format!("NEW CLIENT {me} from user 4242: Server is not ready, push client to pending list"),
        ),
        ("control.log", "Server 1 exited with status 0".to_owned()),
        ("server.log", "Client {PID: 1, Context ID: 0} connected".to_owned()),
        ("server.log", "Client {PID: 1, Context: 1} encountered a fatal GPU error.".to_owned()),
    ] {
        let mut log = File::options().append(true).create(true).open(host.log(name)).expect("opened");
        writeln!(log, "[2026-11-21 02:53:15.169 Control  1308] {text}").expect("written");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(host.script.sessions().len(), sessions + 1, "one burst, one poll");
    let after = host.observed();
    assert_eq!((after.status.phase, &after.status.conditions), (Phase::Ready, &before.status.conditions));
    assert!(after.status.queue.is_empty() && after.clients.is_empty());
}

#[tokio::test(start_paused = true)]
async fn fresh_polls_are_shared_by_all_waiters() {
    let host = ScriptedHost::ready().await;
    host.script.pace(Duration::from_millis(10));
    let ask = || {
        let handle = host.handle();
        tokio::spawn(async move { handle.fresh(TIMEOUT).await.expect("read") })
    };
    let before = host.script.sessions().len();
    let first: Vec<_> = (0..16).map(|_| ask()).collect();
    // In the middle of that poll, which began before these requests.
    tokio::time::sleep(Duration::from_millis(15)).await;
    let requested = host.fleet.context().clock.unix_ms();
    let second: Vec<_> = (0..16).map(|_| ask()).collect();
    for reader in first {
        reader.await.expect("no panic");
    }
    for reader in second {
        let effective = reader.await.expect("no panic").status.effective.clone().expect("read");
        assert!(effective.observed_at > requested, "a poll that began after the request");
    }
    assert_eq!(host.script.sessions().len(), before + 2);
}

#[tokio::test(start_paused = true)]
async fn stopped_daemon_is_read_without_session() {
    let host = ScriptedHost::ready().await;
    host.publish(Desired { running: false, ..desired(2) });
    host.await_phase(Phase::Stopped).await;
    let (sessions, began) = (host.script.sessions().len(), Instant::now());
    let seen = host.handle().fresh(TIMEOUT).await.expect("known");
    assert_eq!((seen.status.effective.clone(), seen.clients.len()), (None, 0));
    assert!(began.elapsed() <= LATE && host.script.sessions().len() == sessions);
}

#[tokio::test(start_paused = true)]
async fn busy_daemon_is_polled_again_soon() {
    let host = ScriptedHost::ready().await;
    let last = host.script.sessions().len();
    host.script.trouble(Some(SessionFault::Busy));
    let seen = host.wait_for("a poll fails", |observed| observed.status.phase != Phase::Ready).await;
    assert_eq!(seen.status.phase, Phase::Applying, "it answers others");
    let error = host.handle().fresh(Duration::from_secs(10)).await.expect_err("busy");
    assert!(error.reason().is_some(), "{error}");
    host.wait_for("two more", |_| host.script.sessions().len() >= last + 4).await;
    host.script.trouble(None);
    host.await_phase(Phase::Ready).await;
    // Each session takes its whole time; the requested one began at once.
    let mut pauses = pauses(&opened_after(&host, last));
    pauses.sort();
    let again = DEADLINE + Duration::from_secs(1);
    assert!(pauses.iter().all(|pause| *pause >= DEADLINE && *pause <= again + LATE), "{pauses:?}");
    assert_eq!(host.script.starts().len(), 1);
    assert!(host.script.sessions().iter().skip(last).all(|session| !session.writes()));
}

#[tokio::test(start_paused = true)]
async fn blocked_start_is_retried_at_intervals() {
    let retry = Duration::from_secs(5);
    let host = ScriptedHost::new();
    host.gpu.away.store(true, Ordering::Relaxed);
    host.publish(desired(1));
    host.await_phase(Phase::Blocked).await;
    tokio::time::sleep(3 * retry + SECOND).await;
    let polls: Vec<Duration> = {
        let listings = host.gpu.listings.lock().expect("whole");
        listings.iter().map(|at| at.duration_since(listings[0])).collect()
    };
    assert_pauses(&pauses(&polls), &[retry; 3]);
    assert!(host.script.starts().is_empty());
    host.gpu.away.store(false, Ordering::Relaxed);
    let (tried, began) = (host.handle().try_again().await.expect("tried"), Instant::now());
    let seen = host.wait_for("tried", |observed| observed.has_tried(tried)).await;
    assert_eq!(seen.blocker(tried), None);
    assert!(began.elapsed() <= LATE, "it is not waited for");
    host.await_phase(Phase::Ready).await;
}
