//! Allocates places to a container: makes the tenant that holds them, waits until it may be handed out, and says how the container gets it.

use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Status;

use super::allocation::{DeviceClaim, RequestedPlaces};
use super::api::device_plugin::{CdiDevice, ContainerAllocateResponse, Mount};
use super::context::{PluginContext, TrackedTenant, tenant_path};
use crate::client::ClientError;
use crate::domain::condition::ready;
use crate::domain::{GpuUuid, TenantName};
use crate::service::tenants::{EnvironmentView, TenantView};

/// The kind of the CDI devices that the manager lists.
const TENANT_KIND: &str = "mps-manager.dev/tenant";
/// How often a tenant is read until it is ready.
const POLL: Duration = Duration::from_millis(5);
/// How long the manager may take to delete a tenant that did not become ready.
const ANSWER: Duration = Duration::from_secs(2);

/// What a container gets that is given these devices of a class.
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
    let made_until = Some(Instant::now() + context.options.timeout + ANSWER);
    let begun = TrackedTenant { made_until, ..TrackedTenant::new() };
    context.tracked.lock().await.insert(name.clone(), begun);
    let answer = made_for(context, &requested, &name).await;
    // From now on the kubelet lists its places, or nobody has them.
    context.tracked.lock().await.insert(name, TrackedTenant::new());
    answer
}

/// Makes the tenant, and says how a container gets it.
async fn made_for(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
) -> Result<ContainerAllocateResponse, Status> {
    let until = Instant::now() + context.options.timeout;
    let mut why = "the manager did not answer".to_owned();
    let made = timeout_at(until, made_ready(context, requested, name, &mut why)).await;
    let Ok(made) = made else {
        // Nobody has it; what this misses is deleted with those that no pod holds.
        let _ = timeout(ANSWER, context.client.delete(&tenant_path(name))).await;
        let seconds = context.options.timeout.as_secs_f64();
        return Err(Status::unavailable(format!("tenant {name} is not ready after {seconds} s: {why}")));
    };
    made.map_err(|error| refused(name, &error))?;
    if context.options.legacy_env {
        return legacy(context, name).await;
    }
    let gpus = requested.gpus();
    let gpus = gpus.iter().map(|gpu| format!("{}={gpu}", context.options.gpu_kind));
    let names = [format!("{TENANT_KIND}={name}")].into_iter().chain(gpus);
    let cdi_devices = names.map(|name| CdiDevice { name }).collect();
    Ok(ContainerAllocateResponse { cdi_devices, ..ContainerAllocateResponse::default() })
}

fn refused(name: &TenantName, error: &ClientError) -> Status {
    Status::failed_precondition(format!("tenant {name} was not made: {error}"))
}

/// Writes the tenant and waits until a process may run in it; `why` is what keeps it so long.
async fn made_ready(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
    why: &mut String,
) -> Result<(), ClientError> {
    let mut is_written = false;
    loop {
        let answer: Result<TenantView, ClientError> = if is_written {
            context.client.get(&tenant_path(name)).await
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
            // Somebody else wrote it in between, as its collection does.
            Err(error) if error.may_pass() || error.has_status(StatusCode::PRECONDITION_FAILED) => {
                *why = error.to_string();
            }
            Err(error) => return Err(error),
        }
        sleep(POLL).await;
    }
}

/// Creates the tenant, or renews it where the same places were allocated before.
async fn write(
    context: &PluginContext,
    requested: &RequestedPlaces<'_>,
    name: &TenantName,
) -> Result<TenantView, ClientError> {
    let (client, path) = (&context.client, tenant_path(name));
    let spec = requested.tenant(context.options.uid, context.expiry());
    match client.put(&path, None, &spec).await {
        Err(error) if error.has_status(StatusCode::PRECONDITION_FAILED) => {}
        answer => return answer,
    }
    let Some((tenant, tag)) = client.get_tagged::<TenantView>(&path).await? else {
        return client.put(&path, None, &spec).await;
    };
    if DeviceClaim::of_labels(&tenant.spec.labels) != Some(requested.claim()) {
        return Err(ClientError::Address(format!(
            "there is a tenant {name} already, which was not made for these devices: delete it (mps-manager tenant delete {name})"
        )));
    }
    client.put(&path, Some(&tag), &spec).await
}

/// The tenant's environment and its directory, and the GPU as NVIDIA's container runtime takes it.
async fn legacy(context: &PluginContext, name: &TenantName) -> Result<ContainerAllocateResponse, Status> {
    let path = format!("{}/environment", tenant_path(name));
    let environment: EnvironmentView =
        context.client.get(&path).await.map_err(|error| refused(name, &error))?;
    let Some(container) = environment.container else {
        let why = environment.container_refused.unwrap_or_default();
        return Err(Status::failed_precondition(format!(
            "no container may be a client of tenant {name}: {why}"
        )));
    };
    let gpus: Vec<&str> = container.gpus.iter().map(GpuUuid::as_str).collect();
    let visible = ("NVIDIA_VISIBLE_DEVICES".to_owned(), gpus.join(","));
    let envs = container.defaults.into_iter().chain(environment.variables).chain([visible]).collect();
    let mount = |path: String, read_only| Mount { container_path: path.clone(), host_path: path, read_only };
    let mut mounts = vec![mount(container.mount, true)];
    if container.host_ipc {
        mounts.push(mount("/dev/shm".to_owned(), false));
    }
    Ok(ContainerAllocateResponse { envs, mounts, ..ContainerAllocateResponse::default() })
}
