//! Authentication of callers: by token, session cookie, or peer user on the unix socket.

#[cfg(test)]
mod fuzz;

use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse as _, Response};

use super::AppState;
use super::authenticator::LONGEST_TOKEN;
use super::guard::cross_site_problem;
use super::peer::Peer;
use super::problem::{Problem, ProblemKind};
use crate::domain::access::Actor;
use crate::domain::token::Secret;
use crate::metrics::wire::Limit;
use crate::service::ServiceError;
use crate::service::access::context::RequestContext;
use crate::service::access::{Admission, Lifetime, LocalUser, SessionKey};
use crate::service::limits::whole_seconds;

impl<S: Send + Sync> FromRequestParts<S> for RequestContext {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        // Every route with this extractor is behind `acting::as_actor`, which inserts it.
        let ctx = parts.extensions.get::<Self>().cloned();
        ctx.ok_or_else(|| ServiceError::Internal("the caller was not authenticated".into()).into())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Lifetime {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let lifetime = parts.extensions.get::<Self>().cloned();
        lifetime.ok_or_else(|| ServiceError::Internal("the caller was not authenticated".into()).into())
    }
}

/// The credentials of a request.
enum Credentials {
    /// Nothing.
    Nothing,
    /// A token, valid or not.
    Token(Secret),
    /// A malformed header, and what is wrong with it.
    Wrong(&'static str),
}

fn shown(headers: &HeaderMap) -> Credentials {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Credentials::Nothing };
    if values.next().is_some() {
        return Credentials::Wrong("the request has several Authorization headers: send one");
    }
    let Ok(text) = value.to_str() else {
        return Credentials::Wrong(
            "the Authorization header is not printable ASCII: send Bearer and the token",
        );
    };
    let token = text.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    match token.map(|(_, token)| token.trim()) {
        None => Credentials::Wrong("the Authorization header has no token: send Bearer and the token"),
        Some("") => Credentials::Wrong("the Authorization header has no token after Bearer"),
        Some(token) if token.len() > LONGEST_TOKEN => {
            Credentials::Wrong("the token in the Authorization header is too long: send Bearer and the token")
        }
        Some(token) => Credentials::Token(Secret::shown(token)),
    }
}

/// Identifies the caller of a request and attaches it; each use case checks its rights.
pub(super) async fn admit(state: &AppState, peer: Peer, request: &mut Request) -> Result<Actor, Response> {
    let access = state.service.without_permit().access();
    let now = state.service.clock().unix_ms();
    let headers = request.headers();
    let mut key = None;
    let admission = match (shown(headers), peer) {
        // A token must be valid also on the unix socket: a wrong one is a mistake that must be reported.
        (Credentials::Token(token), _) => match access.holder(&token, peer.origin(), now) {
            Some(admission) => admission,
            None => return Err(failed(state, peer, NOT_VALID).await),
        },
        (Credentials::Wrong(why), _) => return Err(failed(state, peer, why).await),
        (Credentials::Nothing, _) if let Some((admission, session_key)) = session(state, peer, headers) => {
            if !request.method().is_safe()
                && let Err(problem) = same_site(headers)
            {
                return Err(problem.into_response());
            }
            key = Some(session_key);
            admission
        }
        (Credentials::Nothing, _) if state.auth.entrance.open_metrics && requests_metrics(request) => {
            Admission::anonymous(peer.origin())
        }
        (Credentials::Nothing, Peer::Tcp(_)) if state.auth.cookies(headers).next().is_some() => {
            return Err(failed(state, peer, OVER).await);
        }
        (Credentials::Nothing, Peer::Tcp(_)) => return Err(unauthorized(NEEDED).into_response()),
        (Credentials::Nothing, Peer::Unix(user)) => match user.and_then(|user| access.user(user)) {
            Some(admission) => admission,
            None => return Err(unauthorized(&unmapped(user)).into_response()),
        },
    };
    Ok(note(request, admission, key))
}

/// Attaches the caller to a request.
pub(super) fn note(request: &mut Request, admission: Admission, key: Option<SessionKey>) -> Actor {
    let extensions = request.extensions_mut();
    extensions.insert(admission.lifetime);
    extensions.insert(CurrentSession(key));
    admission.actor
}

/// Returns true if a request only reads the metrics.
fn requests_metrics(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD) && request.uri().path() == "/metrics"
}

/// Identifies the caller of a request that was refused before authentication; `None` if it has no valid credentials.
pub(super) fn known(state: &AppState, peer: Peer, headers: &HeaderMap) -> Option<Actor> {
    let access = state.service.without_permit().access();
    let admission = match (shown(headers), peer) {
        (Credentials::Token(token), _) => {
            access.holder(&token, peer.origin(), state.service.clock().unix_ms())
        }
        (Credentials::Nothing, _) if let Some((admission, _)) = session(state, peer, headers) => {
            Some(admission)
        }
        (Credentials::Nothing, Peer::Unix(Some(user))) => access.user(user),
        (Credentials::Wrong(_) | Credentials::Nothing, _) => None,
    };
    admission.map(|admission| admission.actor)
}

/// The session in the cookie of a request.
pub(super) fn session(state: &AppState, peer: Peer, headers: &HeaderMap) -> Option<(Admission, SessionKey)> {
    let (access, now) = (state.service.without_permit().access(), state.service.clock().unix_ms());
    state.auth.cookies(headers).find_map(|cookie| access.session(&cookie, peer.origin(), now))
}

/// Refuses to change anything for a session unless the browser states that a page of this server sent the request.
///
/// The layer for all requests checks the value of that header; here it must only be present.
pub(super) fn same_site(headers: &HeaderMap) -> Result<(), Problem> {
    // That layer ignores an empty one.
    let says = |name: &str| headers.get(name).is_some_and(|value| !value.is_empty());
    if says("sec-fetch-site") || says("origin") {
        return Ok(());
    }
    Err(cross_site_problem())
}

const OVER: &str = "the session has ended: log in again";
pub(super) const NOT_VALID: &str = "the token is not valid: it is mistyped, expired or revoked. The admin token is in admin.token in \
                         the state directory, and `mps-manager token create` creates others";
const NEEDED: &str = "a token is required: send Authorization: Bearer with one created by `mps-manager token create`, or with the content \
                      of admin.token in the state directory, or use the unix socket";

/// The error for a user without a grant.
fn unmapped(user: Option<LocalUser>) -> String {
    let who = user.map_or_else(
        || "your user is unknown".to_owned(),
        |user| format!("uid {} has no role here", user.uid),
    );
    format!(
        "{who}: have the host's admin add it, or one of its groups, to [access] in the configuration and restart the manager, \
         or send Authorization: Bearer with a token (the admin's is in admin.token in the state directory)"
    )
}

/// Answers a failed attempt, or throttles it.
///
/// An address is refused for a time. On loopback, where many users and programs share one address, the answer is delayed
/// instead: refusing would reveal to one that another fails. A caller with a valid token never gets here.
pub(super) async fn failed(state: &AppState, peer: Peer, why: &str) -> Response {
    let Err(wait) = state.service.without_permit().access().failures.take(peer.source()) else {
        return unauthorized(why).into_response();
    };
    let seconds = whole_seconds(wait);
    if peer.is_shared()
        && let Ok(_place) = state.auth.waiting.try_acquire()
    {
        tokio::time::sleep(FAILURE_DELAY).await;
        return unauthorized(why).into_response();
    }
    let detail = format!(
        "too many attempts with invalid tokens: try again in {seconds} s; a valid token is accepted at any time"
    );
    Problem::too_many(ProblemKind::TooManyFailures, Limit::Failures, detail, seconds).into_response()
}

/// Delay of a failure on loopback after too many.
const FAILURE_DELAY: Duration = Duration::from_secs(1);

/// The session of a request; `None` for a token or a local user.
#[derive(Debug, Clone, Copy)]
pub(super) struct CurrentSession(pub(super) Option<SessionKey>);

impl<S: Send + Sync> FromRequestParts<S> for CurrentSession {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let session = parts.extensions.get::<Self>().copied();
        session.ok_or_else(|| ServiceError::Internal("the caller was not authenticated".into()).into())
    }
}

pub(super) fn unauthorized(detail: &str) -> Problem {
    Problem::new(ProblemKind::Unauthorized, detail)
}
