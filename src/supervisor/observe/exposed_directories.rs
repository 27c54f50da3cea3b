//! Daemons' own directories that are mounted in containers and other mount namespaces. Whoever has one reaches `control_privileged`,
//! through which root and the daemon's user change every limit.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::domain::DaemonName;
use crate::host::mounts::{self, MountSource};
use crate::host::{Identity, process};

/// The socket in a daemon's pipe directory by which it is administered.
const PRIVILEGED: &str = "control_privileged";

/// A daemon's own directory, as it is mounted in another mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExposedDirectory {
    /// The oldest process there.
    pub process: Identity,
    /// Where it is mounted there.
    pub point: PathBuf,
    /// The daemon; `None` for a directory that has those of all daemons in it.
    pub daemon: Option<DaemonName>,
}

/// The directories of the daemons of this runtime directory that are mounted in other mount namespaces than this process's and those
/// of `controls`, which are the daemons' control processes: they stay in the namespace of the manager that started them. Blocks.
///
/// A private copy of all mounts of the host, as of a systemd service with `PrivateTmp=`, mounts no such directory: it has whole file
/// systems.
pub fn exposed_directories(runtime_dir: &Path, controls: &[u32]) -> Vec<ExposedDirectory> {
    let Some(runtime) = MountSource::of(runtime_dir) else { return Vec::new() };
    let daemons = runtime.join("daemons");
    let mut wanted = BTreeMap::from([(runtime.clone(), None), (daemons.clone(), None)]);
    for entry in fs::read_dir(runtime_dir.join("daemons")).into_iter().flatten().flatten() {
        let Some(name) = entry.file_name().to_str().and_then(|name| DaemonName::parse(name).ok()) else {
            continue;
        };
        let home = daemons.join(name.as_str());
        let pipe = home.join("pipe");
        for source in [pipe.join(PRIVILEGED), pipe, home] {
            wanted.insert(source, Some(name.clone()));
        }
    }
    let found = mounts::elsewhere(|source| wanted.contains_key(source), controls).into_iter();
    let exposed = found.filter(|mount| mount.source != runtime || !is_device_plugin(mount.process.pid));
    exposed
        .filter_map(|mount| {
            let daemon = wanted.get(&mount.source)?.clone();
            Some(ExposedDirectory { process: mount.process, point: mount.point, daemon })
        })
        .collect()
}

/// Whether a process is this program as a Kubernetes device plugin, which has the runtime directory for the socket of the API.
fn is_device_plugin(pid: u32) -> bool {
    let this = OsStr::new(env!("CARGO_PKG_NAME"));
    process::executable(pid).is_some_and(|program| program.file_name() == Some(this))
        && process::command(pid).is_some_and(|words| words.iter().any(|word| word == "kubelet-plugin"))
}
