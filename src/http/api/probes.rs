//! Whether the manager lives and its daemons are ready; these need no token.

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use utoipa::{OpenApi, ToSchema};

use crate::domain::DaemonName;
use crate::domain::daemon::Phase;
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::Problem;

#[derive(OpenApi)]
#[openapi(paths(healthz, readyz, readyz_daemon))]
pub(super) struct Document;

pub(in crate::http) fn router() -> Router<AppState> {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/readyz/daemons/{name}", get(readyz_daemon))
}

/// The manager lives and reads its store.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// Whether every daemon holds what is wanted of it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// Whether all of them do: the desired generation was applied and read back.
    pub ready: bool,
    /// Those that do not.
    pub not_ready: Vec<NotReady>,
    /// Why none of them is looked after, in words that anybody may read: the database belongs to another machine, or was
    /// confirmed and is not taken up yet. `GET /api/v1/host` says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// What keeps the manager itself from its work, as `DatabaseLost`: the types of its conditions, which `GET /api/v1/host` explains.
    #[serde(default)]
    pub conditions: Vec<String>,
}

/// A daemon that is not ready.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NotReady {
    /// The daemon.
    pub daemon: DaemonName,
    /// Where it stands.
    pub phase: Phase,
}

/// What anybody is told while nothing is looked after: IDs of machines are for those who have a token.
const READ_ONLY: &str = "the database is another machine's, or its take-up is not done: nothing is adopted, started, stopped or \
                         changed. GET /api/v1/host says why";

/// Whether the manager lives
#[utoipa::path(get, path = "/healthz", operation_id = "get_health", tag = "probes", security(()),
    responses((status = 200, description = "It lives and reads its store", body = Health),
        (status = 500, description = "It cannot read its store", body = Problem, content_type = "application/problem+json")))]
async fn healthz(State(app): State<AppState>) -> Result<Json<Health>, Problem> {
    app.service.check_store().await?;
    Ok(Json(Health { status: "ok".into() }))
}

/// Whether every daemon is ready
#[utoipa::path(get, path = "/readyz", operation_id = "get_readiness", tag = "probes", security(()),
    responses(
        (status = 200, description = "The desired generation of every daemon was applied and read back", body = Readiness),
        (status = 500, description = "It cannot read its store", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "Some daemons are not ready, or the manager itself cannot do its work", body = Readiness),
    ))]
async fn readyz(State(app): State<AppState>) -> Result<(StatusCode, Json<Readiness>), Problem> {
    let conditions = app.service.blocking_conditions();
    let not_ready = match app.service.not_ready(None).await {
        // What stands in the way of the answer is said in it.
        Err(_) if !conditions.is_empty() => Vec::new(),
        other => other?,
    };
    Ok(readiness(not_ready, app.service.is_read_only(), conditions))
}

/// Whether one daemon is ready
#[utoipa::path(get, path = "/readyz/daemons/{name}", operation_id = "get_daemon_readiness", tag = "probes", security(()),
    params(("name" = DaemonName, Path, description = "The daemon")),
    responses(
        (status = 200, description = "Its desired generation was applied and read back", body = Readiness),
        (status = 404, description = "There is no such daemon", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "Not a daemon's name", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "It is not ready", body = Readiness),
    ))]
async fn readyz_daemon(
    State(app): State<AppState>,
    Path(name): Path<DaemonName>,
) -> Result<(StatusCode, Json<Readiness>), Problem> {
    let not_ready = app.service.not_ready(Some(&name)).await?;
    Ok(readiness(not_ready, app.service.is_read_only(), app.service.blocking_conditions()))
}

fn readiness(
    not_ready: Vec<(DaemonName, Phase)>,
    is_read_only: bool,
    conditions: Vec<String>,
) -> (StatusCode, Json<Readiness>) {
    let ready = not_ready.is_empty() && !is_read_only && conditions.is_empty();
    let read_only = is_read_only.then(|| READ_ONLY.to_owned());
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let not_ready = not_ready.into_iter().map(|(daemon, phase)| NotReady { daemon, phase }).collect();
    (status, Json(Readiness { ready, not_ready, read_only, conditions }))
}
