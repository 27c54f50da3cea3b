//! The layers that requests pass on their way to a handler, and responses on their way back, from the outside in.
//!
//! ```text
//!   every request:  span, headers, count ▸ refusals as pages ▸ audit of refusals ▸ rate, size of the head ▸ time, panics ▸ host
//!   of the API:     who calls ▸ rate of the actor ▸ audit ▸ right ▸ inputs ▸ repeats or conditional reads
//! ```

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::acting::as_actor;
use super::auth;
use super::form_targets::FormTargets;
use super::peer::Peer;
use super::problem::{Limited, Problem, ProblemKind};
use super::repeats::Repeats;
use super::{AppState, audit, bounds, conditional, guard, inputs, memo, pages, repeats, rights};
use crate::config::Limits;
use crate::domain::audit::shown_path;
use crate::domain::token::without_secrets;
use crate::service::ServiceError;
use crate::service::access::context::RequestContext;

/// State of the API's layers.
#[derive(Clone)]
pub(super) struct ApiState {
    pub(super) app: AppState,
    pub(super) repeats: Repeats,
}

/// Counts a request, enforces limits, and adds the headers that every response has.
pub(super) async fn every_request(
    State((app, targets)): State<(AppState, FormTargets)>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let method = request.method().clone();
    let span = span(route, &request);
    async {
        let mut response = answered(&app, &targets, peer, request, next).await;
        if let Some(Limited(limit)) = response.extensions().get() {
            app.metrics.wire.limited(*limit);
        }
        let (status, took) = (response.status().as_u16(), began.elapsed());
        app.metrics.http.answered(route, method.as_str(), status, took);
        tracing::debug!(status, ?took, "answered");
        guard::add_headers(&mut response);
        response
    }
    .instrument(span)
    .await
}

/// The log span of a request, without its query or unmatched path, which may contain secrets.
fn span(route: Option<&str>, request: &Request) -> tracing::Span {
    tracing::debug_span!(
        "request",
        method = %request.method(),
        path = &*without_secrets(&shown_path(route.unwrap_or("none"), request.uri().path()))
    )
}

/// Runs a request, records a refusal of it, and turns that into a page for a browser.
async fn answered(
    app: &AppState,
    targets: &FormTargets,
    peer: Peer,
    mut request: Request,
    next: Next,
) -> Response {
    let reader = pages::reader(&request);
    let attempt = audit::Tracked::begin(app.service.clock(), targets, &mut request);
    let too_many = app.rates.of_peer(peer).err().map(|too_many| too_many.into_response(&app.limits));
    let refusal = too_many.or_else(|| bounds::large_head(&app.limits, &request));
    let response = match refusal {
        Some(refusal) => refusal,
        None => in_time(app, peer, request, next).await,
    };
    let response = attempt.end(app, peer, response).await;
    match reader {
        Some(reader) => pages::shown(app, peer, reader, response).await,
        None => response,
    }
}

/// Returns the response of the handler, or a problem if the host is wrong or the handler timed out or panicked.
async fn in_time(app: &AppState, peer: Peer, request: Request, next: Next) -> Response {
    if let Some(refusal) = guard::wrong_host(app, peer, &request) {
        return refusal;
    }
    let longest = Duration::from_secs(app.limits.request_timeout_s.into());
    let work = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(longest, work).await {
        Ok(Ok(response)) if response.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            body_too_large(&app.limits, &response)
        }
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            let detail = "a request handler failed; the log has the details".to_owned();
            Problem::from(ServiceError::Internal(detail)).unredacted().into_response()
        }
        Err(_) => {
            let detail = format!(
                "the request took longer than {} s (limits.request_timeout_s)",
                app.limits.request_timeout_s
            );
            Problem::from(ServiceError::TimedOut(detail)).unredacted().into_response()
        }
    }
}

/// Turns the plain text of the body limit layer, and of extractors that read in chunks, into a problem.
fn body_too_large(limits: &Limits, plain: &Response) -> Response {
    let detail = format!(
        "the request's body is over {} bytes: send less, or raise limits.body_bytes in the manager's configuration",
        limits.body_bytes
    );
    let mut answer = Problem::new(ProblemKind::BodyTooLarge, detail).into_response();
    // It may have been recorded already.
    if let Some(seen_to) = plain.extensions().get::<audit::RefusalHandled>() {
        answer.extensions_mut().insert(*seen_to);
    }
    answer
}

/// Runs an API request as its authenticated caller.
pub(super) async fn authenticated(
    State(state): State<ApiState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    let app = state.app.clone();
    match auth::admit(&app, peer, &mut request).await {
        Ok(actor) => {
            let allowed = |ctx, request| allowed(state, ctx, request, next);
            Box::pin(as_actor(&app, actor, request, allowed)).await
        }
        Err(refusal) => refusal,
    }
}

/// Refuses a request without the right to it, and one with inputs that are not accepted.
async fn allowed(state: ApiState, ctx: RequestContext, request: Request, next: Next) -> Response {
    match rights::check(&state.app.service, &ctx, request).await {
        Ok(request) => once(state, request, next).await,
        Err(refusal) => refusal,
    }
}

/// Runs a request that needs no token.
pub(super) async fn open(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    once(state, request, next).await
}

async fn once(state: ApiState, request: Request, next: Next) -> Response {
    if let Some(refusal) = inputs::refused(&request) {
        return refusal;
    }
    match *request.method() {
        Method::GET | Method::HEAD => {
            conditional::reads(request, async |request| {
                let app = &state.app;
                memo::read(&app.service, &app.memo, request, next).await
            })
            .await
        }
        _ => repeats::once(State((state.app, state.repeats)), request, next).await,
    }
}
