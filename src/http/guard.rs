//! What every request and every answer has to keep to, whoever calls.

#[cfg(test)]
mod fuzz;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tower_http::csrf::ProtectionError;

use super::AppState;
use super::auth::{Authenticator, Peer};
use super::problem::Problem;
use crate::domain::access::Actor;
use crate::service::told::calling;

/// Headers of every answer that does not say otherwise itself.
///
/// Nothing here is to be kept, framed, sniffed or embedded, and a page loads nothing that it does not name.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    // Not `no-referrer`: with that, Chromium calls the origin of a form `null`, and nobody could log in over plain HTTP.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Gives an answer the headers that it has not.
pub(super) async fn headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
    response
}

/// Says who calls, so that whatever is refused is said as they may be told.
pub(super) async fn caller(actor: Actor, request: Request, next: Next) -> Response {
    calling(actor, next.run(request)).await
}

/// Refuses HTTP/1.1 without a Host header, as RFC 9112, 3.2 has it; HTTP/1.0 and HTTP/2 need none.
pub(super) async fn named(request: Request, next: Next) -> Response {
    if request.version() != Version::HTTP_11 || request.headers().contains_key(header::HOST) {
        return next.run(request).await;
    }
    Problem::new(
        "no-host",
        StatusCode::BAD_REQUEST,
        "No Host header",
        "the request is HTTP/1.1 and has no Host header: send one with the name that the server was called by",
    )
    .into_response()
}

/// Refuses a name that is none of this server's, where it listens on loopback.
///
/// A page of elsewhere can have its own name resolved to 127.0.0.1 and would then be of the same origin as this server
/// (DNS rebinding). It cannot make the browser send another name than its own; an address resolves to nothing.
pub(super) async fn host(
    State(state): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    if !matches!(peer, Peer::Tcp(_)) || !state.auth.on_loopback() {
        return next.run(request).await;
    }
    if is_called(&state.auth, request.uri(), request.headers()) {
        return next.run(request).await;
    }
    Problem::new(
        "wrong-host",
        StatusCode::MISDIRECTED_REQUEST,
        "Not a name of this server",
        "the Host header is none of this server's: on loopback use its address or localhost, or have the name added to access.hosts \
         in the configuration",
    )
    .into_response()
}

/// Whether a request names this server, or nothing: HTTP/1.0 needs no name, and no browser speaks it.
fn is_called(server: &Authenticator, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    // In HTTP/2, and in HTTP/1.1 of those who take this for a proxy.
    let target = uri.authority().map(|authority| server.is_called(authority.host()));
    let named = |host: &HeaderValue| {
        let authority = host.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        authority.is_some_and(|authority| server.is_called(authority.host()))
    };
    match (hosts.next(), hosts.next()) {
        (None, _) => target.unwrap_or(true),
        (Some(host), None) => named(host) && target.unwrap_or(true),
        (Some(_), Some(_)) => false,
    }
}

/// Refuses a request that a page of another site sent.
#[allow(clippy::needless_pass_by_value, reason = "as the layer calls it")]
pub(super) fn cross_site(_: ProtectionError) -> Response {
    cross_site_problem().into_response()
}

/// That a page of another site may not do anything here.
pub(super) fn cross_site_problem() -> Problem {
    Problem::new(
        "cross-site",
        StatusCode::FORBIDDEN,
        "From another site",
        "a browser's session changes things for pages of this server only: Sec-Fetch-Site or Origin does not say that the request \
         came from one. Programs send a token in the Authorization header instead",
    )
}
