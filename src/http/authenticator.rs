//! The server's side of authentication: its names, and the cookies of its sessions.

use std::net::SocketAddr;

use axum::http::{HeaderMap, header};

use crate::domain::token::Secret;

/// Longest text accepted as a token: far more than any has.
pub(super) const LONGEST_TOKEN: usize = 256;

/// Most failures delayed at the same time: each holds a connection.
pub(super) const MAX_DELAYED: usize = 64;

/// Address and names of the server.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    /// The address that it listens on.
    pub address: SocketAddr,
    /// True if it is reached by TLS.
    pub tls: bool,
    /// Its names on loopback, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// True if the metrics are public.
    pub open_metrics: bool,
}

/// The part of authentication that does not depend on the caller.
#[derive(Debug)]
pub struct Authenticator {
    pub(super) entrance: ServerAddress,
    /// Slots for delayed failures.
    pub(super) waiting: tokio::sync::Semaphore,
}

impl Authenticator {
    /// Creates the authenticator of a server with this address.
    pub fn new(entrance: ServerAddress) -> Self {
        Self { entrance, waiting: tokio::sync::Semaphore::new(MAX_DELAYED) }
    }

    /// Returns true if TCP connections are possible only from this host.
    pub(in crate::http) fn on_loopback(&self) -> bool {
        self.entrance.address.ip().to_canonical().is_loopback()
    }

    /// Returns true if a Host header may have this name: an IP address, `localhost`, or one of its own names.
    pub(in crate::http) fn is_called(&self, host: &str) -> bool {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        bare.parse::<std::net::IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.entrance.hosts.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// The name of the cookie. With TLS, its prefix makes browsers bind it to this host and to TLS.
    pub(super) fn cookie_name(&self) -> &'static str {
        if self.entrance.tls { "__Host-mps_manager_session" } else { "mps_manager_session" }
    }

    /// The cookie of a session.
    pub(in crate::http) fn cookie(&self, secret: &Secret, max_age_s: i64) -> String {
        let secure = if self.entrance.tls { "; Secure" } else { "" };
        format!(
            "{}={}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Strict{secure}",
            self.cookie_name(),
            secret.reveal()
        )
    }

    /// The header that deletes the cookie.
    pub(in crate::http) fn no_cookie(&self) -> String {
        self.cookie(&Secret::shown(""), 0)
    }

    /// The values of our cookie. There may be several, since another server on this host may have set one too; only a few are
    /// checked.
    pub(super) fn cookies(&self, headers: &HeaderMap) -> impl Iterator<Item = Secret> {
        let name = self.cookie_name();
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let named = pairs.filter(move |(key, value)| *key == name && !value.is_empty());
        named
            .take(COOKIES)
            .filter(|(_, value)| value.len() <= LONGEST_TOKEN)
            .map(|(_, value)| Secret::shown(value))
    }

    /// The URL with a login code.
    pub fn login_url(&self, code: &Secret) -> Secret {
        let scheme = if self.entrance.tls { "https" } else { "http" };
        Secret::shown(&format!("{scheme}://{}/login?code={}", self.entrance.address, code.reveal()))
    }
}

/// Most cookies of our name that are checked.
pub(super) const COOKIES: usize = 4;
