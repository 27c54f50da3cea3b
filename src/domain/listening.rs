//! How the API is reached over TCP.

use serde::{Deserialize, Serialize};

/// How the API is reached over TCP, and how well that is protected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostListening {
    /// The address and port.
    #[schema(example = "127.0.0.1:8640")]
    pub address: String,
    /// Its certificate; `null` where it is served without TLS.
    pub tls: Option<TlsStatus>,
    /// Whether callers beyond this host are served without TLS: everybody on the way can read and change what is sent.
    pub insecure: bool,
}

/// How long before its expiry a certificate is to be renewed, in milliseconds.
pub const RENEWAL_MS: i64 = 14 * 24 * 60 * 60 * 1000;

/// The certificate that the API is served with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TlsStatus {
    /// When it expires.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub not_after: i64,
    /// Why the files as they are now are not used, and the pair from before is still served.
    pub reload_error: Option<String>,
}
