//! Allocates places to a container: makes the tenant that holds them, waits until it is ready, and answers how the container gets it.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Status;

use super::allocation::{DeviceClaim, RequestedPlaces};
use super::api::device_plugin::{CdiDevice, ContainerAllocateResponse, Mount};
use super::context::{PluginContext, TrackedTenant, answered, deletion, tenant_path};
use crate::client::ClientError;
use crate::domain::condition::ready;
use crate::domain::{GpuUuid, TenantName};
use crate::service::tenants::{EnvironmentView, TenantView};

/// Pause between two readings of a tenant's environment until it has a CDI device.
const POLL: Duration = Duration::from_millis(2);
/// Pause before a manager that refused or does not answer is asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// Returns the path of a tenant that the manager answers once the tenant is ready, or after a second with what keeps it.
fn waiting(name: &TenantName) -> String {
    format!("{}?wait_s=1", tenant_path(name))
}

/// Longest time for the manager to delete a tenant that did not become ready.
const DISCARDED_WITHIN: Duration = Duration::from_secs(2);

/// Allocates these devices of a class, and returns what the kubelet gives to their container.
pub(super) async fn allocate(
    context: &PluginContext,
    class: &str,
    ids: &[String],
) -> Result<ContainerAllocateResponse, Status> {
    let offer = context.offer.borrow().clone();
    let places = offer.classes.get(class).map(Vec::as_slice).unwrap_or_default();
    let requested =
        RequestedPlaces::find(&context.resource(class), places, ids).map_err(Status::invalid_argument)?;
    let name = requested.claim().tenant_name();
    let answer = made_for(context, &requested, &name).await;
    // From now on the kubelet lists its places, or nobody has them.
    context.tracked.lock().await.insert(name, TrackedTenant::new());
    answer
}

/// Makes the tenant, and returns what the kubelet gives to its container.
async fn made_for(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
) -> Result<ContainerAllocateResponse, Status> {
    let until = Instant::now() + context.options.timeout;
    let seconds = context.options.timeout.as_secs_f64();
    let mut why = "the manager did not answer".to_owned();
    let made = async {
        let begun = TrackedTenant { made_until: Some(until + DISCARDED_WITHIN), ..TrackedTenant::new() };
        context.tracked.lock().await.insert(name.clone(), begun);
        made_ready(context, requested, name, &mut why).await
    };
    let Ok(made) = timeout_at(until, made).await else {
        discard(context, name).await;
        return Err(Status::unavailable(format!("tenant {name} is not ready after {seconds} s: {why}")));
    };
    made.map_err(|error| refused(name, &error))?;
    if context.options.legacy_env {
        return legacy(context, name).await;
    }
    let Ok(device) = timeout_at(until, cdi_device(context, name)).await else {
        discard(context, name).await;
        return Err(Status::failed_precondition(format!(
            "tenant {name} has no CDI device after {seconds} s: the manager keeps no CDI specification or could not write it \
             (mps-manager status): set cdi_dir in its configuration, or give the plugin --legacy-env"
        )));
    };
    let device = device?;
    let gpus = requested.gpus();
    let gpus: BTreeSet<GpuUuid> = gpus.iter().map(GpuUuid::whole).collect();
    let gpus = gpus.iter().map(|gpu| format!("{}={gpu}", context.options.gpu_kind));
    let cdi_devices = [device].into_iter().chain(gpus).map(|name| CdiDevice { name }).collect();
    Ok(ContainerAllocateResponse { cdi_devices, ..ContainerAllocateResponse::default() })
}

/// Deletes a tenant that no container gets. If that fails, it is deleted later with the tenants that no pod holds.
async fn discard(context: &PluginContext, name: &TenantName) {
    let _ = timeout(DISCARDED_WITHIN, context.client.delete(&deletion(name))).await;
}

fn refused(name: &TenantName, error: &ClientError) -> Status {
    Status::failed_precondition(format!("tenant {name} was not made: {error}"))
}

/// Writes the tenant and waits until a process may run in it; `why` is set to what delays it.
async fn made_ready(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
    why: &mut String,
) -> Result<(), ClientError> {
    let mut is_written = false;
    loop {
        let answer: Result<TenantView, ClientError> = if is_written {
            context.client.get(&waiting(name)).await
        } else {
            write(context, requested, name).await
        };
        match answer {
            Ok(tenant) => {
                is_written = true;
                match ready(&tenant.status.conditions) {
                    Some(ready) if ready.status => return Ok(()),
                    ready => *why = ready.map(|ready| ready.message.clone()).unwrap_or_default(),
                }
            }
            // Another writer, for example the collection of expired tenants, changed it in between.
            Err(error) if error.may_pass() || error.has_status(StatusCode::PRECONDITION_FAILED) => {
                *why = error.to_string();
                sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Creates the tenant, or renews it where the same places were allocated before.
async fn write(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
) -> Result<TenantView, ClientError> {
    let (client, path) = (&context.client, waiting(name));
    let spec = requested.tenant(&context.options, context.expiry());
    match client.put(&path, None, &spec).await {
        Err(error) if error.has_status(StatusCode::PRECONDITION_FAILED) => {}
        answer => return answer,
    }
    let Some((tenant, tag)) = client.get_tagged::<TenantView>(&tenant_path(name)).await? else {
        return client.put(&path, None, &spec).await;
    };
    if DeviceClaim::of_labels(&tenant.spec.labels) != Some(requested.claim()) {
        return Err(format!(
            "there is a tenant {name} already, which was not made for these devices: delete it (mps-manager tenant delete {name})"
        ).into());
    }
    client.put(&path, Some(&tag), &spec).await
}

async fn environment(context: &PluginContext, name: &TenantName) -> Result<EnvironmentView, ClientError> {
    context.client.get(&format!("{}/environment", tenant_path(name))).await
}

fn no_container(name: &TenantName, why: Option<String>) -> Status {
    let why = why.unwrap_or_default();
    Status::failed_precondition(format!("no container may be a client of tenant {name}: {why}"))
}

/// Waits until the tenant's CDI device is in the manager's specification, where the container runtime looks for it.
async fn cdi_device(context: &PluginContext, name: &TenantName) -> Result<String, Status> {
    loop {
        match environment(context, name).await {
            Ok(EnvironmentView { cdi_device: Some(device), .. }) => return Ok(device),
            Ok(EnvironmentView { container: None, container_refused, .. }) => {
                return Err(no_container(name, container_refused));
            }
            Ok(_) => {}
            Err(error) if error.may_pass() => {}
            Err(error) => return Err(refused(name, &error)),
        }
        sleep(POLL).await;
    }
}

/// Returns the tenant's environment and its directory, and the GPU in the form that NVIDIA's container runtime takes.
async fn legacy(context: &PluginContext, name: &TenantName) -> Result<ContainerAllocateResponse, Status> {
    let environment = answered(environment(context, name)).await.map_err(|error| refused(name, &error))?;
    let Some(container) = environment.container else {
        return Err(no_container(name, environment.container_refused));
    };
    // A container gets the GPU of an MLOPart device, which no runtime knows.
    let mut gpus: Vec<String> = container.gpus.iter().map(|gpu| gpu.whole().to_string()).collect();
    gpus.dedup();
    let visible = ("NVIDIA_VISIBLE_DEVICES".to_owned(), gpus.join(","));
    let envs = container.defaults.into_iter().chain(environment.variables).chain([visible]).collect();
    let mount = |path: String, read_only| Mount { container_path: path.clone(), host_path: path, read_only };
    let mut mounts = vec![mount(container.mount, true)];
    if container.host_ipc {
        mounts.push(mount("/dev/shm".to_owned(), false));
    }
    Ok(ContainerAllocateResponse { envs, mounts, ..ContainerAllocateResponse::default() })
}
