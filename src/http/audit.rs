//! Attempts, on their way in and out: who tries what goes with the request, and what comes of it where it is refused goes on record.

use axum::extract::{ConnectInfo, Extension, MatchedPath, Query, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use uuid::Uuid;

use super::AppState;
use super::auth::{self, Peer};
use super::problem::Kind;
use crate::clock::unix_ms;
use crate::domain::access::Actor;
use crate::domain::audit::{Attempt, Outcome, Target};
use crate::service::Service;
use crate::service::acting::attempting;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// What a request would change, whoever sends it.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    /// The ID of the request.
    request: String,
    action: String,
    target: Target,
    rehearses: bool,
}

impl Asked {
    /// By the route that a request matches; `None` for one that changes nothing, whatever comes of it.
    fn of(request: &Request, id: &str) -> Option<Self> {
        let method = request.method();
        // Others name nothing that could be done: no route takes them, and their words are the caller's.
        if !matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        Some(Self {
            request: id.to_owned(),
            action: format!("{method} {route}"),
            target: of_page(route).unwrap_or_else(|| Target::of_request(route, request.uri().path())),
            rehearses: says_dry_run(request.uri()),
        })
    }

    /// The same about something that the path does not name.
    pub(super) fn about(self, target: &str) -> Self {
        Self { target: Target::Other(target.to_owned()), ..self }
    }

    /// The attempt of whoever asks.
    pub(super) fn by(&self, actor: &Actor) -> Attempt {
        Attempt::of(actor, Some(self.request.clone()), self.action.clone(), self.target.clone())
    }

    /// Puts on record that an attempt was refused; that of a dry run tells that it was one.
    async fn refused(&self, service: &Service, mut attempt: Attempt, (outcome, problem): Refusal) {
        if self.rehearses {
            attempt.action.push_str("?dry_run=true");
        }
        service.refused(attempt, outcome, problem).await;
    }
}

/// What a page's form is about where its own address does not say it as that of the API's request does: who asks for all that was done
/// to something finds both.
fn of_page(route: &str) -> Option<Target> {
    let target = match route {
        "/layouts/-/import" => "layouts/import",
        "/replays/new" => "replays",
        "/tokens/new" => "tokens",
        "/settings/confirm-host" => "host/confirm",
        "/settings/log-out-everywhere" => "sessions",
        "/settings/login-url" => "login-urls",
        "/settings/maintenance" | "/settings/maintenance/end" => "host/maintenance",
        _ => return None,
    };
    Some(Target::Other(target.to_owned()))
}

/// Whether a query asks for a dry run, in whatever way it is written.
pub(super) fn says_dry_run(uri: &Uri) -> bool {
    Query::<Vec<(String, String)>>::try_from_uri(uri)
        .is_ok_and(|Query(pairs)| pairs.iter().any(|(name, value)| name == "dry_run" && value == "true"))
}

/// A new ID, which begins with the time. `Uuid::now_v7` panics while the clock is before 1970.
fn request_id(now: i64) -> Uuid {
    let mut random = [0; 10];
    // Without randomness, IDs of one millisecond are alike: they name lines of a log and open nothing.
    if let Err(error) = getrandom::fill(&mut random) {
        tracing::warn!(%error, "no randomness for the ID of a request");
    }
    uuid::Builder::from_unix_timestamp_millis(u64::try_from(now).unwrap_or_default(), &random).into_uuid()
}

/// That an answer has been looked at for the record.
#[derive(Debug, Clone, Copy)]
pub(super) struct SeenTo;

/// Gives a request its ID, and puts on record what is refused of what a known caller would change before it gets to a use case:
/// whatever stands in between may refuse it, and none of that has to know of the record.
pub(super) async fn answered(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = request_id(unix_ms()).to_string();
    let asked = Asked::of(&request, &id).map(|asked| (asked, request.headers().clone()));
    if let Some((asked, _)) = &asked {
        request.extensions_mut().insert(asked.clone());
    }
    let mut response = next.run(request).await;
    if let Some((asked, headers)) = asked
        && let Some(refusal) = unseen(&response)
        && let Some(actor) = auth::known(&app, peer, &headers)
    {
        asked.refused(&app.service, asked.by(&actor), refusal).await;
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

/// What came of a request, and the type of its problem.
type Refusal = (Outcome, String);

/// What an answer refuses that belongs on record, if it does: what is refused for its number must not grow the audit by its number.
fn refusal(response: &Response) -> Option<Refusal> {
    let status = response.status();
    let outcome = match status {
        StatusCode::TOO_MANY_REQUESTS => return None,
        _ if status.is_server_error() => Outcome::Failed,
        _ if status.is_client_error() => Outcome::Refused,
        _ => return None,
    };
    Some((outcome, kind(response).map_or_else(|| status.to_string(), ToOwned::to_owned)))
}

/// What an answer refuses that no use case gave, and that belongs on record.
///
/// A method that a path does not take names nothing that could be done. Who asks too often is told so without a row: to refuse has to
/// cost less than to ask. Who shows nothing valid is counted by address.
fn unseen(response: &Response) -> Option<Refusal> {
    let elsewhere = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::UNAUTHORIZED];
    let seen_to = response.extensions().get::<SeenTo>().is_some();
    let told = !seen_to && kind(response).is_some() && !elsewhere.contains(&response.status());
    refusal(response).filter(|_| told)
}

/// Does a request as an attempt of whoever calls, and puts on record what is refused of what would write.
pub(super) async fn attempts(
    State(app): State<AppState>,
    actor: Actor,
    asked: Option<Extension<Asked>>,
    request: Request,
    next: Next,
) -> Response {
    match asked {
        Some(Extension(asked)) => on_record(&app.service, &asked, &actor, next.run(request)).await,
        None => next.run(request).await,
    }
}

/// Does what somebody asks; where it is refused or fails, that goes on record, too.
pub(super) async fn on_record(
    service: &Service,
    asked: &Asked,
    actor: &Actor,
    work: impl Future<Output = Response>,
) -> Response {
    let attempt = asked.by(actor);
    let mut response = attempting(attempt.clone(), work).await;
    if let Some(refusal) = refusal(&response) {
        asked.refused(service, attempt, refusal).await;
    }
    response.extensions_mut().insert(SeenTo);
    response
}

fn kind(response: &Response) -> Option<&str> {
    response.extensions().get::<Kind>().map(|kind| kind.0.as_str())
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

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use crate::http::problem::Problem;

    fn answer(status: StatusCode) -> Response {
        Problem::new("some-kind", status, "A title", "a detail").into_response()
    }

    #[test]
    fn a_flood_a_stranger_and_what_names_nothing_leave_no_row_and_any_other_refusal_leaves_one() {
        for status in
            [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED, StatusCode::METHOD_NOT_ALLOWED]
        {
            assert_eq!(unseen(&answer(status)), None, "{status}");
        }
        let kind = "urn:mps-manager:problem:some-kind".to_owned();
        for status in [StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::MISDIRECTED_REQUEST]
        {
            assert_eq!(unseen(&answer(status)), Some((Outcome::Refused, kind.clone())), "{status}");
        }
        assert_eq!(unseen(&answer(StatusCode::GATEWAY_TIMEOUT)), Some((Outcome::Failed, kind)));
        let mut seen_to = answer(StatusCode::FORBIDDEN);
        seen_to.extensions_mut().insert(SeenTo);
        assert_eq!(unseen(&seen_to), None);
        assert_eq!(unseen(&StatusCode::OK.into_response()), None);
    }
}
