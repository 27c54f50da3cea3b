//! Control daemons.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::described::{IfMatch, IfNoneMatch, OperationAccepted};
use super::{FreshQuery, GraceQuery, List, PageQuery, WriteQuery, accepted, checked_grace, written};
use crate::domain::DaemonName;
use crate::domain::access::Actor;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::GpuRef;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, OnTimeout};
use crate::domain::operation::OperationRequest;
use crate::http::AppState;
use crate::http::conditional::shown;
use crate::http::extract::{Conditions, Idempotency, Json, NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::adoption::AdoptRequest;
use crate::service::daemons::DaemonView;
use crate::service::{IdempotencyKey, WriteOptions};

/// All daemons
#[utoipa::path(get, path = "/api/v1/daemons", operation_id = "list_daemons", tag = "daemons", params(PageQuery),
    responses((status = 200, description = "Daemons by name", body = List<DaemonView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<DaemonView>>, Problem> {
    Ok(axum::Json(app.service.daemons(&actor, &query.page()?).await?.into()))
}

/// One daemon
#[utoipa::path(get, path = "/api/v1/daemons/{name}", operation_id = "get_daemon", tag = "daemons",
    params(("name" = DaemonName, Path, description = "The daemon"), FreshQuery),
    responses((status = 200, description = "The daemon", body = DaemonView, headers(("ETag" = String))), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<FreshQuery>,
) -> Result<Response, Problem> {
    let daemon = app.service.daemon(&actor, &name, query.fresh).await?;
    shown(daemon.revision, &daemon)
}

/// Create or replace a daemon
#[utoipa::path(put, path = "/api/v1/daemons/{name}", operation_id = "put_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), WriteQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = DaemonSpec<GpuRef>,
    responses(
        (status = 200, description = "Replaced, or a dry run", body = DaemonView, headers(("ETag" = String))),
        (status = 201, description = "Created", body = DaemonView, headers(("ETag" = String))),
        WriteProblems,
    ))]
pub(super) async fn put(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(spec): Json<DaemonSpec<GpuRef>>,
) -> Result<Response, Problem> {
    let done = app.service.put_daemon(&actor, name, spec, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Stop a daemon and forget it
#[utoipa::path(delete, path = "/api/v1/daemons/{name}", operation_id = "delete_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), GraceQuery,
        IfMatch,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn delete(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<GraceQuery>,
    conditions: Conditions,
) -> Result<Response, Problem> {
    let request = OperationRequest::DeleteDaemon { grace_s: checked_grace(query.grace_s)? };
    operate(app, &actor, name, request, conditions.options(query.dry_run), None).await
}

/// Start a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/start", operation_id = "start_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), WriteQuery,
        Idempotency, IfMatch,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn start(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let request = OperationRequest::StartDaemon;
    let key = idempotency.of(&actor, &request)?;
    operate(app, &actor, name, request, conditions.options(query.dry_run), key).await
}

/// Stop a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/stop", operation_id = "stop_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), GraceQuery,
        Idempotency, IfMatch,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn stop(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<GraceQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let request = OperationRequest::StopDaemon { grace_s: checked_grace(query.grace_s)? };
    let key = idempotency.of(&actor, &request)?;
    operate(app, &actor, name, request, conditions.options(query.dry_run), key).await
}

/// Stop a daemon and start it again
#[utoipa::path(post, path = "/api/v1/daemons/{name}/restart", operation_id = "restart_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), GraceQuery,
        Idempotency, IfMatch,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn restart(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<GraceQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let request = OperationRequest::RestartDaemon { grace_s: checked_grace(query.grace_s)? };
    let key = idempotency.of(&actor, &request)?;
    operate(app, &actor, name, request, conditions.options(query.dry_run), key).await
}

/// Adopt a control daemon that somebody else started
///
/// It keeps its process, its directories and its clients: the spec is read back from what is in force in it. Refused
/// where a spec cannot hold that, where it runs as another user, or where another manager started it; such a daemon can
/// be observed.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/adopt", operation_id = "adopt_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The name it gets"), WriteQuery,
        IfNoneMatch,
    ),
    request_body = AdoptRequest,
    responses(
        (status = 201, description = "Adopted", body = DaemonView, headers(("ETag" = String))),
        (status = 200, description = "A dry run", body = DaemonView),
        WriteProblems,
    ))]
pub(super) async fn adopt(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(request): Json<AdoptRequest>,
) -> Result<Response, Problem> {
    let done = app.service.adopt_daemon(&actor, name, request, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Give an adopted daemon back
///
/// It is forgotten, and its process is left as it is. For a daemon that this manager started, see its deletion.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/release", operation_id = "release_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), WriteQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Released, or a dry run"), WriteProblems))]
pub(super) async fn release(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    app.service.release_daemon(&actor, name, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How a drain is done.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DrainQuery {
    /// Do everything, answer as if it were done, and keep nothing.
    #[serde(default)]
    dry_run: bool,
    /// Seconds that clients get to end by themselves; 300 without it.
    #[serde(default = "default_drain")]
    #[param(maximum = 86400)]
    timeout_s: u32,
    /// What becomes of those that are still there then: `fail` without it.
    #[serde(default)]
    #[param(inline)]
    on_timeout: OnTimeout,
}

fn default_drain() -> u32 {
    DEFAULT_DRAIN_S
}

/// Drain a daemon
///
/// It takes no new clients, and those that are there are waited for. Succeeded, it stays cordoned; failed or called off,
/// it is as it was before.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/drain", operation_id = "drain_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), DrainQuery,
        Idempotency, IfMatch,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn drain(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<DrainQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let DrainQuery { dry_run, timeout_s, on_timeout } = query;
    let request = OperationRequest::DrainDaemon { timeout_s, on_timeout };
    let key = idempotency.of(&actor, &request)?;
    operate(app, &actor, name, request, conditions.options(dry_run), key).await
}

/// Admit no new clients to a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/cordon", operation_id = "cordon_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), WriteQuery,
        IfMatch,
    ),
    responses((status = 200, description = "Cordoned: `schedulable` in its spec is false", body = DaemonView, headers(("ETag" = String))), WriteProblems))]
pub(super) async fn cordon(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<Response, Problem> {
    let done = app.service.set_schedulable(&actor, name, false, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Admit new clients to a daemon again
#[utoipa::path(post, path = "/api/v1/daemons/{name}/uncordon", operation_id = "uncordon_daemon", tag = "daemons",
    params(
        ("name" = DaemonName, Path, description = "The daemon"), WriteQuery,
        IfMatch,
    ),
    responses((status = 200, description = "`schedulable` in its spec is true", body = DaemonView, headers(("ETag" = String))), WriteProblems))]
pub(super) async fn uncordon(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<Response, Problem> {
    let done = app.service.set_schedulable(&actor, name, true, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Asks for an operation, and answers where to look for it.
async fn operate(
    app: AppState,
    actor: &Actor,
    name: DaemonName,
    request: OperationRequest,
    options: WriteOptions,
    key: Option<IdempotencyKey>,
) -> Result<Response, Problem> {
    let dry_run = options.dry_run;
    Ok(accepted(&app.service.operate(actor, name, request, options, key).await?, dry_run))
}
