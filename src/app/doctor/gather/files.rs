//! Directories, the database in one of them, and the manager that has it open.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, FlockOperation, access, flock, statfs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::app::doctor::facts::{DirectoryFacts, DirectoryPlace, ManagerFacts, NoDatabase};
use crate::app::file_watch::missing_database;
use crate::app::{DATABASE, trusted};
use crate::config::Config;
use crate::host::files::{free_bytes, opened};
use crate::host::trust::{Content, Trust, Untrusted};
use crate::mps::process::{check_reachable, usable_directories};
use crate::store;
use crate::store::inspect::{Contents, Inspection};
use crate::supervisor::tenants_directory;

/// File systems over a network, by the number that `statfs` gives: NFS, CIFS, SMB2, Ceph, 9p, AFS, FUSE.
const NETWORK: [(i64, &str); 7] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "AFS"),
    (0x6573_5546, "FUSE"),
];
/// Longest time for a manager to report its health.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Answer of a healthy manager.
const HEALTHY: &str = "HTTP/1.1 200";

/// Finds the manager that holds the lock, by trying to share it for a moment.
pub(super) async fn manager(config: &Config) -> ManagerFacts {
    let path = config.state_dir.join("lock");
    let file = match fs::File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return ManagerFacts::NeverServed,
        Err(error) => return ManagerFacts::Unknown(format!("{}: {error}", path.display())),
        Ok(file) => file,
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return ManagerFacts::Stopped;
    }
    let holders = opened(std::slice::from_ref(&path)).found.into_iter().map(|holder| holder.identity.pid);
    let pid = holders.into_iter().find(|pid| *pid != std::process::id());
    let health = match tokio::time::timeout(TIMEOUT, health(&config.socket(), &trust(pid))).await {
        Ok(Ok(status)) if status == HEALTHY => Ok(()),
        Ok(Ok(status)) => Err(format!("says {status:?}")),
        Ok(Err(error)) => Err(format!("does not answer: {error}")),
        Err(_) => Err(format!("does not answer within {} s", TIMEOUT.as_secs())),
    };
    ManagerFacts::Serves { pid, health }
}

/// Returns the users that may write where the manager does: root, the caller, and the user of the manager that serves.
pub(super) fn trust(manager: Option<u32>) -> Trust {
    let serves = manager.and_then(|pid| fs::metadata(format!("/proc/{pid}")).ok());
    serves.map_or_else(Trust::own, |process| Trust::own().and(process.uid()))
}

/// Asks a manager for its health; returns the first bytes of its answer.
async fn health(socket: &Path, trust: &Trust) -> io::Result<String> {
    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    let uid = stream.peer_cred()?.uid();
    if !trust.includes(uid) {
        return Err(io::Error::other(format!("uid {uid} listens there, who is not the manager's user")));
    }
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut status = [0; HEALTHY.len()];
    stream.read_exact(&mut status).await?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}

pub(super) fn state_directory(path: &Path, trust: &Trust) -> DirectoryFacts {
    let kind = statfs(nearest(path)).map(|file_system| file_system.f_type);
    let network = NETWORK.into_iter().find(|(number, _)| kind == Ok(*number)).map(|(_, name)| name);
    let mode = |file: &Path| fs::metadata(file).map(|metadata| metadata.mode() & 0o7777);
    let files = [path.to_owned(), path.join(DATABASE)].into_iter();
    let open = files.filter_map(|file| Some((mode(&file).ok()?, file))).filter(|(mode, _)| mode & 0o077 != 0);
    let open = open.map(|(mode, file)| format!("{} (mode {mode:o})", file.display())).collect();
    DirectoryFacts { network, open, ..directory(path, trust, trusted::check_state) }
}

pub(super) fn directory(
    path: &Path,
    trust: &Trust,
    check: fn(&Path, &Trust) -> Result<(), Untrusted>,
) -> DirectoryFacts {
    let untrusted = check(path, trust).err();
    DirectoryFacts { place: place(path), network: None, untrusted, open: Vec::new() }
}

/// Returns the place of a directory; the reason why this user cannot use or make it.
pub(super) fn place(path: &Path) -> Result<DirectoryPlace, String> {
    let may_write = |path: &Path| access(path, Access::WRITE_OK | Access::EXEC_OK);
    let (shown, parent) = (path.display(), nearest(path));
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => Err(format!("{shown} is not a directory")),
        Ok(metadata) => may_write(path)
            .map(|()| existing(&metadata))
            .map_err(|errno| format!("{shown}: this user may not write there ({errno})")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            may_write(parent).map(|()| DirectoryPlace::CanBeMade(parent.to_owned())).map_err(|errno| {
                let parent = parent.display();
                format!("{shown} is not there, and this user may not make it in {parent} ({errno})")
            })
        }
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

fn existing(metadata: &Metadata) -> DirectoryPlace {
    DirectoryPlace::There { uid: metadata.uid(), mode: metadata.mode() & 0o7777 }
}

/// Returns the nearest place on the way to a path that exists.
fn nearest(path: &Path) -> &Path {
    path.ancestors().find(|place| place.exists()).unwrap_or(Path::new("/"))
}

pub(super) async fn database(state_dir: &Path) -> Result<Inspection, NoDatabase> {
    let path = state_dir.join(DATABASE);
    if !path.exists() {
        return Err(missing_database(state_dir).map_or(NoDatabase::NotMade, NoDatabase::Lost));
    }
    store::inspect::inspect(&path).await.map_err(|error| NoDatabase::Unreadable(error.to_string()))
}

/// Returns the free bytes of each of these directories, or where they will be made.
pub(super) fn free(paths: &[&Path]) -> Result<Vec<(u64, PathBuf)>, String> {
    let free = |path: &&Path| {
        let place = nearest(path);
        let free = free_bytes(place).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok((free, path.to_path_buf()))
    };
    paths.iter().map(free).collect()
}

/// Checks the paths of the daemons' sockets: of the daemons that are known, or of one with the shortest name; returns the first.
pub(super) fn pipes(config: &Config, contents: Option<&Contents>) -> Result<PathBuf, String> {
    trusted::check_length(&config.runtime_dir).map_err(|error| error.to_string())?;
    let recorded = contents.into_iter().flat_map(|contents| &contents.daemons);
    let managed = recorded.filter(|daemon| !daemon.spec.is_observed()).map(|daemon| daemon.name.to_string());
    let mut names: Vec<String> = managed.collect();
    if names.is_empty() {
        names.push("x".into());
    }
    let pipe = |name: &String| config.runtime_dir.join("daemons").join(name).join("pipe");
    for pipe in names.iter().map(pipe) {
        let usable = usable_directories(&pipe, &pipe.with_file_name("log"), None);
        usable.map_err(|error| error.to_string())?;
    }
    Ok(pipe(&names[0]))
}

/// Finds the tenants whose users do not reach the sockets in their directories.
pub(super) fn unreachable(config: &Config, contents: Option<&Contents>, trust: &Trust) -> Vec<String> {
    let mut wrong = Vec::new();
    for tenant in contents.into_iter().flat_map(|contents| &contents.tenants) {
        let directory = tenants_directory(&config.runtime_dir).join(tenant.directory.as_str());
        let trusted = trust.check_no_link(&directory, Content::Directory).map_err(|error| error.to_string());
        let reached = trusted
            .and_then(|_| check_reachable(&directory, tenant.spec.uid).map_err(|error| error.to_string()));
        wrong.extend(reached.err().map(|error| format!("{}: {error}", tenant.name)));
    }
    wrong
}
