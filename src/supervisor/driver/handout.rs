//! What a driver does about the sockets of its tenants, and about the directory of its daemon's own.

use std::path::PathBuf;

use super::super::handout::{ControlSocket, Handout, handout};
use super::Driver;
use crate::domain::daemon::{Incarnation, Phase};
use crate::domain::plan::Desired;
use crate::mps::process as daemon;

/// The mode of a daemon's own directory: under `-M` no other user needs to pass, and without it its server, which runs as
/// its clients' user (recording 19).
pub(super) const fn pipe_mode(multi_user: bool) -> u32 {
    if multi_user { 0o700 } else { 0o711 }
}

impl Driver {
    /// Hands out the daemon's socket or a placeholder, as the phase says.
    pub(super) fn hand_out(&self, desired: &Desired, phase: Phase) {
        if desired.is_observed() {
            return;
        }
        let control = self.state.process.as_ref().map(|process| ControlSocket {
            identity: process.identity,
            pipe: self.pipe_directory.clone(),
            foreign: self.incarnation.as_ref().is_some_and(Incarnation::is_foreign),
        });
        let handout = handout(phase, desired, control);
        self.context.handouts.set_handout(&desired.name, desired.version(), handout);
    }

    /// Makes the directories of a daemon that is to be started; why it cannot be in them, or its clients cannot reach it.
    pub(super) async fn directories_unusable(&self, desired: &Desired) -> Option<String> {
        let own = self.pipe_directory == self.context.pipe_directory(&desired.name);
        let mode = own.then(|| pipe_mode(desired.multi_user));
        // Then the server runs as the manager's user, and clients come through their tenants' directories.
        let closed = own && desired.multi_user;
        let uid = Some(desired.server_uid).filter(|_| !closed);
        if let Err(error) = daemon::check_directories(&self.pipe_directory, &self.log_directory, uid, mode) {
            return Some(error.to_string());
        }
        let pipe = (!closed).then_some(&self.pipe_directory);
        for directory in pipe.into_iter().map(PathBuf::as_path).chain([self.context.handouts.root()]) {
            // Under -M each tenant comes as a user of its own.
            for uid in &desired.uids {
                if let Err(message) = self.context.check_reachable(directory.to_owned(), *uid).await {
                    return Some(message);
                }
            }
        }
        None
    }

    /// Hands out placeholders while the daemon is stopped; who comes waits if it is started again.
    pub(super) fn close_handout(&self, desired: &Desired) {
        let handout = if desired.running { Handout::Wait } else { Handout::Refuse };
        self.context.handouts.set_handout(&desired.name, desired.version(), handout);
    }
}
