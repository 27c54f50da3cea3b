//! Answers to reads of objects and lists, kept in memory until the data that they show changes.
//!
//! An answer is valid while nothing was committed and no daemon published anything since it was made; a read that begins after a write
//! was answered shows that write. Some data changes without either, such as the memory of a GPU that the driver reports, or the end of a
//! process. Therefore an answer is made again after a moment: by one caller, while the others get the kept one.

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

/// Prefix of the API's paths.
const API: &str = "/api/v1/";
/// The collections whose lists and objects are kept.
const COLLECTIONS: [&str; 8] =
    ["tenants", "daemons", "gpus", "layouts", "incidents", "operations", "replays", "foreign-daemons"];
/// Time for which data that changes without a commit or a publication counts as valid; longer if making the answer took long.
const HOLDS: Duration = Duration::from_millis(25);
/// An answer is valid for this many times the time that it took to make.
const SHARE: u32 = 10;
/// Longest time for which a kept answer is given while one caller makes it again.
const LASTS: Duration = Duration::from_millis(250);
/// Most answers that are kept, and most bytes in them.
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

/// The kept answer of one read, and the lock of the caller that makes it.
#[derive(Default)]
struct ReadSlot {
    answer: Mutex<Option<Arc<KeptAnswer>>>,
    turn: tokio::sync::Mutex<()>,
}

struct KeptAnswer {
    version: (u64, u64),
    /// Time at which its making began, and the duration of that.
    at: Instant,
    took: Duration,
    headers: HeaderMap,
    body: Bytes,
}

impl KeptAnswer {
    /// Returns true if it shows everything up to this version.
    fn shows(&self, version: (u64, u64)) -> bool {
        self.version.0 >= version.0 && self.version.1 >= version.1
    }

    /// Returns true if it can answer a read that began at this version, and is younger than `oldest`.
    fn answers(&self, version: (u64, u64), oldest: Duration) -> bool {
        self.shows(version) && self.at.elapsed() < oldest
    }

    /// Returns true if it need not be made again for a read that began at this version.
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
        let mut answers = self.kept();
        if answers.by_key.len() >= MOST && !answers.by_key.contains_key(key) {
            *answers = KeptAnswers::default();
        }
        Arc::clone(answers.by_key.entry(key.clone()).or_default())
    }

    /// Removes the slot of a read whose answer cannot be kept.
    fn forget_unmade(&self, key: &Key) {
        let mut answers = self.kept();
        if answers.by_key.get(key).is_some_and(|slot| slot.answer().is_none()) {
            answers.by_key.remove(key);
        }
    }

    fn keep(&self, key: Key, slot: &Arc<ReadSlot>, answer: KeptAnswer) {
        let mut answers = self.kept();
        if answers.bytes + answer.body.len() > MOST_BYTES {
            *answers = KeptAnswers::default();
        }
        // All slots may have been removed meanwhile, so this one is inserted again.
        let before = answers.by_key.insert(key, Arc::clone(slot)).and_then(|before| before.answer());
        answers.bytes = answers.bytes + answer.body.len() - before.map_or(0, |before| before.body.len());
        *slot.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(answer));
    }
}

/// Answers a read of the API, with its entity tag; from memory if a valid answer is kept.
pub(super) async fn read(service: &Service, memo: &ReadMemo, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with(API) {
        return next.run(request).await;
    }
    let Some(key) = key(&request) else { return whole(next.run(request).await).await.into_response() };
    let slot = memo.slot(&key);
    let version = service.version();
    if let Some(answer) = slot.answer().filter(|answer| answer.holds(version)) {
        return answer.response();
    }
    // One caller makes the answer again; the others get the kept one for a moment, and then wait for the new one.
    let arrived = Instant::now();
    let turn = slot.turn.try_lock();
    if turn.is_err() {
        if let Some(answer) = slot.answer().filter(|answer| answer.answers(version, LASTS)) {
            return answer.response();
        }
        // A caller that waited takes the answer made meanwhile, however long that took. If there is none because of an error, all waiting
        // callers go on at once.
        drop(slot.turn.lock().await);
    }
    let is_new = |answer: &Arc<KeptAnswer>| answer.shows(version) && answer.at + answer.took >= arrived;
    if let Some(answer) = slot.answer().filter(|answer| answer.holds(version) || is_new(answer)) {
        return answer.response();
    }
    // The version is taken before the read: a change during the read makes the answer newer than its version, and never older.
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

/// The answer of a handler.
enum MadeAnswer {
    /// 200 with JSON; the headers hold its entity tag.
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
    // The body is in memory already.
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

/// Returns the key of an answer: the grant of its reader, and the path with its query. `None` if the answer is not kept.
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
    let path_and_query = request.uri().path_and_query()?.as_str().to_owned();
    (is_usual && is_kept).then(|| (ctx.actor.grant.to_string(), path_and_query))
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
