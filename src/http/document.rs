//! What the router reads of its own document.

use axum::http::Method;
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::Operation;

/// The operations of a document, with their methods and routes.
pub(super) fn operations(document: &OpenApi) -> impl Iterator<Item = (Method, &str, &Operation)> {
    document.paths.paths.iter().flat_map(|(path, item)| {
        let operations = [
            (Method::GET, &item.get),
            (Method::PUT, &item.put),
            (Method::POST, &item.post),
            (Method::DELETE, &item.delete),
        ];
        operations
            .into_iter()
            .filter_map(move |(method, operation)| Some((method, path.as_str(), operation.as_ref()?)))
    })
}
