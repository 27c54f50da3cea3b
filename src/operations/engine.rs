//! Shared parts of all operations: the store, the daemons, and the journal of steps.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::failure::OperationFailure;
use crate::clock::Clock;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::Gpu;
use crate::domain::operation::{Operation, OperationEnd, Undo};
use crate::domain::{DaemonName, TenantName};
use crate::gpu::{Inventory as _, Suspendable, TimeLimited};
use crate::metrics::operations::Operations;
use crate::operations::Result;
use crate::store::{self, Store, StoreError, Transaction, transact};
use crate::supervisor::Fleet;

/// The parts that operations work with. Clones share them.
#[derive(Clone)]
pub struct Engine {
    pub(super) clock: Clock,
    pub(super) store: Store,
    pub(super) fleet: Fleet,
    pub(super) inventory: Arc<TimeLimited<Suspendable>>,
    pub(super) manager_uid: u32,
    pub(super) wake: Arc<Notify>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
    /// Running operations, each with the token that cancels it.
    pub(super) cancels: Arc<Mutex<HashMap<Uuid, CancellationToken>>>,
    pub(super) outcomes: Operations,
    verify: Arc<OnceLock<VerifyTenant>>,
}

/// Verifies a tenant with a CUDA client, as a caller of the API would have it done. Returns the SMs that the client saw if they are not
/// the tenant's, and fails with the reason if no client could run.
pub type VerifyTenant =
    Box<dyn Fn(TenantName) -> BoxFuture<'static, Result<Option<String>, String>> + Send + Sync>;

/// Reason why an operation stopped early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Stop {
    /// The operation failed.
    #[error("{0}")]
    Failed(#[from] OperationFailure),
    /// The operation was cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl From<Undo> for Stop {
    fn from(undo: Undo) -> Self {
        match undo {
            Undo::Cancelled => Self::Cancelled,
            Undo::Failed(why) => Self::Failed(why.into()),
        }
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
            verify: Arc::default(),
        }
    }

    /// Gives it the verification of tenants, which needs the service.
    pub fn verify_with(&self, verify: VerifyTenant) {
        let _ = self.verify.set(verify);
    }

    pub(super) async fn verify(&self, tenant: &TenantName) -> Result<Option<String>, String> {
        match self.verify.get() {
            Some(verify) => verify(tenant.clone()).await,
            None => Err("the manager is starting".to_owned()),
        }
    }

    /// Returns the counters of ended operations by outcome.
    pub fn outcomes(&self) -> &Operations {
        &self.outcomes
    }

    /// Notifies the engine that an operation was written.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Cancels a running operation, which the store has recorded already.
    pub fn cancel(&self, id: Uuid) {
        if let Some(token) = self.cancels().get(&id) {
            token.cancel();
        }
    }

    pub(super) fn cancels(&self) -> MutexGuard<'_, HashMap<Uuid, CancellationToken>> {
        // A panic elsewhere leaves the map as it was before or after one insert: both are whole.
        self.cancels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token that cancels this operation.
    pub(super) fn cancel_token(&self, id: Uuid) -> CancellationToken {
        self.cancels().entry(id).or_default().clone()
    }

    /// The GPUs of this host as far as they are known; the caller plans with the last state of those that are missing.
    pub(super) async fn gpus(&self) -> Result<Vec<Gpu>> {
        let inventory = Arc::clone(&self.inventory);
        let gpus = tokio::task::spawn_blocking(move || inventory.known_gpus()).await?;
        Ok(gpus.unwrap_or_else(|error| {
            tracing::warn!(%error, "planning with what is remembered of the GPUs");
            Vec::new()
        }))
    }

    /// Allows the operation to be cancelled from now on.
    pub(super) async fn open_to_cancel(&self, id: Uuid) -> Result<(), Stop> {
        let opened: Result<(), StoreError> =
            self.store.commit(move |db| Box::pin(store::operations::open_to_cancel(db, id))).await;
        opened.map_err(OperationFailure::from)?;
        // From now on a client of its daemons may be ended beside it.
        self.wake();
        Ok(())
    }

    /// Closes the operation to cancellation; [`Stop::Cancelled`] if that was requested before.
    pub(super) async fn close_to_cancel(&self, id: Uuid) -> Result<(), Stop> {
        let closed: Result<bool, StoreError> =
            self.store.commit(move |db| Box::pin(store::operations::close_to_cancel(db, id))).await;
        if closed.map_err(OperationFailure::from)? { Ok(()) } else { Err(Stop::Cancelled) }
    }

    /// Writes to the journal what the running step waits for; a failure to write that is only logged.
    pub(super) async fn waits_for(&self, id: Uuid, awaited: String) {
        let noted = transact!(self.store, |db| store::operations::note_wait(db, id, &awaited).await);
        if let Err(error) = noted {
            tracing::warn!(operation = %id, %error, "what the operation waits for could not be written");
        }
    }

    /// Journals a step around its work.
    pub(super) async fn step<T, E: From<OperationFailure> + std::fmt::Display>(
        &self,
        id: Uuid,
        name: &str,
        work: impl Future<Output = Result<(T, String), E>>,
    ) -> Result<T, E> {
        self.journaled(id, name, work).await.map_err(|error| E::from(OperationFailure::from(error)))?
    }

    /// Journals a step like [`Self::step`], and distinguishes a failure of the journal from one of the work.
    pub(super) async fn journaled<T, E: std::fmt::Display>(
        &self,
        id: Uuid,
        name: &str,
        work: impl Future<Output = Result<(T, String), E>>,
    ) -> Result<Result<T, E>, StoreError> {
        let (clock, name) = (self.clock, name.to_owned());
        let ordinal =
            transact!(self.store, |db| store::operations::begin_step(db, id, &name, clock.unix_ms()).await);
        let ordinal = ordinal?;
        let result = work.await;
        let outcome = match &result {
            Ok((_, outcome)) => outcome.clone(),
            Err(failure) => failure.to_string(),
        };
        transact!(self.store, |db| store::operations::end_step(db, id, ordinal, &outcome, clock.unix_ms())
            .await)?;
        Ok(result.map(|(value, _)| value))
    }

    /// Changes the daemon of an operation in one transaction, and publishes what it should be then. `change` writes what belongs to the
    /// change, and returns the new spec where the spec changes. Returns the generation, and true if the spec was written.
    pub(super) async fn change_daemon<F>(&self, operation: &Operation, change: F) -> Result<(i64, bool)>
    where
        F: for<'c> FnOnce(Transaction<'c>, DaemonSpec) -> BoxFuture<'c, Result<Option<DaemonSpec>>>
            + Send
            + 'static,
    {
        let (id, name) = (operation.id, the_daemon(operation)?.clone());
        let (gpus, manager_uid, now) = (self.gpus().await?, self.manager_uid, self.clock.unix_ms());
        let (desired, changed) = transact!(self.store, OperationFailure, |db| {
            let gone = || format!("daemon {name} is gone");
            let daemon = store::daemons::get(&mut *db, &name).await?.ok_or_else(gone)?;
            let spec = change(&mut *db, daemon.spec.clone()).await?;
            if let Some(spec) = &spec {
                store::operations::put_spec(&mut *db, id, &daemon, spec, now).await?;
            }
            let desired = store::plans::desired(db, &name, &gpus, manager_uid).await?;
            Ok((desired.ok_or_else(gone)?, spec.is_some()))
        })?;
        let generation = desired.generation;
        self.fleet.publish(desired, None);
        Ok((generation, changed))
    }

    pub(super) async fn finish(&self, id: Uuid, result: Result<(), Stop>) -> Result<(), StoreError> {
        let end = match result {
            Ok(()) => OperationEnd::Succeeded,
            Err(Stop::Failed(failure)) => OperationEnd::Failed {
                outcome_is_unknown: matches!(failure, OperationFailure::OutcomeUnknown(_)),
                error: failure.to_string(),
            },
            Err(Stop::Cancelled) => OperationEnd::Cancelled,
        };
        let (clock, state) = (self.clock, end.state());
        let ended = transact!(self.store, |db| {
            store::operations::finish(&mut *db, id, end, clock.unix_ms()).await?;
            store::operations::get(db, id).await
        });
        if let Some(operation) = ended? {
            self.outcomes.ended(operation.request.kind(), state.as_str());
        }
        Ok(())
    }
}

/// Daemons in words.
pub(super) fn names(daemons: &[DaemonName]) -> String {
    daemons.iter().map(DaemonName::as_str).collect::<Vec<_>>().join(", ")
}

/// The daemon of an operation that works on one.
pub(super) fn the_daemon(operation: &Operation) -> Result<&DaemonName> {
    match operation.daemons.as_slice() {
        [daemon] => Ok(daemon),
        _ => {
            Err(format!("the operation works on {:?} and not on one daemon", names(&operation.daemons))
                .into())
        }
    }
}
