//! API documentation as a page: `RapiDoc` over `/openapi.json`, served from this binary.
//!
//! It contains nothing that `/openapi.json` does not, so neither needs a token. Nothing is fetched from elsewhere, and the
//! page has no inline script or style, as its content security policy requires.

use std::future::ready;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::AppState;
use super::problem::Problem;

/// Compressed as published; sent as it is and never unpacked here.
const RENDERER: &[u8] = include_bytes!("../../web/assets/docs/rapidoc-9.3.8.min.js.gz");
const PAGE: &str = include_str!("../../web/assets/docs/index.html");
const STYLE: &str = include_str!("../../web/assets/docs/page.css");
const LICENSES: &str = include_str!("../../web/assets/docs/licenses.txt");

/// Scripts from this server only. `RapiDoc` sets `style` attributes, and has one style element with the theme chosen by the
/// page's attributes: its digest must be updated when they change; the browser console shows it.
const POLICY: &str = "default-src 'none'; script-src 'self'; \
                      style-src 'self' 'sha256-56Ph23MXZvE0Fm5vsseYLb0YVfbbtYUzgZr0LSmubpY='; \
                      style-src-attr 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";
/// The files change only with the binary; browsers revalidate after a day.
const KEEP: &str = "public, max-age=86400";

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/docs", get(|| ready(answer("text/html; charset=utf-8", PAGE))))
        .route("/docs/page.css", get(|| ready(answer("text/css; charset=utf-8", STYLE))))
        .route("/docs/licenses.txt", get(|| ready(answer("text/plain; charset=utf-8", LICENSES))))
        .route("/docs/rapidoc.js", get(renderer))
}

fn headers(mime: &'static str) -> [(HeaderName, HeaderValue); 3] {
    [
        (header::CONTENT_TYPE, HeaderValue::from_static(mime)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::CACHE_CONTROL, HeaderValue::from_static(KEEP)),
    ]
}

fn answer(mime: &'static str, text: &'static str) -> Response {
    (headers(mime), Bytes::from_static(text.as_bytes())).into_response()
}

async fn renderer(request: HeaderMap) -> Result<Response, Problem> {
    if !takes_gzip(&request) {
        return Err(Problem::new(
            "not-acceptable",
            StatusCode::NOT_ACCEPTABLE,
            "Not acceptable",
            "this file exists only compressed: leave Accept-Encoding out, or allow gzip",
        ));
    }
    let encoding = [
        (header::CONTENT_ENCODING, HeaderValue::from_static("gzip")),
        (header::VARY, HeaderValue::from_static("Accept-Encoding")),
    ];
    Ok((headers("text/javascript; charset=utf-8"), encoding, Bytes::from_static(RENDERER)).into_response())
}

/// Whether an answer may be compressed; without the header it may be (RFC 9110, 12.5.3).
fn takes_gzip(request: &HeaderMap) -> bool {
    let Some(value) = request.get(header::ACCEPT_ENCODING) else { return true };
    let listed = value.to_str().unwrap_or_default().split(',').map(|item| {
        let (coding, parameters) = item.split_once(';').unwrap_or((item, ""));
        let weight = parameters.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        (coding.trim().to_ascii_lowercase(), weight.unwrap_or(1.0) > 0.0)
    });
    let mut any = false;
    for (coding, taken) in listed {
        match coding.as_str() {
            "gzip" | "x-gzip" => return taken,
            "*" => any = taken,
            _ => {}
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_if_accepted() {
        let takes = |value: Option<&'static str>| {
            let mut request = HeaderMap::new();
            if let Some(value) = value {
                request.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            }
            takes_gzip(&request)
        };
        for value in
            [None, Some("gzip"), Some("br, gzip;q=0.5"), Some("*"), Some("GZIP"), Some("*;q=0, gzip")]
        {
            assert!(takes(value), "{value:?}");
        }
        for value in [Some(""), Some("identity"), Some("gzip;q=0"), Some("br"), Some("*, gzip; q=0")] {
            assert!(!takes(value), "{value:?}");
        }
    }
}
