//! The control process of a driver: finding it again, starting, stopping and recording it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Driver;
use crate::domain::DaemonName;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::{Incarnation, Mode};
use crate::domain::plan::Desired;
use crate::gpu::GpuDriver;
use crate::host::Identity;
use crate::host::process::{death, is_alive};
use crate::mps::process::{self as daemon, DaemonSearch, RecordedProcess, StartSpec};
use crate::supervisor::blocker::Blocker;
use crate::supervisor::durable::DurableRecord;
use crate::supervisor::observe::control_process::ControlProcess;
use crate::supervisor::observe::control_process::{shape, token};
use crate::supervisor::observe::gpu_presence::GpuPresence;
use crate::supervisor::observe::isolation;

/// Pause between two searches for a daemon that an earlier manager was starting.
const STARTING: Duration = Duration::from_millis(5);
/// Longest time from the start of a daemon to its first answer.
const START_DEADLINE: Duration = Duration::from_secs(10);
/// Time added to the grace of a stopping daemon, until its GPUs are free.
const HANDOVER: Duration = Duration::from_secs(5);

impl Driver {
    /// Searches for the control process of an earlier manager. A doubtful result blocks the daemon: nothing is guessed.
    pub(super) async fn search(&mut self, desired: &Desired) -> Result<Option<ControlProcess>, Blocker> {
        let found = self.search_earlier(desired).await?;
        if found.is_none() && desired.is_observed() { self.search_observed(desired).await } else { Ok(found) }
    }

    async fn search_earlier(&mut self, desired: &Desired) -> Result<Option<ControlProcess>, Blocker> {
        let Some(earlier) = self.incarnation.clone() else { return Ok(None) };
        if earlier.boot_id != self.context.boot_id {
            return Ok(None);
        }
        let foreign = earlier.is_foreign();
        let observed = desired.is_observed();
        let recorded = earlier.process.zip(earlier.pipe_inode).map(|((pid, start_time), pipe_inode)| {
            RecordedProcess { identity: Identity { pid, start_time }, pipe_inode }
        });
        let until = Instant::now() + START_DEADLINE;
        let search = loop {
            let (token, directory) = (earlier.token.clone(), self.pipe_directory.clone());
            let search = tokio::task::spawn_blocking(move || match recorded {
                Some(recorded) if foreign => daemon::find_adopted(&directory, recorded, observed),
                None if foreign => DaemonSearch::None,
                Some(recorded) => daemon::find_recorded(&token, &directory, recorded),
                // The manager died between writing the token and learning the process.
                None => daemon::find(&token, &directory),
            })
            .await;
            match search {
                Ok(DaemonSearch::Starting(_)) if Instant::now() < until => tokio::time::sleep(STARTING).await,
                search => break search,
            }
        };
        match search.map_err(|error| Blocker::doubtful(error.to_string()))? {
            DaemonSearch::None => {
                // Servers may have hung, and the manager may have died before it ended them.
                if !observed {
                    self.end_orphaned_servers(desired).await;
                }
                if let Some(recorded) = recorded.filter(|_| desired.running) {
                    let gone = "no manager was there to see it";
                    let failure =
                        Blocker { reason: ConditionReason::DiedOrDidNotStart, message: gone.to_owned() };
                    self.event_detector.died(
                        &desired.name,
                        recorded.identity.pid,
                        &failure,
                        self.logs.server_log_events(),
                    );
                }
                Ok(None)
            }
            DaemonSearch::Starting(program) => Err(Blocker::doubtful(format!(
                "process {program} has been starting the daemon for more than {START_DEADLINE:?}: end it"
            ))),
            DaemonSearch::Doubtful { reason } => Err(Blocker::doubtful(reason)),
            DaemonSearch::Ours(identity) if foreign => self.foreign_shape(desired, identity).await.map(Some),
            DaemonSearch::Ours(identity) => {
                if let Some(incarnation) = &mut self.incarnation {
                    incarnation.process = Some((identity.pid, identity.start_time));
                    incarnation.pipe_inode = daemon::pipe_inode(&self.pipe_directory).ok();
                }
                Ok(Some(shape(identity)))
            }
        }
    }

    pub(super) async fn start(&mut self, desired: &Desired) {
        let now = self.now();
        self.leave_unusable_home(desired);
        if let Some(blocker) = self.blocker(desired).await {
            self.state.blocked(blocker, now);
            return;
        }
        // After the scan, which blocks on a process that no driver has claimed yet.
        if let Err(blocker) = self.await_released_gpus(desired).await {
            self.state.blocked(blocker, self.now());
            return;
        }
        let mut incarnation = Incarnation {
            token: token(),
            boot_id: self.context.boot_id.clone(),
            process: None,
            pipe_inode: daemon::pipe_inode(&self.pipe_directory).ok(),
            applied: 0,
            home: self.home(false),
        };
        if !self.record(desired, incarnation.clone()).await {
            let message = "the token of the new process could not be written to the database, so none is started: see that the disk of the state directory has room".to_owned();
            self.state.blocked(Blocker { reason: ConditionReason::StoreUnavailable, message }, now);
            return;
        }
        self.clean_stale();
        let spec = StartSpec {
            pipe_directory: self.pipe_directory.clone(),
            log_directory: self.log_directory.clone(),
            gpus: desired.gpus.clone(),
            mode: desired.mode,
            multi_user: self.context.capability.multi_user_option().filter(|_| desired.multi_user),
            token: incarnation.token.clone(),
            launcher: isolation::launcher(&self.context.scopes, &desired.name, &incarnation.token),
            deadline: START_DEADLINE,
        };
        match self.context.control_program.start(&spec).await {
            Ok(started) => {
                tracing::info!(daemon = %desired.name, process = %started.identity, "started the control daemon");
                if let Some(why) = &started.refused {
                    tracing::warn!(daemon = %desired.name, %why, "the daemon has no scope of its own");
                }
                self.refused = started.refused;
                incarnation.process = Some((started.identity.pid, started.identity.start_time));
                incarnation.pipe_inode = Some(started.pipe_inode);
                self.record(desired, incarnation).await;
                if let Some(incarnation) = &self.incarnation {
                    self.state.layout.begin(&incarnation.token);
                }
                self.counts.incarnations += 1;
                self.quit_sent = false;
                self.event_detector.started(&desired.name, started.identity.pid);
                self.clients.clear();
                self.written.clear();
                self.state.started(ControlProcess {
                    identity: started.identity,
                    gpus: desired.gpus.clone(),
                    mode: daemon::mode(started.identity.pid),
                    multi_user: desired.multi_user,
                });
            }
            Err(error) => {
                tracing::error!(daemon = %desired.name, %error, "the control daemon did not start");
                self.did_not_start(&error);
            }
        }
    }

    /// Waits until no other daemon of this manager serves a GPU that now belongs to this one. The other daemon gave the GPU
    /// away by its spec, and is being stopped or waits for its clients.
    async fn await_released_gpus(&mut self, desired: &Desired) -> Result<(), Blocker> {
        if self.gpu_server(desired).is_none() {
            return Ok(());
        }
        self.publish(desired);
        let until = Instant::now() + Duration::from_secs(self.context.grace_s.into()) + HANDOVER;
        while let Some((name, process)) = self.gpu_server(desired) {
            if tokio::time::timeout_at(until, death(process)).await.is_err() {
                return Err(Blocker {
                    reason: ConditionReason::GpuNotReleased,
                    message: format!(
                        "daemon {name} (process {process}) still serves a GPU that is this daemon's now: it stops once its last client \
                         has ended, so end them (mps-manager daemon drain {name}), or restart it"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Returns another daemon of this manager that serves one of these GPUs.
    fn gpu_server(&self, desired: &Desired) -> Option<(DaemonName, Identity)> {
        let others = self.context.foreign_daemons.other_processes(&desired.name);
        others.into_iter().find(|(_, process)| {
            is_alive(*process) && shape(*process).gpus.iter().any(|gpu| desired.gpus.contains(gpu))
        })
    }

    fn clean_stale(&self) {
        if let Err(error) = daemon::clean_stale(&self.pipe_directory) {
            tracing::warn!(%error, directory = %self.pipe_directory.display(), "stale files stay");
        }
    }

    /// Checks everything that may block a start, and returns the first blocker.
    async fn blocker(&self, desired: &Desired) -> Option<Blocker> {
        let inventory = Arc::clone(&self.context.inventory);
        let asked = move || inventory.gpus().map(|gpus| (gpus, inventory.driver().ok()));
        let (present, driver) = match tokio::task::spawn_blocking(asked).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(error)) => {
                return Some(Blocker { reason: ConditionReason::NoInventory, message: error.to_string() });
            }
            Err(error) => {
                return Some(Blocker { reason: ConditionReason::NoInventory, message: error.to_string() });
            }
        };
        if let Some(blocker) = GpuPresence::of(&present).blocker(desired) {
            return Some(blocker);
        }
        let driver = driver.and_then(GpuDriver::running);
        if let Some(message) = driver.and_then(|driver| self.context.capability.other_driver(&driver)) {
            return Some(Blocker { reason: ConditionReason::ProgramsOfAnotherDriver, message });
        }
        if let Some(why) = self.context.capability.lacks_static().filter(|_| desired.mode == Mode::Static) {
            let message = format!("{why}, or set the daemon's mode to shared");
            return Some(Blocker { reason: ConditionReason::StaticModeUnsupported, message });
        }
        if let Some(why) = self.context.capability.lacks_multi_user().filter(|_| desired.multi_user) {
            let message = format!("{why}, or set the daemon's multi_user to false");
            return Some(Blocker { reason: ConditionReason::MultiUserUnsupported, message });
        }
        if let Some(why) = self.context.capability.lacks_mlopart().filter(|_| desired.mlopart) {
            let message = format!("{why}, or set the daemon's mlopart to false");
            return Some(Blocker { reason: ConditionReason::MlopartUnsupported, message });
        }
        if let Some(why) = self.modes.failure().filter(|_| desired.compute_mode.is_some()) {
            // A server without the mode would let processes past it.
            return Some(Blocker { reason: ConditionReason::ComputeModeNotSet, message: why.clone() });
        }
        if let Some(message) = self.directories_unusable(desired).await {
            return Some(Blocker { reason: ConditionReason::DirectoryUnusable, message });
        }
        if let Some(occupant) = daemon::occupant(&self.pipe_directory) {
            let path = self.pipe_directory.display().to_string();
            let mut owner = occupant.pid.map(daemon::foreign::owner_of).unwrap_or_default();
            // Nobody but a manager starts a daemon with a token in a daemon's own directory.
            owner.is_lost = owner.is_managed && self.home(false).is_none();
            let who = match (occupant.pid, owner.words()) {
                (None, _) => "its process cannot be determined".to_owned(),
                (Some(pid), words) if words.is_empty() => format!("process {pid}"),
                (Some(pid), words) => format!("process {pid}, {words}"),
            };
            let remedy = owner.remedy(Some(&path));
            let message =
                format!("a control daemon that this manager did not start ({who}) serves {path}: {remedy}");
            return Some(Blocker { reason: ConditionReason::ForeignDaemon, message });
        }
        if desired.share_gpus {
            return None;
        }
        self.context.foreign_daemons.scan().await;
        self.shared_gpu(desired)
    }

    pub(super) async fn stop_daemon(&mut self, desired: &Desired, grace_s: u32) {
        let Some(process) = self.state.process.clone() else { return };
        self.publish(desired);
        self.quit_sent = true;
        self.close_handout(desired);
        match daemon::stop(&*self.control, process.identity, grace_s).await {
            Ok(stopped) => {
                tracing::info!(daemon = %desired.name, process = %process.identity, how = ?stopped, "stopped the control daemon");
                self.clean_stale();
                self.event_detector.stopped(&desired.name, process.identity.pid);
                self.clients.clear();
                self.state.stopped();
                // Comes before the stop is published.
                self.apply_compute_modes(desired).await;
            }
            Err(error) => {
                let message = format!("process {} did not end: {error}", process.identity);
                tracing::error!(daemon = %desired.name, %message);
                self.state.blocked(Blocker { reason: ConditionReason::StopFailed, message }, self.now());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    /// Hands an incarnation to the recorder and waits until it is written; returns false if it was not.
    pub(super) async fn record(&mut self, desired: &Desired, incarnation: Incarnation) -> bool {
        self.incarnation = Some(incarnation.clone());
        // Comes before the process exists, so that no scan takes it for another program's.
        self.claim();
        self.context.record(&desired.name, DurableRecord::Incarnation(incarnation)).await
    }
}
