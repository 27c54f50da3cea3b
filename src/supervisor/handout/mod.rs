//! What tenants' processes connect to: a directory for each tenant, with the one socket that they need.
//!
//! ```text
//!   <runtime-dir>/tenants/<short id>/control   a hard link to the daemon's socket while the daemon may be used,
//!                                              else a placeholder of this manager
//! ```
//!
//! What always holds:
//! - A link is in place before a daemon is published as ready, and the placeholder as soon as its control process is
//!   known to be dead: a link to a dead socket leads outside MPS in silence (recording 18).
//! - `control` is renamed over, never removed, for as long as the directory is there; and that is until no process has it in
//!   its environment and no mount is of it.
//! - What cannot be made safe is closed, and a reason is kept for whoever asks.

mod directory;
mod placeholder;
mod policy;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::AbortHandle;

use self::placeholder::{Fate, Placeholder, Queue};
pub(super) use self::policy::handout;
use super::state::Obstacle;
use crate::domain::plan::Desired;
use crate::domain::tenant::WaitingProcess;
use crate::domain::{DaemonName, TenantDirectory, TenantName};
use crate::host::process::{death, having, is_alive};
use crate::host::{Identity, mounts};
use crate::mps::door;
use crate::mps::process::{PIPE_ENV, SOCKET};

/// How often what is in place is looked at though nothing changed.
const CHECKED: Duration = Duration::from_secs(1);
/// Tenants for which a placeholder is kept ready, each of which is an open file.
const SPARES: usize = 1024;

/// What the processes of a daemon's tenants meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Handout {
    /// The daemon's socket.
    Open(ControlSocket),
    /// A placeholder at which they wait for the daemon.
    Wait,
    /// A placeholder that refuses them.
    Refuse,
    /// Whatever it was.
    Unchanged,
}

/// The socket of a control process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ControlSocket {
    /// The process.
    pub(super) identity: Identity,
    /// Its pipe directory.
    pub(super) pipe: PathBuf,
    /// Whether it is in a directory of somebody else, as an adopted one is.
    pub(super) foreign: bool,
}

/// The directory to hand to a tenant's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientDirectory {
    /// What `CUDA_MPS_PIPE_DIRECTORY` names.
    pub path: PathBuf,
    /// Why no container may be given it: it is the daemon's own.
    pub shared: Option<String>,
}

/// What there is to say of a tenant's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectoryStatus {
    /// Its processes that wait.
    pub waiting: Vec<WaitingProcess>,
    /// Why its processes cannot be given the socket in it.
    pub problem: Option<Obstacle>,
}

/// The tenants of a daemon as of one of its generations.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaemonTenants<'d> {
    daemon: &'d DaemonName,
    generation: i64,
    directories: &'d BTreeMap<TenantDirectory, TenantName>,
}

impl<'d> From<&'d Desired> for DaemonTenants<'d> {
    fn from(desired: &'d Desired) -> Self {
        Self { daemon: &desired.name, generation: desired.generation, directories: &desired.directories }
    }
}

/// The directories of all tenants.
#[derive(Debug)]
pub struct Handouts {
    root: PathBuf,
    patience: Duration,
    greeting: watch::Sender<Vec<u8>>,
    /// Whether a daemon was asked what it greets with.
    asked: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    daemons: BTreeMap<DaemonName, Held>,
    doors: BTreeMap<TenantDirectory, Door>,
}

/// What was last handed out of a daemon.
#[derive(Debug)]
struct Held {
    handout: Handout,
    checked: Instant,
    /// Waits for the death of its control process.
    guard: Option<AbortHandle>,
    /// The control process that died last, and how long it took from there until all was closed.
    died: Option<(Identity, Duration)>,
}

impl Held {
    fn new() -> Self {
        Self { handout: Handout::Wait, checked: Instant::now(), guard: None, died: None }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            guard.abort();
        }
    }
}

/// A tenant's directory.
#[derive(Debug)]
struct Door {
    /// Its daemon; `None` once the tenant is gone.
    daemon: Option<DaemonName>,
    /// The generation of its daemon from which on the tenant is one of the daemon's.
    since: i64,
    tenant: TenantName,
    queue: Queue,
    /// What it was made last.
    shown: Handout,
    /// The placeholder that is in place.
    placed: Option<Placeholder>,
    /// One that only needs to be renamed.
    spare: Option<Placeholder>,
    problem: Option<Obstacle>,
}

impl Handouts {
    /// Directories below `runtime_dir`; a client waits no longer than `patience` for its daemon.
    pub fn new(runtime_dir: &Path, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            root: root(runtime_dir),
            patience,
            greeting: watch::Sender::new(door::GREETING.to_vec()),
            asked: AtomicBool::new(false),
            inner: Mutex::default(),
        })
    }

    /// Takes over what an earlier manager left of a daemon, before anything is handed out: links to the socket of a control
    /// process that lives stay as they are, and everything else becomes a placeholder.
    pub(super) fn begin(self: &Arc<Self>, tenants: &DaemonTenants<'_>, earlier: Option<ControlSocket>) {
        let linked = |control: &ControlSocket| {
            let socket = control.pipe.join(SOCKET);
            tenants.directories.keys().all(|one| directory::is_linked(&socket, &self.root.join(one.as_str())))
        };
        let handout = match earlier.filter(|control| is_alive(control.identity) && linked(control)) {
            Some(control) => Handout::Open(control),
            None => Handout::Wait,
        };
        self.set_handout(tenants, handout);
    }

    /// Adds tenants of a daemon before its driver hears of them, closed as long as it has not opened them.
    pub(super) fn announce(&self, tenants: &DaemonTenants<'_>) {
        let mut inner = self.inner();
        for (name, tenant) in tenants.directories {
            if !inner.doors.contains_key(name) {
                let mut door = self.door(tenants, tenant);
                self.apply(name, &mut door, &Handout::Wait);
                inner.doors.insert(name.clone(), door);
            }
        }
    }

    /// What the processes of these tenants, which are all of the daemon's, meet from now on.
    ///
    /// A tenant that was announced with a later generation than this one stays the daemon's: its driver has not read that yet.
    pub(super) fn set_handout(self: &Arc<Self>, tenants: &DaemonTenants<'_>, handout: Handout) {
        let DaemonTenants { daemon, generation, directories } = *tenants;
        let mut inner = self.inner();
        let Inner { daemons, doors } = &mut *inner;
        let held = daemons.entry(daemon.clone()).or_insert_with(Held::new);
        let handout = match handout {
            // Its driver has not noticed yet.
            Handout::Open(control) if !is_alive(control.identity) => Handout::Wait,
            handout => handout,
        };
        let due = held.checked.elapsed() > CHECKED;
        for (name, door) in doors.iter_mut() {
            let is_of_it = door.daemon.as_ref() == Some(daemon) && door.since <= generation;
            if is_of_it && !directories.contains_key(name) {
                door.daemon = None;
                self.apply(name, door, &Handout::Refuse);
            }
        }
        for (name, tenant) in directories {
            let door = doors.entry(name.clone()).or_insert_with(|| self.orphan(tenant.clone()));
            let is_new = door.daemon.as_ref() != Some(daemon);
            if is_new {
                (door.daemon, door.since) = (Some(daemon.clone()), generation);
            }
            let wanted = match &handout {
                Handout::Unchanged if is_new => Handout::Wait,
                Handout::Unchanged => door.shown.clone(),
                handout => handout.clone(),
            };
            if is_new || due || door.shown != wanted {
                self.apply(name, door, &wanted);
            }
        }
        if due {
            held.checked = Instant::now();
        }
        if handout == Handout::Unchanged || held.handout == handout {
            return;
        }
        if let Some(guard) = held.guard.take() {
            guard.abort();
        }
        if let Handout::Open(control) = &handout {
            held.guard = Some(self.guard(daemon.clone(), control));
        }
        held.handout = handout;
    }

    /// The control process of a daemon is dead: closes its tenants, unless that was done; how long that took.
    pub(super) fn daemon_died(&self, daemon: &DaemonName, identity: Identity) -> Option<Duration> {
        let noticed = Instant::now();
        let mut inner = self.inner();
        let Inner { daemons, doors } = &mut *inner;
        let held = daemons.get_mut(daemon)?;
        if !matches!(&held.handout, Handout::Open(control) if control.identity == identity) {
            return held.died.filter(|(died, _)| *died == identity).map(|(_, took)| took);
        }
        held.handout = Handout::Wait;
        for (name, door) in doors.iter_mut().filter(|(_, door)| door.daemon.as_ref() == Some(daemon)) {
            self.apply(name, door, &Handout::Wait);
        }
        let took = noticed.elapsed();
        held.died = Some((identity, took));
        tracing::debug!(%daemon, process = %identity, took_us = took.as_micros(), "placeholders took the place of a dead daemon's socket");
        Some(took)
    }

    /// The daemon is managed no longer.
    pub(super) fn forget(&self, daemon: &DaemonName) {
        let mut inner = self.inner();
        inner.daemons.remove(daemon);
        for (name, door) in inner.doors.iter_mut().filter(|(_, door)| door.daemon.as_ref() == Some(daemon)) {
            door.daemon = None;
            self.apply(name, door, &Handout::Refuse);
        }
    }

    /// The directory to hand to the processes of a tenant, looked at now.
    pub fn client_directory(&self, name: &TenantDirectory) -> Result<ClientDirectory, Obstacle> {
        let mut inner = self.inner();
        let Some(door) = inner.doors.get_mut(name) else {
            let message = "its directory is not made yet: try again in a moment".to_owned();
            return Err(Obstacle { reason: "DirectoryNotMade", message });
        };
        let shown = door.shown.clone();
        self.apply(name, door, &shown);
        match (&door.problem, shown) {
            (None, _) => Ok(ClientDirectory { path: self.root.join(name.as_str()), shared: None }),
            (Some(problem), Handout::Open(control)) if control.foreign && is_without_link(problem) => {
                Ok(ClientDirectory { path: control.pipe, shared: Some(problem.message.clone()) })
            }
            (Some(problem), _) => Err(problem.clone()),
        }
    }

    /// What there is to say of a tenant's directory.
    pub fn status(&self, name: &TenantDirectory) -> DirectoryStatus {
        let inner = self.inner();
        let Some(door) = inner.doors.get(name) else { return DirectoryStatus::default() };
        DirectoryStatus { waiting: door.queue.waiting(), problem: door.problem.clone() }
    }

    /// Where tenants' directories are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Closes directories of tenants that are gone, and removes those that nobody holds any more; blocks. `known` are the
    /// directories of the tenants that there are.
    pub fn collect(&self, known: &BTreeSet<TenantDirectory>) {
        let mut orphans = Vec::new();
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| TenantDirectory::parse(name).ok()) else {
                continue;
            };
            let mut inner = self.inner();
            let is_owned = inner.doors.get(&name).is_some_and(|door| door.daemon.is_some());
            if known.contains(&name) || is_owned {
                continue;
            }
            if !inner.doors.contains_key(&name) {
                let Ok(nobody) = TenantName::parse("deleted") else { continue };
                inner.doors.insert(name.clone(), self.orphan(nobody));
            }
            if let Some(door) = inner.doors.get_mut(&name) {
                self.apply(&name, door, &Handout::Refuse);
            }
            orphans.push(name);
        }
        if orphans.is_empty() {
            return;
        }
        let (environments, mounted) = (having(PIPE_ENV), mounts::roots());
        let is_of = |path: &Path, name: &TenantDirectory| path.iter().any(|part| part == name.as_str());
        for name in orphans {
            let held = environments.iter().any(|(_, value)| is_of(Path::new(value), &name))
                || mounted.iter().any(|path| is_of(path, &name));
            let mut inner = self.inner();
            let door = inner.doors.get(&name);
            let busy = door.is_some_and(|door| door.daemon.is_some() || !door.queue.waiting().is_empty());
            if held || busy {
                continue;
            }
            let path = self.root.join(name.as_str());
            // One with anything else in it is not removed.
            let removed = fs::remove_file(path.join(SOCKET)).and_then(|()| fs::remove_dir(&path));
            match removed {
                Ok(()) => {
                    tracing::info!(directory = %path.display(), "removed the directory of a tenant that is gone");
                }
                Err(error) => {
                    tracing::warn!(directory = %path.display(), %error, "the directory of a tenant that is gone stays");
                }
            }
            let _ = fs::remove_file(self.spare(&name));
            inner.doors.remove(&name);
        }
    }

    fn door(&self, tenants: &DaemonTenants<'_>, tenant: &TenantName) -> Door {
        let (daemon, since) = (Some(tenants.daemon.clone()), tenants.generation);
        Door { daemon, since, ..self.orphan(tenant.clone()) }
    }

    fn orphan(&self, tenant: TenantName) -> Door {
        let queue = Queue::new(self.patience, self.greeting.subscribe());
        let shown = Handout::Wait;
        Door { daemon: None, since: 0, tenant, queue, shown, placed: None, spare: None, problem: None }
    }

    /// Makes a directory what it should be; what stands in the way is kept as its problem.
    fn apply(&self, name: &TenantDirectory, door: &mut Door, handout: &Handout) {
        let path = self.root.join(name.as_str());
        door.shown = handout.clone();
        let made = directory::ensure(&self.root).and_then(|()| directory::ensure(&path));
        let problem = match (made, handout) {
            (Err(problem), _) => {
                door.queue.decide(Fate::Refuse);
                Some(problem)
            }
            (Ok(()), Handout::Open(control)) => self.open(name, door, control, &path).err().inspect(|_| {
                // What was there before may lead outside MPS.
                let _ = self.close(name, door, &Handout::Refuse, &path);
            }),
            (Ok(()), closed) => self.close(name, door, closed, &path).err(),
        };
        if let Some(problem) = problem.as_ref().filter(|now| door.problem.as_ref() != Some(now)) {
            tracing::error!(tenant = %door.tenant, reason = problem.reason, why = problem.message, "a tenant's socket cannot be handed out");
        }
        door.problem = problem;
    }

    fn open(
        &self,
        name: &TenantDirectory,
        door: &mut Door,
        control: &ControlSocket,
        path: &Path,
    ) -> Result<(), Obstacle> {
        let socket = control.pipe.join(SOCKET);
        directory::link(&socket, path, &self.root.join(format!(".link-{name}")))?;
        door.queue.decide(Fate::Forward(socket));
        door.placed = None;
        if door.spare.is_none() && self.greeting.receiver_count() < 3 * SPARES {
            // Without one, it is made when it is needed.
            door.spare = Placeholder::bind(&self.spare(name), &door.queue).ok();
        }
        Ok(())
    }

    fn close(
        &self,
        name: &TenantDirectory,
        door: &mut Door,
        handout: &Handout,
        path: &Path,
    ) -> Result<(), Obstacle> {
        let fate = if *handout == Handout::Wait { Fate::Wait } else { Fate::Refuse };
        let inode = fs::symlink_metadata(path.join(SOCKET)).ok().map(|it| (it.dev(), it.ino()));
        let in_place = door.placed.as_ref().is_some_and(|placed| Some(placed.inode) == inode);
        if !in_place {
            let between = self.spare(name);
            let ready = door.spare.take().filter(|spare| spare.is_at(&between));
            let placeholder = match ready {
                Some(spare) => spare,
                None => Placeholder::bind(&between, &door.queue).map_err(|error| {
                    let message = format!(
                        "no placeholder could be made at {} ({error}): see that the manager may open more files and the disk has room",
                        between.display()
                    );
                    Obstacle { reason: "NoPlaceholder", message }
                })?,
            };
            // Decided first: who comes to the new one must not be sent to a dead daemon.
            door.queue.decide(fate.clone());
            directory::replace(&between, path)?;
            door.placed = Some(placeholder);
        }
        door.queue.decide(fate);
        Ok(())
    }

    fn spare(&self, name: &TenantDirectory) -> PathBuf {
        self.root.join(format!(".spare-{name}"))
    }

    /// Closes the tenants of a daemon as soon as its control process dies, whatever its driver does meanwhile.
    fn guard(self: &Arc<Self>, daemon: DaemonName, control: &ControlSocket) -> AbortHandle {
        let (handouts, identity, socket) = (Arc::clone(self), control.identity, control.pipe.join(SOCKET));
        if !self.asked.swap(true, Ordering::AcqRel) {
            let (handouts, daemon) = (Arc::clone(self), daemon.clone());
            tokio::spawn(async move { handouts.learn_greeting(&daemon, &socket).await });
        }
        let task = tokio::spawn(async move {
            death(identity).await;
            handouts.daemon_died(&daemon, identity);
        });
        task.abort_handle()
    }

    /// Hears what daemons here greet with, which NVIDIA documents nowhere.
    async fn learn_greeting(&self, daemon: &DaemonName, socket: &Path) {
        match door::greeting_of(socket).await {
            Ok(Some(greeting)) if greeting != door::GREETING => {
                tracing::warn!(%daemon, ?greeting, "this control daemon greets with other words than are known; placeholders use its words");
                self.greeting.send_replace(greeting);
            }
            Ok(Some(_)) => {}
            other => {
                tracing::debug!(%daemon, ?other, "the control daemon was not heard to greet");
                self.asked.store(false, Ordering::Release);
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves each door as it was before or after one step, and the next check mends it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the directories of tenants are in a runtime directory.
pub fn root(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("tenants")
}

/// Whether a hard link is impossible, and not merely missing.
fn is_without_link(problem: &Obstacle) -> bool {
    matches!(problem.reason, "OtherFileSystem" | "LinkNotPermitted")
}

#[cfg(test)]
mod tests;
