//! Conditional reads: entity tags of responses, and 304 for callers that have the response already.
//!
//! The tag of a resource is its revision, which changes only with its spec; a read also shows its status. So the tag of a
//! read is `"REVISION-DIGEST"`: a write compares the revision (`If-Match`), a read the whole tag (`If-None-Match`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::extract::is_tags;
use super::problem::Problem;
use crate::domain::DaemonName;
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;

/// Bytes of the digest in a tag.
const DIGEST: usize = 8;

/// The response to a read of a resource, with its tag.
pub(super) fn shown<T: Serialize>(revision: i64, value: &T) -> Result<Response, Problem> {
    Representation::of(revision, value).map(Representation::into_response)
}

/// The bytes that show a resource, and their tag.
#[derive(Clone)]
struct Representation {
    body: Bytes,
    tag: HeaderValue,
}

impl Representation {
    fn of<T: Serialize>(revision: i64, value: &T) -> Result<Self, Problem> {
        let body = serde_json::to_vec(value).map_err(|error| ServiceError::Internal(error.to_string()))?;
        let tag = HeaderValue::from_str(&tag_of_read(revision, &body))
            .map_err(|error| ServiceError::Internal(error.to_string()))?;
        Ok(Self { body: body.into(), tag })
    }

    fn into_response(self) -> Response {
        let mime = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, mime), (header::ETAG, self.tag)], self.body).into_response()
    }
}

/// The last representation of each daemon: it is read far more often than it changes, and writing and digesting it is a
/// quarter of what a read computes. One is used again for an equal daemon only, so none can be out of date.
#[derive(Default)]
pub struct DaemonRepresentations(Mutex<HashMap<DaemonName, Arc<(DaemonView, Representation)>>>);

/// Daemons whose representation is kept: far more than a host has GPUs, so that those of deleted daemons do not add up.
const MAX_KEPT: usize = 64;

impl DaemonRepresentations {
    /// The response to a read of a daemon, with its tag.
    pub(super) fn shown(&self, daemon: DaemonView) -> Result<Response, Problem> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept().get(&daemon.name).cloned();
        if let Some(last) = last.filter(|last| last.0 == daemon) {
            return Ok(last.1.clone().into_response());
        }
        let representation = Representation::of(daemon.revision, &daemon)?;
        let mut kept = kept();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(daemon.name.clone(), Arc::new((daemon, representation.clone())));
        Ok(representation.into_response())
    }
}

/// Answers 304 if the caller has the response already.
pub(super) async fn reads(request: Request, next: Next) -> Response {
    let known: Vec<HeaderValue> = match *request.method() {
        Method::GET | Method::HEAD => {
            request.headers().get_all(header::IF_NONE_MATCH).iter().cloned().collect()
        }
        _ => Vec::new(),
    };
    if let Some(wrong) = known.iter().find(|tags| !tags.to_str().is_ok_and(is_tags)) {
        let shown: String = String::from_utf8_lossy(wrong.as_bytes()).chars().take(80).collect();
        let detail = format!(
            "If-None-Match is {shown:?}, which is not an entity tag: send the ETag of a read with its quotes, or *"
        );
        return Problem::new("invalid-request", StatusCode::UNPROCESSABLE_ENTITY, "Invalid request", detail)
            .into_response();
    }
    let response = next.run(request).await;
    let tag = response.headers().get(header::ETAG).filter(|_| response.status() == StatusCode::OK).cloned();
    let same = |tag: &HeaderValue| tag.to_str().is_ok_and(|tag| known.iter().any(|one| matches(one, tag)));
    match tag.filter(same) {
        Some(tag) => (StatusCode::NOT_MODIFIED, HeaderMap::from_iter([(header::ETAG, tag)])).into_response(),
        None => response,
    }
}

fn tag_of_read(revision: i64, body: &[u8]) -> String {
    let digest = Sha256::digest(body);
    format!("\"{revision}-{}\"", hex::encode(&digest[..DIGEST]))
}

/// Whether an `If-None-Match` names a tag; a weak one counts as well (RFC 9110, 13.1.2).
fn matches(header: &HeaderValue, tag: &str) -> bool {
    let Ok(text) = header.to_str() else { return false };
    let is_it = |one: &str| {
        let one = one.trim_matches([' ', '\t']);
        one.strip_prefix("W/").unwrap_or(one) == tag
    };
    // Our tags contain no comma, so splitting foreign ones does no harm.
    text.trim() == "*" || text.split(',').any(is_it)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn daemon(name: &str, generation: i64) -> DaemonView {
        DaemonView {
            name: DaemonName::parse(name).expect("a name"),
            generation,
            created_at: 0,
            updated_at: 0,
            spec: serde_json::from_value(json!({"gpus": []})).expect("a spec"),
            status: None,
            removed: Vec::new(),
            revision: 1,
        }
    }

    async fn body_and_tag(shown: Result<Response, Problem>) -> (Bytes, HeaderValue) {
        let response = shown.expect("a representation");
        let tag = response.headers()[header::ETAG].clone();
        (axum::body::to_bytes(response.into_body(), usize::MAX).await.expect("a body"), tag)
    }

    #[tokio::test]
    async fn representation_is_used_again_until_its_daemon_changes() {
        let kept = DaemonRepresentations::default();
        let first = body_and_tag(kept.shown(daemon("a", 1))).await;
        let again = body_and_tag(kept.shown(daemon("a", 1))).await;
        assert_eq!(first, again);
        assert_eq!(first.0.as_ptr(), again.0.as_ptr(), "it was not written again");
        let other = body_and_tag(kept.shown(daemon("b", 1))).await;
        let changed = body_and_tag(kept.shown(daemon("a", 2))).await;
        for (different, text) in [(&other, r#""name":"b""#), (&changed, r#""generation":2"#)] {
            assert!(std::str::from_utf8(&different.0).expect("UTF-8").contains(text), "{different:?}");
            assert_ne!(different.1, first.1);
        }
        assert_eq!(first, body_and_tag(kept.shown(daemon("a", 1))).await, "as it was before");
    }

    #[tokio::test]
    async fn representations_of_deleted_daemons_do_not_add_up() {
        let kept = DaemonRepresentations::default();
        for number in 0..3 * MAX_KEPT {
            body_and_tag(kept.shown(daemon(&format!("d{number}"), 1))).await;
        }
        assert!(kept.0.lock().expect("a lock").len() <= MAX_KEPT);
    }

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
