//! Scenarios of a driver under virtual time, with a control daemon that follows a script.
//!
//! Time stands still while anything runs, and jumps to the next timer when nothing does. Events of the kernel, such as the
//! death of a process or a change of a log, are noticed at the next jump, so they may be noticed [`TICK`] late.

mod daemon_death;
mod drift;
mod polling;
mod script;
mod silence;
mod stopping;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use self::script::Script;
use super::driver::compute_mode::tests::context;
use super::reconcile::daemon::tests::desired as unlimited;
use super::{Fleet, ForeignDaemonScanner, Handle, Observed, SupervisorContext};
use crate::clock::Clock;
use crate::domain::condition::{Condition, ConditionType};
use crate::domain::daemon::Phase;
use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess};
use crate::domain::plan::Desired;
use crate::domain::{GpuUuid, ThreadPercentage};
use crate::gpu::{DeviceFile, GpuDriver, Inventory, InventoryError};
use crate::testing::h200;

/// Longest jump of the time.
const TICK: Duration = Duration::from_millis(5);
/// Longest delay before an event is noticed: a jump, and the timer's own resolution.
const LATE: Duration = Duration::from_millis(10);
/// Longest virtual time for anything.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Pause of an idle daemon without logs. [`POLL_INTERVAL`] is the pause with logs, and [`DEADLINE`] the longest time for a session.
const CHECK_INTERVAL: Duration = Duration::from_secs(8);
const POLL_INTERVAL: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_secs(5);

/// Inventory of two GPUs, which can be away.
#[derive(Default)]
pub(super) struct TwoGpus {
    away: AtomicBool,
    /// Times at which the driver was asked for it.
    listings: Mutex<Vec<Instant>>,
}

impl TwoGpus {
    /// Creates a host without its GPUs.
    pub(super) fn away() -> Self {
        Self { away: AtomicBool::new(true), ..Self::default() }
    }
}

impl Inventory for TwoGpus {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        Ok(GpuDriver { driver_version: "1".into(), cuda_version: None, simulated: true, profile: None })
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        self.listings.lock().expect("whole").push(Instant::now());
        Ok(if self.away.load(Ordering::Relaxed) { Vec::new() } else { vec![h200(0), h200(1)] })
    }

    fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        Ok(Vec::new())
    }

    fn set_compute_mode(&self, _: &GpuUuid, _: ComputeMode) -> Result<(), InventoryError> {
        Ok(())
    }

    fn device_files(&self, _: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        Ok(Vec::new())
    }
}

/// Host with a fleet of daemons that follow a script.
struct ScriptedHost {
    home: tempfile::TempDir,
    gpu: Arc<TwoGpus>,
    fleet: Fleet,
    script: Script,
}

/// Returns the desired state of the daemon: half of the GPU for its clients.
fn desired(generation: i64) -> Desired {
    let uid = rustix::process::getuid().as_raw();
    Desired {
        generation,
        settings_since: generation,
        gpus: vec![h200(0).uuid],
        memory_limits: vec![None],
        percentage: ThreadPercentage::parse("50").expect("half"),
        server_uid: uid,
        uids: vec![uid],
        ..unlimited()
    }
}

impl ScriptedHost {
    fn new() -> Self {
        let home = tempfile::tempdir_in("/tmp").expect("directory");
        let (gpu, script) = (Arc::new(TwoGpus::default()), Script::new());
        let inventory: Arc<dyn Inventory> = gpu.clone();
        // Only processes in this directory belong to this host.
        let world = [("MPS_SIM_WORLD".into(), home.path().into())];
        let context = SupervisorContext {
            clock: Clock::on_tokio_time(1_800_000_000_000),
            control_program: Arc::new(script.clone()),
            foreign_daemons: ForeignDaemonScanner::new(
                Arc::clone(&inventory),
                "/run/mps-manager/daemons".into(),
                &world,
            ),
            check_interval: CHECK_INTERVAL,
            publications: tokio::sync::watch::Sender::new(0),
            memory_readings: tokio::sync::watch::Sender::new(0),
            poll: POLL_INTERVAL,
            deadline: DEADLINE,
            grace_s: 7,
            ..context(inventory, home.path())
        };
        tokio::spawn(async {
            let mut ticks = tokio::time::interval(TICK);
            loop {
                ticks.tick().await;
            }
        });
        Self { home, gpu, fleet: Fleet::new(context), script }
    }

    /// Creates a host whose daemon is ready.
    async fn ready() -> Self {
        let host = Self::new();
        host.publish(desired(1));
        host.await_phase(Phase::Ready).await;
        host
    }

    fn publish(&self, desired: Desired) {
        self.fleet.publish(desired, None);
    }

    fn handle(&self) -> Handle {
        self.fleet.get(&unlimited().name).expect("published")
    }

    fn observed(&self) -> Observed {
        self.handle().observed()
    }

    async fn wait_for(&self, what: &str, done: impl FnMut(&Observed) -> bool) -> Observed {
        let seen = self.handle().wait_for(TIMEOUT, done).await;
        seen.unwrap_or_else(|| panic!("never: {what}; {:?}", self.observed().status))
    }

    async fn await_phase(&self, phase: Phase) -> Observed {
        self.wait_for(&format!("{phase:?}"), |observed| observed.status.phase == phase).await
    }

    /// Waits until the daemon is ready again after something that ends readiness.
    async fn await_ready_again(&self) -> Observed {
        self.wait_for("not ready", |observed| observed.status.phase != Phase::Ready).await;
        self.await_phase(Phase::Ready).await
    }

    fn condition(&self, kind: ConditionType) -> Option<Condition> {
        self.observed().status.conditions.iter().find(|condition| condition.kind == kind).cloned()
    }

    fn log(&self, name: &str) -> PathBuf {
        self.home.path().join("daemons/gpu0/log").join(name)
    }
}

/// Returns the pauses between these moments.
fn pauses(moments: &[Duration]) -> Vec<Duration> {
    moments.windows(2).map(|pair| pair[1].checked_sub(pair[0]).expect("moments in order")).collect()
}

/// Checks that these are the pauses, with the tolerance of one jump of the time.
fn assert_pauses(found: &[Duration], wanted: &[Duration]) {
    let agree = |(found, wanted): (&Duration, &Duration)| *found >= *wanted && *found <= *wanted + LATE;
    assert!(found.len() == wanted.len() && found.iter().zip(wanted).all(agree), "{found:?} for {wanted:?}");
}
