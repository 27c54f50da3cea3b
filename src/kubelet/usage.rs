//! Places that the kubelet's pods hold, from its `PodResources` API and its checkpoint.
//!
//! The API leaves out ordinary init containers, and after a restart of the kubelet all pods until it has reached its API server. The
//! checkpoint has them, and keeps those of pods that are gone until the kubelet writes it again. So a place is free if neither has it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use super::allocation::DeviceClaim;
use super::api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use super::api::pod_resources::{AllocatableResourcesRequest, ListPodResourcesRequest};
use super::channel::connected;
use super::context::KubeletPluginOptions;
use crate::domain::GpuUuid;
use crate::domain::workload::Workload;

/// The file in the directory of device plugins with the kubelet's allocations; the kubelet writes it whenever devices are listed to it.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// Longest time for the kubelet to answer.
const KUBELET_ANSWERS_WITHIN: Duration = Duration::from_secs(5);
/// Most bytes of an answer with all devices of a node.
const LONGEST: usize = 64 << 20;

/// Places in use, from the API and the checkpoint.
pub(super) struct DeviceUsage {
    /// Source in words, for the log.
    pub(super) source: &'static str,
    /// The places of each container that the API lists, and which container it is; `None` where it does not answer.
    listed: Option<BTreeMap<DeviceClaim, Workload>>,
    /// The places of each container in the checkpoint; `None` where it cannot be read.
    noted: Option<BTreeSet<DeviceClaim>>,
}

/// Use of places by a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClaimUse {
    /// A container holds them, or nothing says that none does.
    Held,
    /// A container may hold them: the checkpoint alone says so, or cannot be read.
    Doubtful,
    /// No container holds them.
    Free,
}

impl DeviceUsage {
    pub(super) fn of(
        listed: Option<BTreeMap<DeviceClaim, Workload>>,
        noted: Option<BTreeSet<DeviceClaim>>,
    ) -> Self {
        let source = match (&listed, &noted) {
            (Some(_), Some(_)) => "the PodResources API",
            (Some(_), None) => "the PodResources API without the checkpoint, so nothing is deleted",
            (None, Some(_)) => "the kubelet's checkpoint",
            (None, None) => "nobody, so nothing is deleted",
        };
        Self { source, listed, noted }
    }

    /// Reports the use of these places. The checkpoint alone counts where the API does not answer.
    pub(super) fn of_claim(&self, claim: &DeviceClaim) -> ClaimUse {
        let is_listed = self.listed.as_ref().map(|claims| claims.contains_key(claim));
        match (is_listed, self.noted.as_ref().map(|claims| claims.contains(claim))) {
            (Some(true), _) | (None, Some(true) | None) => ClaimUse::Held,
            (Some(false), Some(true) | None) => ClaimUse::Doubtful,
            (Some(false) | None, Some(false)) => ClaimUse::Free,
        }
    }

    /// Returns true if the API or the checkpoint says that a container holds these places.
    pub(super) fn has(&self, claim: &DeviceClaim) -> bool {
        self.listed.as_ref().is_some_and(|claims| claims.contains_key(claim))
            || self.noted.as_ref().is_some_and(|claims| claims.contains(claim))
    }

    /// Returns the container that holds these places, where the API lists it.
    pub(super) fn holder(&self, claim: &DeviceClaim) -> Option<&Workload> {
        self.listed.as_ref()?.get(claim)
    }
}

/// Asks the kubelet which places are in use, and reads its checkpoint.
pub(super) async fn device_usage(options: &KubeletPluginOptions) -> DeviceUsage {
    let late = |_| Err("no answer in time".to_owned());
    let listed =
        timeout(KUBELET_ANSWERS_WITHIN, pod_resources(&options.pod_resources)).await.unwrap_or_else(late);
    if let Err(error) = &listed {
        tracing::debug!(%error, "the PodResources API does not answer");
    }
    let path = options.plugin_dir.join(CHECKPOINT);
    let noted = match fs::read(&path) {
        Ok(text) => checkpointed(&text),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = &noted {
        tracing::debug!(%error, "{} cannot be read", path.display());
    }
    DeviceUsage::of(listed.ok(), noted.ok())
}

/// Returns true if the kubelet of this directory has no checkpoint.
pub(super) fn is_checkpoint_missing(plugin_dir: &Path) -> bool {
    matches!(fs::symlink_metadata(plugin_dir.join(CHECKPOINT)), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

/// Returns the GPUs of which another device plugin offers replicas, each with the resource; `None` if the kubelet does not say.
///
/// The devices of NVIDIA's plugin are `GPU-…::0`, `GPU-…::1` then, whether it shares by time-slicing or by MPS.
pub(super) async fn replicated_gpus(options: &KubeletPluginOptions) -> Option<BTreeMap<GpuUuid, String>> {
    let late = |_| Err("no answer in time".to_owned());
    let listed =
        timeout(KUBELET_ANSWERS_WITHIN, allocatable(&options.pod_resources)).await.unwrap_or_else(late);
    match listed {
        Ok(devices) => Some(replicas(devices)),
        Err(error) => {
            // A kubelet before 1.23 answers so.
            tracing::debug!(%error, "the PodResources API does not say which devices there are");
            None
        }
    }
}

/// The devices of each resource of the node.
async fn allocatable(socket: &Path) -> Result<Vec<(String, Vec<String>)>, String> {
    let channel = connected(socket).await.map_err(|error| error.to_string())?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST);
    let request = AllocatableResourcesRequest {};
    let answer = client.get_allocatable_resources(request).await.map_err(|error| error.to_string())?;
    let devices = answer.into_inner().devices.into_iter();
    Ok(devices.map(|devices| (devices.resource_name, devices.device_ids)).collect())
}

fn replicas(devices: Vec<(String, Vec<String>)>) -> BTreeMap<GpuUuid, String> {
    let mut gpus = BTreeMap::new();
    for (resource, ids) in devices {
        // A MIG instance is offered whole too, and is then another plugin's all the same.
        let shared = |id: &String| match id.split_once("::") {
            Some((gpu, _)) => GpuUuid::parse(gpu).ok(),
            None => GpuUuid::parse(id).ok().filter(GpuUuid::is_mig),
        };
        let replicated = ids.iter().filter_map(shared);
        gpus.extend(replicated.map(|gpu| (gpu, resource.clone())));
    }
    gpus
}

async fn pod_resources(socket: &Path) -> Result<BTreeMap<DeviceClaim, Workload>, String> {
    let channel = connected(socket).await.map_err(|error| error.to_string())?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST);
    let listed = client.list(ListPodResourcesRequest {}).await.map_err(|error| error.to_string())?;
    let mut claims = BTreeMap::new();
    for pod in listed.into_inner().pod_resources {
        for container in pod.containers {
            let holder = Workload::Container {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: Some(container.name),
            };
            let devices = container.devices.into_iter();
            let held = of_container(devices.map(|devices| (devices.resource_name, devices.device_ids)));
            claims.extend(held.map(|claim| (claim, holder.clone())));
        }
    }
    Ok(claims)
}

/// The claims of a container whose devices may be listed one by one.
fn of_container(devices: impl Iterator<Item = (String, Vec<String>)>) -> impl Iterator<Item = DeviceClaim> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (resource, ids) in devices {
        all.entry(resource).or_default().extend(ids);
    }
    all.into_iter().map(|(resource, ids)| DeviceClaim { resource, ids })
}

/// The checkpoint, of which the rest is skipped.
///
/// ```text
/// {"Data":{"PodDeviceEntries":[{"PodUID":"…","ContainerName":"a","ResourceName":"mps-manager.dev/sm32",
///  "DeviceIDs":{"-1":["GPU-…-0"]},"AllocResp":"…"}],"RegisteredDevices":{…}},"Checksum":123}
/// ```
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct KubeletCheckpoint {
    data: CheckpointData,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CheckpointData {
    /// `null` where there are none.
    pod_device_entries: Option<Vec<PodDeviceEntry>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PodDeviceEntry {
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: CheckpointIds,
}

/// By NUMA node since Kubernetes 1.20.
#[derive(Deserialize)]
#[serde(untagged)]
enum CheckpointIds {
    ByNode(BTreeMap<String, Vec<String>>),
    All(Vec<String>),
}

fn checkpointed(text: &[u8]) -> Result<BTreeSet<DeviceClaim>, String> {
    let checkpoint: KubeletCheckpoint = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let claim = |entry: PodDeviceEntry| DeviceClaim {
        resource: entry.resource_name,
        ids: match entry.device_ids {
            CheckpointIds::ByNode(nodes) => nodes.into_values().flatten().collect(),
            CheckpointIds::All(ids) => ids.into_iter().collect(),
        },
    };
    Ok(checkpoint.data.pod_device_entries.unwrap_or_default().into_iter().map(claim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(resource: &str, ids: &[&str]) -> DeviceClaim {
        DeviceClaim { resource: resource.to_owned(), ids: ids.iter().map(|id| (*id).to_owned()).collect() }
    }

    #[test]
    fn checkpoints_of_both_forms_are_read() {
        let entry = |ids: &str| {
            let text = format!(
                r#"{{"Data": {{"PodDeviceEntries": [{{"PodUID": "1", "ContainerName": "a", "ResourceName": "x/y",
                "DeviceIDs": {ids}, "AllocResp": "Cg=="}}], "RegisteredDevices": {{}}}}, "Checksum": 7}}"#
            );
            checkpointed(text.as_bytes())
        };
        let both = BTreeSet::from([claim("x/y", &["a", "b"])]);
        assert_eq!(entry(r#"{"-1": ["a"], "0": ["b"]}"#), Ok(both.clone()));
        assert_eq!(entry(r#"["a", "b"]"#), Ok(both));
        assert!(entry("7").is_err());
        let none = br#"{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 7}"#;
        assert_eq!(checkpointed(none), Ok(BTreeSet::new()));
        assert!(checkpointed(b"{").is_err());
    }

    #[test]
    fn places_are_free_that_neither_source_has() {
        let held = claim("x/y", &["a"]);
        let (none, with) = (|| Some(BTreeSet::new()), || Some(BTreeSet::from([held.clone()])));
        let pod = || Workload::Container { namespace: "prod".into(), pod: "web-0".into(), container: None };
        let named = |claims: BTreeSet<DeviceClaim>| claims.into_iter().map(|claim| (claim, pod())).collect();
        let of = |listed: Option<BTreeSet<DeviceClaim>>, noted| {
            DeviceUsage::of(listed.map(named), noted).of_claim(&held)
        };
        assert_eq!(of(with(), none()), ClaimUse::Held);
        assert_eq!(of(with(), None), ClaimUse::Held);
        assert_eq!(of(none(), with()), ClaimUse::Doubtful);
        assert_eq!(of(none(), None), ClaimUse::Doubtful);
        assert_eq!(of(none(), none()), ClaimUse::Free);
        assert_eq!(of(None, with()), ClaimUse::Held);
        assert_eq!(of(None, none()), ClaimUse::Free);
        assert_eq!(of(None, None), ClaimUse::Held);
    }

    #[test]
    fn replicas_of_other_plugins_are_recognised_by_id() {
        let gpu = "GPU-514466a0-8e68-f857-9f73-000000000000";
        let of = |resource: &str, ids: &[String]| (resource.to_owned(), ids.to_vec());
        let own = of("mps-manager.dev/sm32", &[format!("{gpu}-0")]);
        let whole = of("nvidia.com/gpu", &[gpu.to_owned()]);
        let other = of("example.org/x", &["a::0".to_owned(), "MIG-1::0".to_owned()]);
        assert_eq!(replicas(vec![own, whole, other]), BTreeMap::new());
        let shared = of("nvidia.com/gpu.shared", &[format!("{gpu}::0"), format!("{gpu}::1")]);
        let gpu = GpuUuid::parse(gpu).expect("a UUID");
        assert_eq!(replicas(vec![shared]), BTreeMap::from([(gpu, "nvidia.com/gpu.shared".to_owned())]));
    }

    #[test]
    fn devices_listed_one_by_one_are_one_claim() {
        let listed = [("x/y", "a"), ("x/z", "c"), ("x/y", "b")];
        let listed = listed.map(|(resource, id)| (resource.to_owned(), vec![id.to_owned()]));
        let claims: Vec<DeviceClaim> = of_container(listed.into_iter()).collect();
        assert_eq!(claims, [claim("x/y", &["a", "b"]), claim("x/z", &["c"])]);
    }
}
