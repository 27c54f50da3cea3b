//! Checks and headers for every request and response, for any caller.

#[cfg(test)]
mod fuzz;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri, Version, header};
use axum::response::{IntoResponse as _, Response};
use tower_http::csrf::ProtectionError;

use super::AppState;
use super::authenticator::Authenticator;
use super::peer::Peer;
use super::problem::{Problem, ProblemKind};

/// Headers of every response that does not set them itself.
///
/// Nothing may be cached, framed, sniffed or embedded, and a page loads only what it names.
const HEADERS: [(HeaderName, HeaderValue); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    // Not `no-referrer`: with that, Chromium sends `null` as the origin of a form, and logging in over plain HTTP would fail.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Adds the headers that a response lacks.
pub(super) fn add_headers(response: &mut Response) {
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(value);
    }
}

/// Refuses a request without a Host header, or with another server's name.
pub(super) fn wrong_host(app: &AppState, peer: Peer, request: &Request) -> Option<Response> {
    let problem = if names_none(request) {
        Problem::new(
            ProblemKind::NoHost,
            "the request is HTTP/1.1 and has no Host header: send one with the name of the server",
        )
    } else if names_another(&app.auth, peer, request) {
        Problem::new(
            ProblemKind::WrongHost,
            "the Host header does not name this server: on loopback use its address or localhost, or have the name added to \
             access.hosts in the configuration",
        )
    } else {
        return None;
    };
    Some(problem.into_response())
}

/// Returns true if a request lacks the Host header that HTTP/1.1 requires (RFC 9112, 3.2); HTTP/1.0 and HTTP/2 do not require it.
fn names_none(request: &Request) -> bool {
    request.version() == Version::HTTP_11 && !request.headers().contains_key(header::HOST)
}

/// Returns true if a request names another server although this one listens on loopback.
///
/// A foreign page can let its own name resolve to 127.0.0.1, and then has the same origin as this server (DNS rebinding). It
/// cannot make the browser send another name; an address is safe.
fn names_another(server: &Authenticator, peer: Peer, request: &Request) -> bool {
    matches!(peer, Peer::Tcp(_))
        && server.on_loopback()
        && !is_called(server, request.uri(), request.headers())
}

/// Returns true if a request names this server, or no server: HTTP/1.0 has no Host header, and no browser uses it.
fn is_called(server: &Authenticator, uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    // The authority of HTTP/2, and of HTTP/1.1 clients that treat this as a proxy.
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

/// Refuses a request from a page of another site.
#[allow(clippy::needless_pass_by_value, reason = "as the layer calls it")]
pub(super) fn cross_site(_: ProtectionError) -> Response {
    cross_site_problem().into_response()
}

/// The problem for a page of another site.
pub(super) fn cross_site_problem() -> Problem {
    Problem::new(
        ProblemKind::CrossSite,
        "a browser session may change things only from pages of this server: Sec-Fetch-Site or Origin does not show that the request \
         came from one. Programs send a token in the Authorization header instead",
    )
}
