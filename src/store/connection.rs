//! Options and permissions with which the database file is opened.

use std::path::Path;
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::{Result, StoreError};

/// Time that a connection waits for another process that locks the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of every connection.
pub(super) fn options(path: &Path) -> Result<SqliteConnectOptions> {
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .log_statements(tracing::log::LevelFilter::Trace))
}

/// Makes the file accessible to its owner only, because it contains labels and commands.
pub(super) fn restrict_to_owner(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|source| StoreError::File { path: path.to_owned(), source })
}
