//! Logging in and out in a browser.
//!
//! Looking at the address of the first start does nothing: mail programs and browsers look at addresses beforehand, and
//! would use the code up. It is exchanged by sending the form.

use askama::Template;
use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{ConnectInfo, Extension, Form, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;

use super::page;
use crate::domain::token::Secret;
use crate::http::AppState;
use crate::http::audit::Asked;
use crate::http::auth::{self, Peer};
use crate::http::problem::{Detail, Problem};
use crate::service::acting::attempting;
use crate::service::sessions::NewSession;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    refused: Option<&'a str>,
    code: Option<&'a str>,
}

#[derive(Template)]
#[template(path = "home.html")]
struct HomePage<'a> {
    subject: &'a str,
    grant: &'a str,
    origin: &'a str,
}

/// What an address or a form may bring.
#[derive(Deserialize)]
pub(super) struct LoginForm {
    code: Option<String>,
    token: Option<String>,
}

pub(super) async fn show(form: Result<Query<LoginForm>, QueryRejection>) -> Response {
    let code = form.ok().and_then(|Query(form)| form.code);
    page(StatusCode::OK, &LoginPage { refused: None, code: code.as_deref() })
}

pub(super) async fn log_in(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(asked): Extension<Asked>,
    form: Result<Form<LoginForm>, FormRejection>,
) -> Response {
    let Ok(Form(form)) = form else {
        let refused = Some("the form could not be read: try again");
        return page(StatusCode::BAD_REQUEST, &LoginPage { refused, code: None });
    };
    let (access, now) = (app.service.access(), crate::clock::unix_ms());
    let code = form.code.as_deref().map(Secret::shown);
    let admission = match (&code, &form.token) {
        (Some(code), None) => access.coded(code, peer.origin(), now),
        (None, Some(token)) => access.holder(&Secret::shown(token.trim()), peer.origin(), now),
        _ => None,
    };
    let Some(admission) = admission else {
        let refused = if form.code.is_some() {
            "this address was used before, or its 15 minutes are over: `mps-manager login-url` makes another"
        } else {
            "the token is not valid: it is mistyped, has expired, or was revoked"
        };
        app.service.not_authenticated(peer.origin());
        return as_page(auth::failed(&app, peer, refused).await, form.code.as_deref());
    };
    let answer = |opened: NewSession| {
        let cookie = app.auth.cookie(&opened.cookie, opened.max_age_s);
        ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response()
    };
    let answer = auth::log_in(&app, &admission.actor, code.as_ref(), asked, answer).await;
    as_page(answer, form.code.as_deref())
}

/// A problem as the page that it is about, for whoever sits before it; any other answer as it is.
fn as_page(answer: Response, code: Option<&str>) -> Response {
    let Some(Detail(refused)) = answer.extensions().get::<Detail>().cloned() else { return answer };
    let (before, _) = answer.into_parts();
    // To try again later is of use with what was not used up.
    let code = code.filter(|_| before.status == StatusCode::TOO_MANY_REQUESTS);
    let mut answer = page(before.status, &LoginPage { refused: Some(&refused), code });
    answer.extensions_mut().extend(before.extensions);
    if let Some(wait) = before.headers.get(header::RETRY_AFTER) {
        answer.headers_mut().insert(header::RETRY_AFTER, wait.clone());
    }
    answer
}

pub(super) async fn home(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Some((admission, _)) = auth::session(&app, peer, &headers) else {
        return Ok(Redirect::to("/login").into_response());
    };
    let who = app.service.whoami(&admission.actor).await?;
    let home = HomePage { subject: &who.subject, grant: &who.grant.to_string(), origin: &who.origin };
    Ok(page(StatusCode::OK, &home))
}

pub(super) async fn log_out(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(asked): Extension<Asked>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    if let Some((admission, key)) = auth::session(&app, peer, &headers) {
        auth::same_site(&headers)?;
        let attempt = asked.about("session").by(&admission.actor);
        attempting(attempt, app.service.end_session(&admission.actor, Some(key))).await?;
    }
    Ok(([(header::SET_COOKIE, app.auth.no_cookie())], Redirect::to("/login")).into_response())
}
