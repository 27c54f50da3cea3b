//! A GPU as lists and its page show it.

use crate::domain::GpuUuid;
use crate::http::AppState;
use crate::http::pages::format::{Gauge, compute_mode, or_dash};
use crate::service::ServiceError;
use crate::service::access::context::RequestContext;
use crate::service::host::{GpuProcessKind, GpuView};

/// A GPU as lists and its page show it.
pub(in crate::http::pages) struct GpuRow {
    pub(in crate::http::pages) gpu: GpuView,
    /// Its memory; `None` if it is missing.
    pub(in crate::http::pages) memory: Option<Gauge>,
    /// Processes that bypass MPS.
    pub(in crate::http::pages) bypasses: usize,
}

/// Text for a missing value of a GPU that is present.
const NOT_REPORTED: &str = "not reported by this driver";

impl GpuRow {
    /// All GPUs of the host.
    pub(in crate::http::pages) async fn all(
        app: &AppState,
        ctx: &RequestContext,
    ) -> Result<Vec<Self>, ServiceError> {
        Ok(app.service.gpu_views(ctx).await?.into_iter().map(Self::of).collect())
    }

    pub(in crate::http::pages) fn of(gpu: GpuView) -> Self {
        let memory = gpu.memory_total.zip(gpu.memory_used);
        let gauge =
            |(total, used)| Gauge::new(used, gpu.memory_limits, total).with_capacity(gpu.memory_capacity);
        let memory = memory.map(gauge);
        let bypass = |kind: &GpuProcessKind| *kind == GpuProcessKind::Bypass;
        let bypasses = gpu.processes.iter().flatten().filter(|process| bypass(&process.kind)).count();
        Self { gpu, memory, bypasses }
    }

    /// Its display name.
    pub(in crate::http::pages) fn called(&self) -> String {
        let missing = if self.gpu.present { "" } else { " (missing)" };
        match (self.gpu.index, &self.gpu.pci_bus_id) {
            (Some(index), _) => format!("GPU {index}{missing}"),
            (None, Some(pci)) => format!("GPU at PCI {pci}{missing}"),
            (None, None) => self.gpu.uuid.to_string(),
        }
    }

    /// The last segment of its page's address, which survives a reboot.
    pub(in crate::http::pages) fn key(&self) -> &GpuUuid {
        &self.gpu.uuid
    }

    pub(in crate::http::pages) fn product(&self) -> String {
        or_dash(self.gpu.name.as_ref())
    }

    pub(super) fn sms(&self) -> String {
        self.fact(self.gpu.sms)
    }

    pub(super) fn capability(&self) -> String {
        self.fact(self.gpu.compute_capability)
    }

    pub(super) fn bus(&self) -> String {
        self.fact(self.gpu.pci_bus_id.as_ref())
    }

    pub(super) fn compute_mode(&self) -> String {
        self.fact(self.gpu.compute_mode.map(compute_mode))
    }

    /// A fact of the driver's, which does not report each of every GPU.
    fn fact<T: std::fmt::Display>(&self, value: Option<T>) -> String {
        match value {
            None if self.gpu.present => NOT_REPORTED.to_owned(),
            value => or_dash(value),
        }
    }

    /// Returns the reason for which its memory is not known.
    pub(in crate::http::pages) fn without_memory(&self) -> &'static str {
        if self.gpu.present { NOT_REPORTED } else { "missing" }
    }

    pub(super) fn mig(&self) -> &'static str {
        match self.gpu.mig_enabled {
            Some(true) => "on: listed, but not managed",
            Some(false) => "off",
            None => "–",
        }
    }
}

/// The display names of the GPUs; users without access to the host get none.
pub(in crate::http::pages) async fn names(app: &AppState, ctx: &RequestContext) -> Vec<(GpuUuid, String)> {
    let gpus = GpuRow::all(app, ctx).await.unwrap_or_default();
    gpus.into_iter().map(|row| (row.key().clone(), row.called())).collect()
}

/// The display name of one of these GPUs, or the UUID of another.
pub(in crate::http::pages) fn called(gpus: &[GpuRow], uuid: &GpuUuid) -> String {
    let known = gpus.iter().find(|row| row.gpu.uuid == *uuid);
    known.map_or_else(|| uuid.to_string(), GpuRow::called)
}

/// GPUs with their display names.
pub(in crate::http::pages) fn named<'u>(
    gpus: &[GpuRow],
    uuids: impl IntoIterator<Item = &'u GpuUuid>,
) -> Vec<(GpuUuid, String)> {
    uuids.into_iter().map(|uuid| (uuid.clone(), called(gpus, uuid))).collect()
}

/// The display name of a GPU, or its UUID.
pub(in crate::http::pages) fn name_of(names: &[(GpuUuid, String)], uuid: &GpuUuid) -> String {
    let known = names.iter().find(|(gpu, _)| gpu == uuid);
    known.map_or_else(|| uuid.to_string(), |(_, called)| called.clone())
}
