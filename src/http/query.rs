//! Queries of requests that take none.
//!
//! What a caller writes there would be ignored in silence, and the caller believe otherwise: above all of `dry_run=true`, with which
//! it would do what it only wanted to try.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::document::operations;
use super::problem::Problem;

/// The operations that take a query, as the document has them.
#[derive(Clone)]
pub(super) struct Queries(Arc<HashSet<(Method, String)>>);

impl Queries {
    pub(super) fn of(document: &OpenApi) -> Self {
        let takes_one = |operation: &Operation| {
            let parameters = operation.parameters.iter().flatten();
            parameters.into_iter().any(|parameter| match parameter {
                RefOr::T(parameter) => matches!(parameter.parameter_in, ParameterIn::Query),
                RefOr::Ref(_) => false,
            })
        };
        let taking = operations(document).filter(|(_, _, operation)| takes_one(operation));
        Self(Arc::new(taking.map(|(method, path, _)| (method, path.to_owned())).collect()))
    }

    fn takes_one(&self, method: &Method, route: &str) -> bool {
        let method = if method == Method::HEAD { Method::GET } else { method.clone() };
        self.0.contains(&(method, route.to_owned()))
    }
}

/// Refuses a query where none is taken.
pub(super) async fn refused(State(queries): State<Queries>, request: Request, next: Next) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    if query.is_empty() || route.is_none_or(|route| queries.takes_one(request.method(), route)) {
        return next.run(request).await;
    }
    let shown: String = query.chars().take(80).collect();
    Problem::new(
        "invalid-request",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid request",
        format!(
            "the query is refused: this request takes none, and has {shown:?}; nothing was done (dry_run included)"
        ),
    )
    .into_response()
}
