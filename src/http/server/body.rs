//! Bodies on their way: a request's that comes too slowly is given up, and an answer's tells when it is over.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::BoxError;
use http_body::{Body, Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use tokio::time::Sleep;

use super::activity::Activity;

/// The time that every body has, however short.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// A body did not come at the rate that it has to come at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the request's body came too slowly ({received} bytes in {} s): send it at {rate} bytes a second or more (limits.body_rate)",
    .took.as_secs()
)]
pub struct TooSlow {
    /// What came.
    received: u64,
    /// In which time.
    took: Duration,
    /// Bytes a second that are asked for.
    rate: u32,
}

/// A request's body that has to come at a rate, on the whole, after its first [`GRACE`].
pub(super) struct Paced {
    body: Incoming,
    rate: u32,
    received: u64,
    /// When it was first asked for: before that, its sender waits for us.
    began: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl Paced {
    pub(super) fn new(body: Incoming, rate: u32) -> Self {
        Self { body, rate, received: 0, began: None }
    }

    /// The time that so many bytes have.
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

/// A request that is under way until this is dropped, with its answer's last byte or with its connection.
pub(super) struct UnderWay {
    activity: Arc<Activity>,
    answered: bool,
}

impl UnderWay {
    pub(super) fn begin(activity: &Arc<Activity>, multiplexed: bool) -> Self {
        activity.begun(multiplexed);
        Self { activity: Arc::clone(activity), answered: false }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.activity.ended(self.answered, Instant::now());
    }
}

/// An answer's body that knows its request.
pub(super) struct Answer {
    body: axum::body::Body,
    _under_way: UnderWay,
}

impl Answer {
    pub(super) fn new(body: axum::body::Body, mut under_way: UnderWay) -> Self {
        under_way.answered = true;
        Self { body, _under_way: under_way }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
