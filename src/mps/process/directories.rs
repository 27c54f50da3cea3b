//! The pipe and the log directory of a daemon: where they may be, and how they are made.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Gid, Uid, User, getgrouplist};

use crate::domain::Inode;
use crate::host::access::{self, PathAccess, passes_by_acl};
use crate::host::trust::{Content, Trust, Untrusted};

/// The longest path of a pipe directory, in bytes.
///
/// A socket's path holds 107, and the longest name in the directory takes the rest (FACTS.md, "Starting,
/// stopping, dying").
pub const LONGEST_PATH: usize = 82;
/// Modes of new directories: as NVIDIA's own, and those that only their owner reads.
const OPEN: u32 = 0o755;
const CLOSED: u32 = 0o700;
/// Mounted into every GPU container by the NVIDIA container runtime as soon as it exists (FACTS.md, ibid.).
const FORBIDDEN: &str = "/tmp/nvidia-mps";

/// Why a daemon cannot have these directories.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The path cannot be used at all.
    #[error("{}: {reason}", path.display())]
    Path {
        /// The directory.
        path: PathBuf,
        /// Description of the fault, and the remedy.
        reason: String,
    },
    /// A tenant could not reach the pipes, and would run outside MPS without noticing.
    #[error(
        "uid {uid} cannot pass through {} (mode {mode:o}, owner {owner}:{group}): its programs would run outside MPS; \
         give that directory the right to be searched (chmod o+x) or choose another place",
        path.display()
    )]
    Unreachable {
        /// The offending directory.
        path: PathBuf,
        /// The user that has to pass.
        uid: u32,
        /// Its permission bits.
        mode: u32,
        /// Its owner.
        owner: u32,
        /// Its group.
        group: u32,
    },
    /// Others could change it, or what is on the way to it.
    #[error("{0}. Another user could put a daemon of its own there")]
    Untrusted(Untrusted),
    /// Another program could replace what is in it.
    #[error("{} {reason}: another user could put a daemon of its own there; remove it or choose another place", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Description of the fault.
        reason: String,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

/// Checks both directories and makes those that are missing, with mode 0755 as NVIDIA's own (recording 01).
///
/// `uid` is the user that must reach the pipe directory; `None` checks it for nobody. Nothing is made when one
/// of the checks fails, and nothing that exists is changed.
pub fn check_directories(pipe: &Path, log: &Path, uid: Option<u32>) -> Result<(), DirectoryError> {
    usable_directories(pipe, log, uid)?;
    make(pipe, OPEN)?;
    make(log, OPEN)
}

/// Checks and makes both directories of a daemon that nobody else has to do with. The logs are the manager's alone, since a server gets
/// them opened; users with `access` pass through the pipe directory (recorded on an H200, `tests/fixtures/hardware`, 26).
///
/// `above` are the directories on the way to them, whose names nobody else reads.
pub fn keep_directories(
    above: &[&Path],
    pipe: &Path,
    log: &Path,
    access: &PathAccess,
) -> Result<(), DirectoryError> {
    usable_directories(pipe, log, None)?;
    make(pipe, CLOSED)?;
    make(log, CLOSED)?;
    let above = above.iter().map(|path| (*path, &access::PASSED));
    let kept = above.chain([(pipe, access), (log, &access::PRIVATE)]);
    for (path, access) in kept {
        access.keep(path).map_err(|source| DirectoryError::Io { path: path.to_owned(), source })?;
    }
    Ok(())
}

/// Checks both directories as [`check_directories`] does, and makes nothing.
pub fn usable_directories(pipe: &Path, log: &Path, uid: Option<u32>) -> Result<(), DirectoryError> {
    check_path(pipe)?;
    check_path(log)?;
    let length = pipe.as_os_str().len();
    if length > LONGEST_PATH {
        return Err(DirectoryError::Path {
            path: pipe.to_owned(),
            reason: format!(
                "the path has {length} bytes, and a pipe directory may have {LONGEST_PATH}, since a socket's path is limited to 107"
            ),
        });
    }
    for directory in [pipe, log] {
        check_existing(directory)?;
    }
    if let Some(uid) = uid {
        check_reachable(pipe, uid)?;
    }
    Ok(())
}

/// The inode of a pipe directory, which distinguishes it from a later one of the same name.
pub fn pipe_inode(pipe: &Path) -> io::Result<Inode> {
    Ok(Inode::from(&fs::metadata(pipe)?))
}

fn check_path(path: &Path) -> Result<(), DirectoryError> {
    let refused = |reason: &str| DirectoryError::Path { path: path.to_owned(), reason: reason.to_owned() };
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !path.is_absolute() || !plain {
        return Err(refused("a daemon's directory is given as an absolute path without . and .."));
    }
    if path.as_os_str().as_bytes().iter().any(u8::is_ascii_control) || path.to_str().is_none() {
        return Err(refused("a daemon's directory has a name in UTF-8 without control characters"));
    }
    let real = real(path);
    if path.starts_with(FORBIDDEN) || real.is_some_and(|real| real.starts_with(FORBIDDEN)) {
        return Err(refused(
            "/tmp/nvidia-mps is never used: where it exists, the NVIDIA container runtime mounts it into every GPU container",
        ));
    }
    Ok(())
}

/// Where a path leads by the links in it; where it does not exist yet, its nearest parent that does may be a link.
fn real(path: &Path) -> Option<PathBuf> {
    path.ancestors().find_map(|parent| {
        let rest = path.strip_prefix(parent).ok()?;
        Some(fs::canonicalize(parent).ok()?.join(rest))
    })
}

fn check_existing(path: &Path) -> Result<(), DirectoryError> {
    let checked = Trust::own().check_no_link(path, Content::Directory);
    let Some(metadata) = checked.map_err(DirectoryError::Untrusted)? else { return Ok(()) };
    let unsafe_because = |reason: String| DirectoryError::Unsafe { path: path.to_owned(), reason };
    if !metadata.is_dir() {
        return Err(unsafe_because("is not a directory".into()));
    }
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me {
        return Err(unsafe_because(format!("belongs to uid {} and not to {me}", metadata.uid())));
    }
    Ok(())
}

/// Checks that `uid` may pass each directory down to this one, by its ACL or by owner, group and other bits, and each one down to where
/// links in the path lead.
///
/// Directories still to be made are passed over: they get mode 0755.
pub fn check_reachable(path: &Path, uid: u32) -> Result<(), DirectoryError> {
    if uid == 0 {
        return Ok(());
    }
    let groups = groups_of(uid);
    let real = real(path);
    for directory in path.ancestors().chain(real.iter().flat_map(|real| real.ancestors())) {
        let metadata = match fs::metadata(directory) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(DirectoryError::Io { path: directory.to_owned(), source }),
        };
        let by_mode = || {
            let bit = if groups.contains(&metadata.gid()) { 0o010 } else { 0o001 };
            metadata.mode() & bit != 0
        };
        let passes = if metadata.uid() == uid {
            metadata.mode() & 0o100 != 0
        } else {
            passes_by_acl(directory, metadata.gid(), uid, &groups).unwrap_or_else(by_mode)
        };
        if !passes {
            return Err(DirectoryError::Unreachable {
                path: directory.to_owned(),
                uid,
                mode: metadata.mode() & 0o7777,
                owner: metadata.uid(),
                group: metadata.gid(),
            });
        }
    }
    Ok(())
}

/// The groups that a uid has by the host's user database; none for a uid that it does not know.
fn groups_of(uid: u32) -> Vec<u32> {
    let Ok(Some(user)) = User::from_uid(Uid::from_raw(uid)) else { return Vec::new() };
    let listed = std::ffi::CString::new(user.name).ok().and_then(|name| getgrouplist(&name, user.gid).ok());
    listed.unwrap_or_else(|| vec![user.gid]).into_iter().map(Gid::as_raw).collect()
}

fn make(path: &Path, mode: u32) -> Result<(), DirectoryError> {
    let failed = |path: &Path, source| DirectoryError::Io { path: path.to_owned(), source };
    let missing: Vec<&Path> = path.ancestors().take_while(|parent| !parent.exists()).collect();
    for directory in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(directory) {
            // The umask may have taken bits away that clients need.
            Ok(()) => fs::set_permissions(directory, fs::Permissions::from_mode(mode))
                .map_err(|source| failed(directory, source))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(failed(directory, source)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn missing_directories_are_made_existing_ones_kept() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        mode(top.path(), 0o755);
        let (pipe, log) = (top.path().join("a/pipe"), top.path().join("a/log"));
        for _ in 0..2 {
            check_directories(&pipe, &log, Some(65_534)).expect("usable");
        }
        for made in [&pipe, &log, &top.path().join("a")] {
            assert_eq!(fs::metadata(made).expect("made").mode() & 0o7777, 0o755);
        }
        let before = pipe_inode(&pipe).expect("inode");
        assert_eq!(before.number, fs::metadata(&pipe).expect("made").ino());
        assert!(pipe_inode(&pipe).expect("inode").is_same(before));
        // Longer than the clock tick by which file systems count.
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::remove_dir(&pipe).expect("empty");
        fs::create_dir(&pipe).expect("made");
        assert!(!pipe_inode(&pipe).expect("inode").is_same(before));
    }

    #[test]
    fn own_directories_are_closed_to_others() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        mode(top.path(), 0o755);
        let home = top.path().join("daemons/gpu0");
        let (all, pipe, log) = (top.path().join("daemons"), home.join("pipe"), home.join("log"));
        let access = |users: &[u32], everyone| PathAccess::passed_by(users.iter().copied(), everyone);
        // New ones, and those that an earlier version left open.
        for (users, everyone, wanted) in [
            (&[65_534][..], false, 0o710),
            (&[], false, 0o700),
            (&[], true, 0o711),
            (&[65_534, 33], false, 0o710),
        ] {
            let access = access(users, everyone);
            keep_directories(&[&all, &home], &pipe, &log, &access).expect("usable");
            for (path, wanted) in [(&all, 0o711), (&home, 0o711), (&pipe, wanted), (&log, 0o700)] {
                assert_eq!(fs::metadata(path).expect("made").mode() & 0o7777, wanted, "{}", path.display());
                let uid_may_pass = wanted == 0o711 || users.contains(&65_534) && *path == pipe;
                assert_eq!(check_reachable(path, 65_534).is_ok(), uid_may_pass, "{}", path.display());
                mode(path, 0o755);
            }
        }
    }

    #[test]
    fn unusable_path_is_refused_before_creation() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        let log = top.path().join("log");
        let too_long = top.path().join("x".repeat(LONGEST_PATH - top.path().as_os_str().len()));
        assert_eq!(too_long.as_os_str().len(), LONGEST_PATH + 1);
        let link = top.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).expect("link");
        for (pipe, message) in [
            (too_long, "the path has 83 bytes"),
            ("relative/pipe".into(), "absolute path"),
            ("/tmp/../etc".into(), "absolute path"),
            ("/tmp/nvidia-mps".into(), "container runtime"),
            ("/tmp/nvidia-mps/below".into(), "container runtime"),
            (link.join("nvidia-mps"), "container runtime"),
            (top.path().join("a\nb"), "control characters"),
        ] {
            let error = check_directories(&pipe, &log, None).expect_err("refused").to_string();
            assert!(error.contains(message), "{error}");
            assert!(!log.exists());
        }
    }

    #[test]
    fn parent_closed_to_tenant_is_named() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        mode(top.path(), 0o700);
        let (pipe, log) = (top.path().join("pipe"), top.path().join("log"));
        let error = check_directories(&pipe, &log, Some(65_534)).expect_err("closed");
        assert!(matches!(&error, DirectoryError::Unreachable { path, .. } if path == top.path()), "{error}");
        assert!(!pipe.exists());
        check_directories(&pipe, &log, Some(0)).expect("root passes everywhere");
    }

    #[test]
    fn closed_parent_behind_link_is_named() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        mode(top.path(), 0o755);
        let (closed, link) = (top.path().join("closed"), top.path().join("link"));
        fs::create_dir_all(closed.join("open")).expect("made");
        std::os::unix::fs::symlink(closed.join("open"), &link).expect("link");
        check_reachable(&link.join("pipe"), 65_534).expect("open so far");
        mode(&closed, 0o700);
        let error = check_reachable(&link.join("pipe"), 65_534).expect_err("closed");
        assert!(matches!(&error, DirectoryError::Unreachable { path, .. } if *path == closed), "{error}");
    }

    #[test]
    fn directory_writable_by_others_is_refused() {
        let top = tempfile::tempdir_in("/tmp").expect("directory");
        let (pipe, log) = (top.path().join("pipe"), top.path().join("log"));
        fs::create_dir(&pipe).expect("made");
        mode(&pipe, 0o777);
        let error = check_directories(&pipe, &log, None).expect_err("unsafe");
        assert!(error.to_string().contains("can be written by others (mode 777)"), "{error}");
        fs::remove_dir(&pipe).expect("removed");
        fs::write(&pipe, "").expect("a file");
        assert!(matches!(check_directories(&pipe, &log, None), Err(DirectoryError::Unsafe { .. })));
    }
}
