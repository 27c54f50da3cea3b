//! The API under /api/v1: one file per resource. A handler declares everything about its endpoint; see [`crate::http::endpoint`].

mod audit;
mod clients;
mod daemons;
mod described;
mod document;
mod events;
mod foreign;
#[cfg(test)]
mod fuzz;
mod host;
pub mod layout_schema;
mod layouts;
mod maintenance;
mod metrics;
mod operations;
mod partitions;
pub mod probes;
mod replays;
pub mod sessions;
mod tenants;
mod tokens;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{IntoParams, Modify, OpenApi, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::AppState;
use super::problem::Problem;
use crate::domain::operation::Operation;
use crate::domain::token::TokenId;
use crate::domain::{DaemonName, LayoutName, TenantName};
use crate::service::page::{Page, Paged};
use crate::service::{ServiceError, Written, etag};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mps-manager",
        description = "Owns the NVIDIA MPS control daemons of one GPU host: tenants, limits, clients. Sizes are \
                       integers of bytes, times are unix milliseconds, unknown fields are refused, and errors are \
                       problem documents (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem, DaemonName, LayoutName, TenantName, TokenId)),
    modifiers(&Token),
    tags(
        (name = "host", description = "The host and its GPUs"),
        (name = "daemons", description = "Control daemons"),
        (name = "layouts", description = "How GPUs are divided into SM partitions"),
        (name = "tenants", description = "Named consumers with limits"),
        (name = "clients", description = "Processes connected to a server"),
        (name = "access", description = "Tokens, sessions and rights"),
        (name = "operations", description = "Actions that take time"),
        (name = "metrics", description = "Metrics for Prometheus"),
        (name = "audit", description = "Who did what, and with which outcome"),
        (name = "events", description = "What happened, in order"),
        (name = "probes", description = "Whether the manager runs and its daemons are ready"),
    )
)]
struct Document;

struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token, or the content of admin.token in the state directory."))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
        document.security =
            Some(vec![utoipa::openapi::security::SecurityRequirement::new("token", Vec::<String>::new())]);
    }
}

/// The routes that need a token, those that need none, and the document of all.
pub(super) fn router() -> (Router<AppState>, Router<AppState>, utoipa::openapi::OpenApi) {
    let (router, mut document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(host::get))
        .routes(routes!(maintenance::get, maintenance::begin, maintenance::end))
        .routes(routes!(host::confirm))
        .routes(routes!(host::list_gpus))
        .routes(routes!(host::get_gpu))
        .routes(routes!(host::replace_gpu))
        .routes(routes!(daemons::list))
        .routes(routes!(daemons::get, daemons::put, daemons::delete))
        .routes(routes!(daemons::start))
        .routes(routes!(daemons::stop))
        .routes(routes!(daemons::restart))
        .routes(routes!(daemons::adopt))
        .routes(routes!(daemons::release))
        .routes(routes!(foreign::list))
        .routes(routes!(foreign::get))
        .routes(routes!(daemons::drain))
        .routes(routes!(daemons::cordon))
        .routes(routes!(daemons::uncordon))
        .routes(routes!(partitions::list))
        .routes(routes!(partitions::get))
        .routes(routes!(layouts::list))
        .routes(routes!(layouts::get, layouts::put, layouts::delete))
        .routes(routes!(layouts::versions))
        .routes(routes!(layouts::version))
        .routes(routes!(layouts::plan))
        .routes(routes!(layouts::apply))
        .routes(routes!(layouts::assert))
        .routes(routes!(layouts::export))
        .routes(routes!(layouts::import))
        .routes(routes!(replays::list, replays::create))
        .routes(routes!(replays::get))
        .routes(routes!(tenants::list))
        .routes(routes!(tenants::get, tenants::put, tenants::delete))
        .routes(routes!(tenants::environment))
        .routes(routes!(tenants::clients))
        .routes(routes!(tenants::leases, tenants::lease))
        .routes(routes!(tenants::revoke_lease))
        .routes(routes!(tenants::verify))
        .routes(routes!(tokens::whoami))
        .routes(routes!(sessions::get, sessions::end))
        .routes(routes!(sessions::end_all))
        .routes(routes!(sessions::create_login_url))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::get, tokens::revoke))
        .routes(routes!(clients::list))
        .routes(routes!(clients::get))
        .routes(routes!(clients::terminate))
        .routes(routes!(operations::list))
        .routes(routes!(operations::get))
        .routes(routes!(operations::cancel))
        .routes(routes!(metrics::get))
        .routes(routes!(audit::list))
        .routes(routes!(audit::head))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(events::get))
        .split_for_parts();
    let (open, opening) = OpenApiRouter::new().routes(routes!(sessions::open)).split_for_parts();
    document.merge(opening);
    document.merge(probes::Document::openapi());
    (router, open, document)
}

/// The OpenAPI document, as `/openapi.json` gives it.
pub fn document() -> serde_json::Value {
    document::complete(&router().2)
}

/// The document in the form of `OpenAPI` 3.0, as `/openapi-3.0.json` gives it.
pub fn as_openapi_3_0(document: &serde_json::Value) -> serde_json::Value {
    document::openapi_3_0::openapi_3_0(document)
}

/// One page of a list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct List<T> {
    /// The items.
    pub items: Vec<T>,
    /// The `cursor` of the next page; `null` on the last one.
    pub next_cursor: Option<String>,
}

impl<T> From<Paged<T>> for List<T> {
    fn from(page: Paged<T>) -> Self {
        Self { items: page.items, next_cursor: page.next_cursor }
    }
}

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct PageQuery {
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl PageQuery {
    fn page(&self) -> Result<Page, ServiceError> {
        Page::parse(self.cursor.as_deref(), self.limit)
    }
}

/// Whether to poll now.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FreshQuery {
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    fresh: bool,
}

/// Whether a write is a dry run.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WriteQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Whether a stop is a dry run, and how long clients have.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GraceQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Seconds for clients to end by themselves before their server is stopped; 10 by default.
    #[serde(default = "default_grace")]
    #[param(maximum = 3600)]
    grace_s: u32,
}

pub(super) fn default_grace() -> u32 {
    10
}

pub(super) fn checked_grace(grace_s: u32) -> Result<u32, ServiceError> {
    if grace_s <= 3600 {
        return Ok(grace_s);
    }
    Err(ServiceError::field("/grace_s", format!("grace_s is {grace_s}: give at most 3600 seconds")))
}

/// A resource that was written, with its entity tag.
fn tagged<T: Serialize>(status: StatusCode, revision: i64, value: &T) -> Response {
    let mut response = (status, axum::Json(value)).into_response();
    if let Ok(tag) = HeaderValue::from_str(&etag(revision)) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// A resource that was written, with its entity tag; without one after a dry run, since the next write gets that tag.
fn written<T: Serialize>(written: &Written<T>, revision: i64, dry_run: bool) -> Response {
    if dry_run {
        return (StatusCode::OK, axum::Json(&written.value)).into_response();
    }
    let status = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    tagged(status, revision, &written.value)
}

/// An operation that was accepted, and where it can be followed.
fn accepted(operation: &Operation, dry_run: bool) -> Response {
    accepted_as(operation, operation, dry_run)
}

/// The same with another body.
fn accepted_as(operation: &Operation, body: &impl Serialize, dry_run: bool) -> Response {
    if dry_run {
        return (StatusCode::OK, axum::Json(body)).into_response();
    }
    let location = format!("/api/v1/operations/{}", operation.id);
    (StatusCode::ACCEPTED, [(header::LOCATION, location)], axum::Json(body)).into_response()
}
