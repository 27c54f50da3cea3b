//! Access that a container needs to be a client of a tenant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::GpuUuid;
use super::super::gpu::Gpu;
use super::super::memory::MIB;
use super::super::resolution::Resolved;
use super::{MANAGED, limit_key};

/// Access that a container of a tenant needs beside the variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ContainerAccess {
    /// The directory to mount under the same path; read-only is enough. It holds the one socket that a client needs.
    pub mount: String,
    /// The user to run as.
    pub uid: u32,
    /// The GPUs to give it.
    pub gpus: Vec<GpuUuid>,
    /// True if it has to share the host's IPC namespace, as clients on GPUs before Volta do.
    pub host_ipc: bool,
    /// Values for variables that an image may set and a container cannot unset: each is the default, or empty if there is none.
    pub defaults: BTreeMap<String, String>,
}

impl ContainerAccess {
    /// Returns the access for a container of a tenant with these values; `set` are the variables that it is given.
    pub fn of(mount: String, uid: u32, resolved: &Resolved, host: &[Gpu], set: &[(String, String)]) -> Self {
        let gpus: Vec<&Gpu> = host.iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)).collect();
        Self {
            mount,
            uid,
            gpus: resolved.gpus.clone(),
            host_ipc: gpus.iter().any(|gpu| gpu.is_before_volta()),
            defaults: defaults(resolved, host, set),
        }
    }
}

/// Returns neutral values for the managed variables that are not among `set`.
pub fn defaults(resolved: &Resolved, host: &[Gpu], set: &[(String, String)]) -> BTreeMap<String, String> {
    let gpus: Vec<&Gpu> = host.iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)).collect();
    let unset = MANAGED.iter().filter(|name| set.iter().all(|(given, _)| given != *name));
    unset.map(|name| ((*name).to_owned(), default_of(name, &gpus, resolved))).collect()
}

/// Returns the neutral value of a variable, with which it changes nothing.
fn default_of(name: &str, gpus: &[&Gpu], resolved: &Resolved) -> String {
    match name {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" => "100".to_owned(),
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING" => "0".to_owned(),
        // The number that a client of MPS has without the variable.
        "CUDA_DEVICE_MAX_CONNECTIONS" => "2".to_owned(),
        "CUDA_DEVICE_ORDER" => "FASTEST_FIRST".to_owned(),
        // Anything that is no list drops the server's limits too (recording 05): the whole memory limits nothing.
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" => {
            // If the driver does not report the memory of the GPU, a limit above any GPU's memory limits nothing either.
            let entry = |gpu: &&Gpu| {
                format!(
                    "{}={}M",
                    limit_key(&gpu.uuid, resolved),
                    gpu.memory_total.unwrap_or(UNREPORTED) / MIB
                )
            };
            gpus.iter().map(entry).collect::<Vec<_>>().join(",")
        }
        _ => String::new(),
    }
}

/// More memory than any GPU has.
const UNREPORTED: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::super::super::daemon::Mode;
    use super::super::super::gpu::ComputeCapability;
    use super::super::super::percentage::ThreadPercentage;
    use super::super::super::priority::Priority;
    use super::*;
    use crate::testing::h200;

    fn access(gpu: &Gpu, set: &[(String, String)]) -> ContainerAccess {
        let resolved = Resolved {
            mlopart: BTreeMap::new(),
            has_parts: false,
            gpus: vec![gpu.uuid.clone()],
            memory: BTreeMap::new(),
            percentage: ThreadPercentage::FULL,
            priority: Priority::Normal,
            mode: Mode::Shared,
        };
        ContainerAccess::of("/run/t".into(), 7, &resolved, std::slice::from_ref(gpu), set)
    }

    #[test]
    fn only_gpus_before_volta_share_ipc() {
        let with = |major| Gpu { compute_capability: Some(ComputeCapability { major, minor: 0 }), ..h200(0) };
        assert!(access(&with(6), &[]).host_ipc);
        assert!(!access(&with(7), &[]).host_ipc);
        assert!(!access(&Gpu { compute_capability: None, ..h200(0) }, &[]).host_ipc);
    }

    #[test]
    fn image_variables_get_harmless_values() {
        let set = vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), "/run/t".to_owned())];
        let access = access(&h200(0), &set);
        assert!(!access.defaults.contains_key("CUDA_MPS_PIPE_DIRECTORY"), "the tenant's own");
        assert_eq!(access.defaults.len(), MANAGED.len() - 1);
        assert_eq!(access.defaults["CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING"], "0");
        assert_eq!(access.defaults["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "100");
        let whole = format!("{}={}M", h200(0).uuid, h200(0).memory_total.expect("reported") / MIB);
        assert_eq!(access.defaults["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], whole);
    }
}
