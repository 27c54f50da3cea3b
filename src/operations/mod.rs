//! Actions that take time: claimed one a daemon, journaled step by step, picked up again after a restart.
//!
//! A step is written before it is taken and completed after. What becomes of an operation that the manager's
//! death interrupted is decided by [`crate::domain::operation::resume`], which is pure.

mod apply;
mod apply_spec;
mod daemon;
mod drain;
mod ending;
mod engine;
mod failure;
pub mod holders;
mod layout;
mod maintenance;
mod partition_drain;
mod percentage_layout;
mod replay;
mod terminate;

pub use engine::Engine;
pub use failure::OperationFailure;
use failure::Result;
pub use layout::{OutlookError, PolledDaemon};
pub use terminate::OUTCOMES as TERMINATION_OUTCOMES;

use engine::Stop;
use uuid::Uuid;

use crate::domain::DaemonName;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::maintenance::DrainLimit;
use crate::domain::operation::{Operation, OperationRequest, Resume, Undo, resume};
use crate::host;
use crate::store::{self, StoreError, transact};

/// Time for which ended operations are kept: 30 days, in milliseconds.
const REMEMBERED_MS: i64 = 30 * 24 * 60 * 60 * 1000;

impl Engine {
    /// Resumes what an earlier manager left unfinished, and starts to claim.
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
            Resume::Abandon(reason) => {
                self.end(operation.id, Err(OperationFailure::OutcomeUnknown(reason.to_owned()).into()));
            }
        }
    }

    /// Writes how an operation ended that nothing more is done for; the manager serves meanwhile, however long it takes.
    fn end(&self, id: Uuid, result: Result<(), Stop>) {
        let engine = self.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = engine.finish_with_retries(id, result) => engine.wake(),
                () = engine.stop.cancelled() => {}
            }
        });
    }

    async fn claim(&self) {
        let clock = self.clock;
        loop {
            let claimed = transact!(self.store, |db| {
                let now = clock.unix_ms();
                store::operations::forget(&mut *db, now - REMEMBERED_MS).await?;
                store::replays::forget(&mut *db, now - REMEMBERED_MS).await?;
                store::operations::claim(db, now).await
            });
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
            tracing::info!(operation = %id, kind = operation.request.kind(), daemons = %engine::names(&operation.daemons), "operation begins");
            let whole = async {
                let result = engine.run_to_end(&operation, undo).await;
                tracing::info!(operation = %id, ?result, "operation ended");
                engine.finish_with_retries(id, result).await;
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
            OperationRequest::ApplyLayout {
                layout,
                version,
                gpu_map,
                drift_policy,
                recreate,
                drain,
                note: _,
            } => {
                let active = ActiveLayout {
                    name: layout.clone(),
                    version: *version,
                    gpu_map: gpu_map.clone(),
                    drift_policy: *drift_policy,
                };
                return Box::pin(apply::run(self, operation, active, *recreate, *drain, undo)).await;
            }
            OperationRequest::ApplySpec { daemons, layouts, delete_daemons, delete_layouts, .. } => {
                let spec = apply_spec::AppliedSpec { daemons, layouts, delete_daemons, delete_layouts };
                apply_spec::run(self, operation, spec).await
            }
            OperationRequest::ReplayLayout { replay, .. } => {
                // Its state is the largest of all.
                return Box::pin(replay::run(self, operation, *replay, undo)).await;
            }
        };
        Ok(done?)
    }

    /// Publishes what a daemon should be now.
    async fn publish(&self, name: &DaemonName) -> Result<()> {
        let (gpus, manager_uid, name) = (self.gpus().await?, self.manager_uid, name.clone());
        let desired = transact!(self.store, |db| store::plans::desired(db, &name, &gpus, manager_uid).await)?;
        if let Some(desired) = desired {
            self.fleet.publish(desired, None);
        }
        Ok(())
    }
}
