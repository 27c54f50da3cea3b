//! Operations.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::{List, WriteQuery, accepted};
use crate::domain::DaemonName;
use crate::domain::access::Actor;
use crate::domain::operation::{Operation, OperationFilter, OperationState};
use crate::http::AppState;
use crate::http::extract::{NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::page::Page;
use crate::service::{ServiceError, WriteOptions};

/// Which operations.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OperationQuery {
    /// Those that work on this daemon.
    daemon: Option<DaemonName>,
    /// Those in one of these states, with commas between.
    #[param(
        example = "pending,running",
        pattern = "^(pending|running|succeeded|failed|cancelled)(,(pending|running|succeeded|failed|cancelled))*$"
    )]
    state: Option<String>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// All operations
#[utoipa::path(get, path = "/api/v1/operations", operation_id = "list_operations", tag = "operations", params(OperationQuery),
    responses((status = 200, description = "Operations, the newest first", body = List<Operation>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<OperationQuery>,
) -> Result<axum::Json<List<Operation>>, Problem> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let states = query.state.as_deref().map(OperationFilter::parse_states).transpose();
    let states = states.map_err(|error| ServiceError::field("/state", error))?.unwrap_or_default();
    let filter = OperationFilter { daemon: query.daemon, states };
    Ok(axum::Json(app.service.operations(&actor, &filter, &page).await?.into()))
}

/// One operation
#[utoipa::path(get, path = "/api/v1/operations/{id}", operation_id = "get_operation", tag = "operations",
    params(("id" = Uuid, Path, description = "The operation")),
    responses((status = 200, description = "The operation with its journal", body = Operation), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<Uuid>,
) -> Result<axum::Json<Operation>, Problem> {
    Ok(axum::Json(app.service.operation(&actor, id).await?))
}

/// Call off an operation
///
/// One that has not begun never begins. A drain, and a maintenance while it drains, stop where they are and put back what
/// they changed: they end `cancelled` a little later. Others run to their end. A dry run answers 200 with the operation as it would
/// be.
#[utoipa::path(post, path = "/api/v1/operations/{id}/cancel", operation_id = "cancel_operation", tag = "operations",
    params(("id" = Uuid, Path, description = "The operation"), WriteQuery),
    responses(
        (status = 200, description = "Called off before it began; or of a dry run, which calls nothing off", body = Operation),
        (status = 202, description = "It stops where it is", body = Operation),
        WriteProblems,
    ))]
pub(super) async fn cancel(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<Uuid>,
    Query(query): Query<WriteQuery>,
    _: NoBody,
) -> Result<Response, Problem> {
    let options = WriteOptions { dry_run: query.dry_run, ..WriteOptions::default() };
    let operation = app.service.cancel_operation(&actor, id, options).await?;
    let is_over = operation.state == OperationState::Cancelled && operation.started_at.is_none();
    Ok(accepted(&operation, query.dry_run || is_over))
}
