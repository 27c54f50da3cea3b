//! `Idempotency-Key` on a POST: a repeated request runs once, and gets the first answer.
//!
//! Most operations store their answer in the transaction of their effect. For those with several steps, or with the same
//! effect when repeated, the answer is stored here afterwards: their endpoints declare [`KeyPolicy::StoreAnswer`]. If the
//! manager dies in between, a repeated request runs again, which leads to the same state.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequestParts as _, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, Response as HttpResponse, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};

use super::AppState;
use super::audit::is_dry_run;
use super::endpoint::{Endpoint, KeyPolicy};
use super::extract::{Idempotency, body};
use super::problem::{Problem, ProblemKind};
use crate::service::access::context::RequestContext;
use crate::service::{IdempotencyKey, ServiceError};

/// The header.
pub(super) const HEADER: &str = "Idempotency-Key";

/// The keys whose first request is in progress.
#[derive(Clone, Default)]
pub(super) struct Repeats(Arc<Mutex<HashSet<(String, String)>>>);

impl Repeats {
    /// Claims a key for a request; `None` while another request has it.
    fn begin(&self, key: &IdempotencyKey) -> Option<KeyInProgress> {
        let key = (key.owner.clone(), key.key.clone());
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key.clone()).then(|| KeyInProgress { all: Arc::clone(&self.0), key })
    }
}

/// A key whose first request is in progress, until this is dropped.
struct KeyInProgress {
    all: Arc<Mutex<HashSet<(String, String)>>>,
    key: (String, String),
}

impl Drop for KeyInProgress {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// An answer as stored.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredResponse {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Headers that belong to the answer itself; the others are set for each response.
const OWN: [HeaderName; 3] = [header::CONTENT_TYPE, header::ETAG, header::LOCATION];

impl StoredResponse {
    fn into_response(self) -> Response {
        let mut response = HttpResponse::new(Body::from(self.body));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK);
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                response.headers_mut().insert(name, value);
            }
        }
        response
    }
}

/// Runs a request with a key once.
pub(super) async fn once(
    State((app, repeats)): State<(AppState, Repeats)>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    let Some(policy) = Endpoint::of(&request).and_then(|endpoint| endpoint.key_policy) else {
        return next.run(request).await;
    };
    let ctx = request.extensions().get::<RequestContext>().cloned();
    match (policy, ctx) {
        (KeyPolicy::StoreAnswer, Some(ctx)) => match kept(app, repeats, ctx, request, next).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        (KeyPolicy::Refuse, _) => {
            let detail = "the answer to this request contains a secret that is not stored, so a repeated request cannot get it again: \
                          leave the Idempotency-Key out";
            Problem::new(ProblemKind::IdempotencyKeyRefused, detail).into_response()
        }
        (KeyPolicy::NoEffect | KeyPolicy::StoreAnswer, _) => next.run(request).await,
    }
}

async fn kept(
    app: AppState,
    repeats: Repeats,
    ctx: RequestContext,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, unread) = request.into_parts();
    let idempotency = Idempotency::from_request_parts(&mut parts, &()).await?;
    // A dry run stores nothing, so its answer is not stored either.
    if is_dry_run(&parts.uri) {
        return Ok(next.run(Request::from_parts(parts, unread)).await);
    }
    let head = parts.clone();
    let bytes = body(Request::from_parts(parts, unread), &()).await?;
    let Some(key) = idempotency.of_bytes(&ctx, head.uri.query().unwrap_or_default(), &bytes) else {
        return Ok(next.run(Request::from_parts(head, Body::from(bytes))).await);
    };
    let Some(under_way) = repeats.begin(&key) else {
        let detail = format!(
            "a request with the Idempotency-Key {:?} is in progress: wait for its answer, and then repeat it",
            key.key
        );
        return Err(ServiceError::Conflict(detail).into());
    };
    if let Some(text) = app.service.without_permit().kept_answer(&key).await? {
        let answer: StoredResponse = serde_json::from_str(&text)
            .map_err(|error| Problem::from(ServiceError::Internal(format!("a stored answer: {error}"))))?;
        return Ok(answer.into_response());
    }
    let request = Request::from_parts(head, Body::from(bytes));
    let response = next.run(request).await;
    if !response.status().is_success() {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
        return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    };
    let headers = OWN.iter().filter_map(|name| {
        let value = parts.headers.get(name)?.to_str().ok()?;
        Some((name.to_string(), value.to_owned()))
    });
    let answer = StoredResponse {
        status: parts.status.as_u16(),
        headers: headers.collect(),
        body: String::from_utf8_lossy(&bytes).into_owned(),
    };
    match serde_json::to_string(&answer) {
        Ok(text) => app.service.without_permit().keep_answer(key, text).await,
        Err(error) => tracing::warn!(%error, "an answer could not be stored under its Idempotency-Key"),
    }
    drop(under_way);
    Ok(Response::from_parts(parts, Body::from(bytes)))
}
