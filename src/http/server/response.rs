//! Requests in progress of a connection, and response bodies that notice a caller who stops reading.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use hyper::body::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The most bytes of a response that are passed on at once: nothing shows whether the last piece was read.
const MAX_PIECE: usize = 16 << 10;

/// The requests of a connection: those in progress, and whether there ever was one.
#[derive(Debug, Clone, Copy, Default)]
struct Requests {
    in_progress: usize,
    begun: bool,
}

/// Usage of a connection by its requests.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionUse {
    requests: Arc<watch::Sender<Requests>>,
    /// Cancelled when the caller reads nothing of a response for too long.
    pub(super) stalled: CancellationToken,
}

impl ConnectionUse {
    /// Notes that the head of a request is complete; it is in progress until the result is dropped.
    pub(super) fn begin(&self) -> RequestInProgress {
        self.requests.send_modify(|requests| {
            requests.in_progress += 1;
            requests.begun = true;
        });
        RequestInProgress(self.clone())
    }

    /// Waits until the first request did not begin in time, or none was in progress for too long; returns true for the latter.
    pub(super) async fn unused(&self, first: Duration, later: Duration) -> bool {
        let mut requests = self.requests.subscribe();
        loop {
            let Requests { in_progress, begun } = *requests.borrow_and_update();
            let longest = match in_progress {
                0 if begun => later,
                0 => first,
                _ => Duration::MAX,
            };
            if timeout(longest, requests.changed()).await.is_err() {
                return begun;
            }
        }
    }
}

/// A request that ends when this is dropped: with the last piece of its response, or with its connection.
pub(super) struct RequestInProgress(ConnectionUse);

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.0.requests.send_modify(|requests| requests.in_progress -= 1);
    }
}

/// A response body whose caller has to read each piece in time.
///
/// Hyper polls it only when there is room for more: in the socket, or over HTTP/2 in the window of this response.
pub(super) struct ResponseBody {
    body: axum::body::Body,
    /// Data of the body that was not passed on yet.
    rest: Bytes,
    write_timeout: Duration,
    /// Runs while a piece is to be read.
    timer: Option<AbortOnDropHandle<()>>,
    request: RequestInProgress,
}

impl ResponseBody {
    pub(super) fn new(body: axum::body::Body, write_timeout: Duration, request: RequestInProgress) -> Self {
        let mut response = Self { body, rest: Bytes::new(), write_timeout, timer: None, request };
        // A caller that leaves no room for the first piece does not read it.
        response.start_timer();
        response
    }

    fn start_timer(&mut self) {
        let (stalled, write_timeout) = (self.request.0.stalled.clone(), self.write_timeout);
        self.timer = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            tokio::time::sleep(write_timeout).await;
            stalled.cancel();
        })));
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.timer = None;
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        self.start_timer();
        let length = self.rest.len().min(MAX_PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    /// Returns the size of the whole, which is asked for before the first piece.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(10);
    const LATER: Duration = Duration::from_secs(75);

    #[tokio::test(start_paused = true)]
    async fn idle_timeout_starts_after_the_last_request() {
        let connection = ConnectionUse::default();
        let start = tokio::time::Instant::now();
        assert!(!connection.unused(FIRST, LATER).await, "no request");
        assert_eq!(start.elapsed(), FIRST);
        let (one, other) = (connection.begin(), connection.begin());
        drop(one);
        assert!(timeout(LATER * 100, connection.unused(FIRST, LATER)).await.is_err(), "an event stream");
        let ended = async {
            tokio::time::sleep(LATER * 2).await;
            drop(other);
        };
        let start = tokio::time::Instant::now();
        assert!(tokio::join!(connection.unused(FIRST, LATER), ended).0);
        assert_eq!(start.elapsed(), LATER * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn unread_piece_stalls_the_connection() {
        let connection = ConnectionUse::default();
        let body = axum::body::Body::from(vec![0; 3 * MAX_PIECE]);
        let mut body = ResponseBody::new(body, FIRST, connection.begin());
        let mut read = 0;
        while !body.is_end_stream() {
            tokio::time::sleep(FIRST / 2).await;
            let piece = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
            let piece = piece.expect("more").expect("a piece").into_data().expect("data");
            assert!(piece.len() <= MAX_PIECE);
            read += piece.len();
        }
        assert_eq!(read, 3 * MAX_PIECE);
        assert!(!connection.stalled.is_cancelled(), "each was read in time");
        tokio::time::sleep(FIRST * 2).await;
        assert!(connection.stalled.is_cancelled(), "the last was not");
    }
}
