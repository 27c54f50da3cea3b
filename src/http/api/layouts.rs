//! Partition layouts.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse as _;

use super::described::{ConflictOnRead, IfMatch, IfNoneMatch, NotAcceptable, OperationAccepted};
use super::{List, PageQuery, WriteQuery, accepted, written};
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::Document;
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::text::{self, LayoutFormat};
use crate::domain::layout::{Version, VersionRef};
use crate::domain::{DaemonName, LayoutName};
use crate::http::accept;
use crate::http::conditional::shown;
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, Conditions, Idempotency, Json, Path, Query, TextBody};
use crate::http::problem::{Answer, Problem, ProblemKind, Reply};
use crate::service::layouts::{ApplyRequest, LayoutRequest, LayoutTarget, LayoutView};

/// List layouts
#[utoipa::path(get, path = "/api/v1/layouts", operation_id = "list_layouts", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))), params(PageQuery),
    responses((status = 200, description = "Layouts in their newest version, ordered by name.", body = List<LayoutView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<PageQuery>,
) -> Answer<List<LayoutView>> {
    Ok(axum::Json(app.service.layouts(&ctx, &query.page()?).await?.into()))
}

/// Get a layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}", operation_id = "get_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = LayoutName, Path, description = "The name of the layout.")),
    responses((status = 200, description = "The layout in its newest version.", body = LayoutView, headers(("ETag" = String)))))]
pub(super) async fn get(Call { app, ctx }: Call, Path(name): Path<LayoutName>) -> Reply {
    let layout = app.service.layout(&ctx, &name).await?;
    shown(i64::from(layout.newest.version), &layout)
}

/// Create or change a layout
///
/// A layout that differs from the newest version becomes a new version; existing versions never change. No daemon changes before the
/// layout is applied.
#[utoipa::path(put, path = "/api/v1/layouts/{name}", operation_id = "put_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(
        ("name" = LayoutName, Path, description = "The name of the layout."), WriteQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = LayoutRequest,
    responses(
        (status = 200, description = "The new version, or the newest one if nothing differs; or a dry run.", body = LayoutView, headers(("ETag" = String))),
        (status = 201, description = "Created.", body = LayoutView, headers(("ETag" = String)))
    ))]
pub(super) async fn put(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(request): Json<LayoutRequest>,
) -> Reply {
    let options = conditions.options(query.dry_run);
    let done = app.service.put_layout(&ctx, name, request, options).await?;
    Ok(written(&done, i64::from(done.value.newest.version), query.dry_run))
}

/// Delete a layout
#[utoipa::path(delete, path = "/api/v1/layouts/{name}", operation_id = "delete_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(
        ("name" = LayoutName, Path, description = "The name of the layout."), WriteQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Deleted with all its versions, or a dry run.")))]
pub(super) async fn delete(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
) -> Result<StatusCode, Problem> {
    app.service.delete_layout(&ctx, name, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// List the versions of a layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}/versions", operation_id = "list_layout_versions", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = LayoutName, Path, description = "The name of the layout."), PageQuery),
    responses((status = 200, description = "Versions, the newest first.", body = List<Version>)))]
pub(super) async fn versions(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(query): Query<PageQuery>,
) -> Answer<List<Version>> {
    Ok(axum::Json(app.service.layout_versions(&ctx, &name, &query.page()?).await?.into()))
}

/// Get a version of a layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}/versions/{version}", operation_id = "get_layout_version", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = LayoutName, Path, description = "The name of the layout."), ("version" = u32, Path, description = "The number of the version.")),
    responses((status = 200, description = "The version.", body = Version)))]
pub(super) async fn version(
    Call { app, ctx }: Call,
    Path((name, version)): Path<(LayoutName, u32)>,
) -> Answer<Version> {
    Ok(axum::Json(app.service.layout_version(&ctx, &VersionRef { name, version }).await?))
}

/// Plan a layout
///
/// Shows what applying the layout to a daemon would do, based on a poll that begins now. Nothing is changed. `Accept: text/plain` returns
/// it as a diff.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/plan", operation_id = "plan_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View)), ("x-idempotency-key" = json!(KeyPolicy::NoEffect))),
    params(("name" = LayoutName, Path, description = "The name of the layout.")),
    request_body = LayoutTarget,
    responses(
        (status = 200, description = "The plan.", content((LayoutPlan = "application/json"), (String = "text/plain"))),
        NotAcceptable,
    ))]
pub(super) async fn plan(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    headers: HeaderMap,
    Json(target): Json<LayoutTarget>,
) -> Reply {
    let format = accept::negotiated(&headers, &[JSON, TEXT])?;
    let plan = app.service.plan_layout(&ctx, &name, &target, Duration::ZERO).await?;
    if format == TEXT {
        return Ok(plan.text().into_response());
    }
    Ok(axum::Json(plan).into_response())
}

/// Apply a layout to a daemon
///
/// Partitions that stay are left alone. What the plan refuses is refused at once. If the operation fails, the daemon gets its previous
/// partitions back, and the operation says what differed.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/apply", operation_id = "apply_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::Operate))),
    params(
        ("name" = LayoutName, Path, description = "The name of the layout."), WriteQuery,
        Idempotency,
    ),
    request_body = ApplyRequest,
    responses(OperationAccepted))]
pub(super) async fn apply(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    idempotency: Idempotency,
    Json(request): Json<ApplyRequest>,
) -> Reply {
    let ctx = idempotency.add_to(ctx, &request)?;
    let operation = app.service.apply_layout(&ctx, name, request, query.options()).await?;
    Ok(accepted(&operation, query.dry_run))
}

/// Compare a daemon with a layout
///
/// Compares the layout with the daemon's spec, the recorded partition IDs, and a poll that begins now.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/assert", operation_id = "assert_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View)), ("x-idempotency-key" = json!(KeyPolicy::NoEffect))),
    params(("name" = LayoutName, Path, description = "The name of the layout.")),
    request_body = LayoutTarget,
    responses((status = 200, description = "Whether the daemon has this layout, and what differs.", body = Assertion)))]
pub(super) async fn assert(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Json(target): Json<LayoutTarget>,
) -> Answer<Assertion> {
    Ok(axum::Json(app.service.assert_layout(&ctx, &name, &target).await?))
}

/// The daemon of an export.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// The daemon that has the layout.
    daemon: DaemonName,
}

/// Export a layout
///
/// A document that other hosts can replay: the layout with the ID that each step gave on a daemon, the hardware fingerprint of its GPUs,
/// and a checksum. JSON by default, YAML with `Accept: application/yaml`. 409 where the daemon does not have the layout.
#[utoipa::path(get, path = "/api/v1/layouts/{name}/export", operation_id = "export_layout", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = LayoutName, Path, description = "The name of the layout."), ExportQuery),
    responses(
        (status = 200, description = "The document.", content((Document = "application/json"), (Document = "application/yaml"))),
        ConflictOnRead, NotAcceptable,
    ))]
pub(super) async fn export(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(query): Query<ExportQuery>,
    headers: HeaderMap,
) -> Reply {
    let mime = accept::negotiated(&headers, &[JSON, YAML])?;
    let format = if mime == YAML { LayoutFormat::Yaml } else { LayoutFormat::Json };
    let document = app.service.export_layout(&ctx, &name, &query.daemon).await?;
    Ok(([(header::CONTENT_TYPE, mime)], text::write(&document, format)).into_response())
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const YAML: &str = "application/yaml";

/// Import layouts
///
/// Every layout of a document becomes a new version where it says something new, or none does. No daemon is touched.
#[utoipa::path(post, path = "/api/v1/layouts/import", operation_id = "import_layouts", tag = "layouts",
    extensions(("x-right" = json!(RequiredRight::Operate)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(WriteQuery),
    request_body(description = "The document", content((Document = "application/json"), (Document = "application/yaml"))),
    responses(
        (status = 200, description = "The layouts in their newest version.", body = List<LayoutView>)
    ))]
pub(super) async fn import(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    TextBody { media_type, text }: TextBody,
) -> Answer<List<LayoutView>> {
    let format = match media_type.as_str() {
        JSON => LayoutFormat::Json,
        YAML => LayoutFormat::Yaml,
        _ => {
            return Err(Problem::new(
                ProblemKind::NotADocument,
                format!("the request's Content-Type is {media_type:?}: send {YAML} or {JSON}"),
            ));
        }
    };
    let items = app.service.import_layouts(&ctx, text, format, query.options()).await?;
    Ok(axum::Json(List { items, next_cursor: None }))
}
