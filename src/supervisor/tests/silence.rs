//! A daemon that does not answer.

use super::script::{SessionFault, Transcript};
use super::*;
use crate::domain::condition::{ConditionReason, ConditionType};

/// Time for which a daemon may be silent without an explanation.
const SILENT: Duration = Duration::from_secs(45);

#[tokio::test(start_paused = true)]
async fn unknown_outcome_is_followed_by_reads_only() {
    let host = ScriptedHost::ready().await;
    let before = host.script.sessions().len();
    host.script.trouble(Some(SessionFault::Lost("set_default_active_thread_percentage")));
    let quarter = ThreadPercentage::parse("25").expect("a quarter");
    host.publish(Desired { percentage: quarter, ..desired(2) });
    host.await_phase(Phase::Wedged).await;
    let lost = host.script.sessions().split_off(before);
    let [Transcript { commands, .. }] = lost.as_slice() else { panic!("{lost:?}") };
    assert_eq!(commands, &["set_default_active_thread_percentage 25.0"]);
    host.script.trouble(Some(SessionFault::Silent));
    host.wait_for("it is read", |_| host.script.sessions().len() == before + 3).await;
    host.script.trouble(None);
    host.await_phase(Phase::Ready).await;
    let after = host.script.sessions().split_off(before + 1);
    let answered = after.iter().position(|session| !session.commands.is_empty()).expect("answered");
    assert!(!after[answered].writes(), "the first that is answered reads: {after:?}");
    assert!(after[answered + 1].writes(), "what had not taken effect is written again: {after:?}");
    assert_eq!(host.script.starts().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn silent_daemon_is_replaced_after_its_time() {
    let host = ScriptedHost::ready().await;
    let (control, before) = (host.script.control_pid(), host.script.sessions().len());
    host.script.trouble(Some(SessionFault::Silent));
    host.await_phase(Phase::Wedged).await;
    let silent_since = host.script.sessions()[before].at;
    host.wait_for("it is killed", |observed| observed.status.deaths == 1).await;
    host.script.trouble(None);
    host.await_phase(Phase::Ready).await;
    let replaced_at = host.script.starts()[1];
    let took = replaced_at.checked_sub(silent_since).expect("it is replaced later");
    // The process that dies is a real one, and the paused clock goes on while it does.
    assert!(took >= SILENT && took <= SILENT + 2 * DEADLINE, "{took:?}");
    assert_ne!(host.script.control_pid(), control);
    assert_eq!(
        host.condition(ConditionType::DaemonReplaced).expect("reported").reason,
        ConditionReason::Hung
    );
    let meanwhile = host.script.sessions();
    let meanwhile = meanwhile[before..].iter().filter(|session| session.at < replaced_at);
    assert!(meanwhile.clone().count() > 5 && meanwhile.clone().all(|session| session.commands.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn daemon_that_answers_again_is_kept() {
    let host = ScriptedHost::ready().await;
    let control = host.script.control_pid();
    for _ in 0..3 {
        host.script.trouble(Some(SessionFault::Silent));
        host.await_phase(Phase::Wedged).await;
        tokio::time::sleep(SILENT.checked_sub(2 * DEADLINE).expect("a longer time")).await;
        host.script.trouble(None);
        host.await_phase(Phase::Ready).await;
    }
    assert_eq!((host.script.control_pid(), host.observed().status.deaths), (control, 0));
}
