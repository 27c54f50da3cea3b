//! The conditions of a daemon: its state in words an operator can act on.

use std::path::Path;

use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::joined;
use crate::domain::daemon::{DaemonStatus, Effective, Phase, Server, ServerStatus, SessionCounts, Waiting};
use crate::domain::difference::differences;
use crate::domain::drift::DriftPolicy;
use crate::domain::foreign_user::has_business;
use crate::domain::layout::Enforcement;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::maintenance::MaintenanceState;
use crate::domain::plan::Desired;
use crate::host;
use crate::supervisor::blocker::Blocker;
use crate::supervisor::recent::{SHOWN_MS, times};
use crate::supervisor::reconcile::daemon::{DaemonReconciler, serves_another_user};
use crate::supervisor::reconcile::diagnosis::log_disk_full;
use crate::supervisor::reconcile::layout;

/// Counters of a driver.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DaemonCounters {
    pub(crate) incarnations: u64,
    pub(crate) deaths: u64,
    pub(crate) sessions: SessionCounts,
}

/// Returns the status of the daemon's layout. Thread percentages are in force with the settings of the daemon.
pub(crate) fn layout_status(state: &DaemonReconciler, desired: &Desired) -> Option<LayoutStatus> {
    let mut layout = state.layout.status(desired, state.listed())?;
    let waits = layout.enforcement == Enforcement::Percentage && !desired.holds_since(state.applied);
    if waits && layout.state == LayoutState::Applied {
        layout.state = LayoutState::Pending;
    }
    Some(layout)
}

/// Returns the status to publish.
pub(crate) fn status(
    state: &DaemonReconciler,
    desired: &Desired,
    counts: &DaemonCounters,
    pipe_directory: &Path,
    log_directory: &Path,
    now: i64,
) -> DaemonStatus {
    let phase = state.phase(desired, now);
    let pid = state.process.as_ref().map(|process| process.identity.pid);
    let layout = layout_status(state, desired);
    let mut conditions = conditions(state, desired, phase, log_directory, now);
    conditions
        .extend(layout.iter().flat_map(|status| layout::conditions::conditions(&desired.name, status, now)));
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
        provisioning: None,
    }
}

fn conditions(
    state: &DaemonReconciler,
    desired: &Desired,
    phase: Phase,
    log_directory: &Path,
    now: i64,
) -> Vec<Condition> {
    let mut conditions = vec![ready(state, desired, phase)];
    if state.needs_restart(desired) {
        let message = format!(
            "its GPUs, its users or its mode were changed after it started: it is replaced as soon as no client is connected, \
             or at once by `mps-manager daemon restart {}`",
            desired.name
        );
        conditions.push(ConditionType::RestartRequired.problem(ConditionReason::RestartRequired, message));
    }
    conditions.extend(cordoned(desired));
    if desired.gpus.len() > 1 {
        let message = "a client escapes the server's memory limits by setting CUDA_VISIBLE_DEVICES, since this daemon has several \
                       GPUs; one daemon a GPU closes that way";
        conditions.push(ConditionType::LimitsEscapable.problem(ConditionReason::SeveralGpus, message));
    }
    let faulty = state.seen.iter().flat_map(|read| &read.servers).filter(|server| server.is_faulty());
    for server in faulty {
        conditions.push(
            ConditionType::ServerFault.problem(ConditionReason::AwaitingClientExit, server_fault(server)),
        );
    }
    // A failure that others cause is over at once and recurs with them: it is reported for a while.
    let is_recent = |failure: &&Blocker| {
        !matches!(phase, Phase::Ready | Phase::Observed)
            || (matches!(failure.reason, ConditionReason::DiedInSession | ConditionReason::QuitByOthers)
                && now - state.failed_at < SHOWN_MS)
    };
    if let Some(failure) = state.last_failure.as_ref().filter(is_recent) {
        conditions.push(ConditionType::LastFailure.problem(failure.reason, failure.message.clone()));
    }
    if let Some(replaced) = state.replaced.as_ref().filter(|replaced| now - replaced.at < SHOWN_MS) {
        let kind =
            if replaced.is_daemon { ConditionType::DaemonReplaced } else { ConditionType::ServerReplaced };
        conditions.push(Condition::new(kind, true, ConditionReason::Hung, replaced.to_string()));
    }
    conditions.extend(drift(state, desired, now));
    conditions.extend(state.queue.iter().map(|queue| waiting(desired, queue)));
    if let Some(room) = state.shortages.log_room {
        conditions.push(
            ConditionType::LogDiskFull.problem(ConditionReason::DiskFull, log_disk_full(log_directory, room)),
        );
    }
    conditions.extend(state.shortages.files.iter().map(|files| {
        ConditionType::FileDescriptorsLow.problem(ConditionReason::NearLimit, files.to_string())
    }));
    conditions
}

/// Returns the condition of a daemon that takes no new clients, with the reason.
fn cordoned(desired: &Desired) -> Option<Condition> {
    let (reason, message) = match desired.maintenance {
        Some(_) => (
            ConditionReason::Maintenance,
            "the host is in maintenance with a GPU of this daemon, so no new client is admitted: end it with \
             `mps-manager maintenance end`"
                .to_owned(),
        ),
        None if !desired.schedulable => (
            ConditionReason::Cordoned,
            format!(
                "it is cordoned and admits no new client: take clients again with `mps-manager daemon uncordon {}`",
                desired.name
            ),
        ),
        None => return None,
    };
    Some(ConditionType::Schedulable.problem(reason, message))
}

/// Reports settings that others changed: while they differ, and for a while after they were restored.
fn drift(state: &DaemonReconciler, desired: &Desired, now: i64) -> Option<Condition> {
    let drift = &state.drift;
    let recent = drift.last_at.is_some_and(|at| now - at < SHOWN_MS);
    if !drift.present && !recent {
        return None;
    }
    let done = match (drift.present, desired.drift_policy) {
        (false, _) => "it was restored".to_owned(),
        (true, DriftPolicy::Repair) => "it is being restored".to_owned(),
        (true, DriftPolicy::Report) => format!(
            "it stays, as the daemon's drift_policy says, until its spec or one of its tenants is changed: \
             `mps-manager daemon set {} --drift-policy repair` restores it",
            desired.name
        ),
    };
    let command = drift
        .command
        .as_ref()
        .map(|line| format!(" (control.log shows the command {line:?})"))
        .unwrap_or_default();
    Some(Condition::new(
        ConditionType::SettingsDrifted,
        drift.present,
        if drift.present { ConditionReason::ChangedByOthers } else { ConditionReason::Restored },
        format!(
            "{}; {done}. Another program changed that{command}, {} so far: have it write tenants through this API instead",
            joined(&drift.last, ", "),
            times(drift.count)
        ),
    ))
}

fn waiting(desired: &Desired, queue: &Waiting) -> Condition {
    let list = |pids: &[u32]| pids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let waiting: Vec<u32> = queue.waiting.iter().map(|client| client.pid).collect();
    let behind = &queue.behind;
    let clients = if behind.clients.is_empty() { "none is listed".to_owned() } else { list(&behind.clients) };
    // The clients of its tenants should not end for a user who has nothing to do here.
    let others = (desired.others.everyone, desired.others.users.as_slice());
    let end = if has_business(queue.uid, desired.server_uid, others, desired.uids.iter().copied()) {
        "wait, end those, or serve several users at once with multi_user (from CUDA 12.5 on), which takes a restart"
    } else {
        "they are of no tenant's user, so leave the clients to their work (`mps-manager incident list --kind foreign_user`)"
    };
    let message = format!(
        "processes {} of uid {} wait until the clients of uid {} are gone ({clients}; server {}): {end}",
        list(&waiting),
        queue.uid,
        behind.uid,
        behind.server
    );
    ConditionType::UsersWaiting.problem(ConditionReason::ServesAnotherUser, message)
}

fn ready(state: &DaemonReconciler, desired: &Desired, phase: Phase) -> Condition {
    let (reason, message) = match phase {
        Phase::Ready => (ConditionReason::AppliedAndReadBack, "all settings confirmed".to_owned()),
        Phase::Unknown => (ConditionReason::NotPolled, "it has not been polled yet".to_owned()),
        Phase::Stopped if desired.maintenance.is_some_and(MaintenanceState::holds_down) => {
            (ConditionReason::StoppedForMaintenance, "it is stopped while the host is in maintenance".to_owned())
        }
        Phase::Stopped => (ConditionReason::StoppedBySpec, "it is stopped, as its spec says".to_owned()),
        Phase::Starting => (ConditionReason::Starting, "it is being started".to_owned()),
        Phase::Stopping => (ConditionReason::Stopping, "it is being stopped".to_owned()),
        Phase::BackOff => (ConditionReason::BackOff, "it died or did not start, and is started again after a pause".to_owned()),
        Phase::CrashLoop => (
            ConditionReason::CrashLoop,
            "it died or did not start five times within a minute: see the tail of its log in LastFailure, and nvidia-smi for the GPU".to_owned(),
        ),
        Phase::Wedged => match &state.poll_failure {
            Some(poll_failure) => (poll_failure.reason, poll_failure.message.clone()),
            None => (ConditionReason::Wedged, format!("it did not answer ({})", state.wedged.as_deref().unwrap_or_default())),
        },
        Phase::Blocked => match state.current_blocker(desired, phase) {
            Some(blocker) => (blocker.reason, blocker.message),
            None => (ConditionReason::Blocked, String::new()),
        },
        Phase::Applying => applying(state, desired),
        Phase::Observed => match &state.poll_failure {
            None => (ConditionReason::OnlyObserved, "it is observed and never written to, as its spec says".to_owned()),
            Some(poll_failure) => (poll_failure.reason, poll_failure.message.clone()),
        },
        Phase::Absent => (
            ConditionReason::NotRunning,
            "it is only observed, and is not running: it is picked up again when a control daemon comes back in its pipe \
             directory; release it to forget it"
                .to_owned(),
        ),
    };
    let ready = phase == Phase::Ready || (phase == Phase::Observed && state.poll_failure.is_none());
    Condition::new(ConditionType::Ready, ready, reason, message)
}

/// Returns the reason why a running daemon is not ready. **The order of the reasons is defined here and nowhere else**: the
/// first that applies is returned, so each comes before those that it would cause by itself or that nobody could remove while
/// it lasts.
fn applying(state: &DaemonReconciler, desired: &Desired) -> (ConditionReason, String) {
    // 1. Nothing is known of a daemon that cannot be read.
    if let Some(poll_failure) = &state.poll_failure {
        return (poll_failure.reason, poll_failure.message.clone());
    }
    let Some(effective) = &state.seen else {
        return (ConditionReason::AwaitingReadBack, "its settings have not been read yet".to_owned());
    };
    reasons(state, desired, effective)
        .into_iter()
        .flatten()
        .next()
        .unwrap_or_else(|| (ConditionReason::AwaitingReadBack, "its settings are being read back".to_owned()))
}

/// Returns the reasons why a daemon that was read is not ready, in their order of precedence.
fn reasons(
    state: &DaemonReconciler,
    desired: &Desired,
    effective: &Effective,
) -> [Option<(ConditionReason, String)>; 9] {
    let fault = effective.servers.iter().find(|server| server.is_faulty());
    let drift = state.drift.present && desired.drift_policy == DriftPolicy::Report;
    let changed: Vec<String> = state.drift.last.iter().map(ToString::to_string).collect();
    let wrong: Vec<String> = differences(desired, effective).iter().map(ToString::to_string).collect();
    let serving = effective.is_serving();
    let other = effective
        .servers
        .iter()
        .find(|server| !matches!(server.status, ServerStatus::Active | ServerStatus::Fault));
    [
        // 2. No client is accepted until clients end, whatever is written meanwhile.
        fault.map(|server| (ConditionReason::ServerFault, server_fault(server))),
        // 3. The running process is not the desired one, and is replaced as a whole.
        state.needs_restart(desired).then(|| {
            let message = "it was started for other GPUs or users, or in another mode, and is replaced as soon as no client is connected";
            (ConditionReason::RestartRequired, message.to_owned())
        }),
        effective.servers.iter().find(|server| desired.mlopart && server.lacks_mlopart()).map(|server| {
            let message = format!(
                "server {} gives clients whole GPUs: MPS starts such a server for a client that comes before the manager's request. It is \
                 replaced once its clients have ended. If this stays, the GPUs have no MLOPart devices: set the daemon's mlopart to false",
                server.pid
            );
            (ConditionReason::NoMlopartDevices, message)
        }),
        // 4. Settings: left as others made them, then those that are being written.
        drift.then(|| (ConditionReason::SettingsDrifted, format!("another program changed its settings: {}", changed.join(", ")))),
        (!wrong.is_empty()).then(|| (ConditionReason::SettingsDiffer, format!("settings differ from the spec: {}", wrong.join(", ")))),
        // 5. Its layout.
        state.layout.unready(desired),
        // 6. Its server.
        effective.servers.is_empty().then(|| no_server(state, desired)),
        other.filter(|_| !serving).map(|server| {
            let message = format!("server {} is {} and takes no clients yet", server.pid, server.status);
            (ConditionReason::ServerStarting, message)
        }),
        serves_another_user(desired, effective).then(|| {
            let message = format!(
                "its server still serves another user, and clients of uid {} would wait: the server is replaced as soon as \
                 no client is connected",
                desired.server_uid
            );
            (ConditionReason::OtherUser, message)
        }),
    ]
}

/// Returns the reason why a daemon has no server: one is being started, or none stays.
fn no_server(state: &DaemonReconciler, desired: &Desired) -> (ConditionReason, String) {
    // One server may end by chance, and a daemon may overlook the first request, just after the end of the previous server.
    if state.failed_servers() < 2 {
        return (ConditionReason::ServerStarting, "its server is being started".to_owned());
    }
    let failed = match state.failed_server {
        Some(failed) => format!("the last line of control.log about it is \"{failed}\""),
        None => "control.log says nothing about it".to_owned(),
    };
    let message = format!(
        "its server ends before it takes a client, {} in a row; {failed}. Nothing runs on its \
         GPUs until that is mended, and one is requested again after a pause of up to a minute: see that nvidia-smi answers, that \
         libcuda.so.1 of this driver is installed and that uid {} may open /dev/nvidia*, then mps-manager daemon start {}",
        times(u64::try_from(state.failed_servers()).unwrap_or(u64::MAX)),
        desired.server_uid,
        desired.name
    );
    (ConditionReason::ServerExits, message)
}

/// Describes which clients a server with a fatal GPU error waits for, and the remedy.
fn server_fault(server: &Server) -> String {
    let holders: Vec<String> = server
        .held_by
        .iter()
        .map(|holder| {
            let client = holder.client;
            if holder.stopped {
                format!(
                    "process {} is stopped: continue it (kill -CONT {0}) or end it (kill -9 {0})",
                    client.pid
                )
            } else {
                format!("process {} is still connected: end it (mps-manager terminate {client})", client.pid)
            }
        })
        .collect();
    let remedy = if holders.is_empty() { "end them".to_owned() } else { holders.join("; ") };
    format!(
        "server {} had a fatal GPU error and takes no new client until the clients it affects are gone: {remedy}",
        server.pid
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::client::ClientId;
    use crate::domain::daemon::FaultHolder;

    #[test]
    fn fault_names_clients_holding_the_server() {
        let server = |held_by: Vec<FaultHolder>| Server {
            mlopart_devices: None,
            pid: 7,
            start_time: 1,
            uid: None,
            status: ServerStatus::Fault,
            active_thread_percentage: None,
            memory_limits: Vec::new(),
            held_by,
        };
        assert!(server_fault(&server(vec![])).ends_with("are gone: end them"));
        let holder = |pid, stopped| FaultHolder { client: ClientId { pid, start_time: 3 }, stopped };
        let message = server_fault(&server(vec![holder(8, true), holder(9, false)]));
        assert!(message.contains("process 8 is stopped") && message.contains("kill -CONT 8"), "{message}");
        assert!(message.contains("mps-manager terminate 9-3"), "{message}");
    }
}
