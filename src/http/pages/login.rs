//! Logging in and out in a browser.
//!
//! Looking at the address of the first start does nothing: mail programs and browsers look at addresses beforehand, and
//! would use the code up. It is exchanged by sending the form.

use askama::Template;
use axum::extract::{ConnectInfo, Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};

use super::entrance::local;
use super::forms::{BEGAN, Form, KEY};
use super::frame::Outside;
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
    outside: Outside,
    refused: Option<&'a str>,
    code: Option<&'a str>,
    next: Option<&'a str>,
    unsent: Option<&'a Unsent>,
    /// Why what was sent is not kept.
    lost: Option<&'a str>,
}

#[derive(Template)]
#[template(path = "unsent.html")]
struct UnsentPage<'a> {
    outside: Outside,
    unsent: &'a Unsent,
}

/// A form that was sent after its session had ended, as it was typed.
#[derive(Debug, Clone)]
pub(super) struct Unsent {
    /// Where to.
    pub(super) to: String,
    /// Its fields.
    pub(super) form: Form,
}

/// What the names of its fields begin with in the form of the log-in: so they are no longer there than they were.
const UNSENT: &str = "unsent.";
/// Fields that are for the page and say nothing to whoever sends it.
const FOR_THE_PAGE: [&str; 4] = [BEGAN, KEY, "revision", "base"];

impl Unsent {
    /// Its fields by the names that they have in the form of the log-in.
    fn fields(&self) -> impl Iterator<Item = (String, &str)> {
        self.form.pairs().map(|(name, value)| (format!("{UNSENT}{name}"), value))
    }

    /// The fields that are shown to whoever decides whether it is sent.
    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.form.pairs().filter(|(name, _)| !FOR_THE_PAGE.contains(name))
    }

    /// Bytes that the form of the log-in takes for it.
    pub(super) fn length(&self) -> usize {
        let mut encoded = form_urlencoded::Serializer::new(String::new());
        encoded.append_pair("unsent_to", &self.to).extend_pairs(self.fields());
        encoded.finish().len()
    }
}

/// What an address or a form may bring.
#[derive(Default)]
pub(super) struct LoginForm(Form);

impl LoginForm {
    fn brought(&self, name: &str) -> Option<&str> {
        self.0.pairs().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    fn code(&self) -> Option<&str> {
        self.brought("code")
    }

    fn next(&self) -> Option<&str> {
        self.brought("next").and_then(local)
    }

    fn unsent(&self) -> Option<Unsent> {
        let to = self.brought("unsent_to").and_then(local)?;
        let mut form = Form::default();
        for (name, value) in self.0.pairs() {
            if let Some(name) = name.strip_prefix(UNSENT) {
                form.set(name, value);
            }
        }
        Some(Unsent { to: to.to_owned(), form })
    }

    /// The log-in as it is to be filled in again.
    fn again(&self, outside: Outside, status: StatusCode, refused: &str, code: Option<&str>) -> Response {
        let unsent = self.unsent();
        let (next, unsent) = (self.next(), unsent.as_ref());
        page(status, &LoginPage { outside, refused: Some(refused), code, next, unsent, lost: None })
    }
}

/// The log-in for whoever sent something before it, which they send after it or have lost.
pub(super) fn page_for(
    outside: Outside,
    status: StatusCode,
    unsent: Option<&Unsent>,
    lost: Option<&str>,
) -> Response {
    page(status, &LoginPage { outside, refused: None, code: None, next: None, unsent, lost })
}

pub(super) async fn show(State(app): State<AppState>, RawQuery(query): RawQuery) -> Response {
    let outside = Outside::of(&app.service).await;
    let form = LoginForm(Form::parse(query.unwrap_or_default().as_bytes()));
    let (code, next) = (form.code(), form.next());
    let shown = LoginPage { outside, refused: None, code, next, unsent: None, lost: None };
    page(StatusCode::OK, &shown)
}

pub(super) async fn log_in(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(asked): Extension<Asked>,
    form: Result<Form, Problem>,
) -> Response {
    let outside = Outside::of(&app.service).await;
    let Ok(form) = form.map(LoginForm) else {
        let refused = "the form could not be read: try again";
        return LoginForm::default().again(outside, StatusCode::BAD_REQUEST, refused, None);
    };
    let (access, now) = (app.service.access(), crate::clock::unix_ms());
    let code = form.code().map(Secret::shown);
    let admission = match (&code, form.brought("token")) {
        (Some(code), None) => access.coded(code, peer.origin(), now),
        (None, Some(token)) => access.holder(&Secret::shown(token.trim()), peer.origin(), now),
        _ => None,
    };
    let Some(admission) = admission else {
        let refused = if form.code().is_some() {
            "this address was used before, or its 15 minutes are over: `mps-manager login-url` makes another"
        } else {
            "the token is not valid: it is mistyped, has expired, or was revoked"
        };
        app.service.not_authenticated(peer.origin());
        return as_page(outside, auth::failed(&app, peer, refused).await, &form);
    };
    let answer = |opened: NewSession| {
        let cookie = app.auth.cookie(&opened.cookie, opened.max_age_s);
        let inside = match form.unsent() {
            Some(unsent) => to_send(outside, &unsent),
            None => Redirect::to(form.next().unwrap_or("/")).into_response(),
        };
        ([(header::SET_COOKIE, cookie)], inside).into_response()
    };
    let answer = auth::log_in(&app, &admission.actor, code.as_ref(), asked, answer).await;
    as_page(outside, answer, &form)
}

/// What was typed before the log-in, to be sent with one more word: whoever logs in may be somebody else, and much may
/// have happened since.
fn to_send(outside: Outside, unsent: &Unsent) -> Response {
    page(StatusCode::OK, &UnsentPage { outside, unsent })
}

/// A problem as the page that it is about, for whoever sits before it; any other answer as it is.
fn as_page(outside: Outside, answer: Response, form: &LoginForm) -> Response {
    let Some(Detail(refused)) = answer.extensions().get::<Detail>().cloned() else { return answer };
    let (before, _) = answer.into_parts();
    // To try again later is of use with what was not used up.
    let code = form.code().filter(|_| before.status == StatusCode::TOO_MANY_REQUESTS);
    let mut answer = form.again(outside, before.status, &refused, code);
    answer.extensions_mut().extend(before.extensions);
    if let Some(wait) = before.headers.get(header::RETRY_AFTER) {
        answer.headers_mut().insert(header::RETRY_AFTER, wait.clone());
    }
    answer
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
