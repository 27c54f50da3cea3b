//! A GPU as lists and its page show it.

use crate::domain::GpuUuid;
use crate::domain::count::{counted, joined};
use crate::http::pages::format::{Amount, Gauge, or_dash};
use crate::http::pages::sharing::SharingPicture;
use crate::service::host::{GpuProcessKind, GpuView};

/// A GPU as lists and its page show it.
pub(in crate::http::pages) struct GpuRow {
    pub(in crate::http::pages) gpu: GpuView,
    /// Its memory; `None` if it is missing.
    pub(in crate::http::pages) memory: Option<Gauge>,
    /// Processes that bypass MPS.
    pub(in crate::http::pages) bypasses: usize,
    /// Its MLOPart devices, where a card shows them with it.
    pub(in crate::http::pages) devices: Vec<GpuRow>,
}

/// A GPU with the picture of who shares it, if a daemon has it.
pub(in crate::http::pages) type PicturedGpu = (GpuRow, Option<SharingPicture>);

/// Text for a missing value of a GPU that is present.
const NOT_REPORTED: &str = "not reported by this driver";

impl GpuRow {
    pub(in crate::http::pages) fn of(gpu: GpuView) -> Self {
        let memory = gpu.memory_total.zip(gpu.memory_used);
        let gauge =
            |(total, used)| Gauge::new(used, gpu.memory_limits, total).with_capacity(gpu.memory_capacity);
        let memory = memory.map(gauge);
        let bypass = |kind: &GpuProcessKind| *kind == GpuProcessKind::Bypass;
        let bypasses = gpu.processes.iter().flatten().filter(|process| bypass(&process.kind)).count();
        Self { gpu, memory, bypasses, devices: Vec::new() }
    }

    /// Its display name.
    pub(in crate::http::pages) fn called(&self) -> String {
        let missing = if self.gpu.present { "" } else { " (missing)" };
        match (self.gpu.place(), &self.gpu.pci_bus_id) {
            (Some(index), _) => format!("GPU {index}{missing}"),
            (None, Some(pci)) if self.gpu.mig.is_none() => format!("GPU at PCI {pci}{missing}"),
            (None, _) => self.gpu.uuid.to_string(),
        }
    }

    /// Returns true if it can be given to a daemon.
    pub(in crate::http::pages) fn is_free(&self) -> bool {
        self.gpu.daemon.is_none() && !self.is_in_mig_mode()
    }

    /// The last segment of its page's address, which survives a reboot.
    pub(in crate::http::pages) fn key(&self) -> &GpuUuid {
        &self.gpu.uuid
    }

    /// Its model; the profile of a MIG instance, whose GPU has the model.
    pub(in crate::http::pages) fn product(&self) -> String {
        let profile = self.gpu.mig.as_ref().and_then(|instance| instance.profile.as_ref());
        or_dash(profile.or(self.gpu.name.as_ref()))
    }

    /// Returns true for a GPU in MIG mode, whose instances daemons have in its place.
    pub(in crate::http::pages) fn is_in_mig_mode(&self) -> bool {
        self.gpu.mig_enabled == Some(true)
    }

    /// Returns true for a MIG instance or an MLOPart device of a GPU.
    pub(in crate::http::pages) fn is_part_of(&self, gpu: &GpuUuid) -> bool {
        self.whole() == Some(gpu)
    }

    /// The GPU of a MIG instance or an MLOPart device; `None` for a GPU.
    pub(in crate::http::pages) fn whole(&self) -> Option<&GpuUuid> {
        let mig = self.gpu.mig.as_ref().map(|instance| &instance.parent);
        mig.or(self.gpu.mlopart.as_ref().map(|device| &device.gpu))
    }

    /// Describes the SMs and memory that clients saw of an MLOPart device, and the limits of its tenants.
    pub(in crate::http::pages) fn device_facts(&self) -> String {
        let gpu = &self.gpu;
        let amounts =
            [gpu.sms.map(|sms| counted(sms, "SM")), gpu.memory_total.map(|total| Amount(total).to_string())];
        let seen = joined(amounts.into_iter().flatten(), " and ");
        let seen =
            if seen.is_empty() { "not verified yet".to_owned() } else { format!("a client saw {seen}") };
        let limits = (gpu.memory_limits > 0).then(|| format!("limits {}", Amount(gpu.memory_limits)));
        let unlimited = (gpu.tenants_without_limit > 0)
            .then(|| format!("{} without a limit", counted(gpu.tenants_without_limit, "tenant")));
        joined([Some(seen), limits, unlimited].into_iter().flatten(), "; ")
    }

    /// A fact of the driver's, which does not report each of every GPU.
    pub(super) fn fact<T: std::fmt::Display>(&self, value: Option<T>) -> String {
        match value {
            None if self.gpu.present => NOT_REPORTED.to_owned(),
            value => or_dash(value),
        }
    }

    /// Returns the reason for which its memory is not known.
    pub(in crate::http::pages) fn without_memory(&self) -> &'static str {
        if self.gpu.present { NOT_REPORTED } else { "missing" }
    }
}

/// Describes the MIG mode of a GPU: how many instances it has, and how many of them have daemons.
pub(in crate::http::pages) fn mig_mode(gpu: &GpuUuid, host: &[PicturedGpu]) -> String {
    let rows = host.iter().map(|(row, _)| row);
    let instances: Vec<&GpuRow> = rows.filter(|row| row.is_part_of(gpu)).collect();
    let all = counted(instances.len(), "instance");
    match instances.iter().filter(|row| row.gpu.daemon.is_some()).count() {
        _ if instances.is_empty() => "In MIG mode, without an instance".to_owned(),
        0 => format!("In MIG mode: {all}, none with a daemon"),
        held if held == instances.len() => format!("In MIG mode: {all}, each with a daemon"),
        held => format!("In MIG mode: {all}, {held} with a daemon"),
    }
}

/// The GPUs that can be given to a daemon.
pub(in crate::http::pages) fn unheld(gpus: &[GpuRow]) -> Vec<&GpuRow> {
    gpus.iter().filter(|row| row.is_free()).collect()
}

/// The display names of the host's GPUs.
#[derive(Default)]
pub(in crate::http::pages) struct GpuDisplayNames(Vec<(GpuUuid, String)>);

impl GpuDisplayNames {
    pub(in crate::http::pages) fn of(gpus: &[GpuRow]) -> Self {
        Self(gpus.iter().map(|row| (row.key().clone(), row.called())).collect())
    }

    /// The display name of a GPU; the UUID of one that is not among them.
    pub(in crate::http::pages) fn name(&self, uuid: &GpuUuid) -> String {
        let named = self.0.iter().find(|(gpu, _)| gpu == uuid);
        named.map_or_else(|| uuid.to_string(), |(_, called)| called.clone())
    }
}
