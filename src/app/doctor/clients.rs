//! Processes on the GPUs: the conditions of the manager's daemons, clients that wait, and the namespaces that processes live in.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{DaemonReport, Examination};
use crate::domain::checkup::{Check, CheckFinding, CheckVerdict};
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::counted;
use crate::host::process;
use crate::mps::log::{self, LogEvent};
use crate::mps::process::foreign::{Running, running};
use crate::mps::process::servers;
use crate::supervisor::{ExposedDirectory, ExposureSearch, exposed_directories};

/// Bytes at the end of a log that are searched for waiting clients.
const TAIL: usize = 64 << 10;
/// Pause before the second search for mounts of a daemon's directory.
const SECOND_LOOK: Duration = Duration::from_secs(1);

impl Examination {
    /// Checks the daemons by the conditions that the manager reports: limits that are not in force, faults, drift, partitions.
    pub(super) fn daemons(&mut self, report: Option<DaemonReport>) {
        let check = match report {
            None => Check::skipped("daemons", "no manager serves"),
            Some(Err(why)) => Check::skipped("daemons", format!("the manager did not say: {why}")),
            Some(Ok(daemons)) => {
                let found: Vec<CheckFinding> = daemons
                    .iter()
                    .flat_map(|(name, conditions)| {
                        let known = conditions.iter().flatten();
                        let bad = known.filter(|condition| condition.needs_attention());
                        bad.map(move |one| CheckFinding {
                            seen: format!("{name}: {}: {}", called(one), one.message),
                            remedy: remedy(name, one),
                        })
                    })
                    .collect();
                let unknown = daemons.iter().filter(|(_, conditions)| conditions.is_none()).count();
                if found.is_empty() && unknown > 0 {
                    let all = counted(daemons.len(), "daemon");
                    let why = format!(
                        "of {all} the manager knows nothing of {unknown} at present: mps-manager status says why"
                    );
                    Check::skipped("daemons", why)
                } else if found.is_empty() {
                    let count = counted(daemons.len(), "daemon");
                    let well = format!("{count}, and nothing that needs attention");
                    Check::ok_of("daemons", daemons.len(), "the manager has no daemon", well)
                } else {
                    Check::each("daemons", CheckVerdict::Warn, found)
                }
            }
        };
        self.add(check);
    }

    /// Checks for clients that wait for another user's clients to leave, on daemons that serve one user at a time.
    pub(super) fn waiting_users(&mut self) {
        let daemons = running(self.world.as_deref());
        let homes = self.config.runtime_dir.join("daemons");
        let waiting = daemons.iter().filter(|daemon| !daemon.multi_user).filter_map(|daemon| {
            let seen = waiting_users(daemon)?;
            let remedy = managed_name(daemon, &homes).map_or_else(
                || "mps-manager foreign list".to_owned(),
                |name| format!("mps-manager daemon set {name} --multi-user"),
            );
            Some(CheckFinding { seen, remedy })
        });
        let waiting: Vec<CheckFinding> = waiting.collect();
        self.add(if waiting.is_empty() {
            let readable = daemons.iter().filter(|daemon| daemon.environment.is_ok()).count();
            Check::ok_of(
                "waiting_users",
                readable,
                "no MPS control daemon runs that could be read",
                "no client waits for those of another user to leave",
            )
        } else {
            Check::each("waiting_users", CheckVerdict::Warn, waiting)
        });
    }

    /// Checks for processes that the driver lists without an entry in /proc: this is another PID namespace than the host's.
    pub(super) fn pid_namespace(&mut self) {
        let unseen: Vec<String> = self
            .gpu_processes
            .iter()
            .filter(|pid| !Path::new(&format!("/proc/{pid}")).exists())
            .map(ToString::to_string)
            .collect();
        self.add(if unseen.is_empty() {
            Check::ok_of(
                "pid_namespace",
                self.gpu_processes.len(),
                "the driver lists no process of a GPU",
                "every process that the driver lists is visible here",
            )
        } else {
            Check::warn(
                "pid_namespace",
                format!(
                    "the driver lists processes that are not visible here: {}; their users, commands and ends stay unknown",
                    unseen.join(", ")
                ),
                "run the manager in the host's PID namespace: docker run --pid=host, or hostPID: true in a pod",
            )
        });
    }

    /// Checks for containers that mount a daemon's own directory, with the socket by which its user administers it.
    pub(super) fn privileged_socket(&mut self) {
        self.add(match self.exposed() {
            Err(error) => Check::skipped(
                "privileged_socket",
                format!("the mounts of other processes could not be searched: {error}"),
            ),
            Ok(search) if !search.found.is_empty() => {
                let seen = |one: &ExposedDirectory| {
                    format!("{} of process {}", one.point.display(), one.process.pid)
                };
                // One container may mount the directories of several daemons.
                let places: BTreeSet<String> = search.found.iter().map(seen).collect();
                Check::warn(
                    "privileged_socket",
                    format!(
                        "mounted elsewhere with control_privileged, through which root and the daemon's user change every limit: {}",
                        places.into_iter().collect::<Vec<String>>().join(", ")
                    ),
                    "mps-manager env TENANT --format json (its container.mount is the directory to mount instead)",
                )
            }
            Ok(ExposureSearch { unresolved, .. }) if !unresolved.is_empty() => {
                let seen = |(pipe, error): &(PathBuf, String)| format!("{}: {error}", pipe.display());
                Check::skipped(
                    "privileged_socket",
                    format!(
                        "containers could not be searched for {}",
                        unresolved.iter().map(seen).collect::<Vec<String>>().join(", ")
                    ),
                )
            }
            Ok(ExposureSearch { unseen: 0, .. }) => {
                Check::ok("privileged_socket", "no other mount namespace has a daemon's directory mounted")
            }
            Ok(ExposureSearch { unseen, .. }) => Check::skipped(
                "privileged_socket",
                format!("the mounts of {} may not be read: run it as root", counted(unseen, "process")),
            ),
        });
    }

    /// Finds foreign mounts of daemons' directories: of daemons in the runtime directory, and of those that the database has as adopted.
    fn exposed(&self) -> io::Result<ExposureSearch> {
        let homes = self.config.runtime_dir.join("daemons");
        let mut pipes = Vec::new();
        match fs::read_dir(&homes) {
            Ok(entries) => {
                for entry in entries {
                    pipes.push(entry?.path().join("pipe"));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let known = |daemon: &Running| {
            let identity = (daemon.identity.pid, daemon.identity.start_time);
            self.contents.as_ref().is_some_and(|contents| contents.processes.contains(&identity))
        };
        let mut controls = Vec::new();
        for daemon in running(self.world.as_deref()) {
            let is_managed = managed_name(&daemon, &homes).is_some();
            if !is_managed && !known(&daemon) {
                continue;
            }
            controls.push(daemon.identity.pid);
            // In another mount namespace its path may name another directory here.
            let seen = daemon.environment.ok().filter(|seen| !is_managed && seen.reachable.is_ok());
            pipes.extend(seen.map(|seen| seen.pipe_directory));
        }
        let first = exposed_directories(&pipes, &controls)?;
        if first.found.is_empty() {
            return Ok(first);
        }
        // A process that an engine starts has the host's mounts for a moment, until it enters its container.
        std::thread::sleep(SECOND_LOOK);
        let mut second = exposed_directories(&pipes, &controls)?;
        second.found.retain(|one| first.found.iter().any(|before| before.process == one.process));
        Ok(second)
    }
}

/// Names a condition that needs attention, as `not ready (ServerExits)`.
fn called(condition: &Condition) -> String {
    match condition.kind {
        ConditionType::Ready => format!("not ready ({})", condition.reason),
        kind => format!("{kind} ({})", condition.reason),
    }
}

/// Returns the command for a condition that needs attention: the one that its message names, or one that shows more.
fn remedy(daemon: &str, condition: &Condition) -> String {
    let mut quoted = condition.message.split('`').skip(1).step_by(2);
    if let Some(command) = quoted.find(|words| words.starts_with("mps-manager ")) {
        return command.to_owned();
    }
    match (condition.kind, condition.reason) {
        (_, ConditionReason::StoppedForMaintenance) => "mps-manager maintenance end".to_owned(),
        (_, ConditionReason::StoppedBySpec) => format!("mps-manager daemon start {daemon}"),
        (_, ConditionReason::BackOff | ConditionReason::CrashLoop | ConditionReason::ServerExits) => {
            format!("mps-manager daemon logs {daemon} control")
        }
        (ConditionType::Bypass | ConditionType::ServerFault, _) => {
            format!("mps-manager incident list --daemon {daemon}")
        }
        _ => format!("mps-manager daemon get {daemon}"),
    }
}

/// Returns the name of a daemon whose pipe directory is below the manager's own.
fn managed_name(daemon: &Running, homes: &Path) -> Option<String> {
    let seen = daemon.environment.as_ref().ok()?;
    let below = seen.pipe_directory.strip_prefix(homes).ok()?;
    Some(below.iter().next()?.to_string_lossy().into_owned())
}

/// Describes the clients that wait while a daemon's server belongs to another user.
fn waiting_users(daemon: &Running) -> Option<String> {
    let around = daemon.environment.as_ref().ok()?;
    let servers: BTreeSet<u32> = servers(daemon.identity.pid).iter().map(|server| server.pid).collect();
    let (mut waiting, mut logged) = (BTreeSet::new(), BTreeMap::new());
    for record in log::read(log::tail(&around.log_directory.join("control.log"), TAIL).as_bytes()) {
        match record.event {
            LogEvent::PushedToPending { pid, .. } => {
                waiting.insert(pid);
            }
            LogEvent::ClientAccepted { pid, .. } => {
                waiting.remove(&pid);
            }
            LogEvent::DaemonStarting { .. } => waiting.clear(),
            LogEvent::StartingServer { pid, uid } => {
                logged.insert(pid, uid);
            }
            _ => {}
        }
    }
    let uid_of = |server: &u32| logged.get(server).copied().or_else(|| process::uid(*server));
    let served: BTreeSet<u32> = servers.iter().filter_map(uid_of).collect();
    let words: Vec<String> = waiting
        .into_iter()
        .filter_map(|pid| Some((pid, process::uid(pid)?)))
        .filter(|(_, uid)| !served.is_empty() && !served.contains(uid))
        .map(|(pid, uid)| format!("process {pid} of uid {uid}"))
        .collect();
    let served: Vec<String> = served.iter().map(ToString::to_string).collect();
    (!words.is_empty()).then(|| {
        let daemon = daemon.identity.pid;
        format!("at control daemon {daemon}, which serves uid {}: {}", served.join(", "), words.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedy_of_condition_is_a_command() {
        let restart = "settings wait: `timings` aside, `mps-manager daemon restart gpu0` applies them";
        for (kind, reason, message, command) in [
            (
                ConditionType::RestartRequired,
                ConditionReason::RestartRequired,
                restart,
                "mps-manager daemon restart gpu0",
            ),
            (ConditionType::Ready, ConditionReason::CrashLoop, "", "mps-manager daemon logs gpu0 control"),
            (ConditionType::Ready, ConditionReason::Wedged, "it hangs", "mps-manager daemon get gpu0"),
        ] {
            assert_eq!(remedy("gpu0", &Condition::new(kind, false, reason, message)), command);
        }
    }
}
