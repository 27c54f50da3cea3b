//! The tenants of a host as devices of the Container Device Interface, which Docker, Podman, containerd and CRI-O read
//! (<https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md>).
//!
//! A device gives a container the tenant's environment and its directory, and no GPU: the GPU's own device is requested beside it.
//! Limits name only GPUs of the device, since an entry for a GPU that the container cannot see drops every limit (recordings 05
//! and 07).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde_json::{Value, json};

use super::container::ContainerAccess;
use super::formats::{of_container, simulated};
use crate::count::joined;
use crate::device_index::DeviceIndex;
use crate::{GpuUuid, TenantName};

/// The vendor and the class of every device.
const KIND: &str = "mps-manager.dev/tenant";
/// The lowest version of the specification that has every field used here, so that older engines read it too.
const VERSION: &str = "0.3.0";
/// The kind of the devices that NVIDIA's container toolkit lists.
pub const GPU_KIND: &str = "nvidia.com/gpu";
/// Directory of the shared memory between clients on GPUs before Volta and their server.
const SHARED_MEMORY: &str = "/dev/shm";

/// The name of the file in the directory of specifications.
pub const FILE: &str = "mps-manager.json";
/// Directory in which container engines look for generated specifications; a boot clears it.
pub const DIRECTORY: &str = "/var/run/cdi";

/// The directory that the specification is kept in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiDirectory {
    /// Its path.
    pub path: PathBuf,
    /// True if it is the default directory, which is created if it is missing. A configured directory is not: it may be misspelt.
    pub is_default: bool,
}

/// A device: a tenant with all its GPUs, or with one of several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CdiDevice {
    /// Its name: that of the tenant, or the result of [`of_gpu`].
    pub name: String,
    /// The variables that a process of it gets.
    pub variables: BTreeMap<String, String>,
    /// Access that a container needs beside the variables.
    pub container: ContainerAccess,
}

/// Returns the name of a tenant's device for one of its GPUs, by the GPU's index on the host.
pub fn of_gpu(tenant: &TenantName, index: DeviceIndex) -> String {
    format!("{tenant}-{}", index.daemon_name())
}

/// Returns the qualified name by which a device is requested from engines.
pub fn qualified(device: &str) -> String {
    format!("{KIND}={device}")
}

/// Writes the specification of these devices; `None` if there are none, since a specification without devices is invalid.
pub fn specification(devices: &[CdiDevice]) -> Option<String> {
    if devices.is_empty() {
        return None;
    }
    let devices: Vec<Value> = devices.iter().map(device).collect();
    Some(format!("{:#}\n", json!({ "cdiVersion": VERSION, "kind": KIND, "devices": devices })))
}

fn device(device: &CdiDevice) -> Value {
    let CdiDevice { name, variables, container } = device;
    let environment = of_container(variables, container);
    let environment: Vec<String> =
        environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let mut mounts = vec![mount(&container.mount, "ro")];
    if container.host_ipc {
        mounts.push(mount(SHARED_MEMORY, "rw"));
    }
    json!({ "name": name, "containerEdits": { "env": environment, "mounts": mounts } })
}

fn mount(path: &str, access: &str) -> Value {
    json!({ "hostPath": path, "containerPath": path, "options": [access, "nosuid", "nodev", "bind"] })
}

/// Writes options for `podman run` and `docker run` that request a tenant's device and its GPUs, in one line; `device` is its qualified
/// name. On a simulated host they mount the directory that simulates the GPUs, since no engine has devices for these.
pub fn as_options(device: &str, variables: &BTreeMap<String, String>, container: &ContainerAccess) -> String {
    let mut options: Vec<String> = match simulated(variables) {
        Some(world) => vec![format!("--volume {world}:{world}")],
        None => container.gpus.iter().map(|gpu| format!("--device {}", gpu_device(gpu))).collect(),
    };
    options.extend([format!("--device {device}"), format!("--user {}", container.uid)]);
    format!("{}\n", options.join(" "))
}

/// Returns the name of a GPU's device in the specification of NVIDIA's container toolkit.
pub fn gpu_device(gpu: &GpuUuid) -> String {
    format!("{GPU_KIND}={gpu}")
}

/// Lists the devices of the GPUs that are not among the `listed` ones of [`GPU_KIND`]; `None` if all are.
pub fn missing<'g>(listed: &BTreeSet<String>, gpus: impl Iterator<Item = &'g GpuUuid>) -> Option<String> {
    let missing = joined(gpus.filter(|gpu| !listed.contains(gpu.as_str())).map(gpu_device), ", ");
    (!missing.is_empty()).then_some(missing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    fn container(host_ipc: bool) -> ContainerAccess {
        ContainerAccess {
            mount: "/run/mps-manager/tenants/0123456789".into(),
            uid: 1000,
            gpus: vec![h200(0).uuid, h200(1).uuid],
            host_ipc,
            defaults: BTreeMap::from([("CUDA_DEVICE_ORDER".into(), "FASTEST_FIRST".into())]),
        }
    }

    fn web(host_ipc: bool) -> CdiDevice {
        CdiDevice {
            name: "web".into(),
            variables: BTreeMap::from([("CUDA_MPS_CLIENT_PRIORITY".into(), "0".into())]),
            container: container(host_ipc),
        }
    }

    fn read(devices: &[CdiDevice]) -> Value {
        serde_json::from_str(&specification(devices).expect("there are devices")).expect("JSON")
    }

    /// Returns true for a device name that every version of the engines accepts: a letter first, a letter or digit last.
    fn is_device_name(name: &str) -> bool {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
        name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && name.bytes().last().is_some_and(|byte| byte.is_ascii_alphanumeric())
            && name.bytes().all(inside)
    }

    #[test]
    fn device_has_environment_and_one_mount() {
        let read = read(&[web(false)]);
        assert_eq!((&read["cdiVersion"], &read["kind"]), (&json!("0.3.0"), &json!("mps-manager.dev/tenant")));
        let edits = &read["devices"][0]["containerEdits"];
        assert_eq!(edits["env"], json!(["CUDA_DEVICE_ORDER=FASTEST_FIRST", "CUDA_MPS_CLIENT_PRIORITY=0"]));
        let directory = "/run/mps-manager/tenants/0123456789";
        let options = ["ro", "nosuid", "nodev", "bind"];
        assert_eq!(
            edits["mounts"],
            json!([{"hostPath": directory, "containerPath": directory, "options": options}])
        );
        for (value, fields) in [(&read, 3), (&read["devices"][0], 2), (edits, 2)] {
            assert_eq!(value.as_object().map(serde_json::Map::len), Some(fields), "{value}");
        }
    }

    #[test]
    fn shared_memory_is_mounted_before_volta_only() {
        let mounts = |host_ipc| read(&[web(host_ipc)])["devices"][0]["containerEdits"]["mounts"].clone();
        assert_eq!(mounts(false).as_array().map(Vec::len), Some(1));
        assert_eq!(mounts(true)[1]["containerPath"], "/dev/shm");
        assert_eq!(mounts(true)[1]["options"][0], "rw");
    }

    #[test]
    fn no_device_is_no_specification() {
        assert_eq!(specification(&[]), None);
    }

    #[test]
    fn every_tenants_name_names_a_device() {
        let longest = format!("a{}", "b".repeat(62));
        for name in ["a", "a0", "web", "a-b_c", longest.as_str()] {
            let tenant = TenantName::parse(name).expect("a tenant's name");
            assert!(is_device_name(tenant.as_str()) && is_device_name(&of_gpu(&tenant, 15.into())), "{name}");
        }
        assert_eq!(qualified("web-gpu1"), "mps-manager.dev/tenant=web-gpu1");
    }

    #[test]
    fn options_name_gpus_before_the_tenant() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        assert_eq!(
            as_options("mps-manager.dev/tenant=web", &BTreeMap::new(), &container(false)),
            format!(
                "--device nvidia.com/gpu={zero} --device nvidia.com/gpu={one} --device mps-manager.dev/tenant=web --user 1000\n"
            )
        );
    }
}
