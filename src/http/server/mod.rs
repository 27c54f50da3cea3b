//! Listening: on one TCP address, with TLS or on loopback, and on the unix socket.
//!
//! ```text
//!   accept ──▶ Gate ──▶ TLS handshake ──▶ hyper, HTTP/1.1 or 2 ──▶ router
//!               │ full, or too many of     │ watched by Activity: head, idle, write
//!               ▼ one address: turned away ▼ too slow: closed
//! ```
//!
//! What always holds: nothing that one caller does keeps another from being served. Connections are bounded in number, in all and by
//! address; the unix socket has places of its own, so that an operator gets in while TCP is full; and whatever a caller may
//! do slowly has a time or a rate.

mod activity;
mod body;
mod connection;
mod gate;
mod stream;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::body::TooSlow;
pub use self::gate::Network;

use self::activity::Patience;
use self::connection::{Serving, protocol};
use self::gate::{Gate, Refused};
use super::auth::Peer;
use super::tls::Certificates;
use crate::config::Limits;
use crate::metrics::wire::{Listening, Turned, Wire};

/// Why it cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Not a loopback address, and no TLS.
    #[error(
        "{0} is not a loopback address, and there is no TLS: set [tls] with a certificate and its key, listen on 127.0.0.1 or \
         [::1], or say --insecure-listen if everybody on the way may read and change what is sent, tokens included"
    )]
    NotLoopback(SocketAddr),
    /// The port is taken or may not be used.
    #[error("cannot listen on {address}: {source}; stop what uses the port, or give another with --listen")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another manager answers there.
    #[error("another mps-manager answers at {0}: stop it first, or give this one another --runtime-dir")]
    Served(PathBuf),
    /// The socket cannot be made.
    #[error("cannot listen on {path}: {source}")]
    Unix {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The two listeners, bound.
pub struct Listeners {
    tcp: TcpListener,
    unix: UnixListener,
    file: SocketFile,
}

/// A bound socket's file: left behind it would look like a manager that does not answer.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How long requests that are under way at a soft stop get; a stalled sender must not hold it up.
const DRAIN: Duration = Duration::from_secs(10);

/// What a caller is told who finds no place, where it can be told without a handshake.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
    connection: close\r\ncontent-length: 205\r\n\r\n{\"type\":\"urn:mps-manager:problem:unavailable\",\"title\":\"Unavailable at the moment\",\"status\":503,\"detail\":\"there are as \
many connections as there may be (limits.connections): close some, or try again later\"}";

/// Refuses an address beyond loopback that is to be served without TLS, unless that was asked for.
pub fn check_address(address: SocketAddr, tls: bool, insecure: bool) -> Result<(), ListenError> {
    if tls || insecure || address.ip().is_loopback() {
        Ok(())
    } else {
        Err(ListenError::NotLoopback(address))
    }
}

impl Listeners {
    /// Binds both; nothing is answered before [`Listeners::serve`].
    ///
    /// A socket that nobody answers at is a dead manager's and is replaced.
    pub async fn bind(address: SocketAddr, unix_path: &Path) -> Result<Self, ListenError> {
        let tcp = TcpListener::bind(address).await.map_err(|source| ListenError::Tcp { address, source })?;
        let unusable = |source| ListenError::Unix { path: unix_path.to_owned(), source };
        if UnixStream::connect(unix_path).await.is_ok() {
            // Its state directory is another one, or its lock would have told.
            return Err(ListenError::Served(unix_path.to_owned()));
        }
        if unix_path.exists() {
            std::fs::remove_file(unix_path).map_err(unusable)?;
        }
        let unix = UnixListener::bind(unix_path).map_err(unusable)?;
        let file = SocketFile(unix_path.to_owned());
        // Anybody may connect; who may act is decided by the peer's user.
        std::fs::set_permissions(unix_path, std::fs::Permissions::from_mode(0o666)).map_err(unusable)?;
        Ok(Self { tcp, unix, file })
    }

    /// The address that is listened on, with the port that was chosen for port 0.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Answers until `stop`, then lets what is under way finish.
    pub async fn serve(
        self,
        router: Router,
        limits: Limits,
        certificates: Option<Arc<Certificates>>,
        wire: Wire,
        stop: CancellationToken,
    ) {
        let serving = Arc::new(Serving {
            router,
            limits,
            patience: Patience::of(&limits),
            protocol: protocol(&limits),
            certificates,
            wire,
            stop: stop.clone(),
        });
        let tasks = TaskTracker::new();
        // Dropped at the end, and with it every connection that did not end by itself.
        let abandon = CancellationToken::new();
        let over_tcp = Gate::new(limits.connections, limits.connections_per_address);
        let over_unix = Gate::new(limits.socket_connections, limits.socket_connections);
        let (tcp, unix) =
            (Door { gate: over_tcp, kind: Listening::Tcp }, Door { gate: over_unix, kind: Listening::Unix });
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(self.tcp, &tcp, &serving, &tasks, &abandon) => {}
            () = accept(self.unix, &unix, &serving, &tasks, &abandon) => {}
        }
        drop(self.file);
        tasks.close();
        if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
            tracing::warn!("some requests did not end within {DRAIN:?} of the stop");
            abandon.cancel();
            tasks.wait().await;
        }
    }
}

/// One of the two ways in.
struct Door {
    gate: Arc<Gate>,
    kind: Listening,
}

/// A connection that tells who is at its other end, and that may be told to go.
trait Caller<A> {
    fn peer(&self, address: &A) -> Peer;

    /// Tells it that there is no place for it, if that can be done without waiting.
    fn turn_away(&self, tls: bool);
}

impl Caller<SocketAddr> for TcpStream {
    fn peer(&self, address: &SocketAddr) -> Peer {
        // Answers are small and complete: waiting for more of them helps nobody.
        let _ = self.set_nodelay(true);
        Peer::Tcp(*address)
    }

    fn turn_away(&self, tls: bool) {
        if !tls {
            let _ = self.try_write(NO_PLACE);
        }
    }
}

impl Caller<tokio::net::unix::SocketAddr> for UnixStream {
    fn peer(&self, _: &tokio::net::unix::SocketAddr) -> Peer {
        Peer::local(self.peer_cred())
    }

    fn turn_away(&self, _: bool) {
        let _ = self.try_write(NO_PLACE);
    }
}

/// Takes connections for ever.
async fn accept<L>(
    mut listener: L,
    door: &Door,
    serving: &Arc<Serving>,
    tasks: &TaskTracker,
    abandon: &CancellationToken,
) where
    L: Listener,
    L::Io: Caller<L::Addr> + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    loop {
        // It waits by itself where the process has no file descriptor left.
        let (stream, address) = listener.accept().await;
        let peer = stream.peer(&address);
        let network = match peer {
            Peer::Tcp(address) => Some(Network::from(address.ip())),
            Peer::Unix(_) => None,
        };
        let place = match door.gate.enter(network) {
            Ok(place) => place,
            Err(why) => {
                serving.wire.turned_away(match why {
                    Refused::Full => Turned::Full(door.kind),
                    Refused::OfAddress => Turned::OfAddress,
                });
                stream.turn_away(serving.certificates.is_some());
                continue;
            }
        };
        let open = serving.wire.opened(door.kind);
        let (serving, abandon) = (Arc::clone(serving), abandon.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = abandon.cancelled() => {}
                () = serving.serve(stream, peer) => {}
            }
            drop((open, place));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_goes_without_tls_unless_that_is_asked_for() {
        let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
        for (address, tls, insecure, allowed) in [
            ("127.0.0.1:1", false, false, true),
            ("[::1]:1", false, false, true),
            ("0.0.0.0:1", false, false, false),
            ("192.0.2.1:1", false, false, false),
            ("192.0.2.1:1", true, false, true),
            ("0.0.0.0:1", false, true, true),
        ] {
            assert_eq!(check_address(at(address), tls, insecure).is_ok(), allowed, "{address}");
        }
        let said = check_address(at("0.0.0.0:1"), false, false).expect_err("refused").to_string();
        assert!(said.contains("[tls]") && said.contains("--insecure-listen"), "{said}");
    }

    #[test]
    fn who_is_turned_away_is_told_in_a_whole_answer() {
        let text = std::str::from_utf8(NO_PLACE).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        let problem: crate::http::problem::Problem = serde_json::from_str(body).expect("a problem");
        assert_eq!(problem.status, 503);
    }
}
