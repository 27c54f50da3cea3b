//! Actions that take time: claimed one a daemon, journalled step by step, taken up again after a restart.
//!
//! A step is written before it is taken and completed after. What becomes of an operation that the manager's
//! death interrupted is decided by [`crate::domain::operation::resume`], which is pure.

mod daemon;
mod terminate;

use std::sync::Arc;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::clock::unix_ms;
use crate::domain::operation::{Operation, OperationRequest, OperationState, Resume, resume};
use crate::gpu::Inventory;
use crate::host::{self, Identity};
use crate::store::{self, Fate, Store, StoreError};
use crate::supervisor::Fleet;

/// How long ended operations are remembered: 30 days, in milliseconds.
const REMEMBERED_MS: i64 = 30 * 24 * 60 * 60 * 1000;

/// What operations work with.
#[derive(Clone)]
pub struct Engine {
    store: Store,
    fleet: Fleet,
    inventory: Arc<dyn Inventory>,
    manager_uid: u32,
    wake: Arc<Notify>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Why an operation failed, in words for the operator.
type Failure = String;

impl Engine {
    /// Puts the parts together; nothing is claimed before [`Engine::begin`].
    pub fn new(store: Store, fleet: Fleet, inventory: Arc<dyn Inventory>, manager_uid: u32) -> Self {
        Self {
            store,
            fleet,
            inventory,
            manager_uid,
            wake: Arc::new(Notify::new()),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Takes up what an earlier manager left unfinished, and starts to claim.
    pub async fn begin(&self) -> Result<(), StoreError> {
        let mut reader = self.store.read().await?;
        let unfinished = store::operations::running(&mut reader).await?;
        drop(reader);
        for operation in unfinished {
            self.take_up(operation).await?;
        }
        let claiming = self.clone();
        self.tasks.spawn(async move { claiming.claim().await });
        Ok(())
    }

    /// Tells the engine that an operation was written.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Claims nothing more and waits for what runs.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn take_up(&self, operation: Operation) -> Result<(), StoreError> {
        let client_alive = match operation.request {
            OperationRequest::TerminateClient { client } => {
                host::process::is_alive(Identity { pid: client.pid, start_time: client.start_time })
            }
            _ => false,
        };
        let decision = resume(&operation, client_alive);
        tracing::info!(operation = %operation.id, kind = operation.request.kind(), ?decision, "found an unfinished operation");
        match decision {
            Resume::Finish => self.spawn(operation),
            Resume::Done => self.finish(operation.id, Ok(())).await?,
            Resume::Abandon(reason) => self.finish(operation.id, Err(reason.to_owned())).await?,
        }
        Ok(())
    }

    async fn claim(&self) {
        loop {
            let claimed: Result<Option<Operation>, StoreError> = self
                .store
                .write(|db| {
                    Box::pin(async move {
                        let now = unix_ms();
                        store::operations::forget(&mut *db, now - REMEMBERED_MS).await?;
                        Ok((store::operations::claim(db, now).await?, Fate::Commit))
                    })
                })
                .await;
            match claimed {
                Ok(Some(operation)) => self.spawn(operation),
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

    fn spawn(&self, operation: Operation) {
        let engine = self.clone();
        self.tasks.spawn(async move {
            let id = operation.id;
            tracing::info!(operation = %id, kind = operation.request.kind(), daemons = %daemon::names(&operation), "operation begins");
            let result = tokio::select! {
                result = engine.run(&operation) => result,
                // Left in the journal as running: the next manager takes it up.
                () = engine.stop.cancelled() => return,
            };
            tracing::info!(operation = %id, ?result, "operation ended");
            if let Err(error) = engine.finish(id, result).await {
                tracing::error!(operation = %id, %error, "the end of the operation could not be written");
            }
            engine.wake();
        });
    }

    async fn run(&self, operation: &Operation) -> Result<(), Failure> {
        match &operation.request {
            OperationRequest::StartDaemon => daemon::start(self, operation).await,
            OperationRequest::StopDaemon { grace_s } => daemon::stop(self, operation, *grace_s).await,
            OperationRequest::RestartDaemon { grace_s } => daemon::restart(self, operation, *grace_s).await,
            OperationRequest::DeleteDaemon { grace_s } => daemon::delete(self, operation, *grace_s).await,
            OperationRequest::TerminateClient { client } => terminate::run(self, operation, *client).await,
        }
    }

    /// Journals a step around what it does.
    async fn step<T>(
        &self,
        id: Uuid,
        name: &'static str,
        work: impl Future<Output = Result<(T, String), Failure>>,
    ) -> Result<T, Failure> {
        let ordinal: Result<i64, StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    Ok((store::operations::begin_step(db, id, name, unix_ms()).await?, Fate::Commit))
                })
            })
            .await;
        let ordinal = ordinal.map_err(|error| error.to_string())?;
        let result = work.await;
        let outcome = match &result {
            Ok((_, outcome)) => outcome.clone(),
            Err(failure) => failure.clone(),
        };
        let ended: Result<(), StoreError> = self
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::end_step(db, id, ordinal, &outcome, unix_ms()).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        ended.map_err(|error| error.to_string())?;
        result.map(|(value, _)| value)
    }

    async fn finish(&self, id: Uuid, result: Result<(), Failure>) -> Result<(), StoreError> {
        let state = if result.is_ok() { OperationState::Succeeded } else { OperationState::Failed };
        self.store
            .write(move |db| {
                Box::pin(async move {
                    store::operations::finish(db, id, state, result.err().as_deref(), unix_ms()).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await
    }
}
