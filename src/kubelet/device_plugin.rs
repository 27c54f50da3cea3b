//! The service that the kubelet calls: one for each class, on a socket of its own.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::allocator::allocate;
use super::api::device_plugin::device_plugin_server::{DevicePlugin, DevicePluginServer};
use super::api::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationResponse, Device, DevicePluginOptions,
    Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use super::context::PluginContext;
use super::places::{DevicePlace, NodeOffer};
use super::preference::preferred;

/// The words of the kubelet.
const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";
/// Pause after a connection that could not be accepted, as without file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the capabilities of the plugin.
pub(super) fn plugin_options() -> DevicePluginOptions {
    DevicePluginOptions { pre_start_required: false, get_preferred_allocation_available: true }
}

/// The places of one class.
struct ClassService {
    context: Arc<PluginContext>,
    class: String,
}

/// Binds the socket of a class, in the place of one that an earlier plugin left, and serves it until shutdown.
pub(super) fn serve(
    context: Arc<PluginContext>,
    class: &str,
    socket: &Path,
) -> io::Result<impl Future<Output = ()> + Send + use<>> {
    if let Err(error) = std::fs::remove_file(socket)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(socket)?;
    let service = DevicePluginServer::new(ClassService { context, class: class.to_owned() });
    let served = Server::builder().serve_with_incoming(service, connections(listener));
    Ok(async move {
        if let Err(error) = served.await {
            tracing::error!(%error, "a socket of the kubelet plugin is served no longer");
        }
    })
}

fn connections(listener: UnixListener) -> impl Stream<Item = io::Result<UnixStream>> + Send {
    stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        if accepted.is_err() {
            tokio::time::sleep(PAUSE).await;
        }
        Some((accepted, listener))
    })
}

/// Returns the devices of a class in the kubelet's form. A class that is no longer offered has none.
fn devices(offer: &NodeOffer, class: &str) -> Vec<Device> {
    let places = offer.classes.get(class).map(Vec::as_slice).unwrap_or_default();
    let device = |place: &DevicePlace| {
        let health = if place.fault.is_none() { HEALTHY } else { UNHEALTHY };
        Device { id: place.id.clone(), health: health.to_owned() }
    };
    places.iter().map(device).collect()
}

#[tonic::async_trait]
impl DevicePlugin for ClassService {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(plugin_options()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let class = self.class.clone();
        let begin = (self.context.offer.subscribe(), self.context.relist.subscribe(), None::<Vec<Device>>);
        let lists = stream::unfold(begin, move |(mut offers, mut again, mut sent)| {
            let class = class.clone();
            async move {
                loop {
                    let devices = devices(&offers.borrow_and_update(), &class);
                    if sent.as_ref() != Some(&devices) {
                        let answer = ListAndWatchResponse { devices: devices.clone() };
                        return Some((Ok::<_, Status>(answer), (offers, again, Some(devices))));
                    }
                    tokio::select! {
                        changed = offers.changed() => changed.ok()?,
                        changed = again.changed() => {
                            changed.ok()?;
                            sent = None;
                        }
                    }
                }
            }
        });
        let lists: Self::ListAndWatchStream = Box::pin(lists);
        Ok(Response::new(lists))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let offer = self.context.offer.borrow().clone();
        let places = offer.classes.get(&self.class).map(Vec::as_slice).unwrap_or_default();
        let answers = request.into_inner().container_requests.into_iter().map(|container| {
            let size = usize::try_from(container.allocation_size).unwrap_or_default();
            let device_ids = preferred(
                places,
                &container.available_device_ids,
                &container.must_include_device_ids,
                size,
                self.context.options.placement,
            );
            ContainerPreferredAllocationResponse { device_ids }
        });
        Ok(Response::new(PreferredAllocationResponse { container_responses: answers.collect() }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let mut container_responses = Vec::new();
        for container in request.into_inner().container_requests {
            let began = tokio::time::Instant::now();
            let allocated = allocate(&self.context, &self.class, &container.device_ids).await;
            match &allocated {
                Ok(_) => {
                    tracing::info!(devices = ?container.device_ids, took = ?began.elapsed(), "allocated");
                }
                Err(status) => tracing::warn!(devices = ?container.device_ids, "{}", status.message()),
            }
            container_responses.push(allocated?);
        }
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse {}))
    }
}
