//! Probes: whether the manager runs and its daemons are ready. They need no token.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::DaemonName;
use crate::domain::daemon::Phase;
use crate::http::AppState;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::Path;
use crate::http::problem::Problem;
use crate::service::ServiceError;

/// The manager runs and can read its database.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Always `ok`.
    pub status: String,
}

/// Readiness of the daemons and of the manager itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Readiness {
    /// True if the desired generation of each daemon was applied and read back, and nothing keeps the manager itself from working.
    pub ready: bool,
    /// The daemons that are not ready.
    pub not_ready: Vec<NotReady>,
    /// Reason for which the manager manages no daemon: its database belongs to another machine, or was confirmed and is being loaded, or
    /// the driver is waited for. `GET /api/v1/host` says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<String>,
    /// The conditions that keep the manager itself from working, such as `DatabaseLost`; `GET /api/v1/host` explains them.
    #[serde(default)]
    pub conditions: Vec<String>,
}

/// A daemon that is not ready.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct NotReady {
    /// The daemon.
    pub daemon: DaemonName,
    /// Its phase.
    pub phase: Phase,
}

/// Machine IDs are left out, since a probe needs no token.
const READ_ONLY: &str = "the database is another machine's, or is being loaded, or the NVIDIA driver is not here yet: no daemon is adopted, started, stopped or changed. \
                         GET /api/v1/host says why";

/// Check the manager
#[utoipa::path(get, path = "/healthz", operation_id = "get_health", tag = "probes",
    extensions(("x-right" = json!(RequiredRight::Public))), security(()),
    responses((status = 200, description = "The manager runs and can read its database.", body = Health)))]
pub(super) async fn healthz(State(app): State<AppState>) -> Result<Json<Health>, Problem> {
    app.service.without_permit().check_store().await.map_err(full)?;
    Ok(Json(Health { status: "ok".into() }))
}

/// Check that every daemon is ready
#[utoipa::path(get, path = "/readyz", operation_id = "get_readiness", tag = "probes",
    extensions(("x-right" = json!(RequiredRight::Public))), security(()),
    responses(
        (status = 200, description = "The desired generation of every daemon was applied and read back.", body = Readiness),
        (status = 503, description = "Some daemons are not ready, or the manager itself cannot work.", body = Readiness),
    ))]
pub(super) async fn readyz(State(app): State<AppState>) -> Result<(StatusCode, Json<Readiness>), Problem> {
    let conditions = app.service.without_permit().blocking_conditions();
    let not_ready = match app.service.without_permit().not_ready(None).await {
        // The response shows why no daemon is managed.
        Err(_) if !conditions.is_empty() => Vec::new(),
        other => other.map_err(full)?,
    };
    Ok(readiness(not_ready, app.service.without_permit().is_read_only(), conditions))
}

/// Check that a daemon is ready
#[utoipa::path(get, path = "/readyz/daemons/{name}", operation_id = "get_daemon_readiness", tag = "probes",
    extensions(("x-right" = json!(RequiredRight::Public))), security(()),
    params(("name" = DaemonName, Path, description = "The name of the daemon.")),
    responses(
        (status = 200, description = "The desired generation of the daemon was applied and read back.", body = Readiness),
        (status = 503, description = "The daemon is not ready.", body = Readiness),
    ))]
pub(super) async fn readyz_daemon(
    State(app): State<AppState>,
    Path(name): Path<DaemonName>,
) -> Result<(StatusCode, Json<Readiness>), Problem> {
    // Callers need no token here, so a daemon that does not exist is reported as one that is not ready.
    let not_ready = match app.service.without_permit().not_ready(Some(&name)).await {
        Err(ServiceError::NotFound { .. }) => vec![(name, Phase::Absent)],
        not_ready => not_ready.map_err(full)?,
    };
    Ok(readiness(
        not_ready,
        app.service.without_permit().is_read_only(),
        app.service.without_permit().blocking_conditions(),
    ))
}

/// Returns the full problem, since nothing in it names tenants or processes here.
fn full(error: ServiceError) -> Problem {
    Problem::from(error).unredacted()
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
