//! Attempts, on their way in and out: who tries what goes with the request, and what comes of it where it is refused goes on record.

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use super::AppState;
use super::auth::Peer;
use super::problem::Kind;
use crate::domain::access::Actor;
use crate::domain::audit::{Attempt, Outcome, Target};
use crate::service::acting::attempting;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Gives a request its ID, does it as an attempt of whoever calls, and puts on record what is refused of what would write.
pub(super) async fn attempts(
    State(app): State<AppState>,
    actor: Actor,
    request: Request,
    next: Next,
) -> Response {
    let id = Uuid::now_v7().to_string();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    let mut response = if reads {
        next.run(request).await
    } else {
        let attempt = attempt(&request, &actor, &id);
        let rehearsed = request.uri().query().is_some_and(|query| query.contains("dry_run=true"));
        if rehearsed {
            attempting(attempt, next.run(request)).await
        } else {
            on_record(&app, attempt, next.run(request)).await
        }
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// Does what is attempted; where it is refused or fails, that goes on record, too.
pub(super) async fn on_record(
    app: &AppState,
    attempt: Attempt,
    work: impl Future<Output = Response>,
) -> Response {
    let response = attempting(attempt.clone(), work).await;
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let outcome = if status.is_server_error() { Outcome::Failed } else { Outcome::Refused };
        let problem = kind(&response).map_or_else(|| status.to_string(), ToOwned::to_owned);
        app.service.refused(attempt, outcome, problem).await;
    }
    response
}

fn kind(response: &Response) -> Option<&str> {
    response.extensions().get::<Kind>().map(|kind| kind.0.as_str())
}

fn attempt(request: &Request, actor: &Actor, id: &str) -> Attempt {
    let route = request.extensions().get::<MatchedPath>();
    let path = request.uri().path();
    let below = path.strip_prefix("/api/v1/").unwrap_or(path);
    let action = format!("{} {}", request.method(), route.map_or(path, MatchedPath::as_str));
    Attempt::of(actor, Some(id.to_owned()), action, Target::parse(below))
}

/// Counts those who show nothing that is valid, by address.
pub(super) async fn strangers(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let response = next.run(request).await;
    let held_back = kind(&response).is_some_and(|kind| kind.ends_with(":too-many-failures"));
    if held_back || response.status() == StatusCode::UNAUTHORIZED {
        app.service.not_authenticated(peer.origin());
    }
    response
}
