//! Incidents.

use serde::Deserialize;
use utoipa::IntoParams;

use super::{List, WriteQuery};
use crate::domain::gpu::GpuRef;
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::{DaemonName, TenantName};
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Idempotency, Json, Path, Query};
use crate::http::problem::Answer;
use crate::service::incidents::{AcknowledgeRequest, IncidentView};
use crate::service::page::Page;

/// The incidents to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct IncidentQuery {
    /// Only those in this state.
    #[param(inline)]
    state: Option<IncidentState>,
    /// Only those that were acknowledged, or with `false` only those that were not.
    acknowledged: Option<bool>,
    /// Only those of this kind.
    kind: Option<IncidentKind>,
    /// Only those of this daemon.
    daemon: Option<DaemonName>,
    /// Only those that hit this tenant.
    tenant: Option<TenantName>,
    /// Only those that concern this GPU: UUID, unique prefix, index or PCI address.
    gpu: Option<GpuRef>,
    /// Only those that were open at this time or later.
    #[serde(default, with = "crate::domain::rfc3339::option")]
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<i64>,
    /// With `true`, only those that are open, or that ended within the last hour and were not acknowledged.
    current: Option<bool>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List incidents
///
/// An incident says what broke, which clients lost their work, and when it recovered. A tenant's token sees those that hit the tenant.
#[utoipa::path(get, path = "/api/v1/incidents", operation_id = "list_incidents", tag = "incidents",
    extensions(("x-right" = json!(RequiredRight::OwnItems))), params(IncidentQuery),
    responses((status = 200, description = "Incidents, the newest first.", body = List<IncidentView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<IncidentQuery>,
) -> Answer<List<IncidentView>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let gpu = match &query.gpu {
        Some(named) => match app.service.gpu_named(&ctx, &named.0).await? {
            Some(gpu) => Some(gpu),
            None => return Ok(axum::Json(List { items: Vec::new(), next_cursor: None })),
        },
        None => None,
    };
    let IncidentQuery { state, acknowledged, kind, daemon, tenant, since, .. } = query;
    let filter =
        IncidentFilter { state, acknowledged, kind, daemon, tenant, gpu, since, ..IncidentFilter::default() };
    let incidents = if query.current == Some(true) {
        app.service.current_incidents(&ctx, filter, &page).await?
    } else {
        app.service.incidents(&ctx, filter, &page).await?
    };
    Ok(axum::Json(incidents.into()))
}

/// Get an incident
#[utoipa::path(get, path = "/api/v1/incidents/{id}", operation_id = "get_incident", tag = "incidents",
    extensions(("x-right" = json!(RequiredRight::ViewIncident))),
    params(("id" = i64, Path, description = "The ID of the incident.", minimum = 0)),
    responses((status = 200, description = "The incident.", body = IncidentView)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<i64>) -> Answer<IncidentView> {
    Ok(axum::Json(app.service.incident(&ctx, id).await?))
}

/// Acknowledge an incident
///
/// Records who took note of it, and when. An open incident stays open. A second acknowledgement is a conflict, unless the request
/// repeats the first one's `Idempotency-Key`.
#[utoipa::path(post, path = "/api/v1/incidents/{id}/acknowledge", operation_id = "acknowledge_incident", tag = "incidents",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(("id" = i64, Path, description = "The ID of the incident.", minimum = 0), WriteQuery, Idempotency),
    request_body = AcknowledgeRequest,
    responses((status = 200, description = "The incident.", body = IncidentView)))]
pub(super) async fn acknowledge(
    Call { app, ctx }: Call,
    Path(id): Path<i64>,
    Query(query): Query<WriteQuery>,
    idempotency: Idempotency,
    Json(request): Json<AcknowledgeRequest>,
) -> Answer<IncidentView> {
    let ctx = idempotency.add_to(ctx, &request)?;
    Ok(axum::Json(app.service.acknowledge_incident(&ctx, id, request, query.options()).await?))
}
