//! Answers to reads of objects and lists, kept in memory for as long as what they show has not changed.
//!
//! An answer holds while nothing was committed and no daemon published anything since it was made; a read that begins after a write was
//! answered shows that write. What changes without either, as the memory that the driver reports of a GPU or that a process has ended, is read
//! again after a moment, by one caller while the others are answered with what there is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::service::Service;
use crate::service::access::context::RequestContext;

/// The collections whose lists and objects are kept.
const COLLECTIONS: [&str; 8] =
    ["tenants", "daemons", "gpus", "layouts", "incidents", "operations", "replays", "foreign-daemons"];
/// For how long what is read beside commits and publications holds.
const HOLDS: Duration = Duration::from_millis(25);
/// For how long at most it is answered while one caller reads it again.
const LASTS: Duration = Duration::from_millis(250);
/// Answers that are kept, and bytes of theirs.
const MOST: usize = 512;
const MOST_BYTES: usize = 8 << 20;

/// The kept answers, by what their readers may see, and by path with query.
#[derive(Default)]
pub struct ReadMemo(Mutex<KeptAnswers>);

#[derive(Default)]
struct KeptAnswers {
    by_key: HashMap<(String, String), Arc<KeptAnswer>>,
    bytes: usize,
}

struct KeptAnswer {
    version: (u64, u64),
    at: Instant,
    /// Whether a caller reads it again.
    is_read_again: AtomicBool,
    headers: HeaderMap,
    body: Bytes,
}

impl KeptAnswer {
    /// Whether it answers a read of now.
    fn holds(&self, version: (u64, u64)) -> bool {
        let age = self.at.elapsed();
        self.version == version
            && (age < HOLDS || (age < LASTS && self.is_read_again.swap(true, Ordering::SeqCst)))
    }

    fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

impl ReadMemo {
    fn get(&self, key: &(String, String)) -> Option<Arc<KeptAnswer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_key.get(key).cloned()
    }

    fn keep(&self, key: (String, String), answer: KeptAnswer) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.by_key.len() >= MOST || kept.bytes + answer.body.len() > MOST_BYTES {
            *kept = KeptAnswers::default();
        }
        kept.bytes += answer.body.len();
        if let Some(before) = kept.by_key.insert(key, Arc::new(answer)) {
            kept.bytes -= before.body.len();
        }
    }
}

/// Answers a read from memory where its answer is kept and holds.
pub(super) async fn read(service: &Service, memo: &ReadMemo, request: Request, next: Next) -> Response {
    let Some(key) = key(&request) else { return next.run(request).await };
    // Before the read: what changes meanwhile makes the answer newer than its version, and never older.
    let version = service.version();
    if let Some(kept) = memo.get(&key)
        && kept.holds(version)
    {
        return kept.response();
    }
    let at = Instant::now();
    let response = next.run(request).await;
    let is_whole = response.status() == StatusCode::OK && response.body().size_hint().exact().is_some();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_whole || !is_json {
        return response;
    }
    let (parts, body) = response.into_parts();
    // It is in memory already.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        return Response::from_parts(parts, Body::empty());
    };
    let headers = parts.headers.clone();
    let is_read_again = AtomicBool::new(false);
    memo.keep(key, KeptAnswer { version, at, is_read_again, headers, body: body.clone() });
    Response::from_parts(parts, Body::from(body))
}

/// By what the answer is kept: what its reader may see, and what is read. `None` for what is not kept.
fn key(request: &Request) -> Option<(String, String)> {
    let ctx = request.extensions().get::<RequestContext>().filter(|_| *request.method() == Method::GET)?;
    let accepts = request.headers().get(header::ACCEPT).map(HeaderValue::as_bytes);
    let is_usual = matches!(accepts, None | Some(b"*/*" | b"application/json"));
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let mut segments = path.strip_prefix("/api/v1/")?.split('/');
    let is_kept = segments.next().is_some_and(|collection| COLLECTIONS.contains(&collection))
        && segments.nth(1).is_none()
        && !query.contains("fresh")
        && !query.contains("wait_s");
    let what = request.uri().path_and_query()?.as_str().to_owned();
    (is_usual && is_kept).then(|| (ctx.actor.grant.to_string(), what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(version: (u64, u64), bytes: usize) -> KeptAnswer {
        KeptAnswer {
            version,
            at: Instant::now(),
            is_read_again: AtomicBool::new(false),
            headers: HeaderMap::new(),
            body: vec![0; bytes].into(),
        }
    }

    #[test]
    fn answer_holds_until_something_changes() {
        let kept = answer((1, 1), 1);
        assert!(kept.holds((1, 1)) && !kept.holds((2, 1)) && !kept.holds((1, 2)));
        let old =
            KeptAnswer { at: Instant::now().checked_sub(2 * HOLDS).expect("a time"), ..answer((1, 1), 1) };
        assert!(!old.holds((1, 1)), "one caller reads it again");
        assert!(old.holds((1, 1)), "and the others are answered");
        let older =
            KeptAnswer { at: Instant::now().checked_sub(LASTS).expect("a time"), ..answer((1, 1), 1) };
        assert!(!older.holds((1, 1)) && !older.holds((1, 1)));
    }

    #[test]
    fn kept_answers_are_bounded() {
        let memo = ReadMemo::default();
        for number in 0..3 * MOST {
            memo.keep((String::new(), number.to_string()), answer((1, 1), MOST_BYTES / 100));
            let kept = memo.0.lock().expect("a lock");
            assert!(kept.by_key.len() <= MOST && kept.bytes <= MOST_BYTES);
        }
        let again = ("viewer".to_owned(), "a".to_owned());
        memo.keep(again.clone(), answer((1, 1), 7));
        let before = memo.0.lock().expect("a lock").bytes;
        memo.keep(again, answer((1, 1), 7));
        assert_eq!(memo.0.lock().expect("a lock").bytes, before);
    }
}
