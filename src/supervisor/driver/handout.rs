//! Handing out the sockets of a daemon's tenants, and access to the daemon's own directories.

use std::path::{Path, PathBuf};

use super::super::handout::{ControlSocket, Handout, handout};
use super::Driver;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::daemon::{Effective, Incarnation, Phase};
use crate::domain::plan::Desired;
use crate::host::access::{self, PathAccess};
use crate::mps::process as daemon;

/// Returns the users who may pass through a daemon's own directory: only its owner with `-M`; without it also its users,
/// since the server then runs as the user of its clients (recordings 19 and 28).
fn access(desired: &Desired) -> PathAccess {
    if desired.multi_user {
        return access::PRIVATE.clone();
    }
    PathAccess::passed_by(desired.uids.iter().chain(&desired.others.users).copied(), desired.others.everyone)
}

impl Driver {
    /// Hands out the daemon's socket or a placeholder, according to the phase.
    pub(super) fn hand_out(&self, desired: &Desired, phase: Phase) {
        if desired.is_observed() {
            return;
        }
        let control = self.state.process.as_ref().map(|process| ControlSocket {
            identity: process.identity,
            pipe: self.pipe_directory.clone(),
            foreign: self.incarnation.as_ref().is_some_and(Incarnation::is_foreign),
        });
        let gives_devices = if desired.mlopart {
            self.state.seen.as_ref().is_some_and(Effective::is_serving)
        } else {
            !self.state.has_mlopart()
        };
        let handout = handout(phase, desired, control, gives_devices);
        self.context.handouts.set_handout(&desired.name, desired.version(), handout);
    }

    fn has_own_directories(&self, desired: &Desired) -> bool {
        self.pipe_directory == self.context.pipe_directory(&desired.name)
    }

    /// Restricts the directory of a running daemon to its users, and returns a condition if that is impossible.
    pub(super) fn keep_closed(&self, desired: &Desired) -> Option<Condition> {
        if self.state.process.is_none() || desired.is_observed() {
            return None;
        }
        let shown = self.pipe_directory.display();
        let (reason, why) = if self.has_own_directories(desired) {
            let why = match access(desired).keep(&self.pipe_directory) {
                Ok(true) => return None,
                Ok(false) => {
                    format!("the file system of {shown} has no ACLs, by which its users alone would reach it")
                }
                Err(error) => format!("{shown} cannot be closed to all but its users ({error})"),
            };
            (ConditionReason::NotClosed, why)
        } else {
            let why = format!("its directory {shown} is another program's, and stays as that made it");
            (ConditionReason::OtherDirectories, why)
        };
        let message = format!(
            "{why}: any user who learns the path can connect as a client and lock its tenants out; set any_user to say that it is meant so"
        );
        let condition = ConditionType::AnyUserMayConnect.problem(reason, message);
        Some(condition).filter(|_| !desired.others.everyone)
    }

    /// Makes the directories of a daemon that is to be started. Returns the reason if it cannot run in them or its clients cannot reach it.
    pub(super) async fn directories_unusable(&self, desired: &Desired) -> Option<String> {
        let has_own = self.has_own_directories(desired);
        let made = if has_own {
            let above: Vec<&Path> = self.pipe_directory.ancestors().skip(1).take(2).collect();
            daemon::keep_directories(&above, &self.pipe_directory, &self.log_directory, &access(desired))
        } else {
            let uid = Some(desired.server_uid);
            daemon::check_directories(&self.pipe_directory, &self.log_directory, uid)
        };
        if let Err(error) = made {
            return Some(error.to_string());
        }
        // The daemon's own directory has just been opened to them; the directories above it may not be.
        let pipe = if has_own { self.pipe_directory.parent() } else { Some(self.pipe_directory.as_path()) };
        for directory in pipe.into_iter().chain([self.context.handouts.root()]).map(PathBuf::from) {
            // With -M each tenant connects as a user of its own.
            for uid in &desired.uids {
                if let Err(message) = self.context.check_reachable(directory.clone(), *uid).await {
                    return Some(message);
                }
            }
        }
        None
    }

    /// Hands out placeholders while the daemon is stopped. They hold clients if it is to run again, and refuse them otherwise.
    pub(super) fn close_handout(&self, desired: &Desired) {
        let handout = if desired.running { Handout::Wait } else { Handout::Refuse };
        self.context.handouts.set_handout(&desired.name, desired.version(), handout);
    }
}
