//! Maintenance of the host.

use super::described::OperationAccepted;
use super::{WriteQuery, accepted};
use crate::domain::maintenance::MaintenanceRequest;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Idempotency, Json, NoBody, Query};
use crate::http::problem::{Answer, Reply};
use crate::service::daemons::maintenance::MaintenanceView;

/// Get the maintenance of the host
#[utoipa::path(get, path = "/api/v1/host/maintenance", operation_id = "get_maintenance", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses((status = 200, description = "The state of the maintenance, and the processes that have its GPUs open now.", body = MaintenanceView)))]
pub(super) async fn get(Call { app, ctx }: Call) -> Answer<MaintenanceView> {
    Ok(axum::Json(app.service.maintenance(&ctx, true).await?))
}

/// Begin maintenance
///
/// Drains and stops the daemons with these GPUs, restores their compute modes, closes the driver, and proves that no process of the
/// manager has a device file of these GPUs open. The daemons stay stopped until the maintenance ends, whatever their specs say. If it fails,
/// or is cancelled while it drains, everything is restored.
#[utoipa::path(post, path = "/api/v1/host/maintenance", operation_id = "begin_maintenance", tag = "host",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(
        WriteQuery,
        Idempotency,
    ),
    request_body = MaintenanceRequest,
    responses(OperationAccepted))]
pub(super) async fn begin(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    idempotency: Idempotency,
    Json(request): Json<MaintenanceRequest>,
) -> Reply {
    let ctx = idempotency.add_to(ctx, &request)?;
    Ok(accepted(&app.service.begin_maintenance(&ctx, request, query.options()).await?, query.dry_run))
}

/// End maintenance
///
/// Opens the driver again, starts the daemons, and waits until they are ready and admit clients as before.
#[utoipa::path(
    delete,
    path = "/api/v1/host/maintenance",
    operation_id = "end_maintenance",
    tag = "host",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(WriteQuery),
    responses(OperationAccepted)
)]
pub(super) async fn end(Call { app, ctx }: Call, Query(query): Query<WriteQuery>, _: NoBody) -> Reply {
    Ok(accepted(&app.service.end_maintenance(&ctx, query.options()).await?, query.dry_run))
}
