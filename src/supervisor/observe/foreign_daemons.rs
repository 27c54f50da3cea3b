//! Finds the control daemons on this host, and their GPUs.
//!
//! A scan reads `/proc` and opens no session. It is made at the interval of an idle daemon's polls and before each start: a
//! daemon is never started beside another one on a GPU without a report of the consequences. This manager's daemons are
//! recognized by the token that was claimed before the process was started, or by PID and start time.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::domain::foreign::visible_gpus;
use crate::domain::foreign_owner::SharingDaemon;
use crate::domain::gpu::Gpu;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::Inventory;
use crate::host::Identity;
use crate::host::process::is_alive;
use crate::mps::process::foreign::{self, Running};

/// Most foreign daemons that are read at the same time, over all requests: each costs a control process.
const READERS: usize = 4;

/// Control daemon of the host, with its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignDaemon {
    /// Process of the daemon and its environment.
    pub daemon: Running,
    /// GPUs of the daemon in its own order, or the reason why they cannot be determined.
    pub gpus: Result<Vec<GpuUuid>, String>,
}

/// Control process that a daemon of this manager has, or is about to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonClaim {
    /// Token in its environment.
    pub(crate) token: Option<String>,
    /// Control process, once it is known.
    pub(crate) process: Option<Identity>,
    /// True if the daemon is only observed.
    pub(crate) observed: bool,
}

/// Scans the host for control daemons and keeps the last result.
pub struct ForeignDaemonScanner {
    world: Option<PathBuf>,
    /// Directory in which this manager's daemons have their directories.
    own: PathBuf,
    inventory: Arc<dyn Inventory>,
    claims: Mutex<BTreeMap<DaemonName, DaemonClaim>>,
    seen: watch::Sender<Arc<Vec<ForeignDaemon>>>,
    /// Permits to read a foreign daemon.
    pub(crate) readers: Semaphore,
}

impl ForeignDaemonScanner {
    /// Creates a scanner for the host of this inventory; `extra_env` is the environment of a simulated host's processes.
    pub fn new(inventory: Arc<dyn Inventory>, own: PathBuf, extra_env: &[(OsString, OsString)]) -> Self {
        let world = extra_env.iter().find(|(name, _)| name == "MPS_SIM_WORLD");
        Self {
            world: world.map(|(_, directory)| directory.into()),
            own,
            inventory,
            claims: Mutex::default(),
            seen: watch::channel(Arc::default()).0,
            readers: Semaphore::new(READERS),
        }
    }

    /// Scans at this interval until cancelled.
    pub(crate) async fn watch(&self, check_interval: Duration, stop: CancellationToken) {
        loop {
            self.scan().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(check_interval) => {}
            }
        }
    }

    /// Scans the host, and returns all its control daemons, including this manager's.
    pub async fn scan(&self) -> Arc<Vec<ForeignDaemon>> {
        let (world, own, inventory) = (self.world.clone(), self.own.clone(), Arc::clone(&self.inventory));
        let scanned = tokio::task::spawn_blocking(move || {
            let mut running = foreign::running(world.as_deref());
            for daemon in &mut running {
                let around = daemon.environment.as_ref().ok();
                // The daemon belongs to this manager, or the database has lost it.
                daemon.owner.is_lost = around
                    .is_some_and(|around| around.token.is_some() && around.pipe_directory.starts_with(&own));
            }
            // A host on which no daemon runs need not ask the driver.
            let gpus = if running.is_empty() { Ok(Vec::new()) } else { inventory.known_gpus() };
            let gpus = gpus.map_err(|error| error.to_string());
            running.into_iter().map(|daemon| with_gpus(daemon, gpus.as_deref())).collect::<Vec<_>>()
        });
        match scanned.await {
            Ok(scan) => {
                self.seen.send_if_modified(|previous| {
                    let changed = **previous != scan;
                    if changed {
                        *previous = Arc::new(scan);
                    }
                    changed
                });
            }
            Err(error) => tracing::error!(%error, "the scan for control daemons failed"),
        }
        self.seen.borrow().clone()
    }

    /// Inspects the very process that a caller names; fails with a reason if it is no control daemon of this host.
    pub async fn inspect(&self, identity: Identity) -> Result<ForeignDaemon, String> {
        let (world, inventory) = (self.world.clone(), Arc::clone(&self.inventory));
        tokio::task::spawn_blocking(move || {
            let daemon = foreign::inspect(identity, world.as_deref())?;
            let gpus = inventory.known_gpus().map_err(|error| error.to_string());
            Ok(with_gpus(daemon, gpus.as_deref()))
        })
        .await
        .map_err(|error| error.to_string())?
    }

    /// Subscribes to the results of scans that differ from the one before.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Vec<ForeignDaemon>>> {
        self.seen.subscribe()
    }

    /// Claims the process that a daemon of this manager has or is about to have. Does nothing once its driver was cancelled,
    /// which comes before [`ForeignDaemonScanner::disclaim`]: an action in progress does not claim a released daemon again.
    pub(crate) fn claim(&self, name: &DaemonName, claim: DaemonClaim, stop: &CancellationToken) {
        let mut claims = self.claims();
        if !stop.is_cancelled() {
            claims.insert(name.clone(), claim);
        }
    }

    /// Withdraws the claim for a daemon that this manager no longer has.
    pub(crate) fn disclaim(&self, name: &DaemonName) {
        self.claims().remove(name);
    }

    /// Returns the control processes of this manager's daemons; some may be dead.
    pub(crate) fn control_processes(&self) -> Vec<Identity> {
        self.claims().values().filter_map(|claim| claim.process).collect()
    }

    /// Returns the control processes of the other daemons that this manager keeps; some may be dead.
    pub(crate) fn other_processes(&self, name: &DaemonName) -> Vec<(DaemonName, Identity)> {
        let claims = self.claims();
        let others = claims.iter().filter(|(other, claim)| *other != name && !claim.observed);
        others.filter_map(|(other, claim)| Some((other.clone(), claim.process?))).collect()
    }

    /// Returns the daemon of this manager to which this process belongs.
    pub fn owner(&self, daemon: &Running) -> Option<DaemonName> {
        self.claimed(daemon).map(|(name, _)| name)
    }

    /// Returns true if a process carries the very token that this manager gave to its daemon of this name.
    pub fn carries_claimed_token(&self, name: &DaemonName, daemon: &Running) -> bool {
        let theirs = daemon.environment.as_ref().ok().and_then(|environment| environment.token.as_ref());
        let claims = self.claims();
        let ours = claims.get(name).and_then(|claim| claim.token.as_ref());
        theirs.is_some() && theirs == ours
    }

    /// Returns the daemon that claims this process, and whether it is only observed.
    fn claimed(&self, daemon: &Running) -> Option<(DaemonName, bool)> {
        let token = daemon.environment.as_ref().ok().and_then(|environment| environment.token.as_ref());
        let claims = self.claims();
        let mut claims = claims.iter();
        let (name, claim) = claims.find(|(_, claim)| {
            claim.process == Some(daemon.identity) || (token.is_some() && claim.token.as_ref() == token)
        })?;
        Some((name.clone(), claim.observed))
    }

    /// Returns true if the GPUs of every foreign daemon of the last scan are known.
    pub fn knows_all_gpus(&self) -> bool {
        let scan = self.seen.borrow().clone();
        let unknown = scan.iter().filter(|other| other.gpus.is_err() && is_alive(other.daemon.identity));
        unknown.filter(|other| self.owner(&other.daemon).is_none()).count() == 0
    }

    /// Returns the daemons of the last scan that may share a GPU with this one. Daemons that this manager keeps are not among
    /// them, since it gives each GPU to one of those.
    pub fn sharing(&self, name: &DaemonName, gpus: &[GpuUuid]) -> Vec<SharedGpu> {
        let scan = self.seen.borrow().clone();
        let shared = scan.iter().filter_map(|foreign| {
            let observed_as = match self.claimed(&foreign.daemon) {
                Some((owner, observed)) if owner == *name || !observed => return None,
                claimed => claimed.map(|(owner, _)| owner),
            };
            let gpus = match &foreign.gpus {
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
            let daemon = &foreign.daemon;
            // A daemon that has ended since the scan disturbs nobody, and may have been this manager's own.
            if !is_alive(daemon.identity) {
                return None;
            }
            let path =
                daemon.environment.as_ref().ok().map(|around| around.pipe_directory.display().to_string());
            let sharing = SharingDaemon {
                process: daemon.identity.into(),
                uid: daemon.uid,
                pipe_directory: path,
                owner: daemon.owner.clone(),
            };
            Some(SharedGpu { gpus, daemon: described(daemon, observed_as.as_ref()), sharing })
        });
        shared.collect()
    }

    fn claims(&self) -> MutexGuard<'_, BTreeMap<DaemonName, DaemonClaim>> {
        // A panic elsewhere leaves the map as it was before or after one insert: both are consistent.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Control daemon that shares GPUs with one of this manager's, or may share some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedGpu {
    /// GPUs that both serve, or the reason why they cannot be determined.
    pub gpus: Result<Vec<GpuUuid>, String>,
    /// Description of the daemon in words.
    pub daemon: String,
    /// Description of the daemon for the API.
    pub sharing: SharingDaemon,
}

impl SharedGpu {
    /// Returns the instruction that ends the sharing for good.
    pub fn remedy(&self) -> String {
        self.sharing.owner.remedy(self.sharing.pipe_directory.as_deref())
    }
}

/// Consequences of two servers on one GPU.
pub(crate) const SHARED_MEANS: &str = "two servers on a GPU take turns on it instead of running side by side, each counts \
                                       memory and SMs for itself, and admission here knows only its own tenants";

fn with_gpus(daemon: Running, gpus: Result<&[Gpu], &String>) -> ForeignDaemon {
    let gpus = match (&daemon.environment, gpus) {
        (Err(reason), _) | (_, Err(reason)) => Err(reason.clone()),
        (Ok(environment), Ok(present)) => {
            visible_gpus(environment.visible_devices.as_deref(), environment.pci_order, present)
                .map_err(|error| error.to_string())
        }
    };
    ForeignDaemon { daemon, gpus }
}

fn described(daemon: &Running, observed_as: Option<&DaemonName>) -> String {
    let mut words = vec![format!("control daemon {}", daemon.identity)];
    words.extend(daemon.uid.map(|uid| format!("of uid {uid}")));
    if let Ok(environment) = &daemon.environment {
        words.push(format!("in {}", environment.pipe_directory.display()));
    }
    let owner = daemon.owner.words();
    if !owner.is_empty() && observed_as.is_none() {
        words.push(format!("({owner})"));
    }
    words.extend(observed_as.map(|name| format!("(observed here as {name})")));
    words.join(" ")
}
