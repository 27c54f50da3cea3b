//! Operations: read and called off.

use uuid::Uuid;

use super::page::{Page, Paged};
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::operation::Operation;
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
        let operations = store::operations::page(&mut *self.parts.store.read().await?, before, page.rows()).await?;
        Ok(page.cut(operations, |operation| operation.id.to_string()))
    }

    /// Calls off an operation that has not begun.
    pub async fn cancel_operation(&self, id: Uuid) -> Result<Operation, ServiceError> {
        let service = self.clone();
        self.to_the_end(async move {
            let cancelled = service
                .parts
                .store
                .write(move |db| {
                    Box::pin(async move {
                        let done = store::operations::cancel(db, id, unix_ms()).await?;
                        Ok::<_, ServiceError>((done, Fate::Commit))
                    })
                })
                .await?;
            let operation = service.operation(id).await?;
            if cancelled {
                return Ok(operation);
            }
            Err(ServiceError::Conflict(format!(
                "operation {id} is {}: only one that has not begun can be called off",
                operation.state.as_str()
            )))
        })
        .await
    }
}

fn not_found(id: Uuid) -> ServiceError {
    ServiceError::NotFound { kind: "operation", name: id.to_string() }
}
