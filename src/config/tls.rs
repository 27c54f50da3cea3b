//! `[tls]`: the certificate that the API is served with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where certificate and key are, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate, and after it those that lead to a root.
    pub certificate: PathBuf,
    /// Its private key, which only the manager's user and group may read.
    pub key: PathBuf,
}
