//! Extractors that refuse in problem documents, under the names of axum's own.

#[cfg(test)]
mod fuzz;

use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tower_http::timeout::TimeoutError;

use super::problem::Problem;
use super::server::TooSlow;
use crate::domain::access::Actor;
use crate::domain::shortened;
use crate::service::{FieldError, IdempotencyKey, ServiceError, WriteOptions};

/// A JSON body; a field that is wrong is named by its pointer.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let json =
            request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(
                |value| {
                    let mime = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
                    mime == "application/json" || mime.ends_with("+json")
                },
            );
        if !json {
            return Err(Problem::new(
                "not-json",
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Not JSON",
                "the request's Content-Type is not application/json: send JSON and say so",
            ));
        }
        parse(&body(request, state).await?).map(Self)
    }
}

/// No body: an empty one, or an empty object from a client that always sends one.
///
/// Whatever else it held would be ignored in silence, and its sender would believe otherwise.
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

/// A body of text, with the media type that its sender gives it.
pub(super) struct TextBody {
    /// In lower case and without parameters; empty where none was given.
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
                let detail = format!("the body is no text: {error}");
                Err(Problem::new(
                    "unreadable-body",
                    StatusCode::BAD_REQUEST,
                    "The body cannot be read",
                    detail,
                ))
            }
        }
    }
}

pub(super) async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<axum::body::Bytes, Problem> {
    axum::body::Bytes::from_request(request, state).await.map_err(|rejection| {
        if let Some(detail) = too_slow(&rejection) {
            return Problem::new(
                "body-too-slow",
                StatusCode::REQUEST_TIMEOUT,
                "The body came too slowly",
                detail,
            );
        }
        let status = rejection.status();
        // One that is too large is told of in other words on its way out.
        let kind = if status == StatusCode::PAYLOAD_TOO_LARGE { "body-too-large" } else { "unreadable-body" };
        Problem::new(kind, status, "The body cannot be read", rejection.body_text())
    })
}

/// What to say of a body that was given up since it came too slowly.
fn too_slow(rejection: &BytesRejection) -> Option<String> {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(rejection);
    while let Some(cause) = error {
        if let Some(slow) = cause.downcast_ref::<TooSlow>() {
            return Some(slow.to_string());
        }
        if cause.is::<TimeoutError>() {
            return Some(format!(
                "nothing of the request's body came for {} s: send it without such pauses",
                super::BODY_TIMEOUT.as_secs()
            ));
        }
        error = cause.source();
    }
    None
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Problem> {
    // Every body here is an object; serde would also take an array of its fields in order.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let detail = "the body is an array: send an object with named fields".to_owned();
        return Err(ServiceError::Invalid(vec![FieldError { pointer: String::new(), detail }]).into());
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let pointer = shortened(pointer(error.path()));
        let inner = error.into_inner();
        // A key that is no number where numbers are keys counts as syntax to serde_json, and is a value that is refused.
        if inner.is_data() || inner.to_string().starts_with("invalid value: expected key to be a number") {
            return ServiceError::Invalid(vec![FieldError { pointer, detail: plain(&inner) }]).into();
        }
        malformed(&inner)
    })?;
    deserializer.end().map_err(|error| malformed(&error))?;
    Ok(value)
}

fn malformed(error: &serde_json::Error) -> Problem {
    Problem::new(
        "malformed-json",
        StatusCode::BAD_REQUEST,
        "Malformed JSON",
        format!("the body is not JSON: {error}"),
    )
}

/// The message without the position that serde adds: the pointer says where.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((message, _)) => shortened(message.to_owned()),
        None => shortened(text),
    }
}

fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter()
        .map(|segment| match segment {
            Segment::Seq { index } => format!("/{index}"),
            Segment::Map { key } => format!("/{}", key.replace('~', "~0").replace('/', "~1")),
            Segment::Enum { variant } => format!("/{variant}"),
            Segment::Unknown => "/".to_owned(),
        })
        .collect()
}

/// Parameters in the path.
pub(super) struct Path<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(Problem::new(
                "invalid-request",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid request",
                // What stands before the colon is axum's, and says nothing to a caller.
                rejection.body_text().trim_start_matches("Invalid URL: "),
            )),
        }
    }
}

/// Parameters in the query; unknown ones are refused by the types that use this.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(Problem::new(
                "invalid-request",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid request",
                format!("the query is refused: {}", rejection.body_text()),
            )),
        }
    }
}

/// Headers that decide how a write is done.
pub(super) struct Conditions {
    if_match: Option<String>,
    must_be_new: bool,
}

impl Conditions {
    /// Together with the query's `dry_run`.
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
                "invalid-request",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid request",
                "If-None-Match on a write may only be *: it is for creating what must not exist yet",
            ));
        }
        let if_match = text(&parts.headers, &header::IF_MATCH)?;
        if let Some(wrong) = if_match.as_deref().filter(|value| !is_tags(value)) {
            let shown: String = wrong.chars().take(80).collect();
            return Err(Problem::new(
                "invalid-request",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid request",
                format!(
                    "If-Match is {shown:?}, which is no entity tag: send the ETag of a read with its quotes, or *"
                ),
            ));
        }
        Ok(Self { if_match, must_be_new: if_none_match.is_some() })
    }
}

/// Whether a header is `*` or a list of entity tags (RFC 9110, 8.8.3).
fn is_tags(value: &str) -> bool {
    let is_tag = |tag: &str| {
        let opaque = tag.strip_prefix("W/").unwrap_or(tag);
        let inner = opaque.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inner.is_some_and(|inner| inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'))
    };
    value == "*" || value.split(',').all(|tag| is_tag(tag.trim_matches([' ', '\t'])))
}

/// The `Idempotency-Key` of a POST, and the path it was sent to.
pub(super) struct Idempotency {
    key: Option<String>,
    path: String,
}

/// Longest key, in bytes.
const MAX_KEY: usize = 255;

impl Idempotency {
    /// The key of this actor, with a digest of what was requested.
    pub(super) fn of(
        self,
        actor: &Actor,
        request: &impl serde::Serialize,
    ) -> Result<Option<IdempotencyKey>, Problem> {
        let Some(key) = self.key else { return Ok(None) };
        let body = serde_json::to_vec(request)
            .map_err(|error| Problem::from(ServiceError::Internal(error.to_string())))?;
        let mut digest = Sha256::new();
        digest.update(self.path.as_bytes());
        digest.update([0]);
        digest.update(&body);
        Ok(Some(IdempotencyKey {
            owner: actor.subject.to_string(),
            key,
            request_hash: hex::encode(digest.finalize()),
        }))
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
                "invalid-request",
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid request",
                format!(
                    "the Idempotency-Key must have 1 to {MAX_KEY} characters, printable ASCII without spaces: a UUID is a good one"
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
                "invalid-request",
                StatusCode::BAD_REQUEST,
                "Invalid request",
                format!("the header {name} is not printable ASCII"),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_told_from_what_is_none() {
        for good in ["*", "\"3\"", "W/\"3\"", "\"3\", \"4\"", "\"\"", "\"a-b\" ,W/\"x\""] {
            assert!(is_tags(good), "{good}");
        }
        for bad in ["", "3", "{}", "null", "\"3", "\"3\",", "\"a b\"", "W/3", "*, \"3\""] {
            assert!(!is_tags(bad), "{bad}");
        }
    }
}
