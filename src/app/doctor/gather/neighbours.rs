//! Other software of this host that uses or shares GPUs: the kernel's log, cgroups, CDI specifications, other managers of MPS, Slurm.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::files::place;
use crate::app::doctor::facts::{CdiFacts, CgroupFacts, SlurmFacts};
use crate::app::doctor::neighbours::{DAEMON_SETS, MIG_MANAGER};
use crate::config::Config;
use crate::domain::environment::cdi::{CdiDirectory, GPU_KIND};
use crate::host::kernel_log::{self, KERNEL_LOG, LoggedXid};
use crate::host::{cdi as specifications, process};
use crate::mps::process::is_same_directory;

/// The programs of container engines that take CDI devices.
const ENGINES: [&str; 4] = ["dockerd", "podman", "containerd", "crio"];
/// Programs of others that start MPS daemons, or share GPUs.
const OTHER_MANAGERS: [&str; 9] = [
    "nvidia-device-plugin",
    "gpu-kubelet-plugin",
    // The former name of the DRA driver.
    "nvidia-dra-plugin",
    // HAMi and Volcano, which limit memory by a library in each process.
    "hami-device-plugin",
    "vGPUmonitor",
    "volcano-vgpu-device-plugin",
    "volcano-device-plugin",
    NVIDIA_MPS,
    MIG_MANAGER,
];
/// The one of these that shares GPUs by MPS for NVIDIA's device plugin.
const NVIDIA_MPS: &str = "mps-control-daemon";
/// Directories of Slurm's configuration, written by hand or fetched from its controller.
const SLURM: [&str; 3] = ["/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf"];
/// Files there that may enable Slurm's plugins for GPUs.
const SLURM_FILES: [&str; 2] = ["slurm.conf", "gres.conf"];
/// Directory of all cgroups.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns a place of the simulated host, or the places of a real one.
fn places(world: Option<&Path>, simulated: &str, real: &[&str]) -> Vec<PathBuf> {
    match world {
        Some(world) => vec![world.join(simulated)],
        None => real.iter().map(PathBuf::from).collect(),
    }
}

/// Reads the errors of the driver in the kernel's log of this boot.
pub(super) fn xids(world: Option<&Path>) -> Result<Vec<LoggedXid>, String> {
    let log = &places(world, "kernel.log", &[KERNEL_LOG])[0];
    kernel_log::xids(log).map_err(|error| format!("{} may not be read: {error}", log.display()))
}

pub(super) fn cgroup() -> CgroupFacts {
    let root = Path::new(CGROUPS);
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).ok();
    let has_dmem = controllers.map(|all| all.split_whitespace().any(|controller| controller == "dmem"));
    let limited = if has_dmem == Some(true) { limited(root, 6) } else { Vec::new() };
    CgroupFacts { has_dmem, limited }
}

/// Finds the cgroups that limit device memory, down to so many levels below a directory.
fn limited(directory: &Path, levels: usize) -> Vec<String> {
    let text = fs::read_to_string(directory.join("dmem.max")).unwrap_or_default();
    let is_limited =
        text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|limit| limit != "max"));
    let mut directories: Vec<String> =
        is_limited.then(|| directory.display().to_string()).into_iter().collect();
    if levels > 0 {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                directories.extend(limited(&entry.path(), levels - 1));
            }
        }
    }
    directories
}

pub(super) fn cdi(config: &Config, world: Option<&Path>) -> CdiFacts {
    let own = config.cdi_directory();
    let mut directories = places(world, "cdi", &specifications::DIRECTORIES);
    if let Some(own) = &own
        && directories.iter().all(|directory| !is_same_directory(directory, &own.path))
    {
        directories.push(own.path.clone());
    }
    let tenants = config.runtime_dir.join("tenants");
    let specs = specifications::specifications(&directories);
    let mut stale = Vec::new();
    for (path, spec) in &specs {
        let mut paths = BTreeSet::new();
        host_paths(spec, &mut paths);
        let gone = paths.into_iter().find(|mounted| mounted.starts_with(&tenants) && !mounted.exists());
        stale.extend(gone.map(|gone| (path.clone(), gone)));
    }
    // A host without container engines needs no such devices, and a simulated one has files in place of GPUs.
    let directories = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(Path::new);
    let is_installed = |engine: &str| directories.iter().any(|directory| directory.join(engine).exists());
    let needs_gpus = || world.is_none() && ENGINES.into_iter().any(is_installed);
    let gpus = specifications::devices(&specs, GPU_KIND).or_else(|| needs_gpus().then(BTreeSet::new));
    CdiFacts {
        count: specs.len(),
        stale,
        gpus: gpus.filter(|_| own.is_some()),
        unusable: own.as_ref().and_then(unusable),
    }
}

/// Collects the values of every `hostPath` in a specification.
fn host_paths(value: &Value, paths: &mut BTreeSet<PathBuf>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().filter(|_| name == "hostPath") {
                    Some(path) => drop(paths.insert(path.into())),
                    None => host_paths(value, paths),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| host_paths(item, paths)),
        _ => {}
    }
}

/// Returns the reason why the manager's CDI specification cannot be kept in this directory, and the remedy.
fn unusable(CdiDirectory { path, is_default }: &CdiDirectory) -> Option<(String, String)> {
    let shown = path.display();
    let metadata = fs::metadata(path);
    if metadata.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let why = format!("{shown} is not there, which is named as cdi_dir");
        return (!is_default).then(|| (why, format!("mkdir -m 755 {shown}")));
    }
    let command = if metadata.is_ok_and(|metadata| !metadata.is_dir()) { "rm" } else { "ls -ld" };
    Some((place(path).err()?, format!("{command} {shown}")))
}

/// Finds the other managers that run here, by name and process.
pub(super) fn other_managers() -> Vec<(&'static str, u32)> {
    let name_in = |words: &[String]| {
        let mut names = words.iter().take(2).filter_map(|word| Path::new(word).file_name()?.to_str());
        names.find_map(|name| OTHER_MANAGERS.into_iter().find(|manager| *manager == name))
    };
    let running = process::find_by_command(|words: &[String]| name_in(words).is_some()).into_iter();
    running.filter_map(|id| Some((name_in(&process::command(id.pid)?)?, id.pid))).collect()
}

/// Refuses a directory of device plugins that NVIDIA's plugin serves too: it shares the GPUs by MPS.
pub fn refuse_beside_nvidia(plugin_dir: &Path) -> Result<(), String> {
    let entries = fs::read_dir(plugin_dir).into_iter().flatten().flatten();
    let is_served = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // A socket without a listener was left behind.
        name.starts_with("nvidia") && UnixStream::connect(path).is_ok()
    };
    let Some(socket) = entries.map(|entry| entry.path()).find(is_served) else { return Ok(()) };
    let shares = other_managers().into_iter().find(|(name, _)| *name == NVIDIA_MPS);
    let Some((name, pid)) = shares else { return Ok(()) };
    Err(format!(
        "NVIDIA's device plugin serves {} and shares the GPUs of this node by MPS ({name}, process {pid}), so nothing is offered beside it: \
         take `sharing` out of its configuration for this node, or take it off the node (`{DAEMON_SETS}` names it)",
        socket.display()
    ))
}

/// Reads Slurm's configuration: the main files before the files that they include.
pub(super) fn slurm(world: Option<&Path>) -> SlurmFacts {
    let directories = places(world, "slurm", &SLURM).into_iter();
    let mut paths: VecDeque<PathBuf> =
        directories.flat_map(|directory| SLURM_FILES.map(|name| directory.join(name))).collect();
    let (mut facts, mut visited) = (SlurmFacts::default(), BTreeSet::new());
    while let Some(path) = paths.pop_front() {
        if !visited.insert(path.clone()) {
            continue;
        }
        let text = match fs::read(&path) {
            Ok(text) => String::from_utf8_lossy(&text).replace("\\\n", ""),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                facts.unreadable.push(format!("{}: {error}", path.display()));
                continue;
            }
        };
        facts.files += 1;
        if enables_mps(&text) {
            facts.enabling.push(path.display().to_string());
        }
        paths.extend(included(&text, &path));
    }
    facts
}

/// Returns the files that a file of Slurm's configuration includes; a name without a directory is beside that file.
///
/// ```text
/// include gpus.conf
/// Include /etc/slurm/%c.conf
/// ```
fn included(text: &str, path: &Path) -> Vec<PathBuf> {
    let names = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| word.eq_ignore_ascii_case("include"))?;
        words.next()
    });
    names.map(|name| path.with_file_name(name)).collect()
}

/// Returns true if a file of Slurm's configuration enables its MPS plugin.
///
/// Slurm allows blanks around `=`, and quotes around the value (`keyvalue_pattern` in its `parse_config.c`).
///
/// ```text
/// GresTypes = gpu,mps,shard
/// Name=mps Count=200
/// ```
fn enables_mps(text: &str) -> bool {
    let mut lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.any(|line| {
        let parts: Vec<&str> = line.split('=').collect();
        parts.windows(2).any(|pair| {
            // The parser takes `+=`, `-=`, `*=` and `/=` for a key too; only `-=` takes the plugin away.
            let key = pair[0].trim_end_matches(['+', '*', '/']);
            let key = key.split_whitespace().next_back().unwrap_or_default().to_ascii_lowercase();
            let value = pair[1].split_whitespace().next().unwrap_or_default().trim_matches('"');
            let names_plugins = ["grestypes", "name"].contains(&key.as_str());
            names_plugins && value.split(',').any(|kind| kind.eq_ignore_ascii_case("mps"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enabled_mps_plugin_of_slurm_is_found() {
        for text in [
            "ClusterName=a\nGresTypes=gpu,mps\n",
            "grestypes=MPS",
            "#\nName=mps Count=200\n",
            "GresTypes = gpu,mps\n",
            "GresTypes+=mps\n",
            "GresTypes += mps\n",
            "NodeName=a Name\t=\"mps\" Count=200\n",
        ] {
            assert!(enables_mps(text), "{text}");
        }
        for text in [
            "",
            "GresTypes=gpu,shard # not mps\n",
            "#Name=mps\n",
            "GresTypes-=mps\n",
            "NodeName=mps Gres=gpu:2\n",
            "NodeName = mps Gres = gpu:2\n",
        ] {
            assert!(!enables_mps(text), "{text}");
        }
    }

    #[test]
    fn host_paths_of_a_specification_are_found() {
        let spec = serde_json::json!({"devices": [{"containerEdits": {"mounts": [
            {"hostPath": "/run/mps-manager/tenants/0123456789", "containerPath": "/mps"}, {"hostPath": 7}]}}]});
        let mut paths = BTreeSet::new();
        host_paths(&spec, &mut paths);
        assert_eq!(
            paths.into_iter().collect::<Vec<_>>(),
            [PathBuf::from("/run/mps-manager/tenants/0123456789")]
        );
    }

    #[test]
    fn unusable_directory_of_specifications_has_a_remedy() {
        let home = tempfile::tempdir().expect("a directory");
        let directory = |name: &str, is_default| CdiDirectory { path: home.path().join(name), is_default };
        assert_eq!(unusable(&directory("cdi", true)), None, "it is made");
        assert!(unusable(&directory("cdi", false)).is_some_and(|(_, remedy)| remedy.starts_with("mkdir")));
        fs::create_dir(home.path().join("cdi")).expect("made");
        assert_eq!(unusable(&directory("cdi", false)), None);
        fs::write(home.path().join("file"), "").expect("written");
        assert!(unusable(&directory("file", true)).is_some_and(|(why, _)| why.contains("not a directory")));
    }

    #[test]
    fn device_memory_limits_below_are_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let leaf = directory.path().join("a/b");
        fs::create_dir_all(&leaf).expect("made");
        fs::write(directory.path().join("a/dmem.max"), "drm/0000:06:00.0/vram0 max\n").expect("written");
        fs::write(leaf.join("dmem.max"), "drm/0000:06:00.0/vram0 1073741824\n").expect("written");
        assert_eq!(limited(directory.path(), 3), [leaf.display().to_string()]);
        assert_eq!(limited(directory.path(), 1), [] as [String; 0]);
    }
}
