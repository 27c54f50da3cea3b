//! Operations: written, read and called off.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::acting::cause;
use super::page::{Page, Paged};
use super::told::Shown as _;
use super::{IdempotencyKey, Service, ServiceError, WriteOptions, fate, once};
use crate::clock::unix_ms;
use crate::domain::DaemonName;
use crate::domain::access::{Actor, Right};
use crate::domain::operation::{Operation, OperationFilter, OperationRequest, OperationState};
use crate::store::{self, Transaction};

impl Service {
    /// One operation with its journal.
    pub async fn operation(&self, actor: &Actor, id: Uuid) -> Result<Operation, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let mut reader = self.parts.store.read().await?;
        // One that is bound to a tenant sees what it asked for itself.
        if !actor.sees(store::operations::tenant(&mut reader, id).await?.as_ref()) {
            return Err(not_found(id));
        }
        let operation = store::operations::get(&mut reader, id).await?.ok_or_else(|| not_found(id))?;
        Ok(operation.shown_to(actor))
    }

    /// Operations, the newest first.
    pub async fn operations(
        &self,
        actor: &Actor,
        filter: &OperationFilter,
        page: &Page,
    ) -> Result<Paged<Operation>, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let before = page.key::<Uuid>()?.map(|id| id.to_string());
        let mut reader = self.parts.store.read().await?;
        let (scope, before) = (actor.scope(), before.as_deref());
        let operations = store::operations::page(&mut reader, scope, filter, before, page.rows()).await?;
        let operations = operations.into_iter().map(|operation| operation.shown_to(actor)).collect();
        Ok(page.cut(operations, |operation: &Operation| operation.id.to_string()))
    }

    /// Writes an operation whose request and daemons are worked out in the transaction that writes it.
    pub(super) async fn ask(
        &self,
        actor: &Actor,
        options: WriteOptions,
        key: Option<IdempotencyKey>,
        request: impl for<'c> FnOnce(
            Transaction<'c>,
            Uuid,
        )
            -> BoxFuture<'c, Result<(OperationRequest, Vec<DaemonName>), ServiceError>>
        + Send
        + 'static,
    ) -> Result<Operation, ServiceError> {
        let (id, by) = (Uuid::now_v7(), cause());
        let dry_run = options.dry_run;
        let tenant = actor.scope().cloned();
        let operation = self
            .write(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    let operation = once(db, key.as_ref(), now, async |db| {
                        let (request, daemons) = request(&mut *db, id).await?;
                        store::operations::insert(&mut *db, id, &daemons, &request, tenant.as_ref(), now)
                            .await?;
                        store::operations::requested(&mut *db, id, by, now).await?;
                        let written = store::operations::get(db, id).await?;
                        written.ok_or_else(|| {
                            ServiceError::Internal("the operation just written is gone".into())
                        })
                    })
                    .await?;
                    Ok::<_, ServiceError>((operation, fate(&options)))
                })
            })
            .await?;
        if !dry_run {
            self.parts.engine.wake();
        }
        Ok(operation.shown_to(actor))
    }

    /// Calls off an operation: one that has not begun never begins, and one that runs stops where it can.
    ///
    /// What runs is still running in the answer.
    pub async fn cancel_operation(
        &self,
        actor: &Actor,
        id: Uuid,
        options: WriteOptions,
    ) -> Result<Operation, ServiceError> {
        actor.may(Right::Operate)?;
        let service = self.clone();
        self.to_the_end(async move {
            let (by, dry_run) = (cause(), options.dry_run);
            let operation = service
                .write(move |db| {
                    Box::pin(async move {
                        let now = unix_ms();
                        if store::operations::cancel(&mut *db, id, now).await? {
                            store::operations::called_off(&mut *db, id, by, now).await?;
                        } else if store::operations::request_cancel(&mut *db, id, now).await? {
                            store::operations::stop_requested(&mut *db, id, by, now).await?;
                        } else {
                            let operation = store::operations::get(db, id).await?;
                            return Err(nothing_to_call_off(&operation.ok_or_else(|| not_found(id))?));
                        }
                        let operation = store::operations::get(db, id).await?.ok_or_else(|| not_found(id))?;
                        Ok((operation, fate(&options)))
                    })
                })
                .await?;
            if !dry_run {
                // One that waited has ended here, and no other hand counts it.
                if operation.state == OperationState::Cancelled {
                    let outcomes = service.parts.engine.outcomes();
                    outcomes.ended(operation.request.kind(), OperationState::Cancelled.as_str());
                }
                service.parts.engine.cancel(id);
            }
            Ok(operation)
        })
        .await
    }
}

/// Why an operation that is over, or that runs to its end, cannot be called off.
fn nothing_to_call_off(operation: &Operation) -> ServiceError {
    let id = operation.id;
    ServiceError::Conflict(match operation.state {
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
    })
}

fn not_found(id: Uuid) -> ServiceError {
    ServiceError::NotFound { kind: "operation", name: id.to_string() }
}
