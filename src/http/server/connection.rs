//! One connection, from its handshake to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use futures_util::future::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinError;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::activity::{Activity, Overdue, Timeouts};
use super::body::{AnswerBody, Paced, RequestInProgress};
use super::stream::ObservedStream;
use crate::clock::Clock;
use crate::config::Limits;
use crate::http::auth::Peer;
use crate::http::tls::Certificates;
use crate::metrics::wire::{Closed, Wire};

/// Interval at which an HTTP/2 connection with requests in progress is pinged.
const PING: Duration = Duration::from_secs(30);
/// Send buffer of one request of an HTTP/2 connection, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// Receive windows of one request, and of one connection, in bytes.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);
/// Requests of an HTTP/2 connection that may be reset before they are processed; more is an attack. Later resets are counted
/// by `Activity`.
const RESETS: usize = 20;

/// Router, limits and certificates that all connections share.
pub(super) struct Serving {
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) timeouts: Timeouts,
    pub(super) protocol: auto::Builder<TokioExecutor>,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) wire: Wire,
    /// Asks connections to end after their requests in progress.
    pub(super) stop: CancellationToken,
}

/// Returns the builder of HTTP/1.1 and HTTP/2 with its limits.
///
/// A head that exceeds the limits by less than twice gets a problem document ([`crate::http::bounds`]); beyond that nothing
/// is stored, and the response is a bare 431.
pub(super) fn protocol(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let count = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `Activity` keeps the timeouts, for handshakes and both protocols.
    builder
        .http1()
        .header_read_timeout(None)
        .max_headers(2 * count(limits.headers))
        .max_buf_size(2 * count(limits.header_bytes));
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(PING)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.header_bytes.saturating_mul(2))
        .max_send_buf_size(SEND_BUFFER)
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(RESETS);
    builder
}

impl Serving {
    /// Serves a connection until either side ends it.
    pub(super) async fn serve<S>(&self, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let began = Instant::now();
        let activity = Arc::new(Activity::new(began));
        let stream = ObservedStream::new(stream, Arc::clone(&activity));
        let (Peer::Tcp(_), Some(certificates)) = (peer, &self.certificates) else {
            return self.drive(stream, peer, activity).await;
        };
        let handshake = certificates.acceptor().accept(stream);
        match tokio::time::timeout(self.timeouts.head, handshake).await {
            Ok(Ok(stream)) => self.drive(stream, peer, activity).await,
            Ok(Err(error)) => {
                tracing::debug!(?peer, %error, "the TLS handshake failed");
                self.wire.closed(Closed::Handshake);
            }
            Err(_) => self.wire.closed(Closed::Slow),
        }
    }

    async fn drive<S>(&self, stream: S, peer: Peer, activity: Arc<Activity>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let requests = AtomicU64::new(0);
        let service = service_fn(|request: Request<Incoming>| {
            let number = requests.fetch_add(1, Ordering::Relaxed);
            let shares = (request.version() == hyper::Version::HTTP_2).then_some(number);
            let under_way = RequestInProgress::begin(&activity, shares);
            let rate = self.limits.body_rate;
            let mut request = request.map(|body| axum::body::Body::new(Paced::new(body, rate)));
            request.extensions_mut().insert(ConnectInfo(peer));
            let changes = !request.method().is_safe();
            let answer = self.router.clone().oneshot(request);
            // Started at once and run to completion even if the caller disconnects: otherwise a disconnect would avoid the
            // audit log.
            let answer = if changes { Either::Left(tokio::spawn(answer)) } else { Either::Right(answer) };
            async move {
                let Ok(response) = match answer {
                    Either::Left(task) => task.await?,
                    Either::Right(answer) => answer.await,
                };
                Ok::<_, JoinError>(response.map(|body| AnswerBody::new(body, under_way)))
            }
        });
        let mut protocol = self.protocol.clone();
        if Clock::system().is_before_1970() {
            // The library panics for such a time; a server without a clock sends no date (RFC 9110).
            protocol.http1().auto_date_header(false);
            protocol.http2().auto_date_header(false);
        }
        let connection = protocol.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let rhythm = self.timeouts.check_interval();
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + rhythm, rhythm);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut leaving = false;
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(?peer, %error, "a connection ended with an error");
                    }
                    return;
                }
                () = self.stop.cancelled(), if !leaving => {
                    leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = ticks.tick() => match activity.overdue(&self.timeouts, Instant::now()) {
                    None => {}
                    // Graceful first: an HTTP/2 client learns that its next request must use another connection.
                    Some(Overdue::Idle) if !leaving => {
                        leaving = true;
                        self.wire.closed(Closed::Idle);
                        connection.as_mut().graceful_shutdown();
                    }
                    Some(overdue) => {
                        match overdue {
                            Overdue::Slow => self.wire.closed(Closed::Slow),
                            Overdue::Stalled => self.wire.closed(Closed::Stalled),
                            Overdue::TakesBack => self.wire.closed(Closed::TakesBack),
                            Overdue::Idle => {}
                        }
                        return;
                    }
                },
            }
        }
    }
}
