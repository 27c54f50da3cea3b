//! A backup put in the place of the database, while no manager serves.
//!
//! Settings and journals come from the backup. What is true of this host, whatever the settings were, comes from the database
//! that is replaced, table by table (`restore/carry_over.sql`): the control processes, leases and compute modes, so that what
//! runs is adopted; the tokens, so that none that was revoked works again; the highest numbers, so that none means two things;
//! the audit log. Nothing that was requested when the backup was made is done again.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sqlx::sqlite::SqliteJournalMode;
use sqlx::{Connection as _, SqliteConnection};

use super::backup::{Backup, BackupError, Unfinished};
use super::schema::{self, Schema};
use super::{
    Db, Result, StoreError, audit, beside, events, host, inspect, maintenance, options, parsed, sessions,
    tokens,
};
use crate::domain::audit::{AttemptedAction, Broken, Target};
use crate::domain::event::{DomainEvent, EventCause, LostEvents, TokenFacts};
use crate::domain::token::{Token, TokenId, TokenState};
use crate::host::durable_file::sync_directory;

/// Reason why a backup was not restored; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is no backup, or cannot be read.
    #[error(transparent)]
    File(#[from] BackupError),
    /// The backup was made by a newer mps-manager.
    #[error(
        "{path} has schema version {found} and this mps-manager knows {known}: restore it with the mps-manager that made it, or \
         a newer one"
    )]
    Newer {
        /// The backup.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The host is entering or leaving maintenance.
    #[error(
        "the maintenance of this host is {0}, and only a manager can complete that: start it, wait until \
         `mps-manager maintenance status` says active or none, stop it, and restore then"
    )]
    Maintenance(String),
    /// The audit log of the backup was changed.
    #[error(
        "the audit of {path} is broken: {broken}. Restore another backup, or this one with --broken-audit if nothing better is there"
    )]
    Audit {
        /// The backup.
        path: PathBuf,
        /// First row of the audit that does not fit.
        broken: Broken,
    },
    /// The database that is to be replaced is not known to be lost, but cannot be read now.
    #[error(
        "{path} cannot be read now ({why}), and without it tokens that were revoked would work again: fix that and restore \
         again, or move the file away to restore without it"
    )]
    Unreadable {
        /// The database.
        path: PathBuf,
        /// Reason why it cannot be read.
        why: String,
    },
    /// The copy could not be prepared.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<sqlx::Error> for RestoreError {
    fn from(error: sqlx::Error) -> Self {
        Self::Store(error.into())
    }
}

/// Result of a restore, with the consequences for the next start.
#[derive(Debug, serde::Serialize)]
pub struct Restored {
    /// The backup.
    pub backup: Backup,
    /// The restored database.
    pub database: PathBuf,
    /// Path of the replaced database; `None` if there was none.
    pub replaced: Option<PathBuf>,
    /// Remarks for the operator, one sentence each.
    pub notes: Vec<String>,
}

/// Puts `backup` in the place of `database`, one with a broken audit only if that is allowed; the caller holds the state
/// directory's lock.
pub async fn restore(
    backup: Backup,
    broken_audit: bool,
    database: &Path,
    machine_id: &str,
    attempt: &AttemptedAction,
    now: i64,
) -> Result<Restored, RestoreError> {
    let newest = schema::newest();
    if backup.schema_version > newest {
        return Err(RestoreError::Newer { path: backup.file, found: backup.schema_version, known: newest });
    }
    let mut notes = Vec::new();
    if let Err(broken) = audit::verify(&backup.file, None).await? {
        if !broken_audit {
            return Err(RestoreError::Audit { path: backup.file, broken });
        }
        notes.push(format!("the audit of the backup is broken: {broken}"));
    }
    let unfinished = copy(&backup, database).await?;
    let replaced = examine_replaced(database).await?;
    let mut restored = connect(&unfinished.path).await?;
    if replaced == Replaced::Whole {
        let path = database.to_string_lossy().into_owned();
        sqlx::query("ATTACH ? AS replaced").bind(path).execute(&mut restored).await?;
    }
    let mut transaction = restored.begin().await?;
    let db = &mut *transaction;
    host::fail_unfinished(
        &mut *db,
        "it was unfinished when the backup was made that was restored since",
        now,
    )
    .await?;
    sessions::forget_all(&mut *db).await?;
    if replaced == Replaced::Whole && is_of_this_machine(&mut *db, &backup, machine_id).await? {
        notes.extend(carry_over(&mut *db, attempt, now).await?);
    } else {
        maintenance::delete(&mut *db).await?;
        sqlx::query("UPDATE incarnations SET applied_generation = 0").execute(&mut *db).await?;
        notes.extend(replaced.note());
        let usable = tokens::living(&mut *db, now).await?;
        let named: Vec<String> =
            usable.iter().map(|token| format!("{} ({})", token.name, token.grant)).collect();
        if !named.is_empty() {
            notes.push(format!(
                "tokens that can be used again as they could when the backup was made: {}; revoke those that were revoked \
                 since (`mps-manager token list`)",
                named.join(", ")
            ));
        }
    }
    let event = DomainEvent::DatabaseRestored { file: attempt.target.to_string() };
    let by = EventCause::Actor { subject: attempt.actor.clone() };
    events::append(&mut *db, &event.because(by), now).await?;
    audit::append(&mut *db, attempt, audit::AuditResult::default(), now).await?;
    transaction.commit().await?;
    restored.close().await?;
    if backup.machine_id.as_deref().is_some_and(|theirs| theirs != machine_id) {
        notes.push(
            "the backup is of another machine: the next start changes nothing until it is confirmed that the database is this \
             machine's: `mps-manager host confirm` (POST /api/v1/host/confirm)"
                .to_owned(),
        );
    }
    let replaced = replace(&unfinished, database, now)
        .map_err(|(path, source)| RestoreError::File(BackupError::File { path, source }))?;
    Ok(Restored { backup, database: database.to_owned(), replaced, notes })
}

/// A copy of the backup beside the database, with the newest schema.
async fn copy(backup: &Backup, database: &Path) -> Result<Unfinished, RestoreError> {
    let unfinished = Unfinished::beside(database)?;
    unfinished
        .fill(&backup.file)
        .map_err(|source| BackupError::File { path: unfinished.path.clone(), source })?;
    let mut connection = connect(&unfinished.path).await?;
    let damaged = |detail| RestoreError::File(BackupError::Damaged { path: backup.file.clone(), detail });
    schema::MIGRATIONS.run(&mut connection).await.map_err(|error| damaged(error.to_string()))?;
    if let Some(difference) = schema::difference(&mut connection).await? {
        return Err(damaged(difference));
    }
    connection.close().await?;
    Ok(unfinished)
}

/// A connection to a file that no other program has open, which leaves no other file beside it.
async fn connect(path: &Path) -> Result<SqliteConnection> {
    let options = options(path)?.journal_mode(SqliteJournalMode::Delete);
    Ok(SqliteConnection::connect_with(&options).await?)
}

/// The database that is to be replaced.
#[derive(Debug, PartialEq, Eq)]
enum Replaced {
    /// There is no database.
    Missing,
    /// Its contents are lost, for this reason.
    Lost(String),
    /// The database can be read, and has no log beside it.
    Whole,
}

impl Replaced {
    /// Returns the remark for the operator when nothing is carried over.
    fn note(&self) -> Option<String> {
        match self {
            Self::Missing => None,
            Self::Lost(why) => Some(format!(
                "the database that was replaced could not be read ({why}), so it is unknown what was started since the backup: a \
                 control daemon that is not in the backup stays as it is, and the manager's daemon in its place is blocked until \
                 it ends. The rest of the audit is in that file: keep it"
            )),
            Self::Whole => Some(
                "the backup and the database that was replaced are not both this machine's: what runs here was not carried over"
                    .to_owned(),
            ),
        }
    }
}

/// Reads all of the database that is to be replaced, and moves its log into it.
///
/// A database that may be readable later is an error: without it, revoked tokens would work again, which is for the operator to decide.
async fn examine_replaced(database: &Path) -> Result<Replaced, RestoreError> {
    if !database.exists() {
        return Ok(Replaced::Missing);
    }
    let unreadable = |why: String| Err(RestoreError::Unreadable { path: database.to_owned(), why });
    let examined = async {
        let mut connection = schema::open_to_read(database).await?;
        let stored = schema::read(&mut connection).await?;
        connection.close().await?;
        match stored {
            Schema::Version(version) if version < schema::newest() => {
                return Ok(unreadable(format!(
                    "it has the older {}: start this mps-manager once",
                    Schema::Version(version)
                )));
            }
            Schema::Version(version) if version == schema::newest() => {}
            other => return Ok(Ok(Replaced::Lost(format!("it has {other}")))),
        }
        let mut connection = SqliteConnection::connect_with(&options(database)?).await?;
        let (busy, _, _): (i64, i64, i64) =
            sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await?;
        if busy != 0 {
            return Ok(unreadable("another program has it open and writes".to_owned()));
        }
        let damage = match inspect::damage(&mut connection).await? {
            Some(damage) => Some(damage),
            None => schema::difference(&mut connection).await?,
        };
        connection.close().await?;
        Ok::<_, StoreError>(Ok(damage.map_or(Replaced::Whole, Replaced::Lost)))
    };
    match examined.await {
        Ok(examined) => examined,
        Err(StoreError::Database(error)) if is_damage(&error) => Ok(Replaced::Lost(error.to_string())),
        Err(error) => unreadable(error.to_string()),
    }
}

/// Returns true if the file is damaged; false for an error that may pass, such as a lock or a full disk.
fn is_damage(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code()?.parse::<i32>().ok());
    // SQLITE_ERROR for what is missing, SQLITE_CORRUPT and SQLITE_NOTADB; the lower byte of an extended code.
    code.is_some_and(|code| matches!(code & 0xff, 1 | 11 | 26))
}

/// Returns true if both the backup and the database that is replaced belong to this machine.
async fn is_of_this_machine(db: &mut Db, backup: &Backup, machine_id: &str) -> Result<bool, sqlx::Error> {
    // Here and below the queries name a database that is attached, which no compile-time check knows.
    let replaced: Option<String> =
        sqlx::query_scalar("SELECT machine_id FROM replaced.host").fetch_optional(db).await?;
    Ok(replaced.as_deref() == Some(machine_id) && backup.machine_id == replaced)
}

/// Copies into `db` what the replaced database records of this host; returns remarks on the differences.
async fn carry_over(db: &mut Db, attempt: &AttemptedAction, now: i64) -> Result<Vec<String>, RestoreError> {
    let maintenance: Option<String> =
        sqlx::query_scalar("SELECT state FROM replaced.maintenance").fetch_optional(&mut *db).await?;
    if let Some(state) = maintenance.filter(|state| state != "active") {
        return Err(RestoreError::Maintenance(state));
    }
    let mut notes: Vec<String> =
        sqlx::query_scalar(include_str!("differences.sql")).fetch_all(&mut *db).await?;
    sqlx::raw_sql(include_str!("carry_over.sql")).execute(&mut *db).await?;
    if !carry_audit(&mut *db).await? {
        notes.push(
            "the audit of the database that was replaced does not continue the backup's, so it stays there: keep that file"
                .to_owned(),
        );
    }
    carry_events(&mut *db, now).await?;
    let orphaned: Vec<String> = sqlx::query_scalar(
        "SELECT id FROM tokens WHERE granted GLOB 'tenant:*' AND substr(granted, 8) NOT IN (SELECT name FROM kept_tenants)
         ORDER BY id",
    )
    .fetch_all(&mut *db)
    .await?;
    for id in orphaned {
        let id = parsed("a token's ID", TokenId::parse(&id))?;
        let token = tokens::get(&mut *db, &id).await?;
        if let Some(token) = token.filter(|token| token.state(now) == TokenState::Active) {
            revoke(&mut *db, &token, attempt, now).await?;
            notes.push(format!(
                "token {} ({}) is revoked, since its tenant is not in the backup",
                token.id, token.name
            ));
        }
    }
    Ok(notes)
}

/// Appends the audit rows that were written since the backup; false if they do not continue those of the backup.
async fn carry_audit(db: &mut Db) -> Result<bool> {
    let head = audit::head(&mut *db).await?;
    let query = "SELECT ?1 = 0 OR EXISTS (SELECT 1 FROM replaced.audit WHERE id = ?1 AND hash = ?2)";
    let continues: bool = sqlx::query_scalar(query).bind(head.id).bind(head.hash).fetch_one(&mut *db).await?;
    if continues {
        let rows = "INSERT INTO main.audit SELECT * FROM replaced.audit WHERE id > ? ORDER BY id";
        sqlx::query(rows).bind(head.id).execute(db).await?;
    }
    Ok(continues)
}

/// Continues after the last event number given here, and records that the events since the backup are lost.
async fn carry_events(db: &mut Db, now: i64) -> Result<()> {
    let kept = events::newest(&mut *db).await?;
    let given: i64 = sqlx::query_scalar(
        "SELECT coalesce(max(seq), 0) FROM replaced.sqlite_sequence WHERE name = 'events'",
    )
    .fetch_one(&mut *db)
    .await?;
    if given <= kept {
        return Ok(());
    }
    events::begin_after(&mut *db, given).await?;
    let event = DomainEvent::EventsLost(LostEvents::Restored { kept, given });
    events::append(db, &event.into(), now).await?;
    Ok(())
}

/// Revokes a token, with the event and the audit row that any revocation has.
async fn revoke(db: &mut Db, token: &Token, attempt: &AttemptedAction, now: i64) -> Result<()> {
    tokens::revoke(&mut *db, &token.id, now).await?;
    let by = EventCause::Actor { subject: attempt.actor.clone() };
    let event = DomainEvent::TokenRevoked(TokenFacts::from(token));
    events::append(&mut *db, &event.because(by), now).await?;
    let after = tokens::get(&mut *db, &token.id).await?;
    let came = audit::AuditResult {
        problem: None,
        before: Some(token.on_record().to_string()),
        after: after.map(|token| token.on_record().to_string()),
    };
    let attempt = AttemptedAction { target: Target::Token(token.id.clone()), ..attempt.clone() };
    audit::append(db, &attempt, came, now).await
}

/// Gives the new file the database's name, and keeps the one before under another.
///
/// At every moment the name leads to the old database or to the new one. A log is left only by a database that could not be
/// opened; it goes along with it, before, since no other database may find it.
fn replace(
    new: &Unfinished,
    database: &Path,
    now: i64,
) -> Result<Option<PathBuf>, (PathBuf, std::io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    if geteuid().is_root()
        && let Some(parent) = database.parent()
    {
        // The manager may be another user, whose directory it is.
        let owner = std::fs::metadata(parent).map_err(at(parent))?;
        std::os::unix::fs::chown(&new.path, Some(owner.uid()), Some(owner.gid())).map_err(at(&new.path))?;
    }
    std::fs::File::open(&new.path).and_then(|file| file.sync_all()).map_err(at(&new.path))?;
    let copy = database.with_extension(format!("replaced-{now}.db"));
    let replaced = database.exists().then_some(copy);
    if let Some(copy) = &replaced {
        for suffix in ["-wal", "-shm"] {
            let log = beside(database, suffix);
            if log.exists() {
                std::fs::rename(&log, beside(copy, suffix)).map_err(at(&log))?;
            }
        }
        std::fs::hard_link(database, copy).map_err(at(copy))?;
    }
    std::fs::rename(&new.path, database).map_err(at(database))?;
    sync_directory(database).map_err(at(database))?;
    Ok(replaced)
}
