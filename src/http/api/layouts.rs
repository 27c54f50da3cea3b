//! Partition layouts.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::described::{IfMatch, IfNoneMatch, OperationAccepted};
use super::{List, PageQuery, WriteQuery, accepted, written};
use crate::domain::access::Actor;
use crate::domain::layout::assertion::Assertion;
use crate::domain::layout::document::Document;
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::text::{self, Format};
use crate::domain::layout::{Version, VersionRef};
use crate::domain::{DaemonName, LayoutName};
use crate::http::conditional::shown;
use crate::http::extract::{Conditions, Idempotency, Json, Path, Query, TextBody};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::http::{AppState, accept};
use crate::service::layouts::{ApplyRequest, LayoutRequest, LayoutTarget, LayoutText, LayoutView};
use crate::service::{ServiceError, WriteOptions};

/// All layouts
#[utoipa::path(get, path = "/api/v1/layouts", operation_id = "list_layouts", tag = "layouts", params(PageQuery),
    responses((status = 200, description = "Layouts by name, each in its newest version", body = List<LayoutView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<LayoutView>>, Problem> {
    Ok(axum::Json(app.service.layouts(&actor, &query.page()?).await?.into()))
}

/// One layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}", operation_id = "get_layout", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout")),
    responses((status = 200, description = "The layout in its newest version", body = LayoutView, headers(("ETag" = String))), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
) -> Result<Response, Problem> {
    let layout = app.service.layout(&actor, &name).await?;
    shown(i64::from(layout.newest.version), &layout)
}

/// Write a layout
///
/// What differs from the newest version becomes a new one; versions are never changed. No daemon is touched: apply it.
#[utoipa::path(put, path = "/api/v1/layouts/{name}", operation_id = "put_layout", tag = "layouts",
    params(
        ("name" = LayoutName, Path, description = "The layout"), WriteQuery,
        IfMatch, IfNoneMatch,
    ),
    request_body = LayoutRequest,
    responses(
        (status = 200, description = "A new version, or the newest where nothing differs; or a dry run", body = LayoutView, headers(("ETag" = String))),
        (status = 201, description = "Created", body = LayoutView, headers(("ETag" = String))),
        WriteProblems,
    ))]
pub(super) async fn put(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    Json(request): Json<LayoutRequest>,
) -> Result<Response, Problem> {
    let options = conditions.options(query.dry_run);
    let done = app.service.put_layout(&actor, name, request, options).await?;
    Ok(written(&done, i64::from(done.value.newest.version), query.dry_run))
}

/// Forget a layout
#[utoipa::path(delete, path = "/api/v1/layouts/{name}", operation_id = "delete_layout", tag = "layouts",
    params(
        ("name" = LayoutName, Path, description = "The layout"), WriteQuery,
        IfMatch,
    ),
    responses((status = 204, description = "Forgotten with all its versions, or a dry run"), WriteProblems))]
pub(super) async fn delete(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
) -> Result<StatusCode, Problem> {
    app.service.delete_layout(&actor, name, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The versions of a layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}/versions", operation_id = "list_layout_versions", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout"), PageQuery),
    responses((status = 200, description = "Versions, the newest first", body = List<Version>), ReadProblems))]
pub(super) async fn versions(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<Version>>, Problem> {
    Ok(axum::Json(app.service.layout_versions(&actor, &name, &query.page()?).await?.into()))
}

/// One version of a layout
#[utoipa::path(get, path = "/api/v1/layouts/{name}/versions/{version}", operation_id = "get_layout_version", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout"), ("version" = u32, Path, description = "The version")),
    responses((status = 200, description = "The version", body = Version), ReadProblems))]
pub(super) async fn version(
    State(app): State<AppState>,
    actor: Actor,
    Path((name, version)): Path<(LayoutName, u32)>,
) -> Result<axum::Json<Version>, Problem> {
    Ok(axum::Json(app.service.layout_version(&actor, &VersionRef { name, version }).await?))
}

/// Plan a layout
///
/// What putting it on a daemon would come to, on a look that is taken now; nothing is changed. With `Accept: text/plain`
/// like a diff.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/plan", operation_id = "plan_layout", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout")),
    request_body = LayoutTarget,
    responses(
        (status = 200, description = "The plan", content((LayoutPlan = "application/json"), (String = "text/plain"))),
        WriteProblems,
    ))]
pub(super) async fn plan(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    headers: HeaderMap,
    Json(target): Json<LayoutTarget>,
) -> Result<Response, Problem> {
    let format = accept::negotiated(&headers, &[JSON, TEXT])?;
    let plan = app.service.plan_layout(&actor, &name, &target).await?;
    if format == TEXT {
        return Ok(plan.text().into_response());
    }
    Ok(axum::Json(plan).into_response())
}

/// Put a layout on a daemon
///
/// Partitions that stay are not touched. What the plan refuses is refused at once. Failed, the daemon has what it had
/// before, and the operation says what differs.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/apply", operation_id = "apply_layout", tag = "layouts",
    params(
        ("name" = LayoutName, Path, description = "The layout"), WriteQuery,
        Idempotency,
    ),
    request_body = ApplyRequest,
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn apply(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    Json(request): Json<ApplyRequest>,
) -> Result<Response, Problem> {
    let key = idempotency.of(&actor, &request)?;
    let options = conditions.options(query.dry_run);
    let operation = app.service.apply_layout(&actor, name, request, options, key).await?;
    Ok(accepted(&operation, query.dry_run))
}

/// Compare a daemon with a layout
///
/// The daemon's spec, the IDs on record, and a look that is taken now.
#[utoipa::path(post, path = "/api/v1/layouts/{name}/assert", operation_id = "assert_layout", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout")),
    request_body = LayoutTarget,
    responses((status = 200, description = "Whether the daemon holds it, and in what it differs", body = Assertion), WriteProblems))]
pub(super) async fn assert(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Json(target): Json<LayoutTarget>,
) -> Result<axum::Json<Assertion>, Problem> {
    Ok(axum::Json(app.service.assert_layout(&actor, &name, &target).await?))
}

/// Which daemon's.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportQuery {
    /// The daemon that holds the layout.
    daemon: DaemonName,
}

/// Export a layout
///
/// The layout with the ID that each of its steps gave on a daemon, the fingerprint of its GPUs, and a checksum: a document that
/// other hosts can replay. As JSON, or with `Accept: application/yaml` as YAML.
#[utoipa::path(get, path = "/api/v1/layouts/{name}/export", operation_id = "export_layout", tag = "layouts",
    params(("name" = LayoutName, Path, description = "The layout"), ExportQuery),
    responses(
        (status = 200, description = "The document", content((Document = "application/json"), (Document = "application/yaml"))),
        (status = 409, description = "The daemon does not hold it, or has not brought it about", body = Problem, content_type = "application/problem+json"),
        ReadProblems,
    ))]
pub(super) async fn export(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(query): Query<ExportQuery>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let mime = accept::negotiated(&headers, &[JSON, YAML])?;
    let format = if mime == YAML { Format::Yaml } else { Format::Json };
    let document = app.service.export_layout(&actor, &name, &query.daemon).await?;
    Ok(([(header::CONTENT_TYPE, mime)], text::write(&document, format)).into_response())
}

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";
const YAML: &str = "application/yaml";
const SCRIPT: &str = "text/x-shellscript";

/// What is imported, and whether to keep it.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ImportQuery {
    /// What the layout of a shell script is to be called.
    name: Option<LayoutName>,
    /// Do everything, answer as if it were done, and keep nothing.
    #[serde(default)]
    dry_run: bool,
}

/// A shell script with lines `sm_partition add GPU CHUNKS`, as text in UTF-8.
struct Script;

impl utoipa::PartialSchema for Script {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
        ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)))
            .description(Some("A shell script with lines `sm_partition add GPU CHUNKS`, as text in UTF-8."))
            .into()
    }
}

impl utoipa::ToSchema for Script {}

/// Import layouts
///
/// Every layout of a document becomes a new version where it says something new, or none does. A shell script's lines
/// `sm_partition add GPU CHUNKS` become one layout, called `name`. No daemon is touched.
#[utoipa::path(post, path = "/api/v1/layouts/import", operation_id = "import_layouts", tag = "layouts",
    params(ImportQuery),
    request_body(description = "The document, or the script", content((Document = "application/json"), (Document = "application/yaml"), (Script = "text/x-shellscript"))),
    responses(
        (status = 200, description = "The layouts in their newest version", body = List<LayoutView>),
        WriteProblems,
    ))]
pub(super) async fn import(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<ImportQuery>,
    TextBody { media_type, text }: TextBody,
) -> Result<axum::Json<List<LayoutView>>, Problem> {
    let text = match (media_type.as_str(), query.name) {
        (JSON, None) => LayoutText::Document { text, format: Format::Json },
        (YAML, None) => LayoutText::Document { text, format: Format::Yaml },
        (JSON | YAML, Some(_)) => {
            return Err(refused("/name", "a document names its layouts itself: leave name out"));
        }
        (SCRIPT, Some(name)) => LayoutText::Script { text, name },
        (SCRIPT, None) => return Err(refused("/name", "a script has no name for its layout: say ?name=")),
        _ => {
            return Err(Problem::new(
                "not-a-layout",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "No layout document",
                format!(
                    "the request's Content-Type is {media_type:?}: send {YAML}, {JSON}, or {SCRIPT} with ?name="
                ),
            ));
        }
    };
    let options = WriteOptions { dry_run: query.dry_run, ..WriteOptions::default() };
    let items = app.service.import_layouts(&actor, text, options).await?;
    Ok(axum::Json(List { items, next_cursor: None }))
}

fn refused(pointer: &str, detail: &str) -> Problem {
    ServiceError::field(pointer, detail).into()
}
