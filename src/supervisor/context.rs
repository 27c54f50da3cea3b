//! What all drivers share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use super::driver::owned_compute_modes::OwnedComputeModes;
use super::durable::{DurableRecord, DurableWrite};
use super::handout::Handouts;
use super::observe::foreign_daemons::ForeignDaemonScanner;
use super::observe::gpu_presence::GpuPresence;
use super::report::event_queue::EventQueue;
use crate::clock::Clock;
use crate::domain::DaemonName;
use crate::domain::timings::Timings;
use crate::gpu::Inventory;
use crate::gpu::probe::Prober;
use crate::host::systemd::Scopes;
use crate::mps::process::foreign::Running;
use crate::mps::process::is_same_directory;
use crate::mps::{Capability, ControlProgram};

/// Shared by all drivers.
pub struct SupervisorContext {
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
    /// Where the driver reports errors of the GPUs: the kernel's log.
    pub kernel_log: PathBuf,
    /// Finds other control daemons on the host.
    pub foreign_daemons: ForeignDaemonScanner,
    /// This boot.
    pub boot_id: String,
    /// Pause between two looks at what is around an idle daemon, which open no session; and between two sessions where its logs cannot be
    /// relied upon.
    pub check_interval: Duration,
    /// Counts what was published of daemons, and to them.
    pub publications: watch::Sender<u64>,
    /// Counts the readings of the GPUs' processes that showed another memory of a client, or another client.
    pub memory_readings: watch::Sender<u64>,
    /// Pause between two sessions with an idle daemon whose logs report every change.
    pub poll: Duration,
    /// Longest time for one session with a daemon.
    pub deadline: Duration,
    /// Seconds that clients get when a daemon is stopped and the request has no other value.
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

/// A publication that is being made, until it is dropped.
pub(crate) struct Publishing<'c>(&'c SupervisorContext);

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.publications.send_modify(|publications| *publications += 1);
    }
}

impl SupervisorContext {
    /// Begins a publication. It counts twice, so that nothing that was read before it or meanwhile is taken for what is there once somebody
    /// has seen it; who waits for one is woken at its end.
    pub(crate) fn publishing(&self) -> Publishing<'_> {
        self.publications.send_if_modified(|publications| {
            *publications += 1;
            false
        });
        Publishing(self)
    }

    /// The directory that has a directory for each daemon.
    pub fn daemons_directory(&self) -> PathBuf {
        self.runtime_dir.join("daemons")
    }

    /// The name of a daemon that a manager of this runtime directory started as `manager_uid`: by the token in its environment, and
    /// its pipe directory, which is the one that this manager would give to a daemon of that name. `None` for every other.
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

    /// The directory of a daemon's sockets.
    pub fn pipe_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("pipe")
    }

    /// The directory of a daemon's logs.
    pub fn log_directory(&self, daemon: &DaemonName) -> PathBuf {
        self.home(daemon).join("log")
    }

    /// Hands something to the recorder and waits until it is written; false when it was not.
    pub(super) async fn record(&self, daemon: &DaemonName, recorded: DurableRecord) -> bool {
        let (written, done) = oneshot::channel();
        let write = DurableWrite { daemon: daemon.clone(), recorded, written };
        self.recorder.send(write).await.is_ok() && done.await.unwrap_or(false)
    }

    fn home(&self, daemon: &DaemonName) -> PathBuf {
        self.daemons_directory().join(daemon.as_str())
    }
}
