//! The GPUs of the host and the processes on them.
//!
//! [`Inventory`] is this crate's one seam of traits: the real host answers through NVML ([`nvml`]), the
//! simulated one through the files of its world ([`sim`]), and nothing above can distinguish them except by
//! [`GpuDriver::simulated`]. An inventory changes one setting of a GPU, its compute mode, and that only on request;
//! it never starts CUDA: `cuInit` in the server would make the server itself a client of MPS. CUDA is started in one place only, the
//! child process of `mps-manager cuda-probe` ([`probe`]).

mod cuda;
pub mod nvml;
pub mod probe;
pub mod report;
pub mod sim;
mod suspend;
mod timeout;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::domain::GpuUuid;
use crate::domain::capability::RunningDriver;
use crate::domain::gpu::{ComputeMode, Gpu, GpuProcess, cuda_version};
use crate::domain::vitals::GpuVitals;

pub use suspend::{Suspendable, SuspendedGpus};
pub use timeout::TimeLimited;

/// Source of the GPUs of the host and of the processes on them.
///
/// The calls block for as long as the driver takes: milliseconds when it is well, and forever when a GPU is not, unless the inventory is
/// [`TimeLimited`]. So an asynchronous caller makes them on a thread that may wait.
pub trait Inventory: Send + Sync + 'static {
    /// The driver.
    fn driver(&self) -> Result<GpuDriver, InventoryError>;

    /// Every GPU of the host in PCI order, those in MIG mode included.
    ///
    /// A GPU that the driver lists and cannot describe (fallen off the bus, say) is left out and logged, so
    /// that one broken GPU does not hide the others, nor itself: its owner still knows it by its UUID.
    fn gpus(&self) -> Result<Vec<Gpu>, InventoryError>;

    /// The processes that have a compute context on a GPU, in order of their PIDs.
    fn processes(&self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, InventoryError>;

    /// Sets the compute mode of a GPU, for processes that start from now on.
    fn set_compute_mode(&self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), InventoryError>;

    /// Returns the device file that users open, for each of these GPUs.
    fn device_files(&self, gpus: &[GpuUuid]) -> Result<Vec<DeviceFile>, InventoryError>;

    /// Returns the vitals of each of these GPUs, without the count of Xids, which no driver reports; none while the driver is not queried.
    fn vitals(&self, _gpus: &[GpuUuid]) -> Result<BTreeMap<GpuUuid, GpuVitals>, InventoryError> {
        Ok(BTreeMap::new())
    }

    /// Returns true if the driver is queried; false while remembered answers are given because the driver was released.
    fn live(&self) -> bool {
        true
    }

    /// Returns the driver; an inventory that remembers returns the last report if the driver does not answer.
    fn known_driver(&self) -> Result<GpuDriver, InventoryError> {
        self.driver()
    }

    /// Returns the GPUs; an inventory that remembers returns the last report if the driver does not answer: the set of GPUs changes seldom.
    fn known_gpus(&self) -> Result<Vec<Gpu>, InventoryError> {
        self.gpus()
    }
}

/// The device file of a GPU, as `/dev/nvidia0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFile {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The file.
    pub path: PathBuf,
}

/// The driver of the host's GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuDriver {
    /// The driver's version, as `580.159.04`.
    pub driver_version: String,
    /// The newest CUDA that the driver can run, as `13.0`; `None` where the driver does not say.
    pub cuda_version: Option<String>,
    /// True if the driver is that of a simulated host.
    pub simulated: bool,
    /// The simulated host's profile, as `h200x2@13.1`.
    pub profile: Option<String>,
}

impl GpuDriver {
    /// Returns the driver for the comparison with a control program; `None` if its version is not known.
    pub fn running(self) -> Option<RunningDriver> {
        let Self { driver_version: version, cuda_version: cuda, .. } = self;
        (!version.is_empty()).then_some(RunningDriver { version, cuda })
    }
}

/// Why the inventory has no answer.
#[derive(Debug, thiserror::Error)]
pub enum InventoryError {
    /// There is no usable driver on this host; `detail` says what is missing and what to do.
    #[error("no usable NVIDIA driver: {detail}")]
    NoDriver {
        /// Missing part, and the remedy.
        detail: String,
    },
    /// The host has no GPU of this UUID, or has it no longer.
    #[error("this host has no GPU {0}")]
    UnknownGpu(GpuUuid),
    /// The driver is closed, and only it could answer.
    #[error(
        "the driver is not queried while the host is in maintenance: end that first (`mps-manager maintenance end`)"
    )]
    Suspended,
    /// The driver did not answer in time.
    #[error(
        "the driver has not answered a call for {seconds} s: see dmesg and nvidia-smi for a GPU in trouble; it is not called again \
         until that call returns, and running daemons continue meanwhile"
    )]
    Silent {
        /// Seconds after which the call was given up.
        seconds: f64,
    },
    /// The driver refused a question.
    #[error("the driver did not answer {call}: {detail}")]
    Driver {
        /// The call, in NVML's words.
        call: &'static str,
        /// The error of the driver.
        detail: String,
    },
    /// The driver does not report this of such a GPU.
    #[error("the driver does not report {what} of GPU {gpu}")]
    NotReported {
        /// Name of the fact, in words.
        what: &'static str,
        /// The GPU.
        gpu: GpuUuid,
    },
    /// The simulated world's files cannot be read or make no sense.
    #[error("the simulated world is not readable: {path}: {detail}")]
    World {
        /// The file.
        path: String,
        /// Description of the fault.
        detail: String,
    },
}

impl InventoryError {
    /// Returns true if the error is worth a line in the log: it is not reported elsewhere and does not last.
    pub fn is_news(&self) -> bool {
        !matches!(self, Self::Suspended | Self::Silent { .. } | Self::NotReported { .. })
    }
}

/// Converts a version as CUDA counts it (13010) to words (`13.1`); `None` for a number that is no version.
fn cuda_version_text(number: i32) -> Option<String> {
    u32::try_from(number).ok().filter(|number| *number >= 1000).map(cuda_version)
}

#[cfg(test)]
mod tests {
    use super::cuda_version_text;

    #[test]
    fn cuda_versions_read_as_people_write_them() {
        assert_eq!(cuda_version_text(13000).as_deref(), Some("13.0"));
        assert_eq!(cuda_version_text(13010).as_deref(), Some("13.1"));
        assert_eq!(cuda_version_text(12080).as_deref(), Some("12.8"));
        assert_eq!((cuda_version_text(0), cuda_version_text(-1)), (None, None));
    }
}
