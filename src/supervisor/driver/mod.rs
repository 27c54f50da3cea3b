//! The task that drives one daemon: runs the steps of [`DaemonReconciler`] and publishes the results.

mod adopted;
pub(crate) mod compute_mode;
mod failures;
mod handout;
mod jobs;
mod layout;
pub(crate) mod partition_commands;
mod publish;
mod refresh;
mod shares;
pub(crate) mod terminate_client;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::compute_mode::ComputeModeControl;
use self::failures::{dies, logs_changed};
use self::shares::PercentageProbe;
use super::observe::bypass::Bypasses;
use super::observe::control_process::{shape, token};
use super::observe::exact_limits::WrittenLimits;
use super::observe::gpu_presence::GpuPresence;
use super::observe::isolation;
use super::observe::log_tail::Logs;
use super::observe::poll::{self, PollTarget};
use super::observe::poll_outcome::{PollOutcome, unanswered};
use super::reconcile::daemon::{Blocker, ControlProcess, DaemonReconciler, PollInterval, ReconcileStep};
use super::reconcile::partitions::PartitionReconciler;
use super::report::conditions::{DaemonCounters, status};
use super::report::diagnosis::Diagnosis;
use super::report::event_detector::EventDetector;
use super::{Context, DriverRequest, DurableRecord, ForeignDaemon, Observed, RememberedDaemon, Shared};
use crate::clock::unix_ms;
use crate::domain::FilePlace;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::{Incarnation, Mode};
use crate::domain::difference::Difference;
use crate::domain::isolation::Isolation;
use crate::domain::plan::Desired;
use crate::host::{self, Identity};
use crate::mps::process::{self as daemon, Found, Recorded, StartSpec};
use crate::mps::session::SessionError;
use crate::mps::{Command, ControlChannel};

/// How long a running action may continue when the manager stops: a daemon may wait an hour for its clients.
const LAST_ACTION: Duration = Duration::from_secs(2);
/// Pause between two polls for a daemon that an earlier manager was starting.
const STARTING: Duration = Duration::from_millis(5);
/// Longest time from the start of a daemon to its first answer.
const START_DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct Driver {
    context: Arc<Context>,
    desired: watch::Receiver<Desired>,
    fresh: watch::Receiver<u64>,
    gpu_presence: watch::Receiver<GpuPresence>,
    jobs: mpsc::Receiver<DriverRequest>,
    stop: CancellationToken,
    observed: watch::Sender<Observed>,
    state: DaemonReconciler,
    /// The CUDA client that polls what a percentage gives.
    probe: Option<PercentageProbe>,
    clients: Vec<ClientFacts>,
    event_detector: EventDetector,
    /// Who uses its GPUs outside MPS.
    bypasses: Bypasses,
    /// When processes and GPUs were read last.
    refreshed_at: i64,
    /// How far server.log was read when that was last published.
    read_to: Option<FilePlace>,
    /// The request for a fresh poll that the last poll answers, and why it failed; until it is published.
    read: Option<(u64, Option<Diagnosis>)>,
    incarnation: Option<Incarnation>,
    /// The token of the control process for which the layout's status was recorded.
    layout_recorded_for: Option<String>,
    isolation: Option<Isolation>,
    /// Why the present process was started without the scope it should have had.
    refused: Option<String>,
    written: WrittenLimits,
    modes: ComputeModeControl,
    logs: Logs,
    incarnations: u64,
    deaths: u64,
    polls: u64,
    failed_polls: u64,
    /// Requests to try again what was blocked, and how many of them what is published answers.
    tries: u64,
    tried: u64,
    control: Arc<dyn ControlChannel>,
    pipe_directory: PathBuf,
    log_directory: PathBuf,
    foreign_daemons: watch::Receiver<Arc<Vec<ForeignDaemon>>>,
    /// Why the next start cannot be in the directories that the running process was adopted in.
    moves: Option<String>,
    /// Whether this manager sent the running process a quit: its log does not say who did.
    quit_sent: bool,
}

impl Driver {
    pub(super) fn new(
        context: Arc<Context>,
        desired: watch::Receiver<Desired>,
        fresh: watch::Receiver<u64>,
        jobs: mpsc::Receiver<DriverRequest>,
        stop: CancellationToken,
        earlier: Option<RememberedDaemon>,
    ) -> (Self, watch::Receiver<Observed>) {
        let name = desired.borrow().name.clone();
        let (event_detector, read_to) =
            earlier.as_ref().map_or_else(Default::default, RememberedDaemon::event_detector);
        let (earlier, run) =
            earlier.map_or((None, None), |earlier| (Some(earlier.incarnation), earlier.partitions));
        let (pipe_directory, log_directory) = match earlier.as_ref().and_then(|earlier| earlier.home.clone())
        {
            Some(home) => (home.pipe_directory, home.log_directory),
            None => (context.pipe_directory(&name), context.log_directory(&name)),
        };
        handout::begin(&context, &desired.borrow(), earlier.as_ref(), &pipe_directory);
        let foreign_daemons = context.foreign_daemons.subscribe();
        let control = context.control_program.channel(pipe_directory.clone());
        let state = DaemonReconciler::remembering(PartitionReconciler::remembered(run), context.timings);
        let logs = Logs::new(&pipe_directory, &log_directory, read_to);
        let counts = DaemonCounters::default();
        let status = status(&state, &desired.borrow(), &counts, &pipe_directory, &log_directory, unix_ms());
        let (observed, watcher) = watch::channel(Observed {
            status,
            clients: Vec::new(),
            served: 0,
            failed: None,
            follows: 0,
            blocker: None,
            tried: 0,
        });
        let gpu_presence = context.gpu_presence.subscribe();
        let driver = Self {
            context,
            gpu_presence,
            desired,
            fresh,
            jobs,
            stop,
            observed,
            state,
            probe: None,
            clients: Vec::new(),
            event_detector,
            bypasses: Bypasses::default(),
            refreshed_at: 0,
            read_to,
            read: None,
            incarnation: earlier,
            layout_recorded_for: None,
            isolation: None,
            refused: None,
            written: WrittenLimits::default(),
            modes: ComputeModeControl::default(),
            logs,
            incarnations: 0,
            deaths: 0,
            polls: 0,
            failed_polls: 0,
            tries: 0,
            tried: 0,
            control,
            pipe_directory,
            log_directory,
            foreign_daemons,
            moves: None,
            quit_sent: false,
        };
        driver.claim();
        (driver, watcher)
    }

    pub(super) async fn run(mut self, shared: Arc<Shared>) {
        while !self.stop.is_cancelled() {
            while let Ok(job) = self.jobs.try_recv() {
                self.work(job).await;
            }
            let desired = self.wanted();
            self.claim();
            self.follow(&desired);
            if self.state.carry_over(&desired)
                && let Some(incarnation) = self.incarnation.clone()
            {
                self.record(&desired, Incarnation { applied: self.state.applied, ..incarnation }).await;
            }
            self.logs.keep_short(self.may_empty_logs(&desired));
            self.state.gpus_lost(self.gpu_presence.borrow_and_update().blocker(&desired));
            self.apply_compute_modes(&desired).await;
            self.record_layout_status(&desired).await;
            let action = self.state.decide(&desired, self.clients.len(), unix_ms());
            let tried = self.tries;
            if let ReconcileStep::Wait(until) = action {
                self.tried = tried;
                self.publish(&desired);
                self.wait(until.min(self.modes.due()).min(self.refresh_due())).await;
                if self.refresh_due() <= unix_ms() {
                    self.refresh(&desired).await;
                }
            } else {
                tracing::debug!(daemon = %desired.name, ?action, "acting");
                let stop = self.stop.clone();
                tokio::select! {
                    () = self.perform(action, &desired, &shared) => {}
                    // Left where it is: whatever was begun, the next manager finds out as after a crash.
                    () = async { stop.cancelled().await; tokio::time::sleep(LAST_ACTION).await } => return,
                }
                self.tried = tried;
            }
            self.notice_death(&desired).await;
            self.notice_lost_pipes(&desired);
            self.publish(&desired);
        }
    }

    /// Waits for the time to come or for anything that changes what to do.
    async fn wait(&mut self, until: i64) {
        let pause = u64::try_from(until.saturating_sub(unix_ms())).unwrap_or(0);
        // Far enough for "for ever", near enough for the timer.
        let pause = Duration::from_millis(pause.min(24 * 60 * 60 * 1000));
        let process = self.state.process.as_ref().map(|process| process.identity);
        let (servers, inode, watched) = (self.servers(), self.pipe_inode(), process.is_some());
        let gpus = self.desired.borrow().gpus.clone();
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = self.desired.changed() => {}
            _ = self.fresh.changed() => self.state.request_poll(),
            Ok(()) = self.foreign_daemons.changed() => {}
            Ok(()) = self.gpu_presence.changed() => {}
            Some(job) = self.jobs.recv() => self.work(job).await,
            report = shares::report(&mut self.probe) => self.probed(report).await,
            () = dies(process.into_iter().collect()) => {}
            () = dies(servers) => self.state.server_died(host::process::is_alive),
            () = logs_changed(&mut self.logs, &gpus, &self.pipe_directory, inode), if watched => {
                if self.logs.take_woken() {
                    self.state.wake(unix_ms());
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn servers(&self) -> Vec<Identity> {
        let seen = self.state.seen.as_ref();
        seen.into_iter().flat_map(|seen| &seen.servers).map(Identity::from).collect()
    }

    async fn perform(&mut self, action: ReconcileStep, desired: &Desired, shared: &Shared) {
        match action {
            ReconcileStep::Wait(_) => {}
            ReconcileStep::Search => {
                let found = self.search(desired).await;
                if let Ok(Some(process)) = &found {
                    self.incarnations += 1;
                    let held = |earlier: &Incarnation| earlier.applied == desired.generation;
                    if !desired.is_observed() && self.incarnation.as_ref().is_some_and(held) {
                        self.written.adopt(desired.memory_limits.clone());
                    }
                    let home = self.incarnation.as_ref().and_then(|earlier| earlier.home.as_ref());
                    if home.is_some_and(|home| home.foreign) {
                        self.logs.accept_overwrites(&desired.gpus);
                    }
                    tracing::info!(daemon = %desired.name, process = %process.identity, "adopted the running control daemon");
                    let pid = process.identity.pid;
                    self.logs.forget_quit(&desired.gpus);
                    self.event_detector.found(&desired.name, pid, host::process::uid(pid));
                }
                let adopted = matches!(found, Ok(Some(_)));
                self.state.searched(found, unix_ms());
                self.narrow_pipe_directory();
                if let Some(earlier) = self.incarnation.as_ref().filter(|_| adopted) {
                    self.state.partitioning.begin(&earlier.token);
                    // What an earlier manager had read back and is otherwise now, another program has changed.
                    self.state.applied = earlier.applied;
                }
            }
            ReconcileStep::Start => self.start(desired).await,
            // What an operation requested holds for one stop; after it the configured grace holds again.
            ReconcileStep::Stop => {
                let grace_s = shared.grace_s.swap(self.context.grace_s, Ordering::Relaxed);
                self.stop_daemon(desired, grace_s).await;
            }
            ReconcileStep::Sync(wrong) => self.sync(desired, &wrong).await,
            ReconcileStep::Partition => self.partition(desired).await,
            ReconcileStep::Prove(percentage) => self.send_probe(desired, percentage),
            ReconcileStep::StartServer(uid) => self.start_server(desired, uid).await,
        }
    }

    /// Searches for the control process of an earlier manager; doubts block, nothing is guessed.
    async fn search(&mut self, desired: &Desired) -> Result<Option<ControlProcess>, Blocker> {
        let found = self.search_earlier(desired).await?;
        if found.is_none() && desired.is_observed() { self.search_observed(desired).await } else { Ok(found) }
    }

    async fn search_earlier(&mut self, desired: &Desired) -> Result<Option<ControlProcess>, Blocker> {
        let Some(earlier) = self.incarnation.clone() else { return Ok(None) };
        if earlier.boot_id != self.context.boot_id {
            return Ok(None);
        }
        let foreign = earlier.home.is_some_and(|home| home.foreign);
        let observed = desired.is_observed();
        let recorded = earlier.process.zip(earlier.pipe_inode).map(|((pid, start_time), pipe_inode)| {
            Recorded { identity: Identity { pid, start_time }, pipe_inode }
        });
        let until = Instant::now() + START_DEADLINE;
        let found = loop {
            let (token, directory) = (earlier.token.clone(), self.pipe_directory.clone());
            let found = tokio::task::spawn_blocking(move || match recorded {
                Some(recorded) if foreign => daemon::find_adopted(&directory, recorded, observed),
                None if foreign => Found::None,
                Some(recorded) => daemon::find_recorded(&token, &directory, recorded),
                // The manager died between writing the token and learning the process.
                None => daemon::find(&token, &directory),
            })
            .await;
            match found {
                Ok(Found::Starting(_)) if Instant::now() < until => tokio::time::sleep(STARTING).await,
                found => break found,
            }
        };
        match found.map_err(|error| Blocker::doubtful(error.to_string()))? {
            Found::None => {
                // They may have hung, and the manager may have died before it saw to them.
                if !observed {
                    self.end_orphaned_servers(desired).await;
                }
                if let Some(recorded) = recorded.filter(|_| desired.running) {
                    let gone = "no manager was there to see it";
                    let failure = Diagnosis { reason: "DiedOrDidNotStart", message: gone.to_owned() };
                    self.event_detector.died(
                        &desired.name,
                        recorded.identity.pid,
                        &failure,
                        self.logs.server_log_events(),
                    );
                }
                Ok(None)
            }
            Found::Starting(program) => Err(Blocker::doubtful(format!(
                "process {program} has been starting the daemon for more than {START_DEADLINE:?}: end it"
            ))),
            Found::Doubtful { reason } => Err(Blocker::doubtful(reason)),
            Found::Ours(identity) if foreign => self.foreign_shape(desired, identity).await.map(Some),
            Found::Ours(identity) => {
                if let Some(incarnation) = &mut self.incarnation {
                    incarnation.process = Some((identity.pid, identity.start_time));
                    incarnation.pipe_inode = daemon::pipe_inode(&self.pipe_directory).ok();
                }
                Ok(Some(shape(identity)))
            }
        }
    }

    async fn start(&mut self, desired: &Desired) {
        let now = unix_ms();
        self.leave_unusable_home(desired);
        if let Some(blocker) = self.blocker(desired).await {
            self.state.blocked(blocker, now);
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
            self.state.blocked(Blocker { reason: "StoreUnavailable", message }, now);
            return;
        }
        self.clean_stale();
        let spec = StartSpec {
            pipe_directory: self.pipe_directory.clone(),
            log_directory: self.log_directory.clone(),
            gpus: desired.gpus.clone(),
            mode: desired.mode,
            multi_user: desired.multi_user,
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
                    self.state.partitioning.begin(&incarnation.token);
                }
                self.incarnations += 1;
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

    fn clean_stale(&self) {
        if let Err(error) = daemon::clean_stale(&self.pipe_directory) {
            tracing::warn!(%error, directory = %self.pipe_directory.display(), "stale files stay");
        }
    }

    /// What blocks a start.
    async fn blocker(&self, desired: &Desired) -> Option<Blocker> {
        let inventory = Arc::clone(&self.context.inventory);
        let present = match tokio::task::spawn_blocking(move || inventory.gpus()).await {
            Ok(Ok(gpus)) => gpus,
            Ok(Err(error)) => return Some(Blocker { reason: "NoInventory", message: error.to_string() }),
            Err(error) => return Some(Blocker { reason: "NoInventory", message: error.to_string() }),
        };
        if let Some(blocker) = GpuPresence::of(&present).blocker(desired) {
            return Some(blocker);
        }
        if let Some(why) = self.context.capability.lacks_static().filter(|_| desired.mode == Mode::Static) {
            let message = format!("{why}, or set the daemon's mode to shared");
            return Some(Blocker { reason: "StaticModeUnsupported", message });
        }
        if let Some(why) = self.modes.failure().filter(|_| desired.compute_mode.is_some()) {
            // A server without the mode would let processes past it.
            return Some(Blocker { reason: "ComputeModeNotSet", message: why.clone() });
        }
        if let Some(message) = self.directories_unusable(desired).await {
            return Some(Blocker { reason: "DirectoryUnusable", message });
        }
        if let Some(occupant) = daemon::occupant(&self.pipe_directory) {
            let message = format!(
                "a control daemon that this manager did not start ({}) serves {}: quit it, or move it elsewhere",
                occupant.pid.map_or_else(
                    || "its process cannot be determined".to_owned(),
                    |pid| format!("process {pid}")
                ),
                self.pipe_directory.display()
            );
            return Some(Blocker { reason: "ForeignDaemon", message });
        }
        if desired.share_gpus {
            return None;
        }
        self.context.foreign_daemons.scan().await;
        self.shared_gpu(desired)
    }

    async fn stop_daemon(&mut self, desired: &Desired, grace_s: u32) {
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
                // Before it is published that it is stopped.
                self.apply_compute_modes(desired).await;
            }
            Err(error) => {
                let message = format!("process {} did not end: {error}", process.identity);
                tracing::error!(daemon = %desired.name, %message);
                self.state.blocked(Blocker { reason: "StopFailed", message }, unix_ms());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn sync(&mut self, desired: &Desired, wrong: &[Difference]) {
        let serving = *self.fresh.borrow_and_update();
        let (began, deadline) = (unix_ms(), self.patience());
        self.polls += 1;
        for difference in wrong {
            tracing::info!(daemon = %desired.name, %difference, "writing a setting");
        }
        let process = self.state.process.as_ref();
        let partitioned = process.map_or(&[][..], |process| process.partitioned());
        let (outcome, clients) = poll::sync(
            &self.context,
            PollTarget { control: &*self.control, partitioned, deadline },
            &mut self.logs,
            desired,
            wrong,
            &mut self.written,
            unix_ms(),
        )
        .await;
        match &outcome {
            PollOutcome::Seen(_) => self.clients = clients,
            PollOutcome::Unanswered(command) => {
                tracing::warn!(daemon = %desired.name, %command, "a command was not answered");
            }
            PollOutcome::Busy(why)
            | PollOutcome::Unreadable(why)
            | PollOutcome::Misbehaved(why)
            | PollOutcome::Mute(why)
            | PollOutcome::NoFiles(why)
            | PollOutcome::NotRun(why) => {
                tracing::warn!(daemon = %desired.name, %why, "could not be read");
            }
        }
        self.observe_isolation();
        let failed = (!matches!(outcome, PollOutcome::Seen(_))).then(|| outcome.clone());
        let before = self.state.applied;
        let check_interval = self.check_interval(desired);
        self.state.polled(outcome, !wrong.is_empty(), desired, unix_ms(), check_interval);
        match failed {
            Some(outcome) => {
                self.failed_polls += 1;
                self.explain(outcome, began).await;
            }
            None => self.observe_surroundings(desired),
        }
        if self.logs.take_woken() {
            self.state.wake(unix_ms());
        }
        if self.state.applied != before
            && let Some(mut incarnation) = self.incarnation.clone()
        {
            incarnation.applied = self.state.applied;
            self.record(desired, incarnation).await;
        }
        self.update_planned_move(desired);
        self.read = Some((serving, self.state.poll_failure.clone()));
    }

    /// Brings the compute modes to what is wanted as long as the daemon runs or is to run, and back when it is to rest.
    async fn apply_compute_modes(&mut self, desired: &Desired) {
        if !self.state.searched {
            return;
        }
        let in_use = self.state.process.as_ref().map_or(&[][..], |process| &process.gpus);
        let active = desired.running || self.state.process.is_some();
        let wanted = desired.compute_mode.filter(|_| active && !desired.is_observed());
        self.modes.apply(&self.context, &desired.name, &desired.gpus, in_use, wanted, unix_ms()).await;
    }

    /// Finds where the control process runs: what is, not what was meant, and an adopted one's too.
    fn observe_isolation(&mut self) {
        let pid = self.state.process.as_ref().map(|process| process.identity.pid);
        self.isolation =
            pid.map(|pid| isolation::observe(&self.context.scopes, pid, self.refused.as_deref()));
    }

    async fn start_server(&mut self, desired: &Desired, uid: u32) {
        tracing::info!(daemon = %desired.name, uid, "asking for a server");
        let deadline = Instant::now() + self.context.deadline;
        let request = async {
            let mut session = self.control.session(deadline)?;
            session.send(&Command::StartServer { uid }).await?;
            session.close().await;
            Ok::<_, SessionError>(())
        };
        match request.await {
            Ok(()) => self.state.server_requested(unix_ms()),
            Err(error) => {
                self.state.polled(unanswered(error), false, desired, unix_ms(), PollInterval(0));
            }
        }
    }

    /// Hands an incarnation to the recorder and waits until it is written; false when it was not.
    async fn record(&mut self, desired: &Desired, incarnation: Incarnation) -> bool {
        self.incarnation = Some(incarnation.clone());
        // Before the process is there, so that no scan takes it for another program's.
        self.claim();
        self.write_down(desired, DurableRecord::Incarnation(incarnation)).await
    }
}
