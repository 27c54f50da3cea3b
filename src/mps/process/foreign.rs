//! Every control daemon of the host, whichever program started it, as `/proc` shows it.
//!
//! Nothing here talks to a daemon or believes what can be forged: neither its pid file nor its log is read. What may
//! not be read, as another user's environment, is said and not guessed.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::domain::daemon::Mode;
use crate::domain::environment::TENANT_HINT;
use crate::domain::foreign_owner::ForeignOwner;
use crate::domain::{Inode, TenantName};
use crate::host::container::container_of;
use crate::host::signal::WORLD_ENV;
use crate::host::{Identity, process, systemd};

use super::find::{is_control, is_same_directory, is_server, mode_of};
use super::{DEFAULT_PIPE_DIRECTORY, LOG_ENV, MULTI_USER_OPTIONS, PIPE_ENV, TOKEN_ENV, pipe_inode};

/// Where a daemon's logs go when its environment does not say (FACTS.md, "Starting, stopping, dying").
const DEFAULT_LOG_DIRECTORY: &str = "/var/log/nvidia-mps";

/// The longest name of a program that is shown.
const LONGEST_NAME: usize = 64;

/// A control daemon that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its process.
    pub identity: Identity,
    /// Its user.
    pub uid: Option<u32>,
    /// The words of its command line after its own name.
    pub options: Vec<String>,
    /// True if its clients may be of several users (`-M`).
    pub multi_user: bool,
    /// Mode of the daemon: static if it serves static SM partitions (`-S`).
    pub mode: Mode,
    /// The owner: the program or tenant that keeps it.
    pub owner: ForeignOwner,
    /// Facts from its environment; the reason where that may not be read.
    pub environment: Result<Surroundings, String>,
}

/// The environment of a control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surroundings {
    /// The directory of its sockets, as the daemon sees it.
    pub pipe_directory: PathBuf,
    /// The directory of its logs, as the daemon sees it.
    pub log_directory: PathBuf,
    /// `CUDA_VISIBLE_DEVICES`, where it is set.
    pub visible_devices: Option<String>,
    /// True if its indices follow PCI order for sure (`CUDA_DEVICE_ORDER=PCI_BUS_ID`).
    pub pci_order: bool,
    /// The token of the manager that started it.
    pub token: Option<String>,
    /// The tenant whose process started it.
    pub tenant: Option<TenantName>,
    /// The inode of its pipe directory; why not, where that directory is another one here than for the daemon, or
    /// none.
    pub reachable: Result<Inode, String>,
}

/// Every control daemon that runs on the host that `world` names: a simulated one by its directory, or the real one.
///
/// Callers of the control program are none, and neither is a program that is still starting a daemon, nor the fork of
/// a daemon that is about to become a server, nor a wrapper that waits for the daemon that it runs.
pub fn running(world: Option<&Path>) -> Vec<Running> {
    let controls: Vec<Called> = process::all().filter_map(called).collect();
    daemons_of(&controls).into_iter().filter_map(|pid| describe(pid, world)).collect()
}

/// A process whose command line is that of a control daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Called {
    pid: u32,
    parent: Option<u32>,
    words: Vec<String>,
}

fn called(pid: u32) -> Option<Called> {
    options(pid)?;
    Some(Called { pid, parent: process::parent(pid), words: process::command(pid)? })
}

/// The daemons among processes that look like one. A fork of a daemon has the daemon's command line; a wrapper, as
/// `sudo nvidia-cuda-mps-control -f`, has another than what it runs, and may have forked itself before.
fn daemons_of(controls: &[Called]) -> Vec<u32> {
    let parent = |of: &Called| controls.iter().find(|other| Some(other.pid) == of.parent);
    let is_fork = |daemon: &Called| parent(daemon).is_some_and(|parent| parent.words == daemon.words);
    let wraps = |daemon: &Called| {
        controls.iter().any(|other| {
            let mut above = std::iter::successors(parent(other), |above| parent(above)).take(controls.len());
            above.any(|above| above.pid == daemon.pid) && other.words != daemon.words
        })
    };
    controls.iter().filter(|daemon| !is_fork(daemon) && !wraps(daemon)).map(|daemon| daemon.pid).collect()
}

/// The control daemon that this very process is; the reason where it is none.
pub fn inspect(identity: Identity, world: Option<&Path>) -> Result<Running, String> {
    let pid = identity.pid;
    match process::identify(pid) {
        None => return Err(format!("there is no process {pid}: it has ended")),
        Some(now) if now != identity => {
            return Err(format!(
                "process {pid} is another one now: it started at {} and not at {}, so the number was used again",
                now.start_time, identity.start_time
            ));
        }
        Some(_) => {}
    }
    if !is_control(pid) {
        let command = process::command(pid).unwrap_or_default().join(" ");
        let shown: String = command.chars().take(80).collect();
        return Err(format!("process {pid} is not an MPS control daemon: it runs {shown:?}"));
    }
    if options(pid).is_none() {
        return Err(format!(
            "process {pid} is a caller of the control program and no daemon, or one that is still starting"
        ));
    }
    let controls: Vec<Called> = process::all().filter_map(called).collect();
    if !daemons_of(&controls).contains(&pid) {
        return Err(format!(
            "process {pid} is the fork of a control daemon, or a wrapper that runs one: name the daemon, as the list of \
             foreign daemons does"
        ));
    }
    describe(pid, world)
        .filter(|daemon| daemon.identity == identity)
        .ok_or_else(|| format!("process {pid} is not a control daemon of this host, or has just ended"))
}

/// The servers of a pipe directory that no control daemon is the parent of any more, whichever program started it: the
/// environment of a daemon that was adopted holds no token that it could have given them.
pub fn stranded(pipe_directory: &Path) -> Vec<Identity> {
    let Ok(inode) = pipe_inode(pipe_directory) else { return Vec::new() };
    let servers = process::all().filter(|pid| is_server(*pid)).filter_map(process::identify);
    let is_stranded = |server: &Identity| {
        let followed = process::parent(server.pid).is_some_and(is_control);
        let variables = process::environ(server.pid).unwrap_or_default();
        let text = |wanted: &str| text_of(&variables, wanted);
        !followed && surroundings(server.pid, text).reachable == Ok(inode)
    };
    servers.filter(is_stranded).collect()
}

/// Returns the options of a control daemon; `None` for any other process, callers of the control program included.
fn options(pid: u32) -> Option<Vec<String>> {
    if !is_control(pid) {
        return None;
    }
    let words = process::command(pid)?;
    let name = words.iter().position(|word| word.ends_with(super::super::binaries::CONTROL))?;
    let options = words[name + 1..].to_vec();
    let has = |names: &[&str]| options.iter().any(|word| names.contains(&word.as_str()));
    // `-S` starts a daemon by itself (documented). In the background a daemon leads a session of its own; who does not
    // is about to, or has been called to start one.
    let is_daemon = has(&["-f", "--forground"])
        || (has(&["-d", "--daemon", "-S", "--static-partitioning"]) && process::leads_session(pid));
    is_daemon.then_some(options)
}

fn describe(pid: u32, world: Option<&Path>) -> Option<Running> {
    // First and last: in between, the number could have changed hands.
    let identity = process::identify(pid)?;
    let options = options(pid)?;
    let environment = process::environ(pid);
    if !process::is_alive(identity) {
        return None;
    }
    let uid = process::uid(pid);
    let environment = match environment {
        Some(variables) => {
            let text = |wanted: &str| text_of(&variables, wanted);
            let named = text(WORLD_ENV);
            let same_host = match (world, &named) {
                (None, None) => true,
                (Some(world), Some(named)) => is_same_directory(world, Path::new(named)),
                _ => false,
            };
            if !same_host {
                return None;
            }
            Ok(surroundings(pid, text))
        }
        // Whose host it is of cannot be determined either: a simulated one is not full of other people's processes.
        None if world.is_some() => return None,
        None => Err(format!(
            "the environment of process {pid} may not be read by uid {}: only its own user and root may",
            rustix::process::geteuid().as_raw()
        )),
    };
    Some(Running {
        identity,
        uid,
        multi_user: options.iter().any(|word| MULTI_USER_OPTIONS.contains(&word.as_str())),
        mode: mode_of(&options),
        options,
        owner: owner(pid, environment.as_ref().ok()),
        environment,
    })
}

/// Finds the owner of a control daemon: by its environment, its container, its parent and its cgroup.
fn owner(pid: u32, environment: Option<&Surroundings>) -> ForeignOwner {
    let named = |parent: u32| {
        let program = process::command(parent)?.into_iter().next()?;
        let name = Path::new(&program).file_name()?.to_string_lossy().into_owned();
        // systemd takes over what its starter has left, that of a user too. The name is its starter's to choose.
        let name: String = name.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
        (name != "systemd").then(|| format!("{name} ({parent})"))
    };
    let owner = ForeignOwner {
        tenant: environment.and_then(|environment| environment.tenant.clone()),
        is_managed: environment.is_some_and(|environment| environment.token.is_some()),
        container: container_of(pid),
        // One in the background has lost its starter, and its parent is whoever takes over such processes.
        parent: process::parent(pid)
            .filter(|parent| *parent > 1 && !process::leads_session(pid))
            .and_then(named),
        ..ForeignOwner::default()
    };
    owner.in_cgroup(systemd::cgroup(pid).as_deref())
}

/// Finds the owner of the control daemon of this PID.
pub fn owner_of(pid: u32) -> ForeignOwner {
    let variables = process::environ(pid).unwrap_or_default();
    let text = |wanted: &str| text_of(&variables, wanted);
    owner(pid, Some(&surroundings(pid, text)))
}

/// A variable of an environment, as text.
fn text_of(variables: &[(OsString, OsString)], wanted: &str) -> Option<String> {
    let (_, value) = variables.iter().find(|(name, _)| name == wanted)?;
    Some(value.to_string_lossy().into_owned())
}

fn surroundings(pid: u32, text: impl Fn(&str) -> Option<String>) -> Surroundings {
    let directory = |name: &str, default: &str| {
        PathBuf::from(text(name).filter(|path| !path.is_empty()).unwrap_or_else(|| default.to_owned()))
    };
    let pipe_directory = directory(PIPE_ENV, DEFAULT_PIPE_DIRECTORY);
    Surroundings {
        reachable: reachable(pid, &pipe_directory),
        log_directory: directory(LOG_ENV, DEFAULT_LOG_DIRECTORY),
        visible_devices: text("CUDA_VISIBLE_DEVICES"),
        pci_order: text("CUDA_DEVICE_ORDER").is_some_and(|order| order == "PCI_BUS_ID"),
        token: text(TOKEN_ENV),
        tenant: text(TENANT_HINT).and_then(|name| TenantName::parse(&name).ok()),
        pipe_directory,
    }
}

/// Returns the inode of a path if it leads here to the same directory as for a process, which may live in a container.
pub fn reachable(pid: u32, path: &Path) -> Result<Inode, String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!("its pipe directory {shown} is not an absolute path"));
    }
    let inside = PathBuf::from(format!("/proc/{pid}/root")).join(path.strip_prefix("/").unwrap_or(path));
    let foreign = fs::metadata(&inside)
        .map_err(|error| format!("its pipe directory {shown} cannot be read: {error}"))?;
    match fs::metadata(path) {
        Ok(local) if (local.dev(), local.ino()) == (foreign.dev(), foreign.ino()) => Ok(Inode::from(&local)),
        _ => Err(format!(
            "its pipe directory {shown} is in another mount namespace, as in a container, and is not the one of that \
             name here"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_is_distinguished_from_fork_and_wrapper() {
        let called = |pid, parent, line: &str| Called {
            pid,
            parent: Some(parent),
            words: line.split(' ').map(str::to_owned).collect(),
        };
        let (control, sudo) = ("nvidia-cuda-mps-control -f", "sudo nvidia-cuda-mps-control -f");
        let fork = [called(10, 1, control), called(11, 10, control)];
        assert_eq!(daemons_of(&fork), [10]);
        assert_eq!(daemons_of(&[called(9, 1, sudo), called(10, 9, control), called(11, 10, control)]), [10]);
        // sudo with a pty of its own forks itself first.
        assert_eq!(daemons_of(&[called(8, 1, sudo), called(9, 8, sudo), called(10, 9, control)]), [10]);
        assert_eq!(
            daemons_of(&[called(10, 1, control), called(20, 1, "nvidia-cuda-mps-control -d")]),
            [10, 20]
        );
    }

    #[test]
    fn process_that_is_no_daemon_is_refused() {
        let me = process::identify(std::process::id()).expect("alive");
        let reason = inspect(me, None).expect_err("a test");
        assert!(reason.contains("is not an MPS control daemon: it runs"), "{reason}");
        let reused = Identity { start_time: me.start_time + 1, ..me };
        let reason = inspect(reused, None).expect_err("another process");
        assert!(reason.contains("the number was used again"), "{reason}");
        // Above the largest that Linux gives.
        let reason = inspect(Identity { pid: 1 << 23, start_time: 1 }, None).expect_err("nobody");
        assert!(reason.contains("there is no process"), "{reason}");
    }
}
