//! Why the configuration is refused.

use std::path::PathBuf;

use crate::host::trust::Untrusted;

/// Why the configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("the configuration file {path} cannot be read: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("the configuration file {path} is refused: {detail}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// The key, and the reason.
        detail: String,
    },
    /// Others could change the file.
    #[error("the configuration file is refused: {0}")]
    Untrusted(Untrusted),
    /// A user or group is not known here.
    #[error("{key} is refused: {detail}")]
    Unknown {
        /// The key.
        key: String,
        /// The reason, and the remedy.
        detail: String,
    },
    /// A key is for simulated hosts.
    #[error("{key} is for simulated hosts: take it out, or give sim")]
    SimulatedOnly {
        /// The key.
        key: &'static str,
    },
    /// A value is out of range.
    #[error("{key} is {value}: give {remedy}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: u32,
        /// Values that are accepted.
        remedy: &'static str,
    },
}

/// Refuses a value that is out of range.
pub(super) fn range(
    key: &'static str,
    value: u32,
    low: u32,
    high: u32,
    remedy: &'static str,
) -> Result<(), ConfigError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { key, value, remedy }) }
}
