//! Pages for people: rendered here, complete without script, and live with it.
//!
//! A page does what the API does: it calls the same use cases as the logged-in user, and shows the results. Every page needs
//! a session ([`session_guard`]); refusals are pages too ([`failure`]). Nothing is loaded from elsewhere, and pages have no
//! inline script or style.

mod assets;
mod audit;
mod chart;
mod clients;
mod daemons;
mod events;
mod failure;
mod faults;
mod format;
mod forms;
mod frame;
mod gpus;
mod layouts;
mod lists;
mod live;
mod login;
mod operations;
mod overview;
mod session_guard;
mod settings;
mod sm_map;
mod spec_form;
mod tenants;
mod tokens;

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Router, middleware};
use tower_http::compression::CompressionLayer;

pub(super) use failure::{reader, shown};

use super::AppState;
use super::problem::{Kind, Problem};
use crate::domain::printable::with_symbols;
use crate::service::ServiceError;

/// What a page may load, and where its forms may be sent: only this server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The pages.
pub(super) fn router(state: &AppState) -> Router<AppState> {
    let open = Router::new()
        .route("/login", get(login::show).post(login::log_in))
        .route("/logout", post(login::log_out))
        .merge(assets::router());
    let pages = Router::new()
        .route("/", get(overview::show))
        .route("/live", get(live::follow))
        .merge(gpus::router())
        .merge(daemons::router())
        .merge(tenants::router())
        .merge(clients::router())
        .merge(layouts::router())
        .merge(operations::router())
        .merge(events::router())
        .merge(faults::router())
        .merge(audit::router())
        .merge(tokens::router())
        .merge(settings::router());
    let pages = pages.layer(middleware::from_fn_with_state(state.clone(), session_guard::require));
    open.merge(pages).layer(CompressionLayer::new())
}

/// A page with status 200.
fn rendered(template: &impl Template) -> Response {
    page(StatusCode::OK, template)
}

/// A form shown again with its errors: it has the status of the problem, and is recorded as refused.
fn refused_with(template: &impl Template, problem: Problem) -> Response {
    let (refused, _) = problem.into_response().into_parts();
    let mut shown = page(refused.status, template);
    shown.extensions_mut().extend(refused.extensions);
    shown
}

/// A list, with the status of its error.
fn listed(template: &impl Template, problem: Option<Problem>) -> Response {
    match problem {
        Some(problem) => refused_with(template, problem),
        None => rendered(template),
    }
}

fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => {
            // Names and command lines of others may contain anything.
            let text = with_symbols(&text).into_owned();
            let mut response = (status, Html(text)).into_response();
            let policy = HeaderValue::from_static(POLICY);
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            // A form shown again is a refusal, and recorded like the API's.
            if let Some(kind) = kind_of(status) {
                response.extensions_mut().insert(Kind(format!("urn:mps-manager:problem:{kind}")));
            }
            response
        }
        Err(error) => Problem::from(ServiceError::Internal(error.to_string())).into_response(),
    }
}

/// The usual problem type of a status, if no problem gives one.
fn kind_of(status: StatusCode) -> Option<&'static str> {
    match status {
        StatusCode::FORBIDDEN => Some("forbidden"),
        StatusCode::NOT_FOUND => Some("not-found"),
        StatusCode::CONFLICT => Some("conflict"),
        StatusCode::PRECONDITION_FAILED => Some("precondition-failed"),
        StatusCode::UNPROCESSABLE_ENTITY => Some("invalid-request"),
        _ => None,
    }
}
