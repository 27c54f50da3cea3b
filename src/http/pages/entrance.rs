//! The way in: pages are for whoever has a session, and anybody else is led to the log-in and back.
//!
//! What was typed into a form is never lost to a session that ended meanwhile: it goes through the log-in and is sent
//! after it, when whoever typed it says so.

use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::frame::Outside;
use super::login::{self, Unsent};
use crate::http::AppState;
use crate::http::auth::{self, CurrentSession, Peer};

/// What the form of a log-in has beside the one that it carries, in bytes: more than a token and an address take.
const ROOM: usize = 8 * 1024;

/// Lets those through who are logged in; what they may do is asked by each use case.
pub(super) async fn require(
    State(state): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some((admission, key)) = auth::session(&state, peer, request.headers()) else {
        return way_in(&state, request).await;
    };
    if !request.method().is_safe()
        && let Err(problem) = auth::same_site(request.headers())
    {
        return problem.into_response();
    }
    let extensions = request.extensions_mut();
    extensions.insert(admission.actor);
    extensions.insert(admission.lifetime);
    extensions.insert(CurrentSession(Some(key)));
    next.run(request).await
}

/// Leads to the log-in, and from there to what was asked for.
async fn way_in(state: &AppState, request: Request) -> Response {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    if request.method().is_safe() {
        // A part of a page that is asked for again must not become the log-in page in its middle.
        if request.headers().contains_key("hx-request") || accepts_events(&request) {
            return auth::unauthorized("the session is over: load the page again to log in").into_response();
        }
        return Redirect::to(&login_at(&target)).into_response();
    }
    let largest_body = state.limits.body_bytes as usize;
    let form = to_bytes(request.into_body(), largest_body).await.ok();
    let form = form.and_then(|bytes| String::from_utf8(bytes.to_vec()).ok());
    let outside = Outside::of(&state.service).await;
    match form.filter(|form| encoded(form) + ROOM <= largest_body) {
        Some(form) => login::page_for(outside, StatusCode::UNAUTHORIZED, &Unsent { to: target, form }),
        None => login::page_without(outside, StatusCode::UNAUTHORIZED),
    }
}

/// Bytes that a form takes within another.
fn encoded(form: &str) -> usize {
    form_urlencoded::byte_serialize(form.as_bytes()).map(str::len).sum()
}

fn accepts_events(request: &Request) -> bool {
    let accept = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

/// The log-in that leads to a page of this server.
fn login_at(target: &str) -> String {
    match target {
        "/" => "/login".to_owned(),
        target => format!("/login?next={}", utf8_percent_encode(target, NON_ALPHANUMERIC)),
    }
}

/// A place to go to after the log-in: one of this server, whatever somebody wrote into the address of the log-in.
pub(super) fn local(target: &str) -> Option<&str> {
    let inside = target.starts_with('/') && !target.starts_with("//");
    // Browsers take a backslash for a slash, and leave control characters out.
    let plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (inside && plain).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_led_to_another_server() {
        for target in ["/", "/tenants/web?x=1", "/events?type=a,b#c"] {
            assert_eq!(local(target), Some(target));
        }
        for target in [
            "",
            "//evil.example",
            "/\\evil.example",
            "https://evil.example",
            "evil",
            "/a\nb",
            "/\u{e9}",
            "/\t/x",
        ] {
            assert_eq!(local(target), None, "{target:?}");
        }
    }

    #[test]
    fn the_log_in_leads_back() {
        assert_eq!(login_at("/"), "/login");
        assert_eq!(login_at("/events?type=a&b=c"), "/login?next=%2Fevents%3Ftype%3Da%26b%3Dc");
    }
}
