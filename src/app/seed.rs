//! Example content of a new simulated host: a daemon for each GPU and two example tenants.

use std::path::Path;
use std::sync::Arc;

use super::{StartupError, refused};
use crate::domain::audit::Target;
use crate::domain::daemon::{DaemonSpec, DesiredState};
use crate::domain::gpu::{Gpu, GpuRef};
use crate::domain::{DaemonName, TenantName};
use crate::gpu::Inventory;
use crate::service::access::context::RequestContext;
use crate::service::{Service, ServiceError, WriteOptions};

/// Marker file during the seeding of a new simulated host: after a crash the next manager continues.
pub(super) const SEEDING: &str = "seeding";

/// Memory of a GPU below which the limits of the example tenants are lowered.
const EXAMPLE_MEMORY: u64 = 40 << 30;

/// Adds the daemons and tenants that are not there yet.
pub(super) async fn seed_simulated_host(
    service: &Service,
    inventory: &Arc<dyn Inventory>,
    daemons: DesiredState,
    unfinished: &Path,
) -> Result<(), StartupError> {
    let begun = std::fs::write(unfinished, "");
    begun.map_err(|error| StartupError(format!("{}: {error}", unfinished.display())))?;
    let new = WriteOptions { must_be_new: true, ..WriteOptions::default() };
    let gpus = inventory.gpus().map_err(refused)?;
    // Of a GPU in MIG mode the instances have daemons.
    let gpus: Vec<Gpu> = gpus.into_iter().filter(|gpu| !gpu.mig_enabled).collect();
    for gpu in &gpus {
        let name = DaemonName::parse(&gpu.index.daemon_name()).map_err(refused)?;
        let spec =
            DaemonSpec { desired_state: daemons, ..DaemonSpec::of(vec![GpuRef(gpu.uuid.to_string())]) };
        let ctx = RequestContext::of_manager(service.clock(), "seed", Target::Daemon(name.clone()));
        accept_existing(service.put_daemon(&ctx, name, spec, new.clone()).await)?;
    }
    let tenants = [
        (
            "demo",
            r#"{"device_memory_limit": "4G", "max_clients": 1, "active_thread_percentage": 25, "labels": {"example": "true"}}"#,
        ),
        (
            "batch",
            r#"{"device_memory_limit": "8G", "max_clients": 4, "sms": 66, "priority": "below_normal", "labels": {"example": "true"}}"#,
        ),
    ];
    let first = gpus.first();
    let sms = first.and_then(|gpu| gpu.sms);
    let is_small = first.is_some_and(|gpu| gpu.memory_total.is_some_and(|total| total < EXAMPLE_MEMORY));
    for (name, json) in tenants {
        let mut value: serde_json::Value = serde_json::from_str(json).map_err(refused)?;
        if let Some(most) = sms
            && value["sms"].as_u64().is_some_and(|wanted| wanted > u64::from(most))
        {
            // The example is for a larger GPU: half of this one.
            value["sms"] = (most / 4 * 2).max(8).into();
        }
        if is_small {
            value["device_memory_limit"] = if name == "demo" { "1G" } else { "2G" }.into();
        }
        if sms.is_none() && value["sms"].is_number() {
            // The share is unknown where the number of SMs is.
            value["sms"] = serde_json::Value::Null;
            value["active_thread_percentage"] = 50.into();
        }
        if first.is_some_and(Gpu::is_before_volta) {
            for held_by_nobody in ["device_memory_limit", "sms", "active_thread_percentage"] {
                value[held_by_nobody] = serde_json::Value::Null;
            }
        }
        value["daemon"] = first.map_or_else(|| "gpu0".to_owned(), |gpu| gpu.index.daemon_name()).into();
        value["uid"] = rustix::process::geteuid().as_raw().into();
        let spec = serde_json::from_value(value).map_err(refused)?;
        let name = TenantName::parse(name).map_err(refused)?;
        let ctx = RequestContext::of_manager(service.clock(), "seed", Target::Tenant(name.clone()));
        accept_existing(service.put_tenant(&ctx, name, spec, new.clone()).await)?;
    }
    std::fs::remove_file(unfinished)
        .map_err(|error| StartupError(format!("{}: {error}", unfinished.display())))
}

/// Accepts the error that the object exists already.
fn accept_existing<T>(written: Result<T, ServiceError>) -> Result<(), StartupError> {
    match written {
        Ok(_) | Err(ServiceError::PreconditionFailed(_)) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}
