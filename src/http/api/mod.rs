//! The API under /api/v1: one file per resource. A handler declares everything about its endpoint; see [`crate::http::endpoint`].

mod audit;
mod clients;
mod daemons;
mod described;
mod events;
mod foreign;
#[cfg(test)]
mod fuzz;
mod history;
mod host;
pub mod host_spec;
mod incidents;
mod layouts;
pub mod logs;
mod maintenance;
mod metrics;
mod operations;
mod parameters;
mod partitions;
mod patch;
pub mod probes;
mod replays;
mod responses;
pub mod sessions;
mod tenants;
mod tokens;

pub(super) use parameters::{checked_grace, default_grace};
pub use responses::List;

use axum::Router;
use axum::handler::Handler;
use axum::http::Method;
use axum::routing::{MethodFilter, on};
use utoipa::openapi::path::HttpMethod;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

use parameters::{
    EffectQuery, FreshQuery, GraceQuery, PageQuery, ReadQuery, WaitQuery, WriteQuery, checked_wait,
};
use responses::{accepted, accepted_as, written};

use super::AppState;
use super::endpoint::Endpoint;
use super::problem::Problem;
use crate::domain::token::TokenId;
use crate::domain::{DaemonName, LayoutName, TenantName};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mps-manager",
        description = "Owns the NVIDIA MPS control daemons of one GPU host: tenants, limits, clients. Sizes are \
                       integers of bytes, times are RFC 3339 in UTC, unknown fields are refused, and errors are \
                       problem documents (RFC 9457).",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(Problem, DaemonName, LayoutName, TenantName, TokenId)),
    modifiers(&TokenScheme),
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
        (name = "incidents", description = "What broke, and which clients lost their work"),
        (name = "events", description = "What happened, in order"),
        (name = "probes", description = "Whether the manager runs and its daemons are ready"),
    )
)]
struct ApiDocument;

struct TokenScheme;

impl Modify for TokenScheme {
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

/// Routers of the API, by the callers that they admit.
#[derive(Default)]
pub(super) struct Routes {
    /// Endpoints whose caller must be known, as by a token.
    pub(super) authenticated: Router<AppState>,
    /// Endpoints that need no token.
    pub(super) open: Router<AppState>,
    /// Endpoints that do not look at their caller at all.
    pub(super) probes: Router<AppState>,
}

/// Serves a handler under the method and the path that it declares.
fn serve<P, H, T>(router: &mut Router<AppState>, handler: H)
where
    P: utoipa::Path,
    H: Handler<T, AppState>,
    T: 'static,
{
    let path = P::path();
    let method = axum_method(P::methods().first().expect("a handler declares its method"));
    let is_checked_in = Endpoint::at(&method, &path).is_some();
    assert!(is_checked_in, "openapi/v1.json lacks {method} {path}: regenerate it (CONTRIBUTING.md)");
    let filter = MethodFilter::try_from(method).expect("axum routes it");
    *router = std::mem::take(router).route(&path, on(filter, handler));
}

fn axum_method(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Post => Method::POST,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
        _ => unreachable!("no endpoint has another method"),
    }
}

/// The one list of endpoints, which the router and the document are made of.
///
/// Only the document has the schemas. The server gives the checked-in document, so no start spends time and memory on them.
macro_rules! endpoints {
    ($($access:ident: $($module:ident::$handler:ident),+;)+) => {
        #[derive(OpenApi)]
        #[openapi(paths($($($module::$handler),+),+))]
        struct Endpoints;

        pub(super) fn routes() -> Routes {
            let mut routes = Routes::default();
            pastey::paste! {
                $($(serve::<$module::[<__path_ $handler>], _, _>(
                    &mut routes.$access,
                    $module::$handler,
                );)+)+
            }
            routes
        }
    };
}

endpoints! {
    authenticated:
    host::get,
    host_spec::get, host_spec::put,
    maintenance::get, maintenance::begin, maintenance::end,
    host::confirm,
    host::list_gpus,
    host::get_gpu,
    host::replace_gpu,
    history::of_gpu,
    daemons::list,
    daemons::get, daemons::put, daemons::patch, daemons::delete,
    daemons::start,
    daemons::stop,
    daemons::restart,
    daemons::adopt,
    daemons::release,
    foreign::list,
    foreign::get,
    foreign::adopt_lost,
    daemons::drain,
    daemons::cordon,
    daemons::uncordon,
    partitions::list,
    partitions::get,
    logs::get,
    layouts::list,
    layouts::get, layouts::put, layouts::delete,
    layouts::versions,
    layouts::version,
    layouts::plan,
    layouts::apply,
    layouts::assert,
    layouts::export,
    layouts::import,
    replays::list, replays::create,
    replays::get,
    tenants::list,
    tenants::get, tenants::put, tenants::patch, tenants::delete,
    tenants::environment,
    tenants::clients,
    tenants::leases, tenants::lease,
    tenants::revoke_lease,
    tenants::verify,
    history::of_tenant,
    tokens::whoami,
    sessions::get, sessions::end,
    sessions::list,
    sessions::end_all,
    sessions::create_login_url,
    tokens::list, tokens::create,
    tokens::get, tokens::revoke,
    clients::list,
    clients::get,
    clients::terminate,
    operations::list,
    operations::get,
    operations::cancel,
    metrics::get,
    incidents::list,
    incidents::get,
    incidents::acknowledge,
    audit::list,
    audit::head,
    events::list,
    events::stream,
    events::get;
    open:
    sessions::open;
    probes:
    probes::healthz, probes::readyz, probes::readyz_daemon;
}

/// Builds the document from the declarations of the handlers; the tests complete it and compare `openapi/` with it.
pub fn declared() -> utoipa::openapi::OpenApi {
    let mut document = ApiDocument::openapi();
    document.merge(Endpoints::openapi());
    document
}
