//! One driver task for each daemon, and a cheap handle to it for other tasks.
//!
//! A driver compares what is wanted ([`Desired`], published by a watch after each commit) with what it reads,
//! acts, reads back, and publishes [`Observed`] by a watch. It never touches SQLite: what has to outlive the
//! manager goes as a [`DurableWrite`] to the one recorder.

mod driver;
mod fleet;
mod handout;
mod observe;
mod reconcile;
pub mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

pub use self::driver::compute_mode::OwnedComputeModes;
pub use self::driver::terminate_client::{TerminateError, Terminating, Termination};
pub use self::fleet::Fleet;
pub use self::handout::{ClientDirectory, DirectoryStatus, Handouts, root as tenants_directory};
pub use self::observe::foreign_daemons::{ForeignDaemon, ForeignDaemonScanner};
use self::observe::poll;
pub use self::observe::poll::ForeignPoll;
pub use self::reconcile::daemon::Blocker;
pub use self::report::diagnosis::Diagnosis;
use self::report::event_detector::EventDetector;
use self::report::event_queue::EventQueue;
use crate::clock::Clock;
use crate::domain::client::{ClientFacts, ClientId, StoppedPolicy};
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::daemon::{Condition, DaemonStatus, Incarnation, Mode, Phase};
use crate::domain::layout::active::ProvenLayout;
use crate::domain::layout::record::PartitionRun;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::domain::{DaemonName, FilePlace, GpuUuid};
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host::systemd::Scopes;
use crate::metrics::control::Commands;

pub use self::observe::control_process::token;
pub use self::observe::gpu_presence::GpuPresence;
pub use crate::mps::log::kept_name;
pub use crate::mps::log::window::{Excerpt, Line, OwnSessions, Part, excerpt};
pub use crate::mps::process::foreign::reachable;
pub use crate::mps::process::{DEFAULT_PIPE_DIRECTORY, LONGEST_PATH, PIPE_ENV, TOKEN_ENV, is_server};
use crate::mps::{Capability, ControlProgram};

/// Shared by all drivers.
pub struct Context {
    /// What time it is.
    pub clock: Clock,
    /// Starts control daemons and talks to them.
    pub control_program: Arc<dyn ControlProgram>,
    /// What they can do.
    pub capability: Capability,
    /// The GPUs.
    pub inventory: Arc<dyn Inventory>,
    /// Starts CUDA processes that see what clients are given.
    pub prober: Arc<Prober>,
    /// Which of them are here, polled once for all daemons.
    pub gpu_presence: watch::Sender<GpuPresence>,
    /// Whether daemons get systemd scopes of their own.
    pub scopes: Scopes,
    /// Where each daemon gets a directory of its own.
    pub runtime_dir: PathBuf,
    /// Further variables for what runs on this host.
    pub extra_env: Vec<(OsString, OsString)>,
    /// Finds other control daemons on the host.
    pub foreign_daemons: ForeignDaemonScanner,
    /// This boot.
    pub boot_id: String,
    /// Pause of an idle daemon between two reads of its processes and its GPUs, which open no session; and between two
    /// sessions where its logs cannot be relied upon.
    pub check_interval: Duration,
    /// Pause between two sessions with an idle daemon whose logs report every change.
    pub poll: Duration,
    /// Longest time for one session with a daemon.
    pub deadline: Duration,
    /// Seconds that clients get when a daemon is stopped and nobody said otherwise.
    pub grace_s: u32,
    /// Pauses and deadlines.
    pub timings: Timings,
    /// The compute modes that are ours.
    pub modes: OwnedComputeModes,
    /// Takes what must outlive the manager.
    pub recorder: mpsc::Sender<DurableWrite>,
    /// Takes events.
    pub events: EventQueue,
    /// The sockets of tenants.
    pub handouts: Arc<Handouts>,
}

impl Context {
    /// The directory that has a directory for each daemon.
    pub fn daemons_directory(&self) -> PathBuf {
        self.runtime_dir.join("daemons")
    }

    /// The directory of a daemon's sockets.
    pub fn pipe_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("pipe")
    }

    /// The directory of a daemon's logs.
    pub fn log_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("log")
    }

    /// Reads a daemon that is not ours, in one session of its own; the reason where it cannot be read.
    pub async fn read_foreign(&self, foreign: &ForeignDaemon) -> Result<ForeignPoll, String> {
        let environment = foreign.daemon.environment.clone()?;
        environment.reachable?;
        let gpus = foreign.gpus.clone()?;
        let _turn = self.foreign_daemons.readers.acquire().await.map_err(|error| error.to_string())?;
        let control = self.control_program.channel(environment.pipe_directory);
        let partitioned = if foreign.daemon.mode == Mode::Static { gpus.as_slice() } else { &[] };
        let subject = poll::PollTarget { control: &*control, partitioned, deadline: self.deadline };
        poll::foreign(self, subject, &environment.log_directory, &gpus, self.clock.unix_ms()).await
    }

    fn home(&self, daemon: &DaemonName) -> PathBuf {
        self.daemons_directory().join(daemon.as_str())
    }
}

/// What the store remembers of a daemon when its driver begins.
#[derive(Debug, Clone)]
pub struct RememberedDaemon {
    /// The control process that it has, or had when it was last seen.
    pub incarnation: Incarnation,
    /// What was written last of the partitions in it, or in the one before.
    pub partitions: Option<PartitionRun>,
    /// The clients whose arrival is in the journal, and not their end.
    pub clients: Vec<ClientId>,
    /// How far its server.log was read for events.
    pub read_to: Option<FilePlace>,
}

impl RememberedDaemon {
    /// A control process without events yet.
    pub fn of(incarnation: Incarnation) -> Self {
        Self { incarnation, partitions: None, clients: Vec::new(), read_to: None }
    }

    /// The event detector that continues from it.
    fn event_detector(&self) -> (EventDetector, Option<FilePlace>) {
        (EventDetector::of(self.clients.iter().copied()), self.read_to)
    }
}

/// Something that must outlive the manager.
#[derive(Debug)]
pub struct DurableWrite {
    /// The daemon.
    pub daemon: DaemonName,
    /// What is to be remembered.
    pub recorded: DurableRecord,
    /// Receives whether it was written; a driver starts no process before.
    pub written: oneshot::Sender<bool>,
}

/// What outlives the manager.
#[derive(Debug)]
pub enum DurableRecord {
    /// The daemon's control process.
    Incarnation(Incarnation),
    /// The partitions of its control process, before a session that changes them and after it.
    PartitionRun(PartitionRun),
    /// What CUDA clients proved of its layout.
    PercentageProof(ProvenLayout),
    /// The first final status of its layout in its control process.
    Layout(Box<LayoutStatus>),
    /// What the compute mode of a GPU was; `None` once it was put back.
    ComputeMode {
        /// The GPU.
        gpu: GpuUuid,
        /// What is held.
        held: Option<OwnedComputeMode>,
    },
}

/// What was observed of a daemon.
#[derive(Debug, Clone)]
pub struct Observed {
    /// For the API.
    pub status: DaemonStatus,
    /// Its clients at the last poll.
    pub clients: Vec<ClientFacts>,
    /// The last request for a fresh poll that this answers.
    served: u64,
    /// Whether that poll failed.
    failed: Option<Diagnosis>,
    /// The generation that the driver works by; whatever it did by an earlier one is over.
    follows: i64,
    /// What blocks the daemon, if the daemon is blocked.
    blocker: Option<Blocker>,
    /// The last request to try again that this answers.
    tried: u64,
}

impl Observed {
    /// Whether what was seen came after this request to try again.
    pub fn has_tried(&self, tried: u64) -> bool {
        self.tried >= tried
    }

    /// The generation that the driver works by.
    pub fn follows(&self) -> i64 {
        self.follows
    }

    /// What blocks the daemon, found after it was tried again on this request.
    pub fn blocker(&self, tried: u64) -> Option<&Blocker> {
        self.blocker.as_ref().filter(|_| self.tried >= tried)
    }
}

/// Requests that a driver carries out once, in turn.
enum DriverRequest {
    Restart,
    /// Answered with the number of the request.
    TryAgain(oneshot::Sender<u64>),
    /// For this generation, whatever the policy says of what drifted; answered in the same way.
    ReconcileLayout(i64, oneshot::Sender<u64>),
    Terminate {
        client: ClientId,
        stopped: StoppedPolicy,
        /// Notified when MPS has ended its work and only its process is left.
        let_go: oneshot::Sender<()>,
        answer: oneshot::Sender<Result<Termination, TerminateError>>,
    },
}

/// Why no fresh poll could be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FreshError {
    /// The poll failed.
    #[error("the daemon could not be read: {0}")]
    Failed(Diagnosis),
    /// No poll ended in time; the one before may have said why.
    #[error("the daemon was not read within {}{}", seconds(*.0), .1.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Late(Duration, Option<Diagnosis>),
    /// The driver has ended.
    #[error("the daemon is no longer managed")]
    Gone,
}

impl FreshError {
    /// Its reason, which names no process or user.
    pub fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Failed(why) | Self::Late(_, Some(why)) => Some(why.reason),
            Self::Late(_, None) | Self::Gone => None,
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// A handle to one driver.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    desired: watch::Sender<Desired>,
    observed: watch::Receiver<Observed>,
    fresh: watch::Sender<u64>,
    jobs: mpsc::Sender<DriverRequest>,
    grace_s: AtomicU32,
    stop_driver: CancellationToken,
    commands: Arc<Commands>,
}

impl Handle {
    /// The current desired generation.
    pub fn generation(&self) -> i64 {
        self.shared.desired.borrow().generation
    }

    /// The current desired value.
    pub fn desired(&self) -> Desired {
        self.shared.desired.borrow().clone()
    }

    /// The counts and times of commands to the daemon.
    pub fn commands(&self) -> Arc<Commands> {
        Arc::clone(&self.shared.commands)
    }

    /// The user whose server is desired.
    pub fn server_uid(&self) -> u32 {
        self.shared.desired.borrow().server_uid
    }

    /// The last observation.
    pub fn observed(&self) -> Observed {
        self.shared.observed.borrow().clone()
    }

    /// A poll that began after this call; all who wait at the same time share one.
    pub async fn fresh(&self, patience: Duration) -> Result<Observed, FreshError> {
        let mut wanted = 0;
        self.shared.fresh.send_modify(|requests| {
            *requests += 1;
            wanted = *requests;
        });
        let mut observed = self.shared.observed.clone();
        let seen =
            tokio::time::timeout(patience, observed.wait_for(|observed| observed.served >= wanted)).await;
        let seen = match seen {
            Ok(seen) => seen.map_err(|_| FreshError::Gone)?.clone(),
            Err(_) => return Err(FreshError::Late(patience, self.observed().failed)),
        };
        match seen.failed {
            Some(why) => Err(FreshError::Failed(why)),
            None => Ok(seen),
        }
    }

    /// Waits until what is seen satisfies `done`.
    pub async fn wait_for(
        &self,
        patience: Duration,
        done: impl FnMut(&Observed) -> bool,
    ) -> Option<Observed> {
        let mut observed = self.shared.observed.clone();
        tokio::time::timeout(patience, observed.wait_for(done)).await.ok()?.ok().map(|seen| seen.clone())
    }

    /// The status as of now: `ready` only if it is ready for the newest generation, which the driver may not have seen.
    pub fn status(&self) -> DaemonStatus {
        let mut status = self.shared.observed.borrow().status.clone();
        {
            let desired = self.shared.desired.borrow();
            if status.phase == Phase::Ready && desired.holds_since(status.observed_generation) {
                status.observed_generation = desired.generation;
            }
        }
        if status.phase == Phase::Ready && self.not_ready().is_some() {
            status.phase = Phase::Applying;
            if let Some(ready) = status.conditions.first_mut() {
                let message = "what is wanted was changed a moment ago, and is being applied";
                *ready = Condition::new("Ready", false, "AwaitingReadBack", message);
            }
        }
        status
    }

    /// The daemon's phase, unless it holds what is wanted of it now.
    fn not_ready(&self) -> Option<Phase> {
        let desired = self.shared.desired.borrow();
        let observed = self.shared.observed.borrow();
        let status = &observed.status;
        match status.phase {
            // Nothing is wanted of one that is only observed.
            _ if desired.is_observed() => None,
            Phase::Stopped if !desired.running => None,
            Phase::Ready if desired.running && desired.holds_since(status.observed_generation) => None,
            // Published before the driver has seen the newest generation.
            Phase::Ready | Phase::Stopped => Some(Phase::Applying),
            other => Some(other),
        }
    }

    /// Publishes a new desired value.
    fn publish(&self, mut desired: Desired) {
        self.shared.desired.send_if_modified(|current| {
            // Two writers may publish in another order than they committed; the version decides.
            let newer = desired.version() > current.version();
            if newer {
                // A daemon that was created again counts its generations from 1 again.
                let is_same = desired.generation > current.generation;
                if is_same && desired.has_settings_of(current) {
                    desired.settings_since = current.settings_since;
                }
                *current = desired;
            }
            newer
        });
    }

    /// Waits until the driver works by what is wanted now, and has ended what it did before; gives up after `patience`.
    pub async fn followed(&self, patience: Duration) -> bool {
        let wanted = self.generation();
        self.wait_for(patience, |observed| observed.follows >= wanted).await.is_some()
    }

    /// Waits until the driver has ended, after which it sends nothing any more; gives up after `patience`.
    pub async fn ended(&self, patience: Duration) {
        let mut observed = self.shared.observed.clone();
        let _ = tokio::time::timeout(patience, observed.wait_for(|_| false)).await;
    }

    /// The seconds that clients get at the next stop.
    pub fn set_grace(&self, seconds: u32) {
        self.shared.grace_s.store(seconds, Ordering::Relaxed);
    }

    /// Stops the daemon once; it is started again since its desired value says so.
    pub async fn restart(&self) -> Result<(), FreshError> {
        self.shared.jobs.send(DriverRequest::Restart).await.map_err(|_| FreshError::Gone)
    }

    /// Has the driver try at once what was blocked; gives the number by which [`Observed::blocker`] shows what came of it.
    pub async fn try_again(&self) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        self.shared.jobs.send(DriverRequest::TryAgain(answer)).await.map_err(|_| FreshError::Gone)?;
        answered.await.map_err(|_| FreshError::Gone)
    }

    /// Has the driver apply its layout again: after a failure, and whatever drifted under a policy that only reports.
    ///
    /// A generation for which the driver has done that already is not requested twice: whatever others have done since is
    /// theirs. Gives the number by which [`Observed::has_tried`] shows that the driver has begun with it.
    pub async fn reconcile_layout(&self, generation: i64) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        let job = DriverRequest::ReconcileLayout(generation, answer);
        self.shared.jobs.send(job).await.map_err(|_| FreshError::Gone)?;
        answered.await.map_err(|_| FreshError::Gone)
    }

    /// Ends a client in the safe order.
    pub async fn terminate(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Termination, TerminateError> {
        self.start_termination(client, stopped).await?.ended().await
    }

    /// The same, for a caller that follows the progress.
    pub async fn start_termination(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Terminating, TerminateError> {
        let (let_go, answer, terminating) = Terminating::begin();
        let job = DriverRequest::Terminate { client, stopped, let_go, answer };
        self.shared.jobs.send(job).await.map_err(|_| self::driver::terminate_client::unmanaged())?;
        Ok(terminating)
    }
}
