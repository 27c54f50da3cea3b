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

use super::forms::Form;
use super::frame::Outside;
use super::login::{self, Unsent};
use crate::http::AppState;
use crate::http::accept;
use crate::http::auth::{self, CurrentSession, Peer};

/// Bytes that are left for the log-in itself beside the form that it carries.
const OF_THE_LOGIN: usize = 1024;

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
    // What does not fit through the log-in fits no other request either.
    let longest = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let outside = Outside::of(&state.service).await;
    match carried(request, target, longest).await {
        Ok(unsent) => login::page_for(outside, StatusCode::UNAUTHORIZED, Some(&unsent), None),
        Err(why) => login::page_for(outside, StatusCode::UNAUTHORIZED, None, Some(&why)),
    }
}

/// A form as it is carried through the log-in; why it is not, where it is not.
async fn carried(request: Request, to: String, longest: usize) -> Result<Unsent, String> {
    let mime = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_form = mime.is_none_or(|mime| mime.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        return Err("a file, or something else that is no form of these pages, is not kept".to_owned());
    }
    let bytes = to_bytes(request.into_body(), longest).await;
    let bytes = bytes.map_err(|_| format!("it did not come whole, or is over {longest} bytes"))?;
    let unsent = Unsent { to, form: Form::parse(&bytes) };
    let most = longest.saturating_sub(OF_THE_LOGIN);
    let length = unsent.length();
    if length > most {
        Err(format!("it has {length} bytes, and at most {most} are kept"))
    } else {
        Ok(unsent)
    }
}

fn accepts_events(request: &Request) -> bool {
    accept::names(request.headers(), "text/event-stream")
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

    fn sent(mime: &str, body: &str) -> Request {
        let request = Request::post("/layouts/import").header(header::CONTENT_TYPE, mime);
        request.body(body.to_owned().into()).expect("a request")
    }

    #[tokio::test]
    async fn what_is_not_kept_is_said() {
        let form = "application/x-www-form-urlencoded";
        let text = format!("text={}", "a+".repeat(1000));
        let carry = |mime, longest| carried(sent(mime, &text), "/layouts/import".to_owned(), longest);
        let kept = carry(form, 4096).await.expect("it fits");
        assert_eq!(kept.form.typed("text"), "a ".repeat(1000));
        assert!(carry(form, 3000).await.expect_err("no room for the log-in").contains("at most 1976"));
        assert!(carry(form, 1000).await.expect_err("too long").contains("over 1000"));
        assert!(carry("multipart/form-data; boundary=x", 4096).await.expect_err("a file").contains("a file"));
    }

    #[test]
    fn the_log_in_leads_back() {
        assert_eq!(login_at("/"), "/login");
        assert_eq!(login_at("/events?type=a&b=c"), "/login?next=%2Fevents%3Ftype%3Da%26b%3Dc");
    }
}
