//! Restores over databases that are damaged, incomplete or locked, and over tenants of the same name.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _};

use super::backups::change;
use super::incidents::{incident, recovered};
use crate::harness::{Host, signal};

#[test]
fn predecessor_is_restored_after_a_restore() {
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
fn damaged_database_is_replaced_with_the_reason() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    let whole = fs::read(host.state("mps-manager.db")).unwrap();
    for (lacking, words) in [
        ("DROP TABLE leases", "its table leases is missing"),
        ("ALTER TABLE tokens DROP COLUMN created_by", "its table tokens was changed"),
    ] {
        fs::write(host.state("mps-manager.db"), &whole).unwrap();
        change(&host.state("mps-manager.db"), lacking);
        let message = host.kept("restore", &file);
        assert!(message.contains(&format!("could not be read ({words})")), "{message}");
        assert!(message.contains("The rest of the audit is in that file"), "{message}");
    }
    // Damaged in the middle, where nothing reads before the whole file is checked.
    let mut torn = whole.clone();
    let middle = torn.len() / 8192 * 4096;
    torn[middle..middle + 4096].fill(0x5a);
    fs::write(host.state("mps-manager.db"), &torn).unwrap();
    let message = host.kept("restore", &file);
    assert!(message.contains("could not be read ("), "{message}");
    host.serve();
    host.await_ready();
}

#[test]
fn incomplete_backup_is_refused() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    let (whole, before) = (fs::read(&file).unwrap(), fs::read(host.state("mps-manager.db")).unwrap());
    for (changed, words) in [
        ("DROP TABLE operations", "its table operations is missing"),
        (
            "DROP TRIGGER layout_versions_refuse_update",
            "its trigger layout_versions_refuse_update is missing",
        ),
        ("ALTER TABLE tokens ADD COLUMN more TEXT", "its table tokens was changed"),
        (
            "CREATE TRIGGER evil AFTER INSERT ON events BEGIN DELETE FROM tokens; END",
            "its trigger evil is none of mps-manager's",
        ),
        ("CREATE VIEW evil AS SELECT digest FROM tokens", "its view evil is none of mps-manager's"),
    ] {
        fs::write(&file, &whole).unwrap();
        change(&file, changed);
        let message = host.refuses("restore", &file);
        assert!(message.contains(&format!("is damaged: {words}")), "{message}");
        assert_eq!(fs::read(host.state("mps-manager.db")).unwrap(), before);
    }
    fs::write(&file, &whole).unwrap();
    // Who may write it puts a token into it.
    for mode in [0o666, 0o620] {
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let message = host.refuses("restore", &file);
        assert!(message.contains("the backup is refused") && message.contains("chmod go-w"), "{message}");
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    host.kept("restore", &file);
}

#[test]
fn locked_database_is_not_replaced() {
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
    let message = host.refuses("restore", &file);
    assert!(message.contains("cannot be read now") && message.contains("move the file away"), "{message}");
    assert_eq!(fs::metadata(&database).unwrap().ino(), before, "the same file");
    runtime.block_on(holder.close()).unwrap();
    host.kept("restore", &file);
    assert_ne!(fs::metadata(&database).unwrap().ino(), before);
}

#[test]
fn forgotten_tenants_processes_lose_their_leases() {
    let mut host = Host::ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
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
    let message = host.kept("restore", &file);
    assert!(
        message.contains("the backup has another tenant of that name, and processes of the forgotten one"),
        "{message}"
    );
    assert!(
        message.contains("tenant again was created after") && !message.contains("tenant same"),
        "{message}"
    );
    assert_eq!(host.query_sql("SELECT tenant || pid FROM leases"), [format!("same{}", kept.pid())]);
    host.serve();
    host.await_ready();
    let by = |pid: u32| host.listed(pid)["attributed_by"].clone();
    assert_eq!(by(kept.pid()), "lease");
    // It says so of itself, as anybody could.
    assert_eq!(by(forgotten.pid()), "environment");
}

#[test]
fn incident_numbers_continue_after_a_restore() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    let lost = incident(&host, "daemon_died", recovered)["id"].to_string();
    host.end_manager(Signal::TERM);
    host.kept("restore", &file);
    let newest = "SELECT CAST(seq AS TEXT) FROM sqlite_sequence WHERE name = 'incidents'";
    assert_eq!(host.query_sql(newest), [lost], "the number means what it meant");
}
