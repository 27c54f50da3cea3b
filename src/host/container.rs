//! Which container a process is in, by the names that engines give to its cgroups.

use std::fs;

/// Digits of the IDs that Docker, Podman, containerd and CRI-O give.
const DIGITS: usize = 64;

/// The ID of the container that a process is in; `None` outside of containers, and where its cgroups cannot be read.
pub fn container_of(pid: u32) -> Option<String> {
    container_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The UID of the Kubernetes pod that a process is in, where its cgroups name it.
pub fn pod_of(pid: u32) -> Option<String> {
    pod_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// Reads it from the same text: behind `pod` at the end of a cgroup's name stands a UUID, or 32 digits for a static pod.
fn pod_in(text: &str) -> Option<String> {
    text.split(['/', ':', '\n']).find_map(|name| {
        let (_, uid) = name.strip_suffix(".slice").unwrap_or(name).rsplit_once("pod")?;
        let uid = uid.replace('_', "-");
        let is_hex = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
        (matches!(uid.len(), 32 | 36) && uid.bytes().all(is_hex)).then_some(uid)
    })
}

/// Reads `/proc/PID/cgroup`: one line a hierarchy, of cgroup v1 and of v2. The innermost container counts.
///
/// ```text
/// 4:memory:/libpod_parent/libpod-ID
/// 9:name=systemd:/docker/ID
/// 0::/system.slice/docker-ID.scope
/// 0::/machine.slice/libpod-ID.scope/container
/// 0::/kubepods.slice/kubepods-pod123.slice/cri-containerd-ID.scope
/// 0::/system.slice/containerd.service/kubepods-pod123.slice:cri-containerd:ID
/// ```
pub(super) fn container_in(text: &str) -> Option<String> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let ids = paths.filter_map(|path| path.rsplit('/').find_map(id_in));
    ids.map(str::to_owned).next()
}

/// The ID at the end of a cgroup's name.
fn id_in(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let last = name.rsplit(['-', ':']).next()?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (last.len() == DIGITS && last.bytes().all(is_digit)).then_some(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f9a2b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f701";

    #[test]
    fn container_is_found_in_every_engines_paths() {
        for path in [
            format!("12:memory:/libpod_parent/libpod-{ID}\n0::/\n"),
            format!("9:name=systemd:/docker/{ID}\n"),
            format!("0::/system.slice/docker-{ID}.scope\n"),
            format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
            format!("0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{ID}.scope\n"),
            format!("0::/system.slice/containerd.service/kubepods-pod12.slice:cri-containerd:{ID}\n"),
            format!("0::/kubepods.slice/crio-{ID}.scope\n"),
            format!("4:memory:/kubepods/besteffort/pod5b0e/{ID}\n"),
            format!("0::/docker/{}/docker/{ID}\n", "0".repeat(64)),
        ] {
            assert_eq!(container_in(&path).as_deref(), Some(ID), "{path}");
        }
    }

    #[test]
    fn pod_is_found_in_every_engines_paths() {
        let uid = "0f8fad5b-d9cb-469f-a165-70867728950e";
        let slice = format!("kubepods-burstable-pod{}.slice", uid.replace('-', "_"));
        for path in [
            format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/cri-containerd-{ID}.scope\n"),
            format!("0::/../../{slice}/crio-{ID}.scope\n"),
            format!("0::/system.slice/containerd.service/{slice}:cri-containerd:{ID}\n"),
            format!("4:memory:/kubepods/besteffort/pod{uid}/{ID}\n"),
        ] {
            assert_eq!(pod_in(&path).as_deref(), Some(uid), "{path}");
        }
        for path in [
            "0::/\n".to_owned(),
            format!("0::/kubepods.slice/docker-{ID}.scope\n"),
            format!("0::/machine.slice/machine-libpod_pod_{ID}.slice/libpod-{ID}.scope\n"),
        ] {
            assert_eq!(pod_in(&path), None, "{path}");
        }
    }

    #[test]
    fn other_cgroups_are_no_containers() {
        let longer = format!("0::/a-{ID}0\n");
        let upper = format!("0::/a-{}\n", ID.to_uppercase());
        for path in ["", "0::/\n", "0::/system.slice/mps-manager.service\n", "nonsense", &longer, &upper] {
            assert_eq!(container_in(path), None, "{path}");
        }
    }
}
