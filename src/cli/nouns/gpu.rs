use super::Noun;
use crate::cli::output::{ListField, TableCell, word};
use crate::domain::memory::Bytes;
use crate::domain::vitals::GpuVitals;
use crate::service::host::{GpuProcessView, GpuView};
use crate::words::{bytes, gpu as words};

type Field = ListField<GpuView>;

/// GPUs; a completion offers their indices.
pub(in crate::cli) static GPU: Noun<GpuView> = Noun {
    candidate: |gpu| {
        let name = gpu.place().map_or_else(|| gpu.uuid.to_string(), |index| index.to_string());
        Some((name, gpu.name.clone().unwrap_or_default()))
    },
    has_pages: false,
    incidents: Some(|gpu| vec![("gpu", Some(gpu.uuid.to_string()))]),
    ..Noun::new(
        ["gpu", "GPUs", "/api/v1/gpus"],
        |gpu| gpu.uuid.to_string(),
        &[
            Field::both("GPU", "GPU", |gpu| index_or_address(gpu).into()),
            Field::detail("UUID", |gpu| gpu.uuid.to_string().into()),
            Field::both("NAME", "Name", |gpu| TableCell::optional(gpu.name.as_deref())).cut().rank(5),
            Field::detail("State", |gpu| TableCell::state(words::state(gpu))),
            Field::detail("PCI address", |gpu| TableCell::optional(gpu.pci_bus_id.as_deref())),
            Field::both("SMS", "SMs", |gpu| TableCell::optional(gpu.sms)).rank(4),
            Field::both("MEMORY", "Memory", |gpu| words::memory(gpu).into()).rank(2),
            Field::column("LIMITS", |gpu| Bytes(gpu.memory_limits).to_string().into()).rank(3),
            Field::detail("Memory limits", |gpu| words::limits(gpu).into()),
            Field::both("COMPUTE MODE", "Compute mode", |gpu| {
                TableCell::optional(gpu.compute_mode.map(word))
            })
            .rank(6),
            Field::both("DAEMON", "Daemon", |gpu| TableCell::optional(gpu.daemon.as_ref())),
            Field::column("STATE", |gpu| TableCell::state(words::state(gpu))).rank(1),
            Field::wide("UTIL", |gpu| {
                of_vitals(gpu, |vitals| Some(format!("{} %", vitals.utilization_percent?)))
            }),
            Field::wide("POWER", |gpu| {
                of_vitals(gpu, |vitals| Some(format!("{:.0} W", vitals.power_watts?)))
            }),
            Field::wide("TEMP", |gpu| {
                of_vitals(gpu, |vitals| Some(format!("{} °C", vitals.temperature_celsius?)))
            }),
            Field::rows(|gpu| {
                let Some(vitals) = &gpu.vitals else { return Vec::new() };
                let signs = words::signs(vitals).into_iter().map(|(label, sign, _)| (label, sign));
                words::figures(vitals).into_iter().chain(signs).collect()
            }),
            Field::wide("PCI", |gpu| TableCell::optional(gpu.pci_bus_id.as_deref())),
            Field::wide("UUID", |gpu| gpu.uuid.to_string().into()),
            Field::rows(|gpu| {
                let processes = gpu.processes.iter().flatten();
                let row = |process: &GpuProcessView| {
                    let (memory, kind) = (bytes(process.used_memory), word(process.kind));
                    let command = process.command.as_deref().unwrap_or("-");
                    ("Process", format!("{}  {kind}  {memory}  {command}", process.pid))
                };
                processes.map(row).collect()
            }),
        ],
    )
};

/// Returns the cell of one of its vitals.
fn of_vitals(gpu: &GpuView, figure: fn(&GpuVitals) -> Option<String>) -> TableCell {
    TableCell::optional(gpu.vitals.as_ref().and_then(figure))
}

/// Returns the index of a GPU, or what names a missing one whose index another one has now: its PCI address, or the UUID of a MIG instance.
fn index_or_address(gpu: &GpuView) -> String {
    let address =
        || gpu.pci_bus_id.clone().filter(|_| gpu.mig.is_none()).unwrap_or_else(|| gpu.uuid.to_string());
    gpu.place().map_or_else(address, |index| index.to_string())
}
