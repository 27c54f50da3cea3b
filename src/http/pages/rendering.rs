//! A template as a response.

use askama::Template;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse as _, Redirect, Response};
use uuid::Uuid;

use crate::domain::printable::with_symbols;
use crate::http::problem::{Beside, Kind, Problem};
use crate::service::ServiceError;

/// Content security policy of pages: they load from this server only, and send their forms only to it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A page with status 200.
pub(super) fn rendered(template: &impl Template) -> Response {
    page(StatusCode::OK, template)
}

/// A page, with the status of what is wrong in its form, if anything is.
pub(super) fn with_status(template: &impl Template, problem: Option<Problem>) -> Response {
    let Some(problem) = problem else { return rendered(template) };
    let (mut refused, _) = problem.into_response().into_parts();
    // The page shows already everything that its reader may see.
    refused.extensions.remove::<Beside>();
    let mut response = page(refused.status, template);
    response.extensions_mut().extend(refused.extensions);
    response
}

/// Redirects to the page of an operation.
pub(super) fn followed(operation: Uuid) -> Response {
    Redirect::to(&format!("/operations/{operation}")).into_response()
}

pub(super) fn page(status: StatusCode, template: &impl Template) -> Response {
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
