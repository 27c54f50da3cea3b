//! Listening: on loopback and on the unix socket, and nowhere else until there are roles and TLS.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use super::auth::Peer;

/// Why it cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Not a loopback address.
    #[error(
        "{0} is not a loopback address: until there are roles and TLS, the API listens on 127.0.0.1 or [::1] only"
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

impl Connected<IncomingStream<'_, TcpListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self::Tcp(*stream.remote_addr())
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::local(stream.io().peer_cred())
    }
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

/// Refuses an address that is not loopback.
pub fn check_loopback(address: SocketAddr) -> Result<(), ListenError> {
    if address.ip().is_loopback() { Ok(()) } else { Err(ListenError::NotLoopback(address)) }
}

impl Listeners {
    /// Binds both; nothing is answered before [`Listeners::serve`].
    ///
    /// A socket that nobody answers at is a dead manager's and is replaced.
    pub async fn bind(address: SocketAddr, unix_path: &Path) -> Result<Self, ListenError> {
        check_loopback(address)?;
        let tcp = TcpListener::bind(address).await.map_err(|source| ListenError::Tcp { address, source })?;
        let unusable = |source| ListenError::Unix { path: unix_path.to_owned(), source };
        if tokio::net::UnixStream::connect(unix_path).await.is_ok() {
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
    pub async fn serve(self, router: Router, stop: CancellationToken) -> std::io::Result<()> {
        let service = || router.clone().into_make_service_with_connect_info::<Peer>();
        let stopped = |stop: CancellationToken| async move { stop.cancelled().await };
        let tcp = axum::serve(self.tcp, service()).with_graceful_shutdown(stopped(stop.clone()));
        let unix = axum::serve(self.unix, service()).with_graceful_shutdown(stopped(stop.clone()));
        let result = tokio::select! {
            (tcp, unix) = async { tokio::join!(async { tcp.await }, async { unix.await }) } => tcp.and(unix),
            () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {
                tracing::warn!("some requests did not end within {DRAIN:?} of the stop");
                Ok(())
            }
        };
        drop(self.file);
        result
    }
}
