//! Actions that take time: claimed one a daemon, journalled step by step, picked up again after a restart.
//!
//! A step is written before it is taken and completed after. What becomes of an operation that the manager's
//! death interrupted is decided by [`crate::domain::operation::resume`], which is pure.

mod apply;
mod daemon;
mod drain;
mod ending;
pub mod holders;
mod layout;
mod maintenance;
mod replay;
mod shares;
mod terminate;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use layout::{OutlookError, PolledDaemon};
pub use terminate::OUTCOMES as TERMINATION_OUTCOMES;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::Clock;
use crate::domain::DaemonName;
use crate::domain::gpu::Gpu;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::maintenance::DrainLimit;
use crate::domain::operation::{Operation, OperationRequest, OperationState, Resume, Undo, resume};
use crate::gpu::{Inventory as _, Suspendable, TimeLimited};
use crate::host;
use crate::metrics::operations::Operations;
use crate::store::{self, Fate, Store, StoreError};
use crate::supervisor::Fleet;

/// How long ended operations are remembered: 30 days, in milliseconds.
const REMEMBERED_MS: i64 = 30 * 24 * 60 * 60 * 1000;

/// What operations work with.
#[derive(Clone)]
pub struct Engine {
    clock: Clock,
    store: Store,
    fleet: Fleet,
    inventory: Arc<TimeLimited<Suspendable>>,
    manager_uid: u32,
    wake: Arc<Notify>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Those that run, each with the token that cancels it.
    cancels: Arc<Mutex<HashMap<Uuid, CancellationToken>>>,
    outcomes: Operations,
}

/// Why an operation failed, in words for the operator.
type Failure = String;

/// How an operation ended before its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum Stop {
    /// It failed.
    #[error("{0}")]
    Failed(Failure),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Engine {
    /// Puts the parts together; nothing is claimed before [`Engine::begin`].
    pub fn new(
        clock: Clock,
        store: Store,
        fleet: Fleet,
        inventory: Arc<TimeLimited<Suspendable>>,
        manager_uid: u32,
    ) -> Self {
        Self {
            clock,
            store,
            fleet,
            inventory,
            manager_uid,
            wake: Arc::new(Notify::new()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            cancels: Arc::default(),
            outcomes: Operations::default(),
        }
    }

    /// How operations ended, counted.
    pub fn outcomes(&self) -> &Operations {
        &self.outcomes
    }

    /// Takes up what an earlier manager left unfinished, and starts to claim.
    pub async fn begin(&self) -> Result<(), StoreError> {
        let mut reader = self.store.read().await?;
        let unfinished = store::operations::running(&mut reader).await?;
        drop(reader);
        for operation in unfinished {
            self.spawn_run(operation);
        }
        let claiming = self.clone();
        self.tasks.spawn(async move { claiming.claim().await });
        Ok(())
    }

    /// Tells the engine that an operation was written.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Cancels a running operation, which the store has recorded already.
    pub fn cancel(&self, id: Uuid) {
        if let Some(token) = self.cancels().get(&id) {
            token.cancel();
        }
    }

    fn cancels(&self) -> MutexGuard<'_, HashMap<Uuid, CancellationToken>> {
        // A panic elsewhere leaves the map as it was before or after one insert: both are whole.
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token that cancels this operation.
    fn cancel_token(&self, id: Uuid) -> CancellationToken {
        self.cancels().entry(id).or_default().clone()
    }

    /// Claims nothing more and waits for what runs.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn_run(&self, operation: Operation) {
        let client_alive = match operation.request {
            OperationRequest::TerminateClient { client, .. } => host::process::is_alive(client.into()),
            _ => false,
        };
        let decision = resume(&operation, client_alive);
        tracing::info!(operation = %operation.id, kind = operation.request.kind(), ?decision, "found an unfinished operation");
        match decision {
            Resume::Finish => self.spawn(operation, None),
            Resume::Undo(why) => self.spawn(operation, Some(why)),
            Resume::Done => self.end(operation.id, Ok(())),
            Resume::Abandon(reason) => self.end(operation.id, Err(Stop::Failed(reason.to_owned()))),
        }
    }

    /// Writes how an operation ended that nothing more is done for; the manager serves meanwhile, however long it takes.
    fn end(&self, id: Uuid, result: Result<(), Stop>) {
        let engine = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = engine.finish_at_last(id, result) => engine.wake(),
                () = engine.stop.cancelled() => {}
            }
        });
    }

    async fn claim(&self) {
        let clock = self.clock;
        loop {
            let claimed: Result<Option<Operation>, StoreError> = self
                .store
                .write(move |db| {
                    Box::pin(async move {
                        let now = clock.unix_ms();
                        store::operations::forget(&mut *db, now - REMEMBERED_MS).await?;
                        store::replays::forget(&mut *db, now - REMEMBERED_MS).await?;
                        Ok((store::operations::claim(db, now).await?, Fate::Commit))
                    })
                })
                .await;
            match claimed {
                Ok(Some(operation)) => self.spawn(operation, None),
                Ok(None) => {
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = self.wake.notified() => {}
                    }
                }
                Err(StoreError::Closed) => return,
                Err(error) => {
                    tracing::error!(%error, "could not claim an operation");
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = tokio::time::sleep(std::time::Duration::from_secs(1)) => {}
                    }
                }
            }
        }
    }

    fn spawn(&self, operation: Operation, undo: Option<Undo>) {
        let engine = self.clone();
        // There before anybody can ask for it, since asking is possible only once the operation runs.
        engine.cancel_token(operation.id);
        self.tasks.spawn(async move {
            let id = operation.id;
            tracing::info!(operation = %id, kind = operation.request.kind(), daemons = %daemon::names(&operation.daemons), "operation begins");
            let whole = async {
                let result = engine.run_out(&operation, undo).await;
                tracing::info!(operation = %id, ?result, "operation ended");
                engine.finish_at_last(id, result).await;
            };
            tokio::select! {
                () = whole => {}
                // Left in the journal as running: the next manager takes it up.
                () = engine.stop.cancelled() => return,
            }
            engine.cancels().remove(&id);
            engine.wake();
        });
    }

    async fn run(&self, operation: &Operation, undo: Option<Undo>) -> Result<(), Stop> {
        let done = match &operation.request {
            OperationRequest::StartDaemon => daemon::start(self, operation).await,
            OperationRequest::StopDaemon { grace_s } => daemon::stop(self, operation, *grace_s).await,
            OperationRequest::RestartDaemon { grace_s } => daemon::restart(self, operation, *grace_s).await,
            OperationRequest::DeleteDaemon { grace_s } => daemon::delete(self, operation, *grace_s).await,
            OperationRequest::TerminateClient { client, stopped } => {
                terminate::run(self, operation, *client, *stopped).await
            }
            OperationRequest::DrainDaemon { timeout_s, on_timeout } => {
                let limit = DrainLimit { timeout_s: *timeout_s, on_timeout: *on_timeout };
                return drain::run(self, operation, limit, undo).await;
            }
            OperationRequest::BeginMaintenance { gpus, timeout_s, on_timeout } => {
                let limit = DrainLimit { timeout_s: *timeout_s, on_timeout: *on_timeout };
                return maintenance::begin(self, operation, gpus, limit, undo).await;
            }
            OperationRequest::EndMaintenance => maintenance::end(self, operation).await,
            OperationRequest::ApplyLayout { layout, version, gpu_map, drift_policy, recreate, note: _ } => {
                let active = ActiveLayout {
                    name: layout.clone(),
                    version: *version,
                    gpu_map: gpu_map.clone(),
                    drift_policy: *drift_policy,
                };
                return apply::run(self, operation, active, *recreate, undo).await;
            }
            OperationRequest::ReplayLayout { replay, .. } => {
                return replay::run(self, operation, *replay, undo).await;
            }
        };
        Ok(done?)
    }

    /// The GPUs of this host, as far as they are known: a plan is made of those that are not here as they were.
    async fn gpus(&self) -> Result<Vec<Gpu>, Failure> {
        let inventory = Arc::clone(&self.inventory);
        let known = tokio::task::spawn_blocking(move || inventory.known_gpus()).await;
        Ok(known.map_err(|error| error.to_string())?.unwrap_or_else(|error| {
            tracing::warn!(%error, "planning with what is remembered of the GPUs");
            Vec::new()
        }))
    }

    /// Publishes what a daemon should be now.
    async fn publish(&self, name: &DaemonName) -> Result<(), Failure> {
        if let Some(desired) = daemon::desired_now(self, name.clone(), None).await? {
            self.fleet.publish(desired, None);
        }
        Ok(())
    }

    /// From now on the operation can be stopped where it is.
    async fn open_to_cancel(&self, id: Uuid) -> Result<(), Stop> {
        let opened: Result<(), StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::open_to_cancel(db, id).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        opened.map_err(|error| Stop::Failed(error.to_string()))?;
        // From now on a client of its daemons may be ended beside it.
        self.wake();
        Ok(())
    }

    /// From now on the operation cannot be stopped; [`Stop::Cancelled`] when that was requested before.
    async fn close_to_cancel(&self, id: Uuid) -> Result<(), Stop> {
        let closed: Result<bool, StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move { Ok((store::operations::close_to_cancel(db, id).await?, Fate::Commit)) })
            })
            .await;
        match closed {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stop::Cancelled),
            Err(error) => Err(Stop::Failed(error.to_string())),
        }
    }

    /// Says in the journal what the step that runs waits for; what cannot be said is not worth failing for.
    async fn waits_for(&self, id: Uuid, what: String) {
        let noted: Result<(), StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::note_wait(db, id, &what).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        if let Err(error) = noted {
            tracing::warn!(operation = %id, %error, "what the operation waits for could not be written");
        }
    }

    /// Journals a step around what it does.
    async fn step<T, E: From<Failure> + std::fmt::Display>(
        &self,
        id: Uuid,
        name: &'static str,
        work: impl Future<Output = Result<(T, String), E>>,
    ) -> Result<T, E> {
        self.journalled(id, name, work).await.map_err(|error| E::from(error.to_string()))?
    }

    /// The same, with a failure of the journal distinguished from one of the work.
    async fn journalled<T, E: std::fmt::Display>(
        &self,
        id: Uuid,
        name: &'static str,
        work: impl Future<Output = Result<(T, String), E>>,
    ) -> Result<Result<T, E>, StoreError> {
        let clock = self.clock;
        let ordinal: Result<i64, StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    Ok((store::operations::begin_step(db, id, name, clock.unix_ms()).await?, Fate::Commit))
                })
            })
            .await;
        let ordinal = ordinal?;
        let result = work.await;
        let outcome = match &result {
            Ok((_, outcome)) => outcome.clone(),
            Err(failure) => failure.to_string(),
        };
        let ended: Result<(), StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::end_step(db, id, ordinal, &outcome, clock.unix_ms()).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        ended?;
        Ok(result.map(|(value, _)| value))
    }

    async fn finish(&self, id: Uuid, result: Result<(), Stop>) -> Result<(), StoreError> {
        let (state, error) = match result {
            Ok(()) => (OperationState::Succeeded, None),
            Err(Stop::Failed(why)) => (OperationState::Failed, Some(why)),
            Err(Stop::Cancelled) => (OperationState::Cancelled, None),
        };
        let clock = self.clock;
        let ended: Result<Option<Operation>, StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::finish(&mut *db, id, state, error.as_deref(), clock.unix_ms()).await?;
                    Ok((store::operations::get(db, id).await?, Fate::Commit))
                })
            })
            .await;
        if let Some(operation) = ended? {
            self.outcomes.ended(operation.request.kind(), state.as_str());
        }
        Ok(())
    }
}
