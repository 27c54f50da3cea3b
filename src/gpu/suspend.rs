//! An inventory that can be closed and opened again.
//!
//! NVML keeps the device files of all GPUs open for as long as it is loaded, so a manager that is to release one of them has to unload NVML
//! as a whole. Meanwhile the GPUs are reported as they were seen last, and queries that only the driver could answer fail with
//! [`InventoryError::Suspended`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{DeviceFile, GpuDriver, Inventory, InventoryError};
use crate::domain::GpuUuid;
use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess};
use crate::domain::vitals::GpuVitals;

/// Facts about the GPUs that are known while the driver is not queried: everything but their users.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuspendedGpus {
    driver: GpuDriver,
    gpus: Vec<Gpu>,
    device_files: Vec<(GpuUuid, PathBuf)>,
}

impl SuspendedGpus {
    /// Makes an inventory without GPUs: the driver was never present.
    pub fn none(profile: Option<String>) -> Self {
        let (driver_version, simulated) = (String::new(), profile.is_some());
        let driver = GpuDriver { driver_version, cuda_version: None, simulated, profile };
        Self { driver, gpus: Vec::new(), device_files: Vec::new() }
    }
}

/// Pause between two tries to close the driver while calls are under way.
const RETRY: Duration = Duration::from_millis(10);

type Opener = Box<dyn Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync>;

/// An inventory that is either open or closed.
///
/// The driver may take its time to open, or hang in a call. Callers that need only remembered facts never wait for that: no thread waits to
/// lock `state` for writing, since readers would queue behind it.
pub struct Suspendable {
    opener: Opener,
    /// Locked by the thread that opens the driver.
    opening: Mutex<()>,
    live: AtomicBool,
    state: RwLock<DriverState>,
    /// Facts that are reported while the driver is being closed, so that no new call keeps it open.
    closing: RwLock<Option<SuspendedGpus>>,
}

enum DriverState {
    Open(Box<dyn Inventory>),
    Suspended(SuspendedGpus),
}

impl Suspendable {
    /// Opens the inventory.
    pub fn open(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
    ) -> Result<Self, InventoryError> {
        let state = DriverState::Open(opener()?);
        Ok(Self::in_state(opener, state))
    }

    /// Makes a closed inventory: the driver is not touched before [`resume`](Self::resume).
    pub fn closed(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
        remembered: SuspendedGpus,
    ) -> Self {
        Self::in_state(opener, DriverState::Suspended(remembered))
    }

    fn in_state(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
        state: DriverState,
    ) -> Self {
        let live = AtomicBool::new(matches!(state, DriverState::Open(_)));
        Self {
            opener: Box::new(opener),
            opening: Mutex::default(),
            live,
            state: RwLock::new(state),
            closing: RwLock::default(),
        }
    }

    /// Returns everything that is reported while the driver is closed.
    pub fn remember(&self) -> Result<SuspendedGpus, InventoryError> {
        let state = self.read();
        let open = match &*state {
            DriverState::Open(open) => open,
            DriverState::Suspended(remembered) => return Ok(remembered.clone()),
        };
        let gpus = open.gpus()?;
        let uuids: Vec<GpuUuid> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let mut device_files = Vec::new();
        for gpu in &uuids {
            match open.device_files(std::slice::from_ref(gpu)) {
                Err(InventoryError::NotReported { .. }) => {}
                files => device_files.extend(files?),
            }
        }
        let device_files = device_files.into_iter().map(|file| (file.gpu, file.path)).collect();
        Ok(SuspendedGpus { driver: open.driver()?, gpus, device_files })
    }

    /// Closes the driver, after the calls that are under way; returns false if these do not end within `timeout`.
    pub fn suspend(&self, remembered: SuspendedGpus, timeout: Duration) -> bool {
        *self.closing.write().unwrap_or_else(PoisonError::into_inner) = Some(remembered.clone());
        let closed = self.close(remembered, timeout);
        *self.closing.write().unwrap_or_else(PoisonError::into_inner) = None;
        // The driver may take its time to close, so it is dropped after the lock is released.
        closed.map(drop).is_some()
    }

    fn close(&self, remembered: SuspendedGpus, timeout: Duration) -> Option<DriverState> {
        let until = Instant::now() + timeout;
        loop {
            if let Some(mut state) = self.try_write() {
                self.live.store(false, Ordering::SeqCst);
                return Some(std::mem::replace(&mut *state, DriverState::Suspended(remembered)));
            }
            if Instant::now() > until {
                return None;
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Opens the driver again; does nothing if it is open.
    pub fn resume(&self) -> Result<(), InventoryError> {
        self.resume_if(|| true)
    }

    /// Opens the driver if it is closed, and closes it again if it is no longer `wanted` once it is open.
    pub fn resume_if(&self, wanted: impl FnOnce() -> bool) -> Result<(), InventoryError> {
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live() {
            return Ok(());
        }
        let opened = (self.opener)()?;
        // The first query of a GPU may have to initialise it, which takes seconds: callers should not wait for that.
        if let Err(error) = opened.gpus() {
            tracing::warn!(%error, "the driver is open, and does not list the GPUs");
        }
        if !wanted() {
            return Err(InventoryError::Suspended);
        }
        loop {
            // Calls of a closed driver are short, so this does not take long.
            if let Some(mut state) = self.try_write() {
                *state = DriverState::Open(opened);
                self.live.store(true, Ordering::SeqCst);
                return Ok(());
            }
            std::thread::sleep(RETRY);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, DriverState> {
        // After a panic elsewhere the state is still whole: the old or the new one.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queries the open driver, or the remembered facts.
    fn query<T>(&self, call: impl FnOnce(&dyn Inventory) -> T) -> T {
        if let Some(remembered) = &*self.closing.read().unwrap_or_else(PoisonError::into_inner) {
            return call(remembered);
        }
        match &*self.read() {
            DriverState::Open(open) => call(&**open),
            DriverState::Suspended(remembered) => call(remembered),
        }
    }

    fn try_write(&self) -> Option<RwLockWriteGuard<'_, DriverState>> {
        match self.state.try_write() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Inventory for Suspendable {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        self.query(Inventory::driver)
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        self.query(Inventory::gpus)
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        self.query(|inventory| inventory.processes(gpu))
    }

    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
        self.query(|inventory| inventory.set_compute_mode(gpu, mode))
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        self.query(|inventory| inventory.device_files(gpus))
    }

    fn vitals(&self, gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, GpuVitals>, InventoryError> {
        self.query(|inventory| inventory.vitals(gpus))
    }

    fn live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }
}

impl Inventory for SuspendedGpus {
    fn driver(&self) -> Result<GpuDriver, InventoryError> {
        Ok(self.driver.clone())
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        Ok(self.gpus.clone())
    }

    fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        Err(InventoryError::Suspended)
    }

    fn set_compute_mode(&self, _: &GpuUuid, _: ComputeMode) -> Result<(), InventoryError> {
        Err(InventoryError::Suspended)
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        gpus.iter()
            .map(|gpu| {
                let remembered = self.device_files.iter().find(|(remembered, _)| remembered == gpu);
                let (_, path) = remembered.ok_or_else(|| InventoryError::UnknownGpu(gpu.clone()))?;
                Ok(DeviceFile { gpu: gpu.clone(), path: path.clone() })
            })
            .collect()
    }

    fn live(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::testing::h200;

    /// An inventory that counts how many of it are open.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Inventory for Counted {
        fn driver(&self) -> Result<GpuDriver, InventoryError> {
            Ok(GpuDriver { driver_version: "1".into(), cuda_version: None, simulated: true, profile: None })
        }

        fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
            Ok(vec![h200(0)])
        }

        fn processes(&self, _: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
            Ok(Vec::new())
        }

        fn set_compute_mode(&self, _: &GpuUuid, _: ComputeMode) -> Result<(), InventoryError> {
            Ok(())
        }

        fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
            Ok(gpus.iter().map(|gpu| DeviceFile { gpu: gpu.clone(), path: "/dev/nvidia0".into() }).collect())
        }
    }

    #[test]
    fn suspended_inventory_serves_remembered_gpus() {
        let open = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&open);
        let inventory = Suspendable::open(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Counted(Arc::clone(&counter))))
        })
        .expect("opens");
        assert!(inventory.live());
        let remembered = inventory.remember().expect("seen");
        let text = serde_json::to_string(&remembered).expect("JSON");
        assert_eq!(serde_json::from_str::<SuspendedGpus>(&text).expect("the same"), remembered);

        assert!(inventory.suspend(remembered.clone(), Duration::ZERO));
        assert_eq!((open.load(Ordering::SeqCst), inventory.live()), (0, false));
        let gpu = h200(0).uuid;
        assert_eq!(inventory.gpus().expect("remembered"), [h200(0)]);
        assert_eq!(inventory.driver().expect("remembered").driver_version, "1");
        assert_eq!(inventory.device_files(std::slice::from_ref(&gpu)).expect("remembered").len(), 1);
        assert!(matches!(inventory.processes(&gpu), Err(InventoryError::Suspended)));
        let mode = ComputeMode::Default;
        assert!(matches!(inventory.set_compute_mode(&gpu, mode), Err(InventoryError::Suspended)));
        let other = h200(1).uuid;
        assert!(matches!(inventory.device_files(&[other]), Err(InventoryError::UnknownGpu(_))));
        assert_eq!(inventory.remember().expect("still known"), remembered);

        inventory.resume().expect("opens");
        inventory.resume().expect("is open");
        assert_eq!((open.load(Ordering::SeqCst), inventory.live()), (1, true));
        assert!(inventory.processes(&gpu).is_ok());
    }

    #[test]
    fn hung_driver_blocks_only_its_own_callers() {
        let (hangs, until) = std::sync::mpsc::channel::<()>();
        let until = Mutex::new(until);
        let (opens, begun) = std::sync::mpsc::channel::<()>();
        let first = AtomicBool::new(true);
        let inventory = Suspendable::open(move || {
            if !first.swap(false, Ordering::SeqCst) {
                opens.send(()).expect("the test waits");
                let _ = until.lock().expect("one").recv();
            }
            Ok(Box::new(Counted(Arc::new(AtomicUsize::new(1)))))
        })
        .expect("opens");
        let remembered = inventory.remember().expect("seen");
        // A call that hangs is not waited for forever, and no caller waits behind the one that closes it.
        let call = inventory.read();
        assert!(!inventory.suspend(remembered.clone(), Duration::from_millis(30)));
        assert!(inventory.live() && inventory.gpus().is_ok());
        // Nor do those who go on asking keep it open.
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| inventory.suspend(remembered, Duration::from_secs(30)));
            while !matches!(inventory.processes(&h200(0).uuid), Err(InventoryError::Suspended)) {
                assert!(!closing.is_finished(), "a call is under way");
            }
            assert!(inventory.live() && inventory.gpus().is_ok());
            drop(call);
            assert!(closing.join().expect("whole"));
        });
        std::thread::scope(|scope| {
            scope.spawn(|| inventory.resume().expect("opens"));
            begun.recv().expect("it is being opened");
            assert_eq!((inventory.gpus().expect("remembered").len(), inventory.live()), (1, false));
            hangs.send(()).expect("the test continues");
        });
        assert!(inventory.live());
    }
}
