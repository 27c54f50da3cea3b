//! The API's TCP listener.

use serde::{Deserialize, Serialize};

/// TCP listener of the API, and its protection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostListening {
    /// The address and port.
    #[schema(example = "127.0.0.1:8640")]
    pub address: String,
    /// Its certificate; `null` if it is served without TLS.
    pub tls: Option<TlsStatus>,
    /// True if callers on other hosts are served without TLS: anybody on the network path can read and change the traffic.
    pub insecure: bool,
}

/// Time before its expiry at which a certificate is due for renewal, in milliseconds.
pub const RENEWAL_MS: i64 = 14 * 24 * 60 * 60 * 1000;

/// The certificate that the API is served with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TlsStatus {
    /// When it expires.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub not_after: i64,
    /// Reason why the present files could not be loaded, so that the previous pair is still served.
    pub reload_error: Option<String>,
}
