//! Processes that have a file open, out of `/proc/PID/fd`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::Identity;
use super::process::{all, identify};

/// A process, and the requested files that it has open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The process.
    pub identity: Identity,
    /// The files.
    pub files: Vec<PathBuf>,
}

/// Result of a search for open files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Search {
    /// Processes that have any of the files open, by process ID.
    pub found: Vec<Opened>,
    /// Living processes whose open files this user may not see.
    pub unexamined: u32,
    /// Files that cannot be checked, so it is unknown which processes have them open: a removed file may still be open.
    pub unknown: Vec<PathBuf>,
}

/// Identity of a file: the device itself for a device file, since a container has a file of its own for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    Device(u64),
    Inode(u64, u64),
}

fn key(file: &Metadata) -> Key {
    let kind = file.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        Key::Device(file.rdev())
    } else {
        Key::Inode(file.dev(), file.ino())
    }
}

/// Returns the bytes that this user may still write at a path; some blocks are reserved for root.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = rustix::fs::statvfs(path)?;
    let blocks = if rustix::process::geteuid().is_root() { disk.f_bfree } else { disk.f_bavail };
    Ok(blocks.saturating_mul(disk.f_frsize))
}

/// Searches every process for these files.
pub fn opened(files: &[PathBuf]) -> Search {
    let mut search = Search::default();
    let mut wanted = Vec::new();
    for path in files {
        match fs::metadata(path) {
            Ok(file) => wanted.push((path, key(&file))),
            Err(_) => search.unknown.push(path.clone()),
        }
    }
    if wanted.is_empty() {
        return search;
    }
    for pid in all() {
        // A process that ends meanwhile has closed everything.
        let Some(identity) = identify(pid) else { continue };
        match of_process(pid, &wanted) {
            Ok(files) if files.is_empty() => {}
            Ok(files) => search.found.push(Opened { identity, files }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => search.unexamined += 1,
            Err(_) => {}
        }
    }
    search.found.sort_by_key(|opened| opened.identity.pid);
    search
}

fn of_process(pid: u32, wanted: &[(&PathBuf, Key)]) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(descriptor) = entry.map(|entry| entry.path()) else { break };
        let Ok(target) = fs::read_link(&descriptor) else { continue };
        // Only candidates are checked: a file on a dead network share would block the check.
        if !may_be(&target, wanted) {
            continue;
        }
        let Ok(open) = fs::metadata(&descriptor) else { continue };
        let open = key(&open);
        paths.extend(wanted.iter().filter(|(_, wanted)| *wanted == open).map(|(path, _)| (*path).clone()));
    }
    paths.sort();
    paths.dedup();
    Ok(paths)
}

/// Returns true if a descriptor's target could be one of these: a device file under any name, or a file of the same name, which ends in
/// ` (deleted)` once it is deleted.
fn may_be(target: &Path, wanted: &[(&PathBuf, Key)]) -> bool {
    let name = target.file_name().unwrap_or_default().as_encoded_bytes();
    target.starts_with("/dev")
        || wanted.iter().any(|(path, _)| {
            path.file_name().is_some_and(|wanted| name.starts_with(wanted.as_encoded_bytes()))
        })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn only_processes_with_open_file_are_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let files: Vec<PathBuf> = ["one", "two", "absent"].map(|name| directory.path().join(name)).into();
        let open = |name: &PathBuf| {
            let file = fs::File::create(name).expect("a file");
            Command::new("sleep").arg("600").stdin(Stdio::from(file)).spawn().expect("sleep")
        };
        let (mut first, mut second) = (open(&files[0]), open(&files[1]));
        let search = opened(&[files[0].clone(), files[2].clone()]);
        let pids: Vec<u32> = search.found.iter().map(|opened| opened.identity.pid).collect();
        assert_eq!(pids, [first.id()]);
        assert_eq!(search.found[0].files, [files[0].clone()]);
        assert_eq!(search.unknown, [files[2].clone()], "there is none to compare with");
        for child in [&mut first, &mut second] {
            child.kill().expect("kill");
            child.wait().expect("reaped");
        }
        assert_eq!(opened(&files).found, []);
        assert_eq!(opened(&[]), Search::default());
    }

    #[test]
    fn a_device_is_one_file_under_every_name() {
        let null = fs::metadata("/dev/null").expect("null");
        assert_eq!(key(&null), Key::Device(null.rdev()));
        let mine: Vec<u32> =
            opened(&["/dev/null".into()]).found.iter().map(|opened| opened.identity.pid).collect();
        let file = fs::File::open("/dev/null").expect("null");
        let now = opened(&["/dev/null".into()]).found;
        assert!(now.iter().any(|opened| opened.identity.pid == std::process::id()), "{mine:?} {now:?}");
        drop(file);
    }
}
