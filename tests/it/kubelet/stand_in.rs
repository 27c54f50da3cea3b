//! A stand-in for the kubelet: its registration, its device manager as far as a plugin sees it, and its `PodResources` API, over real
//! sockets. It does what a kubelet does, and schedules nothing by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::stream;
use hyper_util::rt::TokioIo;
use mps_manager::kubelet::api::device_plugin::device_plugin_client::DevicePluginClient;
use mps_manager::kubelet::api::device_plugin::registration_server::{Registration, RegistrationServer};
use mps_manager::kubelet::api::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, Empty, PreferredAllocationRequest, RegisterRequest,
};
use mps_manager::kubelet::api::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use mps_manager::kubelet::api::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ContainerResources,
    ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Request, Response, Status};

use crate::harness::eventually;

/// The file in which it notes what it has allocated; it writes it when devices are listed to it.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";

/// The devices of a resource, as its plugin listed them last.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) devices: Vec<Device>,
    pub(super) at: Instant,
}

impl Listed {
    pub(super) fn healthy(&self) -> BTreeSet<String> {
        self.devices
            .iter()
            .filter(|device| device.health == "Healthy")
            .map(|device| device.id.clone())
            .collect()
    }
}

/// What the servers of the stand-in share.
#[derive(Default)]
struct Known {
    /// How often each resource was registered.
    registrations: BTreeMap<String, u32>,
    /// The socket of each resource.
    endpoints: BTreeMap<String, PathBuf>,
    /// The devices of each resource whose plugin is connected.
    listed: BTreeMap<String, Listed>,
    /// The devices of each pod: resource and IDs.
    pods: BTreeMap<String, (String, Vec<String>)>,
    /// Whether the API server was not reached since the start, so that no pod of it is listed.
    is_alone: bool,
    /// The devices of other plugins: resource and IDs.
    others: Vec<(String, Vec<String>)>,
    /// How often the pods were asked for.
    asked: u32,
}

#[derive(Clone)]
struct Shared {
    directory: PathBuf,
    known: Arc<Mutex<Known>>,
}

pub(super) struct StandInKubelet {
    runtime: Runtime,
    shared: Shared,
    registration: Option<JoinHandle<()>>,
    pod_resources: Option<JoinHandle<()>>,
}

async fn connected(socket: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connect = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connect).await
}

fn connections(socket: &Path) -> impl futures_util::Stream<Item = io::Result<UnixStream>> + use<> {
    let listener = UnixListener::bind(socket).expect("a socket");
    stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

#[tonic::async_trait]
impl Registration for Shared {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        assert_eq!(request.version, "v1beta1");
        assert!(request.options.expect("options").get_preferred_allocation_available);
        let (resource, socket) = (request.resource_name, self.directory.join(request.endpoint));
        let number = {
            let mut known = self.known.lock().expect("unpoisoned");
            known.endpoints.insert(resource.clone(), socket.clone());
            let number = known.registrations.entry(resource.clone()).or_default();
            *number += 1;
            *number
        };
        tokio::spawn(self.clone().follow(resource, socket, number));
        Ok(Response::new(Empty {}))
    }
}

impl Shared {
    /// Keeps what a plugin lists, until its stream ends or the resource is registered again.
    async fn follow(self, resource: String, socket: PathBuf, number: u32) {
        let lists = async {
            let mut plugin = DevicePluginClient::new(connected(socket).await.ok()?);
            Some(plugin.list_and_watch(Empty {}).await.ok()?.into_inner())
        };
        // A plugin may be killed before it answers.
        if let Some(mut lists) = lists.await {
            while let Ok(Some(list)) = lists.message().await {
                let listed = Listed { devices: list.devices, at: Instant::now() };
                self.note(&resource, number, Some(listed));
            }
        }
        self.note(&resource, number, None);
    }

    fn note(&self, resource: &str, number: u32, listed: Option<Listed>) {
        let mut known = self.known.lock().expect("unpoisoned");
        if known.registrations.get(resource) != Some(&number) {
            return;
        }
        match listed {
            Some(listed) => {
                known.listed.insert(resource.to_owned(), listed);
                let checkpoint = self.directory.join(CHECKPOINT);
                if !checkpoint.exists() {
                    write(&checkpoint, &[]);
                }
            }
            None => drop(known.listed.remove(resource)),
        }
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Shared {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let mut known = self.known.lock().expect("unpoisoned");
        known.asked += 1;
        let of_pod = |(name, (resource, ids)): (&String, &(String, Vec<String>))| {
            // Each device by itself, as the kubelet lists them.
            let device = |id: &String| ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id.clone()],
            };
            let devices = ids.iter().map(device).collect();
            let containers = vec![ContainerResources { name: "main".into(), devices }];
            PodResources { name: name.clone(), namespace: "default".into(), containers }
        };
        let pods = known.pods.iter().filter(|_| !known.is_alone);
        let pod_resources = pods.map(of_pod).collect();
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let known = self.known.lock().expect("unpoisoned");
        let of_ours = known
            .listed
            .iter()
            .map(|(resource, listed)| (resource.clone(), Vec::from_iter(listed.healthy())));
        let devices = of_ours
            .chain(known.others.iter().cloned())
            .map(|(resource_name, device_ids)| ContainerDevices { resource_name, device_ids })
            .collect();
        Ok(Response::new(AllocatableResourcesResponse { devices }))
    }
}

impl StandInKubelet {
    /// A kubelet with its sockets in this directory, which it makes.
    pub(super) fn start(directory: &Path) -> Self {
        fs::create_dir_all(directory).expect("made");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let shared = Shared { directory: directory.to_owned(), known: Arc::default() };
        let mut kubelet =
            Self { runtime: runtime.expect("a runtime"), shared, registration: None, pod_resources: None };
        kubelet.serve_registration();
        kubelet.serve_pod_resources();
        kubelet
    }

    pub(super) fn directory(&self) -> &Path {
        &self.shared.directory
    }

    pub(super) fn pod_resources_socket(&self) -> PathBuf {
        self.directory().with_extension("pods.sock")
    }

    fn serve_registration(&mut self) {
        // As the kubelet does it when it starts.
        for entry in fs::read_dir(self.directory()).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|extension| extension == "sock") {
                fs::remove_file(path).expect("removed");
            }
        }
        let _entered = self.runtime.enter();
        let incoming = connections(&self.directory().join("kubelet.sock"));
        let service = RegistrationServer::new(self.shared.clone());
        let server = Server::builder().serve_with_incoming(service, incoming);
        self.registration = Some(self.runtime.spawn(async move { server.await.expect("served") }));
    }

    fn serve_pod_resources(&mut self) {
        let _entered = self.runtime.enter();
        let incoming = connections(&self.pod_resources_socket());
        let service = PodResourcesListerServer::new(self.shared.clone());
        let server = Server::builder().serve_with_incoming(service, incoming);
        self.pod_resources = Some(self.runtime.spawn(async move { server.await.expect("served") }));
    }

    /// Ends it and starts it again: it knows no plugin then, and has removed their sockets.
    pub(super) fn restart(&mut self) {
        self.registration.take().expect("served").abort();
        self.known(|known| {
            known.listed.clear();
            known.endpoints.clear();
        });
        self.serve_registration();
    }

    /// Restarts it while its API server is away: no pod is listed then.
    pub(super) fn restart_alone(&mut self) {
        self.known(|known| known.is_alone = true);
        self.restart();
    }

    /// Restarts it without its checkpoint, of which it keeps nothing in memory either.
    pub(super) fn restart_without_checkpoint(&mut self) {
        self.remove_checkpoint();
        self.restart_alone();
    }

    pub(super) fn remove_checkpoint(&self) {
        fs::remove_file(self.directory().join(CHECKPOINT)).expect("removed");
    }

    /// Waits until the plugin has asked for the pods so many times from now on.
    pub(super) fn await_asked(&self, times: u32) {
        let asked = || self.known(|known| known.asked);
        let enough = asked() + times;
        eventually("the plugin asks which pods there are", || (asked() >= enough).then_some(()));
    }

    /// The devices of another plugin, from now on.
    pub(super) fn set_others(&self, others: &[(&str, Vec<String>)]) {
        let others = others.iter().map(|(resource, ids)| ((*resource).to_owned(), ids.clone()));
        self.known(|known| known.others = others.collect());
    }

    /// Takes the `PodResources` API away.
    pub(super) fn end_pod_resources(&mut self) {
        self.pod_resources.take().expect("served").abort();
        fs::remove_file(self.pod_resources_socket()).expect("removed");
    }

    fn known<T>(&self, of: impl FnOnce(&mut Known) -> T) -> T {
        of(&mut self.shared.known.lock().expect("unpoisoned"))
    }

    pub(super) fn registrations(&self, resource: &str) -> u32 {
        self.known(|known| known.registrations.get(resource).copied().unwrap_or_default())
    }

    pub(super) fn listed(&self, resource: &str) -> Option<Listed> {
        self.known(|known| known.listed.get(resource).cloned())
    }

    /// Waits until the plugin lists this many healthy devices of the resource, and gives all.
    pub(super) fn await_healthy(&self, resource: &str, healthy: usize) -> Listed {
        eventually(&format!("{healthy} devices of {resource} are healthy"), || {
            self.listed(resource).filter(|listed| listed.healthy().len() == healthy)
        })
    }

    fn plugin(&self, resource: &str) -> DevicePluginClient<Channel> {
        let socket =
            self.known(|known| known.endpoints.get(resource).cloned()).expect("a registered resource");
        DevicePluginClient::new(self.runtime.block_on(connected(socket)).expect("connected"))
    }

    /// Asks the plugin which devices a request should get.
    pub(super) fn preferred(&self, resource: &str, available: &BTreeSet<String>, size: usize) -> Vec<String> {
        let request = ContainerPreferredAllocationRequest {
            available_device_ids: available.iter().cloned().collect(),
            must_include_device_ids: Vec::new(),
            allocation_size: i32::try_from(size).expect("a small number"),
        };
        let request = PreferredAllocationRequest { container_requests: vec![request] };
        let mut plugin = self.plugin(resource);
        let answer = self.runtime.block_on(plugin.get_preferred_allocation(request)).expect("a preference");
        answer.into_inner().container_responses.remove(0).device_ids
    }

    /// Has the plugin allocate devices; how long that took.
    pub(super) fn allocate(
        &self,
        resource: &str,
        ids: &[String],
    ) -> (Result<ContainerAllocateResponse, Status>, Duration) {
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { device_ids: ids.to_vec() }],
        };
        let mut plugin = self.plugin(resource);
        let began = Instant::now();
        let answer = self.runtime.block_on(plugin.allocate(request));
        let took = began.elapsed();
        (answer.map(|answer| answer.into_inner().container_responses.remove(0)), took)
    }

    /// A pod with these devices, from now on.
    pub(super) fn add_pod(&self, name: &str, resource: &str, ids: &[String]) {
        self.known(|known| known.pods.insert(name.to_owned(), (resource.to_owned(), ids.to_vec())));
    }

    pub(super) fn remove_pod(&self, name: &str) -> Option<Vec<String>> {
        self.known(|known| known.pods.remove(name)).map(|(_, ids)| ids)
    }

    /// Writes the checkpoint, as the kubelet has it for these pods.
    pub(super) fn write_checkpoint(&self, pods: &[(&str, &[String])]) {
        write(&self.directory().join(CHECKPOINT), pods);
    }
}

fn write(checkpoint: &Path, pods: &[(&str, &[String])]) {
    let entries: Vec<serde_json::Value> = pods
        .iter()
        .map(|(resource, ids)| {
            serde_json::json!({"PodUID": "0", "ContainerName": "main", "ResourceName": resource,
                "DeviceIDs": {"-1": ids}, "AllocResp": ""})
        })
        .collect();
    let entries = if entries.is_empty() { serde_json::Value::Null } else { entries.into() };
    let text =
        serde_json::json!({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 0});
    fs::write(checkpoint, text.to_string()).expect("written");
}
