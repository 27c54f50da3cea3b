//! The sockets to which tenants' processes connect: a directory for each tenant, with the one socket that they need.
//!
//! ```text
//!   <runtime-dir>/tenants/<short id>/control   a hard link to the daemon's socket while the daemon may be used,
//!                                              else a placeholder of this manager
//!   <runtime-dir>/by-name/<tenant>             a symbolic link to the tenant's directory, for lists of mounts that are written
//!                                              before the tenant exists
//! ```
//!
//! Invariants:
//! - A link is in place before a daemon is published as ready, and the placeholder as soon as its control process is
//!   known to be dead: a link to a dead socket leads outside MPS in silence (recording 18).
//! - `control` is renamed over, never removed, for as long as the directory exists; and the directory exists until no process has it in
//!   its environment and no mount is of it.
//! - A directory belongs to one daemon. The last committed state says to which, and whether clients are admitted there; a driver
//!   that has not read it yet opens nothing that it closes. The directory of a drained tenant admits no clients.
//! - A directory that cannot be made safe is closed, and the reason is kept for the caller.

mod by_name;
mod check;
mod collect;
mod directory;
mod mounted;
mod placeholder;
mod policy;
mod socket;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use self::placeholder::{ClientDecision, Placeholder, Queue};
pub(super) use self::policy::{DaemonTenants, handout};
pub(super) use self::socket::{ControlSocket, Handout};
use super::blocker::Blocker;
use crate::clock::Clock;
use crate::domain::condition::ConditionReason;
use crate::domain::plan::{DesiredVersion, DirectoryTenant};
use crate::domain::tenant::WaitingProcess;
use crate::domain::{DaemonName, TenantDirectory, TenantName};
use crate::host::Identity;
use crate::host::access::PathAccess;
use crate::host::process::{death, is_alive};
use crate::mps::handshake;
use crate::mps::process::SOCKET;

/// Interval at which the sockets in place are checked although nothing changed.
pub(super) const CHECKED: Duration = Duration::from_secs(1);
/// Most directories that are looked at in one check, which takes some 15 µs for each.
const CHECKED_AT_ONCE: usize = 1000;
/// Most tenants for which a placeholder is kept ready, each of which is an open file.
const SPARES: usize = 1024;

/// Directory to hand to a tenant's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientDirectory {
    /// Value of `CUDA_MPS_PIPE_DIRECTORY`.
    pub path: PathBuf,
    /// Reason why no container may be given it: it is the daemon's own directory.
    pub shared: Option<String>,
}

/// State of a tenant's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DirectoryStatus {
    /// Processes of the tenant that wait.
    pub waiting: Vec<WaitingProcess>,
    /// Reason why the tenant's processes cannot be given the socket in it.
    pub problem: Option<Blocker>,
}

/// Directories of all tenants.
#[derive(Debug)]
pub struct Handouts {
    root: PathBuf,
    timeout: Duration,
    clock: Clock,
    greeting: watch::Sender<Vec<u8>>,
    /// True if a daemon's greeting was requested.
    greeting_requested: AtomicBool,
    /// Counter of the times that a directory was opened or closed.
    changes: watch::Sender<u64>,
    inner: Mutex<HandoutState>,
}

#[derive(Debug, Default)]
struct HandoutState {
    daemons: BTreeMap<DaemonName, DaemonHandout>,
    entries: BTreeMap<TenantDirectory, TenantEntry>,
}

/// Tenants that were announced for a daemon, and the handout of its driver.
#[derive(Debug)]
struct DaemonHandout {
    /// Version of the newest announcement.
    announced: DesiredVersion,
    /// True if the daemon takes clients as of the announcement.
    admits: bool,
    /// Tenants as of the announcement, each with the version since which it belongs to the daemon.
    tenants: BTreeMap<TenantDirectory, DesiredVersion>,
    /// Tenants that are drained.
    draining: BTreeSet<TenantDirectory>,
    /// Last handout of its driver; never [`Handout::Unchanged`].
    handout: Handout,
    /// Version that its driver acted on at that handout.
    followed: DesiredVersion,
    /// True if every directory shows what follows from the fields above.
    is_shown: bool,
    checked: Instant,
    /// Directory up to which the last check came, if it left some to the next.
    checked_to: Option<TenantDirectory>,
    /// Task that waits for the death of its control process.
    guard: Option<AbortHandle>,
    /// Control process that died last, and the time from its death being noticed until all tenants were closed.
    died: Option<(Identity, Duration)>,
}

impl DaemonHandout {
    fn new() -> Self {
        Self {
            announced: DesiredVersion::default(),
            admits: false,
            tenants: BTreeMap::new(),
            draining: BTreeSet::new(),
            handout: Handout::Wait,
            followed: DesiredVersion::default(),
            is_shown: false,
            checked: Instant::now(),
            checked_to: None,
            guard: None,
            died: None,
        }
    }

    /// Returns the handout for the processes of a tenant.
    fn of_tenant(&self, directory: &TenantDirectory) -> &Handout {
        match self.tenants.get(directory) {
            None => &Handout::Refuse,
            Some(_) if !self.admits || self.draining.contains(directory) => &Handout::Refuse,
            // The driver has not read yet that this tenant exists.
            Some(since) if *since > self.followed => &Handout::Wait,
            Some(_) => &self.handout,
        }
    }
}

impl Drop for DaemonHandout {
    fn drop(&mut self) {
        if let Some(guard) = &self.guard {
            guard.abort();
        }
    }
}

/// Directory of a tenant.
#[derive(Debug)]
struct TenantEntry {
    /// Daemon of the tenant; `None` once the tenant is gone.
    daemon: Option<DaemonName>,
    tenant: TenantName,
    /// Users who may pass through it; unknown for a tenant that was gone before this manager began.
    access: Option<PathAccess>,
    queue: Queue,
    /// Handout that was applied last.
    shown: Handout,
    /// Placeholder in place.
    placed: Option<Placeholder>,
    /// Placeholder that only needs to be renamed to be in place.
    spare: Option<Placeholder>,
    problem: Option<Blocker>,
    /// Time at which it was first found to belong to no tenant.
    closed: Option<Instant>,
    /// True if no process will be started with it any more, as the deleter of the tenant declared.
    is_finished: bool,
    /// Reason why it could not be removed after its tenant was deleted.
    stays: Option<String>,
}

impl TenantEntry {
    fn is_open(&self) -> bool {
        matches!(self.shown, Handout::Open(_))
    }
}

impl Handouts {
    /// Creates the state of the tenants' directories below `runtime_dir`; a client waits no longer than `timeout` for its daemon.
    pub fn new(runtime_dir: &Path, timeout: Duration, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            root: root(runtime_dir),
            timeout,
            clock,
            greeting: watch::Sender::new(handshake::GREETING.to_vec()),
            greeting_requested: AtomicBool::new(false),
            changes: watch::Sender::new(0),
            inner: Mutex::default(),
        })
    }

    /// Takes over the handouts that an earlier manager left for a daemon, before any new one. Links to the socket of a living
    /// control process stay as they are, and everything else becomes a placeholder.
    pub(super) fn begin(self: &Arc<Self>, tenants: &DaemonTenants<'_>, earlier: Option<ControlSocket>) {
        let linked = |control: &ControlSocket| {
            let socket = control.pipe.join(SOCKET);
            let mut admitted = tenants.directories.keys().filter(|one| !tenants.draining.contains(one));
            admitted.all(|one| directory::is_linked(&socket, &self.root.join(one.as_str())))
        };
        let handout = match earlier.filter(|control| is_alive(control.identity) && linked(control)) {
            Some(control) => Handout::Open(control),
            None => Handout::Wait,
        };
        let mut inner = self.inner();
        self.keep_handout(&mut inner, tenants.daemon, tenants.version, handout);
        self.list_tenants(&mut inner, tenants);
    }

    /// Applies a committed state before the driver learns of it. Closes at once what is no longer admitted, gives directories
    /// to the daemon that they now belong to, and lets new tenants wait until the driver opens them.
    pub(super) fn announce(&self, tenants: &DaemonTenants<'_>) {
        self.list_tenants(&mut self.inner(), tenants);
    }

    fn list_tenants(&self, inner: &mut HandoutState, tenants: &DaemonTenants<'_>) {
        let DaemonTenants { daemon, version, admits, directories, others, draining } = *tenants;
        let HandoutState { daemons, entries } = inner;
        let held = daemons.entry(daemon.clone()).or_insert_with(DaemonHandout::new);
        if version < held.announced {
            return;
        }
        let before = std::mem::take(&mut held.tenants);
        let since = |name| before.get(name).copied().unwrap_or(version);
        held.tenants = directories.keys().map(|name| (name.clone(), since(name))).collect();
        (held.announced, held.admits, held.is_shown) = (version, admits, false);
        held.draining.clone_from(draining);
        if matches!(&held.handout, Handout::Open(control) if !is_alive(control.identity)) {
            // The death has not been noticed yet, and a closed directory must not be opened again.
            held.handout = Handout::Wait;
        }
        for (name, tenant) in directories {
            let DirectoryTenant { name: tenant, uid } = tenant;
            let entry = entries.entry(name.clone()).or_insert_with(|| self.orphan(tenant.clone()));
            let is_taken = entry.daemon.is_none();
            let access = Some(directory::of_tenant(*uid, others));
            let passes_others = entry.access != access;
            entry.access = access;
            if is_taken {
                // A directory of another daemon is handed over when that daemon releases it.
                (entry.daemon, entry.closed) = (Some(daemon.clone()), None);
            }
            let desired = held.of_tenant(name);
            // A directory that is in use again may have processes again.
            entry.is_finished &= draining.contains(name);
            if let Err(error) = by_name::link(&self.root, tenant, name) {
                tracing::warn!(%tenant, %error, "the tenant's directory has no link by the tenant's name");
            }
            if is_taken || entry.daemon.as_ref() == Some(daemon) && (passes_others || entry.shown != *desired)
            {
                self.apply(name, entry, desired);
            }
        }
        for name in before.keys().filter(|name| !directories.contains_key(*name)) {
            self.release(inner, daemon, name);
        }
    }

    /// Gives a directory that no longer belongs to this daemon to the daemon that lists it, or closes it if none does.
    fn release(&self, inner: &mut HandoutState, daemon: &DaemonName, name: &TenantDirectory) {
        let HandoutState { daemons, entries } = inner;
        let Some(entry) = entries.get_mut(name).filter(|entry| entry.daemon.as_ref() == Some(daemon)) else {
            return;
        };
        let next = daemons.iter().find(|(_, held)| held.tenants.contains_key(name));
        entry.daemon = next.map(|(next, _)| next.clone());
        let desired = next.map_or(&Handout::Refuse, |(_, held)| held.of_tenant(name));
        self.apply(name, entry, desired);
    }

    /// Applies the handout of a daemon's driver, which follows this version, to the daemon's tenants.
    ///
    /// Announcements of later versions take precedence.
    pub(super) fn set_handout(
        self: &Arc<Self>,
        daemon: &DaemonName,
        version: DesiredVersion,
        handout: Handout,
    ) {
        let mut inner = self.inner();
        // A daemon that was forgotten still has a driver for a moment.
        let Some(held) = inner.daemons.get_mut(daemon).filter(|held| version >= held.followed) else {
            return;
        };
        let is_due = held.checked.elapsed() > CHECKED;
        if is_due {
            held.checked = Instant::now();
        }
        self.keep_handout(&mut inner, daemon, version, handout);
        self.apply_to_tenants(&mut inner, daemon);
        drop(inner);
        if is_due {
            self.check_tenants(daemon, CHECKED_AT_ONCE);
        }
    }

    /// Remembers the handout of a driver, and watches the control process whose socket is handed out.
    fn keep_handout(
        self: &Arc<Self>,
        inner: &mut HandoutState,
        daemon: &DaemonName,
        version: DesiredVersion,
        handout: Handout,
    ) {
        let held = inner.daemons.entry(daemon.clone()).or_insert_with(DaemonHandout::new);
        let handout = match handout {
            Handout::Unchanged => return,
            // The driver has not noticed the death yet.
            Handout::Open(control) if !is_alive(control.identity) => Handout::Wait,
            handout => handout,
        };
        held.is_shown &= held.followed == version && held.handout == handout;
        held.followed = version;
        if held.handout == handout {
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

    /// Applies a daemon's handout to its directories that show another one.
    fn apply_to_tenants(&self, inner: &mut HandoutState, daemon: &DaemonName) {
        let HandoutState { daemons, entries } = inner;
        let Some(held) = daemons.get_mut(daemon).filter(|held| !held.is_shown) else { return };
        for (name, entry) in entries.iter_mut().filter(|(_, entry)| entry.daemon.as_ref() == Some(daemon)) {
            let desired = held.of_tenant(name);
            if entry.shown != *desired {
                self.apply(name, entry, desired);
            }
        }
        held.is_shown = true;
    }

    /// Closes the tenants of a daemon whose control process is dead, unless that was done. Returns the time that closing them took.
    pub(super) fn daemon_died(&self, daemon: &DaemonName, identity: Identity) -> Option<Duration> {
        let noticed = Instant::now();
        let mut inner = self.inner();
        let held = inner.daemons.get_mut(daemon)?;
        if !matches!(&held.handout, Handout::Open(control) if control.identity == identity) {
            return held.died.filter(|(died, _)| *died == identity).map(|(_, took)| took);
        }
        (held.handout, held.is_shown) = (Handout::Wait, false);
        self.apply_to_tenants(&mut inner, daemon);
        let took = noticed.elapsed();
        if let Some(held) = inner.daemons.get_mut(daemon) {
            held.died = Some((identity, took));
        }
        tracing::debug!(%daemon, process = %identity, took_us = took.as_micros(), "placeholders took the place of a dead daemon's socket");
        Some(took)
    }

    /// Forgets a daemon that is no longer managed.
    pub(super) fn forget(&self, daemon: &DaemonName) {
        let mut inner = self.inner();
        let Some(held) = inner.daemons.remove(daemon) else { return };
        for name in held.tenants.keys() {
            self.release(&mut inner, daemon, name);
        }
    }

    /// Returns the directory to hand to the processes of a tenant, checked at this moment.
    pub fn client_directory(&self, name: &TenantDirectory) -> Result<ClientDirectory, Blocker> {
        let mut inner = self.inner();
        let Some(entry) = inner.entries.get_mut(name) else {
            let message = "its directory is not made yet: try again in a moment".to_owned();
            return Err(Blocker { reason: ConditionReason::DirectoryNotMade, message });
        };
        let shown = entry.shown.clone();
        self.apply(name, entry, &shown);
        self.directory_of(name, entry)
    }

    /// Returns the directories through which processes reach their daemons now, without those that have a placeholder.
    pub fn open_directories(&self) -> BTreeMap<TenantDirectory, ClientDirectory> {
        let inner = self.inner();
        let owned = inner.entries.iter().filter(|(_, entry)| entry.daemon.is_some() && entry.is_open());
        owned.filter_map(|(name, entry)| Some((name.clone(), self.directory_of(name, entry).ok()?))).collect()
    }

    /// Subscribes to changes: the value changes whenever [`Self::open_directories`] may have changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn directory_of(&self, name: &TenantDirectory, entry: &TenantEntry) -> Result<ClientDirectory, Blocker> {
        match (&entry.problem, &entry.shown) {
            (None, _) => Ok(ClientDirectory { path: self.root.join(name.as_str()), shared: None }),
            (Some(problem), Handout::Open(control)) if control.foreign && is_without_link(problem) => {
                Ok(ClientDirectory { path: control.pipe.clone(), shared: Some(problem.message.clone()) })
            }
            (Some(problem), _) => Err(problem.clone()),
        }
    }

    /// Returns the state of a tenant's directory.
    pub fn status(&self, name: &TenantDirectory) -> DirectoryStatus {
        let inner = self.inner();
        let Some(entry) = inner.entries.get(name) else { return DirectoryStatus::default() };
        DirectoryStatus { waiting: entry.queue.waiting(), problem: entry.problem.clone() }
    }

    /// Returns what blocks a tenant's directory.
    pub fn problem(&self, name: &TenantDirectory) -> Option<Blocker> {
        self.inner().entries.get(name)?.problem.clone()
    }

    /// Returns the path in which the directories of tenants are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn orphan(&self, tenant: TenantName) -> TenantEntry {
        let queue = Queue::new(self.timeout, self.greeting.subscribe(), self.clock);
        let shown = Handout::Wait;
        TenantEntry {
            daemon: None,
            tenant,
            access: None,
            queue,
            shown,
            placed: None,
            spare: None,
            problem: None,
            closed: None,
            is_finished: false,
            stays: None,
        }
    }

    /// Applies a handout to a directory, and keeps what blocks it as the directory's problem.
    fn apply(&self, name: &TenantDirectory, entry: &mut TenantEntry, handout: &Handout) {
        let path = self.root.join(name.as_str());
        let before = (entry.is_open(), entry.problem.is_some());
        entry.shown = handout.clone();
        let made = directory::ensure_root(&self.root, &self.unplaced())
            .and_then(|()| directory::ensure(&path, entry.access.as_ref()));
        let problem = match (made, handout) {
            (Err(problem), _) => {
                entry.queue.decide(ClientDecision::Refuse);
                Some(problem)
            }
            (Ok(()), Handout::Open(control)) => self.open(name, entry, control, &path).err().inspect(|_| {
                // The socket that was there before may lead outside MPS.
                let _ = self.close(name, entry, &Handout::Refuse, &path);
            }),
            (Ok(()), closed) => self.close(name, entry, closed, &path).err(),
        };
        if let Some(problem) = problem.as_ref().filter(|now| entry.problem.as_ref() != Some(now)) {
            tracing::error!(tenant = %entry.tenant, reason = %problem.reason, why = problem.message, "a tenant's socket cannot be handed out");
        }
        entry.problem = problem;
        if before != (entry.is_open(), entry.problem.is_some()) {
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    fn open(
        &self,
        name: &TenantDirectory,
        entry: &mut TenantEntry,
        control: &ControlSocket,
        path: &Path,
    ) -> Result<(), Blocker> {
        let socket = control.pipe.join(SOCKET);
        directory::link(&socket, path, &self.unplaced().join(format!("link-{name}")))?;
        entry.queue.decide(ClientDecision::Forward(socket));
        entry.placed = None;
        if self.wants_spare(entry) {
            // If this fails, a placeholder is made when it is needed.
            entry.spare = Placeholder::bind(&self.spare(name), &entry.queue).ok();
        }
        Ok(())
    }

    fn close(
        &self,
        name: &TenantDirectory,
        entry: &mut TenantEntry,
        handout: &Handout,
        path: &Path,
    ) -> Result<(), Blocker> {
        let decision = if *handout == Handout::Wait { ClientDecision::Wait } else { ClientDecision::Refuse };
        let inode = directory::inode(&path.join(SOCKET));
        let in_place = entry.placed.as_ref().is_some_and(|placed| Some(placed.inode) == inode);
        if !in_place {
            let between = self.spare(name);
            let ready = entry.spare.take().filter(|spare| spare.is_at(&between));
            let placeholder = match ready {
                Some(spare) => spare,
                None => Placeholder::bind(&between, &entry.queue).map_err(|error| {
                    let message = format!(
                        "no placeholder could be made at {} ({error}): see that the manager may open more files and the disk has room",
                        between.display()
                    );
                    Blocker { reason: ConditionReason::NoPlaceholder, message }
                })?,
            };
            // Decided first: clients of the new placeholder must not be sent to a dead daemon.
            entry.queue.decide(decision.clone());
            directory::replace(&between, path)?;
            entry.placed = Some(placeholder);
        }
        entry.queue.decide(decision);
        Ok(())
    }

    fn spare(&self, name: &TenantDirectory) -> PathBuf {
        self.unplaced().join(name.as_str())
    }

    /// Returns the directory of sockets that are not in a tenant's directory yet: nobody else connects to them there.
    fn unplaced(&self) -> PathBuf {
        self.root.join(".new")
    }

    /// Closes the tenants of a daemon as soon as its control process dies, whatever its driver is doing.
    fn guard(self: &Arc<Self>, daemon: DaemonName, control: &ControlSocket) -> AbortHandle {
        let (handouts, identity, socket) = (Arc::clone(self), control.identity, control.pipe.join(SOCKET));
        if !self.greeting_requested.swap(true, Ordering::AcqRel) {
            let (handouts, daemon) = (Arc::clone(self), daemon.clone());
            tokio::spawn(async move { handouts.learn_greeting(&daemon, &socket).await });
        }
        let task = tokio::spawn(async move {
            death(identity).await;
            handouts.daemon_died(&daemon, identity);
        });
        task.abort_handle()
    }

    /// Learns the greeting of the daemons on this host, which NVIDIA does not document.
    async fn learn_greeting(&self, daemon: &DaemonName, socket: &Path) {
        match handshake::greeting_of(socket).await {
            Ok(Some(greeting)) if greeting != handshake::GREETING => {
                tracing::warn!(%daemon, ?greeting, "this control daemon greets with an unknown greeting; placeholders use that greeting");
                self.greeting.send_replace(greeting);
            }
            Ok(Some(_)) => {}
            other => {
                tracing::debug!(%daemon, ?other, "the control daemon sent no greeting");
                self.greeting_requested.store(false, Ordering::Release);
            }
        }
    }

    fn inner(&self) -> MutexGuard<'_, HandoutState> {
        // A panic elsewhere leaves each entry as it was before or after one step, and the next check repairs it.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the path of the tenants' directories in a runtime directory.
pub fn root(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("tenants")
}

/// Returns true if a hard link is impossible, and not merely missing.
fn is_without_link(problem: &Blocker) -> bool {
    matches!(problem.reason, ConditionReason::OtherFileSystem | ConditionReason::LinkNotPermitted)
}

#[cfg(test)]
mod tests;
