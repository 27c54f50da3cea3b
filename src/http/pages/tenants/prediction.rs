//! Prediction of a tenant's resources, shown beside its form.

use std::sync::Arc;

use super::super::format::{Amount, or};
use super::super::sharing::length;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::prediction::{GpuPrediction, Prediction};
use crate::domain::sharing::SharedGpus;
use crate::domain::{MemoryLimit, TenantName};
use crate::service::daemons::DaemonView;
use crate::words;

/// The prediction that the form shows.
#[derive(Default)]
pub(super) struct PredictionView {
    /// The prediction per GPU; `None` if none is possible yet.
    pub(super) prediction: Option<Prediction>,
    /// Errors, by field if they belong to one.
    pub(super) refusals: Vec<(String, String)>,
    /// Reason for which no process can start on a static daemon.
    pub(super) unplaced: Option<String>,
    /// True if the form is still untouched, so that missing values are no errors.
    pub(super) is_untouched: bool,
    /// Sharing of each GPU now; `None` if no prediction is possible.
    pub(super) sharing: Option<Arc<SharedGpus>>,
    pub(super) name: Option<TenantName>,
    /// Time at which the tenant would expire.
    pub(super) expires_at: Option<i64>,
}

/// The memory of a GPU on a bar: the limits of the other tenants, and those of this one.
pub(super) struct LimitsBar {
    pub(super) others: f64,
    pub(super) own: f64,
    pub(super) is_over: bool,
}

/// Returns a message with the amount by which the limits exceed the memory of a GPU.
fn over_committed(gpu: &GpuPrediction) -> Option<String> {
    let (sum, memory) = (gpu.sum(), gpu.memory?);
    let over = Amount(sum.checked_sub(memory).filter(|over| *over > 0)?);
    Some(format!("limits exceed memory by {over} ({} of {})", Amount(sum), Amount(memory)))
}

impl PredictionView {
    /// The limits on a GPU, as parts of what they may add up to.
    pub(super) fn bar(gpu: &GpuPrediction) -> Option<LimitsBar> {
        let scale = gpu.allowed?.max(gpu.sum());
        let (others, own) = (length(gpu.others, scale), length(gpu.own.unwrap_or(0), scale));
        Some(LimitsBar { others, own, is_over: gpu.over() > 0 })
    }

    /// Sentence on what is left to give of a GPU once the tenant has what the form says; empty where that is not known.
    pub(super) fn left(&self, gpu: &GpuPrediction) -> String {
        let sharing = self.sharing.as_ref().and_then(|sharing| sharing.get(&gpu.gpu));
        let Some(sharing) = sharing else { return String::new() };
        // A strategy divides the whole GPU among its tenants.
        let is_divided = self.prediction.as_ref().is_some_and(|prediction| prediction.provisioning.is_some());
        let sms = gpu.sms.filter(|_| !is_divided);
        words::gpu::left(sharing.left_with(self.name.as_ref(), sms, gpu.total_sms, gpu.bytes_left()))
    }

    /// Returns warnings about a valid spec, each with its subject; equal warnings of several GPUs are shown once.
    pub(super) fn warnings(&self) -> Vec<(String, String)> {
        let gpus = || self.prediction.iter().flat_map(|prediction| &prediction.gpus);
        let contexts = gpus().filter_map(|gpu| Some(("Memory limit".to_owned(), gpu.below_context.clone()?)));
        let mut warnings: Vec<_> = contexts.collect();
        warnings.dedup();
        warnings.extend(gpus().filter_map(|gpu| Some((format!("GPU {}", gpu.index), over_committed(gpu)?))));
        warnings.extend(self.unplaced.iter().map(|why| ("Partition".to_owned(), why.clone())));
        warnings
    }
}

/// The partitions that a layout binds a tenant to.
pub(super) fn places(name: &TenantName, daemon: Option<&DaemonView>) -> Vec<PartitionStatus> {
    let layout = daemon.and_then(|daemon| daemon.status.as_ref()?.layout.as_ref());
    let partitions = layout.into_iter().flat_map(|layout| &layout.partitions);
    partitions.filter(|partition| partition.tenants.contains(name)).cloned().collect()
}

/// The limit of a process on a GPU.
pub(super) fn limit(gpu: &GpuPrediction) -> String {
    amount(gpu.limit.map(MemoryLimit::bytes).or(gpu.memory))
}

/// An amount of memory, where it is known.
pub(super) fn amount(bytes: Option<u64>) -> String {
    or("all of its memory", bytes.map(Amount))
}
