//! What a tenant would get, shown beside its form.

use super::super::format::Amount;
use crate::domain::MemoryLimit;
use crate::domain::count::counted;
use crate::domain::daemon::{AdmissionMode, Mode};
use crate::domain::prediction::{GpuPrediction, Prediction};
use crate::domain::provisioning::ProvisioningStatus;

/// The prediction that the form shows.
#[derive(Default)]
pub(super) struct PredictionView {
    /// The prediction per GPU; `None` if none is possible yet.
    pub(super) prediction: Option<Prediction>,
    /// Errors, by field if they belong to one.
    pub(super) refusals: Vec<(String, String)>,
    /// Whether the form is still untouched, when missing values are no errors.
    pub(super) is_untouched: bool,
}

impl PredictionView {
    pub(super) fn is_static(&self) -> bool {
        self.prediction.as_ref().is_some_and(|prediction| prediction.mode == Mode::Static)
    }

    /// Why no client could start although the spec is valid; equal warnings of several GPUs are shown once.
    pub(super) fn warnings(&self) -> Vec<&str> {
        let gpus = self.prediction.iter().flat_map(|prediction| &prediction.gpus);
        let mut warnings: Vec<&str> = gpus.filter_map(|gpu| gpu.below_context.as_deref()).collect();
        warnings.dedup();
        warnings
    }

    /// The shares that the daemon's strategy would give.
    pub(super) fn provisioning(&self) -> Option<&ProvisioningStatus> {
        self.prediction.as_ref()?.provisioning.as_ref()
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = OutlookRow<'_>> {
        self.prediction
            .iter()
            .flat_map(|prediction| prediction.gpus.iter().map(move |gpu| OutlookRow { prediction, gpu }))
    }
}

/// A GPU of the tenant.
pub(super) struct OutlookRow<'a> {
    prediction: &'a Prediction,
    pub(super) gpu: &'a GpuPrediction,
}

impl OutlookRow<'_> {
    pub(super) fn sms(&self) -> String {
        match (self.gpu.sms, self.gpu.total_sms) {
            _ if self.prediction.mode == Mode::Static => "those of its partition".to_owned(),
            (Some(sms), Some(total)) => format!("{sms} of {total}"),
            _ => "unknown".to_owned(),
        }
    }

    pub(super) fn how(&self) -> String {
        match self.prediction.percentage {
            Some(_) if !self.gpu.is_measured => "predicted; not measured on this kind of GPU".to_owned(),
            Some(percentage) => format!("{percentage} %, as measured on this kind of GPU"),
            None => String::new(),
        }
    }

    pub(super) fn limit(&self) -> String {
        words(self.gpu.limit.map(MemoryLimit::bytes).or(self.gpu.memory))
    }

    pub(super) fn usable(&self) -> Option<Amount> {
        self.gpu.usable.map(Amount)
    }

    pub(super) fn context(&self) -> Option<Amount> {
        self.gpu.context.map(Amount)
    }

    pub(super) fn allowed(&self) -> String {
        words(self.gpu.allowed)
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.prediction.admission == AdmissionMode::Reserved
    }

    pub(super) fn others(&self) -> Amount {
        Amount(self.gpu.others)
    }

    pub(super) fn others_without_limit(&self) -> String {
        counted(self.gpu.others_without_limit, "tenant")
    }

    pub(super) fn own(&self) -> Option<Amount> {
        self.gpu.own.map(Amount)
    }

    pub(super) fn sum(&self) -> Amount {
        Amount(self.gpu.sum())
    }

    pub(super) fn left(&self) -> Option<Amount> {
        self.gpu.left().map(Amount)
    }

    pub(super) fn over(&self) -> Amount {
        Amount(self.gpu.over())
    }

    pub(super) fn ceiling(&self) -> u32 {
        self.prediction.ceiling
    }
}

/// An amount of memory, where it is known.
fn words(bytes: Option<u64>) -> String {
    bytes.map_or_else(
        || "memory that the driver does not report".to_owned(),
        |bytes| Amount(bytes).to_string(),
    )
}
