//! Pages need a session: a request without one is redirected to the login page and back.
//!
//! A submitted form is not lost when its session has ended: it is kept through the login, and submitted when its user
//! confirms.

use axum::body::to_bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Redirect, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::forms::Form;
use super::frame::Outside;
use super::login::{self, Unsent};
use crate::http::acting::as_actor;
use crate::http::audit::RefusalHandled;
use crate::http::auth;
use crate::http::peer::Peer;
use crate::http::{AppState, accept};
use crate::service::readings::once_each;

/// Bytes reserved for the login form itself.
const OF_THE_LOGIN: usize = 1024;

/// Requires a session; each use case checks what its user may do.
pub(super) async fn require(
    State(state): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some((admission, key)) = auth::session(&state, peer, request.headers()) else {
        let mut response = log_in_first(&state, request).await;
        // A session that ended is no attempt to log in.
        response.extensions_mut().insert(RefusalHandled);
        return response;
    };
    if !request.method().is_safe()
        && let Err(problem) = auth::same_site(request.headers())
    {
        return problem.into_response();
    }
    let actor = auth::note(&mut request, admission, Some(key));
    let only_reads = request.method().is_safe();
    let work = move |_, request| async move {
        if only_reads { once_each(next.run(request)).await } else { next.run(request).await }
    };
    as_actor(&state, actor, request, work).await
}

/// Redirects to the login page, and from there to the requested page.
async fn log_in_first(state: &AppState, request: Request) -> Response {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str()).to_owned();
    if request.method().is_safe() {
        // A reloaded part of a page must not become the login page inside it.
        let headers = request.headers();
        if headers.contains_key("hx-request") || accept::names(headers, "text/event-stream") {
            return auth::unauthorized("the session has ended: reload the page to log in").into_response();
        }
        return Redirect::to(&login_at(&target)).into_response();
    }
    // A form that does not fit the login form would be too large for its own request too.
    let longest = usize::try_from(state.limits.body_bytes).unwrap_or(usize::MAX);
    let outside = Outside::of(&state.service).await;
    match kept_form(request, target, longest).await {
        Ok(unsent) => login::page_for(outside, StatusCode::UNAUTHORIZED, Some(&unsent), None),
        Err(why) => login::page_for(outside, StatusCode::UNAUTHORIZED, None, Some(&why)),
    }
}

/// A form to keep through the login, or why it cannot be kept.
async fn kept_form(request: Request, to: String, longest: usize) -> Result<Unsent, String> {
    let mime = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let is_form = mime.is_none_or(|mime| mime.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        return Err("a file, or other data that is not a form of these pages, is not kept".to_owned());
    }
    let bytes = to_bytes(request.into_body(), longest).await;
    let bytes = bytes.map_err(|_| format!("it was incomplete, or is over {longest} bytes"))?;
    let mut form = Form::parse(&bytes);
    // A secret is typed again: a login page would show it to others at the same browser.
    form.remove("token");
    let unsent = Unsent { to, form };
    let most = longest.saturating_sub(OF_THE_LOGIN);
    let length = unsent.length();
    if length > most {
        Err(format!("it has {length} bytes, and at most {most} are kept"))
    } else {
        Ok(unsent)
    }
}

/// The login page that leads to a page of this server.
fn login_at(target: &str) -> String {
    match target {
        "/" => "/login".to_owned(),
        target => format!("/login?next={}", utf8_percent_encode(target, NON_ALPHANUMERIC)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(mime: &str, body: &str) -> Request {
        let request = Request::post("/layouts/import").header(header::CONTENT_TYPE, mime);
        request.body(body.to_owned().into()).expect("a request")
    }

    #[tokio::test]
    async fn lost_forms_are_reported() {
        let form = "application/x-www-form-urlencoded";
        let text = format!("text={}", "a+".repeat(1000));
        let carry = |mime, longest| kept_form(sent(mime, &text), "/layouts/import".to_owned(), longest);
        let kept = carry(form, 4096).await.expect("it fits");
        assert_eq!(kept.form.typed("text"), "a ".repeat(1000));
        assert!(carry(form, 3000).await.expect_err("no room for the log-in").contains("at most 1976"));
        assert!(carry(form, 1000).await.expect_err("too long").contains("over 1000"));
        assert!(carry("multipart/form-data; boundary=x", 4096).await.expect_err("a file").contains("a file"));
    }

    #[test]
    fn login_redirects_back() {
        assert_eq!(login_at("/"), "/login");
        assert_eq!(login_at("/events?type=a&b=c"), "/login?next=%2Fevents%3Ftype%3Da%26b%3Dc");
    }
}
