//! One function per use case: authorise, validate, write, then notify the supervisor or the operations engine.
//!
//! Nothing here knows of HTTP. Each use case begins with the right that it requires ([`access::context`]); what is committed takes
//! the permit. A request that changes something is run by [`Service::run_to_completion`].

pub mod access;
pub mod daemons;
mod error;
pub mod events;
pub mod host;
mod idempotency;
pub mod layouts;
pub mod limits;
pub mod page;
pub mod tenants;

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub use access::context::IdempotencyKey;
pub use error::{FieldError, ServiceError};

use crate::clock::Clock;
use crate::domain::gpu::Gpu;
use crate::domain::health::HostHealth;
use crate::domain::listening::HostListening;
use crate::domain::plan::Desired;
use crate::gpu::{Inventory, InventoryError};
use crate::metrics::Metrics;
use crate::metrics::snapshot::CommittedSnapshot;
use crate::operations::Engine;
use crate::store::{self, Fate, Store, StoreError, Transaction};
use crate::supervisor::Fleet;

/// Everything the use cases need; cheap to clone.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

/// What all clones of a [`Service`] share.
pub struct Shared {
    parts: Parts,
    initialized: host::initialized::Initialized,
    committed: watch::Sender<Arc<CommittedSnapshot>>,
    /// Daemons and tenants, cached between commits.
    cache: tenants::cache::Cache,
    /// Limits on concurrent event streams, by reader.
    streams: Arc<limits::Slots<String>>,
    /// Refusals waiting to be written to the audit log.
    refusals: access::refusal_counts::Refusals,
    /// Recent use by tenants.
    history: tenants::usage_history::UsageHistory,
}

impl Deref for Service {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

/// What a [`Service`] is made of.
pub struct Parts {
    /// What time it is.
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
    /// How the API is reached over TCP.
    pub listening: watch::Receiver<HostListening>,
    /// Counters.
    pub metrics: Metrics,
    /// Tasks that must end before the store is closed.
    pub tasks: TaskTracker,
    /// Most event streams open at the same time.
    pub streams: usize,
    /// Faults of the manager itself.
    pub health: HostHealth,
}

/// How a write is done.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Validate everything and keep nothing.
    pub dry_run: bool,
    /// Write only if this is the entity tag now; `*` is "if it exists".
    pub if_match: Option<String>,
    /// Write only if it does not exist (`If-None-Match: *`).
    pub must_be_new: bool,
}

impl WriteOptions {
    /// Only to find out whether the write would be refused.
    pub fn rehearsal() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}

/// A written resource, and whether it is new.
#[derive(Debug, Clone)]
pub struct Written<T> {
    /// The resource as it is now.
    pub value: T,
    /// Whether it did not exist before.
    pub created: bool,
}

impl Service {
    /// Assembles the service.
    pub fn new(parts: Parts) -> Self {
        Self(Arc::new(Shared {
            history: tenants::usage_history::UsageHistory::new(parts.clock),
            // One reader may have one in four.
            streams: limits::Slots::new(parts.streams, (parts.streams / 4).max(1)),
            parts,
            initialized: host::initialized::Initialized::default(),
            committed: watch::Sender::default(),
            cache: tenants::cache::Cache::default(),
            refusals: access::refusal_counts::Refusals::default(),
        }))
    }

    /// What time it is.
    pub fn clock(&self) -> Clock {
        self.parts.clock
    }

    /// Runs a request that changes something to completion, whether or not its caller still waits.
    pub async fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.parts.tasks.spawn(work).await {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Only the end of the runtime cancels it, and with it this.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// The GPUs of this host, and missing GPUs that a daemon holds. When the driver does not answer, the last known list is
    /// used.
    async fn gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        let known = self.query_inventory(Inventory::known_gpus).await?;
        Ok(store::gpus::all(&mut *self.parts.store.read().await?, known.map_err(unavailable)?).await?)
    }

    /// The same for callers that only need GPUs held by daemons, which are known even if the driver never answered.
    async fn held_gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        let known = self.query_inventory(Inventory::known_gpus).await?;
        let known = match known {
            Err(InventoryError::Silent { .. }) => Vec::new(),
            known => known.map_err(unavailable)?,
        };
        Ok(store::gpus::all(&mut *self.parts.store.read().await?, known).await?)
    }

    /// The GPUs that the driver lists now.
    async fn present_gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        self.query_inventory(Inventory::gpus).await?.map_err(unavailable)
    }

    /// Queries the driver off the async threads, because it may block.
    async fn query_inventory<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Inventory) -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let inventory = Arc::clone(&self.parts.inventory);
        let answer = tokio::task::spawn_blocking(move || call(&*inventory)).await;
        answer.map_err(|error| ServiceError::Internal(error.to_string()))
    }

    /// Publishes the desired state of daemons after a commit.
    fn publish(&self, desired: impl IntoIterator<Item = Desired>) {
        for desired in desired {
            self.parts.fleet.publish(desired, None);
        }
    }
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` wants it")]
fn unavailable(error: InventoryError) -> ServiceError {
    ServiceError::Unavailable(error.to_string())
}

/// Refuses a write whose entity tag is not the present one.
fn check_precondition(options: &WriteOptions, current: Option<i64>) -> Result<(), ServiceError> {
    let failed = |detail: String| Err(ServiceError::PreconditionFailed(detail));
    if options.must_be_new && current.is_some() {
        return failed("it exists already, and If-None-Match: * was given".into());
    }
    let Some(wanted) = &options.if_match else { return Ok(()) };
    match current {
        None => failed("it does not exist, and If-Match was given".into()),
        Some(_) if wanted == "*" => Ok(()),
        Some(now) if wanted.split(',').any(|tag| revision_of(tag.trim()) == etag(now)) => Ok(()),
        Some(now) => failed(format!(
            "it was changed since: If-Match is {wanted} and the entity tag is now {}; read it again and repeat the change",
            etag(now)
        )),
    }
}

/// The entity tag of a revision.
pub fn etag(revision: i64) -> String {
    format!("\"{revision}\"")
}

/// The entity tag of the revision alone, from a tag that a read gave: `"3"` of `"3-0a1b"`.
fn revision_of(tag: &str) -> std::borrow::Cow<'_, str> {
    match tag.split_once('-') {
        Some((revision, _)) => format!("{revision}\"").into(),
        None => tag.into(),
    }
}

/// Commit, or roll back for a dry run.
fn fate(options: &WriteOptions) -> Fate {
    if options.dry_run { Fate::RollBack } else { Fate::Commit }
}
