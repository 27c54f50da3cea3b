//! What is said of a daemon: its state in words an operator can act on.

use std::path::Path;

use super::state::{State, serves_another_user};
use crate::domain::daemon::{Condition, DaemonStatus, Phase};
use crate::domain::plan::{Desired, differences};
use crate::host;

/// The status to publish.
pub(super) fn status(
    state: &State,
    desired: &Desired,
    incarnation: u64,
    deaths: u64,
    pipe_directory: &Path,
    log_directory: &Path,
    now: i64,
) -> DaemonStatus {
    let phase = state.phase(desired, now);
    let pid = state.process.as_ref().map(|process| process.identity.pid);
    DaemonStatus {
        phase,
        observed_generation: state.applied,
        conditions: conditions(state, desired, phase),
        pid,
        uid: pid.and_then(host::process::uid),
        incarnation,
        deaths,
        pipe_directory: pipe_directory.display().to_string(),
        log_directory: log_directory.display().to_string(),
        effective: state.seen.clone(),
    }
}

fn conditions(state: &State, desired: &Desired, phase: Phase) -> Vec<Condition> {
    let mut conditions = vec![ready(state, desired, phase)];
    if state.needs_restart(desired) {
        conditions.push(Condition::new(
            "RestartRequired",
            true,
            "StartedOtherwise",
            "its GPUs or its users were changed after it started: it is replaced as soon as no client is connected, \
             or at once by a restart",
        ));
    }
    if desired.gpus.len() > 1 {
        conditions.push(Condition::new(
            "LimitsEscapable",
            true,
            "SeveralGpus",
            "a client escapes the server's memory limits by setting CUDA_VISIBLE_DEVICES, since this daemon has several \
             GPUs; one daemon a GPU closes that way",
        ));
    }
    let faulty = state.seen.iter().flat_map(|seen| &seen.servers).filter(|server| server.status == "FAULT");
    for server in faulty {
        conditions.push(Condition::new(
            "ServerFault",
            true,
            "ClientsToBeTornDown",
            format!(
                "server {} had a fatal GPU error and takes no new client until the clients it affects are gone: end them",
                server.pid
            ),
        ));
    }
    if let Some(words) = state.last_words.as_ref().filter(|_| phase != Phase::Ready) {
        conditions.push(Condition::new("LastFailure", true, "DiedOrDidNotStart", words.clone()));
    }
    conditions
}

fn ready(state: &State, desired: &Desired, phase: Phase) -> Condition {
    let (reason, message) = match phase {
        Phase::Ready => ("AppliedAndReadBack", "every setting was read back as it should be".to_owned()),
        Phase::Unknown => ("NotLookedAt", "it has not been looked at yet".to_owned()),
        Phase::Stopped => ("StoppedAsWanted", "it is stopped, as its spec says".to_owned()),
        Phase::Starting => ("Starting", "it is being started".to_owned()),
        Phase::Stopping => ("Stopping", "it is being stopped".to_owned()),
        Phase::BackOff => ("BackOff", "it died or did not start, and is started again after a pause".to_owned()),
        Phase::CrashLoop => (
            "CrashLoop",
            "it died or did not start five times within a minute: see the tail of its log in LastFailure, and nvidia-smi for the GPU".to_owned(),
        ),
        Phase::Wedged => (
            "Wedged",
            format!(
                "it did not answer ({}), so nothing but reads is sent until it does: look for a client that is stopped (SIGSTOP), \
                 or for a control daemon that is",
                state.wedged.as_deref().unwrap_or_default()
            ),
        ),
        Phase::Blocked => match state.obstacle.as_ref().or(state.lost.as_ref()) {
            Some(obstacle) => (obstacle.reason, obstacle.message.clone()),
            None => ("Blocked", String::new()),
        },
        Phase::Applying => applying(state, desired),
        Phase::Observed => match &state.trouble {
            None => ("OnlyObserved", "it is looked at and never written to, as its spec says".to_owned()),
            Some(trouble) => ("Unreadable", format!("it is only looked at, and could not be read: {trouble}")),
        },
        Phase::Absent => (
            "NotRunning",
            "it is only looked at, and is not running: it is taken up again when a control daemon comes back in its pipe \
             directory; release it to forget it"
                .to_owned(),
        ),
    };
    let ready = phase == Phase::Ready || (phase == Phase::Observed && state.trouble.is_none());
    Condition::new("Ready", ready, reason, message)
}

fn applying(state: &State, desired: &Desired) -> (&'static str, String) {
    if let Some(trouble) = &state.trouble {
        return ("Unreadable", format!("it could not be read: {trouble}"));
    }
    let Some(seen) = &state.seen else {
        return ("AwaitingReadBack", "its settings have not been read yet".to_owned());
    };
    if state.needs_restart(desired) {
        let message =
            "it was started for other GPUs or users, and is replaced as soon as no client is connected";
        return ("RestartRequired", message.to_owned());
    }
    let wrong: Vec<String> = differences(desired, seen).iter().map(ToString::to_string).collect();
    if !wrong.is_empty() {
        return ("SettingsDiffer", format!("read back otherwise than wanted: {}", wrong.join(", ")));
    }
    if seen.servers.is_empty() {
        return ("ServerStarting", "its server is being started".to_owned());
    }
    if serves_another_user(desired, seen) {
        let message = format!(
            "its server still serves another user, and clients of uid {} would wait: the server is replaced as soon as \
             no client is connected",
            desired.server_uid
        );
        return ("OtherUser", message);
    }
    ("AwaitingReadBack", "its settings are being read back".to_owned())
}
