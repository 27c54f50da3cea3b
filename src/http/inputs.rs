//! Refuses a query, or a condition of a write, if an endpoint takes none.
//!
//! Otherwise it would be ignored silently: a caller that sends `dry_run=true` would make the change that it only meant to rehearse, and
//! one that sends `If-Match` would change a version that it has not read.

use axum::extract::Request;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};

use super::endpoint::Endpoint;
use super::problem::{Problem, ProblemKind};

/// Refuses a query or a condition that the endpoint does not take.
pub(super) fn refused(request: &Request) -> Option<Response> {
    // Nothing beside the API reads conditions.
    let endpoint = Endpoint::of(request)?;
    let query = request.uri().query().filter(|query| !query.is_empty() && !endpoint.takes_query);
    let detail = if let Some(query) = query {
        let short: String = query.chars().take(80).collect();
        format!("this request takes no query, but has {short:?}; nothing was done (dry_run included)")
    } else if request.method().is_safe() {
        return None;
    } else {
        let conditions = [
            (header::IF_MATCH, "If-Match", endpoint.takes_if_match),
            (header::IF_NONE_MATCH, "If-None-Match", endpoint.takes_if_none_match),
        ];
        let is_ignored =
            |(header, _, is_taken): &(_, _, bool)| !is_taken && request.headers().contains_key(header);
        let (_, name, _) = conditions.into_iter().find(is_ignored)?;
        format!(
            "this request takes no {name}, whose condition would not be checked; nothing was done: repeat it without"
        )
    };
    let problem = Problem::new(ProblemKind::InvalidRequest, detail);
    Some(problem.into_response())
}
