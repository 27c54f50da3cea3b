//! Tenants.

use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::described::{IfMatch, IfNoneMatch};
use super::{FreshQuery, List, PageQuery, WriteQuery, written};
use crate::domain::access::Actor;
use crate::domain::client::ClientId;
use crate::domain::gpu::GpuRef;
use crate::domain::tenant::TenantSpec;
use crate::domain::verification::Verification;
use crate::domain::{DaemonName, TenantName, environment};
use crate::http::auth::Peer;
use crate::http::conditional::shown;
use crate::http::extract::{Conditions, Idempotency, Json, NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::http::{AppState, accept};
use crate::service::clients::{ClientFilter, ClientView};
use crate::service::leases::{HeldLease, LeaseRequest, LeaseView};
use crate::service::page::Page;
use crate::service::tenants::{EnvironmentView, TenantFilter, TenantView};

/// Which tenants.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TenantQuery {
    /// Those of this daemon.
    daemon: Option<DaemonName>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// All tenants
#[utoipa::path(get, path = "/api/v1/tenants", operation_id = "list_tenants", tag = "tenants", params(TenantQuery),
    responses((status = 200, description = "Tenants by name", body = List<TenantView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<TenantQuery>,
) -> Result<axum::Json<List<TenantView>>, Problem> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let filter = TenantFilter { daemon: query.daemon, text: None };
    Ok(axum::Json(app.service.tenants(&actor, &filter, &page).await?.into()))
}

/// One tenant
#[utoipa::path(get, path = "/api/v1/tenants/{name}", operation_id = "get_tenant", tag = "tenants",
    params(("name" = TenantName, Path, description = "The tenant"), FreshQuery),
    responses((status = 200, description = "The tenant", body = TenantView, headers(("ETag" = String))), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<FreshQuery>,
) -> Result<Response, Problem> {
    let tenant = app.service.tenant(&actor, &name, query.fresh).await?;
    shown(tenant.generation, &tenant)
}

/// Create or replace a tenant
#[utoipa::path(put, path = "/api/v1/tenants/{name}", operation_id = "put_tenant", tag = "tenants",
    params(
        ("name" = TenantName, Path, description = "The tenant"), WriteQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = TenantSpec<GpuRef>,
    responses(
        (status = 200, description = "Replaced, or a dry run", body = TenantView, headers(("ETag" = String))),
        (status = 201, description = "Created", body = TenantView, headers(("ETag" = String))),
        WriteProblems,
    ))]
pub(super) async fn put(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(spec): Json<TenantSpec<GpuRef>>,
) -> Result<Response, Problem> {
    let done = app.service.put_tenant(&actor, name, spec, conditions.options(query.dry_run)).await?;
    Ok(written(&done, done.value.generation, query.dry_run))
}

/// Forget a tenant
#[utoipa::path(delete, path = "/api/v1/tenants/{name}", operation_id = "delete_tenant", tag = "tenants",
    params(
        ("name" = TenantName, Path, description = "The tenant"), WriteQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Forgotten"), WriteProblems))]
pub(super) async fn delete(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
) -> Result<StatusCode, Problem> {
    app.service.delete_tenant(&actor, name, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The environment of a tenant's processes
#[utoipa::path(get, path = "/api/v1/tenants/{name}/environment", operation_id = "get_tenant_environment", tag = "tenants",
    params(("name" = TenantName, Path, description = "The tenant")),
    responses(
        (status = 200, description = "The variables; as lines for a shell with `Accept: text/x-shellscript`",
            content((EnvironmentView = "application/json"), (String = "text/x-shellscript"))),
        (status = 409, description = "Nothing is handed out: its partition is not proven, or held by somebody else's process",
            body = Problem, content_type = "application/problem+json"),
        ReadProblems,
    ))]
pub(super) async fn environment(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let format = accept::negotiated(&headers, &["application/json", SHELL])?;
    let view = app.service.tenant_environment(&actor, &name).await?;
    if format == SHELL {
        let variables: Vec<(String, String)> = view.variables.into_iter().collect();
        let text = environment::as_shell(&variables);
        return Ok(([(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8")], text).into_response());
    }
    Ok(axum::Json(view).into_response())
}

const SHELL: &str = "text/x-shellscript";

/// The clients of a tenant
#[utoipa::path(get, path = "/api/v1/tenants/{name}/clients", operation_id = "list_tenant_clients", tag = "tenants",
    params(("name" = TenantName, Path, description = "The tenant"), PageQuery),
    responses((status = 200, description = "Its clients by process ID", body = List<ClientView>), ReadProblems))]
pub(super) async fn clients(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<ClientView>>, Problem> {
    app.service.tenant(&actor, &name, false).await?;
    let filter = ClientFilter { tenant: Some(name), daemon: None };
    Ok(axum::Json(app.service.clients(&actor, &filter, false, &query.page()?).await?.into()))
}

/// See with a CUDA client whether a tenant's settings hold
///
/// One CUDA process is started in the tenant's environment, as its user, for about a second; it is a client of the tenant for that
/// long. What it saw, setting by setting, is in the tenant's `status.verification` once `running_since` is `null` there. Where a
/// client is on its way already, that one is waited for.
#[utoipa::path(post, path = "/api/v1/tenants/{name}/verify", operation_id = "verify_tenant", tag = "tenants",
    params(
        ("name" = TenantName, Path, description = "The tenant"), WriteQuery,
        IfMatch, Idempotency,
    ),
    responses(
        (status = 200, description = "A dry run: what would be on its way", body = Verification),
        (status = 202, description = "The client is on its way", body = Verification),
        WriteProblems,
    ))]
pub(super) async fn verify(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let key = idempotency.of(&actor, &"verify")?;
    let location = format!("/api/v1/tenants/{name}");
    let asked = app.service.verify_tenant(&actor, name, conditions.options(query.dry_run), key).await?;
    if query.dry_run {
        return Ok(axum::Json(asked).into_response());
    }
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(asked)).into_response())
}

/// Take a lease, or record a process
///
/// `mps-manager run` asks this for itself through the unix socket and then becomes its command, which keeps the process ID; over
/// TCP it is refused. With `kind` `recorded`, an operator names a process instead: it counts and holds up a drain, and is signalled
/// only once MPS lists it. Both are refused when `max_clients` processes are there already, and while the daemon does not hold
/// the tenant's limits.
#[utoipa::path(post, path = "/api/v1/tenants/{name}/leases", operation_id = "create_lease", tag = "tenants",
    params(("name" = TenantName, Path, description = "The tenant"), WriteQuery),
    request_body = LeaseRequest,
    responses(
        (status = 200, description = "A dry run: what would be handed out", body = LeaseView),
        (status = 201, description = "The right, with user and environment", body = LeaseView), WriteProblems,
    ))]
pub(super) async fn lease(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<WriteQuery>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<LeaseRequest>,
) -> Result<(StatusCode, axum::Json<LeaseView>), Problem> {
    let lease = app.service.lease(&actor, name, request, peer.lease_caller(), query.dry_run).await?;
    let status = if query.dry_run { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(lease)))
}

/// The leases of a tenant
///
/// Those whose processes live: taken by the processes themselves, and recorded by operators.
#[utoipa::path(get, path = "/api/v1/tenants/{name}/leases", operation_id = "list_leases", tag = "tenants",
    params(("name" = TenantName, Path, description = "The tenant"), PageQuery),
    responses((status = 200, description = "Its leases by process ID", body = List<HeldLease>), ReadProblems))]
pub(super) async fn leases(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<HeldLease>>, Problem> {
    Ok(axum::Json(app.service.leases(&actor, &name, &query.page()?).await?.into()))
}

/// Revoke a lease
///
/// The process is left as it is. It no longer counts for the tenant unless MPS lists it as a client, and neither a drain nor the
/// deletion of the tenant waits for it. A recorded one is revoked by an operator only.
#[utoipa::path(delete, path = "/api/v1/tenants/{name}/leases/{id}", operation_id = "revoke_lease", tag = "tenants",
    params(
        ("name" = TenantName, Path, description = "The tenant"),
        ("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`"), WriteQuery,
    ),
    responses((status = 204, description = "Revoked, or a dry run"), WriteProblems))]
pub(super) async fn revoke_lease(
    State(app): State<AppState>,
    actor: Actor,
    Path((name, id)): Path<(TenantName, ClientId)>,
    Query(query): Query<WriteQuery>,
) -> Result<StatusCode, Problem> {
    app.service.revoke_lease(&actor, name, id, query.dry_run).await?;
    Ok(StatusCode::NO_CONTENT)
}
