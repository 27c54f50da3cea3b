//! The host and its GPUs.

use axum::Json;

use super::{List, WriteQuery};
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, Json as Body, Path, Query};
use crate::http::problem::Answer;
use crate::service::daemons::replace::{ReplaceRequest, Replacement};
use crate::service::host::startup::ConfirmRequest;
use crate::service::host::{GpuView, HostView};

/// Get the host
#[utoipa::path(get, path = "/api/v1/host", operation_id = "get_host", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses((status = 200, description = "The host, its driver and its MPS.", body = HostView)))]
pub(super) async fn get(Call { app, ctx }: Call) -> Answer<HostView> {
    Ok(Json(app.service.host(&ctx).await?))
}

/// Confirm that the database belongs to this machine
///
/// A database that was copied from another machine is read-only until this is confirmed. The processes of the other machine are removed
/// from it, and its daemons are started here.
#[utoipa::path(post, path = "/api/v1/host/confirm", operation_id = "confirm_host", tag = "host",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(WriteQuery),
    request_body = ConfirmRequest,
    responses((status = 200, description = "The host, which is no longer read-only.", body = HostView)))]
pub(super) async fn confirm(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    Body(request): Body<ConfirmRequest>,
) -> Answer<HostView> {
    Ok(Json(app.service.confirm_host(&ctx, request, query.dry_run).await?))
}

/// List GPUs
#[utoipa::path(get, path = "/api/v1/gpus", operation_id = "list_gpus", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses((status = 200, description = "GPUs in PCI order.", body = List<GpuView>)))]
pub(super) async fn list_gpus(Call { app, ctx }: Call) -> Answer<List<GpuView>> {
    Ok(Json(List { items: app.service.gpu_views(&ctx).await?, next_cursor: None }))
}

/// Get a GPU
#[utoipa::path(get, path = "/api/v1/gpus/{gpu}", operation_id = "get_gpu", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("gpu" = String, Path, description = "UUID or a unique prefix of it, index in PCI order, or PCI address.")),
    responses((status = 200, description = "The GPU.", body = GpuView)))]
pub(super) async fn get_gpu(Call { app, ctx }: Call, Path(gpu): Path<String>) -> Answer<GpuView> {
    Ok(Json(app.service.gpu(&ctx, &gpu).await?))
}

/// Replace a missing GPU by another one
#[utoipa::path(post, path = "/api/v1/gpus/{gpu}/replace", operation_id = "replace_gpu", tag = "host",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(("gpu" = String, Path, description = "The missing GPU: UUID or a unique prefix of it."), WriteQuery),
    request_body = ReplaceRequest,
    responses((status = 200, description = "The daemon and the tenants of the missing GPU use the other one now; or a dry run.", body = Replacement)))]
pub(super) async fn replace_gpu(
    Call { app, ctx }: Call,
    Path(gpu): Path<String>,
    Query(query): Query<WriteQuery>,
    Body(request): Body<ReplaceRequest>,
) -> Answer<Replacement> {
    Ok(Json(app.service.replace_gpu(&ctx, gpu, request, query.options()).await?))
}
