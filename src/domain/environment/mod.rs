//! The environment that puts a process under its tenant's limits.
//!
//! GPUs are named by UUID, both for visibility and as keys of the memory limit: ordinals are the client's own
//! and change with `CUDA_VISIBLE_DEVICES`, UUID keys survive that; and there is never an entry for a GPU that
//! the client does not see, since one such entry drops every limit (recordings 05 and 07).

pub mod cdi;
pub mod container;
pub mod formats;
pub mod service_file;

use std::collections::BTreeMap;

use super::mlopart::MlopartDevice;
use super::percentage::ThreadPercentage;
use super::resolution::Resolved;
use super::tenant::{Tenant, VisibleDevices};
use super::{GpuUuid, MemoryLimit};

/// Variables that decide how a process uses MPS. Code that hands out an environment unsets those of them that it does not set.
pub const MANAGED: [&str; 11] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    MEMORY_LIMITS,
    THREAD_PERCENTAGE,
    // With it, the percentage applies to a context and not to the process (NVIDIA's documentation).
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_CLIENT_PRIORITY",
    SM_PARTITION,
    "CUDA_MPS_PROTOCOL_VERSION",
    // More connections for one client leave room for fewer clients (recording 08).
    MAX_CONNECTIONS,
    // It renumbers GPUs that are named by ordinals. NVIDIA_VISIBLE_DEVICES is for container runtimes: no process reads it.
    "CUDA_DEVICE_ORDER",
];

/// Prefix of all variables that MPS reads: variables of later releases are unset together with the known ones.
pub const PREFIX: &str = "CUDA_MPS_";

/// Returns true for a variable that affects a CUDA process's use of MPS or GPUs: only its tenant's environment may set it.
pub fn is_managed(name: &str) -> bool {
    name.starts_with(PREFIX) || MANAGED.contains(&name)
}

/// Variable in which a client of a daemon in static mode names the partitions that it runs in.
pub const SM_PARTITION: &str = "CUDA_MPS_SM_PARTITION";

/// Variable with the memory limits of a process, by GPU.
pub const MEMORY_LIMITS: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// Variable with the active thread percentage of a process.
pub const THREAD_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Variable by which a process requests more connections to its GPU.
pub const MAX_CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";

/// Variable that names the tenant of a process: a hint that the process can forge.
pub const TENANT_HINT: &str = "MPS_MANAGER_TENANT";

/// Variable with the directory of a process's simulated host; it is not set on a real host.
pub const SIMULATED_WORLD: &str = "MPS_SIM_WORLD";

/// Returns the variables for a process of `tenant`, in a stable order.
pub fn variables(tenant: &Tenant, resolved: &Resolved, pipe_directory: &str) -> Vec<(String, String)> {
    let mut variables = vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe_directory.to_owned())];
    let uuids: Vec<&str> = resolved.gpus.iter().map(|gpu| visible_name(gpu, resolved)).collect();
    let visible = match tenant.spec.visible_devices {
        VisibleDevices::Uuid => uuids.join(","),
        // The client's own number of its daemon's one GPU, whichever of the host that is (recording 30).
        VisibleDevices::Ordinal => "0".to_owned(),
    };
    variables.push(("CUDA_VISIBLE_DEVICES".into(), visible));
    // Only GPUs that it sees: an entry for another would drop all limits.
    let limited = resolved.gpus.iter().filter_map(|gpu| Some((gpu, resolved.memory.get(gpu)?)));
    let entries: Vec<String> =
        limited.map(|(gpu, limit)| format!("{}={}", limit_key(gpu, resolved), limit.as_mps())).collect();
    if !entries.is_empty() {
        variables.push((MEMORY_LIMITS.into(), entries.join(",")));
    }
    if resolved.percentage != ThreadPercentage::FULL {
        variables.push((THREAD_PERCENTAGE.into(), resolved.percentage.to_string()));
    }
    variables.push(("CUDA_MPS_CLIENT_PRIORITY".into(), resolved.priority.as_mps().to_string()));
    variables.push((TENANT_HINT.into(), tenant.name.as_str().to_owned()));
    variables
}

/// Returns the thread percentage of a process with these variables; like MPS, it ignores an invalid one.
pub fn percentage(variables: &BTreeMap<String, String>) -> ThreadPercentage {
    let value = variables.get(THREAD_PERCENTAGE).and_then(|text| ThreadPercentage::parse(text).ok());
    value.unwrap_or(ThreadPercentage::FULL)
}

/// Returns the UUID by which a process names a device.
fn visible_name<'r>(gpu: &'r GpuUuid, resolved: &'r Resolved) -> &'r str {
    resolved.mlopart.get(gpu).map_or(gpu.as_str(), String::as_str)
}

/// Name of a MIG instance in [`MEMORY_LIMITS`]. That MPS knows it by its UUID there is said nowhere; its client sees it alone, so it is the
/// client's device 0.
const INSTANCE: &str = "0";

/// Returns the name of a device in [`MEMORY_LIMITS`].
pub fn limit_key<'r>(gpu: &'r GpuUuid, resolved: &'r Resolved) -> &'r str {
    if gpu.is_mig() { INSTANCE } else { visible_name(gpu, resolved) }
}

/// Returns the memory limits in a value of [`MEMORY_LIMITS`] for the GPUs of a daemon, and for the MLOPart devices of its server, which are
/// named as [`variables`] does.
pub fn memory_limits(
    value: &str,
    gpus: &[&GpuUuid],
    parts: &[MlopartDevice],
) -> BTreeMap<GpuUuid, MemoryLimit> {
    let is_named =
        |gpu: &GpuUuid, name: &str| if gpu.is_mig() { name == INSTANCE } else { name == gpu.as_str() };
    let named = |name: &str| {
        let gpu = gpus.iter().find(|gpu| is_named(gpu, name)).map(|gpu| (*gpu).clone());
        gpu.or_else(|| parts.iter().find(|part| part.uuid == name).map(MlopartDevice::name))
    };
    let entries = value.split(',').filter_map(|entry| entry.split_once('='));
    entries.filter_map(|(gpu, limit)| Some((named(gpu)?, MemoryLimit::parse(limit).ok()?))).collect()
}

/// Returns the managed variables that are not among `variables`: a caller that applies `variables` has to unset them.
pub fn unset(variables: &[(String, String)]) -> Vec<String> {
    MANAGED
        .iter()
        .filter(|name| variables.iter().all(|(set, _)| set != *name))
        .map(ToString::to_string)
        .collect()
}

/// Writes the variables as lines for a POSIX shell: first all other variables that MPS may read are unset, then these are exported.
pub fn as_shell(variables: &[(String, String)]) -> String {
    let mut lines = format!(
        "for mps_manager_name in $(env | sed -n 's/^\\({PREFIX}[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset \"$mps_manager_name\"; done\n\
         unset mps_manager_name\n"
    );
    for name in unset(variables) {
        lines.push_str("unset ");
        lines.push_str(&name);
        lines.push('\n');
    }
    for (name, value) in variables {
        lines.push_str("export ");
        lines.push_str(name);
        lines.push('=');
        lines.push_str(&quoted(value));
        lines.push('\n');
    }
    lines
}

/// Returns the value in single quotes, unless it is plain.
pub(crate) fn quoted(value: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_-./,=:+".contains(&b);
    if !value.is_empty() && value.bytes().all(plain) {
        return value.to_owned();
    }
    format!("'{}'", value.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_a_shell() {
        for value in ["plain", "", "two words", "it's", "$HOME", "a\nb", "GPU-1=4096M,GPU-2=4096M"] {
            let line = as_shell(&[("X".into(), value.into())]);
            let out = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("{line}printf %s \"$X\""))
                .output()
                .expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&out.stdout), value);
        }
    }

    #[test]
    fn shell_unsets_every_mps_variable() {
        let lines = as_shell(&[("CUDA_MPS_CLIENT_PRIORITY".into(), "0".into())]);
        let out = std::process::Command::new("sh")
            .arg("-euc")
            .arg(format!("{lines}env"))
            // A GPU host has variables of its own.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1")
            .env("CUDA_MPS_OF_A_LATER_RELEASE", "a b\nCUDA_MPS_NOT_A_NAME=1")
            .env("CUDA_MPS_CLIENT_PRIORITY", "1")
            .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
            .env("CUDA_HOME", "/usr/local/cuda")
            .output()
            .expect("sh runs");
        let left = String::from_utf8_lossy(&out.stdout);
        let cuda: Vec<&str> = left.lines().filter(|line| line.starts_with("CUDA_")).collect();
        assert_eq!(cuda.len(), 2, "{cuda:?} {out:?}");
        for kept in ["CUDA_HOME=/usr/local/cuda", "CUDA_MPS_CLIENT_PRIORITY=0"] {
            assert!(cuda.contains(&kept), "{cuda:?}");
        }
        assert!(!left.contains("mps_manager_name"), "{left}");
    }

    #[test]
    fn handed_out_memory_limits_are_read_back() {
        let (gpu, limit) = (crate::testing::h200(0).uuid, MemoryLimit::parse("4G").expect("4G"));
        let value = format!("{gpu}={},0=1G,nonsense", limit.as_mps());
        assert_eq!(
            memory_limits(&value, &[&gpu], &[]),
            BTreeMap::from([(gpu.clone(), limit)]),
            "ordinals are the client's own"
        );
    }

    #[test]
    fn mps_variables_not_set_are_unset() {
        let text = as_shell(&[("CUDA_VISIBLE_DEVICES".into(), "0".into())]);
        assert!(text.contains("unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT\n"));
        assert!(!text.contains("unset CUDA_VISIBLE_DEVICES"));
    }
}
