//! Directories, the database in one of them, and the manager that has it open.

use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, FlockOperation, access, flock, statfs, statvfs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{Examination, Manager};
use crate::app::file_watch::missing_database;
use crate::app::{DATABASE, trusted};
use crate::domain::checkup::Check;
use crate::domain::count::counted;
use crate::domain::memory::Bytes;
use crate::host::files::opened;
use crate::host::trust::{Content, Trust, Untrusted};
use crate::mps::process::{DEFAULT_PIPE_DIRECTORY, check_reachable, usable_directories};
use crate::store::{self, schema::Schema};
use crate::supervisor::tenants_directory;

/// Free bytes below which a manager may fail any moment: a write-ahead log and a copy before a migration have no room.
const NO_ROOM: u64 = 16 << 20;
/// Free bytes below which some should be freed soon.
const LITTLE_ROOM: u64 = 256 << 20;
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

/// Asks a manager for its health; returns the first bytes of its answer.
async fn health(socket: &Path, trust: &Trust) -> std::io::Result<String> {
    let mut stream = tokio::net::UnixStream::connect(socket).await?;
    let uid = stream.peer_cred()?.uid();
    if !trust.includes(uid) {
        return Err(std::io::Error::other(format!("uid {uid} listens there, who is not the manager's user")));
    }
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut status = [0; HEALTHY.len()];
    stream.read_exact(&mut status).await?;
    Ok(String::from_utf8_lossy(&status).into_owned())
}

/// Makes the check of a path that `serve` would refuse.
fn untrusted(id: &'static str, Untrusted { path, problem, remedy }: Untrusted) -> Check {
    Check::fail(id, format!("{} {problem}", path.display()), remedy)
}

/// State of a directory that has to exist or be created.
enum DirectoryState {
    There(Metadata),
    /// It is missing, and this is its nearest parent that exists.
    CanBeMade(PathBuf),
    Unusable(String),
}

fn place(path: &Path) -> DirectoryState {
    match fs::metadata(path) {
        Ok(metadata) if !metadata.is_dir() => {
            DirectoryState::Unusable(format!("{} is not a directory", path.display()))
        }
        Ok(metadata) => match access(path, Access::WRITE_OK | Access::EXEC_OK) {
            Ok(()) => DirectoryState::There(metadata),
            Err(errno) => DirectoryState::Unusable(format!(
                "{}: this user may not write there ({errno})",
                path.display()
            )),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.ancestors().skip(1).find(|parent| parent.exists()).unwrap_or(Path::new("/"));
            match access(parent, Access::WRITE_OK | Access::EXEC_OK) {
                Ok(()) => DirectoryState::CanBeMade(parent.to_owned()),
                Err(errno) => DirectoryState::Unusable(format!(
                    "{} is not there, and this user may not make it in {} ({errno})",
                    path.display(),
                    parent.display()
                )),
            }
        }
        Err(error) => DirectoryState::Unusable(format!("{}: {error}", path.display())),
    }
}

/// Returns the name of the network file system that a path is on, or would be on; `None` for a local one.
fn network(path: &Path) -> Option<&'static str> {
    let there = path.ancestors().find(|parent| parent.exists())?;
    let kind = statfs(there).ok()?.f_type;
    NETWORK.into_iter().find(|(number, _)| *number == kind).map(|(_, name)| name)
}

/// Checks the schema of an intact database.
fn schema(path: &Path, schema: Schema) -> Check {
    let known = store::schema::newest();
    let what = format!("{}, {schema}", path.display());
    let (what, remedy) = match schema {
        Schema::Version(found) if found == known => return Check::ok("database", format!("{what}, intact")),
        Schema::Version(found) if found < known => {
            let what = format!("{what}: the next start makes a copy and brings it up to {known}");
            return Check::ok("database", what);
        }
        Schema::Version(_) => (
            format!("{what}, and this mps-manager knows {known}"),
            "start the newer mps-manager that wrote it, or restore an older backup",
        ),
        Schema::PreRelease => (
            format!("{} was made by a pre-release of mps-manager", path.display()),
            "move the state directory away and start again: control daemons that run can be adopted",
        ),
        Schema::None => (
            format!("{} is not a database of mps-manager", path.display()),
            "move it away, or name another --state-dir",
        ),
    };
    Check::fail("database", what, remedy)
}

impl Examination {
    /// Checks whether a manager holds the lock, by trying to share it for a moment.
    pub(super) async fn manager(&mut self) {
        let path = self.config.state_dir.join("lock");
        let check = match fs::File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Check::ok("manager", "none has ever served from this state directory")
            }
            Err(error) => Check::skipped("manager", format!("{}: {error}", path.display())),
            Ok(file) => match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => Check::ok("manager", "none serves from this state directory"),
                Err(_) => {
                    let myself = std::process::id();
                    let holders = opened(std::slice::from_ref(&path)).found;
                    let pid = holders.iter().map(|holder| holder.identity.pid).find(|pid| *pid != myself);
                    self.manager = pid.map_or(Manager::Unseen, Manager::Process);
                    let words = pid.map_or_else(
                        || "one whose process this user may not see".to_owned(),
                        |pid| format!("process {pid}"),
                    );
                    self.serving(&words).await
                }
            },
        };
        self.add(check);
    }

    async fn serving(&self, words: &str) -> Check {
        let socket = self.config.socket();
        let answer = tokio::time::timeout(TIMEOUT, health(&socket, &self.trust())).await;
        let why = match answer {
            Ok(Ok(status)) if status == HEALTHY => {
                return Check::ok("manager", format!("{words} serves at {}", socket.display()));
            }
            Ok(Ok(status)) => format!("says {status:?}"),
            Ok(Err(error)) => format!("does not answer: {error}"),
            Err(_) => format!("does not answer within {} s", TIMEOUT.as_secs()),
        };
        Check::warn(
            "manager",
            format!("{words} has the state directory, and {} {why}", socket.display()),
            "it may be starting or ending, or be stopped; else give the --runtime-dir that it has, or see its log",
        )
    }

    pub(super) fn state_directory(&mut self) {
        let path = &self.config.state_dir;
        let check = match (place(path), network(path)) {
            (DirectoryState::Unusable(why), _) => Check::fail(
                "state_directory",
                why,
                "run this as the manager's user, give that user the directory, or name another with --state-dir",
            ),
            (_, Some(kind)) => Check::fail(
                "state_directory",
                format!("{} is on {kind}, a file system over a network", path.display()),
                "SQLite's log is shared memory of one host: name a directory on a local disk with --state-dir",
            ),
            (DirectoryState::CanBeMade(parent), None) => Check::ok(
                "state_directory",
                format!("{} is not there yet, and can be made in {}", path.display(), parent.display()),
            ),
            (DirectoryState::There(metadata), None) => self.state_modes(&metadata),
        };
        self.add(check);
    }

    fn state_modes(&self, directory: &Metadata) -> Check {
        let path = &self.config.state_dir;
        if let Err(error) = trusted::check_state(path, &self.trust()) {
            return untrusted("state_directory", error);
        }
        let loose = |metadata: &Metadata| metadata.permissions().mode() & 0o077 != 0;
        let open: Vec<String> = [path.clone(), path.join(DATABASE)]
            .into_iter()
            .filter_map(|file| {
                let metadata = fs::metadata(&file).ok()?;
                loose(&metadata).then(|| format!("{} (mode {:o})", file.display(), metadata.mode() & 0o7777))
            })
            .collect();
        if open.is_empty() {
            return Check::ok(
                "state_directory",
                format!(
                    "{} of uid {}, mode {:o}",
                    path.display(),
                    directory.uid(),
                    directory.mode() & 0o7777
                ),
            );
        }
        Check::warn(
            "state_directory",
            format!("others than its owner reach {}", open.join(", ")),
            "chmod 700 the directory and 600 the files",
        )
    }

    pub(super) async fn database(&mut self, path: &Path) {
        let state_dir = self.config.state_dir.display();
        let restore = format!("restore a backup (`mps-manager restore FILE --state-dir {state_dir}`)");
        if !path.exists() {
            self.add(match missing_database(&self.config.state_dir) {
                Some(what) => Check::fail(
                    "database",
                    what,
                    format!("{restore}, or begin with an empty one (`serve --new-database`)"),
                ),
                None => Check::skipped("database", "there is none yet: the first start makes it"),
            });
            self.add(Check::skipped("machine", "there is no database yet"));
            return;
        }
        let check = match store::inspect::inspect(path).await {
            Err(error) => Check::fail("database", format!("{}: {error}", path.display()), restore),
            Ok(seen) => {
                self.contents = seen.contents;
                match seen.damage {
                    Some(damage) => {
                        Check::fail("database", format!("{} is damaged: {damage}", path.display()), restore)
                    }
                    None => schema(path, seen.schema),
                }
            }
        };
        self.add(check);
        let stored = self.contents.as_ref().map(|contents| contents.machine_id.clone());
        self.add(match stored {
            None => Check::skipped("machine", "the database does not say"),
            Some(None) => Check::ok("machine", format!("{}: the next start writes it down", self.machine_id)),
            Some(Some(stored)) if stored == self.machine_id => Check::ok("machine", stored),
            Some(Some(stored)) => Check::warn(
                "machine",
                format!(
                    "the database belongs to machine {stored}, and this is {}: it is served read-only. Confirm it if it was moved here for \
                     good; else give this host a state directory of its own",
                    self.machine_id
                ),
                "mps-manager host confirm",
            ),
        });
    }

    pub(super) fn space(&mut self) {
        let mut free = Vec::new();
        for path in [self.config.state_dir.clone(), self.config.runtime_dir.clone()] {
            let there = path.ancestors().find(|parent| parent.exists()).unwrap_or(Path::new("/"));
            match statvfs(there) {
                Ok(disk) => free.push((disk.f_bavail.saturating_mul(disk.f_frsize), path)),
                Err(errno) => {
                    self.add(Check::skipped("disk_space", format!("{}: {errno}", there.display())));
                    return;
                }
            }
        }
        let words: Vec<String> = free
            .iter()
            .map(|(bytes, path)| format!("{} free at {}", Bytes(*bytes), path.display()))
            .collect();
        let least = free.iter().map(|(bytes, _)| *bytes).min().unwrap_or_default();
        let remedy =
            "free space: without any, nothing can be changed and daemons that die are not written down";
        self.add(if least < NO_ROOM {
            Check::fail("disk_space", words.join(", "), remedy)
        } else if least < LITTLE_ROOM {
            Check::warn("disk_space", words.join(", "), remedy)
        } else {
            Check::ok("disk_space", words.join(", "))
        });
    }

    pub(super) fn runtime_directory(&mut self) {
        let path = &self.config.runtime_dir;
        let check = match place(path) {
            DirectoryState::Unusable(why) => Check::fail(
                "runtime_directory",
                why,
                "run this as the manager's user, give that user the directory, or name another with --runtime-dir",
            ),
            DirectoryState::CanBeMade(parent) => Check::ok(
                "runtime_directory",
                format!("{} is not there yet, and can be made in {}", path.display(), parent.display()),
            ),
            DirectoryState::There(metadata) => match trusted::check_runtime(path, &self.trust()) {
                Err(error) => untrusted("runtime_directory", error),
                Ok(()) => Check::ok(
                    "runtime_directory",
                    format!(
                        "{} of uid {}, mode {:o}",
                        path.display(),
                        metadata.uid(),
                        metadata.mode() & 0o7777
                    ),
                ),
            },
        };
        self.add(check);
    }

    /// Returns the users that may write where the manager does: root, the caller, and the user of the manager that serves.
    fn trust(&self) -> Trust {
        let serves = self.manager.pid().and_then(|pid| fs::metadata(format!("/proc/{pid}")).ok());
        serves.map_or_else(Trust::own, |process| Trust::own().and(process.uid()))
    }

    /// Returns the paths of the daemons' sockets: of the daemons that are known, or of one with the shortest name.
    fn pipes(&self) -> Vec<PathBuf> {
        let names = self.contents.iter().flat_map(|contents| &contents.daemons);
        let managed = names.filter(|daemon| !daemon.spec.is_observed()).map(|daemon| daemon.name.to_string());
        let mut names: Vec<String> = managed.collect();
        if names.is_empty() {
            names.push("x".into());
        }
        names.iter().map(|name| self.config.runtime_dir.join("daemons").join(name).join("pipe")).collect()
    }

    pub(super) fn pipe_directories(&mut self) {
        let remedy = "name a short runtime directory of the manager's own with --runtime-dir";
        if let Err(error) = trusted::check_length(&self.config.runtime_dir) {
            self.add(Check::fail("pipe_directories", error.to_string(), remedy));
        } else {
            let pipes = self.pipes();
            let refused = pipes
                .iter()
                .find_map(|pipe| usable_directories(pipe, &pipe.with_file_name("log"), None).err());
            self.add(match refused {
                Some(error) => Check::fail("pipe_directories", error.to_string(), remedy),
                None => Check::ok("pipe_directories", format!("as {}", pipes[0].display())),
            });
        }
        let default = Path::new(DEFAULT_PIPE_DIRECTORY);
        self.add(if default.symlink_metadata().is_ok() {
            Check::warn(
                "default_pipe_directory",
                format!(
                    "{} is there: the NVIDIA container runtime mounts it into every GPU container",
                    default.display()
                ),
                "quit the daemon that made it, if one runs, and remove it",
            )
        } else {
            Check::ok("default_pipe_directory", format!("{} is not there", default.display()))
        });
    }

    /// Checks that the users of tenants reach the sockets in their directories.
    pub(super) fn tenants(&mut self) {
        let Some(contents) = &self.contents else {
            self.add(Check::skipped("tenants", "tenants cannot be read from this database"));
            return;
        };
        let mut wrong: Vec<String> = Vec::new();
        for tenant in &contents.tenants {
            let directory = tenants_directory(&self.config.runtime_dir).join(tenant.directory.as_str());
            let trusted = self.trust().check_no_link(&directory, Content::Directory);
            if let Err(error) = trusted
                .map_err(|error| error.to_string())
                .and_then(|_| check_reachable(&directory, tenant.spec.uid).map_err(|error| error.to_string()))
            {
                wrong.push(format!("{}: {error}", tenant.name));
            }
        }
        let count = contents.tenants.len();
        self.add(if wrong.is_empty() {
            Check::ok_of(
                "tenants",
                count,
                "there is no tenant",
                format!("the users of {} reach the sockets of their daemons", counted(count, "tenant")),
            )
        } else {
            Check::fail(
                "tenants",
                wrong.join("; "),
                "let these users pass through the directories that are named",
            )
        });
    }
}
