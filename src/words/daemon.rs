//! A daemon's servers and settings in words.

use crate::domain::{DeviceMemoryLimit, GpuUuid};
use crate::service::daemons::DaemonView;

/// Returns the PID and the state of each server.
pub(crate) fn servers(daemon: &DaemonView) -> Vec<String> {
    let effective = daemon.status.as_ref().and_then(|status| status.effective.as_ref());
    let servers = effective.map(|effective| effective.servers.as_slice()).unwrap_or_default();
    servers.iter().map(|server| format!("{} {}", server.pid, server.status)).collect()
}

/// Returns a memory limit: one for all GPUs, or each with its GPU.
pub(crate) fn memory_limit(limit: &DeviceMemoryLimit, name: impl Fn(&GpuUuid) -> String) -> String {
    match limit {
        DeviceMemoryLimit::Same(limit) => limit.to_string(),
        DeviceMemoryLimit::PerGpu(limits) => {
            let limits = limits.iter().map(|(gpu, limit)| format!("{}: {limit}", name(gpu)));
            limits.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Returns the admission mode; if tenants reserve memory, with the over-commit ratio.
pub(crate) fn admission(daemon: &DaemonView) -> String {
    let spec = &daemon.spec;
    let admission = spec.admission.as_str();
    if spec.reserves() {
        format!("{admission}, memory × {}", f64::from(spec.memory_overcommit))
    } else {
        admission.to_owned()
    }
}

/// Returns the provisioning strategy, with its meaning for clients if the daemon's status reports it.
pub(crate) fn provisioning(daemon: &DaemonView) -> String {
    let strategy = daemon.spec.provisioning.strategy.as_str();
    let status = daemon.status.as_ref().and_then(|status| status.provisioning.as_ref());
    status.map_or_else(|| strategy.to_owned(), |status| format!("{strategy}. {}", status.meaning()))
}
