//! Which places the kubelet's pods hold: as its `PodResources` API lists them, or else as its checkpoint does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::timeout;

use super::allocation::DeviceClaim;
use super::api::pod_resources::ListPodResourcesRequest;
use super::api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use super::channel::connected;
use super::context::KubeletPluginOptions;

/// The file in the directory of device plugins in which the kubelet notes what it has allocated.
const CHECKPOINT: &str = "kubelet_internal_checkpoint";
/// How long the kubelet may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The longest list of all devices of a node.
const LONGEST: usize = 64 << 20;

/// What is known of the use of places.
pub(super) struct DeviceUsage {
    /// Where it is from, in words.
    pub(super) source: &'static str,
    /// The places of each container; `None` where nobody says which they are.
    pub(super) claims: Option<BTreeSet<DeviceClaim>>,
}

/// Asks the kubelet which places are in use, or reads its checkpoint where it does not answer.
pub(super) async fn device_usage(options: &KubeletPluginOptions) -> DeviceUsage {
    match timeout(ANSWER, pod_resources(&options.pod_resources)).await {
        Ok(Ok(claims)) => return DeviceUsage { source: "the PodResources API", claims: Some(claims) },
        Ok(Err(error)) => tracing::debug!(%error, "the PodResources API does not answer"),
        Err(_) => tracing::debug!("the PodResources API did not answer in time"),
    }
    let path = options.plugin_dir.join(CHECKPOINT);
    match fs::read(&path).map_err(|error| error.to_string()).and_then(|text| checkpointed(&text)) {
        Ok(claims) => DeviceUsage { source: "the kubelet's checkpoint", claims: Some(claims) },
        Err(error) => {
            tracing::debug!(%error, "{} cannot be read", path.display());
            DeviceUsage { source: "nobody, so nothing is deleted", claims: None }
        }
    }
}

async fn pod_resources(socket: &Path) -> Result<BTreeSet<DeviceClaim>, String> {
    let channel = connected(socket).await.map_err(|error| error.to_string())?;
    let mut client = PodResourcesListerClient::new(channel).max_decoding_message_size(LONGEST);
    let listed = client.list(ListPodResourcesRequest {}).await.map_err(|error| error.to_string())?;
    let mut claims = BTreeSet::new();
    for container in listed.into_inner().pod_resources.into_iter().flat_map(|pod| pod.containers) {
        let devices = container.devices.into_iter();
        claims.extend(of_container(devices.map(|devices| (devices.resource_name, devices.device_ids))));
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
    fn devices_listed_one_by_one_are_one_claim() {
        let listed = [("x/y", "a"), ("x/z", "c"), ("x/y", "b")];
        let listed = listed.map(|(resource, id)| (resource.to_owned(), vec![id.to_owned()]));
        let claims: Vec<DeviceClaim> = of_container(listed.into_iter()).collect();
        assert_eq!(claims, [claim("x/y", &["a", "b"]), claim("x/z", &["c"])]);
    }
}
