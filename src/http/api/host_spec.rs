//! The host as one file: exported, compared, and applied.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use super::accepted_as;
use super::described::{IfMatch, NotAcceptable};
use crate::domain::host_file::{HostChange, HostFile, text};
use crate::domain::layout::text::LayoutFormat;
use crate::domain::operation::Operation;
use crate::http::accept;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Conditions, Query, TextBody};
use crate::http::problem::{Problem, ProblemKind, Reply};
use crate::service::FieldError;
use crate::service::host_file::{AppliedHostFile, HostFileOptions, HostFileView, refused_file};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

/// Changes that a host file makes.
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostFileDiff {
    /// The changes, in the order in which they are made; none where the host is what the file says.
    pub changes: Vec<HostChange>,
    /// Possible mistakes in the file, each with its place; they do not prevent it from being applied.
    #[serde(default)]
    pub warnings: Vec<FieldError>,
    /// The operation that makes them; `null` for a dry run, and where there are none.
    pub operation: Option<Operation>,
}

/// Options for applying a host file.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApplyQuery {
    /// Check the file and answer with its changes, but change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Delete daemons, tenants, layouts and bindings that the file does not have.
    #[serde(default)]
    prune: bool,
    /// Recreate partitions that stay in a layout, if their order requires it; this may change their IDs.
    #[serde(default)]
    recreate: bool,
}

/// Export the host as a file
///
/// The desired state of the host: its layouts, daemons, tenants, and which layout is on which daemon. Applied to this host, it
/// changes nothing. JSON by default, YAML with `Accept: application/yaml`.
#[utoipa::path(get, path = "/api/v1/host/spec", operation_id = "get_host_spec", tag = "host",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses(
        (status = 200, description = "The host file.", content((HostFile = "application/json"), (HostFile = "application/yaml")),
            headers(("ETag" = String))),
        NotAcceptable,
    ))]
pub(super) async fn get(Call { app, ctx }: Call, headers: HeaderMap) -> Reply {
    let mime = accept::negotiated(&headers, &[JSON, YAML])?;
    let format = if mime == YAML { LayoutFormat::Yaml } else { LayoutFormat::Json };
    let HostFileView { exported, tag } = app.service.host_spec(&ctx).await?;
    let body = text::write(&exported, format);
    Ok(tagged(&tag, ([(header::CONTENT_TYPE, mime)], body).into_response()))
}

/// Apply a host file
///
/// Makes the host what the file says, as one operation. A part that is impossible refuses the whole. The checks come in stages: the text,
/// the file in itself, its objects on this host, clients and partitions, and the write with admission. `errors` lists every fault of the
/// first stage that finds one, by JSON pointer. What the file does not have stays, unless `prune` is given. A dry run is refused for the
/// same reasons, and answers with the changes.
#[utoipa::path(put, path = "/api/v1/host/spec", operation_id = "apply_host_spec", tag = "host",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(ApplyQuery, IfMatch),
    request_body(description = "The host file", content((HostFile = "application/json"), (HostFile = "application/yaml"))),
    responses(
        (status = 200, description = "A dry run, or nothing to change: the changes.", body = HostFileDiff, headers(("ETag" = String))),
        (status = 202, description = "The changes, with the operation that makes them; read it until it has ended.", body = HostFileDiff)
    ))]
pub(super) async fn put(
    Call { app, ctx }: Call,
    Query(ApplyQuery { dry_run, prune, recreate }): Query<ApplyQuery>,
    conditions: Conditions,
    TextBody { media_type, text }: TextBody,
) -> Reply {
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
    let file = text::read(&text, format).map_err(refused_file)?;
    let options = conditions.options(dry_run);
    let file_options = HostFileOptions { prune, recreate };
    let AppliedHostFile { changes, warnings, operation, tag } =
        app.service.put_host_spec(&ctx, file, file_options, options).await?;
    let diff = HostFileDiff { changes, warnings, operation };
    match &diff.operation {
        Some(operation) => Ok(accepted_as(operation, &diff, false)),
        None => Ok(tagged(&tag, axum::Json(diff).into_response())),
    }
}

fn tagged(tag: &str, mut response: Response) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}
