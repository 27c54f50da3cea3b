//! Layouts that thread percentages enforce, for daemons without static partitions.
//!
//! A partition of so many chunks becomes the percentage under which a client sees exactly the SMs of those chunks. Nothing is reserved:
//! partitions are as large as the layout states, and may have the same SMs. There are no IDs and no commands: the formula of
//! [`percentage_for`] gives the percentage, which the partition's tenants have as if their specs stated it. A partition is proven once one
//! of its tenants is verified, as any tenant is; applying or replaying the layout verifies them all.

pub mod own_share;
pub mod plan;

use serde::{Deserialize, Serialize};

use super::{GpuMap, Layout, unmapped};
use crate::gpu::Gpu;
use crate::percentage::percentage_for;
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
    /// The percentage that gives them, by the formula.
    pub percentage: ThreadPercentage,
    /// Tenants that work in it.
    pub tenants: Vec<TenantName>,
}

/// Returns the shares of a layout on the GPUs of a host.
///
/// Fails where the SMs of a GPU or of its chunks are not known, and where no percentage gives them.
pub fn shares(layout: &Layout, map: &GpuMap, gpus: &[Gpu]) -> Result<Vec<PlannedShare>, InvalidValue> {
    let adds = layout.adds().enumerate().map(|(step, add)| {
        let uuid = map.get(&add.gpu).ok_or_else(|| unmapped(add.gpu))?;
        let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let sizes = gpu.and_then(|gpu| Some((gpu, gpu.sms?, gpu.compute_capability?.chunk_sms())));
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
        // A partition larger than the GPU has too many chunks, as its plan says.
        let full = (sms > total).then_some(ThreadPercentage::FULL);
        let percentage = percentage_for(sms, total).or(full).ok_or_else(|| {
            InvalidValue(format!(
                "no thread percentage gives {sms} of the {total} SMs of {uuid}, as partition {} would have: choose another number of \
                 chunks",
                add.partition
            ))
        })?;
        Ok(PlannedShare {
            step,
            partition: add.partition.clone(),
            gpu: uuid.clone(),
            chunks: add.chunks,
            sms,
            percentage,
            tenants: add.tenants.clone(),
        })
    });
    adds.collect()
}

#[cfg(test)]
mod tests;
