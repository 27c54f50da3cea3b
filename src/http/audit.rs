//! Audit tracking of requests: attaches the attempt to each request, and records refusals that no use case recorded.

use axum::extract::{MatchedPath, Query, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;

use super::AppState;
use super::auth;
use super::form_targets::FormTargets;
use super::peer::Peer;
use super::problem::Kind;
use crate::clock::Clock;
use crate::domain::access::Actor;
use crate::domain::audit::{AttemptedAction, AuditOutcome, Target};
use crate::service::Service;
use crate::service::access::context::RequestContext;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The change that a request would make, independent of its caller.
#[derive(Debug, Clone)]
pub(super) struct RequestedChange {
    /// The ID of the request.
    request: String,
    action: String,
    target: Target,
    rehearses: bool,
}

impl RequestedChange {
    /// Derives the change from the route of a request; `None` if the request changes nothing.
    fn of(request: &Request, id: &str, forms: &FormTargets) -> Option<Self> {
        let method = request.method();
        // No route takes other methods, and their names come from the caller.
        if !matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE) {
            return None;
        }
        let route = request.extensions().get::<MatchedPath>()?.as_str();
        Some(Self {
            request: id.to_owned(),
            action: format!("{method} {route}"),
            target: forms.of(route).unwrap_or_else(|| Target::of_request(route, request.uri().path())),
            rehearses: is_dry_run(request.uri()),
        })
    }

    /// Replaces the target by one that is not in the path.
    pub(super) fn about(self, target: &str) -> Self {
        Self { target: Target::Other(target.to_owned()), ..self }
    }

    /// Creates the context of the request for its actor.
    pub(super) fn by(&self, actor: Actor, clock: Clock) -> RequestContext {
        let Self { request, action, target, .. } = self.clone();
        RequestContext::new(actor, clock, Some((Some(request), action, target)))
    }

    /// Records that an attempt was refused; for a dry run the record says so.
    async fn record_refusal(&self, service: &Service, ctx: &RequestContext, (outcome, problem): Refusal) {
        let Some(mut attempt) = ctx.attempt().cloned() else { return };
        if self.rehearses {
            attempt.action.push_str("?dry_run=true");
        }
        service.without_permit().record_refusal(attempt, outcome, problem).await;
    }
}

/// Returns true if a query requests a dry run, however it is encoded.
pub(super) fn is_dry_run(uri: &Uri) -> bool {
    Query::<Vec<(String, String)>>::try_from_uri(uri)
        .is_ok_and(|Query(pairs)| pairs.iter().any(|(name, value)| name == "dry_run" && value == "true"))
}

/// Marks a response whose refusal was recorded or needs no record.
#[derive(Debug, Clone, Copy)]
pub(super) struct RefusalHandled;

/// A request with its ID, and what it would change.
pub(super) struct Tracked {
    id: String,
    requested: Option<(RequestedChange, HeaderMap)>,
}

impl Tracked {
    pub(super) fn begin(clock: Clock, forms: &FormTargets, request: &mut Request) -> Self {
        let id = clock.new_id().to_string();
        let requested =
            RequestedChange::of(request, &id, forms).map(|requested| (requested, request.headers().clone()));
        if let Some((requested, _)) = &requested {
            request.extensions_mut().insert(requested.clone());
        }
        Self { id, requested }
    }

    /// Adds the request ID to the response, and records a refused change by a known caller that reached no use case: any
    /// layer may refuse it without knowing of the audit log.
    ///
    /// A caller without valid credentials is recorded by the status alone.
    pub(super) async fn end(self, app: &AppState, peer: Peer, mut response: Response) -> Response {
        let is_handled = response.extensions().get::<RefusalHandled>().is_some();
        if response.status() == StatusCode::UNAUTHORIZED && !is_handled {
            let stranger = AttemptedAction::of_stranger(peer.origin(), &self.id);
            app.service.without_permit().not_authenticated(peer.source(), stranger).await;
        }
        if let Some((requested, headers)) = self.requested
            && let Some(refusal) = unrecorded_refusal(&response)
            && let Some(actor) = auth::known(app, peer, &headers)
        {
            let ctx = requested.by(actor, app.service.clock());
            requested.record_refusal(&app.service, &ctx, refusal).await;
        }
        if let Ok(id) = HeaderValue::from_str(&self.id) {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    }
}

/// The outcome of a request, and the type of its problem.
type Refusal = (AuditOutcome, String);

/// The refusal in a response, if it belongs in the audit log: rate-limited requests do not, and those of processes that wait for a
/// slot, or the log would grow with each of them.
fn refusal(response: &Response) -> Option<Refusal> {
    let status = response.status();
    let repeats = response.headers().contains_key(axum::http::header::RETRY_AFTER);
    let waits = repeats && kind(response).is_some_and(|kind| kind.ends_with(":at-capacity"));
    let outcome = match status {
        _ if waits => return None,
        StatusCode::TOO_MANY_REQUESTS => return None,
        _ if status.is_server_error() => AuditOutcome::Failed,
        _ if status.is_client_error() => AuditOutcome::Refused,
        _ => return None,
    };
    Some((outcome, kind(response).map_or_else(|| status.to_string(), ToOwned::to_owned)))
}

/// The refusal in a response if no use case recorded it.
///
/// A method that a path does not take names no action. Rate-limited requests leave no row, since refusing must cost less than
/// requesting.
fn unrecorded_refusal(response: &Response) -> Option<Refusal> {
    let elsewhere = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::UNAUTHORIZED];
    let seen_to = response.extensions().get::<RefusalHandled>().is_some();
    let recordable = !seen_to && kind(response).is_some() && !elsewhere.contains(&response.status());
    refusal(response).filter(|_| recordable)
}

/// Runs a caller's request, and records its refusal or failure.
pub(super) async fn record_refusal_of(
    service: &Service,
    requested: &RequestedChange,
    ctx: &RequestContext,
    work: impl Future<Output = Response>,
) -> Response {
    let mut response = work.await;
    if let Some(refusal) = refusal(&response) {
        requested.record_refusal(service, ctx, refusal).await;
    }
    response.extensions_mut().insert(RefusalHandled);
    response
}

fn kind(response: &Response) -> Option<&str> {
    response.extensions().get::<Kind>().map(|kind| kind.0.as_str())
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse as _;

    use super::*;
    use crate::domain::audit::shown_path;
    use crate::http::endpoint::ENDPOINTS;
    use crate::http::problem::{Problem, ProblemKind};

    fn answer(status: StatusCode) -> Response {
        let mut response = Problem::new(ProblemKind::Conflict, "a detail").into_response();
        *response.status_mut() = status;
        response
    }

    #[test]
    fn only_refusals_of_known_callers_leave_rows() {
        for status in
            [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNAUTHORIZED, StatusCode::METHOD_NOT_ALLOWED]
        {
            assert_eq!(unrecorded_refusal(&answer(status)), None, "{status}");
        }
        let kind = "urn:mps-manager:problem:conflict".to_owned();
        for status in [StatusCode::FORBIDDEN, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::MISDIRECTED_REQUEST]
        {
            assert_eq!(
                unrecorded_refusal(&answer(status)),
                Some((AuditOutcome::Refused, kind.clone())),
                "{status}"
            );
        }
        assert_eq!(
            unrecorded_refusal(&answer(StatusCode::GATEWAY_TIMEOUT)),
            Some((AuditOutcome::Failed, kind))
        );
        let mut seen_to = answer(StatusCode::FORBIDDEN);
        seen_to.extensions_mut().insert(RefusalHandled);
        assert_eq!(unrecorded_refusal(&seen_to), None);
        assert_eq!(unrecorded_refusal(&StatusCode::OK.into_response()), None);
    }

    #[test]
    fn every_write_has_an_audit_target() {
        let samples = ["web", "12-34", "0123456789abcdef", "01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c", "0"];
        let mut writes = 0;
        for endpoint in ENDPOINTS.iter().filter(|endpoint| endpoint.method != Method::GET) {
            let mut path = String::new();
            for part in endpoint.route.split('/').skip(1) {
                let tried = |sample: &&&str| {
                    let route = format!("{path}/{part}");
                    shown_path(&route, &format!("{path}/{sample}")).ends_with(**sample)
                };
                let filled = if part.starts_with('{') { samples.iter().find(tried) } else { Some(&part) };
                let filled = filled
                    .unwrap_or_else(|| panic!("{}: say in `is_of_kind` what {part} is", endpoint.route));
                path = format!("{path}/{filled}");
            }
            let target = Target::of_request(endpoint.route, &path).to_string();
            assert!(!target.is_empty() && !target.contains('{'), "{path}: {target}");
            writes += 1;
        }
        assert!(writes > 30, "{writes}");
    }
}
