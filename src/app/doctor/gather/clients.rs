//! Clients that wait, and containers that have a daemon's own directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::app::doctor::facts::WaitingUsers;
use crate::config::Config;
use crate::host::process;
use crate::mps::log::{self, LogEvent};
use crate::mps::process::foreign::Running;
use crate::mps::process::servers;
use crate::store::inspect::Contents;
use crate::supervisor::{ExposureSearch, exposed_directories};

/// Bytes at the end of a log that are searched for waiting clients.
const TAIL: usize = 64 << 10;
/// Pause before the second search for mounts of a daemon's directory.
const SECOND_SEARCH: Duration = Duration::from_secs(1);

/// Finds the clients that wait for another user's clients to leave, at daemons that serve one user at a time.
pub(super) fn waiting(config: &Config, daemons: &[Running]) -> Vec<WaitingUsers> {
    let homes = config.runtime_dir.join("daemons");
    let single_user = daemons.iter().filter(|daemon| !daemon.multi_user);
    single_user.filter_map(|daemon| waiting_at(daemon, &homes)).collect()
}

fn waiting_at(daemon: &Running, homes: &Path) -> Option<WaitingUsers> {
    let around = daemon.environment.as_ref().ok()?;
    let servers: BTreeSet<u32> = servers(daemon.identity.pid).iter().map(|server| server.pid).collect();
    let (mut waiting, mut logged) = (BTreeSet::new(), BTreeMap::new());
    for record in log::read(log::tail(&around.log_directory.join("control.log"), TAIL).as_bytes()) {
        match record.event {
            LogEvent::PushedToPending { pid, .. } => {
                waiting.insert(pid);
            }
            LogEvent::ClientAccepted { pid, .. } => {
                waiting.remove(&pid);
            }
            LogEvent::DaemonStarting { .. } => waiting.clear(),
            LogEvent::StartingServer { pid, uid } => {
                logged.insert(pid, uid);
            }
            _ => {}
        }
    }
    let uid_of = |server: &u32| logged.get(server).copied().or_else(|| process::uid(*server));
    let served: BTreeSet<u32> = servers.iter().filter_map(uid_of).collect();
    let clients = waiting.into_iter().filter_map(|pid| Some((pid, process::uid(pid)?)));
    Some(WaitingUsers {
        control: daemon.identity.pid,
        managed: managed_name(daemon, homes),
        clients: clients.filter(|(_, uid)| !served.contains(uid)).collect(),
        served,
    })
}

/// Returns the name of a daemon whose pipe directory is below the manager's own.
fn managed_name(daemon: &Running, homes: &Path) -> Option<String> {
    let env = daemon.environment.as_ref().ok()?;
    let below = env.pipe_directory.strip_prefix(homes).ok()?;
    Some(below.iter().next()?.to_string_lossy().into_owned())
}

/// Finds foreign mounts of daemons' directories: of daemons in the runtime directory, and of those that the database has as adopted.
pub(super) fn exposed(
    config: &Config,
    contents: Option<&Contents>,
    daemons: &[Running],
) -> io::Result<ExposureSearch> {
    let homes = config.runtime_dir.join("daemons");
    let mut pipes: Vec<PathBuf> = match fs::read_dir(&homes) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path().join("pipe"))).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut controls = Vec::new();
    for daemon in daemons {
        let is_managed = managed_name(daemon, &homes).is_some();
        let identity = (daemon.identity.pid, daemon.identity.start_time);
        if !is_managed && !contents.is_some_and(|contents| contents.processes.contains(&identity)) {
            continue;
        }
        controls.push(daemon.identity.pid);
        // In another mount namespace its path may name another directory here.
        let env = daemon.environment.as_ref().ok().filter(|env| !is_managed && env.reachable.is_ok());
        pipes.extend(env.map(|env| env.pipe_directory.clone()));
    }
    let first = exposed_directories(&pipes, &controls)?;
    if first.found.is_empty() {
        return Ok(first);
    }
    // A process that an engine starts has the host's mounts for a moment, until it enters its container.
    std::thread::sleep(SECOND_SEARCH);
    let mut second = exposed_directories(&pipes, &controls)?;
    second.found.retain(|mount| first.found.iter().any(|before| before.process == mount.process));
    Ok(second)
}
