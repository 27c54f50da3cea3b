//! A GPU's memory and state in words.

use super::bytes;
use crate::domain::memory::Bytes;
use crate::service::host::GpuView;

/// Returns the memory in use out of the total, as `2 GiB of 141 GiB`.
pub(crate) fn memory(gpu: &GpuView) -> String {
    match gpu.memory_total {
        None if gpu.present => "not reported".to_owned(),
        total => format!("{} of {}", bytes(gpu.memory_used), bytes(total)),
    }
}

/// Returns the sum of the memory limits, out of the most that it may be if that is known.
pub(crate) fn limits(gpu: &GpuView) -> String {
    let sum = Bytes(gpu.memory_limits);
    gpu.memory_capacity.map_or_else(|| sum.to_string(), |capacity| format!("{sum} of {}", Bytes(capacity)))
}

/// Returns the state: missing, released for maintenance, in MIG mode, or present.
pub(crate) fn state(gpu: &GpuView) -> &'static str {
    match gpu {
        gpu if !gpu.present => "missing",
        gpu if !gpu.live => "released",
        gpu if gpu.mig_enabled == Some(true) => "mig",
        _ => "present",
    }
}
