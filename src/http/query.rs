//! Refuses a query if an endpoint takes none.
//!
//! It would be ignored silently: a caller that sends `dry_run=true` would do what it only meant to try.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterIn, Paths};

use super::endpoint::endpoints;
use super::problem::Problem;

/// The operations that take a query.
#[derive(Clone)]
pub(super) struct Queries(Arc<HashSet<(Method, String)>>);

impl Queries {
    pub(super) fn of(operations: &Paths) -> Self {
        let takes_one = |operation: &Operation| {
            let parameters = operation.parameters.iter().flatten();
            parameters.into_iter().any(|parameter| match parameter {
                RefOr::T(parameter) => matches!(parameter.parameter_in, ParameterIn::Query),
                RefOr::Ref(_) => false,
            })
        };
        let taking = endpoints(operations).filter(|endpoint| takes_one(endpoint.operation));
        Self(Arc::new(taking.map(|endpoint| (endpoint.method, endpoint.route.to_owned())).collect()))
    }

    fn takes_one(&self, method: &Method, route: &str) -> bool {
        let method = if method == Method::HEAD { Method::GET } else { method.clone() };
        self.0.contains(&(method, route.to_owned()))
    }
}

/// Refuses a query if none is accepted.
pub(super) fn refused(queries: &Queries, request: &Request) -> Option<Response> {
    let query = request.uri().query().unwrap_or_default();
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    if query.is_empty() || route.is_none_or(|route| queries.takes_one(request.method(), route)) {
        return None;
    }
    let shown: String = query.chars().take(80).collect();
    let problem = Problem::new(
        "invalid-request",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid request",
        format!("this request takes no query, but has {shown:?}; nothing was done (dry_run included)"),
    );
    Some(problem.into_response())
}
