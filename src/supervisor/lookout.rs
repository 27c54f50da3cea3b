//! Who else runs control daemons on this host, and on which GPUs.
//!
//! A scan reads `/proc` and talks to nobody. It is made at the rhythm of an idle daemon's looks, and before each
//! start: a daemon is never started beside another on one GPU without saying what that means. What a scan finds is
//! told from our own by the token that was claimed before a process was started, or by PID and start time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::foreign::visible_gpus;
use crate::domain::gpu::Gpu;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::Inventory;
use crate::host::Identity;
use crate::host::process::is_alive;
use crate::mps::process::foreign::{self, Running};

/// Foreign daemons that are read at the same time, over all requests: each costs a control process.
const READERS: usize = 4;

/// A control daemon of the host, with its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// The daemon.
    pub daemon: Running,
    /// Its GPUs in its own order; the reason where they cannot be told.
    pub gpus: Result<Vec<GpuUuid>, String>,
}

/// The control process that a daemon of this manager has, or is about to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claim {
    /// The token in its environment.
    pub(super) token: Option<String>,
    /// Its process.
    pub(super) process: Option<Identity>,
    /// Whether it is only looked at.
    pub(super) observed: bool,
}

/// Knows every control daemon of the host since the last scan.
pub struct Lookout {
    world: Option<PathBuf>,
    inventory: Arc<dyn Inventory>,
    claims: Mutex<BTreeMap<DaemonName, Claim>>,
    seen: watch::Sender<Arc<Vec<Neighbour>>>,
    /// Held while a foreign daemon is read.
    pub(super) readers: Semaphore,
}

impl Lookout {
    /// A lookout for the host of this inventory; `extra_env` is what a simulated host's processes are told.
    pub fn new(inventory: Arc<dyn Inventory>, extra_env: &[(OsString, OsString)]) -> Self {
        let world = extra_env.iter().find(|(name, _)| name == "MPS_SIM_WORLD");
        Self {
            world: world.map(|(_, directory)| directory.into()),
            inventory,
            claims: Mutex::default(),
            seen: watch::channel(Arc::default()).0,
            readers: Semaphore::new(READERS),
        }
    }

    /// Scans at this rhythm until told to stop.
    pub(super) async fn watch(&self, rhythm: Duration, stop: CancellationToken) {
        loop {
            self.scan().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(rhythm) => {}
            }
        }
    }

    /// Every control daemon of the host, ours included, as of now.
    pub async fn scan(&self) -> Arc<Vec<Neighbour>> {
        let (world, inventory) = (self.world.clone(), Arc::clone(&self.inventory));
        let scanned = tokio::task::spawn_blocking(move || {
            let running = foreign::running(world.as_deref());
            // A host on which no daemon runs, ours or not, need not ask the driver.
            let gpus = if running.is_empty() { Ok(Vec::new()) } else { inventory.known_gpus() };
            let gpus = gpus.map_err(|error| error.to_string());
            running.into_iter().map(|daemon| neighbour(daemon, gpus.as_deref())).collect::<Vec<_>>()
        });
        match scanned.await {
            Ok(found) => {
                self.seen.send_if_modified(|seen| {
                    let changed = **seen != found;
                    if changed {
                        *seen = Arc::new(found);
                    }
                    changed
                });
            }
            Err(error) => tracing::error!(%error, "the scan for control daemons failed"),
        }
        self.seen.borrow().clone()
    }

    /// The very process that a caller names, if it is a control daemon of this host; else the reason.
    pub async fn inspect(&self, identity: Identity) -> Result<Neighbour, String> {
        let (world, inventory) = (self.world.clone(), Arc::clone(&self.inventory));
        tokio::task::spawn_blocking(move || {
            let daemon = foreign::inspect(identity, world.as_deref())?;
            let gpus = inventory.known_gpus().map_err(|error| error.to_string());
            Ok(neighbour(daemon, gpus.as_deref()))
        })
        .await
        .map_err(|error| error.to_string())?
    }

    /// Tells when a scan finds something else than the one before.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Vec<Neighbour>>> {
        self.seen.subscribe()
    }

    /// Says which process a daemon of ours has, or is about to have; nothing once its driver was told to stop, which
    /// comes before [`Lookout::disclaim`]: what was let go of is not taken back by an action that was under way.
    pub(super) fn claim(&self, name: &DaemonName, claim: Claim, stop: &CancellationToken) {
        let mut claims = self.claims();
        if !stop.is_cancelled() {
            claims.insert(name.clone(), claim);
        }
    }

    /// The daemon is ours no longer.
    pub(super) fn disclaim(&self, name: &DaemonName) {
        self.claims().remove(name);
    }

    /// The control processes of this manager's daemons; some may be dead.
    pub(super) fn control_processes(&self) -> Vec<Identity> {
        self.claims().values().filter_map(|claim| claim.process).collect()
    }

    /// The daemon of this manager whose process this is.
    pub fn owner(&self, daemon: &Running) -> Option<DaemonName> {
        self.claimed(daemon).map(|(name, _)| name)
    }

    /// Whether a process has the very token that this manager gave to its daemon of this name.
    pub fn carries_claimed_token(&self, name: &DaemonName, daemon: &Running) -> bool {
        let theirs = daemon.environment.as_ref().ok().and_then(|around| around.token.as_ref());
        let claims = self.claims();
        let ours = claims.get(name).and_then(|claim| claim.token.as_ref());
        theirs.is_some() && theirs == ours
    }

    /// Whose process it is, and whether it is only looked at.
    fn claimed(&self, daemon: &Running) -> Option<(DaemonName, bool)> {
        let token = daemon.environment.as_ref().ok().and_then(|around| around.token.as_ref());
        let claims = self.claims();
        let mut claims = claims.iter();
        let (name, claim) = claims.find(|(_, claim)| {
            claim.process == Some(daemon.identity) || (token.is_some() && claim.token.as_ref() == token)
        })?;
        Some((name.clone(), claim.observed))
    }

    /// The daemons of the last scan that may share a GPU with this one: not its own, nor one that this manager keeps,
    /// since it gives each GPU to one of those.
    pub(super) fn sharing(&self, name: &DaemonName, gpus: &[GpuUuid]) -> Vec<Sharing> {
        let seen = self.seen.borrow().clone();
        // One that has ended since the scan is in nobody's way, and was perhaps ours.
        let alive = seen.iter().filter(|one| is_alive(one.daemon.identity));
        let shared = alive.filter_map(|neighbour| {
            let observed_as = match self.claimed(&neighbour.daemon) {
                Some((owner, observed)) if owner == *name || !observed => return None,
                claimed => claimed.map(|(owner, _)| owner),
            };
            let gpus = match &neighbour.gpus {
                Ok(theirs) => {
                    let both: Vec<GpuUuid> =
                        gpus.iter().filter(|gpu| theirs.contains(gpu)).cloned().collect();
                    if both.is_empty() {
                        return None;
                    }
                    Ok(both)
                }
                Err(reason) => Err(reason.clone()),
            };
            Some(Sharing { gpus, daemon: described(&neighbour.daemon, observed_as.as_ref()) })
        });
        shared.collect()
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<DaemonName, Claim>> {
        // A panic elsewhere leaves the map as it was before or after one insert: both are whole.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A control daemon that shares GPUs with one of ours, or may.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sharing {
    /// The GPUs that both serve; the reason where that cannot be told.
    pub(super) gpus: Result<Vec<GpuUuid>, String>,
    /// Which daemon it is, in words.
    pub(super) daemon: String,
}

/// What it means that two servers are on one GPU.
pub(super) const SHARED_MEANS: &str = "two servers on a GPU take turns on it instead of running side by side, each counts \
                                       memory and SMs for itself, and admission here knows only its own tenants";

fn neighbour(daemon: Running, gpus: Result<&[Gpu], &String>) -> Neighbour {
    let found = match (&daemon.environment, gpus) {
        (Err(reason), _) | (_, Err(reason)) => Err(reason.clone()),
        (Ok(around), Ok(present)) => {
            visible_gpus(around.visible_devices.as_deref(), around.pci_order, present)
                .map_err(|error| error.to_string())
        }
    };
    Neighbour { daemon, gpus: found }
}

fn described(daemon: &Running, observed_as: Option<&DaemonName>) -> String {
    let mut words = vec![format!("control daemon {}", daemon.identity)];
    words.extend(daemon.uid.map(|uid| format!("of uid {uid}")));
    if let Ok(around) = &daemon.environment {
        words.push(format!("in {}", around.pipe_directory.display()));
        if around.token.is_some() && observed_as.is_none() {
            words.push("(started by another mps-manager)".to_owned());
        }
    }
    words.extend(observed_as.map(|name| format!("(observed here as {name})")));
    words.join(" ")
}
