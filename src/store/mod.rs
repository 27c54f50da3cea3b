//! What the manager stores, in one SQLite file.
//!
//! One task writes ([`writer`]); up to four connections read, each `query_only`. The functions in the files
//! beside this take a connection and translate rows to values of [`crate::domain`]; their callers decide
//! what belongs into one transaction. Nothing is migrated before the state directory is locked ([`schema`]).

pub mod audit;
pub mod audit_head;
pub mod backup;
pub mod compute_modes;
pub mod connected_clients;
pub mod daemons;
pub mod events;
mod failure;
mod files;
pub mod gpus;
mod guard;
pub mod host;
pub mod idempotency;
pub mod inspect;
pub mod layouts;
pub mod leases;
pub mod lock;
pub mod log_offsets;
pub mod maintenance;
pub mod operations;
pub mod partition_leases;
pub mod partitions;
pub mod plans;
pub mod probe_results;
pub mod replays;
pub mod restore;
pub mod schema;
pub mod sessions;
pub mod tenants;
pub mod tokens;
pub mod verifications;
mod writer;

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, SqliteConnection};
use tokio::sync::watch;

pub use writer::{Fate, Transaction};

use self::failure::Failure;
use self::guard::Guard;
use self::writer::Lane;
use crate::domain::health::HostHealth;
use crate::metrics::store::Commits;

/// How long a connection waits for another process that holds the file, such as a backup.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections that read; pages and lists are short, and the host has few cores to give.
const READERS: u32 = 4;

/// What can go wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
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
    /// A row holds what no version of this program writes.
    #[error("the database holds {what} that cannot be read: {detail}")]
    Corrupt {
        /// What kind of value.
        what: &'static str,
        /// Why it cannot be read.
        detail: String,
    },
    /// The tenants of a daemon ask for shares that its GPUs cannot give, or that cannot be worked out for them.
    #[error("daemon {daemon} cannot be planned: {detail}")]
    Unplannable {
        /// The daemon.
        daemon: crate::domain::DaemonName,
        /// Which value, and what to do.
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
        /// What the system said.
        source: std::io::Error,
    },
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let failure = Failure::of(&error);
        if let Some(failure) = &failure {
            failure::note(failure);
        }
        if failure == Some(Failure::Full) { Self::Full } else { Self::Database(error) }
    }
}

impl StoreError {
    /// Why a commit failed, for each further change that was in it.
    fn again(&self) -> Self {
        match self {
            Self::Full => Self::Full,
            Self::Lost(why) => Self::Lost(why.clone()),
            other => Self::Uncommitted(other.to_string()),
        }
    }
}

/// The open store; cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    readers: SqlitePool,
    writer: writer::Handle,
    sealed: Arc<AtomicBool>,
    newest: watch::Receiver<i64>,
    guard: Guard,
}

impl Store {
    /// Opens or creates `path`, migrates it, and starts the writer.
    ///
    /// The caller holds the state directory's lock. A copy is made before anything is migrated.
    pub async fn open(path: &Path, now: i64) -> Result<Self, StoreError> {
        Self::open_with(path, now, HostHealth::default()).await
    }

    /// The same, and reports the state of the file to `health`.
    pub async fn open_with(path: &Path, now: i64, health: HostHealth) -> Result<Self, StoreError> {
        let mut connection = schema::open(path, &schema::MIGRATIONS, now).await?;
        let (newest, events) = watch::channel(events::newest(&mut connection).await?);
        let readers = SqlitePoolOptions::new()
            .min_connections(0)
            .max_connections(READERS)
            // One that is open reads on when the file is gone from its place.
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(self::options(path)?.pragma("query_only", "ON"));
        // Its log is there by now: it has been read.
        let guard = Guard::new(path, health);
        Ok(Self {
            readers,
            writer: writer::start(connection, newest, guard.clone()),
            sealed: Arc::default(),
            newest: events,
            guard,
        })
    }

    /// The number of the last event that was committed, raised after each commit; ended when the store is closed.
    pub fn newest_event(&self) -> watch::Receiver<i64> {
        self.newest.clone()
    }

    /// A connection that reads; every query on it sees a state that was committed.
    pub async fn read(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Sqlite>, StoreError> {
        if self.guard.is_lost() {
            // What would be opened now is another file.
            return self.readers.try_acquire().ok_or_else(|| self.guard.lost());
        }
        Ok(self.readers.acquire().await?)
    }

    /// Sees whether the database's files are at their place, without a write.
    pub fn check_files(&self) {
        let _ = self.guard.check();
    }

    /// Writes what is there already, to see whether it can be written.
    pub async fn check_writes(&self) -> Result<(), StoreError> {
        self.write(|db| {
            Box::pin(async move {
                sqlx::query("UPDATE host SET written_at = written_at").execute(db).await?;
                Ok(((), Fate::Commit))
            })
        })
        .await
    }

    /// Runs `job` on the writer, in order with all other jobs, and answers after the commit.
    ///
    /// The job is in a savepoint of its own: an error or [`Fate::RollBack`] undoes it alone. A caller who stops
    /// waiting cancels nothing.
    pub async fn write<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> futures_util::future::BoxFuture<'c, Result<(T, Fate), E>>
            + Send
            + 'static,
    {
        if self.is_sealed() {
            return Err(StoreError::Sealed.into());
        }
        self.writer.run(Lane::Requests, job).await
    }

    /// Runs a job as [`Store::write`] does, before all that wait there: a control process is started once its token is written.
    pub async fn write_urgent<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> futures_util::future::BoxFuture<'c, Result<(T, Fate), E>>
            + Send
            + 'static,
    {
        if self.is_sealed() {
            return Err(StoreError::Sealed.into());
        }
        self.writer.run(Lane::Drivers, job).await
    }

    /// Runs a job as [`Store::write`] does, sealed or not.
    pub async fn write_sealed<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> futures_util::future::BoxFuture<'c, Result<(T, Fate), E>>
            + Send
            + 'static,
    {
        self.writer.run(Lane::Requests, job).await
    }

    /// Refuses every write from now on: the database belongs to another machine.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Takes writes again.
    pub fn unseal(&self) {
        self.sealed.store(false, Ordering::Release);
    }

    /// Whether writes are refused.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// What the writer does, counted.
    pub fn commits(&self) -> &Commits {
        &self.writer.commits
    }

    /// Counts commits: raised after each, before anybody who waits for it is answered.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.writer.committed.clone()
    }

    /// The number of the last commit; what was read under it holds until it changes.
    pub fn last_commit(&self) -> u64 {
        *self.writer.committed.borrow()
    }

    /// Jobs that wait for the writer.
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    /// Waits until every accepted job is committed, and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}

fn options(path: &Path) -> Result<SqliteConnectOptions, StoreError> {
    Ok(SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(true)
        .log_statements(tracing::log::LevelFilter::Trace))
}

/// Bytes of the file, its log not included.
pub async fn size(db: &mut SqliteConnection) -> Result<u64, StoreError> {
    let bytes: i64 =
        sqlx::query_scalar("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
            .fetch_one(db)
            .await?;
    Ok(bytes.unsigned_abs())
}

/// Labels and commands in the file are the owner's alone.
fn restrict_to_owner(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
        .map_err(|source| StoreError::File { path: path.to_owned(), source })
}

/// Reads JSON that this program wrote.
fn from_json<T: serde::de::DeserializeOwned>(what: &'static str, text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}

/// Writes a value as the JSON that [`from_json`] reads.
fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("specs and requests hold nothing that JSON cannot")
}

/// Reads a number or name that this program wrote.
fn parsed<T, E: std::fmt::Display>(what: &'static str, value: Result<T, E>) -> Result<T, StoreError> {
    value.map_err(|error| StoreError::Corrupt { what, detail: error.to_string() })
}
