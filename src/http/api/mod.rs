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
mod parameters;
mod partitions;
pub mod probes;
mod replays;
mod responses;
pub mod sessions;
mod tenants;
mod tokens;

pub(super) use parameters::{checked_grace, default_grace};
pub use responses::List;

use axum::Router;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use parameters::{FreshQuery, GraceQuery, PageQuery, WriteQuery};
use responses::{accepted, accepted_as, written};

use super::AppState;
use super::problem::Problem;
use crate::domain::token::TokenId;
use crate::domain::{DaemonName, LayoutName, TenantName};

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
