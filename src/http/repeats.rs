//! `Idempotency-Key` on a POST: a repeated request is answered as the first was, and done once.
//!
//! Most operations remember their answer in the transaction of their effect. For those that are made of several steps, or whose
//! effect is the same when they are done again, the answer is kept here, after it was given: [`KEPT`] names them, and to name
//! another one takes one line. If the manager dies in between, a repeated request is done again, which leaves the same state.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{FromRequestParts as _, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, Response as HttpResponse, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::openapi::OpenApi;

use super::AppState;
use super::audit::says_dry_run;
use super::document::operations;
use super::extract::{Idempotency, body};
use super::problem::Problem;
use crate::domain::access::Actor;
use crate::service::{IdempotencyKey, ServiceError};

/// The header.
pub(super) const HEADER: &str = "Idempotency-Key";

/// Operations whose answers are kept here.
const KEPT: [&str; 8] = [
    "adopt_daemon",
    "cancel_operation",
    "confirm_host",
    "cordon_daemon",
    "import_layouts",
    "release_daemon",
    "replace_gpu",
    "uncordon_daemon",
];
/// Operations that may be done again: plan and assert change nothing, and a process that asks twice has one lease. What a lease
/// hands out is what holds at that moment, for the process that asks, and no answer of an earlier one.
const HARMLESS: [&str; 3] = ["plan_layout", "assert_layout", "create_lease"];
/// Operations whose answer is a secret, which is kept nowhere.
const REFUSED: [&str; 2] = ["create_login_url", "open_session"];

/// What a key does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeated {
    /// Its answer is kept here.
    Kept,
    /// Nothing: the request may be done again.
    Harmless,
    /// It is refused.
    Refused,
}

/// What a key does to an operation; `None` for those that see to it themselves.
pub(super) fn repeated(operation: &str) -> Option<Repeated> {
    match operation {
        id if KEPT.contains(&id) => Some(Repeated::Kept),
        id if HARMLESS.contains(&id) => Some(Repeated::Harmless),
        id if REFUSED.contains(&id) => Some(Repeated::Refused),
        _ => None,
    }
}

/// What a key does to each POST, by its route, and the keys whose first request is under way.
#[derive(Clone)]
pub(super) struct Repeats {
    routes: Arc<HashMap<String, Repeated>>,
    under_way: Arc<Mutex<HashSet<(String, String)>>>,
}

impl Repeats {
    pub(super) fn of(document: &OpenApi) -> Self {
        let posts = operations(document).filter(|(method, ..)| *method == Method::POST);
        let routes = posts.filter_map(|(_, path, operation)| {
            Some((path.to_owned(), repeated(operation.operation_id.as_deref()?)?))
        });
        Self { routes: Arc::new(routes.collect()), under_way: Arc::default() }
    }

    /// Takes a key for a request; `None` while another request has it.
    fn begin(&self, key: &IdempotencyKey) -> Option<UnderWay> {
        let key = (key.owner.clone(), key.key.clone());
        let mut keys = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        keys.insert(key.clone()).then(|| UnderWay { all: Arc::clone(&self.under_way), key })
    }
}

/// A key whose first request is under way, until this is dropped.
struct UnderWay {
    all: Arc<Mutex<HashSet<(String, String)>>>,
    key: (String, String),
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// An answer as it is kept.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

/// Headers that belong to an answer itself; the others are given to each anew.
const OWN: [HeaderName; 3] = [header::CONTENT_TYPE, header::ETAG, header::LOCATION];

impl Answer {
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

/// Does a request with a key once.
pub(super) async fn once(
    State((app, repeats)): State<(AppState, Repeats)>,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST || !request.headers().contains_key(HEADER) {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let Some(repeated) = route.and_then(|route| repeats.routes.get(route).copied()) else {
        return next.run(request).await;
    };
    let actor = request.extensions().get::<Actor>().cloned();
    match (repeated, actor) {
        (Repeated::Kept, Some(actor)) => match kept(app, repeats, actor, request, next).await {
            Ok(response) => response,
            Err(problem) => problem.into_response(),
        },
        (Repeated::Refused, _) => Problem::new(
            "idempotency-key-refused",
            StatusCode::UNPROCESSABLE_ENTITY,
            "Idempotency-Key refused",
            "the answer to this request holds a secret that is kept nowhere, so a repeated request cannot get it again: leave \
             the Idempotency-Key out",
        )
        .into_response(),
        (Repeated::Harmless | Repeated::Kept, _) => next.run(request).await,
    }
}

async fn kept(
    app: AppState,
    repeats: Repeats,
    actor: Actor,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (mut parts, unread) = request.into_parts();
    let idempotency = Idempotency::from_request_parts(&mut parts, &()).await?;
    // A dry run keeps nothing, and so not its answer.
    if says_dry_run(&parts.uri) {
        return Ok(next.run(Request::from_parts(parts, unread)).await);
    }
    let head = parts.clone();
    let bytes = body(Request::from_parts(parts, unread), &()).await?;
    let Some(key) = idempotency.of_bytes(&actor, head.uri.query().unwrap_or_default(), &bytes) else {
        return Ok(next.run(Request::from_parts(head, Body::from(bytes))).await);
    };
    let Some(under_way) = repeats.begin(&key) else {
        let detail = format!(
            "a request with the Idempotency-Key {:?} is under way: wait for its answer, and then repeat it",
            key.key
        );
        return Err(ServiceError::Conflict(detail).into());
    };
    if let Some(text) = app.service.kept_answer(&key).await? {
        let answer: Answer = serde_json::from_str(&text)
            .map_err(|error| Problem::from(ServiceError::Internal(format!("a kept answer: {error}"))))?;
        return Ok(answer.into_response());
    }
    let request = Request::from_parts(head, Body::from(bytes));
    let service = app.service.clone();
    // A caller who hangs up and comes again gets the answer to what was begun.
    let work = async move {
        let _under_way = under_way;
        let response = next.run(request).await;
        if !response.status().is_success() {
            return response;
        }
        let (parts, body) = response.into_parts();
        let Ok(bytes) = axum::body::to_bytes(body, usize::MAX).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        let headers = OWN.iter().filter_map(|name| {
            let value = parts.headers.get(name)?.to_str().ok()?;
            Some((name.to_string(), value.to_owned()))
        });
        let answer = Answer {
            status: parts.status.as_u16(),
            headers: headers.collect(),
            body: String::from_utf8_lossy(&bytes).into_owned(),
        };
        match serde_json::to_string(&answer) {
            Ok(text) => service.keep_answer(key, text).await,
            Err(error) => tracing::warn!(%error, "an answer is not kept under its Idempotency-Key"),
        }
        Response::from_parts(parts, Body::from(bytes))
    };
    Ok(app.service.carry(actor, work).await?)
}
