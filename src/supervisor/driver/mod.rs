//! The task that drives one daemon: runs the steps of [`DaemonReconciler`] and publishes the results.

mod adopted;
pub(crate) mod compute_mode;
mod failures;
mod handout;
mod inherited_handout;
mod jobs;
mod layout;
mod lifecycle;
pub(crate) mod partition_commands;
mod publish;
mod refresh;
mod sync;
pub(crate) mod terminate_client;
mod wakeups;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::compute_mode::ComputeModeControl;
use self::wakeups::{dies, logs_changed};
use super::blocker::Blocker;
use super::context::SupervisorContext;
use super::durable::RememberedDaemon;
use super::handle::DriverLink;
use super::observe::bypass::Bypasses;
use super::observe::exact_limits::WrittenLimits;
use super::observe::foreign_daemons::{DaemonClaim, ForeignDaemon};
use super::observe::gpu_presence::GpuPresence;
use super::observe::log_tail::Logs;
use super::observe::poll_outcome::PollOutcome;
use super::observed::Observed;
use super::reconcile::daemon::{DaemonReconciler, ReconcileStep};
use super::reconcile::layout::LayoutReconciler;
use super::report::conditions::{DaemonCounters, status};
use super::report::event_detector::EventDetector;
use super::requests::DriverRequest;

use crate::domain::FilePlace;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::Incarnation;
use crate::domain::isolation::Isolation;
use crate::domain::plan::Desired;
use crate::host::{self, Identity};
use crate::mps::ControlChannel;

/// Longest time that a running action may continue when the manager stops: a daemon may wait an hour for its clients.
const LAST_ACTION: Duration = Duration::from_secs(2);

pub(super) struct Driver {
    context: Arc<SupervisorContext>,
    desired: watch::Receiver<Desired>,
    fresh: watch::Receiver<u64>,
    gpu_presence: watch::Receiver<GpuPresence>,
    jobs: mpsc::Receiver<DriverRequest>,
    stop: CancellationToken,
    observed: watch::Sender<Observed>,
    state: DaemonReconciler,
    clients: Vec<ClientFacts>,
    event_detector: EventDetector,
    /// Processes that use its GPUs outside MPS.
    bypasses: Bypasses,
    /// Time at which processes and GPUs were last read.
    refreshed_at: i64,
    /// Time at which the daemon's surroundings were last checked.
    looked_at: i64,
    /// Position in server.log up to which it was read, as last published.
    read_to: Option<FilePlace>,
    /// Request for a fresh poll that the last poll answers, and the failure of that poll; `None` once it is published.
    read: Option<(u64, Option<Blocker>)>,
    incarnation: Option<Incarnation>,
    /// Token of the control process for which the layout's status was recorded.
    layout_recorded_for: Option<String>,
    isolation: Option<Isolation>,
    /// Reason why the present process was started without the scope it should have had.
    refused: Option<String>,
    written: WrittenLimits,
    modes: ComputeModeControl,
    logs: Logs,
    counts: DaemonCounters,
    /// Failure of the last poll, as it was logged; `None` after a poll that succeeded.
    logged_failure: Option<PollOutcome>,
    /// Number of requests to try again what was blocked. `tried` is the number of those that the published status answers.
    tries: u64,
    tried: u64,
    control: Arc<dyn ControlChannel>,
    pipe_directory: PathBuf,
    log_directory: PathBuf,
    foreign_daemons: watch::Receiver<Arc<Vec<ForeignDaemon>>>,
    /// Reason why the next start cannot be in the directories that the running process was adopted in.
    moves: Option<String>,
    /// True if this manager sent a quit to the running process: its log does not say who sent one.
    quit_sent: bool,
    /// Length of control.log before the first session of this manager that may still be open.
    logged_before_action: Option<u64>,
}

impl Driver {
    pub(super) fn new(
        context: Arc<SupervisorContext>,
        desired: watch::Receiver<Desired>,
        fresh: watch::Receiver<u64>,
        jobs: mpsc::Receiver<DriverRequest>,
        stop: CancellationToken,
        earlier: Option<RememberedDaemon>,
    ) -> (Self, watch::Receiver<Observed>) {
        let name = desired.borrow().name.clone();
        let (event_detector, read_to) =
            earlier.as_ref().map_or_else(Default::default, RememberedDaemon::event_detector);
        let bypasses = Bypasses::reported(earlier.as_ref().is_some_and(|earlier| earlier.open.bypass));
        let (earlier, run) =
            earlier.map_or((None, None), |earlier| (Some(earlier.incarnation), earlier.partitions));
        let (pipe_directory, log_directory) = match earlier.as_ref().and_then(|earlier| earlier.home.clone())
        {
            Some(home) => (home.pipe_directory, home.log_directory),
            None => (context.pipe_directory(&name), context.log_directory(&name)),
        };
        inherited_handout::begin(&context, &desired.borrow(), earlier.as_ref(), &pipe_directory);
        let foreign_daemons = context.foreign_daemons.subscribe();
        let control = context.control_program.channel(pipe_directory.clone());
        let state = DaemonReconciler::remembering(LayoutReconciler::remembered(run), context.timings);
        let now = context.clock.unix_ms();
        let logs = Logs::new(&pipe_directory, &log_directory, read_to, now);
        let counts = DaemonCounters::default();
        let status = status(&state, &desired.borrow(), &counts, &pipe_directory, &log_directory, now);
        let (observed, watcher) = watch::channel(Observed {
            status: Arc::new(status),
            clients: Arc::default(),
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
            clients: Vec::new(),
            event_detector,
            bypasses,
            refreshed_at: 0,
            looked_at: 0,
            read_to,
            read: None,
            incarnation: earlier,
            layout_recorded_for: None,
            isolation: None,
            refused: None,
            written: WrittenLimits::default(),
            modes: ComputeModeControl::default(),
            logs,
            counts,
            logged_failure: None,
            tries: 0,
            tried: 0,
            control,
            pipe_directory,
            log_directory,
            foreign_daemons,
            moves: None,
            quit_sent: false,
            logged_before_action: None,
        };
        driver.claim();
        (driver, watcher)
    }

    pub(super) async fn run(mut self, link: Arc<DriverLink>) {
        while !self.stop.is_cancelled() {
            self.note_action();
            while let Ok(job) = self.jobs.try_recv() {
                self.work(job).await;
            }
            let desired = self.desired.borrow_and_update().clone();
            self.claim();
            self.follow(&desired);
            if self.state.carry_over(&desired)
                && let Some(incarnation) = self.incarnation.clone()
            {
                self.record(&desired, Incarnation { applied: self.state.applied, ..incarnation }).await;
            }
            self.logs.bounded = self.may_empty_logs(&desired);
            self.state.gpus_lost(self.gpu_presence.borrow_and_update().blocker(&desired));
            self.apply_compute_modes(&desired).await;
            self.record_layout_status(&desired).await;
            if let Some(failed) = self.logs.take_failed_server() {
                self.state.server_failed(failed, self.now());
            }
            let action = self.state.decide(&desired, self.clients.len(), self.now());
            let tried = self.tries;
            if let ReconcileStep::Wait(until) = action {
                self.tried = tried;
                self.publish(&desired);
                let due = self.modes.due().min(self.refresh_due()).min(self.handout_due(&desired));
                self.wait(until.min(due)).await;
                if self.refresh_due() <= self.now() {
                    self.refresh(&desired).await;
                }
            } else {
                tracing::debug!(daemon = %desired.name, ?action, "acting");
                let stop = self.stop.clone();
                tokio::select! {
                    () = self.perform(action, &desired, &link) => {}
                    // The action is abandoned where it is: the next manager recovers as after a crash.
                    () = async { stop.cancelled().await; tokio::time::sleep(LAST_ACTION).await } => return,
                }
                self.tried = tried;
            }
            self.notice_death(&desired).await;
            self.notice_lost_pipes(&desired);
            self.publish(&desired);
        }
    }

    /// Claims this daemon's process, so that no scan takes it for a foreign one.
    fn claim(&self) {
        let desired = self.desired.borrow();
        let identity = |incarnation: &Incarnation| {
            let (pid, start_time) = incarnation.process?;
            Some(Identity { pid, start_time })
        };
        let current = self.incarnation.as_ref().filter(|earlier| earlier.boot_id == self.context.boot_id);
        let claim = DaemonClaim {
            token: current.map(|incarnation| incarnation.token.clone()),
            process: current.and_then(identity),
            observed: desired.is_observed(),
        };
        self.context.foreign_daemons.claim(&desired.name, claim, &self.stop);
    }

    /// Publishes that the driver no longer acts on an earlier generation.
    fn follow(&self, desired: &Desired) {
        if self.observed.borrow().follows != desired.generation {
            let _published = self.context.publishing();
            self.observed.send_modify(|observed| observed.follows = desired.generation);
        }
    }

    /// Returns the present Unix time in milliseconds.
    fn now(&self) -> i64 {
        self.context.clock.unix_ms()
    }

    /// Waits until the given time, or until an event that may call for another step.
    async fn wait(&mut self, until: i64) {
        let pause = u64::try_from(until.saturating_sub(self.now())).unwrap_or(0);
        // Long enough for "forever", short enough for the timer.
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
            () = dies(process.into_iter().collect()) => {}
            () = dies(servers) => self.state.server_died(host::process::is_alive),
            () = logs_changed(&mut self.logs, &gpus, &self.pipe_directory, inode), if watched => {
                if self.logs.take_woken() {
                    self.state.wake(self.context.clock.unix_ms());
                }
            }
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn servers(&self) -> Vec<Identity> {
        let effective = self.state.seen.as_ref();
        effective.into_iter().flat_map(|effective| &effective.servers).map(Identity::from).collect()
    }

    async fn perform(&mut self, action: ReconcileStep, desired: &Desired, link: &DriverLink) {
        match action {
            ReconcileStep::Wait(_) => {}
            ReconcileStep::Search => {
                let search = self.search(desired).await;
                if let Ok(Some(process)) = &search {
                    self.counts.incarnations += 1;
                    let held = |earlier: &Incarnation| desired.holds_since(earlier.applied);
                    if !desired.is_observed() && self.incarnation.as_ref().is_some_and(held) {
                        self.written.adopt(&desired.memory_limits);
                    }
                    if self.incarnation.as_ref().is_some_and(Incarnation::is_foreign) {
                        self.logs.accept_overwrites(&desired.gpus);
                    }
                    tracing::info!(daemon = %desired.name, process = %process.identity, "adopted the running control daemon");
                    let pid = process.identity.pid;
                    self.logs.forget_quit(&desired.gpus);
                    self.event_detector.found(&desired.name, pid, host::process::uid(pid));
                }
                let adopted = matches!(search, Ok(Some(_)));
                self.state.searched(search, self.now());
                if let Some(earlier) = self.incarnation.as_ref().filter(|_| adopted) {
                    self.state.layout.begin(&earlier.token);
                    // Values that an earlier manager had read back and that differ now were changed by another program.
                    self.state.applied = earlier.applied;
                }
            }
            ReconcileStep::Start => self.start(desired).await,
            // A grace that an operation requested holds for one stop; after it the configured grace holds again.
            ReconcileStep::Stop => {
                let grace_s = link.grace_s.swap(self.context.grace_s, Ordering::Relaxed);
                self.stop_daemon(desired, grace_s).await;
            }
            ReconcileStep::Sync(wrong) => self.sync(desired, &wrong).await,
            ReconcileStep::Layout(step) => self.follow_layout(desired, step).await,
            ReconcileStep::StartServer(uid) => self.start_server(desired, uid).await,
        }
    }

    /// Brings the compute modes to the desired state while the daemon runs or is to run, and restores them when it is to be stopped.
    async fn apply_compute_modes(&mut self, desired: &Desired) {
        if !self.state.searched {
            return;
        }
        let in_use = self.state.process.as_ref().map_or(&[][..], |process| &process.gpus);
        let active = desired.running || self.state.process.is_some();
        let mode = desired.compute_mode.filter(|_| active && !desired.is_observed());
        let now = self.now();
        self.modes.apply(&self.context, &desired.name, &desired.gpus, in_use, mode, now).await;
    }
}
