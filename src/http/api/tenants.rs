//! Tenants.

use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use utoipa::IntoParams;

use super::described::{ConflictOnRead, IfMatch, IfNoneMatch, NotAcceptable};
use super::patch::{MergePatch, at_revision};
use super::{EffectQuery, List, PageQuery, ReadQuery, WriteQuery, checked_wait, written};
use crate::domain::client::ClientId;
use crate::domain::gpu::GpuRef;
use crate::domain::tenant::{LabelSelector, TenantSpec};
use crate::domain::verification::Verification;
use crate::domain::{DaemonName, TenantName, environment};
use crate::http::conditional::shown;
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, Conditions, Idempotency, Json, NoBody, Path, Query};
use crate::http::peer::Peer;
use crate::http::problem::{Answer, Problem, Reply};
use crate::http::{AppState, accept};
use crate::service::access::context::RequestContext;
use crate::service::page::Page;
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::tenants::deletion::TenantDeletion;
use crate::service::tenants::leases::{HeldLease, LeaseRequest, LeaseView};
use crate::service::tenants::{EnvironmentView, TenantFilter, TenantView};
use crate::service::{ServiceError, Written};

/// The tenants to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TenantQuery {
    /// Only those of this daemon.
    daemon: Option<DaemonName>,
    /// Only those with these labels: `KEY=VALUE`, or `KEY` for any value, several with commas between.
    #[param(
        example = "team=ml,tier",
        pattern = "^[^,=!()<> ]+(=([^,=][^,]*)?)?(,[^,=!()<> ]+(=([^,=][^,]*)?)?)*$"
    )]
    labels: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List tenants
#[utoipa::path(get, path = "/api/v1/tenants", operation_id = "list_tenants", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::OwnItems))), params(TenantQuery),
    responses((status = 200, description = "Tenants, ordered by name.", body = List<TenantView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<TenantQuery>,
) -> Answer<List<TenantView>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let labels = query.labels.as_deref().map(LabelSelector::parse).transpose();
    let labels = labels.map_err(|error| ServiceError::field("/labels", error.to_string()))?;
    let filter = TenantFilter { daemon: query.daemon, text: None, labels: labels.unwrap_or_default() };
    Ok(axum::Json(app.service.tenants(&ctx, &filter, &page).await?.into()))
}

/// Get a tenant
#[utoipa::path(get, path = "/api/v1/tenants/{name}", operation_id = "get_tenant", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::ViewTenant))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), ReadQuery),
    responses((status = 200, description = "The tenant.", body = TenantView, headers(("ETag" = String)))))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<ReadQuery>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let tenant = app.service.settled_tenant(&ctx, &name, query.fresh, wait).await?;
    shown(tenant.generation, &tenant)
}

/// Create or replace a tenant
#[utoipa::path(put, path = "/api/v1/tenants/{name}", operation_id = "put_tenant", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(
        ("name" = TenantName, Path, description = "The name of the tenant."), EffectQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = TenantSpec<GpuRef>,
    responses(
        (status = 200, description = "Replaced, or a dry run.", body = TenantView, headers(("ETag" = String))),
        (status = 201, description = "Created.", body = TenantView, headers(("ETag" = String)))
    ))]
pub(super) async fn put(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<EffectQuery>,
    conditions: Conditions,
    Json(spec): Json<TenantSpec<GpuRef>>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let done = app.service.put_tenant(&ctx, name, spec, conditions.options(query.dry_run)).await?;
    answered(&app, &ctx, done, &query, wait).await
}

/// Answers with the tenant that was written; with `wait_s`, once its settings are in force.
async fn answered(
    app: &AppState,
    ctx: &RequestContext,
    mut done: Written<TenantView>,
    query: &EffectQuery,
    wait: Duration,
) -> Reply {
    if !query.dry_run && !wait.is_zero() {
        let settled = app.service.settled_tenant(ctx, &done.value.name, false, wait).await?;
        done.value = TenantView { removed: done.value.removed, ..settled };
    }
    Ok(written(&done, done.value.generation, query.dry_run))
}

/// Change a tenant
///
/// A JSON merge patch (RFC 7396) of its `spec`: what it names is replaced, `null` gives a field its default, and the rest stays. Without
/// `If-Match` it is tried again when another write came in between.
#[utoipa::path(patch, path = "/api/v1/tenants/{name}", operation_id = "patch_tenant", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), EffectQuery, IfMatch),
    request_body(content = MergePatch, content_type = "application/merge-patch+json"),
    responses((status = 200, description = "Changed, or a dry run.", body = TenantView, headers(("ETag" = String)))))]
pub(super) async fn patch(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<EffectQuery>,
    conditions: Conditions,
    Json(patch): Json<MergePatch>,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let options = conditions.options(query.dry_run);
    loop {
        let now = app.service.tenant(&ctx, &name, false).await?;
        let (spec, at) = (patch.onto(&now.spec)?, at_revision(&options, now.generation));
        match app.service.put_tenant(&ctx, name.clone(), spec, at).await {
            Err(ServiceError::PreconditionFailed { .. }) if options.if_match.is_none() => {}
            done => return answered(&app, &ctx, done?, &query, wait).await,
        }
    }
}

/// Options to make a deletion a dry run or a drain, and for the tenant's directory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteTenantQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Delete the tenant's directory at once: no process will be started with its environment any more. By default it stays for a day,
    /// with a socket that refuses connections: without it, a shell with that environment would bypass MPS.
    #[serde(default)]
    finished: bool,
    /// Let the tenant expire now: it admits no further process, and is deleted once it has none. The answer does not wait for that. A
    /// change of its expiry takes the drain back.
    #[serde(default)]
    drain: bool,
}

/// Delete a tenant
#[utoipa::path(delete, path = "/api/v1/tenants/{name}", operation_id = "delete_tenant", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(
        ("name" = TenantName, Path, description = "The name of the tenant."), DeleteTenantQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Deleted, drained from now on, or a dry run.")))]
pub(super) async fn delete(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<DeleteTenantQuery>,
    conditions: Conditions,
) -> Result<StatusCode, Problem> {
    let options = conditions.options(query.dry_run);
    let deletion = TenantDeletion { drains: query.drain, is_finished: query.finished };
    app.service.delete_tenant(&ctx, name, deletion, options).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Get the environment of a tenant's processes
///
/// JSON by default, lines for a shell with `Accept: text/x-shellscript`. 409 while the tenant's partition is not verified, or is still
/// used by a process of another tenant.
#[utoipa::path(get, path = "/api/v1/tenants/{name}/environment", operation_id = "get_tenant_environment", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::ViewTenant))),
    params(("name" = TenantName, Path, description = "The name of the tenant.")),
    responses(
        (status = 200, description = "The variables to set and to unset.",
            content((EnvironmentView = "application/json"), (String = "text/x-shellscript"))),
        ConflictOnRead, NotAcceptable,
    ))]
pub(super) async fn environment(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    headers: HeaderMap,
) -> Reply {
    let format = accept::negotiated(&headers, &["application/json", SHELL])?;
    let view = app.service.tenant_environment(&ctx, &name).await?;
    if format == SHELL {
        let variables: Vec<(String, String)> = view.variables.into_iter().collect();
        let text = environment::as_shell(&variables);
        return Ok(([(header::CONTENT_TYPE, "text/x-shellscript; charset=utf-8")], text).into_response());
    }
    Ok(axum::Json(view).into_response())
}

const SHELL: &str = "text/x-shellscript";

/// List the clients of a tenant
#[utoipa::path(get, path = "/api/v1/tenants/{name}/clients", operation_id = "list_tenant_clients", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::ViewTenant))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), PageQuery),
    responses((status = 200, description = "Clients, ordered by process ID.", body = List<ClientView>)))]
pub(super) async fn clients(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<PageQuery>,
) -> Answer<List<ClientView>> {
    app.service.tenant(&ctx, &name, false).await?;
    let filter = ClientFilter { tenant: Some(name), daemon: None };
    Ok(axum::Json(app.service.known_clients(&ctx, &filter, false, &query.page()?).await?.into()))
}

/// Verify a tenant's settings with a CUDA client
///
/// A CUDA process runs in the tenant's environment, as its user, for about a second, and counts as a client of the tenant meanwhile. Read
/// the tenant until `running_since` in its `status.verification` is `null`, or wait for that with `wait_s`: then `last` holds what the
/// process saw of each setting. A verification that is running already is shared.
#[utoipa::path(post, path = "/api/v1/tenants/{name}/verify", operation_id = "verify_tenant", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::UseTenant))),
    params(
        ("name" = TenantName, Path, description = "The name of the tenant."), EffectQuery,
        IfMatch, Idempotency,
    ),
    responses(
        (status = 200, description = "It has ended, or a dry run: the verification as it would be.", body = Verification),
        (status = 202, description = "The verification is running.", body = Verification)
    ))]
pub(super) async fn verify(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<EffectQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Reply {
    let wait = checked_wait(&app, query.wait_s)?;
    let ctx = idempotency.add_to(ctx, &"verify")?;
    let location = format!("/api/v1/tenants/{name}");
    let options = conditions.options(query.dry_run);
    let mut verification = app.service.verify_tenant(&ctx, name.clone(), options).await?;
    if !query.dry_run && !wait.is_zero() {
        verification = app.service.settled_verification(&ctx, &name, wait).await?;
    }
    if query.dry_run || verification.running_since.is_none() {
        return Ok(axum::Json(verification).into_response());
    }
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(verification)).into_response())
}

/// Take a lease, or record a process
///
/// `mps-manager run` takes a lease for its own process through the unix socket, and then becomes its command, which keeps the process ID.
/// Over TCP this is refused. With `kind: recorded` an operator records another process instead: it counts as the tenant's and delays a
/// drain, and is signalled only once MPS lists it. Both are refused when the tenant has `max_clients` processes already, and while the
/// limits of the tenant are not in force on the daemon. A process also needs a slot of its GPUs, and with `queue` keeps its turn for one.
#[utoipa::path(post, path = "/api/v1/tenants/{name}/leases", operation_id = "create_lease", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::UseTenant)), ("x-idempotency-key" = json!(KeyPolicy::NoEffect))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), WriteQuery),
    request_body = LeaseRequest,
    responses(
        (status = 200, description = "A dry run: the lease as it would be.", body = LeaseView),
        (status = 201, description = "The lease, with the user and the environment of the process.", body = LeaseView)
    ))]
pub(super) async fn lease(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<WriteQuery>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<LeaseRequest>,
) -> Result<(StatusCode, axum::Json<LeaseView>), Problem> {
    let lease = app.service.lease(&ctx, name, request, peer.lease_caller(), query.dry_run).await?;
    let status = if query.dry_run { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, axum::Json(lease)))
}

/// List the leases of a tenant
///
/// Leases of processes that are running: those that the processes took themselves, and those that operators recorded.
#[utoipa::path(get, path = "/api/v1/tenants/{name}/leases", operation_id = "list_leases", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::ViewTenant))),
    params(("name" = TenantName, Path, description = "The name of the tenant."), PageQuery),
    responses((status = 200, description = "Leases, ordered by process ID.", body = List<HeldLease>)))]
pub(super) async fn leases(
    Call { app, ctx }: Call,
    Path(name): Path<TenantName>,
    Query(query): Query<PageQuery>,
) -> Answer<List<HeldLease>> {
    Ok(axum::Json(app.service.leases(&ctx, &name, &query.page()?).await?.into()))
}

/// Revoke a lease
///
/// The process keeps running. It no longer counts as the tenant's unless MPS lists it as a client, and neither a drain nor the deletion of
/// the tenant waits for it. Only an operator can revoke a recorded lease.
#[utoipa::path(delete, path = "/api/v1/tenants/{name}/leases/{id}", operation_id = "revoke_lease", tag = "tenants",
    extensions(("x-right" = json!(RequiredRight::UseTenant))),
    params(
        ("name" = TenantName, Path, description = "The name of the tenant."),
        ("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`."), WriteQuery,
    ),
    responses((status = 204, description = "Revoked, or a dry run.")))]
pub(super) async fn revoke_lease(
    Call { app, ctx }: Call,
    Path((name, id)): Path<(TenantName, ClientId)>,
    Query(query): Query<WriteQuery>,
) -> Result<StatusCode, Problem> {
    app.service.revoke_lease(&ctx, name, id, query.dry_run).await?;
    Ok(StatusCode::NO_CONTENT)
}
