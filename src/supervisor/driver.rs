//! The task that drives one daemon: asks [`State`] what to do, does it, says what came of it.

mod adopted;
mod around;
mod handout;
mod jobs;
mod layout;
mod publish;
mod refresh;
mod shares;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::around::{dies, happens};
use self::shares::Looking;
use super::bypass::Bypasses;
use super::census::Census;
use super::chronicle::Chronicle;
use super::isolation;
use super::limits::Written;
use super::logs::Logs;
use super::look::{self, Subject};
use super::modes::Modes;
use super::partitioning::Partitioning;
use super::process::{shape, token};
use super::state::{Action, Look, Obstacle, Process, Rhythm, State};
use super::status::{Counts, status};
use super::trouble::Trouble;
use super::{Context, Earlier, Job, Lasting, Neighbour, Observed, Shared};
use crate::clock::unix_ms;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::{Incarnation, Mode};
use crate::domain::isolation::Isolation;
use crate::domain::plan::{Desired, Difference};
use crate::domain::{FilePlace, Inode};
use crate::host::{self, Identity};
use crate::mps::process::{self as daemon, Found, Recorded, StartSpec};
use crate::mps::session::SessionError;
use crate::mps::{Command, Control};

/// How long an action that is under way may go on when the manager stops: a daemon may wait an hour for its clients.
const LAST_ACTION: Duration = Duration::from_secs(2);
/// Pause between two looks for a daemon that an earlier manager was starting.
const STARTING: Duration = Duration::from_millis(5);
/// Longest time from the start of a daemon to its first answer.
const START_DEADLINE: Duration = Duration::from_secs(10);

pub(super) struct Driver {
    context: Arc<Context>,
    desired: watch::Receiver<Desired>,
    fresh: watch::Receiver<u64>,
    census: watch::Receiver<Census>,
    jobs: mpsc::Receiver<Job>,
    stop: CancellationToken,
    observed: watch::Sender<Observed>,
    state: State,
    /// The CUDA client that looks what a percentage gives.
    looking: Option<Looking>,
    clients: Vec<ClientFacts>,
    chronicle: Chronicle,
    /// Who uses its GPUs outside MPS.
    bypasses: Bypasses,
    /// When processes and GPUs were read last.
    refreshed_at: i64,
    /// How far server.log was read when that was told last.
    told_to: Option<FilePlace>,
    /// The request for a fresh look that the last look answers, and why it failed; until it is published.
    read: Option<(u64, Option<Trouble>)>,
    incarnation: Option<Incarnation>,
    /// The token of the control process of which it was told where the layout stands.
    told_of: Option<String>,
    isolation: Option<Isolation>,
    /// Why the present process was started without the scope it should have had.
    refused: Option<String>,
    written: Written,
    modes: Modes,
    logs: Logs,
    incarnations: u64,
    deaths: u64,
    looks: u64,
    failed_looks: u64,
    /// Requests to try again what was blocked, and how many of them what is published answers.
    tries: u64,
    tried: u64,
    control: Control,
    pipe_directory: PathBuf,
    log_directory: PathBuf,
    neighbours: watch::Receiver<Arc<Vec<Neighbour>>>,
    /// Why the next start cannot be in the directories that the running process was adopted in.
    moves: Option<String>,
    /// Whether the running process was asked by this manager to quit, which its log does not tell from others' asking.
    asked_to_quit: bool,
}

impl Driver {
    pub(super) fn new(
        context: Arc<Context>,
        desired: watch::Receiver<Desired>,
        fresh: watch::Receiver<u64>,
        jobs: mpsc::Receiver<Job>,
        stop: CancellationToken,
        earlier: Option<Earlier>,
    ) -> (Self, watch::Receiver<Observed>) {
        let name = desired.borrow().name.clone();
        let (chronicle, told_to) = earlier.as_ref().map_or_else(Default::default, Earlier::told);
        let (earlier, run) =
            earlier.map_or((None, None), |earlier| (Some(earlier.incarnation), earlier.partitions));
        let (pipe_directory, log_directory) = match earlier.as_ref().and_then(|earlier| earlier.home.clone())
        {
            Some(home) => (home.pipe_directory, home.log_directory),
            None => (context.pipe_directory(&name), context.log_directory(&name)),
        };
        handout::begin(&context, &desired.borrow(), earlier.as_ref(), &pipe_directory);
        let neighbours = context.lookout.subscribe();
        let control =
            Control::new(context.binaries.control.clone(), pipe_directory.clone(), context.extra_env.clone());
        let state = State::remembering(Partitioning::remembered(run));
        let logs = Logs::new(&pipe_directory, &log_directory, told_to);
        let counts = Counts::default();
        let status = status(&state, &desired.borrow(), &counts, &pipe_directory, &log_directory, unix_ms());
        let (observed, watcher) = watch::channel(Observed {
            status,
            clients: Vec::new(),
            served: 0,
            failed: None,
            follows: 0,
            obstacle: None,
            tried: 0,
        });
        let census = context.census.subscribe();
        let driver = Self {
            context,
            census,
            desired,
            fresh,
            jobs,
            stop,
            observed,
            state,
            looking: None,
            clients: Vec::new(),
            chronicle,
            bypasses: Bypasses::default(),
            refreshed_at: 0,
            told_to,
            read: None,
            incarnation: earlier,
            told_of: None,
            isolation: None,
            refused: None,
            written: Written::default(),
            modes: Modes::default(),
            logs,
            incarnations: 0,
            deaths: 0,
            looks: 0,
            failed_looks: 0,
            tries: 0,
            tried: 0,
            control,
            pipe_directory,
            log_directory,
            neighbours,
            moves: None,
            asked_to_quit: false,
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
            self.state.gpus_lost(self.census.borrow_and_update().obstacle(&desired));
            self.settle_modes(&desired).await;
            self.tell_of_layout(&desired).await;
            let action = self.state.decide(&desired, self.clients.len(), unix_ms());
            let tried = self.tries;
            if let Action::Wait(until) = action {
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
        let servers: Vec<Identity> = self.servers();
        let (inode, watched) = (self.pipe_inode(), process.is_some());
        let gpus = self.desired.borrow().gpus.clone();
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = self.desired.changed() => {}
            _ = self.fresh.changed() => self.state.look_soon(),
            // Only what is said of them changes.
            Ok(()) = self.neighbours.changed() => {}
            Ok(()) = self.census.changed() => {}
            Some(job) = self.jobs.recv() => self.work(job).await,
            report = shares::report(&mut self.looking) => self.looked(report).await,
            () = dies(process.into_iter().collect()) => {}
            () = dies(servers) => self.state.server_died(host::process::is_alive),
            () = happens(&mut self.logs, &gpus, &self.pipe_directory, inode), if watched => {
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

    async fn perform(&mut self, action: Action, desired: &Desired, shared: &Shared) {
        match action {
            Action::Wait(_) => {}
            Action::Search => {
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
                    self.chronicle.found(&desired.name, pid, host::process::uid(pid));
                }
                let adopted = matches!(found, Ok(Some(_)));
                self.state.searched(found, unix_ms());
                self.narrow_pipe_directory();
                if let Some(incarnation) = self.incarnation.as_ref().filter(|_| adopted) {
                    self.state.partitioning.begin(&incarnation.token);
                }
                if let Some(earlier) = self.incarnation.as_ref().filter(|_| adopted) {
                    // What an earlier manager had read back and is otherwise now, somebody else has changed.
                    self.state.applied = earlier.applied;
                }
            }
            Action::Start => self.start(desired).await,
            // What an operation asked for holds for one stop; after it the configured grace holds again.
            Action::Stop => {
                let grace_s = shared.grace_s.swap(self.context.grace_s, Ordering::Relaxed);
                self.stop_daemon(desired, grace_s).await;
            }
            Action::Sync(wrong) => self.sync(desired, &wrong).await,
            Action::Partition => self.partition(desired).await,
            Action::Prove(percentage) => self.send_to_look(desired, percentage),
            Action::StartServer(uid) => self.start_server(desired, uid).await,
        }
    }

    /// Looks for the control process of an earlier manager; doubts are obstacles, never guesses.
    async fn search(&mut self, desired: &Desired) -> Result<Option<Process>, Obstacle> {
        let found = self.search_earlier(desired).await?;
        if found.is_none() && desired.is_observed() { self.search_observed(desired).await } else { Ok(found) }
    }

    async fn search_earlier(&mut self, desired: &Desired) -> Result<Option<Process>, Obstacle> {
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
        match found.map_err(|error| doubtful(error.to_string()))? {
            Found::None => {
                // They may have hung, and the manager may have died before it saw to them.
                if !observed {
                    self.see_off_servers(desired).await;
                }
                if let Some(recorded) = recorded.filter(|_| desired.running) {
                    let gone = "no manager was there to see it";
                    let failure = Trouble { reason: "DiedOrDidNotStart", message: gone.to_owned() };
                    self.chronicle.died(&desired.name, recorded.identity.pid, &failure, self.logs.news());
                }
                Ok(None)
            }
            Found::Starting(program) => Err(doubtful(format!(
                "process {program} has been starting the daemon for more than {START_DEADLINE:?}: end it"
            ))),
            Found::Doubtful { reason } => Err(doubtful(reason)),
            Found::Ours(identity) if foreign => self.foreign_shape(desired, identity).await.map(Some),
            Found::Ours(identity) => {
                if let Some(incarnation) = &mut self.incarnation {
                    incarnation.process = Some((identity.pid, identity.start_time));
                    incarnation.pipe_inode = inode(&self.pipe_directory);
                }
                Ok(Some(shape(identity)))
            }
        }
    }

    async fn start(&mut self, desired: &Desired) {
        let now = unix_ms();
        self.leave_unusable_home(desired);
        if let Some(obstacle) = self.obstacle(desired).await {
            self.state.blocked(obstacle, now);
            return;
        }
        let mut incarnation = Incarnation {
            token: token(),
            boot_id: self.context.boot_id.clone(),
            process: None,
            pipe_inode: inode(&self.pipe_directory),
            applied: 0,
            home: self.home(false),
        };
        if !self.record(desired, incarnation.clone()).await {
            let message = "the token of the new process could not be written to the database, so none is started: see that the disk of the state directory has room".to_owned();
            self.state.blocked(Obstacle { reason: "StoreUnavailable", message }, now);
            return;
        }
        self.clean_stale();
        let spec = StartSpec {
            binaries: self.context.binaries.clone(),
            pipe_directory: self.pipe_directory.clone(),
            log_directory: self.log_directory.clone(),
            gpus: desired.gpus.clone(),
            mode: desired.mode,
            multi_user: desired.multi_user,
            token: incarnation.token.clone(),
            extra_env: self.context.extra_env.clone(),
            launcher: isolation::launcher(&self.context.scopes, &desired.name, &incarnation.token),
            deadline: START_DEADLINE,
        };
        match daemon::start(&spec).await {
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
                self.asked_to_quit = false;
                self.chronicle.started(&desired.name, started.identity.pid);
                self.clients.clear();
                self.written.clear();
                self.state.started(Process {
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

    /// What stands in the way of a start.
    async fn obstacle(&self, desired: &Desired) -> Option<Obstacle> {
        let inventory = Arc::clone(&self.context.inventory);
        let present = match tokio::task::spawn_blocking(move || inventory.gpus()).await {
            Ok(Ok(gpus)) => gpus,
            Ok(Err(error)) => return Some(Obstacle { reason: "NoInventory", message: error.to_string() }),
            Err(error) => return Some(Obstacle { reason: "NoInventory", message: error.to_string() }),
        };
        if let Some(obstacle) = Census::of(&present).obstacle(desired) {
            return Some(obstacle);
        }
        if let Some(why) = self.context.capability.lacks_static().filter(|_| desired.mode == Mode::Static) {
            let message = format!("{why}, or set the daemon's mode to shared");
            return Some(Obstacle { reason: "StaticModeUnsupported", message });
        }
        if let Some(why) = self.modes.trouble().filter(|_| desired.compute_mode.is_some()) {
            // A server without the mode would let processes past it.
            return Some(Obstacle { reason: "ComputeModeNotSet", message: why.clone() });
        }
        if let Some(message) = self.directories_unusable(desired).await {
            return Some(Obstacle { reason: "DirectoryUnusable", message });
        }
        if let Some(occupant) = daemon::occupant(&self.pipe_directory) {
            let message = format!(
                "a control daemon that this manager did not start ({}) serves {}: quit it, or move it elsewhere",
                occupant
                    .pid
                    .map_or_else(|| "its process cannot be told".to_owned(), |pid| format!("process {pid}")),
                self.pipe_directory.display()
            );
            return Some(Obstacle { reason: "ForeignDaemon", message });
        }
        if desired.share_gpus {
            return None;
        }
        self.context.lookout.scan().await;
        self.shared_gpu(desired)
    }

    async fn stop_daemon(&mut self, desired: &Desired, grace_s: u32) {
        let Some(process) = self.state.process.clone() else { return };
        self.publish(desired);
        self.asked_to_quit = true;
        self.close_handout(desired);
        match daemon::stop(&self.control, process.identity, grace_s).await {
            Ok(stopped) => {
                tracing::info!(daemon = %desired.name, process = %process.identity, how = ?stopped, "stopped the control daemon");
                self.clean_stale();
                self.chronicle.stopped(&desired.name, process.identity.pid);
                self.clients.clear();
                self.state.stopped();
                // Before anybody is told that it is stopped.
                self.settle_modes(desired).await;
            }
            Err(error) => {
                let message = format!("process {} did not end: {error}", process.identity);
                tracing::error!(daemon = %desired.name, %message);
                self.state.blocked(Obstacle { reason: "StopFailed", message }, unix_ms());
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }

    async fn sync(&mut self, desired: &Desired, wrong: &[Difference]) {
        let serving = *self.fresh.borrow_and_update();
        let (began, deadline) = (unix_ms(), self.patience());
        self.looks += 1;
        for difference in wrong {
            tracing::info!(daemon = %desired.name, %difference, "writing a setting");
        }
        let process = self.state.process.as_ref();
        let partitioned = process.map_or(&[][..], |process| process.partitioned());
        let (look, clients) = look::sync(
            &self.context,
            Subject { control: &self.control, partitioned, deadline },
            &mut self.logs,
            desired,
            wrong,
            &mut self.written,
            unix_ms(),
        )
        .await;
        match &look {
            Look::Seen(_) => self.clients = clients,
            Look::Unanswered(command) => {
                tracing::warn!(daemon = %desired.name, %command, "a command was not answered");
            }
            Look::Busy(why)
            | Look::Unreadable(why)
            | Look::Misbehaved(why)
            | Look::Mute(why)
            | Look::NoFiles(why)
            | Look::NotRun(why) => {
                tracing::warn!(daemon = %desired.name, %why, "could not be read");
            }
        }
        self.look_where();
        let failed = (!matches!(look, Look::Seen(_))).then(|| look.clone());
        let before = self.state.applied;
        let rhythm = self.rhythm(desired);
        self.state.looked(look, !wrong.is_empty(), desired, unix_ms(), rhythm);
        match failed {
            Some(look) => {
                self.failed_looks += 1;
                self.explain(look, began).await;
            }
            None => self.see_around(desired),
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
        self.foresee_move(desired);
        self.read = Some((serving, self.state.trouble.clone()));
    }

    /// Brings the compute modes to what is wanted as long as the daemon runs or is to run, and back when it is to rest.
    async fn settle_modes(&mut self, desired: &Desired) {
        if !self.state.searched {
            return;
        }
        let in_use = self.state.process.as_ref().map_or(&[][..], |process| &process.gpus);
        let active = desired.running || self.state.process.is_some();
        let wanted = desired.compute_mode.filter(|_| active && !desired.is_observed());
        self.modes.settle(&self.context, &desired.name, &desired.gpus, in_use, wanted, unix_ms()).await;
    }

    /// Looks where the control process runs: what is, not what was meant, and an adopted one's too.
    fn look_where(&mut self) {
        let pid = self.state.process.as_ref().map(|process| process.identity.pid);
        self.isolation = pid.map(|pid| isolation::look(&self.context.scopes, pid, self.refused.as_deref()));
    }

    async fn start_server(&mut self, desired: &Desired, uid: u32) {
        tracing::info!(daemon = %desired.name, uid, "asking for a server");
        let deadline = Instant::now() + self.context.deadline;
        let asked = async {
            let mut session = self.control.session(deadline).await?;
            session.send(&Command::StartServer { uid }).await?;
            session.close().await;
            Ok::<_, SessionError>(())
        };
        match asked.await {
            Ok(()) => self.state.server_asked(unix_ms()),
            Err(error) => {
                self.state.looked(look::unanswered(error), false, desired, unix_ms(), Rhythm(0));
            }
        }
    }

    /// Hands an incarnation to the recorder and waits until it is written; false when it was not.
    async fn record(&mut self, desired: &Desired, incarnation: Incarnation) -> bool {
        self.incarnation = Some(incarnation.clone());
        // Before the process is there, so that no scan takes it for somebody else's.
        self.claim();
        self.write_down(desired, Lasting::Incarnation(incarnation)).await
    }
}

/// Two things that should agree do not, and nothing is touched.
fn doubtful(message: String) -> Obstacle {
    Obstacle { reason: "DoubtfulProcess", message }
}

fn inode(path: &Path) -> Option<Inode> {
    daemon::pipe_inode(path).ok()
}
