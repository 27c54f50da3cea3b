//! `[limits]`: how much of the server one caller, and all callers together, may take.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::error::range;

/// Limits of connections and requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Connections over TCP at once.
    pub connections: u32,
    /// Connections over TCP at once from one address.
    pub connections_per_address: u32,
    /// Connections through the unix socket at once, beside those over TCP.
    pub socket_connections: u32,
    /// Seconds in which a request's head has to come, and a TLS handshake has to end.
    pub header_timeout_s: u32,
    /// Seconds after which a connection that asks for nothing is closed.
    pub idle_timeout_s: u32,
    /// Seconds for which a caller may take nothing of an answer.
    pub write_timeout_s: u32,
    /// Seconds in which a request's body has to come.
    pub body_timeout_s: u32,
    /// Longest time for one answer to begin, in seconds.
    pub request_timeout_s: u32,
    /// Bytes of a request's head.
    pub header_bytes: u32,
    /// Fields of a request's head.
    pub headers: u32,
    /// Bytes of a request's body.
    pub body_bytes: u32,
    /// Requests at once in one HTTP/2 connection.
    pub streams: u32,
    /// Requests a second of one caller, and of one address; 0 is no bound.
    pub requests_per_s: u32,
    /// Requests that may come at once before the rate is enforced.
    pub request_burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_address: 256,
            socket_connections: 64,
            header_timeout_s: 10,
            idle_timeout_s: 75,
            write_timeout_s: 30,
            body_timeout_s: 30,
            request_timeout_s: 60,
            header_bytes: 16 << 10,
            headers: 64,
            body_bytes: 1 << 20,
            streams: 64,
            requests_per_s: 500,
            request_burst: 1000,
        }
    }
}

impl Limits {
    /// Refuses limits that would block every caller, or limit nothing.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        range("limits.connections", self.connections, 1, 100_000, "1 to 100000")?;
        let most = "1 to 100000, and at most limits.connections";
        range(
            "limits.connections_per_address",
            self.connections_per_address,
            1,
            100_000.min(self.connections),
            most,
        )?;
        range("limits.socket_connections", self.socket_connections, 1, 10_000, "1 to 10000")?;
        for (key, value) in [
            ("limits.header_timeout_s", self.header_timeout_s),
            ("limits.idle_timeout_s", self.idle_timeout_s),
            ("limits.write_timeout_s", self.write_timeout_s),
            ("limits.body_timeout_s", self.body_timeout_s),
            ("limits.request_timeout_s", self.request_timeout_s),
        ] {
            range(key, value, 1, 3600, "1 to 3600 seconds")?;
        }
        range("limits.header_bytes", self.header_bytes, 4096, 1 << 20, "4096 to 1048576 bytes")?;
        range("limits.headers", self.headers, 16, 1000, "16 to 1000")?;
        range("limits.body_bytes", self.body_bytes, 64 << 10, 64 << 20, "65536 to 67108864 bytes")?;
        range("limits.streams", self.streams, 1, 1000, "1 to 1000")?;
        range("limits.requests_per_s", self.requests_per_s, 0, 1_000_000, "0 to 1000000")?;
        range("limits.request_burst", self.request_burst, 1, 1_000_000, "1 to 1000000")
    }
}
