//! An inventory that can be closed and opened again.
//!
//! NVML keeps the device files of all GPUs open for as long as it is loaded, so a manager that is to hold none of them
//! has to drop NVML whole, whichever GPUs it is about. Meanwhile the GPUs are told as they were seen last, and what only
//! the driver knows is answered with [`InventoryError::Suspended`].

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

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

type Opener = Box<dyn Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync>;

/// An inventory that is either open or closed.
pub struct Suspendable {
    opener: Opener,
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
        let state = RwLock::new(State::Open(opener()?));
        Ok(Self { opener: Box::new(opener), state })
    }

    /// Begins closed: the driver is not touched before [`resume`](Self::resume).
    pub fn closed(
        opener: impl Fn() -> Result<Box<dyn Inventory>, InventoryError> + Send + Sync + 'static,
        remembered: Remembered,
    ) -> Self {
        Self { opener: Box::new(opener), state: RwLock::new(State::Suspended(remembered)) }
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

    /// Closes it, after the calls that are under way.
    pub fn suspend(&self, remembered: Remembered) {
        *self.write() = State::Suspended(remembered);
    }

    /// Opens it again; harmless when it is open.
    pub fn resume(&self) -> Result<(), InventoryError> {
        let mut state = self.write();
        if matches!(*state, State::Suspended(_)) {
            *state = State::Open((self.opener)()?);
        }
        Ok(())
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        // A panic elsewhere leaves one whole state or the other.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
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
        matches!(*self.read(), State::Open(_))
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

        inventory.suspend(remembered.clone());
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
}
