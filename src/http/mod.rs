//! The API and the pages over HTTP: a thin layer, where every request is one call to [`crate::service`].

mod accept;
mod acting;
pub mod api;
mod audit;
mod auth;
pub mod authenticator;
pub mod bounds;
mod conditional;
mod docs;
pub mod endpoint;
mod extract;
mod form_targets;
mod guard;
mod inputs;
mod layers;
mod log_in;
mod memo;
mod pages;
pub mod peer;
pub mod problem;
mod repeats;
mod rights;
pub mod server;
mod state;
pub mod tls;

use std::time::Duration;

use axum::{Router, middleware};
use tower_http::csrf::CsrfLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::RequestBodyDeadlineLayer;

pub use docs::{DOCUMENT, DOCUMENT_3_0};
pub use memo::ReadMemo;
pub use state::{AppParts, AppState};

use repeats::Repeats;

use crate::http::problem::{Problem, ProblemKind};

/// The whole router: the API, its document, the pages, and the probes.
///
/// A router's layer is cloned with everything below it for each request, so requests pass through a few functions
/// ([`layers`]) instead of many layers.
pub fn router(state: AppState) -> Router {
    let api::Routes { authenticated, open, probes } = api::routes();
    let largest_body = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let longest_body = Duration::from_secs(state.limits.body_timeout_s.into());
    let (pages, targets) = pages::router(&state);
    let of_api = layers::ApiState { app: state.clone(), repeats: Repeats::default() };
    let api = authenticated.layer(middleware::from_fn_with_state(of_api.clone(), layers::authenticated));
    let open = open.layer(middleware::from_fn_with_state(of_api, layers::open));
    [api, open, pages, probes, docs::router()]
        .into_iter()
        .fold(Router::new(), Router::merge)
        .fallback(problem::no_route)
        .method_not_allowed_fallback(no_method)
        .with_state(state.clone())
        .layer((
            middleware::from_fn_with_state((state, targets), layers::every_request),
            RequestBodyLimitLayer::new(largest_body),
            RequestBodyDeadlineLayer::new(longest_body),
            CsrfLayer::new().with_rejection_response(guard::cross_site),
        ))
}

async fn no_method(method: axum::http::Method) -> Problem {
    Problem::new(
        ProblemKind::MethodNotAllowed,
        format!("this path does not take {method}: the Allow header lists what it takes"),
    )
}
