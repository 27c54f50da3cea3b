//! What is mounted on this host, in every mount namespace that a process lives in.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use super::process;

/// The directories and files that are mounted somewhere, each by its path inside its own file system: what a bind mount is of.
/// Namespaces of processes that this one may not inspect are left out.
pub fn roots() -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut roots = BTreeSet::new();
    for pid in process::all() {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        if let Ok(mounts) = fs::read(format!("/proc/{pid}/mountinfo")) {
            roots.extend(mounts.split(|byte| *byte == b'\n').filter_map(root));
        }
    }
    roots
}

/// The fourth field of a line of `/proc/PID/mountinfo`; blanks and the like in it are octal.
///
/// ```text
/// 1234 1200 0:25 /mps-manager/tenants/0123456789 /run/mps-manager/tenants/0123456789 ro,relatime - tmpfs tmpfs rw
/// ```
fn root(line: &[u8]) -> Option<PathBuf> {
    line.split(|byte| *byte == b' ').nth(3).map(|root| OsStr::from_bytes(root).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_bind_mount_is_read() {
        // The mount point need not be text.
        let line = b"1234 1200 0:25 /mps-manager/tenants/0123456789 /mps\xff ro,relatime - tmpfs tmpfs rw";
        assert_eq!(root(line), Some("/mps-manager/tenants/0123456789".into()));
        assert_eq!(root(b"1 2 3"), None);
        assert!(roots().contains(&PathBuf::from("/")));
    }
}
