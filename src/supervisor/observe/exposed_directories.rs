//! Daemons' own directories that are mounted in containers and other mount namespaces. A process that has one reaches `control_privileged`,
//! through which root and the daemon's user change every limit.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::host::mounts::{self, MountSource};
use crate::host::{Identity, container, process};

/// The socket in a daemon's pipe directory by which it is administered.
const PRIVILEGED: &str = "control_privileged";

/// A directory with the privileged sockets of daemons, as it is mounted in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedDirectory {
    /// The oldest process there.
    pub process: Identity,
    /// Where it is mounted there.
    pub point: PathBuf,
    /// The pipe directories whose sockets are in it.
    pub pipes: Vec<PathBuf>,
}

/// What a search for such directories found.
#[derive(Debug)]
pub struct ExposureSearch {
    /// The directories.
    pub found: Vec<ExposedDirectory>,
    /// How many processes this one may not inspect, so that they may have more.
    pub unseen: usize,
}

/// The mounts in which the privileged socket of a daemon with one of these pipe directories is, in other mount namespaces than this
/// process's and those of `controls`, which are the daemons' control processes. Blocks.
pub fn exposed_directories(pipes: &[PathBuf], controls: &[u32]) -> io::Result<ExposureSearch> {
    let sockets = pipes.iter().map(|pipe| Ok::<_, io::Error>((source_of(pipe)?.join(PRIVILEGED), pipe)));
    let sockets: Vec<(MountSource, &PathBuf)> = sockets.collect::<Result<_, _>>()?;
    let targets: Vec<MountSource> = sockets.iter().map(|(socket, _)| socket.clone()).collect();
    let mounted = mounts::elsewhere(&targets, controls)?;
    let found = mounted.found.into_iter();
    let found = found.filter(|mount| {
        may_administer(process::uid(mount.process.pid)) && !is_own_device_plugin(mount.process.pid)
    });
    let found = found.map(|mount| {
        let inside = sockets.iter().filter(|(socket, _)| mount.source.contains(socket));
        let pipes = inside.map(|(_, pipe)| (*pipe).clone()).collect();
        ExposedDirectory { process: mount.process, point: mount.point, pipes }
    });
    Ok(ExposureSearch { found: found.collect(), unseen: mounted.unseen })
}

/// Where a directory is, or will be made.
fn source_of(path: &Path) -> io::Result<MountSource> {
    match (MountSource::of(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(source_of(parent)?.join(name))
        }
        (known, _, _) => known,
    }
}

/// Whether the socket lets this user administer daemons: root, and whose they are. An agent that watches the host, and has all of it, mostly
/// runs as another user. A user that is not known may be either.
fn may_administer(uid: Option<u32>) -> bool {
    uid.is_none_or(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
}

/// Whether a process is this program as a Kubernetes device plugin in the pod of this process: it has the runtime directory for the
/// socket of the API. What a program calls itself is free to choose, but not the pod that it is in.
fn is_own_device_plugin(pid: u32) -> bool {
    let this = OsStr::new(env!("CARGO_PKG_NAME"));
    let pod = container::pod_of(std::process::id());
    pod.is_some()
        && container::pod_of(pid) == pod
        && process::executable(pid).is_some_and(|program| program.file_name() == Some(this))
        && process::command(pid).is_some_and(|words| words.iter().any(|word| word == "kubelet-plugin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_is_not_made_is_placed() {
        let directory = tempfile::tempdir().expect("a directory");
        let there = MountSource::of(directory.path()).expect("there");
        let pipe = directory.path().join("gpu0").join("pipe");
        assert_eq!(source_of(&pipe).expect("placed"), there.join("gpu0").join("pipe"));
        assert!(exposed_directories(&[PathBuf::new()], &[]).is_err(), "no place to search for");
        assert!(may_administer(Some(0)) && may_administer(None) && !may_administer(Some(u32::MAX - 1)));
    }
}
