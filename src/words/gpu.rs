//! A GPU's memory and state in words.

use super::bytes;
use crate::domain::count::{counted, joined};
use crate::domain::memory::Bytes;
use crate::domain::sharing::{Left, SmsLeft};
use crate::domain::vitals::GpuVitals;
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

/// A driver under MPS attributes utilisation to the server alone.
pub(crate) const UTILIZATION_OF_TENANTS: &str = "Utilisation of each tenant is not reported by this driver.";

/// Returns the figures that the driver reports, each with its label.
pub(crate) fn figures(of: &GpuVitals) -> Vec<(&'static str, String)> {
    let limit = of.power_limit_watts.map(|limit| format!(" of {limit:.0} W")).unwrap_or_default();
    let slowdown = of.slowdown_celsius.map(|limit| format!(", slows down at {limit} °C")).unwrap_or_default();
    let figures = [
        ("Utilisation", of.utilization_percent.map(|percent| format!("{percent} %"))),
        ("Power", of.power_watts.map(|power| format!("{power:.0} W{limit}"))),
        ("Temperature", of.temperature_celsius.map(|celsius| format!("{celsius} °C{slowdown}"))),
    ];
    figures.into_iter().filter_map(|(label, figure)| Some((label, figure?))).collect()
}

/// Returns the clock and the signs of faults that are known, each with its label, and with true for a fault.
pub(crate) fn signs(of: &GpuVitals) -> Vec<(&'static str, String, bool)> {
    let throttled = of.throttle_reasons.as_ref().map(|reasons| {
        let words = joined(reasons.iter().map(|reason| reason.words()), ", ");
        (if reasons.is_empty() { "no".to_owned() } else { words }, !reasons.is_empty())
    });
    let count = |count: Option<u64>| count.map(|count| (count.to_string(), count > 0));
    let signs = [
        ("SM clock", of.sm_clock_mhz.map(|clock| (format!("{clock} MHz"), false))),
        ("Throttled", throttled),
        ("Uncorrected ECC errors", count(of.uncorrected_ecc_errors)),
        ("Xids", count(of.xids)),
    ];
    signs.into_iter().filter_map(|(label, sign)| sign.map(|(words, is_bad)| (label, words, is_bad))).collect()
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

/// Returns what is left to give of a GPU, as `16 SMs in 2 chunks and 59.8 GiB left to give`, or by how much the limits exceed its memory;
/// empty where neither is known.
pub(crate) fn left(left: Left) -> String {
    let sms = match left.sms {
        SmsLeft::Static { chunks: 0, .. } => Some("no SMs".to_owned()),
        SmsLeft::Static { chunks, sms } => {
            Some(format!("{} in {}", counted(sms, "SM"), counted(chunks, "chunk")))
        }
        SmsLeft::Shared(sms) if sms > 0 => Some(counted(sms, "SM")),
        SmsLeft::Shared(_) | SmsLeft::Undivided => None,
    };
    match (left.bytes, sms) {
        (Some(bytes), _) if bytes < 0 => {
            format!("Limits exceed its memory by {}", Bytes(bytes.unsigned_abs()))
        }
        (Some(bytes), Some(sms)) => format!("{sms} and {} left to give", Bytes(bytes.unsigned_abs())),
        (Some(bytes), None) => format!("{} left to give", Bytes(bytes.unsigned_abs())),
        (None, Some(sms)) => format!("{sms} left to give"),
        (None, None) => String::new(),
    }
}
