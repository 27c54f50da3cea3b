//! The API's reference as a page, and the catalog by which programs find it and the API documents (RFC 9727). A test makes the page of
//! `/openapi.json`, so neither needs a token, and it holds no script.

use std::future::ready;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tower_http::compression::CompressionLayer;

use super::AppState;

const PAGE: &str = include_str!("../../web/assets/docs/index.html");
const STYLE: &str = include_str!("../../web/assets/docs/page.css");
/// Links that are relative to the server, which may have several names.
const CATALOG: &str = include_str!("../../web/assets/docs/api-catalog.json");

/// The type of a set of links (RFC 9264) that is such a catalog.
const CATALOG_TYPE: &str = r#"application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727""#;

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/docs", get(|| ready(answer("text/html; charset=utf-8", PAGE))))
        .route("/docs/page.css", get(|| ready(answer("text/css; charset=utf-8", STYLE))))
        .route("/.well-known/api-catalog", get(|| ready(answer(CATALOG_TYPE, CATALOG))))
        .layer(CompressionLayer::new())
}

fn answer(mime: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, mime),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        // The files change only with the binary; browsers revalidate after a day.
        (header::CACHE_CONTROL, "public, max-age=86400"),
        (header::LINK, r#"</.well-known/api-catalog>; rel="api-catalog""#),
    ];
    (headers, Bytes::from_static(text.as_bytes())).into_response()
}
