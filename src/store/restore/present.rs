//! The database that is to be replaced, read for what it knows of this host.

use std::path::Path;

use sqlx::migrate::MigrateError;
use sqlx::{Connection as _, SqliteConnection};

use super::{RestoreError, connect};
use crate::store::backup::{BackupError, Unfinished};
use crate::store::{MIGRATIONS, StoreError, inspect, options, version};

/// The database that is to be replaced, as this program reads it.
pub(super) struct Present {
    /// What is read.
    pub(super) connection: SqliteConnection,
    /// What is read of one with an older schema: a copy that was brought up to date, gone with this value.
    _copy: Option<Unfinished>,
}

/// The database that is to be replaced, with no log beside it; why, where what it knows is lost.
///
/// The error is of one that cannot be read only now: without what it knows, tokens that were revoked would come back, and that is
/// for whoever restores to decide.
pub(super) async fn present(
    database: &Path,
    known: i64,
) -> Result<Result<Present, Option<String>>, RestoreError> {
    let unread = |why: String| RestoreError::Unread { path: database.to_owned(), why };
    let failed = |error: &StoreError| match lost(error) {
        Some(why) => Ok(Err(Some(why))),
        None => Err(unread(error.to_string())),
    };
    let found = match whole(database, known).await {
        Ok(Ok(Some(found))) => found,
        Ok(Ok(None)) => return Err(unread("another program has it open and writes".to_owned())),
        Ok(Err(why)) => return Ok(Err(Some(why))),
        Err(error) => return failed(&error),
    };
    let mut copy = None;
    if found < known {
        let file = Unfinished::beside(database)?;
        file.fill(database).map_err(|source| BackupError::File { path: file.path.clone(), source })?;
        copy = Some(file);
    }
    let read = async {
        let mut connection = match &copy {
            Some(file) => connect(&file.path).await?,
            None => SqliteConnection::connect_with(&options(database)?).await?,
        };
        if copy.is_some() {
            MIGRATIONS.run(&mut connection).await?;
        }
        let missing = inspect::missing(&mut connection).await?;
        Ok::<_, StoreError>((connection, missing))
    };
    match read.await {
        Ok((connection, None)) => Ok(Ok(Present { connection, _copy: copy })),
        Ok((_, Some(missing))) => Ok(Err(Some(format!("{missing} is missing")))),
        Err(error) => failed(&error),
    }
}

/// Takes the log of a database into it, and gives its schema version; `None` where somebody else writes to it, and why not, if it is
/// not whole or not known here.
async fn whole(database: &Path, known: i64) -> Result<Result<Option<i64>, String>, StoreError> {
    let found = version(database).await?;
    if !(1..=known).contains(&found) {
        return Ok(Err(format!("it has schema version {found}, and this mps-manager {known}")));
    }
    let mut connection = SqliteConnection::connect_with(&options(database)?).await?;
    // What is kept of it, and what is copied, shall be one file.
    let (busy, _, _): (i64, i64, i64) =
        sqlx::query_as("PRAGMA wal_checkpoint(TRUNCATE)").fetch_one(&mut connection).await?;
    if busy != 0 {
        return Ok(Ok(None));
    }
    let damage = inspect::damage(&mut connection).await?;
    connection.close().await?;
    Ok(damage.map_or(Ok(Some(found)), Err))
}

/// What to say of a database that is damaged; `None` for an error that may pass, as of a lock or a full disk.
fn lost(error: &StoreError) -> Option<String> {
    let damaged = |error: &sqlx::Error| {
        let code: Option<i32> = error.as_database_error()?.code()?.parse().ok();
        // SQLITE_ERROR for what is not there, SQLITE_CORRUPT and SQLITE_NOTADB; the lower byte of an extended code.
        code.filter(|code| matches!(code & 0xff, 1 | 11 | 26))
    };
    let is_lost = match error {
        StoreError::Database(error)
        | StoreError::Migration(MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _)) => {
            damaged(error).is_some()
        }
        StoreError::Migration(_) | StoreError::Corrupt { .. } => true,
        _ => false,
    };
    is_lost.then(|| error.to_string())
}
