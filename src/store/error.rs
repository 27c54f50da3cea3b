//! Errors of the store.

use std::path::PathBuf;

use super::failure::{self, StorageFailure};

/// The result of what needs the store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite returned an error.
    #[error("the database failed: {0}")]
    Database(sqlx::Error),
    /// The file was written by a newer mps-manager.
    #[error(
        "the database {path} has schema version {found} and this mps-manager knows {known}: start the newer \
         mps-manager that wrote it, or restore a copy from before (`*.before-*.db` beside it); nothing was changed"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The file was written by a pre-release, whose schema is not the one that releases begin with.
    #[error(
        "the database {0} was made by a pre-release of mps-manager, and this version cannot read it: move the state directory \
         away and start again, and control daemons that run are listed as foreign and can be adopted; nothing was changed"
    )]
    PreRelease(PathBuf),
    /// A migration failed.
    #[error("the database could not be brought up to date: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row holds a value that no version of this program writes.
    #[error("the database holds {what} that cannot be read: {detail}")]
    Corrupt {
        /// Kind of value.
        what: &'static str,
        /// Reason why it cannot be read.
        detail: String,
    },
    /// The tenants of a daemon ask for shares that its GPUs cannot give, or that cannot be worked out for them.
    #[error("daemon {daemon} cannot be planned: {detail}")]
    Unplannable {
        /// The daemon.
        daemon: crate::domain::DaemonName,
        /// The value, with the remedy.
        detail: String,
    },
    /// There is no room left where the database is.
    #[error(
        "the disk of the state directory is full, so nothing could be written: free space there, and repeat the change"
    )]
    Full,
    /// The writer takes no more jobs at the moment.
    #[error("too many changes are waiting to be written")]
    Busy,
    /// The transaction that the change was in was not kept.
    #[error("the change was not kept: {0}")]
    Uncommitted(String),
    /// The change was not tried, since the transaction it belonged to could not begin or did not get as far.
    #[error(
        "the change was not written, and nothing of it was kept: the database is locked, or the log says why"
    )]
    NotWritten,
    /// The database belongs to another machine, and it is not confirmed that it is this one's now.
    #[error(
        "the database belongs to another machine, so nothing is written: confirm that it is this one's first"
    )]
    Sealed,
    /// The database's file was removed or replaced.
    #[error("{0}")]
    Lost(String),
    /// The writer has ended: the server is shutting down.
    #[error("the store is closed")]
    Closed,
    /// A file operation beside the database failed.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let failure = StorageFailure::of(&error);
        if let Some(failure) = &failure {
            failure::note(failure);
        }
        match error {
            _ if failure == Some(StorageFailure::Full) => Self::Full,
            sqlx::Error::ColumnDecode { source, .. } => {
                Self::Corrupt { what: "a value", detail: source.to_string() }
            }
            error => Self::Database(error),
        }
    }
}

impl StoreError {
    /// Returns the error of a failed commit for each further change that was in it.
    pub(super) fn again(&self) -> Self {
        match self {
            Self::Full => Self::Full,
            Self::Lost(why) => Self::Lost(why.clone()),
            other => Self::Uncommitted(other.to_string()),
        }
    }
}
