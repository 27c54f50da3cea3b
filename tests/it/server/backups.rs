//! Backups made while everything is written to, and restored while daemons and clients live.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use super::tokens::made;
use crate::harness::{Host, Served, SmallDisk, environment, eventually, is_alive};

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

impl Host {
    pub(super) fn keep(&self, verb: &str, file: &Path) -> Output {
        let config = self.dir().join("config.toml");
        self.cli(&[verb, path(file), "--config", path(&config)])
    }

    pub(super) fn kept(&self, verb: &str, file: &Path) -> String {
        let output = self.keep(verb, file);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub(super) fn refuses(&self, verb: &str, file: &Path) -> String {
        let output = self.keep(verb, file);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// A database that takes a while to copy; no manager runs.
    fn grow(&self, mebibytes: u32) {
        self.execute_sql(&format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
             INSERT INTO idempotency_keys SELECT 'k' || i, 'h', json_quote(hex(randomblob(2000))), 4000000000000 FROM n",
            mebibytes * 256
        ));
    }
}

/// The first column of all rows of a file that nobody writes.
pub(super) fn ask(file: &Path, query: &str) -> Vec<String> {
    let options = SqliteConnectOptions::new().filename(file).immutable(true);
    let query = sqlx::AssertSqlSafe(query.to_owned());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut connection = options.connect().await.unwrap();
        let rows = sqlx::query(query).fetch_all(&mut connection).await.unwrap();
        connection.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    })
}

/// Runs statements on a file that no program has open.
pub(super) fn change(file: &Path, statements: &str) {
    let options = SqliteConnectOptions::new().filename(file).foreign_keys(false);
    let statements = sqlx::AssertSqlSafe(statements.to_owned());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut connection = options.connect().await.unwrap();
        sqlx::raw_sql(statements).execute(&mut connection).await.unwrap();
        connection.close().await.unwrap();
    });
}

fn files(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn backup_holds_every_answered_write() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    host.grow(64);
    host.serve();
    host.await_ready();
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let file = host.dir().join("backup.db");
    let (before, after) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let label = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "labels": {"number": number.to_string()}});
                assert!(host.api().put("/api/v1/tenants/busy", &label).status < 300);
                written.store(number, Ordering::SeqCst);
            }
        });
        eventually("there are writes", || (written.load(Ordering::SeqCst) > 3).then_some(()));
        let before = written.load(Ordering::SeqCst);
        let message = host.kept("backup", &file);
        let after = written.load(Ordering::SeqCst);
        over.store(true, Ordering::Relaxed);
        assert!(message.contains("checked and on the disk") && message.contains("admin.token"), "{message}");
        (before, after)
    });
    let number = "SELECT json_extract(spec, '$.labels.number') FROM tenants WHERE name = 'busy'";
    let copied: u64 = ask(&file, number)[0].parse().unwrap();
    assert!(copied >= before, "number {before} was answered before, and the backup has {copied}");
    assert!(after > before + 1, "no write was answered while 64 MiB were copied: {before} and {after}");
    assert_eq!(ask(&file, "PRAGMA integrity_check"), ["ok"]);
    let mode = fs::metadata(&file).unwrap();
    assert_eq!(mode.mode() & 0o7777, 0o600);
    assert!(!files(host.dir()).iter().any(|name| name.contains("partial") || name.starts_with("backup.db-")));
}

#[test]
fn backup_replaces_no_file() {
    let host = Host::new("");
    let file = host.dir().join("backup.db");
    assert!(host.refuses("backup", &file).contains("there is no database at"));
    let mut host = host;
    host.serve();
    fs::write(&file, "another user's").unwrap();
    assert!(host.refuses("backup", &file).contains("a backup replaces nothing"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "another user's");
    let nowhere = host.dir().join("nowhere/backup.db");
    assert!(host.refuses("backup", &nowhere).contains("No such file"));
    let before = files(host.dir());
    let odd = host.dir().join(std::ffi::OsStr::from_bytes(b"back\xffup.db"));
    let config = host.dir().join("config.toml");
    let refused = host.command(&["backup", "--config", path(&config)]).arg(&odd).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is not UTF-8"), "{refused:?}");
    assert_eq!(files(host.dir()), before, "nothing is left of it");
}

#[test]
fn full_disk_leaves_no_backup() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    host.grow(4);
    host.serve();
    let small = host.dir().join("small");
    let Some(_disk) = SmallDisk::mount(&small, 2) else { return };
    let message = host.refuses("backup", &small.join("backup.db"));
    assert!(message.contains("is full") && message.contains("nothing is left"), "{message}");
    assert_eq!(files(&small), Vec::<String>::new());
    assert!(
        host.api().tenant("new", &json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"})).status
            < 300
    );
}

#[test]
fn killed_backup_leaves_no_file() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    host.grow(96);
    host.serve();
    let directory = host.dir().join("backups");
    fs::create_dir(&directory).unwrap();
    let file = directory.join("backup.db");
    let config = host.dir().join("config.toml");
    let mut child =
        host.command(&["backup", path(&file), "--config", path(&config)]).spawn().expect("the backup starts");
    eventually("it is under way", || {
        let sizes = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        sizes.max().filter(|size| *size > 0)
    });
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().code(), None, "it had ended before it was killed");
    assert!(!file.exists());
    assert!(files(&directory)[0].starts_with("backup.db.partial-"), "{:?}", files(&directory));
    host.kept("backup", &file);
    assert_eq!(ask(&file, "PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn damaged_and_unknown_backups_are_refused() {
    let mut host = Host::ready();
    let good = host.dir().join("good.db");
    host.kept("backup", &good);
    assert!(host.refuses("restore", &good).contains("another mps-manager is serving"));
    host.end_manager(Signal::TERM);
    let before = fs::read(host.state("mps-manager.db")).unwrap();
    let bytes = fs::read(&good).unwrap();
    let file = |name: &str, bytes: &[u8]| -> PathBuf {
        let path = host.dir().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let words = file("words.db", b"version: v1\n");
    assert!(host.refuses("restore", &words).contains("is damaged: file is not a database"));
    let empty = file("empty.db", b"");
    assert!(host.refuses("restore", &empty).contains("is not a database of mps-manager"));
    assert!(host.refuses("restore", host.dir()).contains("is not a database of mps-manager"));
    assert!(host.refuses("restore", &host.dir().join("none.db")).contains("No such file"));
    let short = file("short.db", &bytes[..bytes.len() / 2]);
    assert!(host.refuses("restore", &short).contains("is damaged"));
    let mut torn = bytes.clone();
    let middle = torn.len() / 2;
    torn[middle..middle + 4096].fill(0x5a);
    assert!(host.refuses("restore", &file("torn.db", &torn)).contains("is damaged"));
    // Copied by hand from under a manager.
    let busy = file("busy.db", &bytes);
    fs::write(host.dir().join("busy.db-wal"), "frames").unwrap();
    assert!(host.refuses("restore", &busy).contains("write-ahead log beside it"));
    let newer = file("newer.db", &bytes);
    change(&newer, "UPDATE _sqlx_migrations SET version = 9999 WHERE version = 1");
    let message = host.refuses("restore", &newer);
    assert!(message.contains("has schema version 9999") && message.contains("or a newer one"), "{message}");
    change(&newer, "UPDATE _sqlx_migrations SET version = 1, checksum = x'00' WHERE version = 9999");
    assert!(host.refuses("restore", &newer).contains("was made by a pre-release"));
    assert_eq!(fs::read(host.state("mps-manager.db")).unwrap(), before);
    assert!(!files(&host.state("")).iter().any(|name| name.contains("partial") || name.contains("replaced")));
}

fn generation(host: &Served, what: &str) -> i64 {
    host.api().get(what).ok()["generation"].as_i64().unwrap()
}

#[test]
fn restore_keeps_daemons_and_clients_running() {
    let mut host = Host::ready();
    // Down when the backup is made, and up when it is restored.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    let early = host.run_client("demo");
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);

    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    host.await_ready();
    let changed =
        json!({"daemon": "gpu0", "uid": rustix::process::geteuid().as_raw(), "device_memory_limit": "2G"});
    assert_eq!(host.api().put("/api/v1/tenants/batch", &changed).status, 200);
    assert_eq!(host.api().tenant("late", &changed).status, 201);
    host.await_ready();
    let late = host.run_client("batch");
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    let tokens = daemons.map(|pid| environment(pid, "MPS_MANAGER_INCARNATION").unwrap());
    let generations = (generation(&host, "/api/v1/daemons/gpu0"), generation(&host, "/api/v1/tenants/batch"));
    let token = host.token();
    let newest = |host: &Host| -> i64 {
        let query = "SELECT coalesce(max(id), 0) || '' FROM events WHERE type NOT IN ('database.restored', 'events.lost')";
        host.query_sql(query).remove(0).parse().unwrap()
    };
    host.end_manager(Signal::TERM);

    let events = newest(&host);
    let message = host.kept("restore", &file);
    let restored = newest(&host);
    assert!(restored < events, "the journal is the backup's: {restored} and {events}");
    for words in [
        "gpu1 was stopped when the backup was made, and stays running",
        "tenant late was created after the backup",
    ] {
        assert!(message.contains(words), "{message}");
    }
    let replaced: Vec<String> =
        files(&host.state("")).into_iter().filter(|name| name.contains("replaced")).collect();
    assert_eq!(replaced.len(), 1, "one file, with nothing beside it: {replaced:?}");
    let kept = host.state(&replaced[0]);
    assert_eq!(ask(&kept, "SELECT count(*) || '' FROM tenants WHERE name = 'late'"), ["1"]);
    assert_eq!(fs::metadata(host.state("mps-manager.db")).unwrap().permissions().mode() & 0o777, 0o600);

    host.serve();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons, "the same control daemons");
    assert_eq!(daemons.map(|pid| environment(pid, "MPS_MANAGER_INCARNATION").unwrap()), tokens);
    for (client, tenant) in [(&early, "demo"), (&late, "batch")] {
        assert!(is_alive(client.pid()));
        let listed = host.listed(client.pid());
        assert_eq!(
            (&listed["tenant"], &listed["attributed_by"]),
            (&json!(tenant), &json!("lease")),
            "{listed}"
        );
    }
    assert_eq!(host.token(), token, "the admin token is none of the database's");
    host.api().get("/api/v1/tenants/late").problem(404, "not-found");
    let batch = host.api().get("/api/v1/tenants/batch").ok();
    assert_eq!(batch["spec"]["device_memory_limit"], 8_u64 << 30);
    assert!(generation(&host, "/api/v1/daemons/gpu0") > generations.0, "no generation means two things");
    assert!(batch["generation"].as_i64().unwrap() > generations.1);
    // In force, and not only believed to be so.
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.daemon("gpu1")["spec"]["desired_state"], "running");
    let audited = host.cli(&["audit", "verify", "--state-dir", path(&host.state(""))]);
    assert!(audited.status.success(), "{audited:?}");
    let rows = "SELECT id || hash FROM audit ORDER BY id";
    let (here, there) = (host.query_sql(rows), ask(&kept, rows));
    assert!(there.len() > ask(&file, rows).len() && here.starts_with(&there), "the audit log continues");
    // Readers of the journal go on where they were: what happens now has numbers that nobody has seen.
    host.end_manager(Signal::TERM);
    let between = format!("SELECT count(*) || '' FROM events WHERE id > {restored} AND id <= {events}");
    // Both are recorded, under their callers.
    let uid = rustix::process::geteuid().as_raw();
    let record =
        "SELECT action || ' ' || target || ' ' || actor || ' ' || origin || ' ' || outcome FROM audit
                  WHERE origin = 'command line' ORDER BY id";
    let row = |action: &str| format!("{action} {} uid {uid} command line done", file.display());
    assert_eq!(host.query_sql(record), [row("backup"), row("restore")]);
    let reported = "SELECT type || ' ' || json_extract(cause, '$.subject') FROM events
                WHERE type GLOB 'database.*' ORDER BY id";
    assert_eq!(host.query_sql(reported), [format!("database.restored uid {uid}")]);
    let reported = ask(&kept, reported);
    assert_eq!(
        reported,
        [format!("database.backed_up uid {uid}")],
        "the backup itself does not know of itself"
    );
    assert_eq!((host.query_sql(&between), newest(&host) > events), (vec!["0".to_owned()], true));
}

#[test]
fn restore_fails_unfinished_operations() {
    let mut host = Host::ready();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    host.end_manager(Signal::TERM);
    let id = "01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c";
    let asked = format!(
        r#"INSERT INTO operations (id, request, state, created_at)
           VALUES ('{id}', '{{"kind":"stop_daemon","grace_s":0}}', 'pending', 1);
           INSERT INTO operation_daemons (operation, daemon) VALUES ('{id}', 'gpu0');"#
    );
    host.execute_sql(&asked);
    // Without a manager.
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.execute_sql(&format!("DELETE FROM operations WHERE id = '{id}'"));
    host.kept("restore", &file);
    host.serve();
    host.await_ready();
    let operation = host.api().get(&format!("/api/v1/operations/{id}")).ok();
    assert_eq!(operation["state"], "failed");
    assert!(operation["error"].as_str().unwrap().contains("restored since"), "{operation}");
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons);
}

#[test]
fn restore_over_lost_database_kills_nothing() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    // gpu1 has another control daemon since, of which the backup knows nothing; gpu0 has the one that it had.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    host.await_ready();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    host.end_manager(Signal::TERM);
    fs::write(host.state("mps-manager.db"), "this was a database").unwrap();
    let message = host.kept("restore", &file);
    assert!(message.contains("could not be read") && message.contains("blocked until it ends"), "{message}");
    host.serve();
    host.await_phase("gpu0", "ready");
    let blocked = host.await_phase("gpu1", "blocked");
    assert_eq!(host.daemon_pid("gpu0"), daemons[0]);
    assert!(is_alive(daemons[1]));
    let why = blocked["status"]["conditions"].to_string();
    assert!(why.contains(&daemons[1].to_string()), "{why}");
    // The way out that it names.
    crate::harness::signal(daemons[1], Signal::KILL);
    host.await_phase("gpu1", "ready");
    assert_ne!(host.daemon("gpu1")["status"]["pid"], Value::from(daemons[1]));
}

#[test]
fn backup_of_another_machine_needs_confirmation() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.end_manager(Signal::TERM);
    let here = host.query_sql("SELECT machine_id FROM host").remove(0);
    host.execute_sql("UPDATE host SET machine_id = '0123456789abcdef0123456789abcdef'");
    host.kept("backup", &file);
    host.execute_sql(&format!("UPDATE host SET machine_id = '{here}'"));
    let message = host.kept("restore", &file);
    assert!(message.contains("of another machine") && message.contains("/api/v1/host/confirm"), "{message}");
    host.serve();
    assert_eq!(host.api().get("/readyz").status, 503);
    assert_eq!(host.api().get("/api/v1/host").ok()["read_only"]["machine_id"], *here);
}

#[test]
fn restore_keeps_revoked_tokens_revoked() {
    let mut host = Host::ready();
    let token = |host: &Served, name: &str| made(host, &json!({"name": name, "grant": "viewer"}));
    let (kept, revoked, forgotten) =
        (token(&host, "kept"), token(&host, "revoked"), token(&host, "forgotten"));
    let browser = super::sessions::cookie(&host, &kept.1);
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    for name in ["again", "same"] {
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    let of_same = made(&host, &json!({"name": "t", "grant": "tenant:same"}));
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);

    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{}", revoked.0)).status, 204);
    // A tenant of the same name is another one.
    assert_eq!(host.api().delete("/api/v1/tenants/again").status, 204);
    assert_eq!(host.api().tenant("again", &spec).status, 201);
    let of_again = made(&host, &json!({"name": "u", "grant": "tenant:again"}));
    let late = token(&host, "late");
    assert_eq!(host.api().tenant("late", &spec).status, 201);
    let of_late = made(&host, &json!({"name": "v", "grant": "tenant:late"}));
    host.end_manager(Signal::TERM);
    // As after a thousand others were revoked.
    host.execute_sql(&format!("DELETE FROM tokens WHERE id = '{}'", forgotten.0));
    let message = host.kept("restore", &file);
    assert!(
        [(&of_late.0, "v"), (&of_again.0, "u")].iter().all(|(id, name)| message
            .contains(&format!("token {id} ({name}) is revoked, since its tenant is not in the backup")))
            && !message.contains(&of_same.0),
        "{message}"
    );
    host.serve();
    host.await_ready();
    let status = |secret: &str| host.api().with_token(Some(secret)).get("/api/v1/whoami").status;
    assert_eq!([&kept, &late, &of_same].map(|token| status(&token.1)), [200; 3]);
    assert_eq!([&revoked, &forgotten, &of_late, &of_again].map(|token| status(&token.1)), [401; 4]);
    // What the restore itself revoked has an event and an audit row as any other has.
    let uid = rustix::process::geteuid().as_raw();
    let reported = host.events("&type=token.revoked");
    let reported: Vec<_> = reported.iter().map(|event| (&event["details"]["id"], &event["cause"])).collect();
    let by = json!({"by": "actor", "subject": format!("uid {uid}")});
    let mut expected = [json!(of_late.0), json!(of_again.0)];
    // As they are listed.
    expected.sort_by_key(ToString::to_string);
    assert_eq!(reported, expected.each_ref().map(|id| (id, &by)));
    let rows = host.api().get(&format!("/api/v1/audit?target=tokens/{}", of_late.0)).ok();
    let row = &rows["items"][0];
    assert_eq!((&row["action"], &row["origin"]), (&json!("restore"), &json!("command line")));
    let revoked_at = |spec: &Value| -> Value {
        let spec: Value = serde_json::from_str(spec.as_str().unwrap()).unwrap();
        spec["revoked_at"].clone()
    };
    assert!(revoked_at(&row["before"]).is_null() && revoked_at(&row["after"]).is_string(), "{row}");
    let nobody = host.api().with_token(None);
    let logged_in = nobody.send(reqwest::Method::GET, "/api/v1/whoami", &[("cookie", &browser)], None);
    assert_eq!(logged_in.status, 401, "{}", logged_in.text);

    // Where nobody knows what was revoked, that is said.
    host.end_manager(Signal::TERM);
    fs::write(host.state("mps-manager.db"), "this was a database").unwrap();
    let message = host.kept("restore", &file);
    assert!(
        message.contains("tokens that can be used again")
            && message.contains("revoked (viewer), forgotten (viewer); revoke those"),
        "{message}"
    );
}

/// The entity tag of a thing's revision.
fn tag(host: &Served, path: &str) -> String {
    host.api().get(path).revision()
}

#[test]
fn restore_reuses_no_entity_tag() {
    let mut host = Host::ready();
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"});
    let other = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"});
    let web = "/api/v1/tenants/web";
    let put = |host: &Host, stale: &str| {
        host.api().send(reqwest::Method::PUT, web, &[("if-match", stale)], Some(other.to_string()))
    };
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    let mut seen = vec![tag(&host, web)];
    assert_eq!(host.api().delete(web).status, 204);
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    put(&host, &seen[0]).problem(412, "precondition-failed");
    seen.push(tag(&host, web));
    // Deleted once more: only the record of the name shows how far it got.
    assert_eq!(host.api().delete(web).status, 204);

    let daemon = "/api/v1/daemons/gpu1";
    let revised = tag(&host, daemon);
    let content = host.daemon("gpu1")["spec"].clone();
    host.api().succeeds(&host.api().delete(&format!("{daemon}?grace_s=0")));
    assert_eq!(host.api().put(daemon, &content).status, 201);
    let again = tag(&host, daemon);
    assert_ne!(revised, again);
    host.end_manager(Signal::TERM);

    host.kept("restore", &file);
    host.serve();
    host.await_ready();
    for stale in &seen {
        put(&host, stale).problem(412, "precondition-failed");
    }
    assert_eq!(put(&host, &tag(&host, web)).status, 200);
    let restored = tag(&host, daemon);
    assert!(restored != revised && restored != again, "{restored} was {revised} and {again}");
}

#[test]
fn restore_announces_lost_events() {
    let mut host = Host::ready();
    let newest =
        |host: &Served| host.api().get("/api/v1/events?limit=1").ok()["items"][0]["id"].as_i64().unwrap();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    let read = newest(&host);
    for name in ["one", "two", "three"] {
        assert_eq!(
            host.api().tenant(name, &json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"})).status,
            201
        );
    }
    host.await_ready();
    host.end_manager(Signal::TERM);
    let given: i64 = host.query_sql("SELECT max(id) || '' FROM events").remove(0).parse().unwrap();
    host.kept("restore", &file);
    host.serve();
    host.await_ready();
    // Also one that asks for something else, and one that had read further than the backup goes.
    for (query, last) in [("", read), ("?type=tenant.", read), ("", given)] {
        let mut stream = host.stream(query, Some(last));
        let lost =
            std::iter::repeat_with(|| stream.next()).find(|event| event["type"] == "events.lost").unwrap();
        let details = &lost["details"];
        assert!(details["whole_from"].as_i64().unwrap() > given, "{lost}");
        assert!((3..=given - read + 3).contains(&details["count"].as_i64().unwrap()), "{lost}");
        assert_eq!(host.api().get(&format!("/api/v1/events/{}", lost["id"])).ok()["type"], "events.lost");
    }
}

#[test]
fn pruning_counts_events_across_number_gaps() {
    let mut host = Host::configured("[events]\nkeep_count = 1000");
    host.end_manager(Signal::TERM);
    // As a restore leaves it: many old ones, and new ones from a much higher number on.
    host.execute_sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1400)
         INSERT INTO events (at, type, severity, subject, cause, message)
         SELECT at, type, severity, subject, cause, message FROM n, (SELECT * FROM events ORDER BY id DESC LIMIT 1);
         UPDATE sqlite_sequence SET seq = 1000000 WHERE name = 'events';",
    );
    host.serve();
    host.await_ready();
    let count = |host: &Host, more: &str| -> i64 {
        host.query_sql(&format!("SELECT count(*) || '' FROM events {more}")).remove(0).parse().unwrap()
    };
    eventually("those that are too many are gone", || (count(&host, "") < 1250).then_some(()));
    host.end_manager(Signal::TERM);
    let old = count(&host, "WHERE id < 1000000");
    assert!(count(&host, "") >= 1000 && old >= 800, "{old} old ones of {} are left", count(&host, ""));
}

#[test]
fn broken_audit_backup_needs_a_flag() {
    let mut host = Host::ready();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    host.end_manager(Signal::TERM);
    // Who changes a row puts the trigger back that refuses it.
    let trigger =
        host.query_sql("SELECT sql FROM sqlite_schema WHERE name = 'audit_refuse_update'").remove(0);
    let changed = "DROP TRIGGER audit_refuse_update; UPDATE audit SET actor = 'another user' WHERE id = 1";
    change(&file, &format!("{changed}; {trigger}"));
    let before = fs::read(host.state("mps-manager.db")).unwrap();
    let message = host.refuses("restore", &file);
    assert!(message.contains("row 1 does not fit") && message.contains("--broken-audit"), "{message}");
    assert_eq!(fs::read(host.state("mps-manager.db")).unwrap(), before);
    let config = host.dir().join("config.toml");
    let reported = host.cli(&["restore", path(&file), "--config", path(&config), "--broken-audit"]);
    assert!(reported.status.success(), "{reported:?}");
    assert!(
        String::from_utf8_lossy(&reported.stdout).contains("the audit of the backup is broken"),
        "{reported:?}"
    );
    host.serve();
    host.await_ready();
}
