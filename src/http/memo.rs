//! Answers to reads of objects and lists, kept in memory for as long as what they show has not changed.
//!
//! An answer holds while nothing was committed and no daemon published anything since it was made; a read that begins after a write was
//! answered shows that write. What changes without either, as the memory that the driver reports of a GPU or that a process has ended, is read
//! again after a moment, by one caller while the others are answered with what there is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::conditional::tag_of_content;
use crate::service::Service;
use crate::service::access::context::RequestContext;

/// Where the paths of the API begin.
const API: &str = "/api/v1/";
/// The collections whose lists and objects are kept.
const COLLECTIONS: [&str; 8] =
    ["tenants", "daemons", "gpus", "layouts", "incidents", "operations", "replays", "foreign-daemons"];
/// For how long what is read beside commits and publications holds; longer where making the answer took long.
const HOLDS: Duration = Duration::from_millis(25);
/// An answer holds so many times as long as it took to make it.
const SHARE: u32 = 10;
/// For how long at most it is answered while one caller reads it again.
const LASTS: Duration = Duration::from_millis(250);
/// Answers that are kept, and bytes of theirs.
const MOST: usize = 512;
const MOST_BYTES: usize = 8 << 20;

/// The grant of the reader, and path with query.
type Key = (String, String);

/// The kept answers.
#[derive(Default)]
pub struct ReadMemo(Mutex<KeptAnswers>);

#[derive(Default)]
struct KeptAnswers {
    by_key: HashMap<Key, Arc<ReadSlot>>,
    bytes: usize,
}

/// The kept answer of one read, and the turn of whoever makes it.
#[derive(Default)]
struct ReadSlot {
    answer: Mutex<Option<Arc<KeptAnswer>>>,
    turn: tokio::sync::Mutex<()>,
}

struct KeptAnswer {
    version: (u64, u64),
    /// When it began to be made, and how long that took.
    at: Instant,
    took: Duration,
    headers: HeaderMap,
    body: Bytes,
}

impl KeptAnswer {
    /// Says whether it shows all that was there at this version.
    fn shows(&self, version: (u64, u64)) -> bool {
        self.version.0 >= version.0 && self.version.1 >= version.1
    }

    /// Says whether it answers a read that began at this version, where it may be so old.
    fn answers(&self, version: (u64, u64), oldest: Duration) -> bool {
        self.shows(version) && self.at.elapsed() < oldest
    }

    /// Says that it need not be made again.
    fn holds(&self, version: (u64, u64)) -> bool {
        self.answers(version, (SHARE * self.took).clamp(HOLDS, LASTS))
    }

    fn response(&self) -> Response {
        let mut response = Response::new(Body::from(self.body.clone()));
        response.headers_mut().clone_from(&self.headers);
        response
    }
}

impl ReadSlot {
    fn answer(&self) -> Option<Arc<KeptAnswer>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ReadMemo {
    fn kept(&self) -> MutexGuard<'_, KeptAnswers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, key: &Key) -> Arc<ReadSlot> {
        let mut kept = self.kept();
        if kept.by_key.len() >= MOST && !kept.by_key.contains_key(key) {
            *kept = KeptAnswers::default();
        }
        Arc::clone(kept.by_key.entry(key.clone()).or_default())
    }

    /// Gives up the place of a read that has no answer to keep.
    fn forget_unmade(&self, key: &Key) {
        let mut kept = self.kept();
        if kept.by_key.get(key).is_some_and(|slot| slot.answer().is_none()) {
            kept.by_key.remove(key);
        }
    }

    fn keep(&self, key: Key, slot: &Arc<ReadSlot>, answer: KeptAnswer) {
        let mut kept = self.kept();
        if kept.bytes + answer.body.len() > MOST_BYTES {
            *kept = KeptAnswers::default();
        }
        // All may have been forgotten meanwhile.
        let before = kept.by_key.insert(key, Arc::clone(slot)).and_then(|before| before.answer());
        kept.bytes = kept.bytes + answer.body.len() - before.map_or(0, |before| before.body.len());
        *slot.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(answer));
    }
}

/// Answers a read of the API with its entity tag, and from memory where its answer is kept and holds.
pub(super) async fn read(service: &Service, memo: &ReadMemo, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with(API) {
        return next.run(request).await;
    }
    let Some(key) = key(&request) else { return whole(next.run(request).await).await.into_response() };
    let slot = memo.slot(&key);
    let version = service.version();
    if let Some(kept) = slot.answer().filter(|kept| kept.holds(version)) {
        return kept.response();
    }
    // One caller makes it again; for a moment the others are answered with what there is, and then they wait for it.
    let arrived = Instant::now();
    let turn = slot.turn.try_lock();
    if turn.is_err() {
        if let Some(kept) = slot.answer().filter(|kept| kept.answers(version, LASTS)) {
            return kept.response();
        }
        // Who waited takes what was made meanwhile, however long that took; an error is nobody else's, and no reason to queue.
        drop(slot.turn.lock().await);
    }
    let is_new = |kept: &Arc<KeptAnswer>| kept.shows(version) && kept.at + kept.took >= arrived;
    if let Some(kept) = slot.answer().filter(|kept| kept.holds(version) || is_new(kept)) {
        return kept.response();
    }
    // Before the read: what changes meanwhile makes the answer newer than its version, and never older.
    let (version, at) = (service.version(), Instant::now());
    match whole(next.run(request).await).await {
        MadeAnswer::Json(headers, body) => {
            let answer = KeptAnswer { version, at, took: at.elapsed(), headers, body };
            let response = answer.response();
            memo.keep(key, &slot, answer);
            response
        }
        MadeAnswer::Other(response) => {
            memo.forget_unmade(&key);
            response
        }
    }
}

/// An answer that was made.
enum MadeAnswer {
    /// 200 with JSON, with its entity tag.
    Json(HeaderMap, Bytes),
    Other(Response),
}

impl MadeAnswer {
    fn into_response(self) -> Response {
        match self {
            Self::Json(headers, body) => {
                let mut response = Response::new(Body::from(body));
                *response.headers_mut() = headers;
                response
            }
            Self::Other(response) => response,
        }
    }
}

async fn whole(response: Response) -> MadeAnswer {
    let is_whole = response.status() == StatusCode::OK && response.body().size_hint().exact().is_some();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !is_whole || !is_json {
        return MadeAnswer::Other(response);
    }
    let (mut parts, body) = response.into_parts();
    // It is in memory already.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        return MadeAnswer::Other(Response::from_parts(parts, Body::empty()));
    };
    if !parts.headers.contains_key(header::ETAG)
        && let Some(tag) = tag_of_content(&body)
    {
        parts.headers.insert(header::ETAG, tag);
    }
    MadeAnswer::Json(parts.headers, body)
}

/// By what the answer is kept: what its reader may see, and what is read. `None` for what is not kept.
fn key(request: &Request) -> Option<Key> {
    let ctx = request.extensions().get::<RequestContext>().filter(|_| *request.method() == Method::GET)?;
    let accepts = request.headers().get(header::ACCEPT).map(HeaderValue::as_bytes);
    let is_usual = matches!(accepts, None | Some(b"*/*" | b"application/json"));
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let mut segments = path.strip_prefix(API)?.split('/');
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
            took: Duration::ZERO,
            headers: HeaderMap::new(),
            body: vec![0; bytes].into(),
        }
    }

    #[test]
    fn answer_holds_until_something_changes() {
        let kept = answer((1, 1), 1);
        assert!(kept.holds((1, 1)) && !kept.holds((2, 1)) && !kept.holds((1, 2)));
        let newer = answer((2, 1), 1);
        assert!(newer.holds((1, 1)) && !newer.holds((1, 2)));
        let ago = |age| Instant::now().checked_sub(age).expect("a time");
        let old = KeptAnswer { at: ago(2 * HOLDS), ..answer((1, 1), 1) };
        assert!(!old.holds((1, 1)), "one caller reads it again");
        assert!(old.answers((1, 1), LASTS), "and the others are answered");
        let dear = KeptAnswer { took: HOLDS, ..old };
        assert!(dear.holds((1, 1)) && !dear.holds((2, 1)));
        let older = KeptAnswer { at: ago(LASTS), ..dear };
        assert!(!older.holds((1, 1)) && !older.answers((1, 1), LASTS));
    }

    #[test]
    fn kept_answers_are_bounded() {
        let memo = ReadMemo::default();
        let keep = |name: &str, bytes| {
            let key = ("viewer".to_owned(), name.to_owned());
            let slot = memo.slot(&key);
            memo.keep(key, &slot, answer((1, 1), bytes));
        };
        for number in 0..3 * MOST {
            keep(&number.to_string(), MOST_BYTES / 100);
            let kept = memo.kept();
            assert!(kept.by_key.len() <= MOST && kept.bytes <= MOST_BYTES);
            let held: usize = kept.by_key.values().filter_map(|slot| Some(slot.answer()?.body.len())).sum();
            assert_eq!(held, kept.bytes);
        }
        keep("a", 7);
        let before = memo.kept().bytes;
        keep("a", 7);
        assert_eq!(memo.kept().bytes, before);
    }
}
