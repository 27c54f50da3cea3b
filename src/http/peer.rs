//! The other end of a connection.

use std::net::SocketAddr;

use crate::domain::access::Origin;
use crate::service::access::LocalUser;
use crate::service::limits::CallerSource;
use crate::service::tenants::leases::LeaseCaller;

/// The peer of a connection.
#[derive(Debug, Clone, Copy)]
pub enum Peer {
    /// Over TCP, from this address; it needs a token.
    Tcp(SocketAddr),
    /// Over the unix socket, as this user; `None` if the kernel does not report it.
    Unix(Option<LocalUser>),
}

impl Peer {
    /// The peer of a connection that was just accepted on the unix socket.
    pub fn local(socket: &tokio::net::UnixStream) -> Self {
        Self::Unix(LocalUser::connected(socket).ok())
    }

    /// The caller of a lease request.
    pub fn lease_caller(self) -> LeaseCaller {
        match self {
            Self::Tcp(_) => LeaseCaller::Remote,
            Self::Unix(user) => LeaseCaller::Local(user.and_then(|user| user.process)),
        }
    }

    /// Returns the origin of its calls.
    pub fn origin(self) -> Origin {
        match self {
            // An IPv4 address on an IPv6 socket is the same one.
            Self::Tcp(address) => Origin::Address(address.ip().to_canonical()),
            Self::Unix(_) => Origin::Socket,
        }
    }

    /// The source for which its connections, requests and failures are counted.
    pub(super) fn source(self) -> CallerSource {
        match self {
            Self::Tcp(address) => address.ip().into(),
            Self::Unix(user) => CallerSource::User(user.map(|user| user.uid)),
        }
    }

    /// Returns true if unrelated callers may share this peer's address, as on loopback.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::Tcp(address) if address.ip().to_canonical().is_loopback())
    }
}
