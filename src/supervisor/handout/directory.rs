//! A tenant's directory in the file system: made, checked, and what its `control` is.
//!
//! What always holds: `control` is replaced by a rename and is never missing in between, and nothing is done in a
//! directory that another program could have made or may write to.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::io::Errno;

use crate::domain::condition::ConditionReason;
use crate::mps::process::SOCKET;
use crate::supervisor::reconcile::daemon::Blocker;

/// The mode of a tenant's directory: its users pass through it, and only the manager writes in it.
const MODE: u32 = 0o755;

/// Makes a directory, or checks the one that is there.
pub(super) fn ensure(path: &Path) -> Result<(), Blocker> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => check(path, &metadata)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().mode(MODE).create(path).map_err(|error| failed(path, &error))?;
        }
        Err(error) => return Err(failed(path, &error)),
    }
    // The umask may have taken bits away, and so may another program: a client that cannot pass runs outside MPS.
    fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(|error| failed(path, &error))
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), Blocker> {
    let shown = path.display();
    let unsafe_because = |what: String| {
        Err(Blocker {
            reason: ConditionReason::TenantDirectoryUnsafe,
            message: format!("{shown} {what}; the manager makes the directory again"),
        })
    };
    let me = rustix::process::geteuid().as_raw();
    if metadata.is_symlink() {
        return unsafe_because(format!("is a symbolic link and not a directory: remove it (rm {shown})"));
    }
    if !metadata.is_dir() {
        return unsafe_because(format!("is not a directory: remove it (rm {shown})"));
    }
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
                "{shown} has mode {mode:o}, so that others could replace the socket in it: see what is in it, and chmod 755 {shown}"
            ),
        });
    }
    Ok(())
}

/// Whether `control` in the directory is this very socket.
pub(super) fn is_linked(socket: &Path, directory: &Path) -> bool {
    let inode = |path: &Path| fs::symlink_metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let wanted = inode(socket);
    wanted.is_some() && wanted == inode(&directory.join(SOCKET))
}

/// Puts a hard link to the socket in the place of `control`; `between` is a name beside the directory for the moment between.
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
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;

    fn home() -> (tempfile::TempDir, PathBuf) {
        let home = tempfile::tempdir_in("/tmp").expect("directory");
        let directory = home.path().join("0123456789");
        (home, directory)
    }

    #[test]
    fn directory_is_made_and_narrow_mode_repaired() {
        let (_home, directory) = home();
        for mode in [0o700, 0o755, 0o711] {
            ensure(&directory).expect("made");
            fs::set_permissions(&directory, Permissions::from_mode(mode)).expect("mode");
            ensure(&directory).expect("repaired");
            assert_eq!(fs::metadata(&directory).expect("there").mode() & 0o7777, MODE);
        }
    }

    #[test]
    fn unsafe_directory_is_refused_with_remedy() {
        let (home, directory) = home();
        symlink("/tmp", &directory).expect("link");
        let refused = ensure(&directory).expect_err("a link");
        assert!(refused.message.contains("symbolic link") && refused.message.contains("rm "), "{refused:?}");
        fs::remove_file(&directory).expect("removed");
        fs::write(&directory, "").expect("written");
        assert!(ensure(&directory).expect_err("a file").message.contains("not a directory"));
        fs::remove_file(&directory).expect("removed");
        ensure(&directory).expect("made");
        fs::set_permissions(&directory, Permissions::from_mode(0o777)).expect("mode");
        let refused = ensure(&directory).expect_err("writable");
        assert!(refused.message.contains("chmod 755") && refused.message.contains("777"), "{refused:?}");
        assert_eq!(fs::metadata(&directory).expect("there").mode() & 0o7777, 0o777, "nothing is changed");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&directory, Some(65_534), None).expect("root may");
            assert!(ensure(&directory).expect_err("another's").message.contains("uid 65534"));
        }
        drop(home);
    }

    #[test]
    fn link_replaces_whatever_control_was() {
        let (home, directory) = home();
        ensure(&directory).expect("made");
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
        ensure(&directory).expect("made");
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
        ensure(&directory).expect("made");
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
