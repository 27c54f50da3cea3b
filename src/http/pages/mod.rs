//! Pages for people, rendered here and working without script.

mod login;

use askama::Template;
use axum::Router;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::{get, post};

use super::AppState;
use super::problem::Problem;
use crate::service::ServiceError;

/// What a page may load and where its forms may lead: nothing, and here.
const POLICY: &str = "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The pages.
pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/", get(login::home))
        .route("/login", get(login::show).post(login::log_in))
        .route("/logout", post(login::log_out))
}

fn page(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => {
            let mut response = (status, Html(text)).into_response();
            let policy = HeaderValue::from_static(POLICY);
            response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, policy);
            response
        }
        Err(error) => Problem::from(ServiceError::Internal(error.to_string())).into_response(),
    }
}
