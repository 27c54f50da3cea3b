//! The API over HTTP: thin, everything it does is one call to [`crate::service`].

pub mod api;
pub mod auth;
mod extract;
mod guard;
mod pages;
pub mod problem;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse as _, Response};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::csrf::CsrfLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutLayer};
use tower_http::trace::TraceLayer;

use crate::http::auth::Authenticator;
use crate::http::problem::Problem;
use crate::service::{Service, ServiceError};

/// Largest request body, in bytes.
const MAX_BODY: usize = 1 << 20;
/// Longest pause of a sender in the middle of a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for one request; actions that take longer are operations.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// What handlers work with.
#[derive(Clone)]
pub struct AppState {
    /// The use cases.
    pub service: Service,
    /// Who may call.
    pub auth: Arc<Authenticator>,
}

/// The whole router: the API, its document, and the probes.
pub fn router(state: AppState) -> Router {
    let (api, open, document) = api::router();
    // Written once: the document does not change while the server runs.
    let document = bytes_of(&document);
    let authenticated = api.layer(middleware::from_fn_with_state(state.clone(), auth::require));
    Router::new()
        .merge(authenticated)
        .merge(open)
        .merge(pages::router())
        .merge(api::probes::router())
        .route("/openapi.json", axum::routing::get(move || std::future::ready(document.clone())))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(state.clone())
        .layer(CsrfLayer::new().with_rejection_response(guard::cross_site))
        .layer(middleware::from_fn_with_state(state, guard::host))
        .layer(CatchPanicLayer::custom(|_| {
            Problem::from(ServiceError::Internal("a request handler failed; the log has the details".into()))
                .into_response()
        }))
        .layer(RequestBodyLimitLayer::new(MAX_BODY))
        .layer(RequestBodyTimeoutLayer::new(BODY_TIMEOUT))
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, REQUEST_TIMEOUT))
        // Outside of the layers whose words it replaces.
        .layer(middleware::map_response(own_words))
        .layer(middleware::map_response(guard::headers))
        // A 503 of a probe is an answer and no failure; what fails in here is logged where it fails.
        .layer(TraceLayer::new_for_http().make_span_with(span).on_failure(()))
}

/// What log lines of a request begin with: not its query, which may hold a secret.
fn span(request: &Request) -> tracing::Span {
    tracing::debug_span!("request", method = %request.method(), path = request.uri().path())
}

fn bytes_of(
    document: &utoipa::openapi::OpenApi,
) -> ([(header::HeaderName, &'static str); 1], axum::body::Bytes) {
    let text = document.to_pretty_json().expect("the document holds nothing that JSON cannot");
    ([(header::CONTENT_TYPE, "application/json")], text.into())
}

async fn no_route(State(_): State<AppState>, uri: axum::http::Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(
        "no-such-path",
        StatusCode::NOT_FOUND,
        "No such path",
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
async fn own_words(response: Response) -> Response {
    let plain = !response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/"));
    match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE if plain => Problem::new(
            "body-too-large",
            StatusCode::PAYLOAD_TOO_LARGE,
            "Body too large",
            format!("the request's body is over {MAX_BODY} bytes: no request here needs as much"),
        )
        .into_response(),
        StatusCode::GATEWAY_TIMEOUT if plain => {
            Problem::from(ServiceError::TimedOut(format!("the request took longer than {REQUEST_TIMEOUT:?}")))
                .into_response()
        }
        _ => response,
    }
}
