//! Restores over databases that are whole and not as this version writes them, and over such that lack something.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::backups::ask;
use super::tokens::made;
use crate::harness::Host;

/// Runs statements on a file that nobody has open.
fn change(file: &Path, statements: &str) {
    let options = SqliteConnectOptions::new().filename(file).foreign_keys(false);
    let statements = sqlx::AssertSqlSafe(statements.to_owned());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

fn token(host: &Host, name: &str) -> (String, String) {
    made(host, &json!({"name": name, "grant": "viewer"}))
}

fn status(host: &Host, secret: &str) -> u16 {
    host.api().with_token(Some(secret)).get("/api/v1/whoami").status
}

#[test]
fn what_a_database_of_an_older_schema_knows_is_carried_over_as_from_one_of_this() {
    let mut host = Host::ready();
    let (kept, revoked) = (token(&host, "kept"), token(&host, "revoked"));
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{}", revoked.0)).status, 204);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    host.await_ready();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    host.end_manager(Signal::TERM);
    let rows = "SELECT id || hash FROM audit ORDER BY id";
    let on_record = host.ask_sql(rows);
    let version = |host: &Host| host.ask_sql("SELECT max(version) || '' FROM _sqlx_migrations").remove(0);
    let newest = version(&host);
    host.lay_older_schema();
    let older = version(&host);
    assert_ne!(older, newest);

    let said = host.kept("restore", &file);
    assert!(!said.contains("could not be read") && !said.contains("tokens that can be used again"), "{said}");
    assert_eq!(version(&host), newest);
    assert!(host.ask_sql(rows).starts_with(&on_record), "no row of the audit is lost");
    let names: Vec<String> = fs::read_dir(host.state(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("replaced") || name.contains("partial"))
        .collect();
    let [replaced] = names.as_slice() else { panic!("{names:?}") };
    let replaced = ask(&host.state(replaced), "SELECT max(version) || '' FROM _sqlx_migrations");
    assert_eq!(replaced, [older], "what was brought up to date is a copy");
    host.serve();
    host.await_ready();
    assert_eq!([&kept, &revoked].map(|token| status(&host, &token.1)), [200, 401]);
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons, "adopted as they run now");
    let started = host.events("&type=manager.started");
    assert_eq!(started.last().unwrap()["details"]["predecessor"], "restored", "{started:#?}");
}

#[test]
fn a_manager_that_starts_after_a_restore_does_not_say_that_the_one_before_died() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    // Made while a manager serves, so the last that it knows of a manager is that it started.
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    host.kept("restore", &file);
    let predecessor = |host: &Host| -> Value {
        let started = host.events("&type=manager.started");
        let last = started.last().expect("one started");
        assert!(!last["message"].as_str().unwrap().contains("died"), "{last}");
        last["details"]["predecessor"].clone()
    };
    host.serve();
    host.await_ready();
    assert_eq!(predecessor(&host), "restored");
    host.end_manager(Signal::TERM);
    host.serve();
    host.await_ready();
    assert_eq!(predecessor(&host), "stopped");
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    let started = host.events("&type=manager.started");
    assert_eq!(started.last().unwrap()["details"]["predecessor"], "died");
}

#[test]
fn a_database_that_lacks_something_is_named_for_what_it_lacks_and_replaced_all_the_same() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    let whole = fs::read(host.state("mps-manager.db")).unwrap();
    for (lacking, words) in [
        ("DROP TABLE leases", "its table leases is missing"),
        ("ALTER TABLE tokens DROP COLUMN created_by", "the column created_by of its table tokens is missing"),
    ] {
        fs::write(host.state("mps-manager.db"), &whole).unwrap();
        change(&host.state("mps-manager.db"), lacking);
        let said = host.kept("restore", &file);
        assert!(said.contains(&format!("could not be read ({words})")), "{said}");
        assert!(said.contains("What its audit holds stays there"), "{said}");
    }
    // Torn in the middle, where nobody looks before all of it is read.
    let mut torn = whole.clone();
    let middle = torn.len() / 8192 * 4096;
    torn[middle..middle + 4096].fill(0x5a);
    fs::write(host.state("mps-manager.db"), &torn).unwrap();
    let said = host.kept("restore", &file);
    assert!(said.contains("could not be read ("), "{said}");
    host.serve();
    host.await_ready();
}

#[test]
fn a_backup_that_lacks_something_is_refused_for_what_it_lacks_and_changes_nothing() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    change(&file, "DROP TABLE operations");
    let before = fs::read(host.state("mps-manager.db")).unwrap();
    let said = host.refuses("restore", &file);
    assert!(said.contains("is damaged: its table operations is missing"), "{said}");
    assert_eq!(fs::read(host.state("mps-manager.db")).unwrap(), before);
}

#[test]
fn a_database_that_somebody_else_holds_is_not_replaced_without_what_it_knows() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    let database = host.state("mps-manager.db");
    let before = fs::metadata(&database).unwrap().ino();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = SqliteConnectOptions::new().filename(&database);
    let mut holder = runtime.block_on(options.connect()).unwrap();
    runtime.block_on(sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut holder)).unwrap();
    let said = host.refuses("restore", &file);
    assert!(said.contains("cannot be read now") && said.contains("move the file away"), "{said}");
    assert_eq!(fs::metadata(&database).unwrap().ino(), before, "the same file");
    runtime.block_on(holder.close()).unwrap();
    host.kept("restore", &file);
    assert_ne!(fs::metadata(&database).unwrap().ino(), before);
}

#[test]
fn processes_of_a_forgotten_tenant_are_not_given_to_another_of_its_name() {
    let mut host = Host::ready();
    let spec = json!({"daemon": "gpu1", "device_memory_limit": "1G"});
    for name in ["again", "same"] {
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    assert_eq!(host.api().delete("/api/v1/tenants/again").status, 204);
    assert_eq!(host.api().tenant("again", &spec).status, 201);
    host.await_ready();
    let (kept, forgotten) = (host.run_client("same"), host.run_client("again"));
    host.end_manager(Signal::TERM);
    let said = host.kept("restore", &file);
    assert!(
        said.contains("the backup has another tenant of that name: processes of the one that is forgotten"),
        "{said}"
    );
    assert!(said.contains("tenant again was made after") && !said.contains("tenant same"), "{said}");
    assert_eq!(host.ask_sql("SELECT tenant || pid FROM leases"), [format!("same{}", kept.pid())]);
    host.serve();
    host.await_ready();
    let by = |pid: u32| host.listed(pid)["attributed_by"].clone();
    assert_eq!(by(kept.pid()), "lease");
    // It says so of itself, as anybody could.
    assert_eq!(by(forgotten.pid()), "environment");
}
