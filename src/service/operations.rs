//! Operations: read and called off.

use uuid::Uuid;

use super::page::{Page, Paged};
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::operation::{Operation, OperationRequest, OperationState};
use crate::store::{self, Fate};

impl Service {
    /// One operation with its journal.
    pub async fn operation(&self, id: Uuid) -> Result<Operation, ServiceError> {
        let operation = store::operations::get(&mut *self.parts.store.read().await?, id).await?;
        operation.ok_or_else(|| not_found(id))
    }

    /// Operations, the newest first.
    pub async fn operations(&self, page: &Page) -> Result<Paged<Operation>, ServiceError> {
        let before = Some(page.after.as_str()).filter(|id| !id.is_empty());
        let operations =
            store::operations::page(&mut *self.parts.store.read().await?, before, page.rows()).await?;
        Ok(page.cut(operations, |operation| operation.id.to_string()))
    }

    /// Calls off an operation: one that has not begun never begins, and one that runs stops where it can.
    ///
    /// What runs is still running in the answer.
    pub async fn cancel_operation(&self, id: Uuid) -> Result<Operation, ServiceError> {
        let service = self.clone();
        self.to_the_end(async move {
            let cancelled = service
                .parts
                .store
                .write(move |db| {
                    Box::pin(async move {
                        let now = unix_ms();
                        let done = store::operations::cancel(&mut *db, id, now).await?
                            || store::operations::request_cancel(db, id, now).await?;
                        Ok::<_, ServiceError>((done, Fate::Commit))
                    })
                })
                .await?;
            let operation = service.operation(id).await?;
            if cancelled {
                service.parts.engine.cancel(id);
                return Ok(operation);
            }
            Err(ServiceError::Conflict(match operation.state {
                OperationState::Running => format!(
                    "operation {id} is running, and {} cannot be called off {}",
                    operation.request.kind(),
                    match operation.request {
                        OperationRequest::DrainDaemon { .. } => "once it is all but done",
                        OperationRequest::BeginMaintenance { .. } =>
                            "once its daemons are being stopped: wait for it, and end the maintenance then",
                        _ => "once it has begun: wait for it",
                    }
                ),
                state => format!("operation {id} is {}: there is nothing to call off", state.as_str()),
            }))
        })
        .await
    }
}

fn not_found(id: Uuid) -> ServiceError {
    ServiceError::NotFound { kind: "operation", name: id.to_string() }
}
