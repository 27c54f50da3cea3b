//! Options and permissions with which the database file is opened.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use super::{Result, StoreError};

/// Time that a connection waits for another process that locks the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection, in the transaction that its caller began.
pub type Db = sqlx::SqliteConnection;

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

/// Returns the path of a file beside another, whose name continues that of the other.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the file accessible to its owner only, because it contains labels and commands.
pub(super) fn restrict_to_owner(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|source| StoreError::File { path: path.to_owned(), source })
}
