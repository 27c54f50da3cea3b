//! What is mounted on this host, in every mount namespace that a process lives in.
//!
//! A mount is recognised by what the kernel says that it is of: a file system, and a path inside that. No path is looked up in another
//! namespace, where it may lead to something else, or to a file system that does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::{Identity, process};

/// A file or directory by the names that it has in every mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MountSource {
    /// The device of its file system, as `0:25`.
    device: Vec<u8>,
    /// Its path inside that.
    path: PathBuf,
}

impl MountSource {
    /// A directory as this process sees it; `None` where it is not there or may not be read.
    pub fn of(directory: &Path) -> Option<Self> {
        let open = File::open(directory).ok()?;
        let number = open.as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let id: u64 = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
        // Its path without symbolic links.
        let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        let mount = read_mounts("self").into_iter().find(|mount| mount.id == id)?;
        Some(mount.source.join(path.strip_prefix(&mount.point).ok()?))
    }

    /// What has this path below it.
    #[must_use]
    pub fn join(&self, path: impl AsRef<Path>) -> Self {
        Self { device: self.device.clone(), path: self.path.join(path) }
    }

    /// Whether it is the other one, or a directory around that.
    fn contains(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// A mount in another mount namespace than this process's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignMount {
    /// The oldest process there.
    pub process: Identity,
    /// Where it is mounted there.
    pub point: PathBuf,
    /// What is mounted.
    pub source: MountSource,
}

/// A line of `/proc/PID/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    source: MountSource,
    point: PathBuf,
}

impl Mount {
    /// Reads a line; what stands behind the mount point is of no use here.
    ///
    /// ```text
    /// 1234 1200 0:25 /mps-manager/tenants/0123456789 /run/mps-manager/tenants/0123456789 ro,relatime - tmpfs tmpfs rw
    /// ```
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        // The second field is the mount that this one is in.
        let device = fields.nth(1)?.to_vec();
        let (path, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        Some(Self { id, source: MountSource { device, path }, point })
    }

    /// Whether it is of a part of a file system. Every private copy of the host's mounts has the whole ones.
    fn is_of_part(&self) -> bool {
        self.source.path != Path::new("/")
    }
}

/// A field of mountinfo, in which blanks, line ends and backslashes are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let (mut bytes, mut rest) = (Vec::with_capacity(field.len()), field);
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match after.split_at_checked(3) {
            Some((digits, behind))
                if *first == b'\\' && digits.iter().all(|digit| (b'0'..=b'7').contains(digit)) =>
            {
                let number = |number: u8, digit: &u8| number.wrapping_mul(8).wrapping_add(digit - b'0');
                bytes.push(digits.iter().fold(0, number));
                rest = behind;
            }
            _ => bytes.push(*first),
        }
    }
    OsString::from_vec(bytes).into()
}

/// The mounts of a process, `self` or a PID; none where they cannot be read, as of one that is gone.
fn read_mounts(process: &str) -> Vec<Mount> {
    let text = fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect()
}

/// A namespace of a process, `self` or a PID, as `mnt:[4026531841]`.
fn namespace(process: &str, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{kind}")).ok()
}

/// The directories and files that are mounted somewhere, each by its path inside its own file system: what a bind mount is of.
/// Namespaces of processes that this one may not inspect are left out.
pub fn roots() -> BTreeSet<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut roots = BTreeSet::new();
    for pid in process::all().map(|pid| pid.to_string()) {
        if namespace(&pid, "mnt").is_some_and(|namespace| seen.insert(namespace)) {
            roots.extend(read_mounts(&pid).into_iter().map(|mount| mount.source.path));
        }
    }
    roots
}

/// The mounts of parts of file systems for which `is_wanted` holds, in mount namespaces other than this process's and those of the
/// processes `own`. A link is read for each process, and the mounts once for each namespace.
pub fn elsewhere(is_wanted: impl Fn(&MountSource) -> bool, own: &[u32]) -> Vec<ForeignMount> {
    let own = own.iter().map(ToString::to_string).chain(["self".to_owned()]);
    let ours: BTreeSet<PathBuf> = own.filter_map(|process| namespace(&process, "mnt")).collect();
    let mut inhabited: BTreeMap<PathBuf, Vec<u32>> = BTreeMap::new();
    for pid in process::all() {
        if let Some(theirs) = namespace(&pid.to_string(), "mnt").filter(|theirs| !ours.contains(theirs)) {
            inhabited.entry(theirs).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    for pids in inhabited.into_values() {
        // Some may be gone by now.
        let mut readable = pids.iter().map(|pid| read_mounts(&pid.to_string()));
        let mut mounts = readable.find(|mounts| !mounts.is_empty()).unwrap_or_default();
        mounts.retain(|mount| mount.is_of_part() && is_wanted(&mount.source));
        if mounts.is_empty() {
            continue;
        }
        let living = pids.iter().filter_map(|pid| process::identify(*pid));
        let Some(process) = living.min_by_key(|process| process.start_time) else { continue };
        let foreign = |Mount { source, point, .. }| ForeignMount { process, point, source };
        found.extend(mounts.into_iter().map(foreign));
    }
    found
}

/// Whether a process lives in another mount namespace than this one, and in the same user namespace: in one of its own anybody
/// may mount what they like, and here only who administers the host.
pub fn lives_elsewhere(pid: u32) -> bool {
    let pid = pid.to_string();
    namespace(&pid, "mnt").is_some_and(|theirs| namespace("self", "mnt").is_some_and(|own| own != theirs))
        && namespace(&pid, "user").is_some_and(|theirs| namespace("self", "user") == Some(theirs))
}

/// The names of the entries of a directory that are mounted in the namespace of a process, each by itself: none where the directory
/// is mounted as a whole, or one around it.
pub fn entries_in(pid: u32, directory: &MountSource) -> BTreeSet<OsString> {
    let mut theirs = read_mounts(&pid.to_string());
    theirs.retain(Mount::is_of_part);
    if theirs.iter().any(|mount| mount.source.contains(directory)) {
        return BTreeSet::new();
    }
    // Every namespace that is made later has a copy of what is mounted here, which shows nothing of its processes.
    let here: BTreeSet<MountSource> = read_mounts("self").into_iter().map(|mount| mount.source).collect();
    let entries = theirs.into_iter().map(|mount| mount.source).filter(|source| {
        source.device == directory.device && source.path.parent() == Some(directory.path.as_path())
    });
    entries
        .filter(|source| !here.contains(source))
        .filter_map(|source| source.path.file_name().map(ToOwned::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn source(device: &str, path: &str) -> MountSource {
        MountSource { device: device.into(), path: path.into() }
    }

    #[test]
    fn line_of_a_bind_mount_is_read() {
        // The mount point need not be text.
        let line = b"1234 1200 0:25 /mps\\040manager/a\\134b /mps\xff\\0 ro,relatime - tmpfs tmpfs rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!((mount.id, &mount.source), (1234, &source("0:25", "/mps manager/a\\b")));
        assert_eq!(mount.point.as_os_str().as_bytes(), b"/mps\xff\\0");
        assert!(mount.is_of_part());
        for bad in [&b""[..], b"1 2 3", b"x 2 0:3 / /"] {
            assert_eq!(Mount::parse(bad), None);
        }
        assert!(!Mount::parse(b"1 2 0:3 / /").expect("a mount").is_of_part());
        assert!(roots().contains(&PathBuf::from("/")));
    }

    #[test]
    fn directory_is_found_inside_its_file_system() {
        let directory = tempfile::tempdir().expect("a directory");
        let inner = directory.path().join("in ner");
        fs::create_dir(&inner).expect("made");
        let (outer, own) = (MountSource::of(directory.path()), MountSource::of(&inner));
        let (outer, own) = (outer.expect("there"), own.expect("there"));
        assert_eq!(own, outer.join("in ner"));
        assert!(outer.contains(&own) && own.contains(&own) && !own.contains(&outer));
        assert!(!source("0:1", "/").contains(&source("0:2", "/a")));
        assert_eq!(MountSource::of(&directory.path().join("none")), None);
    }

    #[test]
    fn this_namespace_is_not_elsewhere() {
        let this = std::process::id();
        assert!(!lives_elsewhere(this) && !lives_elsewhere(1 << 23));
        let wanted = |_: &MountSource| true;
        assert!(elsewhere(wanted, &[]).iter().all(|mount| mount.process.pid != this));
        let here = source("0:0", "/nowhere");
        assert!(entries_in(1 << 23, &here).is_empty(), "no process has this number");
    }
}
