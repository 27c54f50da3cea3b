//! Handling of control processes that were started outside this manager, and of foreign daemons on the same GPUs.

use super::Driver;
use crate::domain::GpuUuid;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::enumerated;
use crate::domain::daemon::{DaemonDirectories, Incarnation};
use crate::domain::plan::Desired;
use crate::host::Identity;
use crate::mps::process::{self as daemon, foreign::Running};
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::control_process::ControlProcess;
use crate::supervisor::observe::control_process::token;
use crate::supervisor::observe::foreign_daemons::{ForeignDaemon, SHARED_MEANS, SharedGpu};
use crate::supervisor::observe::log_tail::Logs;

impl Driver {
    /// Returns the GPUs, mode and users of an adopted process that was found again.
    pub(super) async fn foreign_shape(
        &self,
        desired: &Desired,
        identity: Identity,
    ) -> Result<ControlProcess, Blocker> {
        let foreign = self.context.foreign_daemons.inspect(identity).await.map_err(Blocker::doubtful)?;
        shape_of(desired, &foreign)
    }

    /// Searches the pipe directory of an observed daemon for a control daemon that its owner has started since.
    pub(super) async fn search_observed(
        &mut self,
        desired: &Desired,
    ) -> Result<Option<ControlProcess>, Blocker> {
        let Some(pipe_inode) = daemon::pipe_inode(&self.pipe_directory).ok() else { return Ok(None) };
        let scan = self.context.foreign_daemons.scan().await;
        let is_here = |running: &Running| {
            let environment = running.environment.as_ref().ok();
            environment.is_some_and(|environment| environment.reachable == Ok(pipe_inode))
        };
        let Some(foreign) = scan.iter().find(|foreign| is_here(&foreign.daemon)) else {
            return Ok(None);
        };
        if self.context.foreign_daemons.owner(&foreign.daemon).is_some_and(|owner| owner != desired.name) {
            return Ok(None);
        }
        let process = shape_of(desired, foreign)?;
        let identity = process.identity;
        let incarnation = Incarnation {
            // Identifies the process in the store only: a process of another program has no token in its environment.
            token: token(),
            boot_id: self.context.boot_id.clone(),
            process: Some((identity.pid, identity.start_time)),
            pipe_inode: Some(pipe_inode),
            applied: 0,
            home: Some(self.home_of(true)),
        };
        self.record(desired, incarnation).await;
        Ok(Some(process))
    }

    /// Returns the directories of a process that is about to be started, if they are not this manager's own.
    pub(super) fn home(&self, foreign: bool) -> Option<DaemonDirectories> {
        let own_directory = self.context.pipe_directory(&self.desired.borrow().name);
        if self.pipe_directory == own_directory { None } else { Some(self.home_of(foreign)) }
    }

    fn home_of(&self, foreign: bool) -> DaemonDirectories {
        DaemonDirectories {
            pipe_directory: self.pipe_directory.clone(),
            log_directory: self.log_directory.clone(),
            foreign,
        }
    }

    /// Determines whether the next start can be in the directories of the adopted process, and keeps the reason if it cannot.
    pub(super) fn update_planned_move(&mut self, desired: &Desired) {
        self.moves = self.home(false).filter(|_| !desired.is_observed()).and_then(|home| {
            let uid = Some(desired.server_uid);
            let usable = daemon::usable_directories(&home.pipe_directory, &home.log_directory, uid);
            usable.err().map(|error| error.to_string())
        });
    }

    /// Switches to this manager's own directories if an adopted process is gone and no daemon can be started in its directories.
    pub(super) fn leave_unusable_home(&mut self, desired: &Desired) {
        self.update_planned_move(desired);
        let Some(reason) = self.moves.take() else { return };
        let (pipe, log) =
            (self.context.pipe_directory(&desired.name), self.context.log_directory(&desired.name));
        tracing::warn!(daemon = %desired.name, from = %self.pipe_directory.display(), to = %pipe.display(), %reason, "starting in other directories");
        self.control = self.control.in_directory(pipe.clone());
        self.logs = Logs::new(&pipe, &log, None, self.now());
        (self.pipe_directory, self.log_directory) = (pipe, log);
    }

    /// Returns true if this manager may empty the daemon's logs.
    ///
    /// Logs that another program's daemon began may be emptied where nobody else can write beside them and no foreign daemon logs there.
    pub(super) fn may_empty_logs(&self, desired: &Desired) -> bool {
        if desired.is_observed() {
            return false;
        }
        let Some(home) = self.incarnation.as_ref().and_then(|incarnation| incarnation.home.as_ref()) else {
            return true;
        };
        let logs_there = |running: &Running| {
            let environment = running.environment.as_ref().ok();
            environment.is_some_and(|environment| {
                daemon::is_same_directory(&environment.log_directory, &home.log_directory)
            })
        };
        let foreign_daemons = &self.context.foreign_daemons;
        daemon::usable_directories(&home.pipe_directory, &home.log_directory, None).is_ok()
            && !self.foreign_daemons.borrow().iter().any(|foreign| {
                logs_there(&foreign.daemon)
                    && foreign_daemons.owner(&foreign.daemon).as_ref() != Some(&desired.name)
            })
    }

    /// Returns a blocker if the last scan found a foreign daemon that serves one of the GPUs, or may serve one.
    pub(super) fn shared_gpu(&self, desired: &Desired) -> Option<Blocker> {
        sharing_blocker(&self.context.foreign_daemons.sharing(&desired.name, &desired.gpus))
    }

    /// Returns warnings about foreign daemons on the daemon's GPUs, and about its directories.
    pub(super) fn foreign_conditions(&self, desired: &Desired) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if self.state.process.is_none() {
            return conditions;
        }
        for sharing in self.context.foreign_daemons.sharing(&desired.name, &desired.gpus) {
            let other = &sharing.daemon;
            conditions.push(match &sharing.gpus {
                Ok(gpus) => {
                    let (gpus, verb) = named(gpus);
                    let remedy = sharing.remedy();
                    let message =
                        format!("{gpus} {verb} also served by {other}: {SHARED_MEANS}. What to do: {remedy}");
                    ConditionType::SharesGpu.problem(ConditionReason::ForeignDaemon, message)
                }
                Err(reason) => {
                    let message =
                        format!("{other} may serve a GPU of this daemon too ({reason}): {SHARED_MEANS}");
                    ConditionType::SharesGpu.problem(ConditionReason::Undetermined, message)
                }
            });
        }
        if let Some(reason) = &self.moves {
            let message = format!(
                "when it is next started, it is started in {}, since it cannot be in the directories that it was adopted in \
                 ({reason}): programs that still have the old pipe directory then run outside MPS, with the whole GPU",
                self.context.pipe_directory(&desired.name).display()
            );
            conditions
                .push(ConditionType::MovesAtRestart.problem(ConditionReason::DirectoryUnusable, message));
        }
        conditions
    }
}

/// Lists GPUs for a sentence, with the verb that follows.
fn named(gpus: &[GpuUuid]) -> (String, &'static str) {
    let names: Vec<&str> = gpus.iter().map(GpuUuid::as_str).collect();
    (enumerated(&names), if names.len() == 1 { "is" } else { "are" })
}

/// Returns the blocker for a start on GPUs that these daemons serve. A GPU that is known to be shared comes before one that may be.
fn sharing_blocker(sharing: &[SharedGpu]) -> Option<Blocker> {
    let certain = sharing.iter().find(|sharing| sharing.gpus.is_ok());
    let shared = certain.or_else(|| sharing.first())?;
    let SharedGpu { gpus, daemon, .. } = shared;
    let serves = match gpus {
        Ok(gpus) => {
            let (gpus, verb) = named(gpus);
            format!("{gpus} {verb} served by {daemon}")
        }
        Err(reason) => {
            format!("{daemon} may serve a GPU of this daemon, which cannot be determined ({reason})")
        }
    };
    Some(Blocker {
        reason: ConditionReason::GpuSharedWithForeignDaemon,
        message: format!(
            "{serves}: {SHARED_MEANS}. What to do: {}; or set share_gpus to start beside it all the same",
            shared.remedy()
        ),
    })
}

/// Describes the process of a foreign daemon: its GPUs, mode and users.
///
/// An observed process that does not match its daemon's spec is an error, since the manager does not change observed daemons.
fn shape_of(desired: &Desired, foreign: &ForeignDaemon) -> Result<ControlProcess, Blocker> {
    let process = ControlProcess {
        identity: foreign.daemon.identity,
        gpus: foreign.gpus.clone().map_err(Blocker::doubtful)?,
        mode: foreign.daemon.mode,
        multi_user: foreign.daemon.multi_user,
    };
    if !desired.is_observed() || process.fits(desired) {
        return Ok(process);
    }
    Err(Blocker {
        reason: ConditionReason::ShapeDiffers,
        message: format!(
            "process {} in its pipe directory has other GPUs, users or another mode than were observed: release this daemon, and adopt that \
             process",
            process.identity
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::client::ClientId;
    use crate::domain::foreign_owner::{ForeignOwner, SharingDaemon};

    #[test]
    fn foreign_daemon_with_unknown_gpus_blocks_start() {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let shared = |gpus, daemon: &str| SharedGpu {
            gpus,
            daemon: daemon.to_owned(),
            sharing: SharingDaemon {
                process: ClientId { pid: 7, start_time: 1 },
                uid: None,
                pipe_directory: None,
                owner: ForeignOwner::default(),
            },
        };
        let known = shared(Ok(vec![gpu.clone()]), "control daemon 7-1");
        let unknown = shared(Err("may not be read".into()), "control daemon 8-1 of uid 9");
        assert_eq!(sharing_blocker(&[]), None);
        let blocker = sharing_blocker(std::slice::from_ref(&unknown)).expect("it may share");
        assert_eq!(blocker.reason, ConditionReason::GpuSharedWithForeignDaemon);
        for words in ["8-1 of uid 9 may serve", "(may not be read)", "share_gpus"] {
            assert!(blocker.message.contains(words), "{}", blocker.message);
        }
        let blocker = sharing_blocker(&[unknown, known]).expect("it shares");
        assert!(blocker.message.contains(&format!("{gpu} is served by control daemon 7-1")));
    }
}
