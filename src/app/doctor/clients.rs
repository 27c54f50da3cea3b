//! Checks of the daemons: conditions of the manager's own, clients that wait, containers that have their sockets, and foreign ones.

use std::collections::BTreeSet;

use super::facts::{HostFacts, ManagerFacts, WaitingUsers};
use crate::domain::checkup::{CheckFinding, CheckVerdict, Judgement, each, ok, skipped, warn};
use crate::domain::client::ClientId;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::{counted, joined};
use crate::domain::foreign::visible_gpus;
use crate::mps::process::foreign::{Running, Surroundings};

/// Checks the daemons by the conditions that the manager reports: limits that are not in force, faults, drift, partitions.
pub(super) fn daemons(host: &HostFacts) -> Judgement {
    let daemons = match &host.report {
        None => return skipped("no manager serves"),
        Some(Err(why)) => return skipped(format!("the manager did not say: {why}")),
        Some(Ok(report)) => &report.daemons,
    };
    let findings = daemons.iter().flat_map(|(name, conditions)| {
        let bad = conditions.iter().flatten().filter(|condition| condition.needs_attention());
        bad.map(move |condition| CheckFinding {
            seen: format!("{name}: {}: {}", called(condition), condition.message),
            remedy: remedy(name, condition),
        })
    });
    each(CheckVerdict::Warn, findings)?;
    let all = counted(daemons.len(), "daemon");
    match daemons.iter().filter(|(_, conditions)| conditions.is_none()).count() {
        0 if daemons.is_empty() => skipped("the manager has no daemon"),
        0 => ok(format!("{all}, and nothing that needs attention")),
        unknown => skipped(format!(
            "of {all} the manager knows nothing of {unknown} at present: mps-manager status says why"
        )),
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

/// Checks for clients that wait for another user's clients to leave, on daemons that serve one user at a time.
pub(super) fn waiting_users(host: &HostFacts) -> Judgement {
    let finding = |WaitingUsers { control, managed, served, clients }: &WaitingUsers| CheckFinding {
        seen: format!(
            "at control daemon {control}, which serves uid {}: {}",
            joined(served, ", "),
            joined(clients.iter().map(|(pid, uid)| format!("process {pid} of uid {uid}")), ", ")
        ),
        remedy: managed.as_ref().map_or_else(
            || "mps-manager foreign list".to_owned(),
            |name| format!("mps-manager daemon set {name} --multi-user"),
        ),
    };
    let is_kept_waiting = |waiting: &&WaitingUsers| !waiting.served.is_empty() && !waiting.clients.is_empty();
    each(CheckVerdict::Warn, host.waiting.iter().filter(is_kept_waiting).map(finding))?;
    match host.daemons.iter().filter(|daemon| daemon.environment.is_err()).count() {
        unread if unread == host.daemons.len() => {
            return skipped("no MPS control daemon runs that could be read");
        }
        0 => {}
        unread => {
            let all = counted(host.daemons.len(), "MPS control daemon");
            return skipped(format!("of {all} {unread} could not be read; at the others no client waits"));
        }
    }
    ok("no client waits for those of another user to leave")
}

/// Checks for containers that mount a daemon's own directory, with the socket by which its user administers it.
pub(super) fn privileged_socket(host: &HostFacts) -> Judgement {
    let search = host
        .exposed
        .as_ref()
        .or_else(|error| skipped(format!("the mounts of other processes could not be searched: {error}")))?;
    // One container may mount the directories of several daemons.
    let mounts = search.found.iter();
    let places: BTreeSet<String> =
        mounts.map(|mount| format!("{} of process {}", mount.point.display(), mount.process.pid)).collect();
    if !places.is_empty() {
        return warn(
            format!(
                "mounted elsewhere with control_privileged, through which root and the daemon's user change every limit: {}",
                joined(places, ", ")
            ),
            "mps-manager env TENANT --format json (its container.mount is the directory to mount instead)",
        );
    }
    if !search.unresolved.is_empty() {
        let unresolved = search.unresolved.iter().map(|(pipe, error)| format!("{}: {error}", pipe.display()));
        return skipped(format!("containers could not be searched for {}", joined(unresolved, ", ")));
    }
    match search.unseen {
        _ if search.searched == 0 => skipped("no daemon has a directory yet"),
        0 => ok("no other mount namespace has a daemon's directory mounted"),
        unseen => {
            skipped(format!("the mounts of {} may not be read: run it as root", counted(unseen, "process")))
        }
    }
}

pub(super) fn foreign_daemons(host: &HostFacts) -> Judgement {
    let is_own = |daemon: &Running| {
        let identity = (daemon.identity.pid, daemon.identity.start_time);
        let token = daemon.environment.as_ref().ok().and_then(|surroundings| surroundings.token.as_ref());
        host.contents().is_some_and(|contents| {
            token.is_some_and(|token| contents.tokens.contains(token))
                || contents.processes.contains(&identity)
        })
    };
    let finding =
        |daemon| CheckFinding { seen: described(host, daemon), remedy: foreign_remedy(host, daemon) };
    each(CheckVerdict::Warn, host.daemons.iter().filter(|daemon| !is_own(daemon)).map(finding))?;
    ok("no MPS control daemon runs that is not this manager's")
}

/// Returns the command that shows a remedy for a daemon, or, where no manager serves, the command that ends the daemon.
fn foreign_remedy(host: &HostFacts, daemon: &Running) -> String {
    let surroundings = daemon.environment.as_ref().ok();
    // A manager started it in this runtime directory, but the database does not know it.
    let is_lost = |surroundings: &Surroundings| {
        surroundings.token.is_some() && surroundings.pipe_directory.starts_with(&host.config.runtime_dir)
    };
    if surroundings.is_some_and(is_lost) {
        return "mps-manager daemon adopt --all-ours".to_owned();
    }
    let pipes = surroundings.map(|surroundings| surroundings.pipe_directory.display().to_string());
    let (process, owner) = (ClientId::from(daemon.identity), &daemon.owner);
    if owner.is_supervised() || owner.tenant.is_some() || owner.container.is_some() {
        return owner.remedy(pipes.as_deref());
    }
    match (&host.manager, pipes) {
        (ManagerFacts::Serves { .. }, _) => format!("mps-manager foreign get {process}"),
        (_, Some(pipes)) => format!("echo quit | CUDA_MPS_PIPE_DIRECTORY={pipes} nvidia-cuda-mps-control"),
        (_, None) => format!("kill {}", process.pid),
    }
}

fn described(host: &HostFacts, daemon: &Running) -> String {
    let whose = daemon.uid.map_or_else(String::new, |uid| format!(" of uid {uid}"));
    let mut words = vec![format!("control daemon {}{whose}", daemon.identity.pid)];
    match &daemon.environment {
        Err(why) => words.push(format!("({why})")),
        Ok(surroundings) => {
            words.push(format!("at {}", surroundings.pipe_directory.display()));
            let gpus = host.known_gpus();
            let visible = visible_gpus(surroundings.visible_devices.as_deref(), surroundings.pci_order, gpus);
            let visible = visible.unwrap_or_default();
            let indices = gpus.iter().filter(|gpu| visible.contains(&gpu.uuid)).map(|gpu| gpu.index);
            let indices = joined(indices, ", ");
            if !indices.is_empty() {
                words.push(format!("serves GPU {indices}"));
            }
            let owner = daemon.owner.words();
            if surroundings.token.is_some() {
                words.push(
                    "(started by another manager, or by this one before its database was lost)".to_owned(),
                );
            } else if !owner.is_empty() {
                words.push(format!("({owner})"));
            }
        }
    }
    words.join(" ")
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
