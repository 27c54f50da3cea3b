//! A copy of the database to keep, made while a manager writes to it.
//!
//! `VACUUM INTO` reads one committed state through a connection of its own: in WAL mode a reader stops no writer. The copy
//! gets its name only when it is whole, checked and on the disk, so a name that is there is a backup.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};

use super::failure::StorageFailure;
use super::schema::{self, Schema};
use super::{Result, StoreError, audit, beside, events, host, options};
use crate::domain::audit::AttemptedAction;
use crate::domain::event::{DomainEvent, EventCause};
use crate::host::durable_file::sync_directory;

/// A backup and the database that it contains.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Backup {
    /// The file.
    pub file: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// The schema version.
    pub schema_version: i64,
    /// The machine that the database belongs to; `None` for one that was never served.
    pub machine_id: Option<String>,
}

/// Reason why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is no database.
    #[error(
        "there is no database at {0}: name the state directory with --state-dir, or the configuration with --config"
    )]
    Nothing(PathBuf),
    /// Something has the name already.
    #[error("{0} is there already, and a backup replaces nothing: give another name, or move it away")]
    Exists(PathBuf),
    /// SQLite takes names that are UTF-8 alone.
    #[error("the name {0:?} is not UTF-8: name the backup otherwise")]
    NotText(PathBuf),
    /// The disk of the backup is full.
    #[error(
        "the disk of {0} is full: nothing is left of the backup; free space there, or name another place"
    )]
    Full(PathBuf),
    /// The file cannot be made.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The database cannot be read, or copied.
    #[error("{path}: {source}")]
    Database {
        /// The database.
        path: PathBuf,
        /// The error of SQLite.
        source: sqlx::Error,
    },
    /// The file is not an intact database.
    #[error("{path} is damaged: {detail}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// First finding of SQLite.
        detail: String,
    },
    /// The file has a write-ahead log beside it: it is in use, or was copied by hand without its log.
    #[error(
        "{0} has a write-ahead log beside it, so it is a database in use or a copy of one by hand: make the backup with \
         `mps-manager backup`"
    )]
    Unfinished(PathBuf),
    /// The database was made by a pre-release.
    #[error("{0} was made by a pre-release of mps-manager, and this version cannot read it")]
    PreRelease(PathBuf),
    /// The database is of another program.
    #[error("{0} is not a database of mps-manager")]
    Stranger(PathBuf),
}

/// Copies `database` to `file`, which must not be there yet.
///
/// Every change that was answered before the call is in the copy. A process killed meanwhile leaves a file with
/// `.partial-` in its name, and never one under the name that was given.
pub async fn copy(database: &Path, file: &Path) -> Result<Backup, BackupError> {
    if !database.exists() {
        return Err(BackupError::Nothing(database.to_owned()));
    }
    if file.symlink_metadata().is_ok() {
        return Err(BackupError::Exists(file.to_owned()));
    }
    if file.to_str().is_none() {
        return Err(BackupError::NotText(file.to_owned()));
    }
    let unfinished = Unfinished::beside(file)?;
    let result = vacuum(database, &unfinished.path).await;
    result.map_err(|source| {
        if StorageFailure::of(&source) == Some(StorageFailure::Full) {
            BackupError::Full(file.to_owned())
        } else {
            BackupError::Database { path: database.to_owned(), source }
        }
    })?;
    let examined = examine(&unfinished.path).await?;
    unfinished.become_file(file)?;
    Ok(Backup { file: file.to_owned(), ..examined })
}

/// Writes into the database that a backup of it was made: an event, and a row of the audit. A manager may serve it.
pub async fn put_on_record(
    database: &Path,
    machine_id: &str,
    attempt: &AttemptedAction,
    now: i64,
) -> Result<()> {
    let mut connection = SqliteConnection::connect_with(&options(database)?).await?;
    let stored = schema::read(&mut connection).await?;
    if stored != Schema::Version(schema::newest()) {
        return Err(StoreError::Corrupt { what: "the database", detail: format!("it has {stored}") });
    }
    let owner = host::machine_id(&mut connection).await?;
    if owner.is_some_and(|owner| owner != machine_id) {
        return Err(StoreError::Corrupt { what: "the database", detail: "it is another machine's".into() });
    }
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let event = DomainEvent::DatabaseBackedUp { file: attempt.target.to_string() };
    let by = EventCause::Actor { subject: attempt.actor.clone() };
    events::append(&mut transaction, &event.because(by), now).await?;
    audit::append(&mut transaction, attempt, audit::AuditResult::default(), now).await?;
    transaction.commit().await?;
    Ok(connection.close().await?)
}

/// Checks that a file is an intact backup, without changing it; returns its version and machine.
pub async fn examine(file: &Path) -> Result<Backup, BackupError> {
    let failed = |source| BackupError::File { path: file.to_owned(), source };
    let metadata = std::fs::metadata(file).map_err(failed)?;
    if !metadata.is_file() {
        return Err(BackupError::Stranger(file.to_owned()));
    }
    if std::fs::metadata(beside(file, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(BackupError::Unfinished(file.to_owned()));
    }
    let examined = async {
        let mut connection = read_only(file).await?;
        // All of it: what is not whole is found now, and not when it is needed.
        let check: Vec<String> =
            sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_all(&mut connection).await?;
        let schema = schema::read(&mut connection).await?;
        let machine_id = host::machine_id(&mut connection).await.ok().flatten();
        connection.close().await?;
        Ok::<_, sqlx::Error>((check, schema, machine_id))
    };
    let (check, schema, machine_id) = examined.await.map_err(|source| match StorageFailure::of(&source) {
        Some(StorageFailure::Damaged(detail)) => BackupError::Damaged { path: file.to_owned(), detail },
        _ => BackupError::Database { path: file.to_owned(), source },
    })?;
    if check != ["ok"] {
        // Its first line is a heading.
        let finding = check.iter().flat_map(|text| text.lines()).find(|line| !line.starts_with("***"));
        let detail = finding.unwrap_or("it has no integrity").to_owned();
        return Err(BackupError::Damaged { path: file.to_owned(), detail });
    }
    match schema {
        Schema::Version(schema_version) => {
            Ok(Backup { file: file.to_owned(), bytes: metadata.len(), schema_version, machine_id })
        }
        Schema::PreRelease => Err(BackupError::PreRelease(file.to_owned())),
        Schema::None => Err(BackupError::Stranger(file.to_owned())),
    }
}

/// A connection to a file that no program writes; it makes no other files beside it.
async fn read_only(file: &Path) -> Result<SqliteConnection, sqlx::Error> {
    let options = SqliteConnectOptions::from_str("sqlite:")?
        .filename(file)
        .read_only(true)
        .immutable(true)
        .log_statements(tracing::log::LevelFilter::Trace);
    SqliteConnection::connect_with(&options).await
}

async fn vacuum(database: &Path, copy: &Path) -> Result<(), sqlx::Error> {
    // Not read-only: with no manager there is no log, and SQLite makes one to read beside a manager that may start meanwhile.
    let options = options(database).map_err(|error| sqlx::Error::Configuration(Box::new(error)))?;
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let path = copy.to_string_lossy().into_owned();
    let copied = sqlx::query("VACUUM INTO ?").bind(path).execute(&mut connection).await;
    connection.close().await?;
    copied.map(drop)
}

/// A file that is being written, gone with this value unless it gets its name.
pub(super) struct Unfinished {
    pub(super) path: PathBuf,
}

impl Unfinished {
    /// An empty file in the same directory, for its owner alone.
    pub(super) fn beside(file: &Path) -> Result<Self, BackupError> {
        let failed = |path: &Path, source| BackupError::File { path: path.to_owned(), source };
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).map_err(|error| failed(file, io::Error::other(error)))?;
        let path = beside(file, &format!(".partial-{}", hex::encode(bytes)));
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|source| failed(&path, source))?;
        Ok(Self { path })
    }

    /// Copies what another file holds, and not its mode.
    pub(super) fn fill(&self, from: &Path) -> io::Result<()> {
        let mut to = File::options().write(true).open(&self.path)?;
        io::copy(&mut File::open(from)?, &mut to).map(drop)
    }

    /// Gives the file its name, once it is on the disk; replaces nothing.
    pub(super) fn become_file(self, file: &Path) -> Result<(), BackupError> {
        let failed = |source| BackupError::File { path: file.to_owned(), source };
        File::open(&self.path).and_then(|file| file.sync_all()).map_err(failed)?;
        let named = match renameat_with(CWD, &self.path, CWD, file, RenameFlags::NOREPLACE) {
            // A file system that cannot do this may have links, which replace nothing either.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => std::fs::hard_link(&self.path, file),
            other => other.map_err(io::Error::from),
        };
        named.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => BackupError::Exists(file.to_owned()),
            _ => failed(source),
        })?;
        sync_directory(file).map_err(failed)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Not there any more where it was renamed; what SQLite had beside it stays where it was cut off.
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let _ = std::fs::remove_file(beside(&self.path, suffix));
        }
    }
}
