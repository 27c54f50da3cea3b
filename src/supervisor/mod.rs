//! One driver task for each daemon, and a cheap handle to it for everybody else.
//!
//! A driver compares what is wanted ([`Desired`], published by a watch after each commit) with what it reads,
//! acts, reads back, and publishes [`Observed`] by a watch. It never touches SQLite: what has to outlive the
//! manager goes as a [`Fact`] to the one recorder.

mod bypass;
mod census;
mod chronicle;
mod driver;
mod fleet;
mod handout;
mod isolation;
pub mod journal;
mod limits;
mod logs;
mod look;
mod lookout;
mod modes;
mod news;
mod obstacle;
mod overwrites;
mod partitioning;
mod partitions;
mod process;
mod reachable;
mod shares;
mod state;
mod status;
mod termination;
mod told;
mod trouble;
mod wakes;
mod wedge;
mod witness;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::chronicle::Chronicle;
pub use self::fleet::Fleet;
pub use self::handout::{ClientDirectory, DirectoryStatus, Handouts, root as tenants_directory};
use self::journal::Journal;
pub use self::look::ForeignLook;
pub use self::lookout::{Lookout, Neighbour};
pub use self::state::Obstacle;
pub use self::termination::{TerminateError, Terminating, Termination};
pub use self::trouble::Trouble;
use crate::clock::unix_ms;
use crate::domain::client::{ClientFacts, ClientId, StoppedPolicy};
use crate::domain::compute_mode::HeldMode;
use crate::domain::daemon::{Condition, DaemonStatus, Incarnation, Mode, Phase};
use crate::domain::layout::percentage::ProvenLayout;
use crate::domain::layout::record::PartitionRun;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::plan::Desired;
use crate::domain::{DaemonName, FilePlace, GpuUuid};
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host::systemd::Scopes;
use crate::metrics::control::Commands;
pub use modes::HeldModes;

pub use crate::mps::log::kept_name;
pub use crate::mps::log::window::{Excerpt, Line, OwnSessions, Part, excerpt};
pub use crate::mps::process::foreign::reachable;
pub use crate::mps::process::{DEFAULT_PIPE_DIRECTORY, LONGEST_PATH, PIPE_ENV, TOKEN_ENV, is_server};
use crate::mps::{Binaries, Capability, Control};
pub use census::Census;
pub use process::token;

/// What every driver needs.
pub struct Context {
    /// NVIDIA's two programs, or the simulated ones.
    pub binaries: Binaries,
    /// What they can do.
    pub capability: Capability,
    /// The GPUs.
    pub inventory: Arc<dyn Inventory>,
    /// Sends CUDA processes to see what they are given of them.
    pub prober: Arc<Prober>,
    /// Which of them are here, looked at for all daemons together.
    pub census: watch::Sender<Census>,
    /// Whether daemons get systemd scopes of their own.
    pub scopes: Scopes,
    /// Where each daemon gets a directory of its own.
    pub runtime_dir: PathBuf,
    /// Further variables for daemons and control processes.
    pub extra_env: Vec<(OsString, OsString)>,
    /// Who else runs control daemons here.
    pub lookout: Lookout,
    /// This boot.
    pub boot_id: String,
    /// Pause of an idle daemon between two looks at its processes and its GPUs, which open no session; and between two
    /// sessions where its logs cannot be relied upon.
    pub rhythm: Duration,
    /// Pause between two sessions with an idle daemon whose logs tell of every change.
    pub poll: Duration,
    /// Longest time for one session with a daemon.
    pub deadline: Duration,
    /// Seconds that clients get when a daemon is stopped and nobody said otherwise.
    pub grace_s: u32,
    /// The compute modes that are ours.
    pub modes: HeldModes,
    /// Takes what must outlive the manager.
    pub recorder: mpsc::Sender<Fact>,
    /// Takes what there is to tell.
    pub journal: Journal,
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
    pub async fn read_foreign(&self, neighbour: &Neighbour) -> Result<ForeignLook, String> {
        let around = neighbour.daemon.environment.clone()?;
        around.reachable?;
        let gpus = neighbour.gpus.clone()?;
        let _turn = self.lookout.readers.acquire().await.map_err(|error| error.to_string())?;
        let control =
            Control::new(self.binaries.control.clone(), around.pipe_directory, self.extra_env.clone());
        let partitioned = if neighbour.daemon.mode == Mode::Static { gpus.as_slice() } else { &[] };
        let subject = look::Subject { control: &control, partitioned, deadline: self.deadline };
        look::foreign(self, subject, &around.log_directory, &gpus, unix_ms()).await
    }

    fn home(&self, daemon: &DaemonName) -> PathBuf {
        self.daemons_directory().join(daemon.as_str())
    }
}

/// What the store remembers of a daemon when its driver begins.
#[derive(Debug, Clone)]
pub struct Earlier {
    /// The control process that it has, or had when it was last seen.
    pub incarnation: Incarnation,
    /// What was written last of the partitions in it, or in the one before.
    pub partitions: Option<PartitionRun>,
    /// The clients of which it was told that they came, and not that they left.
    pub clients: Vec<ClientId>,
    /// How far its server.log was read for what there is to tell.
    pub read_to: Option<FilePlace>,
}

impl Earlier {
    /// A control process of which nothing was told yet.
    pub fn of(incarnation: Incarnation) -> Self {
        Self { incarnation, partitions: None, clients: Vec::new(), read_to: None }
    }

    /// What was told of it.
    fn told(&self) -> (Chronicle, Option<FilePlace>) {
        (Chronicle::of(self.clients.iter().copied()), self.read_to)
    }
}

/// Something that must outlive the manager.
#[derive(Debug)]
pub struct Fact {
    /// The daemon.
    pub daemon: DaemonName,
    /// What is to be remembered.
    pub recorded: Lasting,
    /// Told once it is written; a driver starts no process before.
    pub written: oneshot::Sender<bool>,
}

/// What outlives the manager.
#[derive(Debug)]
pub enum Lasting {
    /// The daemon's control process.
    Incarnation(Incarnation),
    /// The partitions of its control process, before a session that changes them and after it.
    PartitionRun(PartitionRun),
    /// What CUDA clients proved of its layout.
    Shares(ProvenLayout),
    /// Where its layout stands for the first time in its control process.
    Layout(Box<LayoutStatus>),
    /// What the compute mode of a GPU was; `None` once it was put back.
    ComputeMode {
        /// The GPU.
        gpu: GpuUuid,
        /// What is held.
        held: Option<HeldMode>,
    },
}

/// What was seen of a daemon.
#[derive(Debug, Clone)]
pub struct Observed {
    /// For the API.
    pub status: DaemonStatus,
    /// Its clients at the last look.
    pub clients: Vec<ClientFacts>,
    /// The last request for a fresh look that this answers.
    served: u64,
    /// Whether that look failed.
    failed: Option<Trouble>,
    /// The generation that the driver works by; whatever it did by an earlier one is over.
    follows: i64,
    /// What stands in the way, if the daemon is blocked.
    obstacle: Option<Obstacle>,
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

    /// What stands in the way, found after it was tried again on this request.
    pub fn obstacle(&self, tried: u64) -> Option<&Obstacle> {
        self.obstacle.as_ref().filter(|_| self.tried >= tried)
    }
}

/// What a driver is asked to do once, in its turn.
enum Job {
    Restart,
    /// Answered with the number of the request.
    TryAgain(oneshot::Sender<u64>),
    /// For this generation, whatever the policy says of what drifted; answered in the same way.
    BringLayoutAbout(i64, oneshot::Sender<u64>),
    Terminate {
        client: ClientId,
        stopped: StoppedPolicy,
        /// Told once MPS has ended its work, and its process is what is left.
        let_go: oneshot::Sender<()>,
        answer: oneshot::Sender<Result<Termination, TerminateError>>,
    },
}

/// Why no fresh look could be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FreshError {
    /// The look failed.
    #[error("the daemon could not be read: {0}")]
    Failed(Trouble),
    /// No look ended in time; the one before may have told why.
    #[error("the daemon was not read within {}{}", seconds(*.0), .1.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Late(Duration, Option<Trouble>),
    /// The driver has ended.
    #[error("the daemon is no longer managed")]
    Gone,
}

impl FreshError {
    /// The one word of it, which names nobody.
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

/// The way to one driver.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    desired: watch::Sender<Desired>,
    observed: watch::Receiver<Observed>,
    fresh: watch::Sender<u64>,
    jobs: mpsc::Sender<Job>,
    grace_s: AtomicU32,
    stop_driver: CancellationToken,
    commands: Arc<Commands>,
}

impl Handle {
    /// The generation that is wanted now.
    pub fn generation(&self) -> i64 {
        self.shared.desired.borrow().generation
    }

    /// What is wanted now.
    pub fn desired(&self) -> Desired {
        self.shared.desired.borrow().clone()
    }

    /// What talking to the daemon took.
    pub fn commands(&self) -> Arc<Commands> {
        Arc::clone(&self.shared.commands)
    }

    /// The user whose server is wanted.
    pub fn server_uid(&self) -> u32 {
        self.shared.desired.borrow().server_uid
    }

    /// What was seen last.
    pub fn observed(&self) -> Observed {
        self.shared.observed.borrow().clone()
    }

    /// A look that began after this call; all who wait at the same time share one.
    pub async fn fresh(&self, patience: Duration) -> Result<Observed, FreshError> {
        let mut wanted = 0;
        self.shared.fresh.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
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

    /// The status as of now: `ready` only if it is ready for the newest wish, which the driver may not have seen.
    pub fn status(&self) -> DaemonStatus {
        let mut status = self.observed().status;
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

    /// Where the daemon stands, unless it holds what is wanted of it now.
    fn not_ready(&self) -> Option<Phase> {
        let desired = self.shared.desired.borrow();
        let observed = self.shared.observed.borrow();
        let status = &observed.status;
        match status.phase {
            // Nothing is wanted of one that is only looked at.
            _ if desired.is_observed() => None,
            Phase::Stopped if !desired.running => None,
            Phase::Ready if desired.running && desired.holds_since(status.observed_generation) => None,
            // Published before the driver has seen the newest wish.
            Phase::Ready | Phase::Stopped => Some(Phase::Applying),
            other => Some(other),
        }
    }

    /// Publishes what is wanted from now on.
    fn publish(&self, mut desired: Desired) {
        self.shared.desired.send_if_modified(|current| {
            // Two writers may publish in another order than they committed; the version tells.
            let newer = desired.version() > current.version();
            if newer {
                // A daemon that was created anew counts its generations from 1 again.
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
        self.shared.jobs.send(Job::Restart).await.map_err(|_| FreshError::Gone)
    }

    /// Has the driver try at once what was blocked; gives the number by which [`Observed::obstacle`] tells what came of it.
    pub async fn try_again(&self) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        self.shared.jobs.send(Job::TryAgain(answer)).await.map_err(|_| FreshError::Gone)?;
        answered.await.map_err(|_| FreshError::Gone)
    }

    /// Has the driver bring its layout about anew: after a failure, and whatever drifted under a policy that only reports.
    ///
    /// A generation for which the driver has done that already is not asked for twice: whatever others have done since is
    /// theirs. Gives the number by which [`Observed::has_tried`] tells that the driver has begun with it.
    pub async fn bring_layout_about(&self, generation: i64) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        let job = Job::BringLayoutAbout(generation, answer);
        self.shared.jobs.send(job).await.map_err(|_| FreshError::Gone)?;
        answered.await.map_err(|_| FreshError::Gone)
    }

    /// Ends a client in the safe order.
    pub async fn terminate(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Termination, TerminateError> {
        self.begin_to_terminate(client, stopped).await?.ended().await
    }

    /// The same, for whoever wants to know how far it is.
    pub async fn begin_to_terminate(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Terminating, TerminateError> {
        let (let_go, answer, terminating) = Terminating::begin();
        let job = Job::Terminate { client, stopped, let_go, answer };
        self.shared.jobs.send(job).await.map_err(|_| termination::unmanaged())?;
        Ok(terminating)
    }
}
