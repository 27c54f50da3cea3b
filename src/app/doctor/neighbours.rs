//! Other software of this host that uses or shares GPUs: the kernel's log, cgroups, CDI specifications, other managers of MPS, Slurm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use serde_json::Value;

use super::Examination;
use crate::domain::checkup::{Check, CheckFinding, CheckVerdict};
use crate::domain::count::counted;
use crate::domain::environment::cdi::{CdiDirectory, GPU_KIND, gpu_device as cdi_device};
use crate::host::kernel_log::{self, KERNEL_LOG, LoggedXid};
use crate::host::signal::CONTROL;
use crate::host::{cdi, process, systemd};
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
/// Command that lists the daemon sets of a cluster.
const DAEMON_SETS: &str = "kubectl get daemonsets --all-namespaces";
/// The one of these that is a service of systemd.
const MIG_MANAGER: &str = "nvidia-mig-manager";
/// Directories of Slurm's configuration, written by hand or fetched from its controller.
const SLURM: [&str; 3] = ["/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf"];
/// Files there that may enable Slurm's plugins for GPUs.
const SLURM_FILES: [&str; 2] = ["slurm.conf", "gres.conf"];

impl Examination {
    /// Checks the kernel's log for errors of the driver since the boot.
    pub(super) fn kernel_log(&mut self) {
        let log =
            self.world.as_ref().map_or_else(|| PathBuf::from(KERNEL_LOG), |world| world.join("kernel.log"));
        let logged =
            kernel_log::xids(&log).map_err(|error| format!("{} may not be read: {error}", log.display()));
        self.add(match logged.map(|logged| xids(&logged)) {
            Err(why) => Check::skipped("kernel_log", why),
            Ok(xids) if xids.is_empty() => {
                Check::ok("kernel_log", "no error of the driver (Xid) in what is kept of this boot")
            }
            Ok(xids) => Check::warn(
                "kernel_log",
                format!("errors of the driver in this boot: {}", xids.join(", ")),
                "journalctl -k -g Xid (31 and 13 are faults of programs; 48, 63, 74, 79, 94 and 95 are the hardware's)",
            ),
        });
    }

    /// Checks for limits on device memory by cgroup, which MPS knows nothing of, if the kernel can set any.
    pub(super) fn device_cgroup(&mut self) {
        let root = Path::new("/sys/fs/cgroup");
        let controllers = fs::read_to_string(root.join("cgroup.controllers"));
        let has_dmem = controllers.as_ref().is_ok_and(|all| all.split_whitespace().any(|one| one == "dmem"));
        let limited = if has_dmem { limited(root, 6) } else { Vec::new() };
        self.add(match limited.first() {
            Some(first) => Check::warn(
                "device_cgroup",
                format!(
                    "limits on device memory beside those of MPS, perhaps left by something that is gone: {}",
                    limited.join(", ")
                ),
                format!("cat {first}/dmem.max; write `REGION max` into it if nobody needs the limit"),
            ),
            None if has_dmem => {
                Check::ok("device_cgroup", "the controller dmem sets no limit on device memory")
            }
            None if controllers.is_ok() => Check::ok(
                "device_cgroup",
                "this kernel has no controller dmem: device memory is limited by MPS alone",
            ),
            None => Check::ok(
                "device_cgroup",
                "no cgroup v2 at /sys/fs/cgroup: device memory is limited by MPS alone",
            ),
        });
    }

    /// Checks for CDI specifications that mount directories of deleted tenants, and that the manager can write its own.
    pub(super) fn cdi(&mut self) {
        let own = self.config.cdi_directory();
        let mut directories: Vec<PathBuf> = match &self.world {
            Some(world) => vec![world.join("cdi")],
            None => cdi::DIRECTORIES.iter().map(PathBuf::from).collect(),
        };
        if let Some(own) = &own
            && directories.iter().all(|known| !is_same_directory(known, &own.path))
        {
            directories.push(own.path.clone());
        }
        let tenants = self.config.runtime_dir.join("tenants");
        let found = cdi::specifications(&directories);
        let mut stale = Vec::new();
        for (path, spec) in &found {
            let mut paths = BTreeSet::new();
            host_paths(spec, &mut paths);
            let is_gone = |mounted: &&PathBuf| mounted.starts_with(&tenants) && !mounted.exists();
            let gone = paths.iter().find(is_gone);
            stale.extend(gone.map(|gone| format!("{} mounts {}", path.display(), gone.display())));
        }
        let unresolved = own.as_ref().and_then(|_| self.unresolved_gpus(&found));
        self.add(match (stale.first(), own.as_ref().and_then(unusable)) {
            (Some(first), _) => Check::warn(
                "cdi",
                format!(
                    "a container that asks for it runs outside MPS or does not start: {}",
                    stale.join("; ")
                ),
                format!("rm {}", first.split(' ').next().unwrap_or_default()),
            ),
            (None, Some((why, remedy))) => {
                Check::warn("cdi", format!("container engines are given no tenant: {why}"), remedy)
            }
            (None, None) if unresolved.is_some() => {
                Check::warn("cdi", unresolved.unwrap_or_default(), cdi::GENERATE.to_owned())
            }
            (None, None) => Check::ok_of(
                "cdi",
                found.len(),
                "there is no CDI specification",
                format!("{}, and none of a tenant that is gone", counted(found.len(), "CDI specification")),
            ),
        });
    }

    /// Describes the GPUs that a container engine would not find when a tenant's container asks for them by UUID. A host without container
    /// engines needs no such devices, and a simulated one has files in place of GPUs.
    fn unresolved_gpus(&self, specifications: &[(PathBuf, Value)]) -> Option<String> {
        let devices = cdi::devices(specifications, GPU_KIND);
        let directories = ["/usr/bin", "/usr/sbin", "/usr/local/bin"].map(Path::new);
        let is_installed = |engine: &str| directories.iter().any(|directory| directory.join(engine).exists());
        if devices.is_none() && (self.world.is_some() || !ENGINES.into_iter().any(is_installed)) {
            return None;
        }
        let known = devices.unwrap_or_default();
        let missing = self.gpus.iter().filter(|gpu| !known.contains(gpu.uuid.as_str()));
        let missing: Vec<String> = missing.map(|gpu| cdi_device(&gpu.uuid)).collect();
        let named: Vec<&str> = known.iter().map(String::as_str).collect();
        let named = if named.is_empty() { "none".to_owned() } else { named.join(", ") };
        (!missing.is_empty()).then(|| {
            format!(
                "an engine does not find the GPUs that tenants' containers ask for: no CDI specification has {} (of {GPU_KIND} there are: {named})",
                missing.join(", ")
            )
        })
    }

    /// Checks for services that start a control daemon at boot.
    pub(super) fn mps_services(&mut self) {
        if self.world.is_some() {
            return self.add(Check::skipped("mps_services", "a simulated host has no services"));
        }
        let found = systemd::services_that_start(Path::new("/"), CONTROL);
        let found: Vec<CheckFinding> = found
            .into_iter()
            .map(|unit| CheckFinding {
                seen: format!(
                    "{unit} starts an MPS control daemon at boot, which serves GPUs beside the manager's"
                ),
                remedy: format!("systemctl disable --now {unit}"),
            })
            .collect();
        self.add(if found.is_empty() {
            Check::ok(
                "mps_services",
                "no enabled service of systemd names the control program in its ExecStart=",
            )
        } else {
            Check::each("mps_services", CheckVerdict::Warn, found)
        });
    }

    /// Checks for other programs that manage MPS: two managers of one GPU undo each other's settings.
    pub(super) fn other_managers(&mut self) {
        let found: Vec<CheckFinding> = other_managers()
            .into_iter()
            .map(|(name, pid)| CheckFinding {
                seen: format!(
                    "{name} (process {pid}) may start MPS daemons or change modes on the same GPUs: leave each GPU to one of the two"
                ),
                remedy: if name == MIG_MANAGER {
                    format!("systemctl disable --now {MIG_MANAGER}")
                } else {
                    // The others run as daemon sets of Kubernetes, whose names depend on the cluster.
                    DAEMON_SETS.to_owned()
                },
            })
            .collect();
        self.add(if found.is_empty() {
            Check::ok("other_managers", "no other program that shares GPUs runs here")
        } else {
            Check::each("other_managers", CheckVerdict::Warn, found)
        });
    }

    /// Checks for Slurm's own MPS plugin, whose jobs would share GPUs without this manager.
    pub(super) fn slurm_mps(&mut self) {
        let directories: Vec<PathBuf> = match &self.world {
            Some(world) => vec![world.join("slurm")],
            None => SLURM.iter().map(PathBuf::from).collect(),
        };
        let paths = directories.iter().flat_map(|directory| SLURM_FILES.map(|name| directory.join(name)));
        let (mut files, mut enabling, mut unreadable) = (0, Vec::new(), Vec::new());
        // The main files come before the files that they include.
        let (mut paths, mut seen): (VecDeque<PathBuf>, _) = (paths.collect(), BTreeSet::new());
        while let Some(path) = paths.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let text = match fs::read(&path) {
                Ok(text) => String::from_utf8_lossy(&text).replace("\\\n", ""),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    unreadable.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            files += 1;
            if enables_mps(&text) {
                enabling.push(path.display().to_string());
            }
            paths.extend(included(&text, &path));
        }
        let unreadable = unreadable.join(", ");
        self.add(if enabling.is_empty() && !unreadable.is_empty() {
            Check::skipped("slurm_mps", format!("Slurm's configuration cannot be read: {unreadable}"))
        } else if files == 0 {
            Check::skipped("slurm_mps", "no configuration of Slurm is here")
        } else if enabling.is_empty() {
            Check::ok("slurm_mps", "Slurm's MPS plugin is not enabled")
        } else {
            Check::warn(
                "slurm_mps",
                format!(
                    "Slurm's MPS plugin is enabled ({}): its jobs cannot share GPUs with this manager, whose Prolog refuses them",
                    enabling.join(", ")
                ),
                "take mps out of GresTypes and Gres in slurm.conf and Name=mps out of gres.conf, then restart slurmctld and slurmd",
            )
        });
    }
}

/// Finds the other managers that run here, by name and process.
fn other_managers() -> Vec<(&'static str, u32)> {
    let name_in = |words: &[String]| {
        let mut names = words.iter().take(2).filter_map(|word| Path::new(word).file_name()?.to_str());
        names.find_map(|name| OTHER_MANAGERS.into_iter().find(|known| *known == name))
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
            names_plugins && value.split(',').any(|one| one.eq_ignore_ascii_case("mps"))
        })
    })
}

/// Lists the errors of NVIDIA's driver, each number once, with the number of its occurrences.
fn xids(logged: &[LoggedXid]) -> Vec<String> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for xid in logged.iter().filter_map(|one| one.report.split(',').next()?.trim().parse().ok()) {
        *counts.entry(xid).or_default() += 1;
    }
    counts.into_iter().map(|(xid, count)| format!("Xid {xid} ({})", counted(count, "time"))).collect()
}

/// Finds the cgroups that limit device memory, down to so many levels below a directory.
fn limited(directory: &Path, levels: usize) -> Vec<String> {
    let text = fs::read_to_string(directory.join("dmem.max")).unwrap_or_default();
    let is_limited =
        text.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|limit| limit != "max"));
    let mut found: Vec<String> = is_limited.then(|| directory.display().to_string()).into_iter().collect();
    if levels > 0 {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(limited(&entry.path(), levels - 1));
            }
        }
    }
    found
}

/// Returns the reason why the manager's CDI specification cannot be kept in this directory, and the remedy.
fn unusable(directory: &CdiDirectory) -> Option<(String, String)> {
    let CdiDirectory { path, is_default } = directory;
    let shown = path.display();
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let why = format!("{shown} is not there, which is named as cdi_dir");
            (!is_default).then(|| (why, format!("mkdir -m 755 {shown}")))
        }
        Err(error) => Some((format!("{shown}: {error}"), format!("ls -ld {shown}"))),
        Ok(found) if !found.is_dir() => Some((format!("{shown} is not a directory"), format!("rm {shown}"))),
        Ok(_) => {
            let errno = access(path, Access::WRITE_OK | Access::EXEC_OK).err()?;
            Some((format!("{shown}: this user may not write there ({errno})"), format!("ls -ld {shown}")))
        }
    }
}

/// Collects the values of every `hostPath` in a specification.
fn host_paths(value: &Value, found: &mut BTreeSet<PathBuf>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str().filter(|_| name == "hostPath") {
                    Some(path) => drop(found.insert(path.into())),
                    None => host_paths(value, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| host_paths(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_are_counted_by_number() {
        let log = "6,1,1,-;nvidia: loading\n\
                   4,2,2,-;NVRM: Xid (PCI:0000:06:00): 31, pid=5337, name=train, Ch 00000008. MMU Fault\n\
                   4,3,3,-;NVRM: Xid (PCI:0000:06:00): 13, pid='<unknown>', Graphics SM Warp Exception\n\
                   4,4,4,-;NVRM: Xid (PCI:0000:07:00): 31, pid=5400, name=train, Ch 00000008. MMU Fault\n\
                   4,5,5,-;NVRM: Xid (PCI:0000:07:00): banana\n";
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("kernel.log");
        for (log, shown) in [(log, vec!["Xid 13 (1 time)", "Xid 31 (2 times)"]), ("", vec![])] {
            fs::write(&file, log).expect("written");
            assert_eq!(xids(&kernel_log::xids(&file).expect("read")), shown);
        }
    }

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
        let mut found = BTreeSet::new();
        host_paths(&spec, &mut found);
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [PathBuf::from("/run/mps-manager/tenants/0123456789")]
        );
    }

    #[test]
    fn unusable_directory_of_specifications_has_a_remedy() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |name: &str, is_default| CdiDirectory { path: home.path().join(name), is_default };
        assert_eq!(unusable(&at("cdi", true)), None, "it is made");
        assert!(unusable(&at("cdi", false)).is_some_and(|(_, remedy)| remedy.starts_with("mkdir")));
        fs::create_dir(home.path().join("cdi")).expect("made");
        assert_eq!(unusable(&at("cdi", false)), None);
        fs::write(home.path().join("file"), "").expect("written");
        assert!(unusable(&at("file", true)).is_some_and(|(why, _)| why.contains("not a directory")));
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
