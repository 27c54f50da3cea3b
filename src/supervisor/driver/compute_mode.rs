//! Compute modes. All drivers share the record of the modes that are held, and each driver applies the mode of its own daemon.

use std::sync::Arc;

use crate::domain::compute_mode::{ComputeModeStatus, ModeStep, OwnedComputeMode, next};
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::daemon::DaemonStatus;
use crate::domain::event::DomainEvent;
use crate::domain::gpu::ComputeMode;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::InventoryError;
use crate::supervisor::context::SupervisorContext;
use crate::supervisor::durable::DurableRecord;
use crate::supervisor::report::event_queue::{DaemonObservations, Observation};

/// Most steps for one GPU, more than are ever needed: beyond them, another program changes the mode too.
const STEPS: usize = 8;

impl SupervisorContext {
    /// Brings the GPUs of a daemon to the desired compute mode, and restores its other GPUs except those that are `in_use`.
    ///
    /// Returns the modes that this manager holds afterwards. Does nothing for a daemon that desires no mode and holds none.
    pub async fn apply_compute_modes(
        &self,
        daemon: &DaemonName,
        gpus: &[GpuUuid],
        in_use: &[GpuUuid],
        desired: Option<ComputeMode>,
    ) -> Result<Vec<ComputeModeStatus>, String> {
        let mut targets: Vec<(GpuUuid, Option<ComputeMode>)> = Vec::new();
        for gpu in self.modes.of(daemon) {
            if !gpus.contains(&gpu) && !in_use.contains(&gpu) {
                targets.push((gpu, None));
            }
        }
        for gpu in gpus {
            let ours = self.modes.get(gpu).is_some_and(|held| held.daemon == *daemon);
            if desired.is_some() || ours {
                targets.push((gpu.clone(), desired));
            }
        }
        let mut applied = Vec::new();
        for (gpu, desired) in targets {
            applied.extend(self.apply_compute_mode(daemon, &gpu, desired).await?);
        }
        Ok(applied)
    }

    /// Restores the modes that a deleted daemon left, and stops once a daemon of the same name exists, which has modes of its own.
    pub async fn put_back_modes<F: Future<Output = bool>>(
        &self,
        daemon: &DaemonName,
        is_gone: impl Fn() -> F,
    ) -> Result<(), String> {
        for gpu in self.modes.of(daemon) {
            // A daemon that is created from now on applies its modes after this.
            let _turn = self.modes.turn.lock().await;
            if !is_gone().await {
                return Ok(());
            }
            self.apply_compute_mode_in_turn(daemon, &gpu, None).await?;
        }
        Ok(())
    }

    async fn apply_compute_mode(
        &self,
        daemon: &DaemonName,
        gpu: &GpuUuid,
        desired: Option<ComputeMode>,
    ) -> Result<Option<ComputeModeStatus>, String> {
        // One at a time: a GPU may go from one daemon to another.
        let _turn = self.modes.turn.lock().await;
        self.apply_compute_mode_in_turn(daemon, gpu, desired).await
    }

    async fn apply_compute_mode_in_turn(
        &self,
        daemon: &DaemonName,
        gpu: &GpuUuid,
        desired: Option<ComputeMode>,
    ) -> Result<Option<ComputeModeStatus>, String> {
        if !self.inventory.live() {
            return self.mode_while_suspended(daemon, gpu, desired);
        }
        for _ in 0..STEPS {
            let held = self.modes.get(gpu);
            if desired.is_none() && held.as_ref().is_none_or(|held| held.daemon != *daemon) {
                // Another daemon holds the GPU by now, and its mode applies.
                return Ok(None);
            }
            let Some(now) = self.compute_mode(gpu).await? else {
                // A missing GPU is checked again when it is back.
                return Ok(held.map(|held| ComputeModeStatus {
                    gpu: gpu.clone(),
                    mode: None,
                    previous: held.previous,
                }));
            };
            match next(daemon, desired, held.as_ref(), now, &self.boot_id) {
                ModeStep::Done => {
                    self.modes.confirm(gpu, held.is_some());
                    return Ok(held.map(|held| ComputeModeStatus {
                        gpu: gpu.clone(),
                        mode: Some(now),
                        previous: held.previous,
                    }));
                }
                ModeStep::Remember(held) => {
                    self.modes.confirm(gpu, false);
                    self.remember_mode(daemon, gpu, Some(held)).await?;
                }
                ModeStep::Forget => self.remember_mode(daemon, gpu, None).await?,
                ModeStep::Set(mode) => {
                    tracing::info!(%daemon, %gpu, ?now, ?mode, "setting a compute mode");
                    self.set_compute_mode(gpu, mode).await?;
                    let read = self.compute_mode(gpu).await?;
                    if read.is_some_and(|read| read != mode) {
                        return Err(format!(
                            "the compute mode of {gpu} was set to {mode:?} and reads back as {read:?}: the driver does not \
                             take it, or another program sets it at the same time"
                        ));
                    }
                    let was_confirmed = self.modes.confirm(gpu, false);
                    if was_confirmed && desired == Some(mode) {
                        self.report_repair(daemon, gpu, now, mode);
                    }
                }
            }
        }
        Err(format!("the compute mode of {gpu} keeps changing: another program sets it at the same time"))
    }

    /// Reports that a mode differed from the one that was set, and has been repaired.
    fn report_repair(&self, daemon: &DaemonName, gpu: &GpuUuid, before: ComputeMode, set: ComputeMode) {
        let repaired =
            DomainEvent::ComputeModeRepaired { daemon: daemon.clone(), gpu: gpu.clone(), found: before, set };
        self.events.record(DaemonObservations {
            daemon: daemon.clone(),
            at: self.clock.unix_ms(),
            observations: vec![Observation::Event(Box::new(repaired.into()))],
        });
    }

    /// Returns the state of a mode while the driver is not queried: a mode that was set before still holds, and none can be changed.
    fn mode_while_suspended(
        &self,
        daemon: &DaemonName,
        gpu: &GpuUuid,
        desired: Option<ComputeMode>,
    ) -> Result<Option<ComputeModeStatus>, String> {
        match self.modes.get(gpu) {
            None if desired.is_none() => Ok(None),
            Some(held) if desired.is_none() && held.daemon != *daemon => Ok(None),
            Some(held) if Some(held.desired) == desired && held.boot_id == self.boot_id => {
                Ok(Some(ComputeModeStatus { gpu: gpu.clone(), mode: None, previous: held.previous }))
            }
            _ => Err(InventoryError::Suspended.to_string()),
        }
    }

    /// Reads the present mode of a GPU; `None` for a GPU that is missing. A GPU whose mode is not reported is an error.
    async fn compute_mode(&self, gpu: &GpuUuid) -> Result<Option<ComputeMode>, String> {
        let inventory = Arc::clone(&self.inventory);
        let gpus = tokio::task::spawn_blocking(move || inventory.gpus()).await;
        let gpus = gpus.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let Some(listed) = gpus.into_iter().find(|listed| listed.uuid == *gpu) else { return Ok(None) };
        listed.compute_mode.map(Some).ok_or_else(|| {
            format!(
                "the driver does not report the compute mode of {gpu}, so it is left alone: take compute_mode out of the daemon's spec"
            )
        })
    }

    async fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), String> {
        let (inventory, uuid) = (Arc::clone(&self.inventory), gpu.clone());
        let set = tokio::task::spawn_blocking(move || inventory.set_compute_mode(&uuid, mode)).await;
        set.map_err(|error| error.to_string())?
            .map_err(|error| format!("the compute mode of {gpu} cannot be set to {mode:?}: {error}"))
    }

    async fn remember_mode(
        &self,
        daemon: &DaemonName,
        gpu: &GpuUuid,
        held: Option<OwnedComputeMode>,
    ) -> Result<(), String> {
        let recorded = DurableRecord::ComputeMode { gpu: gpu.clone(), held: held.clone() };
        if !self.record(daemon, recorded).await {
            return Err(format!(
                "what the compute mode of {gpu} was could not be written to the database, so nothing is set: see that the \
                 disk of the state directory has room"
            ));
        }
        let mut all = self.modes.held();
        match held {
            Some(held) => drop(all.insert(gpu.clone(), held)),
            None => drop(all.remove(gpu)),
        }
        Ok(())
    }
}

/// Compute modes of one daemon, as its driver applies them.
#[derive(Debug, Default)]
pub(crate) struct ComputeModeControl {
    /// Desired mode and GPUs when the modes were last applied.
    applied_for: Option<(Option<ComputeMode>, Vec<GpuUuid>)>,
    status: Vec<ComputeModeStatus>,
    /// Reason why the modes are not the desired ones.
    failure: Option<String>,
    due: Option<i64>,
}

impl ComputeModeControl {
    /// Returns the time of the next check, in Unix milliseconds.
    pub(crate) fn due(&self) -> i64 {
        self.due.unwrap_or(i64::MAX)
    }

    /// Returns the reason why the modes are not the desired ones, which blocks the daemon's start.
    pub(crate) fn failure(&self) -> Option<&String> {
        self.failure.as_ref()
    }

    /// Applies the modes if something changed or a check is due.
    pub(crate) async fn apply(
        &mut self,
        context: &SupervisorContext,
        daemon: &DaemonName,
        gpus: &[GpuUuid],
        in_use: &[GpuUuid],
        desired: Option<ComputeMode>,
        now: i64,
    ) {
        let key = (desired, gpus.to_vec());
        if self.applied_for.as_ref() == Some(&key) && now < self.due() {
            return;
        }
        self.applied_for = Some(key);
        match context.apply_compute_modes(daemon, gpus, in_use, desired).await {
            Ok(status) => {
                self.failure = None;
                // Other programs may change modes, and GPUs that are still in use are restored later.
                let check_interval = i64::try_from(context.check_interval.as_millis()).unwrap_or(i64::MAX);
                let nothing = status.is_empty() && context.modes.of(daemon).is_empty() && desired.is_none();
                self.due = (!nothing).then(|| now.saturating_add(check_interval));
                self.status = status;
            }
            Err(why) => {
                if self.failure.as_ref() != Some(&why) {
                    tracing::error!(%daemon, %why, "a compute mode is not as it should be");
                }
                self.failure = Some(why);
                self.due = Some(now + context.timings.blocked_retry());
            }
        }
    }

    /// Adds the modes and their condition to a daemon's status.
    pub(crate) fn show(&self, status: &mut DaemonStatus) {
        status.compute_modes.clone_from(&self.status);
        let Some((desired, gpus)) = &self.applied_for else { return };
        let read = self.status.iter().filter(|status| status.mode.is_some()).count();
        let condition = match &self.failure {
            Some(why) => ConditionType::ComputeMode.problem(ConditionReason::ComputeModeDiffers, why.clone()),
            None if desired.is_none() => return,
            None if read < gpus.len() => {
                let message =
                    "it was set, and is not read back while the GPU is missing or the host is in maintenance";
                ConditionType::ComputeMode.problem(ConditionReason::NotReadBack, message)
            }
            None => {
                let message = "the compute mode of its GPUs was read back as its spec says";
                Condition::new(ConditionType::ComputeMode, true, ConditionReason::SetAndReadBack, message)
            }
        };
        status.conditions.push(condition);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::sync::Mutex;
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::sync::watch;

    use super::*;
    use crate::domain::gpu::{Gpu, GpuProcess};
    use crate::domain::timings::Timings;
    use crate::gpu::{DeviceFile, GpuDriver, Inventory};
    use crate::host::systemd::Scopes;
    use crate::mps::{Capability, InstalledProgram};
    use crate::supervisor::owned_compute_modes::OwnedComputeModes;
    use crate::supervisor::{DurableWrite, ForeignDaemonScanner, GpuPresence};
    use crate::testing::h200;

    /// Longest wait for an expected result. [`LONG_ENOUGH`] is the wait for one that must not come.
    const TIMEOUT: Duration = Duration::from_secs(30);
    const LONG_ENOUGH: Duration = Duration::from_millis(300);

    /// One GPU, whose first listing blocks until the test releases it.
    struct Slow {
        mode: Mutex<ComputeMode>,
        begun: mpsc::Sender<()>,
        gate: Mutex<Option<mpsc::Receiver<()>>>,
    }

    impl Inventory for Slow {
        fn driver(&self) -> Result<GpuDriver, InventoryError> {
            Ok(GpuDriver { driver_version: "1".into(), cuda_version: None, simulated: true, profile: None })
        }

        fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
            let now = Gpu { compute_mode: Some(*self.mode.lock().expect("whole")), ..h200(0) };
            let gate = self.gate.lock().expect("whole").take();
            if let Some(gate) = gate {
                self.begun.send(()).expect("the test waits");
                gate.recv_timeout(TIMEOUT).expect("the test continues");
            }
            Ok(vec![now])
        }

        fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
            Ok(Vec::new())
        }

        fn set_compute_mode(&self, _: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
            *self.mode.lock().expect("whole") = mode;
            Ok(())
        }

        fn device_files(&self, _: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
            Ok(Vec::new())
        }
    }

    pub(crate) fn context(inventory: Arc<dyn Inventory>, runtime_dir: &Path) -> SupervisorContext {
        let (recorder, mut facts) = tokio::sync::mpsc::channel::<DurableWrite>(4);
        tokio::spawn(async move {
            while let Some(fact) = facts.recv().await {
                let _ = fact.written.send(true);
            }
        });
        SupervisorContext {
            clock: crate::clock::Clock::system(),
            control_program: Arc::new(InstalledProgram {
                path: "/nonexistent/program".into(),
                server_directory: None,
                extra_env: Vec::new(),
            }),
            capability: Capability {
                binary_version: 13_000,
                commands: BTreeSet::from(["get_server_status".to_owned()]),
                options: BTreeSet::default(),
                version_from: crate::mps::capability::VersionSource::Program,
                program: "/nonexistent/program".into(),
            },
            prober: Arc::new(crate::gpu::probe::Prober::new(&[])),
            gpu_presence: watch::channel(GpuPresence::default()).0,
            kernel_log: PathBuf::from("/nonexistent"),
            scopes: Scopes::detect(1),
            runtime_dir: runtime_dir.to_owned(),
            extra_env: Vec::new(),
            foreign_daemons: ForeignDaemonScanner::new(
                Arc::clone(&inventory),
                "/run/mps-manager/daemons".into(),
                &[],
            ),
            inventory,
            boot_id: "boot".into(),
            check_interval: TIMEOUT,
            publications: tokio::sync::watch::Sender::new(0),
            memory_readings: tokio::sync::watch::Sender::new(0),
            poll: TIMEOUT,
            deadline: TIMEOUT,
            grace_s: 1,
            modes: OwnedComputeModes::default(),
            timings: Timings::default(),
            recorder,
            events: crate::supervisor::report::event_queue::EventQueue::default(),
            handouts: crate::supervisor::Handouts::new(runtime_dir, TIMEOUT, crate::clock::Clock::system()),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn gpu_moved_between_daemons_gets_second_daemons_mode() {
        let (one, other) =
            (DaemonName::parse("one").expect("a name"), DaemonName::parse("other").expect("a name"));
        let desired = Some(ComputeMode::ExclusiveProcess);
        for leaves_first in [true, false] {
            let (begun, listing) = mpsc::channel();
            let (go_on, gate) = mpsc::channel();
            let mode = Mutex::new(ComputeMode::ExclusiveProcess);
            let inventory = Arc::new(Slow { mode, begun, gate: Mutex::new(Some(gate)) });
            let context = Arc::new(context(inventory.clone(), Path::new("/nonexistent")));
            let gpu = h200(0).uuid;
            let held = OwnedComputeMode {
                daemon: one.clone(),
                previous: ComputeMode::Default,
                desired: ComputeMode::ExclusiveProcess,
                boot_id: "boot".into(),
            };
            context.modes.load(vec![(gpu.clone(), held.clone())]);
            let leaves = {
                let (context, one) = (Arc::clone(&context), one.clone());
                async move { context.apply_compute_modes(&one, &[], &[], None).await }
            };
            let comes = {
                let (context, other, gpus) = (Arc::clone(&context), other.clone(), [gpu.clone()]);
                async move { context.apply_compute_modes(&other, &gpus, &[], desired).await }
            };
            // The first is in the middle of it when the second comes.
            let (first, second): (tokio::task::JoinHandle<_>, _) = if leaves_first {
                let first = tokio::spawn(leaves);
                listing.recv_timeout(TIMEOUT).expect("listing");
                (first, tokio::spawn(comes))
            } else {
                let first = tokio::spawn(comes);
                listing.recv_timeout(TIMEOUT).expect("listing");
                (first, tokio::spawn(leaves))
            };
            let mut second = Box::pin(second);
            let early = tokio::time::timeout(LONG_ENOUGH, &mut second).await;
            assert!(early.is_err(), "it did not wait for the first");
            go_on.send(()).expect("it waits");
            first.await.expect("no panic").expect("applied");
            second.await.expect("no panic").expect("applied");
            assert_eq!(*inventory.mode.lock().expect("whole"), ComputeMode::ExclusiveProcess);
            assert_eq!(context.modes.get(&gpu), Some(OwnedComputeMode { daemon: other.clone(), ..held }));
        }
    }
}
