//! An inventory that can be closed and opened again.
//!
//! NVML keeps the device files of all GPUs open for as long as it is loaded, so a manager that is to hold none of them
//! has to drop NVML whole, whichever GPUs it is about. Meanwhile the GPUs are told as they were seen last, and what only
//! the driver knows is answered with [`InventoryError::Suspended`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{DeviceFile, Driver, Inventory, InventoryError};
use crate::domain::GpuUuid;
use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess};

/// What is known of the GPUs while the driver is not asked: everything but who uses them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Remembered {
    driver: Driver,
    gpus: Vec<Gpu>,
    device_files: Vec<(GpuUuid, PathBuf)>,
}

/// Pause between two tries to close it while calls are under way.
const RETRY: Duration = Duration::from_millis(10);

type Opener = Box<dyn Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync>;

/// An inventory that is either open or closed.
///
/// The driver may take its time to open, or hang in a call. Whoever asks what is told without it never waits for that:
/// nobody waits for the lock of `state` to write it, since those who want to read would wait behind.
pub struct Suspendable {
    opener: Opener,
    /// Held by the one who opens it.
    opening: Mutex<()>,
    live: AtomicBool,
    state: RwLock<State>,
}

enum State {
    Open(Box<dyn Inventory>),
    Suspended(Remembered),
}

impl Suspendable {
    /// Opens the inventory.
    pub fn open(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
    ) -> Result<Self, InventoryError> {
        let state = State::Open(opener()?);
        Ok(Self::in_state(opener, state))
    }

    /// Begins closed: the driver is not touched before [`resume`](Self::resume).
    pub fn closed(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
        remembered: Remembered,
    ) -> Self {
        Self::in_state(opener, State::Suspended(remembered))
    }

    fn in_state(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
        state: State,
    ) -> Self {
        let live = AtomicBool::new(matches!(state, State::Open(_)));
        Self { opener: Box::new(opener), opening: Mutex::default(), live, state: RwLock::new(state) }
    }

    /// Everything that is told while it is closed.
    pub fn remember(&self) -> Result<Remembered, InventoryError> {
        let state = self.read();
        let open = match &*state {
            State::Open(open) => open,
            State::Suspended(remembered) => return Ok(remembered.clone()),
        };
        let gpus = open.gpus()?;
        let uuids: Vec<GpuUuid> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
        let device_files = open.device_files(&uuids)?.into_iter().map(|file| (file.gpu, file.path)).collect();
        Ok(Remembered { driver: open.driver()?, gpus, device_files })
    }

    /// Closes it, after the calls that are under way; false when these do not end within `patience`.
    pub fn suspend(&self, remembered: Remembered, patience: Duration) -> bool {
        let until = Instant::now() + patience;
        let closed = loop {
            if let Some(mut state) = self.try_write() {
                self.live.store(false, Ordering::SeqCst);
                break std::mem::replace(&mut *state, State::Suspended(remembered));
            }
            if Instant::now() > until {
                return false;
            }
            std::thread::sleep(RETRY);
        };
        // Closing the driver may take its time, too.
        drop(closed);
        true
    }

    /// Opens it again; harmless when it is open.
    pub fn resume(&self) -> Result<(), InventoryError> {
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if self.live() {
            return Ok(());
        }
        let opened = (self.opener)()?;
        loop {
            // Calls on a closed one are short.
            if let Some(mut state) = self.try_write() {
                *state = State::Open(opened);
                self.live.store(true, Ordering::SeqCst);
                return Ok(());
            }
            std::thread::sleep(RETRY);
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic elsewhere leaves one whole state or the other.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_write(&self) -> Option<RwLockWriteGuard<'_, State>> {
        match self.state.try_write() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Inventory for Suspendable {
    fn driver(&self) -> Result<Driver, InventoryError> {
        match &*self.read() {
            State::Open(open) => open.driver(),
            State::Suspended(remembered) => Ok(remembered.driver.clone()),
        }
    }

    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        match &*self.read() {
            State::Open(open) => open.gpus(),
            State::Suspended(remembered) => Ok(remembered.gpus.clone()),
        }
    }

    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError> {
        match &*self.read() {
            State::Open(open) => open.processes(gpu),
            State::Suspended(_) => Err(InventoryError::Suspended),
        }
    }

    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError> {
        match &*self.read() {
            State::Open(open) => open.set_compute_mode(gpu, mode),
            State::Suspended(_) => Err(InventoryError::Suspended),
        }
    }

    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError> {
        match &*self.read() {
            State::Open(open) => open.device_files(gpus),
            State::Suspended(remembered) => gpus
                .iter()
                .map(|gpu| {
                    let known = remembered.device_files.iter().find(|(known, _)| known == gpu);
                    let (_, path) = known.ok_or_else(|| InventoryError::UnknownGpu(gpu.clone()))?;
                    Ok(DeviceFile { gpu: gpu.clone(), path: path.clone() })
                })
                .collect(),
        }
    }

    fn live(&self) -> bool {
        self.live.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::domain::tenant::tests::h200;

    /// An inventory that counts how many of it are open.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Inventory for Counted {
        fn driver(&self) -> Result<Driver, InventoryError> {
            Ok(Driver { driver_version: "1".into(), cuda_version: None, simulated: true, profile: None })
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
    fn what_is_closed_is_dropped_and_tells_what_it_saw_last() {
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
        assert_eq!(serde_json::from_str::<Remembered>(&text).expect("the same"), remembered);

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
    fn a_driver_that_hangs_holds_up_nobody_who_does_not_need_it() {
        let (hangs, until) = std::sync::mpsc::channel::<()>();
        let until = Mutex::new(until);
        let (opens, begun) = std::sync::mpsc::channel::<()>();
        let first = AtomicBool::new(true);
        let inventory = Suspendable::open(move || {
            if !first.swap(false, Ordering::SeqCst) {
                opens.send(()).expect("somebody waits");
                let _ = until.lock().expect("one").recv();
            }
            Ok(Box::new(Counted(Arc::new(AtomicUsize::new(1)))))
        })
        .expect("opens");
        let remembered = inventory.remember().expect("seen");
        // A call that hangs is not waited for for ever, and nobody waits behind who would close it.
        let call = inventory.read();
        assert!(!inventory.suspend(remembered.clone(), Duration::from_millis(30)));
        assert!(inventory.live() && inventory.gpus().is_ok());
        drop(call);
        assert!(inventory.suspend(remembered, Duration::ZERO));
        std::thread::scope(|scope| {
            scope.spawn(|| inventory.resume().expect("opens"));
            begun.recv().expect("it is being opened");
            assert_eq!((inventory.gpus().expect("remembered").len(), inventory.live()), (1, false));
            hangs.send(()).expect("it goes on");
        });
        assert!(inventory.live());
    }
}
