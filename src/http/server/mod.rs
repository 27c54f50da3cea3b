//! Listening: on one TCP address, with TLS or on loopback, and on the unix socket.
//!
//! ```text
//!   accept ──▶ Gate ──▶ TLS handshake ──▶ hyper, HTTP/1.1 or 2 ──▶ router
//!               │ full, or too many of     │ watched by Activity: head, idle, write
//!               ▼ one caller: turned away  ▼ too slow: closed
//! ```
//!
//! What always holds: nothing that one caller does keeps another from being served. Connections are bounded in number, in all and by
//! address or user; the unix socket has places of its own, and on it root and the manager's user have theirs, so that an operator
//! gets in while everything else is full; and whatever a caller may do slowly has a time or a rate.

mod activity;
mod body;
mod connection;
mod gate;
mod socket;
mod stream;

use std::net::SocketAddr;
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
use self::gate::{Gate, Place, Refused, Whom};
use self::socket::SocketFile;
use super::auth::Peer;
use super::tls::Certificates;
use crate::config::Limits;
use crate::domain::health::HostHealth;
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

/// How long requests that are under way at a soft stop get; a stalled sender must not hold it up.
const DRAIN: Duration = Duration::from_secs(10);

/// The part of the places on the unix socket that one user may hold, root and the manager's user excepted.
const OF_ONE_USER: u32 = 4;

/// What a caller is told who finds no place, where it can be told without a handshake.
fn no_place(listening: Listening, why: Refused) -> String {
    let limit = match (listening, why) {
        (Listening::Tcp, Refused::Full) => "as there may be (limits.connections)",
        (Listening::Tcp, Refused::OfOne) => {
            "of your address as there may be (limits.connections_per_address)"
        }
        (Listening::Unix, Refused::Full) => "on this socket as there may be (limits.socket_connections)",
        (Listening::Unix, Refused::OfOne) => {
            "of your user on this socket as there may be (a quarter of limits.socket_connections)"
        }
    };
    let detail = format!("there are as many connections {limit}: close some, or try again later");
    let body = serde_json::json!({
        "type": "urn:mps-manager:problem:unavailable",
        "title": "Unavailable at the moment",
        "status": 503,
        "detail": detail,
    });
    let body = body.to_string();
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

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
        let (unix, file) = socket::bind(unix_path).await?;
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
        health: HostHealth,
        stop: CancellationToken,
    ) {
        let Self { tcp: mut tcp_listener, unix: mut socket, mut file } = self;
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
        let sockets = limits.socket_connections;
        let tcp = Door {
            kind: Listening::Tcp,
            gate: Gate::new(limits.connections, limits.connections_per_address),
            of_operators: None,
        };
        let unix = Door {
            kind: Listening::Unix,
            gate: Gate::new(sockets, sockets.div_ceil(OF_ONE_USER)),
            of_operators: Some(Gate::new(sockets, sockets)),
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = accept(&mut tcp_listener, &tcp, &serving, &tasks, &abandon) => {}
            () = async {
                loop {
                    tokio::select! {
                        () = accept(&mut socket, &unix, &serving, &tasks, &abandon) => {}
                        () = file.lost() => {
                            (socket, file) = socket::bind_again(&file, &health).await;
                        }
                    }
                }
            } => {}
        }
        drop(file);
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
    kind: Listening,
    gate: Arc<Gate>,
    /// Places of root and of the manager's own user, which nobody else can take.
    of_operators: Option<Arc<Gate>>,
}

impl Door {
    fn enter(&self, whom: Whom) -> Result<Place, Refused> {
        let own = rustix::process::geteuid().as_raw();
        match (&self.of_operators, whom) {
            (Some(gate), Whom::User(Some(uid))) if uid == 0 || uid == own => gate.enter(whom),
            _ => self.gate.enter(whom),
        }
    }
}

/// A connection that tells who is at its other end, and that may be told to go.
trait Caller<A> {
    fn peer(&self, address: &A) -> Peer;

    /// Whose connection it counts as.
    fn whom(&self, address: &A) -> Whom;

    /// Sends what it can without waiting.
    fn tell(&self, text: &str);
}

impl Caller<SocketAddr> for TcpStream {
    fn peer(&self, address: &SocketAddr) -> Peer {
        // Answers are small and complete: waiting for more of them helps nobody.
        let _ = self.set_nodelay(true);
        Peer::Tcp(*address)
    }

    fn whom(&self, address: &SocketAddr) -> Whom {
        Whom::Network(Network::from(address.ip()))
    }

    fn tell(&self, text: &str) {
        let _ = self.try_write(text.as_bytes());
    }
}

impl Caller<tokio::net::unix::SocketAddr> for UnixStream {
    fn peer(&self, _: &tokio::net::unix::SocketAddr) -> Peer {
        Peer::local(self)
    }

    fn whom(&self, _: &tokio::net::unix::SocketAddr) -> Whom {
        Whom::User(self.peer_cred().ok().map(|credentials| credentials.uid()))
    }

    fn tell(&self, text: &str) {
        let _ = self.try_write(text.as_bytes());
    }
}

/// Takes connections for ever.
async fn accept<L>(
    listener: &mut L,
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
        let place = match door.enter(stream.whom(&address)) {
            Ok(place) => place,
            Err(why) => {
                serving.wire.turned_away(match why {
                    Refused::Full => Turned::Full(door.kind),
                    Refused::OfOne => Turned::OfOne(door.kind),
                });
                if door.kind == Listening::Unix || serving.certificates.is_none() {
                    stream.tell(&no_place(door.kind, why));
                }
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
    fn who_is_turned_away_is_told_in_a_whole_answer_by_which_limit() {
        for (listening, why, limit) in [
            (Listening::Tcp, Refused::Full, "(limits.connections)"),
            (Listening::Tcp, Refused::OfOne, "(limits.connections_per_address)"),
            (Listening::Unix, Refused::Full, "(limits.socket_connections)"),
            (Listening::Unix, Refused::OfOne, "quarter of limits.socket_connections"),
        ] {
            let text = no_place(listening, why);
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let problem: crate::http::problem::Problem = serde_json::from_str(body).expect("a problem");
            assert_eq!(problem.status, 503);
            assert!(problem.detail.contains(limit), "{}", problem.detail);
        }
    }
}
