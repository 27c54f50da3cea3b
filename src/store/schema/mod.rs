//! The schema of a database: which one it has, and how it gets the newest.
//!
//! A database that this program cannot read is refused before a byte of it is changed. An older one is copied before it is
//! migrated, and each migration runs in a transaction of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::str::FromStr as _;

use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};

use super::{Db, Result, StoreError, beside, options, restrict_to_owner};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("./migrations");

/// The schema that a database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schema {
    /// None of this program: the file is empty, or the database of another program.
    None,
    /// The schema of a pre-release, which no release reads.
    PreRelease,
    /// The schema of a release.
    Version(i64),
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no schema of mps-manager"),
            Self::PreRelease => f.write_str("the schema of a pre-release"),
            Self::Version(version) => write!(f, "schema version {version}"),
        }
    }
}

/// The newest schema version that this program knows.
pub fn newest() -> i64 {
    newest_of(&MIGRATIONS)
}

fn newest_of(migrations: &Migrator) -> i64 {
    migrations.iter().map(|migration| migration.version).max().unwrap_or(0)
}

/// Opens or creates the database at `path` and brings its schema up to date.
pub(super) async fn open(path: &Path, migrations: &Migrator, now: i64) -> Result<SqliteConnection> {
    if path.exists() {
        let mut connection = open_to_read(path).await?;
        let schema = of(&mut connection, migrations).await?;
        connection.close().await?;
        let newest = newest_of(migrations);
        match schema {
            Schema::PreRelease => return Err(StoreError::PreRelease(path.to_owned())),
            Schema::Version(version) if version > newest => {
                return Err(StoreError::Newer { path: path.to_owned(), found: version, known: newest });
            }
            Schema::Version(version) if version < newest => copy_before_migration(path, version, now).await?,
            Schema::Version(_) | Schema::None => {}
        }
    }
    let options = options(path)?.create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    restrict_to_owner(path)?;
    migrations.run(&mut connection).await?;
    Ok(connection)
}

/// The schema of an open database.
pub(super) async fn read(db: &mut Db) -> Result<Schema, sqlx::Error> {
    of(db, &MIGRATIONS).await
}

async fn of(db: &mut Db, migrations: &Migrator) -> Result<Schema, sqlx::Error> {
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
            .fetch_one(&mut *db)
            .await?;
    if tables == 0 {
        return Ok(Schema::None);
    }
    let applied: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations ORDER BY version")
            .fetch_all(db)
            .await?;
    let differs = |(version, checksum): &(i64, Vec<u8>)| {
        migrations.iter().any(|ours| ours.version == *version && ours.checksum[..] != checksum[..])
    };
    if applied.iter().any(differs) {
        return Ok(Schema::PreRelease);
    }
    Ok(applied.last().map_or(Schema::None, |(version, _)| Schema::Version(*version)))
}

/// Opens an existing file to read it, without changing a byte of it.
///
/// If there is no write-ahead log, the file is opened as immutable: a connection that only reads would otherwise create a log and leave it
/// behind.
pub(super) async fn open_to_read(path: &Path) -> Result<SqliteConnection> {
    let options = SqliteConnectOptions::from_str("sqlite:")?
        .filename(path)
        .read_only(true)
        .immutable(!beside(path, "-wal").exists());
    Ok(SqliteConnection::connect_with(&options).await?)
}

async fn copy_before_migration(path: &Path, version: i64, now: i64) -> Result<()> {
    let copy = path.with_extension(format!("before-{version}-{now}.db"));
    // Created here, so that no other user may read it while it is written.
    let created = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&copy);
    created.map_err(|source| StoreError::File { path: copy.clone(), source })?;
    let mut connection = SqliteConnection::connect_with(&options(path)?).await?;
    sqlx::query("VACUUM INTO ?").bind(copy.to_string_lossy().into_owned()).execute(&mut connection).await?;
    connection.close().await?;
    tracing::info!(copy = %copy.display(), "copied the database before its migration");
    Ok(())
}

/// Returns the first difference of a database from the newest schema, which SQLite's own check does not find. Additional parts count as
/// well: a trigger that is not ours could write unwanted rows.
pub(super) async fn difference(db: &mut Db) -> Result<Option<String>> {
    let mut model = SqliteConnection::connect("sqlite::memory:").await?;
    MIGRATIONS.run(&mut model).await?;
    let (expected, actual) = (parts(&mut model).await?, parts(db).await?);
    model.close().await?;
    let of = |(kind, name): &(String, String), fault: &str| format!("its {kind} {name} {fault}");
    // What a table lacks, its indexes and triggers lack as well.
    let differs = |tables: bool| {
        let parts = expected.iter().filter(|((kind, _), _)| (kind == "table") == tables);
        parts.into_iter().find_map(|(part, sql)| match actual.get(part) {
            None => Some(of(part, "is missing")),
            Some(other) => (other != sql).then(|| of(part, "was changed")),
        })
    };
    let added = || {
        actual
            .keys()
            .find(|part| !expected.contains_key(part))
            .map(|part| of(part, "is none of mps-manager's"))
    };
    Ok(differs(true).or_else(|| differs(false)).or_else(added))
}

/// The tables, indexes, triggers and views, by kind and name, each as it was made; those of SQLite itself follow from them, and the
/// one of the library that migrates is its own.
async fn parts(db: &mut Db) -> Result<BTreeMap<(String, String), String>> {
    let query = "SELECT type, name, ifnull(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name != '_sqlx_migrations'";
    let rows: Vec<(String, String, String)> = sqlx::query_as(query).fetch_all(db).await?;
    Ok(rows.into_iter().map(|(kind, name, sql)| ((kind, name), sql)).collect())
}

#[cfg(test)]
mod tests;
