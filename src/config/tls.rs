//! `[tls]`: the certificate that the API is served with.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::host::trust::{Content, Trust};

/// Where certificate and key are, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate, and after it those that lead to a root.
    pub certificate: PathBuf,
    /// Its private key, which only the manager's user and group may read.
    pub key: PathBuf,
}

/// Refuses a private key that others may read or change.
pub fn check_key(key: &Path) -> Result<(), String> {
    Trust::own().check(key, Content::GroupSecret).map(drop).map_err(|error| error.to_string())
}
