//! Conditional reads: entity tags of responses, and 304 for callers that have the response already.
//!
//! The tag of a resource is its revision, which changes only with its spec; a read also shows its status. So the tag of a
//! read is `"REVISION-DIGEST"`: a write compares the revision (`If-Match`), a read the whole tag (`If-None-Match`). A response
//! without a revision, such as a list, has the tag `"DIGEST"`.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::problem::{Problem, ProblemKind};
use crate::service::ServiceError;

/// Bytes of the digest in a tag.
const DIGEST: usize = 8;

/// The response to a read of a resource, with its tag.
pub(super) fn shown<T: Serialize>(revision: i64, value: &T) -> Result<Response, Problem> {
    let internal = |error: &dyn std::fmt::Display| ServiceError::Internal(error.to_string());
    let body = serde_json::to_vec(value).map_err(|error| internal(&error))?;
    let tag = HeaderValue::from_str(&tag_of_read(revision, &body)).map_err(|error| internal(&error))?;
    let mime = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, mime), (header::ETAG, tag)], body).into_response())
}

/// Answers 304 if the caller has the response already.
pub(super) async fn reads(request: Request, read: impl AsyncFnOnce(Request) -> Response) -> Response {
    let sent: Vec<HeaderValue> = match *request.method() {
        Method::GET | Method::HEAD => {
            request.headers().get_all(header::IF_NONE_MATCH).iter().cloned().collect()
        }
        _ => Vec::new(),
    };
    if let Some(wrong) = sent.iter().find(|tags| !tags.to_str().is_ok_and(is_tags)) {
        let short: String = String::from_utf8_lossy(wrong.as_bytes()).chars().take(80).collect();
        let detail = format!(
            "If-None-Match is {short:?}, which is not an entity tag: send the ETag of a read with its quotes, or *"
        );
        return Problem::new(ProblemKind::InvalidRequest, detail).into_response();
    }
    let response = read(request).await;
    let tag = response.headers().get(header::ETAG).filter(|_| response.status() == StatusCode::OK).cloned();
    let same = |tag: &HeaderValue| tag.to_str().is_ok_and(|tag| sent.iter().any(|tags| matches(tags, tag)));
    match tag.filter(same) {
        Some(tag) => (StatusCode::NOT_MODIFIED, HeaderMap::from_iter([(header::ETAG, tag)])).into_response(),
        None => response,
    }
}

/// Returns true if a header is `*` or a list of entity tags (RFC 9110, 8.8.3).
pub(super) fn is_tags(value: &str) -> bool {
    let is_tag = |tag: &str| {
        let opaque = tag.strip_prefix("W/").unwrap_or(tag);
        let inner = opaque.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inner.is_some_and(|inner| inner.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"'))
    };
    value == "*" || value.split(',').all(|tag| is_tag(tag.trim_matches([' ', '\t'])))
}

fn tag_of_read(revision: i64, body: &[u8]) -> String {
    format!("\"{revision}-{}\"", digest(body))
}

/// The tag of an answer that shows nothing with a revision.
pub(super) fn tag_of_content(body: &[u8]) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("\"{}\"", digest(body))).ok()
}

fn digest(body: &[u8]) -> String {
    hex::encode(&Sha256::digest(body)[..DIGEST])
}

/// Returns true if an `If-None-Match` names a tag; a weak one counts as well (RFC 9110, 13.1.2).
fn matches(header: &HeaderValue, tag: &str) -> bool {
    let Ok(text) = header.to_str() else { return false };
    let is_same = |named: &str| {
        let named = named.trim_matches([' ', '\t']);
        named.strip_prefix("W/").unwrap_or(named) == tag
    };
    // Our tags contain no comma, so splitting foreign ones does no harm.
    text.trim() == "*" || text.split(',').any(is_same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_changes_with_revision_and_content() {
        let tag = tag_of_read(3, b"{}");
        assert!(tag.starts_with("\"3-") && tag.ends_with('"') && tag.len() == 4 + 2 * DIGEST, "{tag}");
        assert_eq!(tag, tag_of_read(3, b"{}"));
        assert_ne!(tag, tag_of_read(4, b"{}"));
        assert_ne!(tag, tag_of_read(3, b"[]"));
    }

    #[test]
    fn any_of_several_tags_matches() {
        for (header, expected) in [
            ("\"3-ab\"", true),
            ("W/\"3-ab\"", true),
            ("\"1\", \"3-ab\"", true),
            ("*", true),
            ("\"3\"", false),
            ("3-ab", false),
            ("", false),
        ] {
            assert_eq!(matches(&HeaderValue::from_static(header), "\"3-ab\""), expected, "{header}");
        }
    }
}
