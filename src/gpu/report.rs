//! Answer of a CUDA probe: the JSON object of `mps-manager cuda-probe`, schema 1.
//!
//! Its writer and its reader use these types, so a field means one thing.

use serde::{Deserialize, Serialize};

use crate::domain::GpuUuid;
use crate::domain::gpu::ComputeCapability;

/// The version of this object's shape.
pub const SCHEMA: u32 = 1;

/// State of CUDA as one fresh process saw it in the environment that it was given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The process that used CUDA. It is gone when the report is read, except after a `timeout`: then it still
    /// waits, and must not be killed (the probe's module says why).
    pub pid: Option<u32>,
    /// The driver's version, as `580.159.04`; `None` where NVML is missing.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver can run, as `13.0`.
    pub cuda_version: Option<String>,
    /// True if the process is a client of MPS on all devices that it saw.
    ///
    /// From CUDA's attribute `MPS_ENABLED` of each device, which distinguished clients from processes outside in every case tried on an
    /// H200 (no daemon, an unreadable pipe directory, limits, another user). `None` if it saw no device, or the devices differ, or the
    /// driver is too old to report it.
    pub mps: Option<bool>,
    /// Milliseconds that `cuInit` took. Under MPS this is where the process connects, and where the first one
    /// waits for the server to start.
    pub init_ms: Option<f64>,
    /// The devices, in the order in which this process numbers them.
    pub devices: Vec<CudaDevice>,
    /// Why the probe could not see everything, from the first thing that failed.
    pub error: Option<Failure>,
}

/// A device as the process saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CudaDevice {
    /// The number of the device in this process, which `CUDA_VISIBLE_DEVICES` may have changed.
    pub ordinal: u32,
    /// The GPU's UUID.
    pub uuid: GpuUuid,
    /// The product name.
    pub name: String,
    /// The compute capability; `None` in a report of an older probe.
    #[serde(default)]
    pub compute_capability: Option<ComputeCapability>,
    /// True if contexts on this device are MPS clients; `None` where the driver is too old to report it.
    pub mps: Option<bool>,
    /// Multiprocessors that the process may use: under MPS, those within its thread percentage.
    pub sms: u32,
    /// Free memory in bytes: under MPS, the rest of its memory limit after its context.
    pub memory_free: u64,
    /// Memory of the whole device in bytes, whatever the limit.
    pub memory_total: u64,
    /// Milliseconds that it took to make the context.
    pub context_ms: f64,
    /// The range of stream priorities; the greatest is the smaller number.
    pub priorities: Priorities,
    /// Divisions of the device's multiprocessors by CUDA's own splitter, for groups of at least 8, 16 and 32, and before compute capability
    /// 9.0 of 4, too: the least is the chunk of static partitions.
    ///
    /// Under a thread percentage it answers no groups and no error, so a census is to be taken without one.
    /// Empty where the driver has no splitter (before CUDA 12.4).
    pub splitter: Vec<Split>,
    /// Result of an allocation, where one was requested.
    pub allocation: Option<Allocation>,
}

/// Least and greatest priority of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priorities {
    /// The least urgent.
    pub least: i32,
    /// The most urgent.
    pub greatest: i32,
}

/// One division of a device's multiprocessors into groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split {
    /// The least multiprocessors requested in each group.
    pub min_sms: u32,
    /// Groups that came out.
    pub groups: u32,
    /// Multiprocessors of the first group; 0 if there is none.
    pub sms_per_group: u32,
    /// Multiprocessors left over.
    pub remaining: u32,
}

/// The outcome of allocating device memory for real.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Bytes requested.
    pub asked: u64,
    /// The largest single allocation up to that which succeeded, in bytes, found to the MiB.
    pub largest: u64,
    /// CUDA's error for the smallest allocation that it refused.
    pub refused_with: Option<Failure>,
}

/// Something that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// CUDA's number, if the error is CUDA's.
    pub code: Option<u32>,
    /// CUDA's name (`CUDA_ERROR_MPS_SERVER_NOT_READY`) or one of the probe's own: `no_driver`, `timeout`,
    /// `crashed`, `not_started`.
    pub name: String,
    /// Description, and the remedy where one is known.
    pub message: String,
}

/// A failure of the probe that is not CUDA's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbeFailure {
    /// There is no driver.
    NoDriver,
    /// There was no answer in time; the process is left waiting.
    Timeout,
    /// The process ended without an answer.
    Crashed,
    /// The process was not started.
    NotStarted,
}

impl ProbeFailure {
    const fn as_str(self) -> &'static str {
        match self {
            Self::NoDriver => "no_driver",
            Self::Timeout => "timeout",
            Self::Crashed => "crashed",
            Self::NotStarted => "not_started",
        }
    }
}

impl Failure {
    /// A failure that is not CUDA's.
    pub(super) fn own(failure: ProbeFailure, message: impl Into<String>) -> Self {
        Self { code: None, name: failure.as_str().to_owned(), message: message.into() }
    }

    /// Returns true if there was no answer in time, and the process is left waiting.
    pub fn is_timeout(&self) -> bool {
        self.name == ProbeFailure::Timeout.as_str()
    }
}

impl Report {
    /// A report that has seen nothing yet.
    pub(super) fn empty() -> Self {
        Self {
            schema: SCHEMA,
            pid: None,
            driver_version: None,
            cuda_version: None,
            mps: None,
            init_ms: None,
            devices: Vec::new(),
            error: None,
        }
    }

    /// A report of nothing but a failure.
    pub(super) fn failed(error: Failure) -> Self {
        Self { error: Some(error), ..Self::empty() }
    }
}
