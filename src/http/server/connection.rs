//! One connection, from its handshake to its end.

use std::sync::Arc;
use std::time::Duration;

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
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

use super::response::{ConnectionUse, ResponseBody};
use crate::clock::Clock;
use crate::config::Limits;
use crate::http::peer::Peer;
use crate::http::tls::Certificates;
use crate::metrics::wire::{Closed, Wire};

/// Interval at which an HTTP/2 connection with requests in progress is pinged.
const PING: Duration = Duration::from_secs(30);
/// Send buffer of one request of an HTTP/2 connection, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// Receive windows of one request, and of one connection, in bytes.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);
/// Requests of an HTTP/2 connection that may be reset before they are processed; more is an attack. One that is reset later
/// counts like any other in the caller's rate.
const RESETS: usize = 20;
/// Time for an HTTP/2 client that was asked to leave.
const LEAVING: Duration = Duration::from_secs(2);

/// Router, limits and certificates that all connections share.
pub(super) struct Serving {
    pub(super) router: Router,
    pub(super) limits: Limits,
    pub(super) protocol: auto::Builder<TokioExecutor>,
    pub(super) certificates: Option<Arc<Certificates>>,
    pub(super) wire: Wire,
    /// Asks connections to end after their requests in progress.
    pub(super) stop: CancellationToken,
    /// Ends connections at once.
    pub(super) abandon: CancellationToken,
    /// All open connections.
    pub(super) tasks: TaskTracker,
}

/// Returns the builder of HTTP/1.1 and HTTP/2 with its limits.
///
/// A head that exceeds the limits by less than twice gets a problem document ([`crate::http::bounds`]); beyond that nothing
/// is stored, and the response is a bare 431.
pub(super) fn protocol(limits: &Limits) -> auto::Builder<TokioExecutor> {
    let count = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // `ConnectionUse` keeps the timeouts: those of hyper know no handshake, and no HTTP/2 connection without requests.
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
        let (Peer::Tcp(_), Some(certificates)) = (peer, &self.certificates) else {
            return self.drive(stream, peer).await;
        };
        let handshake = certificates.acceptor().accept(stream);
        match tokio::time::timeout(seconds(self.limits.header_timeout_s), handshake).await {
            Ok(Ok(stream)) => self.drive(stream, peer).await,
            Ok(Err(error)) => {
                tracing::debug!(?peer, %error, "the TLS handshake failed");
                self.wire.closed(Closed::Handshake);
            }
            Err(_) => self.wire.closed(Closed::Slow),
        }
    }

    async fn drive<S>(&self, stream: S, peer: Peer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let usage = ConnectionUse::default();
        let service = service_fn(|request: Request<Incoming>| {
            let under_way = usage.begin();
            let mut request = request.map(axum::body::Body::new);
            request.extensions_mut().insert(ConnectInfo(peer));
            let changes = !request.method().is_safe();
            let answer = self.router.clone().oneshot(request);
            // Started at once and run to completion even if the caller disconnects: otherwise a disconnect would avoid the
            // audit log.
            let answer = if changes { Either::Left(tokio::spawn(answer)) } else { Either::Right(answer) };
            let write_timeout = seconds(self.limits.write_timeout_s);
            async move {
                let Ok(response) = match answer {
                    Either::Left(task) => task.await?,
                    Either::Right(answer) => answer.await,
                };
                Ok::<_, JoinError>(response.map(|body| ResponseBody::new(body, write_timeout, under_way)))
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
        let (mut leaving, idle) = (false, seconds(self.limits.idle_timeout_s));
        loop {
            tokio::select! {
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(?peer, %error, "a connection ended with an error");
                    }
                    return;
                }
                () = usage.stalled.cancelled() => return self.wire.closed(Closed::Stalled),
                () = self.stop.cancelled(), if !leaving => {}
                begun = usage.unused(seconds(self.limits.header_timeout_s), if leaving { LEAVING } else { idle }) => {
                    if !leaving {
                        self.wire.closed(if begun { Closed::Idle } else { Closed::Slow });
                    }
                    if leaving || !begun {
                        return;
                    }
                }
            }
            // Graceful first: an HTTP/2 client learns that its next request must use another connection.
            leaving = true;
            connection.as_mut().graceful_shutdown();
        }
    }
}

fn seconds(value: u32) -> Duration {
    Duration::from_secs(value.into())
}
