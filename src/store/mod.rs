//! The manager's state, stored in one SQLite file.
//!
//! One task writes ([`writer`]); up to four connections read, each `query_only`. The functions in the files
//! beside this take a connection and translate rows to values of [`crate::domain`]; their callers decide
//! what belongs into one transaction. Nothing is migrated before the state directory is locked ([`schema`]).

pub mod audit;
pub mod audit_head;
pub mod backup;
pub mod compute_modes;
pub mod connected_clients;
mod connection;
pub mod daemons;
mod error;
pub mod events;
mod failure;
mod files;
pub mod gpus;
mod guard;
pub mod history;
pub mod host;
pub mod idempotency;
pub mod incidents;
pub mod inspect;
pub mod layouts;
pub mod leases;
pub mod lock;
pub mod log_offsets;
pub mod maintenance;
pub mod namesakes;
pub mod operations;
pub mod partition_leases;
pub mod partitions;
pub mod plans;
pub mod probe_results;
pub mod replays;
pub mod restarts;
pub mod restore;
mod rows;
pub mod saved_hosts;
pub mod schema;
pub mod sessions;
pub mod tenants;
pub mod tokens;
mod values;
pub mod verifications;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqlitePool, SqlitePoolOptions};
use tokio::sync::watch;

pub use connection::Db;
pub use error::{Result, StoreError};
pub use writer::{Transaction, TransactionEnd};

use self::connection::{beside, options, restrict_to_owner};
use self::guard::Guard;
use self::values::{from_json, parsed, to_json};
use self::writer::JobSource;
use crate::domain::health::HostHealth;
use crate::metrics::store::Commits;

/// Runs a job in a transaction of the writer and awaits its commit: `transact!(backend, write(&permit), |db| { … })` is
/// `backend.write(&permit, move |db| Box::pin(async move { … })).await`. Without a method it is [`Store::commit`], which may fail with
/// another error than the store's: `transact!(store, OperationFailure, |db| { … })`.
macro_rules! transact {
    ($on:expr, $method:ident($($arg:expr),*), |$($db:pat_param),+| $job:expr) => {
        $on.$method($($arg,)* move |$($db),+| Box::pin(async move { $job })).await
    };
    ($store:expr, $error:ty, |$db:ident| $job:expr) => {
        $store.commit::<_, $error, _>(move |$db| Box::pin(async move { $job })).await
    };
    ($store:expr, |$db:ident| $job:expr) => {
        $crate::store::transact!($store, $crate::store::StoreError, |$db| $job)
    };
}
pub(crate) use transact;

/// Connections that read; pages and lists are short, and the host has few cores to give.
const READERS: u32 = 4;

/// The open store; cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    readers: SqlitePool,
    writer: writer::WriterHandle,
    sealed: Arc<AtomicBool>,
    newest: watch::Receiver<i64>,
    guard: Guard,
}

impl Store {
    /// Opens or creates `path`, migrates it, and starts the writer.
    ///
    /// The caller holds the state directory's lock. A copy is made before anything is migrated.
    pub async fn open(path: &Path, now: i64) -> Result<Self> {
        Self::open_with(path, now, HostHealth::default()).await
    }

    /// Opens the store like [`Store::open`], and reports the state of the file to `health`.
    pub async fn open_with(path: &Path, now: i64, health: HostHealth) -> Result<Self> {
        let mut connection = schema::open(path, &schema::MIGRATIONS, now).await?;
        let (newest, events) = watch::channel(events::newest(&mut connection).await?);
        let readers = SqlitePoolOptions::new()
            .min_connections(0)
            .max_connections(READERS)
            // One that is open reads on when the file is gone from its place.
            .idle_timeout(None)
            .max_lifetime(None)
            // A file is not away: the test would be a round trip to another thread for each read.
            .test_before_acquire(false)
            .connect_lazy_with(options(path)?.pragma("query_only", "ON"));
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
    pub async fn read(&self) -> Result<sqlx::pool::PoolConnection<sqlx::Sqlite>> {
        if self.guard.is_lost() {
            // What would be opened now is another file.
            return self.readers.try_acquire().ok_or_else(|| self.guard.lost());
        }
        Ok(self.readers.acquire().await?)
    }

    /// Checks that the database's files were not removed or replaced, without a write; a fault is reported to the host's health.
    pub fn check_files(&self) {
        let _ = self.guard.check();
    }

    /// Checks that the database can be written, by a write that changes nothing.
    pub async fn check_writes(&self) -> Result<()> {
        self.commit(|db| {
            Box::pin(async move {
                sqlx::query("UPDATE host SET written_at = written_at").execute(db).await?;
                Ok(())
            })
        })
        .await
    }

    /// Runs `job` on the writer, in order with all other jobs, and answers after the commit.
    ///
    /// The job is in a savepoint of its own: an error or [`TransactionEnd::RollBack`] undoes it alone. A caller who stops
    /// waiting cancels nothing.
    pub async fn write<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), E>> + Send + 'static,
    {
        self.refuse_sealed()?;
        self.writer.run(JobSource::Requests, job).await
    }

    /// Runs a job as [`Store::write`] does, and keeps what it wrote unless it fails.
    pub async fn commit<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<T, E>> + Send + 'static,
    {
        self.write(move |db| Box::pin(async move { Ok((job(db).await?, TransactionEnd::Commit)) })).await
    }

    /// Runs a job as [`Store::write`] does, before all jobs that wait there: a control process can start only once its token is written.
    pub async fn write_urgent<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), E>> + Send + 'static,
    {
        self.refuse_sealed()?;
        self.writer.run(JobSource::Drivers, job).await
    }

    /// Runs a job as [`Store::write`] does, sealed or not.
    pub async fn write_sealed<T, E, F>(&self, job: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), E>> + Send + 'static,
    {
        self.writer.run(JobSource::Requests, job).await
    }

    /// Refuses every write from now on: the database belongs to another machine.
    pub fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    /// Takes writes again.
    pub fn unseal(&self) {
        self.sealed.store(false, Ordering::Release);
    }

    fn refuse_sealed(&self) -> Result<()> {
        if self.is_sealed() { Err(StoreError::Sealed) } else { Ok(()) }
    }

    /// Returns true if writes are refused because the database belongs to another machine.
    pub fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Returns the counters of the writer.
    pub fn commits(&self) -> &Commits {
        &self.writer.commits
    }

    /// Returns a watch on the number of commits, which is raised after each commit, before its callers are answered.
    pub fn committed(&self) -> watch::Receiver<u64> {
        self.writer.committed.clone()
    }

    /// Returns the number of the last commit; values read under it are valid until it changes.
    pub fn last_commit(&self) -> u64 {
        *self.writer.committed.borrow()
    }

    /// Returns the number of jobs that wait for the writer.
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    /// Waits until every accepted job is committed, and closes the file.
    pub async fn close(&self) {
        self.writer.close().await;
        self.readers.close().await;
    }
}

/// Bytes of the file, its log not included.
pub async fn size(db: &mut Db) -> Result<u64> {
    let bytes: i64 =
        sqlx::query_scalar("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
            .fetch_one(db)
            .await?;
    Ok(bytes.unsigned_abs())
}
