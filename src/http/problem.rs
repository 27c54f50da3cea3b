//! Errors as problem documents (RFC 9457).

use std::fmt::Write as _;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::domain::access::{Actor, Denied};
use crate::metrics::wire::Limit;
use crate::service::access::context::RequestContext;
use crate::service::{FieldError, Service, ServiceError};

/// The answer of a handler: JSON, or a problem.
pub(super) type Answer<T> = Result<axum::Json<T>, Problem>;

/// The answer of a handler in other forms: a response, or a problem.
pub(super) type Reply = Result<Response, Problem>;

/// Declares every kind of problem: the last part of its type, which `docs/problems.md` explains, its status, and its title.
macro_rules! problem_kinds {
    ($($name:ident $word:literal $status:ident $title:literal,)+) => {
        /// A kind of problem.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each has a title")]
        pub enum ProblemKind { $($name,)+ }

        impl ProblemKind {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Returns the last part of the type, the status, and the title.
            pub fn row(self) -> (&'static str, StatusCode, &'static str) {
                match self { $(Self::$name => ($word, StatusCode::$status, $title),)+ }
            }
        }
    };
}

problem_kinds! {
    MalformedJson "malformed-json" BAD_REQUEST "Malformed JSON",
    UnreadableBody "unreadable-body" BAD_REQUEST "The body cannot be read",
    NoHost "no-host" BAD_REQUEST "No Host header",
    Unauthorized "unauthorized" UNAUTHORIZED "No valid token",
    CrossSite "cross-site" FORBIDDEN "From another site",
    Forbidden "forbidden" FORBIDDEN "Forbidden",
    NotFound "not-found" NOT_FOUND "Not found",
    NoSuchPath "no-such-path" NOT_FOUND "No such path",
    MethodNotAllowed "method-not-allowed" METHOD_NOT_ALLOWED "Method not allowed",
    NotAcceptable "not-acceptable" NOT_ACCEPTABLE "Not acceptable",
    BodyTooSlow "body-too-slow" REQUEST_TIMEOUT "The body came too slowly",
    AtCapacity "at-capacity" CONFLICT "At capacity",
    Conflict "conflict" CONFLICT "Conflict",
    NotAdmitted "not-admitted" CONFLICT "The daemon cannot admit this",
    LayoutBlocked "layout-blocked" CONFLICT "The layout is blocked",
    HostFileRefused "host-file-refused" CONFLICT "The host file is refused",
    FingerprintDiffers "fingerprint-differs" CONFLICT "Recorded on other hardware or versions",
    ReadOnly "read-only" CONFLICT "Nothing may be changed now",
    PreconditionFailed "precondition-failed" PRECONDITION_FAILED "Precondition failed",
    BodyTooLarge "body-too-large" PAYLOAD_TOO_LARGE "Body too large",
    NotJson "not-json" UNSUPPORTED_MEDIA_TYPE "Not JSON",
    NotADocument "not-a-document" UNSUPPORTED_MEDIA_TYPE "Not a document of this kind",
    UnsupportedEncoding "unsupported-encoding" UNSUPPORTED_MEDIA_TYPE "Unsupported content encoding",
    WrongHost "wrong-host" MISDIRECTED_REQUEST "Not a name of this server",
    InvalidRequest "invalid-request" UNPROCESSABLE_ENTITY "Invalid request",
    IdempotencyKeyReused "idempotency-key-reused" UNPROCESSABLE_ENTITY "Idempotency-Key reused",
    IdempotencyKeyRefused "idempotency-key-refused" UNPROCESSABLE_ENTITY "Idempotency-Key refused",
    TooManyFailures "too-many-failures" TOO_MANY_REQUESTS "Too many failed attempts",
    TooManyRequests "too-many-requests" TOO_MANY_REQUESTS "Too many requests",
    HeadTooLarge "head-too-large" REQUEST_HEADER_FIELDS_TOO_LARGE "Header fields too large",
    Internal "internal" INTERNAL_SERVER_ERROR "Internal error",
    DatabaseLost "database-lost" SERVICE_UNAVAILABLE "The database file is missing",
    Unavailable "unavailable" SERVICE_UNAVAILABLE "Unavailable at the moment",
    TimedOut "timed-out" GATEWAY_TIMEOUT "No answer in time",
}

/// Prefix of a problem's type.
pub const TYPE_PREFIX: &str = "urn:mps-manager:problem:";

/// An error, for programs and for people (RFC 9457).
#[derive(Debug, Clone, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    /// The kind of problem: stable, and listed in `docs/problems.md`.
    #[serde(rename = "type")]
    #[schema(pattern = "^urn:mps-manager:problem:[a-z-]+$", example = "urn:mps-manager:problem:not-found")]
    pub kind: String,
    /// The kind in plain words.
    pub title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// Explanation of the error, with the offending value and the remedy.
    pub detail: String,
    /// The invalid fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Seconds to wait, for the header Retry-After.
    #[serde(skip)]
    wait_s: Option<u32>,
    /// The exceeded limit.
    #[serde(skip)]
    limit: Option<Limit>,
    /// Information that only host users may see.
    #[serde(skip)]
    beside: Option<Box<ForHostUsers>>,
}

/// Information that host users see instead of a problem, or in addition.
#[derive(Debug, Clone)]
enum ForHostUsers {
    /// The full problem, which replaces the redacted one.
    Full(Problem),
    /// The kind and the name of a missing object, for which similar names may be suggested.
    Unknown(&'static str, String),
}

impl Problem {
    /// Returns true if the problem is of this kind, as docs/problems.md names it.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.strip_prefix(TYPE_PREFIX) == Some(kind)
    }

    /// Builds a problem.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        let (word, status, title) = kind.row();
        Self {
            kind: format!("{TYPE_PREFIX}{word}"),
            title: title.to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
            wait_s: None,
            limit: None,
            beside: None,
        }
    }

    /// The status of its answer.
    pub(super) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// An exceeded limit; the response is counted by it.
    pub(super) fn too_many(kind: ProblemKind, limit: Limit, detail: String, wait_s: u32) -> Self {
        Self { wait_s: Some(wait_s), limit: Some(limit), ..Self::new(kind, detail) }
    }

    /// Creates the problem of an error as an actor may see it.
    pub(super) fn of(error: ServiceError, actor: &Actor) -> Self {
        let problem = Self::from(error);
        if actor.scope().is_some() { problem } else { problem.unredacted() }
    }

    /// Returns the full problem instead of the redacted one.
    pub(super) fn unredacted(mut self) -> Self {
        match self.beside.take().map(|beside| *beside) {
            Some(ForHostUsers::Full(full)) => full,
            _ => self,
        }
    }

    fn with(mut self, errors: Vec<FieldError>) -> Self {
        self.errors = errors;
        self
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        ServiceError::from(denied).into()
    }
}

/// Creates the problem as tenants may see it, and keeps the full one beside it for [`for_actor`], which shows it to host users.
impl From<ServiceError> for Problem {
    fn from(error: ServiceError) -> Self {
        if let ServiceError::Internal(detail) = &error {
            tracing::error!(detail, "internal error");
        }
        let (redacted, full) = (error.clone().into_tenant_error(), error.into_host_error());
        let problem = Self::shown(redacted.clone());
        if full == redacted {
            return problem;
        }
        Self { beside: Some(Box::new(ForHostUsers::Full(Self::shown(full)))), ..problem }
    }
}

impl Problem {
    fn shown(error: ServiceError) -> Self {
        let detail = error.to_string();
        match error {
            ServiceError::ForAudience { host, .. } => Self::shown(*host),
            ServiceError::TooMany { wait_s, of, .. } => {
                Self::too_many(ProblemKind::TooManyRequests, of, detail, wait_s)
            }
            ServiceError::NotFound { kind, name } => {
                let problem = Self::new(ProblemKind::NotFound, detail);
                Self { beside: Some(Box::new(ForHostUsers::Unknown(kind, name))), ..problem }
            }
            ServiceError::Forbidden(_) => Self::new(ProblemKind::Forbidden, detail),
            ServiceError::Invalid(errors) => {
                let detail = errors.first().map_or(detail, |first| first.detail.clone());
                Self::new(ProblemKind::InvalidRequest, detail).with(errors)
            }
            ServiceError::Conflict(_) => Self::new(ProblemKind::Conflict, detail),
            ServiceError::AtCapacity { keeps_turn, .. } => {
                let problem = Self::new(ProblemKind::AtCapacity, detail);
                Self { wait_s: keeps_turn.then_some(1), ..problem }
            }
            ServiceError::ReadOnly(_) => Self::new(ProblemKind::ReadOnly, detail),
            ServiceError::NotAdmitted(field) => Self::new(ProblemKind::NotAdmitted, detail).with(vec![field]),
            ServiceError::Blocked { errors, .. } => {
                Self::new(ProblemKind::LayoutBlocked, detail).with(errors)
            }
            ServiceError::HostFileRefused { errors, .. } => {
                Self::new(ProblemKind::HostFileRefused, detail).with(errors)
            }
            ServiceError::OtherHardware { errors, .. } => {
                Self::new(ProblemKind::FingerprintDiffers, detail).with(errors)
            }
            ServiceError::PreconditionFailed(_) => Self::new(ProblemKind::PreconditionFailed, detail),
            ServiceError::KeyReused(_) => Self::new(ProblemKind::IdempotencyKeyReused, detail),
            ServiceError::DatabaseLost(_) => Self::new(ProblemKind::DatabaseLost, detail),
            ServiceError::Unavailable(_) => Self::new(ProblemKind::Unavailable, detail),
            ServiceError::TimedOut(_) => Self::new(ProblemKind::TimedOut, detail),
            ServiceError::Internal(_) => Self::new(ProblemKind::Internal, detail),
        }
    }
}

/// The type of the problem in a response, for layers that it passes.
#[derive(Debug, Clone)]
pub(super) struct Kind(pub(super) String);

/// Its detail, for layers that render it differently.
#[derive(Debug, Clone)]
pub(super) struct Detail(pub(super) String);

/// Its title.
#[derive(Debug, Clone)]
pub(super) struct Title(pub(super) String);

/// Its invalid fields.
#[derive(Debug, Clone)]
pub(super) struct FieldErrors(pub(super) Vec<FieldError>);

/// The exceeded limit of a 429 response, kept when a layer renders it differently.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limited(pub(super) Limit);

/// The problem of a response, with what host users see instead of it or in addition.
#[derive(Debug, Clone)]
pub(super) struct Beside(Problem, ForHostUsers);

/// Returns the response as an actor may see it: a host user gets the full problem instead of a redacted one, and for an unknown name the
/// suggestion of a similar one.
pub(super) async fn for_actor(service: &Service, ctx: &RequestContext, mut response: Response) -> Response {
    let beside = response.extensions_mut().remove::<Beside>().filter(|_| ctx.actor.scope().is_none());
    match beside {
        Some(Beside(_, ForHostUsers::Full(full))) => full.into_response(),
        Some(Beside(mut problem, ForHostUsers::Unknown(kind, name))) => {
            match service.similar_name(ctx, kind, &name).await {
                Some(similar) => {
                    let _ = write!(problem.detail, "; did you mean {similar}?");
                    problem.into_response()
                }
                None => response,
            }
        }
        None => response,
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let status = self.status();
        let beside = self.beside.take();
        let mut response = (status, axum::Json(&self)).into_response();
        if let Some(beside) = beside {
            response.extensions_mut().insert(Beside(self.clone(), *beside));
        }
        response.extensions_mut().insert(Kind(self.kind));
        response.extensions_mut().insert(Detail(self.detail));
        response.extensions_mut().insert(Title(self.title));
        response.extensions_mut().insert(FieldErrors(self.errors));
        if let Some(limit) = self.limit {
            response.extensions_mut().insert(Limited(limit));
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(seconds) = self.wait_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            // RFC 9110, 15.5.16: lets the sender distinguish an encoding problem from a type problem.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"mps-manager\""));
        }
        response
    }
}

/// Answers a request for a path that does not exist.
pub(super) async fn no_route(uri: axum::http::Uri) -> Problem {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(
        ProblemKind::NoSuchPath,
        format!("there is nothing at {path}: /openapi.json lists what there is"),
    )
}
