//! The host and its GPUs.

use axum::Json;
use axum::extract::State;

use super::List;
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::{Problem, ReadProblems};
use crate::service::host::{GpuView, HostView};

/// The host
#[utoipa::path(get, path = "/api/v1/host", operation_id = "get_host", tag = "host",
    responses((status = 200, description = "The host, its driver and its MPS", body = HostView), ReadProblems))]
pub(super) async fn get(State(app): State<AppState>) -> Result<Json<HostView>, Problem> {
    Ok(Json(app.service.host().await?))
}

/// All GPUs
#[utoipa::path(get, path = "/api/v1/gpus", operation_id = "list_gpus", tag = "host",
    responses((status = 200, description = "The GPUs in PCI order", body = List<GpuView>), ReadProblems))]
pub(super) async fn list_gpus(State(app): State<AppState>) -> Result<Json<List<GpuView>>, Problem> {
    Ok(Json(List { items: app.service.gpu_views().await?, next_cursor: None }))
}

/// One GPU
#[utoipa::path(get, path = "/api/v1/gpus/{gpu}", operation_id = "get_gpu", tag = "host",
    params(("gpu" = String, Path, description = "UUID or a unique beginning of it, index in PCI order, or PCI address")),
    responses((status = 200, description = "The GPU", body = GpuView), ReadProblems))]
pub(super) async fn get_gpu(State(app): State<AppState>, Path(gpu): Path<String>) -> Result<Json<GpuView>, Problem> {
    Ok(Json(app.service.gpu(&gpu).await?))
}
