//! Control daemons.

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::Deserialize;
use utoipa::IntoParams;

use super::described::{IfMatch, IfNoneMatch, OperationAccepted};
use super::patch::{MergePatch, at_revision};
use super::{
    EffectQuery, GraceQuery, List, PageQuery, ReadQuery, WriteQuery, accepted, checked_grace, checked_wait,
    written,
};
use crate::domain::DaemonName;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::GpuRef;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, OnTimeout};
use crate::domain::operation::OperationRequest;
use crate::http::AppState;
use crate::http::conditional::shown;
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, Conditions, Idempotency, Json, NoBody, Path, Query};
use crate::http::problem::{Answer, Problem, Reply};
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::daemons::adoption::AdoptRequest;
use crate::service::{ServiceError, Written};

/// List daemons
#[utoipa::path(get, path = "/api/v1/daemons", operation_id = "list_daemons", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))), params(PageQuery),
    responses((status = 200, description = "Daemons, ordered by name.", body = List<DaemonView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<PageQuery>,
) -> Answer<List<DaemonView>> {
    Ok(axum::Json(app.service.daemons(&ctx, &query.page()?).await?.into()))
}

/// Get a daemon
#[utoipa::path(get, path = "/api/v1/daemons/{name}", operation_id = "get_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), ReadQuery),
    responses((status = 200, description = "The daemon.", body = DaemonView, headers(("ETag" = String)))))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<ReadQuery>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let daemon = app.service.settled_daemon(&ctx, &name, query.fresh, wait).await?;
    shown(daemon.revision, &daemon)
}

/// Create or replace a daemon
#[utoipa::path(put, path = "/api/v1/daemons/{name}", operation_id = "put_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(
        ("name" = DaemonName, Path, description = "The name of the daemon."), EffectQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = DaemonSpec<GpuRef>,
    responses(
        (status = 200, description = "Replaced, or a dry run.", body = DaemonView, headers(("ETag" = String))),
        (status = 201, description = "Created.", body = DaemonView, headers(("ETag" = String)))
    ))]
pub(super) async fn put(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<EffectQuery>,
    conditions: Conditions,
    Json(spec): Json<DaemonSpec<GpuRef>>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let done = app.service.put_daemon(&ctx, name, spec, conditions.options(query.dry_run)).await?;
    answered(&app, &ctx, done, &query, wait).await
}

/// Answers with the daemon that was written; with `wait_s`, once it is as its spec says.
async fn answered(
    app: &AppState,
    ctx: &RequestContext,
    mut done: Written<DaemonView>,
    query: &EffectQuery,
    wait: Duration,
) -> Reply {
    if !query.dry_run && !wait.is_zero() {
        let settled = app.service.settled_daemon(ctx, &done.value.name, false, wait).await?;
        done.value = DaemonView { removed: done.value.removed, ..settled };
    }
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Change a daemon
///
/// A JSON merge patch (RFC 7396) of its `spec`: what it names is replaced, `null` gives a field its default, and the rest stays. Without
/// `If-Match` it is tried again when another write came in between.
#[utoipa::path(patch, path = "/api/v1/daemons/{name}", operation_id = "patch_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), EffectQuery, IfMatch),
    request_body(content = MergePatch, content_type = "application/merge-patch+json"),
    responses((status = 200, description = "Changed, or a dry run.", body = DaemonView, headers(("ETag" = String)))))]
pub(super) async fn patch(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<EffectQuery>,
    conditions: Conditions,
    Json(patch): Json<MergePatch>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let options = conditions.options(query.dry_run);
    loop {
        let now = app.service.daemon(&ctx, &name, false).await?;
        let (spec, at) = (patch.onto(&now.spec)?, at_revision(&options, now.revision));
        match app.service.put_daemon(&ctx, name.clone(), spec, at).await {
            Err(ServiceError::PreconditionFailed { .. }) if options.if_match.is_none() => {}
            done => return answered(&app, &ctx, done?, &query, wait).await,
        }
    }
}

/// An action on a daemon: its caller, the daemon, and the conditions of the request.
pub(super) struct DaemonAction {
    app: AppState,
    ctx: RequestContext,
    name: DaemonName,
    conditions: Conditions,
    idempotency: Idempotency,
}

impl FromRequestParts<AppState> for DaemonAction {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let ctx = RequestContext::from_request_parts(parts, app).await?;
        let Path(name) = Path::from_request_parts(parts, app).await?;
        let conditions = Conditions::from_request_parts(parts, app).await?;
        let idempotency = Idempotency::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), ctx, name, conditions, idempotency })
    }
}

impl DaemonAction {
    /// Starts an operation, and answers with the location at which it can be followed.
    async fn operate(self, request: OperationRequest, dry_run: bool) -> Reply {
        let ctx = self.idempotency.add_to(self.ctx, &request)?;
        let options = self.conditions.options(dry_run);
        let operation = self.app.service.operate(&ctx, self.name, request, options).await?;
        Ok(accepted(&operation, dry_run))
    }

    async fn set_schedulable(self, schedulable: bool, dry_run: bool) -> Reply {
        let options = self.conditions.options(dry_run);
        let done = self.app.service.set_schedulable(&self.ctx, self.name, schedulable, options).await?;
        Ok(written(&done, done.value.revision, dry_run))
    }
}

/// Delete a daemon
///
/// It is stopped first. Its tenants have to be deleted or moved before.
#[utoipa::path(delete, path = "/api/v1/daemons/{name}", operation_id = "delete_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), GraceQuery, IfMatch),
    responses(OperationAccepted))]
pub(super) async fn delete(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<GraceQuery>,
    conditions: Conditions,
) -> Reply {
    let request = OperationRequest::DeleteDaemon { grace_s: checked_grace(query.grace_s)? };
    let options = conditions.options(query.dry_run);
    Ok(accepted(&app.service.operate(&ctx, name, request, options).await?, query.dry_run))
}

/// Start a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/start", operation_id = "start_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, WriteQuery), responses(OperationAccepted))]
pub(super) async fn start(action: DaemonAction, Query(query): Query<WriteQuery>, _: NoBody) -> Reply {
    action.operate(OperationRequest::StartDaemon, query.dry_run).await
}

/// Stop a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/stop", operation_id = "stop_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, GraceQuery), responses(OperationAccepted))]
pub(super) async fn stop(action: DaemonAction, Query(query): Query<GraceQuery>, _: NoBody) -> Reply {
    let request = OperationRequest::StopDaemon { grace_s: checked_grace(query.grace_s)? };
    action.operate(request, query.dry_run).await
}

/// Restart a daemon
#[utoipa::path(post, path = "/api/v1/daemons/{name}/restart", operation_id = "restart_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, GraceQuery), responses(OperationAccepted))]
pub(super) async fn restart(action: DaemonAction, Query(query): Query<GraceQuery>, _: NoBody) -> Reply {
    let request = OperationRequest::RestartDaemon { grace_s: checked_grace(query.grace_s)? };
    action.operate(request, query.dry_run).await
}

/// Adopt a control daemon that this manager did not start
///
/// The daemon keeps its process, its directories and its clients; its spec is read back from its effective settings. This is refused
/// where a spec cannot express those, where the daemon runs as another user, or where another manager started it. Such a daemon can
/// still be observed.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/adopt", operation_id = "adopt_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(
        ("name" = DaemonName, Path, description = "The name that the daemon gets."), WriteQuery,
        IfNoneMatch,
    ),
    request_body = AdoptRequest,
    responses(
        (status = 201, description = "Adopted.", body = DaemonView, headers(("ETag" = String))),
        (status = 200, description = "A dry run.", body = DaemonView)
    ))]
pub(super) async fn adopt(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(request): Json<AdoptRequest>,
) -> Reply {
    let done = app.service.adopt_daemon(&ctx, name, request, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.revision, query.dry_run))
}

/// Release an adopted daemon
///
/// The manager removes it from its database and leaves its process running. A daemon that this manager started is deleted instead.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/release", operation_id = "release_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(
        ("name" = DaemonName, Path, description = "The name of the daemon."), WriteQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Released, or a dry run.")))]
pub(super) async fn release(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    app.service.release_daemon(&ctx, name, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Options for the drain of a daemon.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DrainQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Seconds for clients to end by themselves; 300 by default.
    #[serde(default = "default_drain")]
    #[param(maximum = 86400)]
    timeout_s: u32,
    /// Action when clients are left after `timeout_s`; `fail` by default.
    #[serde(default)]
    #[param(inline)]
    on_timeout: OnTimeout,
}

fn default_drain() -> u32 {
    DEFAULT_DRAIN_S
}

/// Drain a daemon
///
/// The daemon admits no new clients, and the operation waits until those that are connected have ended. After a success the daemon
/// stays cordoned; after a failure or a cancellation it is as before.
#[utoipa::path(post, path = "/api/v1/daemons/{name}/drain", operation_id = "drain_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, DrainQuery), responses(OperationAccepted))]
pub(super) async fn drain(action: DaemonAction, Query(query): Query<DrainQuery>, _: NoBody) -> Reply {
    let DrainQuery { dry_run, timeout_s, on_timeout } = query;
    action.operate(OperationRequest::DrainDaemon { timeout_s, on_timeout }, dry_run).await
}

/// Cordon a daemon: it admits no new clients
#[utoipa::path(post, path = "/api/v1/daemons/{name}/cordon", operation_id = "cordon_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, WriteQuery),
    responses((status = 200, description = "The daemon; `schedulable` in its spec is false.", body = DaemonView, headers(("ETag" = String)))))]
pub(super) async fn cordon(action: DaemonAction, Query(query): Query<WriteQuery>, _: NoBody) -> Reply {
    action.set_schedulable(false, query.dry_run).await
}

/// Uncordon a daemon: it admits new clients again
#[utoipa::path(post, path = "/api/v1/daemons/{name}/uncordon", operation_id = "uncordon_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Operate)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), Idempotency, IfMatch, WriteQuery),
    responses((status = 200, description = "The daemon; `schedulable` in its spec is true.", body = DaemonView, headers(("ETag" = String)))))]
pub(super) async fn uncordon(action: DaemonAction, Query(query): Query<WriteQuery>, _: NoBody) -> Reply {
    action.set_schedulable(true, query.dry_run).await
}
