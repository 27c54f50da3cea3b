//! Replays of layouts.

use axum::extract::State;
use axum::response::Response;
use uuid::Uuid;

use super::{List, PageQuery, WriteQuery, accepted_as};
use crate::domain::access::Actor;
use crate::domain::layout::replay::Replay;
use crate::http::AppState;
use crate::http::extract::{Conditions, Idempotency, Json, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::replays::{ReplayAccepted, ReplayRequest};

/// All replays
#[utoipa::path(get, path = "/api/v1/replays", operation_id = "list_replays", tag = "layouts", params(PageQuery),
    responses((status = 200, description = "Replays, the newest first", body = List<Replay>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<Replay>>, Problem> {
    Ok(axum::Json(app.service.replays(&actor, &query.page()?).await?.into()))
}

/// One replay
#[utoipa::path(get, path = "/api/v1/replays/{id}", operation_id = "get_replay", tag = "layouts",
    params(("id" = Uuid, Path, description = "The replay")),
    responses((status = 200, description = "The replay with its steps", body = Replay), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<Uuid>,
) -> Result<axum::Json<Replay>, Problem> {
    Ok(axum::Json(app.service.replay_record(&actor, id).await?))
}

/// Replay a layout
///
/// Its steps are taken on empty GPUs, and each ID is compared with the one on record. On the first difference it stops and
/// everything is undone. Other hardware than that of the document is refused at once, each field by itself.
#[utoipa::path(post, path = "/api/v1/replays", operation_id = "create_replay", tag = "layouts",
    params(
        WriteQuery,
        Idempotency,
    ),
    request_body = ReplayRequest,
    responses((status = 202, description = "The replay, and the operation that does it", body = ReplayAccepted), (status = 200, description = "A dry run: both as they would be", body = ReplayAccepted), WriteProblems))]
pub(super) async fn create(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    Json(request): Json<ReplayRequest>,
) -> Result<Response, Problem> {
    let key = idempotency.of(&actor, &request)?;
    let options = conditions.options(query.dry_run);
    let accepted = app.service.replay(&actor, request, options, key).await?;
    Ok(accepted_as(&accepted.operation, &accepted, query.dry_run))
}
