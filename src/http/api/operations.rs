//! Operations.

use axum::extract::State;
use axum::response::Response;
use uuid::Uuid;

use super::{List, PageQuery, accepted};
use crate::domain::access::Actor;
use crate::domain::operation::{Operation, OperationState};
use crate::http::AppState;
use crate::http::extract::{NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};

/// All operations
#[utoipa::path(get, path = "/api/v1/operations", operation_id = "list_operations", tag = "operations", params(PageQuery),
    responses((status = 200, description = "Operations, the newest first", body = List<Operation>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<Operation>>, Problem> {
    Ok(axum::Json(app.service.operations(&actor, &query.page()?).await?.into()))
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
/// they changed: they end `cancelled` a little later. Others run to their end.
#[utoipa::path(post, path = "/api/v1/operations/{id}/cancel", operation_id = "cancel_operation", tag = "operations",
    params(("id" = Uuid, Path, description = "The operation")),
    responses(
        (status = 200, description = "Called off before it began", body = Operation),
        (status = 202, description = "It stops where it is", body = Operation),
        WriteProblems,
    ))]
pub(super) async fn cancel(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<Uuid>,
    _: NoBody,
) -> Result<Response, Problem> {
    let operation = app.service.cancel_operation(&actor, id).await?;
    Ok(accepted(&operation, operation.state == OperationState::Cancelled && operation.started_at.is_none()))
}
