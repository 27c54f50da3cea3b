//! Refuses a query, or a condition of a write, if an endpoint takes none.
//!
//! Otherwise it would be ignored silently: a caller that sends `dry_run=true` would make the change that it only meant to rehearse, and
//! one that sends `If-Match` would change a version that it has not read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::RefOr;
use utoipa::openapi::path::{Operation, ParameterIn, Paths};

use super::endpoint::endpoints;
use super::problem::Problem;

/// The inputs that each endpoint takes beside its body, by method and route.
#[derive(Clone)]
pub(super) struct AcceptedInputs(Arc<HashMap<(Method, String), HashSet<Input>>>);

/// An input that would be ignored where it is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Input {
    Query,
    Header(HeaderName),
}

/// The headers under whose condition something is written.
const CONDITIONS: [HeaderName; 2] = [header::IF_MATCH, header::IF_NONE_MATCH];

impl AcceptedInputs {
    pub(super) fn of(operations: &Paths) -> Self {
        let inputs = |operation: &Operation| {
            let parameters = operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
                RefOr::T(parameter) => Some(parameter),
                RefOr::Ref(_) => None,
            });
            let inputs = parameters.filter_map(|parameter| match parameter.parameter_in {
                ParameterIn::Query => Some(Input::Query),
                ParameterIn::Header => parameter.name.parse().ok().map(Input::Header),
                _ => None,
            });
            inputs.collect()
        };
        let of_each = endpoints(operations).map(|endpoint| {
            let inputs = inputs(endpoint.operation);
            ((endpoint.method, endpoint.route.to_owned()), inputs)
        });
        Self(Arc::new(of_each.collect()))
    }

    fn accepts(&self, method: &Method, route: &str, input: &Input) -> bool {
        let method = if method == Method::HEAD { Method::GET } else { method.clone() };
        self.0.get(&(method, route.to_owned())).is_some_and(|inputs| inputs.contains(input))
    }
}

/// Refuses a query or a condition that the endpoint does not take.
pub(super) fn refused(accepted: &AcceptedInputs, request: &Request) -> Option<Response> {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str)?;
    let is_ignored = |input: &Input| !accepted.accepts(request.method(), route, input);
    let query = request.uri().query().filter(|query| !query.is_empty() && is_ignored(&Input::Query));
    let detail = if let Some(query) = query {
        let shown: String = query.chars().take(80).collect();
        format!("this request takes no query, but has {shown:?}; nothing was done (dry_run included)")
    } else if request.method().is_safe() {
        return None;
    } else {
        let has = |name: &HeaderName| request.headers().contains_key(name);
        let ignored =
            CONDITIONS.into_iter().find(|name| has(name) && is_ignored(&Input::Header(name.clone())))?;
        let name = if ignored == header::IF_MATCH { "If-Match" } else { "If-None-Match" };
        format!(
            "this request takes no {name}, whose condition would not be checked; nothing was done: repeat it without"
        )
    };
    let problem =
        Problem::new("invalid-request", StatusCode::UNPROCESSABLE_ENTITY, "Invalid request", detail);
    Some(problem.into_response())
}
