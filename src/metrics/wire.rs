//! Connections, counted where they are taken and closed.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::domain::api_words;

/// A listener of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerKind {
    /// The TCP address.
    Tcp,
    /// The unix socket.
    Unix,
}

api_words!(ListenerKind: Tcp "tcp", Unix "unix");

/// Why a connection was turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedConnection {
    /// As many connections were open as the limit allows.
    Full(ListenerKind),
    /// Its address, or its user, had as many connections open as the limit allows.
    OfOne(ListenerKind),
}

/// Why a connection was closed by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The TLS handshake failed.
    Handshake,
    /// The head of a request did not come in time.
    Slow,
    /// The connection was idle.
    Idle,
    /// The caller read nothing of an answer.
    Stalled,
}

api_words!(Closed: Handshake "handshake", Slow "slow_head", Idle "idle", Stalled "stalled");

/// The limit that was exceeded where a request was refused with 429.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests of one address.
    Address,
    /// Requests of one user of this host.
    User,
    /// Requests of one actor.
    Actor,
    /// Log-ins with one token, or of one user.
    LogIn,
    /// Streams of events of one reader.
    Streams,
    /// Attempts of one address, or user, that showed nothing valid.
    Failures,
}

api_words!(Limit:
    Address "address", User "user", Actor "actor", LogIn "log_in", Streams "streams", Failures "failures",
);

/// Labels of a count, each with its value.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Counts of connections; clones count together.
#[derive(Debug, Clone, Default)]
pub struct Wire {
    open: Family<Labels<1>, Gauge>,
    accepted: Family<Labels<1>, Counter>,
    turned: Family<Labels<2>, Counter>,
    closed: Family<Labels<1>, Counter>,
    limited: Family<Labels<1>, Counter>,
}

impl Wire {
    /// Counts a connection, which is open until the result is dropped.
    pub fn opened(&self, listener: ListenerKind) -> OpenConnection {
        let labels = [("listener", listener.as_str())];
        self.accepted.get_or_create(&labels).inc();
        let open = self.open.get_or_create(&labels).clone();
        open.inc();
        OpenConnection(open)
    }

    /// Counts a connection that was turned away.
    pub fn turned_away(&self, why: RefusedConnection) {
        let (listener, reason) = match why {
            RefusedConnection::Full(listener) => (listener, "full"),
            RefusedConnection::OfOne(ListenerKind::Tcp) => (ListenerKind::Tcp, "address"),
            RefusedConnection::OfOne(ListenerKind::Unix) => (ListenerKind::Unix, "user"),
        };
        self.turned.get_or_create(&[("listener", listener.as_str()), ("reason", reason)]).inc();
    }

    /// Counts a connection that the server closed.
    pub fn closed(&self, reason: Closed) {
        self.closed.get_or_create(&[("reason", reason.as_str())]).inc();
    }

    /// Counts a request that was refused with 429.
    pub fn limited(&self, by: Limit) {
        self.limited.get_or_create(&[("scope", by.as_str())]).inc();
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        // A series that begins at 0 shows its first event; one that begins at 1 does not.
        for (listener, reason) in [
            (ListenerKind::Tcp, "full"),
            (ListenerKind::Unix, "full"),
            (ListenerKind::Tcp, "address"),
            (ListenerKind::Unix, "user"),
        ] {
            let _ = self.turned.get_or_create(&[("listener", listener.as_str()), ("reason", reason)]);
        }
        for reason in Closed::ALL {
            let _ = self.closed.get_or_create(&[("reason", reason.as_str())]);
        }
        for limit in Limit::ALL {
            let _ = self.limited.get_or_create(&[("scope", limit.as_str())]);
        }
        registry.register(
            "connections_open",
            "Connections that are open, by the way they came",
            self.open.clone(),
        );
        registry.register(
            "connections_accepted",
            "Connections that were accepted, by the way they came",
            self.accepted.clone(),
        );
        registry.register(
            "connections_refused",
            "Connections that were turned away: full (as many as there may be), address (as many of one address), user (as many of one user on the unix socket)",
            self.turned.clone(),
        );
        registry.register(
            "connections_closed",
            "Connections that the server closed: handshake (TLS failed), slow_head, idle, stalled (nothing taken of an answer)",
            self.closed.clone(),
        );
        registry.register(
            "http_requests_limited",
            "Requests that were refused with 429, by what there were too many of: address, user or actor (requests of one), log_in (log-ins of one), streams (streams of events of one), failures (attempts that showed nothing valid)",
            self.limited.clone(),
        );
    }
}

/// An open connection.
#[derive(Debug)]
pub struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}
