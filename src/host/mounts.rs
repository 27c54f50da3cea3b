//! Mounts on this host, in every mount namespace that a process lives in.
//!
//! A mount is recognised by its source as the kernel reports it: a file system, and a path inside it. No path is looked up in another
//! namespace, where it may lead to something else, or to a file system that does not answer.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{self, CapabilitySet};

use super::container::container_of;
use super::{Identity, process};

/// A file or directory, identified in the same way in every mount namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MountSource {
    /// The device of its file system, as `0:25`.
    device: Vec<u8>,
    /// Its path inside that file system.
    path: PathBuf,
}

impl MountSource {
    /// Identifies a directory as this process sees it.
    pub fn of(directory: &Path) -> io::Result<Self> {
        // The directory is not read, so it need not be readable.
        let open = rustix::fs::open(directory, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let number = open.as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
        // Its path without symbolic links.
        let path = fs::read_link(format!("/proc/self/fd/{number}"))?;
        let mount = read_mounts("self")?.into_iter().find(|mount| Some(mount.id) == id);
        mount
            .and_then(|mount| Some(mount.source.join(path.strip_prefix(&mount.point).ok()?)))
            .ok_or_else(|| io::Error::other(format!("the mount of {} is not listed", path.display())))
    }

    /// Returns the source of a path below this one.
    #[must_use]
    pub fn join(&self, path: impl AsRef<Path>) -> Self {
        Self { device: self.device.clone(), path: self.path.join(path) }
    }

    /// Returns true if this is the other one, or a directory around it.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.device == other.device && other.path.starts_with(&self.path)
    }
}

/// A mount in another mount namespace than this process's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignMount {
    /// The processes there, the oldest first.
    pub processes: Rc<[Identity]>,
    /// Where it is mounted there.
    pub point: PathBuf,
    /// Source of the mount.
    pub source: MountSource,
}

/// Mounts that were found in other mount namespaces than this process's.
#[derive(Debug)]
pub struct ForeignMounts {
    /// The mounts.
    pub found: Vec<ForeignMount>,
    /// Number of processes that this one may not inspect, whose namespaces may have more mounts.
    pub unseen: usize,
}

/// A line of `/proc/PID/mountinfo`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: u64,
    source: MountSource,
    point: PathBuf,
}

impl Mount {
    /// Reads a line; the fields after the mount point are not needed.
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

    /// Returns true if the mount is of a part of a file system. Every private copy of the host's mounts contains the whole ones.
    fn is_of_part(&self) -> bool {
        self.source.path != Path::new("/")
    }
}

/// Decodes a field of mountinfo, in which blanks, line ends and backslashes are a backslash and three octal digits.
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

/// Reads the mounts of a process, `self` or a PID, that are below its root.
fn read_mounts(process: &str) -> io::Result<Vec<Mount>> {
    let text = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(Mount::parse).collect())
}

/// Returns a namespace of a process, `self` or a PID, as `mnt:[4026531841]`.
fn namespace(process: &str, kind: &str) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/{kind}"))
}

/// Returns true if an error of `/proc/PID/…` means that the process has ended.
fn has_ended(error: &io::Error) -> bool {
    let number = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(number, Some(Errno::NOENT | Errno::SRCH | Errno::INVAL))
}

/// Returns true if a process sees all mounts of its namespace: after a chroot it sees only those below its root.
fn sees_all(pid: u32) -> bool {
    fs::read_link(format!("/proc/{pid}/root")).is_ok_and(|root| root == Path::new("/"))
}

/// Returns the directories and files that are mounted somewhere, each by its path inside its own file system: the sources of bind mounts.
/// Namespaces of processes that this one may not inspect are left out.
pub fn roots() -> BTreeSet<PathBuf> {
    let mut namespaces = BTreeSet::new();
    let mut roots = BTreeSet::new();
    for pid in process::all().map(|pid| pid.to_string()) {
        if namespace(&pid, "mnt").is_ok_and(|namespace| namespaces.insert(namespace)) {
            let mounts = read_mounts(&pid).unwrap_or_default();
            roots.extend(mounts.into_iter().map(|mount| mount.source.path));
        }
    }
    roots
}

/// Finds the mounts that contain one of the `targets`, in mount namespaces other than this process's and those of the processes `own`,
/// unless they are part of a private copy of the mounts of this process. A link is read for each process, and the mounts once for each
/// namespace.
pub fn elsewhere(targets: &[MountSource], own: &[u32]) -> io::Result<ForeignMounts> {
    let local = LocalMounts::read()?;
    let own = own.iter().map(ToString::to_string).chain(["self".to_owned()]);
    let excluded: BTreeSet<PathBuf> = own.filter_map(|process| namespace(&process, "mnt").ok()).collect();
    let all: Vec<u32> = process::all().collect();
    if all.is_empty() {
        return Err(io::Error::other("/proc could not be listed"));
    }
    let Inhabited { mut namespaces, unseen } = Inhabited::by(all);
    namespaces.retain(|namespace, _| !excluded.contains(namespace));
    let mut foreign_mounts = Vec::new();
    for pids in namespaces.into_values() {
        let mut mounts = read_namespace(&pids)?;
        mounts.retain(|mount| targets.iter().any(|target| mount.source.contains(target)));
        if mounts.is_empty() {
            continue;
        }
        let mut processes: Vec<Identity> = pids.iter().filter_map(|pid| process::identify(*pid)).collect();
        processes.sort_by_key(|process| process.start_time);
        let Some(oldest) = processes.first() else { continue };
        // The oldest process decides: others may be of an engine, whose monitors have cgroups named like containers.
        let is_container = local.is_container(oldest.pid);
        mounts.retain(|mount| is_container || !local.is_copied_by(mount));
        let processes: Rc<[Identity]> = processes.into();
        let foreign = |Mount { source, point, .. }| {
            let processes = Rc::clone(&processes);
            ForeignMount { processes, point, source }
        };
        foreign_mounts.extend(mounts.into_iter().map(foreign));
    }
    Ok(ForeignMounts { found: foreign_mounts, unseen })
}

/// Mount namespaces with processes in them.
#[derive(Debug)]
struct Inhabited {
    /// The processes of each namespace.
    namespaces: BTreeMap<PathBuf, Vec<u32>>,
    /// Number of processes that this one may not inspect.
    unseen: usize,
}

impl Inhabited {
    fn by(processes: impl IntoIterator<Item = u32>) -> Self {
        let may_inspect = may_inspect_all();
        let (mut namespaces, mut unseen) = (BTreeMap::<PathBuf, Vec<u32>>::new(), 0);
        for pid in processes {
            match namespace(&pid.to_string(), "mnt") {
                Ok(namespace) => namespaces.entry(namespace).or_default().push(pid),
                Err(error) if has_ended(&error) => {}
                // A security module may still protect a process from this one, as the host's first process.
                Err(_) if may_inspect => {}
                Err(_) => unseen += 1,
            }
        }
        Self { namespaces, unseen }
    }
}

/// Reads the mounts of the namespace of these processes: by a process that sees all of them, if there is one. Empty if all of the processes
/// have ended.
fn read_namespace(pids: &[u32]) -> io::Result<Vec<Mount>> {
    for pid in pids.iter().filter(|pid| sees_all(**pid)).chain(pids) {
        match read_mounts(&pid.to_string()) {
            Ok(mounts) if mounts.is_empty() => {}
            Ok(mounts) => return Ok(mounts),
            Err(error) if has_ended(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Vec::new())
}

/// Returns true if this process may inspect every other: without this capability even root may not inspect processes with more
/// capabilities.
fn may_inspect_all() -> bool {
    thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE))
}

/// Returns true if a process has another namespace of this kind than this one.
fn has_other(pid: u32, kind: &str) -> io::Result<bool> {
    Ok(namespace(&pid.to_string(), kind)? != namespace("self", kind)?)
}

/// Returns true if a process lives in another mount namespace than this one.
pub fn lives_elsewhere(pid: u32) -> bool {
    has_other(pid, "mnt").unwrap_or(false)
}

/// Reads the mounts of a process that sees all of them and is in the user namespace of this one: in another user namespace anybody may
/// mount anything, and in this one only administrators of the host.
fn read_trusted(pid: u32) -> Option<Vec<Mount>> {
    if !matches!(has_other(pid, "user"), Ok(false)) {
        return None;
    }
    let mounts = read_mounts(&pid.to_string()).ok()?;
    sees_all(pid).then_some(mounts)
}

/// The mounts of this process, with which the mounts of others are compared.
#[derive(Debug)]
pub struct LocalMounts {
    mounts: Vec<Mount>,
    /// `/proc/self/cgroup`, which names the containers that this process is in.
    cgroups: String,
    /// Namespaces of all processes, read once for all processes that do not see their mounts.
    inhabited: OnceCell<Inhabited>,
}

impl LocalMounts {
    /// Reads the present mounts.
    pub fn read() -> io::Result<Self> {
        let cgroups = fs::read_to_string("/proc/self/cgroup")?;
        Ok(Self { mounts: read_mounts("self")?, cgroups, inhabited: OnceCell::new() })
    }

    /// Returns true if a process is in a container that this one is not in. A container begins with a root of its own, so all its mounts
    /// were given to it.
    fn is_container(&self, pid: u32) -> bool {
        container_of(pid).is_some_and(|id| !self.cgroups.contains(&id))
    }

    /// Returns true if a private copy of these mounts has this one, as that of a systemd service with `PrivateTmp=`. Any mount of a whole
    /// file system counts as one, since a manager in a container does not have those of the host.
    fn is_copied_by(&self, mount: &Mount) -> bool {
        let is_same = |own: &Mount| own.source == mount.source && own.point == mount.point;
        !mount.is_of_part() || self.mounts.iter().any(is_same)
    }

    /// Returns the names of the entries of a directory that are mounted one by one in the namespace of a process. Empty if the directory or
    /// one around it is mounted as a whole, or if the process is in a user namespace of its own. For a process that does not see all
    /// mounts, as after a chroot, the mounts of another one there are read; `None` if there is no other.
    pub fn entries_in(&self, pid: u32, directory: &MountSource) -> Option<BTreeSet<OsString>> {
        let shown = read_trusted(pid).or_else(|| {
            let inhabited = self.inhabited.get_or_init(|| Inhabited::by(process::all()));
            let neighbours = inhabited.namespaces.get(&namespace(&pid.to_string(), "mnt").ok()?)?;
            neighbours.iter().filter(|other| **other != pid).find_map(|other| read_trusted(*other))
        });
        match shown {
            Some(mounts) => Some(self.entries_of(&mounts, self.is_container(pid), directory)),
            None if matches!(has_other(pid, "user"), Ok(false)) => None,
            None => Some(BTreeSet::new()),
        }
    }

    fn entries_of(
        &self,
        mounts: &[Mount],
        is_container: bool,
        directory: &MountSource,
    ) -> BTreeSet<OsString> {
        let mut given = mounts.iter().filter(|mount| is_container || mount.is_of_part());
        if given.any(|mount| mount.source.contains(directory)) {
            return BTreeSet::new();
        }
        let entries = mounts.iter().map(|mount| &mount.source).filter(|source| {
            source.device == directory.device && source.path.parent() == Some(directory.path.as_path())
        });
        // Every later namespace has a copy of the mounts here, which tells nothing about its processes.
        entries
            .filter(|source| self.mounts.iter().all(|own| own.source != **source))
            .filter_map(|source| source.path.file_name().map(ToOwned::to_owned))
            .collect()
    }
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
        let missing = MountSource::of(&directory.path().join("none")).expect_err("not there");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn this_namespace_is_not_elsewhere() {
        let this = std::process::id();
        assert!(!lives_elsewhere(this) && !lives_elsewhere(1 << 23));
        let everything: Vec<MountSource> =
            read_mounts("self").expect("readable").into_iter().map(|mount| mount.source).collect();
        let foreign_mounts = elsewhere(&everything, &[]).expect("/proc is readable");
        assert!(
            foreign_mounts
                .found
                .iter()
                .all(|mount| mount.processes.iter().all(|process| process.pid != this))
        );
        let local = LocalMounts::read().expect("readable");
        assert!(!local.is_container(this), "this process's own container is none");
        let nowhere = source("0:0", "/nowhere");
        assert_eq!(local.entries_in(1 << 23, &nowhere), Some(BTreeSet::new()), "no process has this number");
    }

    fn mount(device: &str, path: &str, point: &str) -> Mount {
        Mount { id: 1, source: source(device, path), point: point.into() }
    }

    #[test]
    fn container_with_whole_file_system_has_its_directories() {
        let local = LocalMounts {
            mounts: vec![mount("8:1", "/@", "/"), mount("0:25", "/", "/run")],
            cgroups: "0::/\n".to_owned(),
            inhabited: OnceCell::new(),
        };
        let tenants = source("0:25", "/mps/tenants");
        let entry = mount("0:25", "/mps/tenants/a", "/a");
        let run = mount("0:25", "/", "/mnt");
        let names = |mounts: &[Mount], is_container| local.entries_of(mounts, is_container, &tenants).len();
        let both = [entry, run];
        assert_eq!((names(&both[..1], true), names(&both[..1], false)), (1, 1));
        assert_eq!(names(&both, true), 0, "it has all tenants' directories");
        assert_eq!(names(&both, false), 1, "a private copy of the mounts here");
        let part = [mount("0:25", "/mps/tenants/a", "/a"), mount("0:25", "/mps", "/mnt")];
        assert_eq!(names(&part, false), 0);
        let is_copied = |device, path, point| local.is_copied_by(&mount(device, path, point));
        assert!(is_copied("0:25", "/", "/mnt") && is_copied("8:1", "/@", "/"));
        assert!(!is_copied("8:1", "/@", "/host") && !is_copied("0:25", "/mps", "/run/mps"));
    }

    #[test]
    fn process_in_chroot_has_mounts_of_its_neighbours() {
        use std::io::{BufRead as _, BufReader};
        use std::process::{Command, Stdio};
        use std::time::{Duration, Instant};

        let is_root = rustix::process::geteuid().is_root();
        assert!(is_root || std::env::var_os("CI").is_none(), "only root can mount: run the tests as root");
        if !is_root {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let (root, entry) = (directory.path().join("root"), directory.path().join("entry"));
        fs::create_dir(&root).expect("made");
        fs::create_dir(&entry).expect("made");
        let around = MountSource::of(directory.path()).expect("there");
        let (root, entry) = (root.display(), entry.display());
        let chroot = format!("chroot {root} ");
        for (background, enter, shown) in [
            ("", "", Some(1)),
            ("", chroot.as_str(), None),
            ("sleep 600 >&- & echo $!;", chroot.as_str(), Some(1)),
        ] {
            let script = format!(
                "mount --bind / {root} && mount --bind {entry} {root}/mnt && {{ {background} exec {enter}sleep 600 >&-; }}"
            );
            let mut child = Command::new("unshare");
            child.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
            let mut child = child.spawn().expect("unshare");
            let mut printed = String::new();
            BufReader::new(child.stdout.take().expect("piped"))
                .read_line(&mut printed)
                .expect("a line, or the end");
            let deadline = Instant::now() + Duration::from_secs(30);
            let runs = || process::command(child.id()).is_some_and(|words| words == ["sleep", "600"]);
            while !runs() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let (ran, elsewhere) = (runs(), lives_elsewhere(child.id()));
            let entries = LocalMounts::read()
                .map(|local| local.entries_in(child.id(), &around).map(|names| names.len()));
            child.kill().expect("killed");
            child.wait().expect("reaped");
            if let Some(pid) = printed.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
            }
            assert!(ran && elsewhere);
            assert_eq!(entries.expect("readable"), shown, "{background}{enter}");
        }
    }
}
