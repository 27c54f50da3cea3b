//! Operations.

use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::{List, WaitQuery, WriteQuery, accepted, checked_wait};
use crate::domain::DaemonName;
use crate::domain::operation::{Operation, OperationFilter, OperationState};
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, NoBody, Path, Query};
use crate::http::problem::{Answer, Reply};
use crate::service::ServiceError;
use crate::service::page::Page;

/// The operations to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OperationQuery {
    /// Only those on this daemon.
    daemon: Option<DaemonName>,
    /// Only those in one of these states, separated by commas.
    #[param(
        example = "pending,running",
        pattern = "^(pending|running|succeeded|failed|cancelled)(,(pending|running|succeeded|failed|cancelled))*$"
    )]
    state: Option<String>,
    /// Only those requested at this time or later.
    #[serde(default, with = "crate::domain::rfc3339::option")]
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List operations
#[utoipa::path(get, path = "/api/v1/operations", operation_id = "list_operations", tag = "operations",
    extensions(("x-right" = json!(RequiredRight::OwnItems))), params(OperationQuery),
    responses((status = 200, description = "Operations, the newest first.", body = List<Operation>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<OperationQuery>,
) -> Answer<List<Operation>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let states = query.state.as_deref().map(OperationFilter::parse_states).transpose();
    let states = states.map_err(|error| ServiceError::field("/state", error))?.unwrap_or_default();
    let filter = OperationFilter { daemon: query.daemon, states, since: query.since };
    Ok(axum::Json(app.service.operations(&ctx, &filter, &page).await?.into()))
}

/// Get an operation
#[utoipa::path(get, path = "/api/v1/operations/{id}", operation_id = "get_operation", tag = "operations",
    extensions(("x-right" = json!(RequiredRight::ViewOperation))),
    params(("id" = Uuid, Path, description = "The ID of the operation."), WaitQuery),
    responses((status = 200, description = "The operation with its journal.", body = Operation)))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    Path(id): Path<Uuid>,
    Query(query): Query<WaitQuery>,
) -> Answer<Operation> {
    let wait = checked_wait(&app, query.wait_s)?;
    Ok(axum::Json(app.service.settled_operation(&ctx, id, wait).await?))
}

/// Cancel an operation
///
/// An operation that is pending never starts (200). A drain, and a maintenance while it drains, stop, undo their changes and end as
/// `cancelled` (202). Any other running operation cannot be cancelled (409).
#[utoipa::path(post, path = "/api/v1/operations/{id}/cancel", operation_id = "cancel_operation", tag = "operations",
    extensions(("x-right" = json!(RequiredRight::Operate)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(("id" = Uuid, Path, description = "The ID of the operation."), WriteQuery),
    responses(
        (status = 200, description = "Cancelled before it started, or a dry run.", body = Operation),
        (status = 202, description = "The operation is being stopped.", body = Operation)
    ))]
pub(super) async fn cancel(
    Call { app, ctx }: Call,
    Path(id): Path<Uuid>,
    Query(query): Query<WriteQuery>,
    _: NoBody,
) -> Reply {
    let operation = app.service.cancel_operation(&ctx, id, query.options()).await?;
    let is_over = operation.state == OperationState::Cancelled && operation.started_at.is_none();
    Ok(accepted(&operation, query.dry_run || is_over))
}
