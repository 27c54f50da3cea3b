//! Listeners: one TCP address, with TLS or on loopback, and the unix socket.
//!
//! ```text
//!   accept ──▶ Slots ──▶ TLS handshake ──▶ hyper, HTTP/1.1 or 2 ──▶ router
//!               │ full, or too many of     │ watched by Activity: head, idle, write
//!               ▼ one caller: turned away  ▼ too slow: closed
//! ```
//!
//! Invariant: no caller can keep another from being served. Connections are limited in total and per address or user; the
//! unix socket has its own slots, some of them reserved for root and the manager's user, so that an operator always gets
//! through; and everything that a caller may do slowly has a timeout or a minimum rate.

mod activity;
mod body;
mod connection;
mod error;
mod socket;
mod stream;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::body::TooSlow;
pub use self::error::ListenError;

use self::activity::Timeouts;
use self::connection::{Serving, protocol};
use self::socket::SocketFile;
use super::auth::Peer;
use super::tls::Certificates;
use crate::config::Limits;
use crate::domain::health::HostHealth;
use crate::metrics::wire::{ListenerKind, RefusedConnection, Wire};
use crate::service::access::LocalUser;
use crate::service::limits::{CallerSource, Slots, SlotsTaken};

/// The two bound listeners.
pub struct Listeners {
    tcp: TcpListener,
    unix: UnixListener,
    file: SocketFile,
}

/// Grace period for requests in progress at a soft stop.
const DRAIN: Duration = Duration::from_secs(10);

/// One user may have one in this many slots of the unix socket, except root and the manager's user; and as many are for all users
/// without a grant.
const OF_ONE_USER: u32 = 4;

/// Function that returns true if a user of the host may do anything at all without a token.
pub type HasGrant = Arc<dyn Fn(LocalUser) -> bool + Send + Sync>;

/// Connections of a server to the rest of the program: its counters, its health, and the users of the host.
pub struct ServerContext {
    /// Counts connections.
    pub wire: Wire,
    /// Shows what is wrong with a socket.
    pub health: HostHealth,
    /// Tells users with a grant from others.
    pub has_grant: HasGrant,
}

/// Returns the response for a caller without a slot, if it can be sent without a handshake.
fn refused_response(callers: Callers, why: SlotsTaken) -> String {
    let limit = match (callers, why) {
        (Callers::Remote, SlotsTaken::All) => "in total (limits.connections)",
        (Callers::Remote, SlotsTaken::Share) => "from your address (limits.connections_per_address)",
        (Callers::Operators | Callers::Users, SlotsTaken::All) => {
            "on this socket (limits.socket_connections)"
        }
        (Callers::Operators | Callers::Users, SlotsTaken::Share) => {
            "of your user on this socket (a quarter of limits.socket_connections)"
        }
        (Callers::Strangers, _) => {
            "of users without a grant on this socket (a quarter of limits.socket_connections)"
        }
    };
    let detail = format!("there are too many connections {limit}: close some, or try again later");
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

/// Refuses a non-loopback address without TLS, unless that is explicitly allowed.
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
    /// A socket that no one answers at was left by a dead manager and is replaced.
    pub async fn bind(address: SocketAddr, unix_path: &Path) -> Result<Self, ListenError> {
        let tcp = TcpListener::bind(address).await.map_err(|source| ListenError::Tcp { address, source })?;
        let (unix, file) = socket::bind(unix_path).await?;
        Ok(Self { tcp, unix, file })
    }

    /// The bound address, with the port chosen for port 0.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Serves until `stop`, then lets requests in progress finish. Whoever connects meanwhile waits for whoever serves next.
    pub async fn serve(
        self,
        router: Router,
        limits: Limits,
        certificates: Option<Arc<Certificates>>,
        context: ServerContext,
        stop: CancellationToken,
    ) -> Self {
        let ServerContext { wire, health, has_grant } = context;
        let Self { tcp: mut tcp_listener, unix: mut socket, mut file } = self;
        let serving = Arc::new(Serving {
            router,
            limits,
            timeouts: Timeouts::of(&limits),
            protocol: protocol(&limits),
            certificates,
            wire,
            stop: stop.clone(),
        });
        let tasks = TaskTracker::new();
        // Dropped at the end, which closes the remaining connections.
        let abandon = CancellationToken::new();
        let sockets = limits.socket_connections;
        let tcp = ConnectionLimits {
            kind: ListenerKind::Tcp,
            slots: slots(limits.connections, limits.connections_per_address),
            local: None,
        };
        let share = sockets.div_ceil(OF_ONE_USER);
        let unix = ConnectionLimits {
            kind: ListenerKind::Unix,
            slots: slots(sockets, share),
            local: Some(LocalLimits {
                of_operators: slots(sockets, sockets),
                of_strangers: slots(share, share.div_ceil(OF_ONE_USER)),
                has_grant,
            }),
        };
        // Once connections close, a new caller waits for the server that follows.
        tokio::select! {
            biased;
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
        tasks.close();
        if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
            tracing::warn!("some requests did not end within {DRAIN:?} of the stop");
            abandon.cancel();
            tasks.wait().await;
        }
        Self { tcp: tcp_listener, unix: socket, file }
    }
}

/// The connection slots of a listener.
struct ConnectionLimits {
    kind: ListenerKind,
    slots: Arc<Slots<CallerSource>>,
    /// Further ones of the unix socket.
    local: Option<LocalLimits>,
}

/// Slots of the unix socket beside those of users with a grant.
struct LocalLimits {
    /// For root and the manager's own user.
    of_operators: Arc<Slots<CallerSource>>,
    /// For users who may do nothing without a token: they keep nobody else out.
    of_strangers: Arc<Slots<CallerSource>>,
    has_grant: HasGrant,
}

/// Callers that share the same slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callers {
    Remote,
    Operators,
    Users,
    Strangers,
}

impl ConnectionLimits {
    fn callers(&self, peer: Peer) -> (Callers, &Arc<Slots<CallerSource>>) {
        let own = rustix::process::geteuid().as_raw();
        match (&self.local, peer) {
            (None, _) => (Callers::Remote, &self.slots),
            (Some(local), Peer::Unix(Some(user))) if user.uid == 0 || user.uid == own => {
                (Callers::Operators, &local.of_operators)
            }
            (Some(local), Peer::Unix(Some(user))) if (local.has_grant)(user) => (Callers::Users, &self.slots),
            (Some(local), _) => (Callers::Strangers, &local.of_strangers),
        }
    }
}

fn slots(total: u32, share: u32) -> Arc<Slots<CallerSource>> {
    let count = |value| usize::try_from(value).unwrap_or(usize::MAX);
    Slots::new(count(total), count(share))
}

/// A connection whose peer is known, and that can be refused with a message.
trait Caller<A> {
    fn peer(&self, address: &A) -> Peer;

    /// Sends as much as possible without waiting.
    fn send_now(&self, text: &str);
}

impl Caller<SocketAddr> for TcpStream {
    fn peer(&self, address: &SocketAddr) -> Peer {
        // Responses are small and complete, so they are not delayed.
        let _ = self.set_nodelay(true);
        Peer::Tcp(*address)
    }

    fn send_now(&self, text: &str) {
        let _ = self.try_write(text.as_bytes());
    }
}

impl Caller<tokio::net::unix::SocketAddr> for UnixStream {
    fn peer(&self, _: &tokio::net::unix::SocketAddr) -> Peer {
        Peer::local(self)
    }

    fn send_now(&self, text: &str) {
        let _ = self.try_write(text.as_bytes());
    }
}

/// Accepts connections forever.
async fn accept<L>(
    listener: &mut L,
    entry: &ConnectionLimits,
    serving: &Arc<Serving>,
    tasks: &TaskTracker,
    abandon: &CancellationToken,
) where
    L: Listener,
    L::Io: Caller<L::Addr> + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    loop {
        // It backs off by itself when the process has no file descriptors left.
        let (stream, address) = listener.accept().await;
        let peer = stream.peer(&address);
        let (callers, slots) = entry.callers(peer);
        let slot = match slots.take(peer.source()) {
            Ok(slot) => slot,
            Err(why) => {
                serving.wire.turned_away(match why {
                    SlotsTaken::All => RefusedConnection::Full(entry.kind),
                    SlotsTaken::Share => RefusedConnection::OfOne(entry.kind),
                });
                if entry.kind == ListenerKind::Unix || serving.certificates.is_none() {
                    stream.send_now(&refused_response(callers, why));
                }
                continue;
            }
        };
        let open = serving.wire.opened(entry.kind);
        let (serving, abandon) = (Arc::clone(serving), abandon.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = abandon.cancelled() => {}
                () = serving.serve(stream, peer) => {}
            }
            drop((open, slot));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_may_listen_without_tls() {
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
        let message = check_address(at("0.0.0.0:1"), false, false).expect_err("refused").to_string();
        assert!(message.contains("[tls]") && message.contains("--insecure-listen"), "{message}");
    }

    #[test]
    fn refused_connection_names_its_limit() {
        for (callers, why, limit) in [
            (Callers::Remote, SlotsTaken::All, "(limits.connections)"),
            (Callers::Remote, SlotsTaken::Share, "(limits.connections_per_address)"),
            (Callers::Users, SlotsTaken::All, "(limits.socket_connections)"),
            (Callers::Operators, SlotsTaken::Share, "quarter of limits.socket_connections"),
            (Callers::Strangers, SlotsTaken::All, "of users without a grant"),
        ] {
            let text = refused_response(callers, why);
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let problem: crate::http::problem::Problem = serde_json::from_str(body).expect("a problem");
            assert_eq!(problem.status, 503);
            assert!(problem.detail.contains(limit), "{}", problem.detail);
        }
    }
}
