//! Errors of listeners.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Reason for which the server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Not a loopback address, and no TLS.
    #[error(
        "{0} is not a loopback address, and there is no TLS: set [tls] with a certificate and its key, listen on 127.0.0.1 or \
         [::1], or use --insecure-listen if everyone on the network may read and change what is sent, including tokens"
    )]
    NotLoopback(SocketAddr),
    /// The port is in use or not permitted.
    #[error("cannot listen on {address}: {source}; stop what uses the port, or give another with --listen")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another manager is listening there.
    #[error("another mps-manager answers at {0}: stop it first, or give this one another --runtime-dir")]
    Served(PathBuf),
    /// The socket cannot be created.
    #[error("cannot listen on {path}: {source}")]
    Unix {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}
