//! Maintenance of the host.

use axum::extract::State;
use axum::response::Response;

use super::described::OperationAccepted;
use super::{WriteQuery, accepted};
use crate::domain::access::Actor;
use crate::domain::maintenance::MaintenanceRequest;
use crate::http::AppState;
use crate::http::extract::{Conditions, Idempotency, Json, NoBody, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::maintenance::MaintenanceView;

/// The maintenance of the host
#[utoipa::path(get, path = "/api/v1/host/maintenance", operation_id = "get_maintenance", tag = "host",
    responses((status = 200, description = "How far it is, and who has its GPUs open now", body = MaintenanceView), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
) -> Result<axum::Json<MaintenanceView>, Problem> {
    Ok(axum::Json(app.service.maintenance(&actor).await?))
}

/// Begin maintenance
///
/// Drains and stops the daemons with these GPUs, restores compute modes, lets go of the driver, and proves that no
/// process of the manager's has a device file of these GPUs open. Until it is ended the daemons stay down, whatever their
/// specs say. Called off while it drains, or failed, everything is as before.
#[utoipa::path(post, path = "/api/v1/host/maintenance", operation_id = "begin_maintenance", tag = "host",
    params(
        WriteQuery,
        Idempotency,
    ),
    request_body = MaintenanceRequest,
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn begin(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    Json(request): Json<MaintenanceRequest>,
) -> Result<Response, Problem> {
    let key = idempotency.of(&actor, &request)?;
    let options = conditions.options(query.dry_run);
    Ok(accepted(&app.service.begin_maintenance(&actor, request, options, key).await?, query.dry_run))
}

/// End maintenance
///
/// Opens the driver again, starts the daemons, waits until they are ready, and lets clients in as before.
#[utoipa::path(
    delete,
    path = "/api/v1/host/maintenance",
    operation_id = "end_maintenance",
    tag = "host",
    params(WriteQuery),
    responses(OperationAccepted, WriteProblems)
)]
pub(super) async fn end(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<Response, Problem> {
    let options = conditions.options(query.dry_run);
    Ok(accepted(&app.service.end_maintenance(&actor, options).await?, query.dry_run))
}
