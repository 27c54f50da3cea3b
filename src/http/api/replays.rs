//! Replays of layouts.

use uuid::Uuid;

use super::described::NotFound;
use super::{List, PageQuery, WriteQuery, accepted_as};
use crate::domain::layout::replay::Replay;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Idempotency, Json, Path, Query};
use crate::http::problem::{Answer, Reply};
use crate::service::layouts::replays::{ReplayAccepted, ReplayRequest};

/// List replays
#[utoipa::path(get, path = "/api/v1/replays", operation_id = "list_replays", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))), params(PageQuery),
    responses((status = 200, description = "Replays, the newest first.", body = List<Replay>)))]
pub(super) async fn list(Call { app, ctx }: Call, Query(query): Query<PageQuery>) -> Answer<List<Replay>> {
    Ok(axum::Json(app.service.replays(&ctx, &query.page()?).await?.into()))
}

/// Get a replay
#[utoipa::path(get, path = "/api/v1/replays/{id}", operation_id = "get_replay", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("id" = Uuid, Path, description = "The ID of the replay.")),
    responses((status = 200, description = "The replay with its steps.", body = Replay)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<Uuid>) -> Answer<Replay> {
    Ok(axum::Json(app.service.replay_record(&ctx, id).await?))
}

/// Replay a layout
///
/// Its steps run on empty GPUs, and each partition ID is compared with the recorded one. At the first difference the replay stops and is
/// undone. Hardware that differs from that of the document is refused at once; `errors` lists each field that differs.
#[utoipa::path(post, path = "/api/v1/replays", operation_id = "create_replay", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(
        WriteQuery,
        Idempotency,
    ),
    request_body = ReplayRequest,
    responses((status = 202, description = "The replay, and the operation that does it.", body = ReplayAccepted), (status = 200, description = "A dry run: both as they would be.", body = ReplayAccepted), NotFound))]
pub(super) async fn create(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    idempotency: Idempotency,
    Json(request): Json<ReplayRequest>,
) -> Reply {
    let ctx = idempotency.add_to(ctx, &request)?;
    let accepted = app.service.replay(&ctx, request, query.options()).await?;
    Ok(accepted_as(&accepted.operation, &accepted, query.dry_run))
}
