//! Listeners: one TCP address, with TLS or on loopback, and the unix socket.
//!
//! ```text
//!   accept ──▶ Slots ──▶ TLS handshake ──▶ hyper, HTTP/1.1 or 2 ──▶ router
//!               │ full, or too many of     │ no request, or a response that
//!               ▼ one caller: turned away  ▼ nobody reads, for too long: closed
//! ```
//!
//! Invariant: no caller can keep another from being served. Connections are limited in total and per address or user; the
//! unix socket has its own slots, some of them reserved for root and the manager's user, so that an operator always gets
//! through; and everything that a caller may do slowly has a timeout.

mod connection;
mod error;
mod response;
mod socket;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use futures_util::FutureExt as _;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::error::ListenError;

use self::connection::{Serving, protocol};
use self::socket::SocketFile;
use super::peer::Peer;
use super::problem::{Problem, ProblemKind};
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

/// Connection slots that some callers share, with the limits as one without a slot reads them.
struct CallerSlots {
    slots: Arc<Slots<CallerSource>>,
    /// The limit on all of them.
    total: &'static str,
    /// The limit on each.
    share: &'static str,
}

impl CallerSlots {
    fn new((total, share): (u32, u32), limits: [&'static str; 2]) -> Self {
        let count = |value| usize::try_from(value).unwrap_or(usize::MAX);
        Self { slots: Slots::new(count(total), count(share)), total: limits[0], share: limits[1] }
    }

    fn remote(limits: &Limits) -> Self {
        Self::new(
            (limits.connections, limits.connections_per_address),
            ["in total (limits.connections)", "from your address (limits.connections_per_address)"],
        )
    }

    /// Returns the response for a caller without a slot, if it can be sent without a handshake.
    fn refused_response(&self, why: SlotsTaken) -> String {
        let limit = match why {
            SlotsTaken::All => self.total,
            SlotsTaken::Share => self.share,
        };
        let detail = format!("there are too many connections {limit}: close some, or try again later");
        let problem = Problem::new(ProblemKind::Unavailable, detail);
        let body = serde_json::to_string(&problem).expect("texts and a number");
        format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }
}

/// Slots of the unix socket.
struct UnixSlots {
    /// For root and the manager's own user.
    operators: CallerSlots,
    /// For users with a grant.
    users: CallerSlots,
    /// For users who may do nothing without a token: they keep nobody else out.
    strangers: CallerSlots,
    has_grant: HasGrant,
}

impl UnixSlots {
    fn new(sockets: u32, has_grant: HasGrant) -> Self {
        let share = sockets.div_ceil(OF_ONE_USER);
        let limits = [
            "on this socket (limits.socket_connections)",
            "of your user on this socket (a quarter of limits.socket_connections)",
        ];
        let of_strangers = "of users without a grant on this socket (a quarter of limits.socket_connections)";
        Self {
            operators: CallerSlots::new((sockets, sockets), limits),
            users: CallerSlots::new((sockets, share), limits),
            strangers: CallerSlots::new((share, share.div_ceil(OF_ONE_USER)), [of_strangers; 2]),
            has_grant,
        }
    }

    fn of(&self, peer: Peer) -> &CallerSlots {
        let own_uid = rustix::process::geteuid().as_raw();
        match peer {
            Peer::Unix(Some(user)) if user.uid == 0 || user.uid == own_uid => &self.operators,
            Peer::Unix(Some(user)) if (self.has_grant)(user) => &self.users,
            _ => &self.strangers,
        }
    }
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
            protocol: protocol(&limits),
            certificates,
            wire,
            stop: stop.clone(),
            abandon: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        // Accepted connections inherit both. Responses are small and complete, so they are not delayed; and a caller that
        // reads nothing is noticed by the kernel also where nothing of a response waits for it.
        let options = sockopt::set_tcp_nodelay(&tcp_listener, true)
            .and_then(|()| sockopt::set_tcp_user_timeout(&tcp_listener, limits.write_timeout_s * 1000));
        if let Err(error) = options {
            tracing::warn!(%error, "options of TCP connections cannot be set");
        }
        let (remote, local) =
            (CallerSlots::remote(&limits), UnixSlots::new(limits.socket_connections, has_grant));
        let of_address = |_: &TcpStream, address| (Peer::Tcp(address), &remote);
        let of_user = |stream: &UnixStream, _| {
            let peer = Peer::local(stream);
            (peer, local.of(peer))
        };
        // Once connections close, a new caller waits for the server that follows.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = accept(&mut tcp_listener, ListenerKind::Tcp, of_address, &serving) => {}
            () = async {
                loop {
                    tokio::select! {
                        () = accept(&mut socket, ListenerKind::Unix, of_user, &serving) => {}
                        () = file.lost() => {
                            (socket, file) = socket::bind_again(&file, &health).await;
                        }
                    }
                }
            } => {}
        }
        serving.tasks.close();
        if tokio::time::timeout(DRAIN, serving.tasks.wait()).await.is_err() {
            tracing::warn!("some requests did not end within {DRAIN:?} of the stop");
            serving.abandon.cancel();
            serving.tasks.wait().await;
        }
        Self { tcp: tcp_listener, unix: socket, file }
    }
}

/// Accepts connections forever.
async fn accept<'s, L>(
    listener: &mut L,
    kind: ListenerKind,
    caller: impl Fn(&L::Io, L::Addr) -> (Peer, &'s CallerSlots),
    serving: &Arc<Serving>,
) where
    L: Listener,
    L::Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    loop {
        // It backs off by itself when the process has no file descriptors left.
        let (mut stream, address) = listener.accept().await;
        let (peer, slots) = caller(&stream, address);
        let slot = match slots.slots.take(peer.source()) {
            Ok(slot) => slot,
            Err(why) => {
                serving.wire.turned_away(match why {
                    SlotsTaken::All => RefusedConnection::Full(kind),
                    SlotsTaken::Share => RefusedConnection::OfOne(kind),
                });
                if kind == ListenerKind::Unix || serving.certificates.is_none() {
                    // As much as can be sent without waiting.
                    let _ = stream.write(slots.refused_response(why).as_bytes()).now_or_never();
                }
                continue;
            }
        };
        let open = serving.wire.opened(kind);
        let connection = Arc::clone(serving);
        serving.tasks.spawn(async move {
            tokio::select! {
                () = connection.abandon.cancelled() => {}
                () = connection.serve(stream, peer) => {}
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
        let remote = CallerSlots::remote(&Limits::default());
        let local = UnixSlots::new(64, Arc::new(|_| false));
        for (slots, why, limit) in [
            (&remote, SlotsTaken::All, "(limits.connections)"),
            (&remote, SlotsTaken::Share, "(limits.connections_per_address)"),
            (&local.users, SlotsTaken::All, "(limits.socket_connections)"),
            (&local.operators, SlotsTaken::Share, "quarter of limits.socket_connections"),
            (&local.strangers, SlotsTaken::All, "of users without a grant"),
        ] {
            let text = slots.refused_response(why);
            let (head, body) = text.split_once("\r\n\r\n").expect("a head");
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let problem: Problem = serde_json::from_str(body).expect("a problem");
            assert_eq!(problem.status, 503);
            assert!(problem.detail.contains(limit), "{}", problem.detail);
        }
    }
}
