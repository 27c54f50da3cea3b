//! One function a use case: authorise, validate, write, tell the supervisor or the operations.
//!
//! Nothing here knows of HTTP. A use case that writes runs as a task of its own, so that a caller who hangs up
//! cancels nothing that was begun.

pub mod access;
pub mod acting;
pub mod adoption;
pub mod audit;
pub mod clients;
pub mod daemons;
mod directories;
mod error;
pub mod events;
pub mod faults;
mod figures;
pub mod foreign;
mod history;
pub mod host;
pub mod layouts;
pub mod leases;
pub mod logs;
pub mod maintenance;
pub mod operations;
pub mod page;
mod placement;
mod places;
mod prediction;
mod readiness;
pub mod recording;
mod repeats;
pub mod replace;
pub mod replays;
mod roster;
pub mod sessions;
mod shares;
pub mod take_up;
pub mod tenants;
pub mod tokens;
pub mod told;
mod verification;
pub mod whoami;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::TaskTracker;

pub use error::{FieldError, ServiceError};

use crate::domain::gpu::Gpu;
use crate::domain::health::HostHealth;
use crate::domain::listening::Listening;
use crate::domain::plan::Desired;
use crate::gpu::{Inventory, InventoryError};
use crate::metrics::Metrics;
use crate::metrics::world::Book;
use crate::operations::Engine;
use crate::store::{self, Fate, Store, StoreError, Transaction};
use crate::supervisor::Fleet;

/// Everything that the use cases work with; cheap to clone.
#[derive(Clone)]
pub struct Service {
    parts: Arc<Parts>,
    taken_up: Arc<take_up::TakenUp>,
    book: watch::Sender<Arc<Book>>,
    /// Room for streams of events.
    streams: Arc<places::Places>,
    /// Refusals that wait to be put on record.
    refusals: Arc<acting::Refusals>,
    /// What tenants held lately.
    history: Arc<history::Remembered>,
}

/// What a [`Service`] is made of.
pub struct Parts {
    /// What is remembered.
    pub store: Store,
    /// Those who may come in.
    pub access: access::Access,
    /// The daemons.
    pub fleet: Fleet,
    /// Actions that take time.
    pub engine: Engine,
    /// The GPUs.
    pub inventory: Arc<dyn Inventory>,
    /// The ID of this machine, or [`take_up::NO_MACHINE_ID`].
    pub machine_id: String,
    /// The user that this manager runs as.
    pub manager_uid: u32,
    /// Longest wait for a fresh look.
    pub patience: Duration,
    /// How the API is reached over TCP.
    pub listening: watch::Receiver<Listening>,
    /// What is counted.
    pub metrics: Metrics,
    /// Tasks that must end before the store is closed.
    pub tasks: TaskTracker,
    /// Streams of events that may be read at the same time.
    pub streams: usize,
    /// What is wrong with the manager itself.
    pub health: HostHealth,
}

/// How a write is to be done.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Do everything and keep nothing.
    pub dry_run: bool,
    /// Write only if this is the entity tag now; `*` is "if it exists".
    pub if_match: Option<String>,
    /// Write only if it does not exist (`If-None-Match: *`).
    pub must_be_new: bool,
}

impl WriteOptions {
    /// To find out whether it would be refused.
    pub fn rehearsal() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}

/// A key by which a repeated request is known, with a digest of what was requested.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    /// Whose key it is: another's of the same text is another key, so that nobody gets the answer to somebody else.
    pub owner: String,
    /// The key that the caller chose.
    pub key: String,
    /// Digest of method, path and body.
    pub request_hash: String,
}

/// A written thing, and whether it is new.
#[derive(Debug, Clone)]
pub struct Written<T> {
    /// The thing as it is now.
    pub value: T,
    /// Whether it did not exist before.
    pub created: bool,
}

impl Service {
    /// Puts the parts together.
    pub fn new(parts: Parts) -> Self {
        let streams = places::Places::new(parts.streams);
        let (taken_up, book) = (Arc::default(), watch::Sender::default());
        let (refusals, history) = (Arc::default(), Arc::default());
        Self { parts: Arc::new(parts), taken_up, book, streams, refusals, history }
    }

    /// Runs a use case that writes to its end, whether or not its caller waits for it; refuses it on a database of
    /// another machine.
    async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
    ) -> Result<T, ServiceError> {
        self.refuse_read_only().await?;
        self.parts
            .tasks
            .spawn(acting::carried(work))
            .await
            .map_err(|error| ServiceError::Internal(error.to_string()))?
    }

    /// The GPUs of this host, as they were if the driver does not answer now, and those that a daemon holds and that are
    /// missing, as they were.
    async fn gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        let known = self.asked(Inventory::known_gpus).await?;
        Ok(store::gpus::all(&mut *self.parts.store.read().await?, known.map_err(unavailable)?).await?)
    }

    /// The same for who asks for nothing but what daemons hold: that is remembered even if the driver never answered.
    async fn held_gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        let known = self.asked(Inventory::known_gpus).await?;
        let known = match known {
            Err(InventoryError::Silent { .. }) => Vec::new(),
            known => known.map_err(unavailable)?,
        };
        Ok(store::gpus::all(&mut *self.parts.store.read().await?, known).await?)
    }

    /// The GPUs that the driver lists now.
    async fn present_gpus(&self) -> Result<Vec<Gpu>, ServiceError> {
        self.asked(Inventory::gpus).await?.map_err(unavailable)
    }

    /// Asks the driver where waiting for it holds up nobody.
    async fn asked<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Inventory) -> T + Send + 'static,
    ) -> Result<T, ServiceError> {
        let inventory = Arc::clone(&self.parts.inventory);
        let answer = tokio::task::spawn_blocking(move || call(&*inventory)).await;
        answer.map_err(|error| ServiceError::Internal(error.to_string()))
    }

    /// Publishes what the daemons should hold after a commit.
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

/// The entity tag of the revision alone, of one that a read gave: `"3"` of `"3-0a1b"`.
fn revision_of(tag: &str) -> std::borrow::Cow<'_, str> {
    match tag.split_once('-') {
        Some((revision, _)) => format!("{revision}\"").into(),
        None => tag.into(),
    }
}

/// Keep or undo.
fn fate(options: &WriteOptions) -> Fate {
    if options.dry_run { Fate::RollBack } else { Fate::Commit }
}

/// Answers a repeated request as the first was answered; remembers the answer to a new one.
async fn once<T>(
    db: Transaction<'_>,
    key: Option<&IdempotencyKey>,
    now: i64,
    work: impl AsyncFnOnce(Transaction<'_>) -> Result<T, ServiceError>,
) -> Result<T, ServiceError>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let Some(key) = key else { return work(db).await };
    if let Some(value) = remembered(&mut *db, key).await? {
        return Ok(value);
    }
    let value = work(&mut *db).await?;
    let response =
        serde_json::to_string(&value).map_err(|error| ServiceError::Internal(error.to_string()))?;
    let answer = store::idempotency::Remembered { request_hash: key.request_hash.clone(), response };
    store::idempotency::put(db, &key.owner, &key.key, &answer, now).await?;
    Ok(value)
}

/// The answer that was given under a key; refused when it was given to another request.
async fn remembered<T: serde::de::DeserializeOwned>(
    db: Transaction<'_>,
    IdempotencyKey { owner, key, request_hash }: &IdempotencyKey,
) -> Result<Option<T>, ServiceError> {
    let Some(remembered) = store::idempotency::get(db, owner, key).await? else { return Ok(None) };
    if remembered.request_hash != *request_hash {
        return Err(ServiceError::KeyReused(key.clone()));
    }
    serde_json::from_str(&remembered.response).map(Some).map_err(|error| {
        StoreError::Corrupt { what: "a remembered answer", detail: error.to_string() }.into()
    })
}
