//! What a tenant would get, beside the form in which somebody describes it.

use super::super::words::Amount;
use crate::domain::MemoryLimit;
use crate::domain::daemon::Mode;
use crate::domain::prediction::{Outlook, Prediction};

/// What the form shows of it.
#[derive(Default)]
pub(super) struct Outcome {
    /// What is known of each GPU; `None` where nothing can be told yet.
    pub(super) prediction: Option<Prediction>,
    /// What would be refused, by field where it is of one.
    pub(super) refusals: Vec<(String, String)>,
    /// Whether nobody has typed anything yet: what is missing then is no mistake.
    pub(super) is_untouched: bool,
}

impl Outcome {
    pub(super) fn is_static(&self) -> bool {
        self.prediction.as_ref().is_some_and(|told| told.mode == Mode::Static)
    }

    /// Why no client could start, though nothing would be refused; the same for several GPUs is said once.
    pub(super) fn warnings(&self) -> Vec<&str> {
        let gpus = self.prediction.iter().flat_map(|told| &told.gpus);
        let mut warnings: Vec<&str> = gpus.filter_map(|gpu| gpu.below_context.as_deref()).collect();
        warnings.dedup();
        warnings
    }

    pub(super) fn gpus(&self) -> impl Iterator<Item = OutlookRow<'_>> {
        self.prediction.iter().flat_map(|told| told.gpus.iter().map(move |gpu| OutlookRow { told, gpu }))
    }
}

/// A GPU of the tenant.
pub(super) struct OutlookRow<'a> {
    told: &'a Prediction,
    pub(super) gpu: &'a Outlook,
}

impl OutlookRow<'_> {
    pub(super) fn sms(&self) -> String {
        match (self.gpu.sms, self.gpu.total_sms) {
            _ if self.told.mode == Mode::Static => "those of its partition".to_owned(),
            (Some(sms), Some(total)) => format!("{sms} of {total}"),
            _ => "not known".to_owned(),
        }
    }

    pub(super) fn how(&self) -> String {
        match self.told.percentage {
            Some(_) if !self.gpu.is_measured => "predicted; not measured on this kind of GPU".to_owned(),
            Some(percentage) => format!("{percentage} %, as measured on this kind of GPU"),
            None => String::new(),
        }
    }

    pub(super) fn limit(&self) -> Amount {
        Amount(self.told.limit.map_or(self.gpu.memory, MemoryLimit::bytes))
    }

    pub(super) fn usable(&self) -> Option<Amount> {
        self.gpu.usable.map(Amount)
    }

    pub(super) fn context(&self) -> Option<Amount> {
        self.gpu.context.map(Amount)
    }

    pub(super) fn allowed(&self) -> Amount {
        Amount(self.gpu.allowed)
    }

    pub(super) fn promised(&self) -> Amount {
        Amount(self.gpu.promised)
    }

    pub(super) fn budget(&self) -> Amount {
        Amount(self.gpu.budget)
    }

    pub(super) fn left(&self) -> Option<Amount> {
        self.gpu.left().map(Amount)
    }

    pub(super) fn over(&self) -> Amount {
        Amount(self.gpu.over())
    }

    pub(super) fn ceiling(&self) -> u32 {
        self.told.ceiling
    }
}
