//! Extractors that refuse with problem documents, under the names of axum's own.

#[cfg(test)]
mod fuzz;

use std::error::Error as _;

use axum::extract::path::ErrorKind;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tower_http::timeout::TimeoutError;

use super::conditional::is_tags;
use super::problem::{Problem, ProblemKind};
use super::state::AppState;
use crate::domain::json::{self, InvalidJsonValue, Unreadable};
use crate::domain::shortened;
use crate::service::access::context::RequestContext;
use crate::service::{FieldError, IdempotencyKey, ServiceError, WriteOptions};

/// The application and the caller's context, with which every use case is called.
pub(super) struct Call {
    pub(super) app: AppState,
    pub(super) ctx: RequestContext,
}

impl FromRequestParts<AppState> for Call {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, Problem> {
        let ctx = RequestContext::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), ctx })
    }
}

/// A JSON body; an invalid field is named by its pointer.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let json = request
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| {
                let mime = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                // A patch of operations is no object of fields.
                mime == "application/json" || mime.ends_with("+json") && mime != "application/json-patch+json"
            });
        if !json {
            return Err(Problem::new(
                ProblemKind::NotJson,
                "the request's Content-Type is not application/json: send JSON and say so",
            ));
        }
        parse(&body(request, state).await?).map(Self)
    }
}

/// No body: an empty one, or an empty object from a client that always sends one.
///
/// Anything else would be ignored silently, and its sender would not notice.
pub(super) struct NoBody;

impl<S: Send + Sync> FromRequest<S> for NoBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = body(request, state).await?;
        if matches!(bytes.trim_ascii(), b"" | b"{}") {
            return Ok(Self);
        }
        let detail =
            "this request takes no body: its parameters go into the query, as in ?grace_s=5".to_owned();
        Err(ServiceError::Invalid(vec![FieldError { pointer: String::new(), detail }]).into())
    }
}

/// A text body with its media type.
pub(super) struct TextBody {
    /// In lower case and without parameters; empty if there was none.
    pub(super) media_type: String,
    /// The text.
    pub(super) text: String,
}

impl<S: Send + Sync> FromRequest<S> for TextBody {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let media_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.and_then(|value| value.split(';').next()).unwrap_or_default();
        let media_type = media_type.trim().to_ascii_lowercase();
        let bytes = body(request, state).await?;
        match String::from_utf8(bytes.to_vec()) {
            Ok(text) => Ok(Self { media_type, text }),
            Err(error) => {
                let detail = format!("the body is not text: {error}");
                Err(Problem::new(ProblemKind::UnreadableBody, detail))
            }
        }
    }
}

/// The whole body of a request.
pub(super) async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<axum::body::Bytes, Problem> {
    if let Some(encoding) = request.headers().get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity")
    {
        let short: String = String::from_utf8_lossy(encoding.as_bytes()).chars().take(80).collect();
        return Err(Problem::new(
            ProblemKind::UnsupportedEncoding,
            format!(
                "the request's Content-Encoding is {short:?}: send the body as it is, without that header"
            ),
        ));
    }
    axum::body::Bytes::from_request(request, state).await.map_err(|rejection| {
        if too_slow(&rejection) {
            return Problem::new(
                ProblemKind::BodyTooSlow,
                "the request's body did not come in time (limits.body_timeout_s): send it faster".to_owned(),
            );
        }
        // One that is too large gets its own message on its way out.
        let is_too_large = rejection.status() == StatusCode::PAYLOAD_TOO_LARGE;
        let kind = if is_too_large { ProblemKind::BodyTooLarge } else { ProblemKind::UnreadableBody };
        Problem::new(kind, rejection.body_text())
    })
}

/// Returns true if a body came too slowly.
fn too_slow(rejection: &BytesRejection) -> bool {
    let mut causes = std::iter::successors(rejection.source(), |error| (*error).source());
    causes.any(<dyn std::error::Error>::is::<TimeoutError>)
}

/// Reads a JSON body.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    json::read(bytes).map_err(|error| match error {
        Unreadable::Malformed(_) => Problem::new(ProblemKind::MalformedJson, shortened(error.to_string())),
        Unreadable::Refused(refusal) => refused(refusal),
    })
}

pub(super) fn refused(InvalidJsonValue { pointer, detail }: InvalidJsonValue) -> Problem {
    ServiceError::Invalid(vec![FieldError { pointer, detail }]).into()
}

/// Parameters in the path.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => {
                Err(Problem::new(ProblemKind::InvalidRequest, shortened(wrong_path(rejection))))
            }
        }
    }
}

/// Returns the message for an invalid path, without the names of Rust types.
fn wrong_path(rejection: PathRejection) -> String {
    let PathRejection::FailedToDeserializePathParams(failed) = rejection else {
        return rejection.body_text();
    };
    let not_one = |value: &str, wanted: &str| {
        let wanted = if wanted.starts_with(['u', 'i']) { "a whole number in range" } else { "a valid value" };
        format!("{value:?} in the path is not accepted: give {wanted}")
    };
    match failed.into_kind() {
        ErrorKind::ParseError { value, expected_type }
        | ErrorKind::ParseErrorAtIndex { value, expected_type, .. }
        | ErrorKind::ParseErrorAtKey { value, expected_type, .. } => not_one(&value, expected_type),
        ErrorKind::DeserializeError { value, message, .. } if message.starts_with("UUID") => {
            format!("{value:?} in the path is not an ID: give one as its list shows it")
        }
        ErrorKind::DeserializeError { message, .. } => message,
        ErrorKind::InvalidUtf8InPathParam { key } => format!("{key} in the path is not valid UTF-8"),
        other => other.to_string(),
    }
}

/// Parameters in the query; the types refuse unknown ones.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        parse_query(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// Reads a query.
pub(super) fn parse_query<T: DeserializeOwned>(query: &str) -> Result<T, Problem> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let pairs = pairs.map(|(name, value)| (name.into_owned(), value.into_owned()));
    json::read_query(pairs).map_err(refused)
}

/// Headers that control a write.
pub(super) struct Conditions {
    if_match: Option<String>,
    must_be_new: bool,
}

impl Conditions {
    /// Combines them with the query's `dry_run`.
    pub(super) fn options(self, dry_run: bool) -> WriteOptions {
        WriteOptions { dry_run, if_match: self.if_match, must_be_new: self.must_be_new }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Conditions {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let if_none_match = text(&parts.headers, &header::IF_NONE_MATCH)?;
        if if_none_match.as_deref().is_some_and(|value| value != "*") {
            return Err(Problem::new(
                ProblemKind::InvalidRequest,
                "If-None-Match on a write may only be *: it is for creating what must not exist yet",
            ));
        }
        let if_match = text(&parts.headers, &header::IF_MATCH)?;
        if let Some(wrong) = if_match.as_deref().filter(|value| !is_tags(value)) {
            let short: String = wrong.chars().take(80).collect();
            return Err(Problem::new(
                ProblemKind::InvalidRequest,
                format!(
                    "If-Match is {short:?}, which is not an entity tag: send the ETag of a read with its quotes, or *"
                ),
            ));
        }
        Ok(Self { if_match, must_be_new: if_none_match.is_some() })
    }
}

/// The `Idempotency-Key` of a POST, and the path it was sent to.
pub(super) struct Idempotency {
    key: Option<String>,
    path: String,
}

/// Longest key, in bytes.
const MAX_KEY: usize = 255;

impl Idempotency {
    /// Adds the key and a digest of the request's content to its context.
    pub(super) fn add_to(
        self,
        ctx: RequestContext,
        request: &impl serde::Serialize,
    ) -> Result<RequestContext, Problem> {
        let body = serde_json::to_vec(request)
            .map_err(|error| Problem::from(ServiceError::Internal(error.to_string())))?;
        let key = self.digested(&ctx, [&body]);
        Ok(ctx.with_idempotency(key))
    }

    /// Returns the key of this actor, with a digest of the raw query and body.
    pub(super) fn of_bytes(self, ctx: &RequestContext, query: &str, body: &[u8]) -> Option<IdempotencyKey> {
        self.digested(ctx, [query.as_bytes(), body])
    }

    fn digested<const N: usize>(self, ctx: &RequestContext, request: [&[u8]; N]) -> Option<IdempotencyKey> {
        let key = self.key?;
        let mut digest = Sha256::new();
        digest.update(self.path.as_bytes());
        for part in request {
            digest.update([0]);
            digest.update(part);
        }
        let (owner, request_hash) = (ctx.actor.subject.to_string(), hex::encode(digest.finalize()));
        Some(IdempotencyKey { owner, key, request_hash })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Idempotency {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let key = text(&parts.headers, &header::HeaderName::from_static("idempotency-key"))?;
        let is_one =
            |key: &str| (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if key.as_deref().is_some_and(|key| !is_one(key)) {
            return Err(Problem::new(
                ProblemKind::InvalidRequest,
                format!(
                    "the Idempotency-Key must have 1 to {MAX_KEY} characters, printable ASCII without spaces, for example a UUID"
                ),
            ));
        }
        Ok(Self { key, path: parts.uri.path().to_owned() })
    }
}

fn text(headers: &HeaderMap, name: &header::HeaderName) -> Result<Option<String>, Problem> {
    match headers.get(name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(Problem::new(
                ProblemKind::InvalidRequest,
                format!("the header {name} is not printable ASCII"),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_entity_tags_are_accepted() {
        for good in ["*", "\"3\"", "W/\"3\"", "\"3\", \"4\"", "\"\"", "\"a-b\" ,W/\"x\""] {
            assert!(is_tags(good), "{good}");
        }
        for bad in ["", "3", "{}", "null", "\"3", "\"3\",", "\"a b\"", "W/3", "*, \"3\""] {
            assert!(!is_tags(bad), "{bad}");
        }
    }
}
