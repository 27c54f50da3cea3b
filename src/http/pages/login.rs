//! Logging in and out in a browser.
//!
//! Opening the login address of the first start has no effect: mail programs and browsers prefetch addresses, which would
//! consume the code. It is consumed by submitting the form.

use askama::Template;
use axum::extract::{ConnectInfo, Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Redirect, Response};

use super::forms::{Form, KEY};
use super::frame::Outside;
use super::page;
use super::spec_form::REVISION;
use crate::domain::token::Secret;
use crate::http::AppState;
use crate::http::audit::RequestedChange;
use crate::http::auth;
use crate::http::log_in::open_session;
use crate::http::peer::Peer;
use crate::http::problem::{Detail, Problem, Reply};
use crate::service::access::endings::SessionEnding;
use crate::service::access::sessions::NewSession;

#[derive(Template)]
#[template(path = "login.html")]
struct LoginPage<'a> {
    outside: Outside,
    refused: Option<&'a str>,
    code: Option<&'a str>,
    next: Option<&'a str>,
    unsent: Option<&'a Unsent>,
    /// Reason for which a submitted form could not be kept.
    lost: Option<&'a str>,
    /// Ending of the session of the request's own cookie.
    ended: Option<SessionEnding>,
}

#[derive(Template)]
#[template(path = "unsent.html")]
struct UnsentPage<'a> {
    outside: Outside,
    unsent: &'a Unsent,
}

/// A form that was submitted after its session had ended.
#[derive(Debug, Clone)]
pub(super) struct Unsent {
    /// Its target.
    pub(super) to: String,
    /// Its fields.
    pub(super) form: Form,
}

/// Prefix of its fields within the login form, so that they are only data there.
const UNSENT: &str = "unsent.";
/// Fields that are internal to the page and mean nothing to its user.
const FOR_THE_PAGE: [&str; 2] = [KEY, REVISION];

impl Unsent {
    /// Its fields under their names in the login form.
    fn fields(&self) -> impl Iterator<Item = (String, &str)> {
        self.form.pairs().map(|(name, value)| (format!("{UNSENT}{name}"), value))
    }

    /// The fields shown to the user, who decides whether to submit it.
    fn shown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.form.pairs().filter(|(name, _)| !FOR_THE_PAGE.contains(name))
    }

    /// Bytes it needs within the login form.
    pub(super) fn length(&self) -> usize {
        let mut encoded = form_urlencoded::Serializer::new(String::new());
        encoded.append_pair("unsent_to", &self.to).extend_pairs(self.fields());
        encoded.finish().len()
    }
}

/// The fields of a login address or form.
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

    /// The login page again, with an error.
    fn again(&self, outside: Outside, status: StatusCode, refused: &str, code: Option<&str>) -> Response {
        let unsent = self.unsent();
        let (next, unsent) = (self.next(), unsent.as_ref());
        page(
            status,
            &LoginPage { outside, refused: Some(refused), code, next, unsent, lost: None, ended: None },
        )
    }
}

/// The login page for a user whose submitted form is kept, or lost for this reason.
pub(super) fn page_for(
    outside: Outside,
    status: StatusCode,
    unsent: Option<&Unsent>,
    lost: Option<&str>,
) -> Response {
    page(status, &LoginPage { outside, refused: None, code: None, next: None, unsent, lost, ended: None })
}

pub(super) async fn show(
    State(app): State<AppState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let outside = Outside::of(&app.service).await;
    let form = LoginForm(Form::parse(query.unwrap_or_default().as_bytes()));
    let (code, next) = (form.code(), form.next());
    let (access, now) = (app.service.without_permit().access(), app.service.clock().unix_ms());
    let ended = app.auth.cookies(&headers).find_map(|cookie| access.ending(&cookie, now));
    let template = LoginPage { outside, refused: None, code, next, unsent: None, lost: None, ended };
    page(StatusCode::OK, &template)
}

pub(super) async fn log_in(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(requested): Extension<RequestedChange>,
    form: Result<Form, Problem>,
) -> Response {
    let outside = Outside::of(&app.service).await;
    let Ok(form) = form.map(LoginForm) else {
        let refused = "the form could not be read: try again";
        return LoginForm::default().again(outside, StatusCode::BAD_REQUEST, refused, None);
    };
    let (access, now) = (app.service.without_permit().access(), app.service.clock().unix_ms());
    let code = form.code().map(Secret::shown);
    let admission = match (&code, form.brought("token")) {
        (Some(code), None) => access.coded(code, peer.origin(), now),
        (None, Some(token)) => access.holder(&Secret::shown(token.trim()), peer.origin(), now),
        _ => None,
    };
    let Some(admission) = admission else {
        let refused = if form.code().is_some() {
            "this link was used before, or its 15 minutes have passed: `mps-manager login-url` creates another"
        } else {
            "the token is not valid: it is mistyped, expired or revoked"
        };
        return as_page(outside, auth::failed(&app, peer, refused).await, &form);
    };
    let answer = |opened: NewSession| {
        let cookie = app.auth.cookie(&opened.cookie, opened.max_age_s);
        let inside = match form.unsent() {
            // To be confirmed before it is submitted: the user may be another one, and much may have happened since.
            Some(unsent) => page(StatusCode::OK, &UnsentPage { outside, unsent: &unsent }),
            None => Redirect::to(form.next().unwrap_or("/")).into_response(),
        };
        ([(header::SET_COOKIE, cookie)], inside).into_response()
    };
    let answer = open_session(&app, admission.actor, code, requested, answer).await;
    as_page(outside, answer, &form)
}

/// A problem as the login page; any other response unchanged.
fn as_page(outside: Outside, answer: Response, form: &LoginForm) -> Response {
    let Some(Detail(refused)) = answer.extensions().get::<Detail>().cloned() else { return answer };
    let (before, _) = answer.into_parts();
    // Retrying later makes sense only with a code that was not consumed.
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
    Extension(requested): Extension<RequestedChange>,
    headers: HeaderMap,
) -> Reply {
    if let Some((admission, key)) = auth::session(&app, peer, &headers) {
        auth::same_site(&headers)?;
        let ctx = requested.about("session").by(admission.actor, app.service.clock());
        let service = app.service.clone();
        let ending = async move { service.end_session(&ctx, Some(key)).await };
        app.service.run_to_completion(ending).await?;
    }
    Ok(([(header::SET_COOKIE, app.auth.no_cookie())], Redirect::to("/login")).into_response())
}

/// A redirect target on this server, whatever the login address contains.
pub(super) fn local(target: &str) -> Option<&str> {
    let inside = target.starts_with('/') && !target.starts_with("//");
    // Browsers treat a backslash as a slash, and drop control characters.
    let plain = target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    (inside && plain).then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_stay_on_this_server() {
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
}
