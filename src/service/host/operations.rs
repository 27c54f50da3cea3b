//! Operations: created, read and cancelled.

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::operation::{Operation, OperationFilter, OperationRequest, OperationState};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::access::idempotency::once;
use crate::service::access::redaction::Redact as _;
use crate::service::error::Found as _;
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions, transaction_end};
use crate::store::{self, Transaction, transact};

impl Service {
    /// One operation with its journal.
    pub async fn operation(&self, ctx: &RequestContext, id: Uuid) -> Result<Operation> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let mut reader = backend.parts.store.read().await?;
        // A tenant user sees only the operations it requested itself.
        if !ctx.actor.sees(store::operations::tenant(&mut reader, id).await?.as_ref()) {
            return Err(ServiceError::not_found("operation", &id));
        }
        let operation = store::operations::get(&mut reader, id).await?.found("operation", &id)?;
        Ok(operation.redacted_for(&ctx.actor))
    }

    /// Operations, newest first.
    pub async fn operations(
        &self,
        ctx: &RequestContext,
        filter: &OperationFilter,
        page: &Page,
    ) -> Result<Paged<Operation>> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let before = page.key::<Uuid>()?.map(|id| id.to_string());
        let mut reader = backend.parts.store.read().await?;
        let (scope, before) = (ctx.actor.scope(), before.as_deref());
        let operations = store::operations::page(&mut reader, scope, filter, before, page.rows()).await?;
        let operations = operations.into_iter().map(|operation| operation.redacted_for(&ctx.actor)).collect();
        Ok(page.cut(operations, |operation: &Operation| operation.id.to_string()))
    }

    /// Cancels an operation: a pending one never starts, and a running one stops at its next cancellation point.
    ///
    /// A running operation is still running in the answer.
    pub async fn cancel_operation(
        &self,
        ctx: &RequestContext,
        id: Uuid,
        options: WriteOptions,
    ) -> Result<Operation> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let (by, dry_run, clock) = (ctx.cause(), options.dry_run, ctx.clock);
        let operation = transact!(backend, write(&permit), |db| {
            let now = clock.unix_ms();
            if store::operations::cancel(&mut *db, id, now).await? {
                store::operations::record_cancelled(&mut *db, id, by, now).await?;
            } else if store::operations::request_cancel(&mut *db, id, now).await? {
                store::operations::stop_requested(&mut *db, id, by, now).await?;
            } else {
                let operation = store::operations::get(db, id).await?;
                return Err(not_cancellable(&operation.found("operation", &id)?));
            }
            let operation = store::operations::get(db, id).await?.found("operation", &id)?;
            Ok((operation, transaction_end(&options)))
        })?;
        if !dry_run {
            // A pending operation ends here, and is counted nowhere else.
            if operation.state == OperationState::Cancelled {
                let outcomes = backend.parts.engine.outcomes();
                outcomes.ended(operation.request.kind(), OperationState::Cancelled.as_str());
            }
            backend.parts.engine.cancel(id);
        }
        Ok(operation)
    }
}

impl Backend {
    /// Creates an operation whose request and daemons are determined in the same transaction.
    pub(in crate::service) async fn request_operation(
        &self,
        permit: &Permit,
        options: WriteOptions,
        request: impl for<'c> FnOnce(
            Transaction<'c>,
            Uuid,
        ) -> BoxFuture<'c, Result<(OperationRequest, Vec<DaemonName>)>>
        + Send
        + 'static,
    ) -> Result<Operation> {
        let clock = self.parts.clock;
        let (ctx, id) = (permit.ctx(), clock.new_id());
        let (by, key) = (ctx.cause(), ctx.idempotency.clone());
        let dry_run = options.dry_run;
        let tenant = ctx.actor.scope().cloned();
        let operation = transact!(self, write(permit), |db| {
            let now = clock.unix_ms();
            let operation = once(db, key.as_deref(), now, async |db| {
                let (request, daemons) = request(&mut *db, id).await?;
                store::operations::insert(&mut *db, id, &daemons, &request, tenant.as_ref(), now).await?;
                store::operations::requested(&mut *db, id, by, now).await?;
                let written = store::operations::get(db, id).await?;
                written.ok_or_else(|| ServiceError::Internal("the operation just written is gone".into()))
            })
            .await?;
            Ok((operation, transaction_end(&options)))
        })?;
        if !dry_run {
            self.parts.engine.wake();
        }
        Ok(operation.redacted_for(&ctx.actor))
    }
}

/// Returns the error for an operation that cannot be cancelled, because it has ended or can no longer stop.
fn not_cancellable(operation: &Operation) -> ServiceError {
    let id = operation.id;
    ServiceError::Conflict(match operation.state {
        OperationState::Running => format!(
            "operation {id} is running, and {} cannot be cancelled {}",
            operation.request.kind(),
            match operation.request {
                OperationRequest::DrainDaemon { .. } => "once it is almost complete",
                OperationRequest::BeginMaintenance { .. } =>
                    "once its daemons are being stopped: wait for it, and end the maintenance then",
                _ => "once it has begun: wait for it",
            }
        ),
        state => format!("operation {id} has ended ({}): there is nothing to cancel", state.as_str()),
    })
}
