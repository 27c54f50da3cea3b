//! Search for daemons' own directories that are mounted in containers and other mount namespaces. A process that has one
//! reaches `control_privileged`, through which root and the daemon's user change every limit.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::host::mounts::{self, ForeignMount, MountSource};
use crate::host::{Identity, container, process};

/// Socket in a daemon's pipe directory by which it is administered.
const PRIVILEGED: &str = "control_privileged";

/// Directory with the privileged socket of a daemon, as it is mounted in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedDirectory {
    /// Oldest process there that may administer the daemon through the socket.
    pub process: Identity,
    /// Mount point in that namespace.
    pub point: PathBuf,
    /// Pipe directory whose socket is in it.
    pub pipe: PathBuf,
}

/// Result of a search for exposed directories.
#[derive(Debug)]
pub struct ExposureSearch {
    /// Number of directories that were searched for.
    pub searched: usize,
    /// Directories that were found.
    pub found: Vec<ExposedDirectory>,
    /// Number of processes that this one may not inspect, and that may have more.
    pub unseen: usize,
    /// Pipe directories that could not be searched for, each with the error.
    pub unresolved: Vec<(PathBuf, String)>,
}

/// Privileged socket of a daemon.
struct PrivilegedSocket<'p> {
    pipe: &'p Path,
    source: MountSource,
    /// User of the daemon.
    owner: u32,
}

impl<'p> PrivilegedSocket<'p> {
    fn of(pipe: &'p Path) -> io::Result<Self> {
        let owner = [pipe.join(PRIVILEGED), pipe.to_owned()].iter().find_map(|path| fs::metadata(path).ok());
        // A socket that does not exist yet will be made by this user.
        let owner = owner.map_or_else(|| rustix::process::geteuid().as_raw(), |metadata| metadata.uid());
        Ok(Self { pipe, source: source_of(pipe)?.join(PRIVILEGED), owner })
    }

    /// Returns true if the socket lets this user administer the daemon, which root and its owner may. An agent that watches
    /// the host and has mounted all of it mostly runs as another user. An unknown user may be either.
    fn lets_administer(&self, uid: Option<u32>) -> bool {
        uid.is_none_or(|uid| uid == 0 || uid == self.owner)
    }
}

/// Finds the mounts of the privileged sockets in these pipe directories in other mount namespaces than this process's and
/// those of `controls`, which are the daemons' control processes. Blocks.
pub fn exposed_directories(pipes: &[PathBuf], controls: &[u32]) -> io::Result<ExposureSearch> {
    let (mut sockets, mut unresolved) = (Vec::new(), Vec::new());
    for pipe in pipes {
        match PrivilegedSocket::of(pipe) {
            Ok(socket) => sockets.push(socket),
            // The user of an observed daemon may do anything with its directory: the others are searched for all the same.
            Err(error) => unresolved.push((pipe.clone(), error.to_string())),
        }
    }
    let targets: Vec<MountSource> = sockets.iter().map(|socket| socket.source.clone()).collect();
    let mounted = mounts::elsewhere(&targets, controls)?;
    let own_pod = container::pod_of(std::process::id());
    let is_own_plugin = |pid| own_pod.as_deref().is_some_and(|pod| is_device_plugin_in(pod, pid));
    let mut exposed = Vec::new();
    for ForeignMount { processes, point, source } in mounted.found {
        let others = processes.iter().filter(|process| !is_own_plugin(process.pid));
        let users: Vec<(Identity, Option<u32>)> =
            others.map(|process| (*process, process::uid(process.pid))).collect();
        for socket in sockets.iter().filter(|socket| source.contains(&socket.source)) {
            if let Some((process, _)) = users.iter().find(|(_, uid)| socket.lets_administer(*uid)) {
                let (point, pipe) = (point.clone(), socket.pipe.to_owned());
                exposed.push(ExposedDirectory { process: *process, point, pipe });
            }
        }
    }
    Ok(ExposureSearch { searched: pipes.len(), found: exposed, unseen: mounted.unseen, unresolved })
}

/// Returns the place of a directory that exists or will be made.
fn source_of(path: &Path) -> io::Result<MountSource> {
    match (MountSource::of(path), path.parent(), path.file_name()) {
        (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
            Ok(source_of(parent)?.join(name))
        }
        (source, _, _) => source,
    }
}

/// Returns true if a process is this program as a Kubernetes device plugin, in the pod of this process. It has the runtime
/// directory for the socket of the API. A program may choose its name freely, but not the pod that it is in.
fn is_device_plugin_in(pod: &str, pid: u32) -> bool {
    let own_name = OsStr::new(env!("CARGO_PKG_NAME"));
    container::pod_of(pid).as_deref() == Some(pod)
        && process::executable(pid).is_some_and(|program| program.file_name() == Some(own_name))
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
        let missing = PrivilegedSocket::of(&pipe).expect("placed");
        assert!(missing.lets_administer(Some(0)) && missing.lets_administer(None));
        assert!(missing.lets_administer(Some(rustix::process::geteuid().as_raw())));
        assert!(!missing.lets_administer(Some(u32::MAX - 1)));
        let file = directory.path().join("file");
        fs::write(&file, "").expect("written");
        let search = exposed_directories(&[file.join("pipe"), pipe], &[]).expect("the other is searched for");
        assert_eq!(search.unresolved.len(), 1, "{:?}", search.unresolved);
    }
}
