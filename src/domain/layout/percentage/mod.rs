//! Layouts that thread percentages enforce, for daemons without static partitions.
//!
//! A partition of so many chunks becomes the percentage under which a client sees exactly the SMs of those chunks. Nothing is reserved:
//! partitions are as large as the layout states, and may have the same SMs. There are no IDs and no commands; a partition is proven by a
//! CUDA client that sees its SMs. Where the formula of [`sms_for`](crate::percentage::sms_for) was measured, it gives the percentage, and
//! a client that sees anything else is a failure; elsewhere it is a first guess, and clients probe until one sees the planned SMs.

pub mod assertion;
pub mod own_share;
pub mod plan;
pub mod proof;

use serde::{Deserialize, Serialize};

use super::{GpuMap, Layout, unmapped};
use crate::gpu::Gpu;
use crate::percentage::{is_measured, percentage_for};
use crate::{GpuUuid, InvalidValue, PartitionName, TenantName, ThreadPercentage};

/// A partition that a percentage enforces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedShare {
    /// The step of the layout, counted from 0.
    pub step: usize,
    /// The partition.
    pub partition: PartitionName,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its chunks.
    pub chunks: u32,
    /// The SMs of these chunks, which a client is to see.
    pub sms: u32,
    /// All SMs of the GPU.
    pub total_sms: u32,
    /// The percentage by the formula, where that was measured; `None` where a client has to find it.
    pub percentage: Option<ThreadPercentage>,
    /// Tenants that work in it.
    pub tenants: Vec<TenantName>,
}

/// Returns the shares of a layout on the GPUs of a host.
///
/// Fails where the SMs of a GPU or of its chunks are not known, and where no percentage gives them.
pub fn shares(layout: &Layout, map: &GpuMap, gpus: &[Gpu]) -> Result<Vec<PlannedShare>, InvalidValue> {
    let adds = layout.adds().enumerate().map(|(step, add)| {
        let uuid = map.get(&add.gpu).ok_or_else(|| unmapped(add.gpu))?;
        let known = gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let sizes = known.and_then(|gpu| Some((gpu, gpu.sms?, gpu.compute_capability?.chunk_sms())));
        let Some((gpu, total, chunk_sms)) = sizes else {
            return Err(InvalidValue(format!(
                "the driver does not report the SMs of {uuid} or its compute capability, so the size of its chunks is not known"
            )));
        };
        if gpu.is_before_volta() {
            return Err(InvalidValue(format!(
                "{uuid} is older than Volta, where MPS has no thread percentages that would hold a partition"
            )));
        }
        let sms = chunk_sms.saturating_mul(add.chunks);
        let percentage = is_measured(gpu).then(|| percentage_for(sms, total));
        if percentage == Some(None) && sms <= total {
            return Err(InvalidValue(format!(
                "no thread percentage gives {sms} of the {total} SMs of {uuid}, as partition {} would have",
                add.partition
            )));
        }
        Ok(PlannedShare {
            step,
            partition: add.partition.clone(),
            gpu: uuid.clone(),
            chunks: add.chunks,
            sms,
            total_sms: total,
            percentage: percentage.flatten(),
            tenants: add.tenants.clone(),
        })
    });
    adds.collect()
}

#[cfg(test)]
mod tests;
