//! History of tenants' use and of GPUs' vitals.

use axum::Json;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::domain::TenantName;
use crate::domain::history::HistorySpan;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::Answer;
use crate::service::history::{HistoryOf, HistoryView};

/// The span of a history.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// The span up to now; by default 1h. A point stands for 5 s of an hour, a minute of 6 h, 10 min of 24 h, an hour of 7 d.
    #[serde(default)]
    #[param(inline)]
    span: HistorySpan,
}

/// Get the history of a tenant
///
/// Clients and memory of the tenant, in all and on each GPU.
#[utoipa::path(get, path = "/api/v1/tenants/{name}/history", operation_id = "get_tenant_history", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::ViewTenant))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), HistoryQuery),
    responses((status = 200, description = "The history.", body = HistoryView)))]
pub(super) async fn of_tenant(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<HistoryQuery>,
) -> Answer<HistoryView> {
    Ok(Json(app.service.history(&ctx, HistoryOf::Tenant(&name), query.span).await?))
}

/// Get the history of a GPU
///
/// Vitals of the GPU, and clients and memory of each tenant on it.
#[utoipa::path(get, path = "/api/v1/gpus/{gpu}/history", operation_id = "get_gpu_history", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(
        ("gpu" = String, Path, description = "UUID or a unique prefix of it, index in PCI order, or PCI address."),
        HistoryQuery,
    ),
    responses((status = 200, description = "The history.", body = HistoryView)))]
pub(super) async fn of_gpu(
    Call { app, ctx }: Call,
    Path(gpu): Path<String>,
    Query(query): Query<HistoryQuery>,
) -> Answer<HistoryView> {
    let gpu = app.service.gpu(&ctx, &gpu).await?.uuid;
    Ok(Json(app.service.history(&ctx, HistoryOf::Gpu(&gpu), query.span).await?))
}
