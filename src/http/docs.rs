//! The API's reference as a page. It is made of `/openapi.json` by a test, so neither needs a token, and it holds no script.

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

const POLICY: &str = "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";
/// The files change only with the binary; browsers revalidate after a day.
const KEEP: &str = "public, max-age=86400";

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/docs", get(|| ready(answer("text/html; charset=utf-8", PAGE))))
        .route("/docs/page.css", get(|| ready(answer("text/css; charset=utf-8", STYLE))))
        .layer(CompressionLayer::new())
}

fn answer(mime: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, mime),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, KEEP),
    ];
    (headers, Bytes::from_static(text.as_bytes())).into_response()
}
