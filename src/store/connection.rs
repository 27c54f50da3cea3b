//! How the file is opened.

use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::StoreError;

/// How long a connection waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of every connection.
pub(super) fn options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .log_statements(tracing::log::LevelFilter::Trace))
}

/// Labels and commands in the file are the owner's alone.
pub(super) fn restrict_to_owner(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|source| StoreError::File { path: path.to_owned(), source })
}
