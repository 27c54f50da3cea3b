//! State and services that all drivers share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::durable::{DurableRecord, DurableWrite};
use super::handout::Handouts;
use super::observe::foreign_daemons::{ForeignDaemon, ForeignDaemonScanner};
use super::observe::gpu_presence::GpuPresence;
use super::observe::mlopart::MlopartReading;
use super::observe::poll::{self, ForeignPoll, PollTarget};
use super::owned_compute_modes::OwnedComputeModes;
use super::report::event_queue::EventQueue;
use crate::clock::Clock;
use crate::domain::DaemonName;
use crate::domain::daemon::Mode;
use crate::domain::timings::Timings;
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host::systemd::Scopes;
use crate::mps::process::foreign::Running;
use crate::mps::process::is_same_directory;
use crate::mps::{Capability, ControlProgram};

/// Shared by all drivers.
pub struct SupervisorContext {
    /// Source of the present time.
    pub clock: Clock,
    /// Starts control daemons and talks to them.
    pub control_program: Arc<dyn ControlProgram>,
    /// Abilities of the installed MPS programs.
    pub capability: Capability,
    /// GPUs of this host.
    pub inventory: Arc<dyn Inventory>,
    /// Starts CUDA processes that see the devices and limits of a client.
    pub prober: Arc<Prober>,
    /// GPUs that are present, polled once for all daemons.
    pub gpu_presence: watch::Sender<GpuPresence>,
    /// Systemd scopes that daemons are started in, where they are available.
    pub scopes: Scopes,
    /// Directory in which each daemon has a directory of its own.
    pub runtime_dir: PathBuf,
    /// Further environment variables for programs that run on this host.
    pub extra_env: Vec<(OsString, OsString)>,
    /// Kernel log, to which the driver reports GPU errors.
    pub kernel_log: PathBuf,
    /// Finds other control daemons on the host.
    pub foreign_daemons: ForeignDaemonScanner,
    /// Identifier of the present boot.
    pub boot_id: String,
    /// Pause between two checks of the surroundings of an idle daemon, which open no session, and between two sessions with a
    /// daemon whose logs cannot be relied upon.
    pub check_interval: Duration,
    /// Counter of publications: observations of daemons, and desired states for them.
    pub publications: watch::Sender<u64>,
    /// Counter of the readings of GPU processes that showed a changed memory use of a client, or a new client.
    pub memory_readings: watch::Sender<u64>,
    /// Pause between two sessions with an idle daemon whose logs report every change.
    pub poll: Duration,
    /// Longest time for one session with a daemon.
    pub deadline: Duration,
    /// Seconds that clients get when a daemon is stopped, unless the request has another value.
    pub grace_s: u32,
    /// Further pauses and deadlines.
    pub timings: Timings,
    /// Compute modes that this manager has set.
    pub modes: OwnedComputeModes,
    /// Receives the records that must outlive the manager.
    pub recorder: mpsc::Sender<DurableWrite>,
    /// Receives events.
    pub events: EventQueue,
    /// Sockets of tenants.
    pub handouts: Arc<Handouts>,
}

/// Guard of a publication in progress, which ends when the guard is dropped.
pub(crate) struct Publishing<'c>(&'c SupervisorContext);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.publications.send_modify(|publications| *publications += 1);
    }
}

impl SupervisorContext {
    /// Begins a publication.
    ///
    /// A publication is counted at its beginning and at its end. A value that was read before or during it is thus never
    /// taken for the present one by a reader that has seen the final count. Waiting tasks are woken at the end.
    pub(crate) fn publishing(&self) -> Publishing<'_> {
        self.publications.send_if_modified(|publications| {
            *publications += 1;
            false
        });
        Publishing(self)
    }

    /// Returns the directory that holds a directory for each daemon.
    pub fn daemons_directory(&self) -> PathBuf {
        self.runtime_dir.join("daemons")
    }

    /// Returns the name of a daemon that a manager of this runtime directory started as `manager_uid`; `None` for every other daemon.
    ///
    /// Such a daemon has a token in its environment, and its pipe directory is the one that this manager would give to a
    /// daemon of that name.
    pub fn own_name(&self, daemon: &Running, manager_uid: u32) -> Option<DaemonName> {
        let around = daemon.environment.as_ref().ok()?;
        around.token.as_ref()?;
        if daemon.uid != Some(manager_uid) || around.reachable.is_err() {
            return None;
        }
        let home = around.pipe_directory.parent()?.file_name()?.to_str()?;
        let name = DaemonName::parse(home).ok()?;
        is_same_directory(&around.pipe_directory, &self.pipe_directory(&name)).then_some(name)
    }

    /// Returns the directory of a daemon's sockets.
    pub fn pipe_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("pipe")
    }

    /// Returns the directory of a daemon's logs.
    pub fn log_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("log")
    }

    /// Hands a record to the recorder and waits until it is written; returns false if it was not.
    pub(super) async fn record(&self, daemon: &DaemonName, recorded: DurableRecord) -> bool {
        let (written, done) = oneshot::channel();
        let write = DurableWrite { daemon: daemon.clone(), recorded, written };
        self.recorder.send(write).await.is_ok() && done.await.unwrap_or(false)
    }

    /// Reads a foreign daemon in one session of its own; fails with the reason if it cannot be read.
    pub async fn read_foreign(&self, foreign: &ForeignDaemon) -> Result<ForeignPoll, String> {
        let environment = foreign.daemon.environment.clone()?;
        environment.reachable?;
        let gpus = foreign.gpus.clone()?;
        let _turn = self.foreign_daemons.readers.acquire().await.map_err(|error| error.to_string())?;
        let control = self.control_program.channel(environment.pipe_directory);
        let partitioned = if foreign.daemon.mode == Mode::Static { gpus.as_slice() } else { &[] };
        let server_status = self.capability.server_status();
        let target = PollTarget {
            mlopart: MlopartReading::of(&self.capability, false, &[]),
            control: &*control,
            partitioned,
            deadline: self.deadline,
            server_status,
            inventory: &self.inventory,
            handouts: &self.handouts,
        };
        poll::foreign(target, &environment.log_directory, &gpus, self.clock.unix_ms()).await
    }

    fn home(&self, daemon: &DaemonName) -> PathBuf {
        self.daemons_directory().join(daemon.as_str())
    }
}
