//! Tests of opening databases of other schemas. Each new migration gets a test here: its step run on a database with rows.

use super::super::Db;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use sqlx::migrate::{Migration, MigrationType};

use super::*;

/// The migrations of a later version, which ends with this one.
fn later(statements: &'static str) -> Migrator {
    let next = newest() + 1;
    let sql = sqlx::SqlStr::from_static(statements);
    let added = Migration::new(next, "later".into(), MigrationType::Simple, sql, false);
    Migrator::with_migrations(MIGRATIONS.iter().cloned().chain([added]).collect())
}

/// A database of this version with a row in it.
async fn database(directory: &Path) -> PathBuf {
    let path = directory.join("test.db");
    let mut connection = open(&path, &MIGRATIONS, 0).await.expect("created");
    execute(&mut connection, "INSERT INTO host VALUES (1, 'here', 7)").await;
    connection.close().await.expect("closed");
    path
}

async fn execute(db: &mut Db, statements: &'static str) {
    sqlx::raw_sql(statements).execute(db).await.expect("executed");
}

async fn texts(db: &mut Db, query: &'static str) -> Vec<String> {
    sqlx::query_scalar(query).fetch_all(db).await.expect("read")
}

fn copies(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path());
    entries.filter(|path| path.to_string_lossy().contains(".before-")).collect()
}

#[tokio::test]
async fn older_database_is_copied_and_migrated() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = database(directory.path()).await;
    let later = later("ALTER TABLE host ADD COLUMN later TEXT NOT NULL DEFAULT 'added'");
    let mut connection = open(&path, &later, 9).await.expect("migrated");
    assert_eq!(texts(&mut connection, "SELECT machine_id || later FROM host").await, ["hereadded"]);
    assert_eq!(of(&mut connection, &later).await.expect("read"), Schema::Version(newest() + 1));
    connection.close().await.expect("closed");

    let copies = copies(directory.path());
    let [copy] = copies.as_slice() else { panic!("{copies:?}") };
    assert_eq!(fs::metadata(copy).expect("there").permissions().mode() & 0o777, 0o600);
    let mut connection = open_to_read(copy).await.expect("opened");
    assert_eq!(read(&mut connection).await.expect("read"), Schema::Version(newest()));
    assert_eq!(texts(&mut connection, "SELECT machine_id FROM host").await, ["here"]);
}

#[tokio::test]
async fn failed_migration_changes_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = database(directory.path()).await;
    let later = later("DELETE FROM host; CREATE TABLE later (a TEXT); INSERT INTO missing VALUES (1)");
    let error = open(&path, &later, 9).await.expect_err("it fails");
    assert!(matches!(error, StoreError::Migration(_)), "{error}");
    let mut connection = open(&path, &MIGRATIONS, 9).await.expect("as before");
    assert_eq!(texts(&mut connection, "SELECT machine_id FROM host").await, ["here"]);
    assert_eq!(texts(&mut connection, "SELECT name FROM sqlite_schema WHERE name = 'later'").await, [""; 0]);
}

#[tokio::test]
async fn unreadable_schemas_are_refused_unchanged() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = database(directory.path()).await;
    let good = fs::read(&path).expect("read");
    for (statements, words) in [
        (
            "UPDATE _sqlx_migrations SET version = 9999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)",
            "schema version 9999",
        ),
        ("UPDATE _sqlx_migrations SET checksum = x'00'", "made by a pre-release"),
        // As the last pre-release left it.
        (
            "UPDATE _sqlx_migrations SET checksum = x'00';
             INSERT INTO _sqlx_migrations VALUES (22, 'lease recorded', CURRENT_TIMESTAMP, TRUE, x'00', 0)",
            "made by a pre-release",
        ),
    ] {
        fs::write(&path, &good).expect("written");
        let mut connection =
            SqliteConnection::connect_with(&options(&path).expect("options")).await.expect("open");
        execute(&mut connection, statements).await;
        connection.close().await.expect("closed");
        let before = fs::read(&path).expect("read");
        let error = open(&path, &MIGRATIONS, 9).await.expect_err("refused").to_string();
        assert!(error.contains(words) && error.contains("nothing was changed"), "{error}");
        assert_eq!(fs::read(&path).expect("read"), before);
        let names = fs::read_dir(directory.path()).expect("listed").count();
        assert_eq!(names, 1, "no other file is made");
    }
}
