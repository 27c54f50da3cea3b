//! The API and the pages over HTTP: thin, everything they do is one call to [`crate::service`].

mod accept;
pub mod api;
mod audit;
pub mod auth;
pub mod bounds;
mod conditional;
mod docs;
mod document;
mod extract;
mod guard;
mod pages;
pub mod problem;
mod query;
mod repeats;
mod rights;
pub mod server;
pub mod tls;

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutLayer};
use tower_http::trace::TraceLayer;

use crate::config::Limits;
use crate::domain::audit::shown_path;
use crate::domain::token::without_secrets;
use crate::http::auth::Authenticator;
use crate::http::bounds::Rates;
use crate::http::problem::Problem;
use crate::metrics::Metrics;
use crate::service::{Service, ServiceError};

/// Longest pause of a sender in the middle of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// What handlers work with.
#[derive(Clone)]
pub struct AppState {
    /// The use cases.
    pub service: Service,
    /// Who may call.
    pub auth: Arc<Authenticator>,
    /// Cancelled when the manager stops: what would go on for ever ends then.
    pub stop: CancellationToken,
    /// How much of the server callers may take.
    pub limits: Limits,
    /// How often they may ask.
    pub rates: Arc<Rates>,
    /// What is counted.
    pub metrics: Metrics,
}

/// The whole router: the API, its document, the pages, and the probes.
pub fn router(state: AppState) -> Router {
    let (api, open, described) = api::router();
    let queries = query::Queries::of(&described);
    let largest_body = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let longest = Duration::from_secs(state.limits.request_timeout_s.into());
    let (needs, repeats) = (rights::Needs::of(&described), repeats::Repeats::of(&described));
    let api = api.layer(middleware::from_fn(conditional::reads));
    let api = api.layer(middleware::from_fn_with_state(queries.clone(), query::refused));
    let open = open.layer(middleware::from_fn_with_state(queries, query::refused));
    let api = api.layer(middleware::from_fn_with_state((state.clone(), repeats.clone()), repeats::once));
    let open = open.layer(middleware::from_fn_with_state((state.clone(), repeats), repeats::once));
    let api = api.layer(middleware::from_fn_with_state((state.clone(), needs), rights::judged));
    let api = api.layer(middleware::from_fn(guard::caller));
    let api = api.layer(middleware::from_fn_with_state(state.clone(), audit::attempts));
    let api = api.layer(middleware::from_fn_with_state(state.clone(), bounds::actor));
    let authenticated = api.layer(middleware::from_fn_with_state(state.clone(), auth::require));
    let authenticated = authenticated.layer(middleware::from_fn_with_state(state.clone(), audit::strangers));
    Router::new()
        .merge(authenticated)
        .merge(open)
        .merge(pages::router(&state))
        .merge(api::probes::router())
        .merge(docs::router())
        .route("/openapi.json", axum::routing::get(|| std::future::ready(document())))
        .route("/openapi-3.0.json", axum::routing::get(|| std::future::ready(document_3_0())))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(state.clone())
        .layer(CsrfLayer::new().with_rejection_response(guard::cross_site))
        .layer(middleware::from_fn_with_state(state.clone(), guard::host))
        .layer(middleware::from_fn(guard::named))
        .layer(CatchPanicLayer::custom(|_| {
            Problem::from(ServiceError::Internal("a request handler failed; the log has the details".into()))
                .into_response()
        }))
        .layer(RequestBodyLimitLayer::new(largest_body))
        .layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, longest))
        // Outside of the layers whose words it replaces.
        .layer(middleware::map_response_with_state(state.limits, own_words))
        .layer(middleware::from_fn_with_state(state.clone(), bounds::head))
        .layer(middleware::from_fn_with_state(state.clone(), bounds::rate))
        .layer(middleware::from_fn_with_state(state.clone(), audit::answered))
        // Whatever refused it: outside of the API a browser is told in a page.
        .layer(middleware::from_fn_with_state(state.clone(), pages::shown))
        // A refusal is an answer too.
        .layer(middleware::from_fn_with_state(state.metrics, counted))
        .layer(middleware::map_response(guard::headers))
        // A 503 of a probe is an answer and no failure; what fails in here is logged where it fails.
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
}

/// What log lines of a request begin with: neither its query nor what of its path is nothing that its route names, since
/// somebody may have put a secret there.
fn span(request: &Request) -> tracing::Span {
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str);
    let path = shown_path(route, request.uri().path());
    tracing::debug_span!("request", method = %request.method(), path = &*without_secrets(&path))
}

/// Counts a request when its answer begins.
async fn counted(State(metrics): State<Metrics>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let method = request.method().clone();
    let response = next.run(request).await;
    if let Some(problem::Limited(limit)) = response.extensions().get() {
        metrics.wire.limited(*limit);
    }
    let route = route.as_ref().map(MatchedPath::as_str);
    metrics.http.answered(route, method.as_str(), response.status().as_u16(), began.elapsed());
    response
}

/// The document as it was checked in, which a test holds to the code: so it takes no memory beside the program's own.
fn document() -> ([(header::HeaderName, &'static str); 1], Bytes) {
    ([(header::CONTENT_TYPE, "application/json")], Bytes::from_static(DOCUMENT.as_bytes()))
}

const DOCUMENT: &str = include_str!("../../openapi/v1.json");

/// The same for those who read nothing newer than `OpenAPI` 3.0, made when somebody asks for it first.
fn document_3_0() -> ([(header::HeaderName, &'static str); 1], Bytes) {
    static OLDER: LazyLock<Bytes> = LazyLock::new(|| {
        let document = serde_json::from_str(DOCUMENT).expect("a test holds that the document is JSON");
        format!("{:#}\n", api::as_openapi_3_0(&document)).into()
    });
    ([(header::CONTENT_TYPE, "application/json")], OLDER.clone())
}

async fn no_route(State(_): State<AppState>, uri: axum::http::Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(
        "no-such-path",
        StatusCode::NOT_FOUND,
        problem::NO_SUCH_PATH,
        format!("there is nothing at {path}: /openapi.json lists what there is"),
    )
}

async fn no_method(method: axum::http::Method) -> Problem {
    Problem::new(
        "method-not-allowed",
        StatusCode::METHOD_NOT_ALLOWED,
        "Method not allowed",
        format!("this path does not take {method}: the Allow header lists what it takes"),
    )
}

/// Says as a problem what a layer below would say as plain text.
async fn own_words(State(limits): State<Limits>, response: Response) -> Response {
    let plain = !response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/"));
    match response.status() {
        // Of a body whose length is said, from the layer; of one in chunks, from whoever read it.
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!(
                "the request's body is over {} bytes (limits.body_bytes): no request here needs as much",
                limits.body_bytes
            );
            let mut answer =
                Problem::new("body-too-large", StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
                    .into_response();
            // It may be on record.
            if let Some(seen_to) = response.extensions().get::<audit::SeenTo>() {
                answer.extensions_mut().insert(*seen_to);
            }
            answer
        }
        StatusCode::GATEWAY_TIMEOUT if plain => {
            let detail = format!(
                "the request took longer than {} s (limits.request_timeout_s)",
                limits.request_timeout_s
            );
            Problem::from(ServiceError::TimedOut(detail)).into_response()
        }
        _ => response,
    }
}
