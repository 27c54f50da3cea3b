//! Bodies in transit: slow request bodies are aborted, and a response body reports its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::BoxError;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::time::Sleep;

use super::activity::Activity;

/// The minimum time for every body.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// A body was slower than the required rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request's body came too slowly ({received} bytes in {} s): send it at {rate} bytes a second or more (limits.body_rate)",
    .took.as_secs()
)]
pub struct TooSlow {
    /// Bytes received.
    received: u64,
    /// The time they took.
    took: Duration,
    /// The required rate in bytes per second.
    rate: u32,
}

/// A request body that must arrive at an average rate after its first [`GRACE`].
pub(super) struct Paced {
    body: Incoming,
    rate: u32,
    received: u64,
    /// Time at which it was first polled: before that, the sender waits for the server.
    began: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Paced {
    pub(super) fn new(body: Incoming, rate: u32) -> Self {
        Self { body, rate, received: 0, began: None }
    }

    /// Returns the time allowed for the bytes received so far.
    fn allowed(&self) -> Duration {
        GRACE + Duration::from_millis(self.received.saturating_mul(1000) / u64::from(self.rate.max(1)))
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            if let Some(Ok(frame)) = &frame {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                self.received = self.received.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let (allowed, rate, received) = (self.allowed(), self.rate, self.received);
        let (began, sleep) = self.began.get_or_insert_with(|| {
            (Instant::now(), Box::pin(tokio::time::sleep_until(tokio::time::Instant::now() + allowed)))
        });
        let due = tokio::time::Instant::from_std(*began + allowed);
        if sleep.deadline() != due {
            sleep.as_mut().reset(due);
        }
        ready!(sleep.as_mut().poll(context));
        Poll::Ready(Some(Err(TooSlow { received, took: began.elapsed(), rate }.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request in progress until this is dropped, with the last byte of its response or with its connection.
pub(super) struct RequestInProgress {
    activity: Arc<Activity>,
    /// Its number in its connection, if requests share one.
    shares: Option<u64>,
    answered: bool,
}

impl RequestInProgress {
    pub(super) fn begin(activity: &Arc<Activity>, shares: Option<u64>) -> Self {
        activity.begun(shares.is_some());
        Self { activity: Arc::clone(activity), shares, answered: false }
    }

    /// More of its response can be read; otherwise the socket shows whether it is read.
    fn offered(&self) {
        if let Some(number) = self.shares {
            self.activity.offered(number, Instant::now());
        }
    }

    fn taken(&self) {
        if let Some(number) = self.shares {
            self.activity.taken(number);
        }
    }
}

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        self.taken();
        self.activity.ended(self.answered, Instant::now());
    }
}

/// Most bytes of a response passed on at once if requests share a connection: whether the last piece is read cannot be seen.
const MAX_PIECE: usize = 16 << 10;

/// A response body that knows its request.
pub(super) struct AnswerBody {
    body: axum::body::Body,
    /// Data of the body that was not passed on yet.
    rest: Bytes,
    under_way: RequestInProgress,
}

impl AnswerBody {
    pub(super) fn new(body: axum::body::Body, mut under_way: RequestInProgress) -> Self {
        under_way.answered = true;
        // A caller that never polls the first piece does not read it.
        under_way.offered();
        Self { body, rest: Bytes::new(), under_way }
    }

    fn next_piece(&mut self) -> Option<Frame<Bytes>> {
        let most = if self.under_way.shares.is_some() { MAX_PIECE } else { usize::MAX };
        let piece = self.rest.split_to(self.rest.len().min(most));
        (!piece.is_empty()).then(|| Frame::data(piece))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.under_way.taken();
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        self.under_way.offered();
        // An empty frame is one, too.
        Poll::Ready(Some(Ok(self.next_piece().unwrap_or_else(|| Frame::data(Bytes::new())))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = u64::try_from(self.rest.len()).unwrap_or(u64::MAX);
        let inner = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower().saturating_add(rest));
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}
