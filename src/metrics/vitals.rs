//! Families about the vitals of GPUs.

use std::fmt;

use prometheus_client::registry::Unit;

use super::families::{Families, number};
use super::snapshot::MetricsSnapshot;
use crate::domain::vitals::GpuVitals;

/// Reads a figure from the vitals of a GPU, if the driver reports it.
type Figure = fn(&GpuVitals) -> Option<f64>;

pub(super) fn encode(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    let each = || snapshot.vitals.iter().map(|(gpu, vitals)| ([("gpu", gpu.to_string())], vitals));
    let watts = || Unit::Other("watts".to_owned());
    let gauges: [(Unit, &str, &str, Figure); 6] = [
        (
            Unit::Other("ratio".to_owned()),
            "gpu_utilization",
            "Share of the time in which any kernel ran on the GPU, from 0 to 1, by NVML",
            |vitals| vitals.utilization_percent.map(|percent| f64::from(percent) / 100.0),
        ),
        (watts(), "gpu_power_draw", "Power draw of the board, by NVML", |vitals| vitals.power_watts),
        (watts(), "gpu_power_limit", "Power limit that is enforced, by NVML", |vitals| {
            vitals.power_limit_watts
        }),
        (Unit::Celsius, "gpu_temperature", "Temperature of the die, by NVML", |vitals| {
            vitals.temperature_celsius.map(f64::from)
        }),
        (
            Unit::Celsius,
            "gpu_slowdown_temperature",
            "Temperature at which the GPU slows itself down, by NVML",
            |vitals| vitals.slowdown_celsius.map(f64::from),
        ),
        (Unit::Other("hertz".to_owned()), "gpu_sm_clock", "Clock of the SMs, by NVML", |vitals| {
            vitals.sm_clock_mhz.map(|clock| f64::from(clock) * 1e6)
        }),
    ];
    for (unit, name, help, figure) in gauges {
        let samples = each().filter_map(|(gpu, vitals)| Some((gpu, figure(vitals)?)));
        families.gauges_in(unit, name, help, samples)?;
    }
    families.gauges(
        "gpu_uncorrected_ecc_errors",
        "Uncorrected ECC errors since the driver was loaded, by NVML",
        each().filter_map(|(gpu, vitals)| Some((gpu, number(vitals.uncorrected_ecc_errors?)))),
    )?;
    families.counters(
        "gpu_xids",
        "Errors of the GPU in the kernel's log (Xid) since the manager started; absent if the log cannot be read",
        each().filter_map(|(gpu, vitals)| Some((gpu, vitals.xids?))),
    )?;
    families.gauges(
        "gpu_throttled",
        "1 for each reason that holds the clocks of the GPU down, by NVML",
        each().flat_map(|([gpu], vitals)| {
            let reasons = vitals.throttle_reasons.iter().flatten();
            reasons.map(move |reason| ([gpu.clone(), ("reason", reason.as_str().to_owned())], 1.0))
        }),
    )
}
