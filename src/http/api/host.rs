//! The host and its GPUs.

use axum::Json;
use axum::extract::State;

use super::described::IfMatch;
use super::{List, WriteQuery};
use crate::domain::access::Actor;
use crate::http::AppState;
use crate::http::extract::{Conditions, Json as Body, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::host::{GpuView, HostView};
use crate::service::replace::{ReplaceRequest, Replacement};
use crate::service::take_up::ConfirmRequest;

/// The host
#[utoipa::path(get, path = "/api/v1/host", operation_id = "get_host", tag = "host",
    responses((status = 200, description = "The host, its driver and its MPS", body = HostView), ReadProblems))]
pub(super) async fn get(State(app): State<AppState>, actor: Actor) -> Result<Json<HostView>, Problem> {
    Ok(Json(app.service.host(&actor).await?))
}

/// Say that the database belongs to this machine now
///
/// A database that was copied from another machine is read-only until then. The processes that the other machine had
/// are forgotten, and everything is taken up here.
#[utoipa::path(post, path = "/api/v1/host/confirm", operation_id = "confirm_host", tag = "host",
    params(WriteQuery),
    request_body = ConfirmRequest,
    responses((status = 200, description = "The host, no longer read-only", body = HostView), WriteProblems))]
pub(super) async fn confirm(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<WriteQuery>,
    Body(request): Body<ConfirmRequest>,
) -> Result<Json<HostView>, Problem> {
    Ok(Json(app.service.confirm_host(&actor, request, query.dry_run).await?))
}

/// All GPUs
#[utoipa::path(get, path = "/api/v1/gpus", operation_id = "list_gpus", tag = "host",
    responses((status = 200, description = "The GPUs in PCI order", body = List<GpuView>), ReadProblems))]
pub(super) async fn list_gpus(
    State(app): State<AppState>,
    actor: Actor,
) -> Result<Json<List<GpuView>>, Problem> {
    Ok(Json(List { items: app.service.gpu_views(&actor).await?, next_cursor: None }))
}

/// One GPU
#[utoipa::path(get, path = "/api/v1/gpus/{gpu}", operation_id = "get_gpu", tag = "host",
    params(("gpu" = String, Path, description = "UUID or a unique beginning of it, index in PCI order, or PCI address")),
    responses((status = 200, description = "The GPU", body = GpuView), ReadProblems))]
pub(super) async fn get_gpu(
    State(app): State<AppState>,
    actor: Actor,
    Path(gpu): Path<String>,
) -> Result<Json<GpuView>, Problem> {
    Ok(Json(app.service.gpu(&actor, &gpu).await?))
}

/// Put another GPU in the place of a missing one
#[utoipa::path(post, path = "/api/v1/gpus/{gpu}/replace", operation_id = "replace_gpu", tag = "host",
    params(("gpu" = String, Path, description = "The missing GPU: UUID or a unique beginning of it"), WriteQuery,
        IfMatch),
    request_body = ReplaceRequest,
    responses((status = 200, description = "Its daemon and its tenants have the new GPU, or a dry run", body = Replacement), WriteProblems))]
pub(super) async fn replace_gpu(
    State(app): State<AppState>,
    actor: Actor,
    Path(gpu): Path<String>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Body(request): Body<ReplaceRequest>,
) -> Result<Json<Replacement>, Problem> {
    let options = conditions.options(query.dry_run);
    Ok(Json(app.service.replace_gpu(&actor, gpu, request, options).await?))
}
