//! A tenant's directory in the file system: making it, checking it, and replacing its `control`.
//!
//! Two rules always hold: `control` is replaced by a rename and is never missing in between, and nothing is done in a
//! directory that another program could have made or may write to.

use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::io::Errno;

use crate::domain::condition::ConditionReason;
use crate::domain::plan::OtherUsers;
use crate::host::access::{self, PathAccess};
use crate::mps::process::SOCKET;
use crate::supervisor::blocker::Blocker;

/// Returns the users who may pass through the directory of a tenant: its own user, and the other users of its daemon.
pub(super) fn of_tenant(uid: u32, others: &OtherUsers) -> PathAccess {
    PathAccess::passed_by(others.users.iter().copied().chain([uid]), others.everyone)
}

/// Makes the directory that contains the directories of all tenants: everybody passes through it, and nobody else reads their
/// names. Also makes the directory in it for sockets that are not in place yet.
pub(super) fn ensure_root(path: &Path, unplaced: &Path) -> Result<(), Blocker> {
    ensure(path, Some(&access::PASSED))?;
    ensure(unplaced, Some(&access::PRIVATE))
}

/// Makes a directory, or checks an existing one. Without `access`, for an unknown tenant, the access stays as it is.
pub(super) fn ensure(path: &Path, access: Option<&PathAccess>) -> Result<(), Blocker> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => check(path, &metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(0o700).create(path).map_err(|error| failed(path, &error))?;
        }
        Err(error) => return Err(failed(path, &error)),
    }
    // Another program may have removed permissions: a client that cannot pass runs outside MPS.
    access.map_or(Ok(true), |access| access.keep(path)).map(drop).map_err(|error| failed(path, &error))
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), Blocker> {
    let shown = path.display();
    let unsafe_because = |what: String| {
        Err(Blocker {
            reason: ConditionReason::TenantDirectoryUnsafe,
            message: format!("{shown} {what}; the manager makes the directory again"),
        })
    };
    if metadata.is_symlink() {
        return unsafe_because(format!("is a symbolic link and not a directory: remove it (rm {shown})"));
    }
    if !metadata.is_dir() {
        return unsafe_because(format!("is not a directory: remove it (rm {shown})"));
    }
    let me = rustix::process::geteuid().as_raw();
    if metadata.uid() != me {
        let owner = metadata.uid();
        return unsafe_because(format!(
            "belongs to uid {owner} and not to uid {me}, so that others could replace the socket in it: remove it (rm -r {shown})"
        ));
    }
    if metadata.mode() & 0o022 != 0 {
        let mode = metadata.mode() & 0o7777;
        return Err(Blocker {
            reason: ConditionReason::TenantDirectoryUnsafe,
            message: format!(
                "{shown} has mode {mode:o}, so that others could replace the socket in it: see what is in it, and chmod 700 {shown}"
            ),
        });
    }
    Ok(())
}

/// Device and number of a file.
pub(super) type Inode = (u64, u64);

/// Returns the file at a path, which is not followed.
pub(super) fn inode(path: &Path) -> Option<Inode> {
    fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()))
}

/// Returns true if a directory is safe and has its access, and `control` in it is this file.
pub(super) fn is_as_made(path: &Path, access: Option<&PathAccess>, control: Inode) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| check(path, &metadata).is_ok())
        && access.is_none_or(|access| access.is_held(path))
        && inode(&path.join(SOCKET)) == Some(control)
}

/// Returns true if `control` in the directory is this very socket.
pub(super) fn is_linked(socket: &Path, directory: &Path) -> bool {
    let wanted = inode(socket);
    wanted.is_some() && wanted == inode(&directory.join(SOCKET))
}

/// Puts a hard link to the socket in the place of `control`. `between` is the temporary name of the link, beside the directory.
pub(super) fn link(socket: &Path, directory: &Path, between: &Path) -> Result<(), Blocker> {
    if is_linked(socket, directory) {
        // A rename between two links to one file does nothing and leaves both.
        return Ok(());
    }
    match fs::symlink_metadata(socket) {
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            let message = format!("{} is not a socket: restart the daemon", socket.display());
            return Err(Blocker { reason: ConditionReason::NoControlSocket, message });
        }
        Err(error) => {
            let message = format!("{}: {error}: restart the daemon", socket.display());
            return Err(Blocker { reason: ConditionReason::NoControlSocket, message });
        }
    }
    let _ = fs::remove_file(between);
    fs::hard_link(socket, between).map_err(|error| not_linked(socket, directory, &error))?;
    replace(between, directory)
}

/// Renames a socket over `control` of the directory.
pub(super) fn replace(socket: &Path, directory: &Path) -> Result<(), Blocker> {
    let control = directory.join(SOCKET);
    fs::rename(socket, &control).map_err(|error| {
        let _ = fs::remove_file(socket);
        let message = format!(
            "{} cannot be replaced ({error}): remove what is there, and the manager makes it again",
            control.display()
        );
        Blocker { reason: ConditionReason::TenantDirectoryUnsafe, message }
    })
}

fn not_linked(socket: &Path, directory: &Path, error: &io::Error) -> Blocker {
    let (from, to) = (socket.display(), directory.display());
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::XDEV) => Blocker {
            reason: ConditionReason::OtherFileSystem,
            message: format!(
                "the socket {from} cannot be linked into {to}, which is on another file system: serve with a --runtime-dir on the \
                 file system of the socket, or replace this daemon by one that the manager starts itself"
            ),
        },
        Some(Errno::PERM | Errno::ACCESS) => {
            let me = rustix::process::geteuid().as_raw();
            let owner = fs::symlink_metadata(socket)
                .map_or_else(|_| "another user".to_owned(), |it| format!("uid {}", it.uid()));
            Blocker {
                reason: ConditionReason::LinkNotPermitted,
                message: format!(
                    "the socket {from} belongs to {owner}, and the kernel lets uid {me} make no hard link to it \
                     (fs.protected_hardlinks): run the manager as root, or replace this daemon by one that the manager starts itself"
                ),
            }
        }
        _ => Blocker {
            reason: ConditionReason::SocketNotLinked,
            message: format!(
                "the socket {from} cannot be linked into {to} ({error}): see that the disk has room"
            ),
        },
    }
}

fn failed(path: &Path, error: &io::Error) -> Blocker {
    let message = format!(
        "{}: {error}: see that the runtime directory has room and belongs to the manager",
        path.display()
    );
    Blocker { reason: ConditionReason::TenantDirectoryUnsafe, message }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;

    fn ours() -> PathAccess {
        of_tenant(rustix::process::geteuid().as_raw(), &OtherUsers::default())
    }

    fn home() -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir_in("/tmp").expect("directory");
        let directory = home.path().join("0123456789");
        (home, directory)
    }

    #[test]
    fn directory_is_made_and_narrow_mode_repaired() {
        let (_home, directory) = home();
        for mode in [0o500, 0o755, 0o711] {
            ensure(&directory, Some(&ours())).expect("made");
            fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("mode");
            ensure(&directory, Some(&ours())).expect("repaired");
            assert_eq!(fs::metadata(&directory).expect("there").mode() & 0o7777, 0o700);
        }
    }

    #[test]
    fn unsafe_directory_is_refused_with_remedy() {
        let (home, directory) = home();
        symlink("/tmp", &directory).expect("link");
        let refused = ensure(&directory, Some(&ours())).expect_err("a link");
        assert!(refused.message.contains("symbolic link") && refused.message.contains("rm "), "{refused:?}");
        fs::remove_file(&directory).expect("removed");
        fs::write(&directory, "").expect("written");
        assert!(ensure(&directory, Some(&ours())).expect_err("a file").message.contains("not a directory"));
        fs::remove_file(&directory).expect("removed");
        ensure(&directory, Some(&ours())).expect("made");
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("mode");
        let refused = ensure(&directory, Some(&ours())).expect_err("writable");
        assert!(refused.message.contains("chmod 700") && refused.message.contains("777"), "{refused:?}");
        assert_eq!(fs::metadata(&directory).expect("there").mode() & 0o7777, 0o777, "nothing is changed");
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&directory, Permissions::from_mode(0o700)).expect("mode");
            std::os::unix::fs::chown(&directory, Some(65_534), None).expect("root may");
            let refused = ensure(&directory, Some(&ours())).expect_err("another's");
            assert!(refused.message.contains("belongs to uid 65534"), "{refused:?}");
        }
        drop(home);
    }

    #[test]
    fn only_the_manager_owns_a_directory() {
        let (_home, directory) = home();
        let added = OtherUsers { users: vec![1234, 33, 0], everyone: false };
        let everyone = OtherUsers { users: vec![33], everyone: true };
        let nobody = OtherUsers::default();
        // The user of a tenant may change, too.
        for (uid, others, mode) in [
            (65_534, &nobody, 0o710),
            (33, &added, 0o710),
            (0, &added, 0o710),
            (33, &everyone, 0o711),
            (0, &nobody, 0o700),
        ] {
            ensure(&directory, Some(&of_tenant(uid, others))).expect("kept");
            ensure(&directory, None).expect("as it is");
            let found = fs::metadata(&directory).expect("there");
            let me = rustix::process::geteuid().as_raw();
            assert_eq!((found.uid(), found.mode() & 0o7777), (me, mode), "{uid} {others:?}");
        }
    }

    #[test]
    fn link_replaces_whatever_control_was() {
        let (home, directory) = home();
        ensure(&directory, Some(&ours())).expect("made");
        let (socket, between) = (home.path().join("control"), home.path().join(".between"));
        assert_eq!(
            link(&socket, &directory, &between).expect_err("none").reason,
            ConditionReason::NoControlSocket
        );
        fs::write(&socket, "").expect("written");
        assert_eq!(
            link(&socket, &directory, &between).expect_err("a file").reason,
            ConditionReason::NoControlSocket
        );
        fs::remove_file(&socket).expect("removed");
        for _ in 0..2 {
            let _listener = UnixListener::bind(&socket).expect("bound");
            for _ in 0..2 {
                link(&socket, &directory, &between).expect("linked");
                assert!(is_linked(&socket, &directory) && !between.exists());
            }
            fs::remove_file(&socket).expect("removed");
            assert!(!is_linked(&socket, &directory));
        }
        let _listener = UnixListener::bind(&socket).expect("bound");
        fs::remove_file(directory.join(SOCKET)).expect("removed");
        fs::create_dir(directory.join(SOCKET)).expect("made");
        assert_eq!(
            link(&socket, &directory, &between).expect_err("in the way").reason,
            ConditionReason::TenantDirectoryUnsafe
        );
        assert!(!between.exists());
    }

    #[test]
    fn other_file_system_is_named_as_reason() {
        let (home, directory) = home();
        let elsewhere = tempfile::tempdir_in("/dev/shm").expect("directory");
        let dev = |path: &Path| fs::metadata(path).expect("there").dev();
        if dev(home.path()) == dev(elsewhere.path()) {
            return;
        }
        ensure(&directory, Some(&ours())).expect("made");
        let socket = elsewhere.path().join("control");
        let _listener = UnixListener::bind(&socket).expect("bound");
        let refused = link(&socket, &directory, &home.path().join(".between")).expect_err("two file systems");
        assert_eq!(refused.reason, ConditionReason::OtherFileSystem);
        assert!(refused.message.contains("--runtime-dir"), "{refused:?}");
    }

    #[test]
    fn socket_of_another_user_is_named_with_remedy() {
        let protected = fs::read_to_string("/proc/sys/fs/protected_hardlinks").unwrap_or_default();
        if protected.trim() != "1" || !rustix::process::geteuid().is_root() {
            return;
        }
        let (home, directory) = home();
        ensure(&directory, Some(&ours())).expect("made");
        let socket = home.path().join("control");
        let _listener = UnixListener::bind(&socket).expect("bound");
        for path in [home.path(), &directory] {
            std::os::unix::fs::chown(path, Some(65_534), None).expect("root may");
        }
        let between = home.path().join(".between");
        // A thread has a user of its own, and a new one with the first system call of its name.
        let refused = std::thread::scope(|scope| {
            let as_nobody = || {
                let nobody = rustix::thread::Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("root may");
                link(&socket, &directory, &between)
            };
            scope.spawn(as_nobody).join().expect("no panic").expect_err("not its owner")
        });
        assert_eq!(refused.reason, ConditionReason::LinkNotPermitted);
        for word in ["uid 0", "fs.protected_hardlinks", "run the manager as root"] {
            assert!(refused.message.contains(word), "{refused:?}");
        }
        assert!(!between.exists() && !directory.join(SOCKET).exists());
    }
}
