//! Limits of the GPU itself that a daemon and its tenants have to fit: features that its generation lacks, the number of clients that it
//! takes, and values that its driver does not report.

use super::refusal::AdmissionError;
use crate::daemon::{DaemonSpec, Mode};
use crate::gpu::Gpu;
use crate::provisioning::ProvisioningStrategy;
use crate::tenant::Sharer;
use crate::{DeviceMemoryLimit, ThreadPercentage};

/// Refuses a daemon that expects more clients than its GPUs take. It is not checked when a tenant is written, which cannot change it.
pub fn expected_clients_fit(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpus: &[Gpu],
    ceiling: u32,
) -> Result<(), AdmissionError> {
    let Some(expected) = daemon.provisioning.expected_clients else { return Ok(()) };
    for gpu in gpus.iter().filter(|gpu| daemon.gpus.contains(&gpu.uuid)) {
        let ceiling = gpu.client_ceiling(ceiling);
        if expected > ceiling {
            let detail = format!(
                "daemon {daemon_name} has expected_clients {expected} (clients_per_gpu in a template), and {}",
                takes(gpu, ceiling)
            );
            return Err(AdmissionError { field: "daemon", detail });
        }
    }
    Ok(())
}

/// Returns the end of a refusal: the number of clients that a GPU takes, and the remedy.
pub(super) fn takes(gpu: &Gpu, ceiling: u32) -> String {
    format!("GPU {} ({}) takes {ceiling} {}: give at most that", gpu.index, gpu.name, why_so_many(gpu))
}

/// Returns the reason why a GPU takes so many clients.
pub(super) fn why_so_many(gpu: &Gpu) -> &'static str {
    match gpu.mig {
        Some(_) => "in proportion to the size of the instance",
        None if gpu.is_before_volta() => "as every GPU before Volta",
        None => "with this version of MPS",
    }
}

/// Refuses a compute mode that could neither be read back nor restored.
pub(super) fn has_compute_mode(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpu: &Gpu,
) -> Result<(), AdmissionError> {
    if daemon.compute_mode.is_none() || !gpu.present || gpu.compute_mode.is_some() {
        return Ok(());
    }
    Err(AdmissionError {
        field: "daemon",
        detail: format!(
            "daemon {daemon_name} has a compute_mode, and the driver does not report that of GPU {} ({}), so it could not be restored: leave \
             compute_mode out",
            gpu.index, gpu.name
        ),
    })
}

/// Refuses static partitions on GPUs that have none (NVIDIA's documentation).
pub(super) fn static_before_ampere(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpu: &Gpu,
) -> Result<(), AdmissionError> {
    match gpu.compute_capability.filter(|_| daemon.mode == Mode::Static && gpu.is_before_ampere()) {
        None => Ok(()),
        Some(capability) => Err(AdmissionError {
            field: "daemon",
            detail: format!(
                "daemon {daemon_name} is in static mode, and GPU {} ({}) is of compute capability {capability}: static partitions need 8.0 (Ampere) or \
                 later; use mode shared",
                gpu.index, gpu.name
            ),
        }),
    }
}

/// Refuses settings that MPS does not support on GPUs before Volta: it would accept them there and enforce nothing (NVIDIA's
/// documentation).
pub(super) fn before_volta(
    daemon_name: &str,
    daemon: &DaemonSpec,
    gpu: &Gpu,
    on_gpu: &[&Sharer<'_>],
) -> Result<(), AdmissionError> {
    if !gpu.is_before_volta() {
        return Ok(());
    }
    let limits =
        |limit: &Option<DeviceMemoryLimit>| limit.as_ref().is_some_and(|limit| limit.on(&gpu.uuid).is_some());
    let divides =
        |share: Option<ThreadPercentage>| share.is_some_and(|share| share != ThreadPercentage::FULL);
    let tenant_field = on_gpu.iter().find_map(|(name, tenant)| {
        let field = match tenant {
            tenant if limits(&tenant.device_memory_limit) => "device_memory_limit",
            tenant if tenant.sms.is_some() => "sms",
            tenant if divides(tenant.active_thread_percentage) => "active_thread_percentage",
            _ => return None,
        };
        Some((field, format!("tenant {name} has {field}")))
    });
    let defaults = &daemon.defaults;
    let daemon_field = match daemon {
        daemon if daemon.multi_user => Some("multi_user"),
        _ if limits(&defaults.device_memory_limit) => Some("defaults.device_memory_limit"),
        _ if divides(defaults.active_thread_percentage) => Some("defaults.active_thread_percentage"),
        daemon if daemon.provisioning.strategy != ProvisioningStrategy::None => Some("provisioning"),
        _ => None,
    };
    let daemon_field = daemon_field.map(|field| ("daemon", format!("daemon {daemon_name} has {field}")));
    let Some((field, who)) = tenant_field.or(daemon_field) else { return Ok(()) };
    let capability = gpu.compute_capability.map(|capability| capability.to_string()).unwrap_or_default();
    Err(AdmissionError {
        field,
        detail: format!(
            "{who}, and GPU {} ({}) is of compute capability {capability}: before 7.0 (Volta) MPS has no memory limits, no shares of the SMs and \
             one user at a time, so that it would hold nobody; leave it out, or use a newer GPU",
            gpu.index, gpu.name
        ),
    })
}
