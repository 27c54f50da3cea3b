//! [`Service`] and its backend, no part of which can be reached without a [`Permit`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OnceCell, watch};
use tokio_util::task::TaskTracker;

use super::access::context::Permit;
use super::change_feed::ChangeFeed;
use super::hosts::{OtherHosts, Remote, TokenSealer};
use super::recent_history::RecentHistory;
use super::{ServiceError, access, host, limits, tenants};
use crate::clock::Clock;
use crate::domain::daemon::Phase;
use crate::domain::environment::cdi::CdiDirectory;
use crate::domain::gpu::{Gpu, known};
use crate::domain::health::HostHealth;
use crate::domain::listening::HostListening;
use crate::domain::vitals::GpuVitals;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::{Inventory, InventoryError};
use crate::metrics::Metrics;
use crate::metrics::snapshot::CommittedSnapshot;
use crate::operations::Engine;
use crate::service::Result;
use crate::service::cache::Cache;
use crate::service::readings::once;
use crate::store::Store;
use crate::supervisor::Fleet;

/// The use cases; cheap to clone.
#[derive(Clone)]
pub struct Service {
    backend: Arc<Backend>,
}

/// Everything the use cases need, and the work that several of them share.
///
/// A use case gets it for a permit. The manager's own tasks, and what is public, are functions of it themselves
/// ([`Service::without_permit`]).
pub struct Backend {
    pub(super) parts: Parts,
    pub(super) initialized: host::initialized::Initialized,
    pub(super) committed: watch::Sender<Arc<CommittedSnapshot>>,
    /// Vitals of the GPUs at the last poll; none while the driver is not queried or does not answer.
    pub(super) vitals: watch::Sender<Arc<BTreeMap<GpuUuid, GpuVitals>>>,
    /// Number of the newest event before anything was started; later ones are counted and logged.
    pub(super) newest_event_before: i64,
    /// The profile of a simulated host, once the driver has answered.
    pub(super) simulated: OnceCell<Option<String>>,
    /// Daemons and tenants, cached between commits.
    pub(super) cache: Cache,
    /// Limits on concurrent event streams, by reader.
    pub(super) streams: Arc<limits::Slots<String>>,
    /// Limits on the rows of refusals in the audit log.
    pub(super) refusals: limits::RefusalRows,
    /// Processes that wait for a slot.
    pub(super) launches: tenants::leases::queue::LaunchQueue,
    /// Recent use by tenants, and vitals of GPUs.
    pub(super) recent: RecentHistory,
    /// The last reading of the other hosts.
    pub(super) others: OtherHosts,
    /// Files for container engines and systemd.
    pub(super) engine_files: tenants::engine_files::EngineFileWriter,
}

/// Parts of which a [`Service`] is made.
pub struct Parts {
    /// The manager's clock.
    pub clock: Clock,
    /// The database.
    pub store: Store,
    /// Tokens, sessions and users with access.
    pub access: access::Access,
    /// The daemons.
    pub fleet: Fleet,
    /// Long-running operations.
    pub engine: Engine,
    /// The GPUs.
    pub inventory: Arc<dyn Inventory>,
    /// The ID of this machine, or [`host::startup::NO_MACHINE_ID`].
    pub machine_id: String,
    /// The uid this manager runs as.
    pub manager_uid: u32,
    /// Longest wait for a fresh poll.
    pub timeout: Duration,
    /// Address and TLS of the API's TCP listener.
    pub listening: watch::Receiver<HostListening>,
    /// Counters.
    pub metrics: Metrics,
    /// Tasks that must end before the store is closed.
    pub tasks: TaskTracker,
    /// Most event streams open at the same time.
    pub streams: usize,
    /// Faults of the manager itself.
    pub health: HostHealth,
    /// Where the tenants' CDI specification is kept, if anywhere.
    pub cdi: Option<CdiDirectory>,
    /// Connections to other hosts.
    pub remote: Arc<dyn Remote>,
    /// Encryption of their tokens.
    pub host_tokens: TokenSealer,
    /// Missing part, while the manager waits for the NVIDIA driver; `None` otherwise.
    pub waiting_for_driver: Option<String>,
}

impl Service {
    /// Assembles the service.
    pub fn new(parts: Parts) -> Self {
        let runtime_dir = &parts.fleet.context().runtime_dir;
        let backend = Backend {
            engine_files: tenants::engine_files::EngineFileWriter::new(parts.cdi.clone(), runtime_dir),
            recent: RecentHistory::new(parts.clock),
            others: OtherHosts::default(),
            newest_event_before: *parts.store.newest_event().borrow(),
            // One reader may have one in four.
            streams: limits::Slots::new(parts.streams, (parts.streams / 4).max(1)),
            parts,
            initialized: host::initialized::Initialized::default(),
            committed: watch::Sender::default(),
            vitals: watch::Sender::default(),
            simulated: OnceCell::new(),
            cache: Cache::default(),
            refusals: limits::RefusalRows::default(),
            launches: tenants::leases::queue::LaunchQueue::default(),
        };
        let backend = Arc::new(backend);
        // The engine belongs to the backend, and must not keep it.
        let weak = Arc::downgrade(&backend);
        backend.parts.engine.verify_with(Box::new(move |tenant| {
            let backend = weak.upgrade();
            Box::pin(async move {
                let backend = backend.ok_or_else(|| "the manager stops".to_owned())?;
                let verified = backend.verify_now(tenant).await;
                let verified = verified.map_err(|error| error.host_error().to_string())?;
                verified
                    .blocker
                    .as_ref()
                    .map_or_else(|| Ok(verified.other_sms()), |blocker| Err(blocker.message.clone()))
            })
        }));
        Self { backend }
    }

    /// Returns the backend to a use case whose caller has the required right.
    pub(super) fn with(&self, _: &Permit) -> &Arc<Backend> {
        &self.backend
    }

    /// Returns the backend without a right, for the manager's own tasks and for public information.
    pub fn without_permit(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// Returns the manager's clock.
    pub fn clock(&self) -> Clock {
        self.backend.parts.clock
    }

    /// Returns the numbers of the last commit and of the last publication of a daemon: values read after this call are valid until one of
    /// the two changes.
    pub fn version(&self) -> (u64, u64) {
        self.backend.version()
    }

    /// Returns a feed of commits and publications from now on, which ends after `longest`.
    pub(super) fn changes(&self, longest: Duration) -> ChangeFeed {
        let Parts { store, fleet, .. } = &self.backend.parts;
        ChangeFeed {
            until: tokio::time::Instant::now() + longest,
            commits: store.committed(),
            publications: fleet.context().publications.subscribe(),
        }
    }

    /// The phase of a daemon as it was seen last.
    pub(super) fn phase(&self, daemon: &DaemonName) -> Option<Phase> {
        Some(self.backend.parts.fleet.get(daemon)?.observed().status.phase)
    }

    /// The number of the last event.
    pub fn last_event(&self) -> i64 {
        *self.backend.parts.store.newest_event().borrow()
    }

    /// Runs a request that changes something to completion, whether or not its caller still waits.
    pub async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.backend.parts.tasks.spawn(work).await {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only the end of the runtime cancels it, and with it this.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

impl Backend {
    /// Returns the numbers of the last commit and of the last publication of a daemon.
    pub(super) fn version(&self) -> (u64, u64) {
        (self.parts.store.last_commit(), *self.parts.fleet.context().publications.borrow())
    }

    /// The GPUs of this host with their MLOPart devices, and missing GPUs that a daemon holds. When the driver does not answer, the last known list is
    /// used.
    pub(super) async fn gpus(&self) -> Result<Vec<Gpu>> {
        let gpus = self.query_inventory(Inventory::known_gpus).await?;
        self.with_mlopart(known(gpus.map_err(unavailable)?, &*self.stored_gpus().await?)).await
    }

    /// Returns the GPUs for callers that only need those held by daemons, which are known even if the driver never answered.
    pub(super) async fn held_gpus(&self) -> Result<Vec<Gpu>> {
        let read = async {
            let gpus = self.query_inventory(Inventory::known_gpus).await?;
            let gpus = match gpus {
                Err(InventoryError::Silent { .. }) => Vec::new(),
                gpus => gpus.map_err(unavailable)?,
            };
            self.with_mlopart(known(gpus, &*self.stored_gpus().await?)).await
        };
        once(|readings| &readings.held_gpus, read).await
    }

    /// The GPUs that the driver lists now.
    pub(super) async fn present_gpus(&self) -> Result<Vec<Gpu>> {
        self.query_inventory(Inventory::gpus).await?.map_err(unavailable)
    }

    /// Queries the driver off the async threads, because it may block.
    pub(super) async fn query_inventory<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Inventory) -> T + Send + 'static,
    ) -> Result<T> {
        let inventory = Arc::clone(&self.parts.inventory);
        let answer = tokio::task::spawn_blocking(move || call(&*inventory)).await;
        answer.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` wants it")]
pub(super) fn unavailable(error: InventoryError) -> ServiceError {
    ServiceError::Unavailable(error.to_string())
}
