//! What is said of a daemon: its state in words an operator can act on.

use std::path::Path;

use super::partitioning;
use super::state::{State, serves_another_user};
use super::trouble::{Trouble, log_disk_full};
use crate::domain::daemon::{Condition, DaemonStatus, Phase, SessionCounts, Waiting};
use crate::domain::drift::DriftPolicy;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::maintenance::MaintenanceState;
use crate::domain::plan::{Desired, differences};
use crate::host;

/// How long what others did is told though it was put right, in milliseconds.
pub(super) const TOLD_MS: i64 = 60 * 60 * 1000;

/// What a driver has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) incarnations: u64,
    pub(super) deaths: u64,
    pub(super) sessions: SessionCounts,
}

/// Where the layout of the daemon stands.
pub(super) fn layout(state: &State, desired: &Desired) -> Option<LayoutStatus> {
    let listed = state.seen.as_ref().and_then(|seen| seen.partitions.as_deref());
    state.partitioning.status(desired, listed).or_else(|| state.shares.status(desired))
}

/// The status to publish.
pub(super) fn status(
    state: &State,
    desired: &Desired,
    counts: &Counts,
    pipe_directory: &Path,
    log_directory: &Path,
    now: i64,
) -> DaemonStatus {
    let phase = state.phase(desired, now);
    let pid = state.process.as_ref().map(|process| process.identity.pid);
    let layout = layout(state, desired);
    let mut conditions = conditions(state, desired, phase, log_directory, now);
    conditions.extend(layout.iter().flat_map(|layout| partitioning::conditions(layout, now)));
    DaemonStatus {
        phase,
        observed_generation: state.applied,
        conditions,
        pid,
        uid: pid.and_then(host::process::uid),
        incarnation: counts.incarnations,
        deaths: counts.deaths,
        pipe_directory: pipe_directory.display().to_string(),
        log_directory: log_directory.display().to_string(),
        isolation: None,
        effective: state.seen.clone(),
        drift: state.drift.clone(),
        queue: state.queue.clone(),
        sessions: counts.sessions,
        compute_modes: Vec::new(),
        layout,
    }
}

fn conditions(
    state: &State,
    desired: &Desired,
    phase: Phase,
    log_directory: &Path,
    now: i64,
) -> Vec<Condition> {
    let mut conditions = vec![ready(state, desired, phase)];
    if state.needs_restart(desired) {
        conditions.push(Condition::new(
            "RestartRequired",
            true,
            "StartedOtherwise",
            "its GPUs, its users or its mode were changed after it started: it is replaced as soon as no client is connected, \
             or at once by a restart",
        ));
    }
    conditions.extend(cordoned(desired));
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
    // One that others cause is over at once and comes back with them: it is told for a while.
    let told = |failure: &&Trouble| {
        !matches!(phase, Phase::Ready | Phase::Observed)
            || (failure.reason == "DiedInSession" && now - state.failed_at < TOLD_MS)
    };
    if let Some(failure) = state.last_failure.as_ref().filter(told) {
        conditions.push(Condition::new("LastFailure", true, failure.reason, failure.message.clone()));
    }
    conditions.extend(drift(state, desired, now));
    conditions.extend(state.queue.iter().map(waiting));
    if let Some(room) = state.shortages.log_room {
        conditions.push(Condition::new("LogDiskFull", true, "NoRoom", log_disk_full(log_directory, room)));
    }
    conditions.extend(
        state
            .shortages
            .files
            .iter()
            .map(|files| Condition::new("FileDescriptorsLow", true, "NearLimit", files.to_string())),
    );
    conditions
}

/// Says of a daemon that takes no new clients why that is.
fn cordoned(desired: &Desired) -> Option<Condition> {
    let (reason, message) = match desired.maintenance {
        Some(_) => (
            "Maintenance",
            "the host is in maintenance with a GPU of this daemon, so no new client is admitted: end it with \
             DELETE /api/v1/host/maintenance",
        ),
        None if !desired.schedulable => (
            "Cordoned",
            "it is cordoned, so `mps-manager run` lets no new client in: uncordon it to take clients again",
        ),
        None => return None,
    };
    Some(Condition::new("Schedulable", false, reason, message))
}

/// That others changed settings: while it is so, and for a while after it was put back.
fn drift(state: &State, desired: &Desired, now: i64) -> Option<Condition> {
    let drift = &state.drift;
    let recent = drift.last_at.is_some_and(|at| now - at < TOLD_MS);
    if !drift.present && !recent {
        return None;
    }
    let what: Vec<String> = drift.last.iter().map(ToString::to_string).collect();
    let done = match (drift.present, desired.drift_policy) {
        (false, _) => "it was put back",
        (true, DriftPolicy::Repair) => "it is being put back",
        (true, DriftPolicy::Report) => {
            "it stays, as the daemon's drift_policy says, until its spec or one of its tenants is written, or drift_policy is repair"
        }
    };
    let command = drift
        .command
        .as_ref()
        .map(|line| format!(" (control.log shows the command {line:?})"))
        .unwrap_or_default();
    Some(Condition::new(
        "SettingsDrifted",
        drift.present,
        if drift.present { "ChangedByOthers" } else { "PutBack" },
        format!(
            "{}; {done}. Somebody else changed that{command}, {} so far: have them write tenants through this API instead",
            what.join(", "),
            times(drift.count)
        ),
    ))
}

/// How often something was seen, in words.
pub(super) fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

fn waiting(queue: &Waiting) -> Condition {
    let list = |pids: &[u32]| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let waiting: Vec<u32> = queue.waiting.iter().map(|client| client.pid).collect();
    let behind = &queue.behind;
    let clients = if behind.clients.is_empty() { "none is listed".to_owned() } else { list(&behind.clients) };
    Condition::new(
        "UsersWaiting",
        true,
        "ServesAnotherUser",
        format!(
            "processes {} of uid {} wait until the clients of uid {} are gone ({clients}; server {}): wait, end those, or serve \
             several users at once with multi_user, which takes a restart",
            list(&waiting),
            queue.uid,
            behind.uid,
            behind.server
        ),
    )
}

fn ready(state: &State, desired: &Desired, phase: Phase) -> Condition {
    let (reason, message) = match phase {
        Phase::Ready => ("AppliedAndReadBack", "every setting was read back as it should be".to_owned()),
        Phase::Unknown => ("NotLookedAt", "it has not been looked at yet".to_owned()),
        Phase::Stopped if desired.maintenance.is_some_and(MaintenanceState::holds_down) => {
            ("StoppedForMaintenance", "it is stopped while the host is in maintenance".to_owned())
        }
        Phase::Stopped => ("StoppedAsWanted", "it is stopped, as its spec says".to_owned()),
        Phase::Starting => ("Starting", "it is being started".to_owned()),
        Phase::Stopping => ("Stopping", "it is being stopped".to_owned()),
        Phase::BackOff => ("BackOff", "it died or did not start, and is started again after a pause".to_owned()),
        Phase::CrashLoop => (
            "CrashLoop",
            "it died or did not start five times within a minute: see the tail of its log in LastFailure, and nvidia-smi for the GPU".to_owned(),
        ),
        Phase::Wedged => match &state.trouble {
            Some(trouble) => (trouble.reason, trouble.message.clone()),
            None => ("Wedged", format!("it did not answer ({})", state.wedged.as_deref().unwrap_or_default())),
        },
        Phase::Blocked => match state.in_the_way(desired, phase) {
            Some(obstacle) => (obstacle.reason, obstacle.message),
            None => ("Blocked", String::new()),
        },
        Phase::Applying => applying(state, desired),
        Phase::Observed => match &state.trouble {
            None => ("OnlyObserved", "it is looked at and never written to, as its spec says".to_owned()),
            Some(trouble) => (trouble.reason, trouble.message.clone()),
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
        return (trouble.reason, trouble.message.clone());
    }
    let Some(seen) = &state.seen else {
        return ("AwaitingReadBack", "its settings have not been read yet".to_owned());
    };
    if state.needs_restart(desired) {
        let message = "it was started for other GPUs or users, or in another mode, and is replaced as soon as no client is connected";
        return ("RestartRequired", message.to_owned());
    }
    if state.drift.present && desired.drift_policy == DriftPolicy::Report {
        let what: Vec<String> = state.drift.last.iter().map(ToString::to_string).collect();
        return ("SettingsDrifted", format!("somebody else changed its settings: {}", what.join(", ")));
    }
    let wrong: Vec<String> = differences(desired, seen).iter().map(ToString::to_string).collect();
    if !wrong.is_empty() {
        return ("SettingsDiffer", format!("read back otherwise than wanted: {}", wrong.join(", ")));
    }
    if state.partitioning.retry_at() > 0 {
        let message = "what is done to its partitions could not be written to the database, so nothing is done to them: see that \
                       the disk of the state directory has room";
        return ("StoreUnavailable", message.to_owned());
    }
    if state.partitioning.is_under_way() {
        return ("PartitionsBeingMade", "the partitions of its layout are being made".to_owned());
    }
    if !state.shares.is_settled(desired) {
        return (
            "PartitionsBeingProven",
            "CUDA clients look what the percentages of its layout give".to_owned(),
        );
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
