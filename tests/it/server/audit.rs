//! The audit: who did what, in a chain that shows where a row was changed.

use std::io::Write as _;
use std::net::TcpStream;
use std::process::Output;

use rustix::process::Signal;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::harness::{Host, InProcess, Served, eventually};

/// Rows, the first first.
fn rows(host: &Served, query: &str) -> Vec<Value> {
    let list = host.api().get(&format!("/api/v1/audit?limit=1000{query}")).ok();
    let mut rows = list["items"].as_array().expect("items").clone();
    rows.reverse();
    rows
}

fn verify(host: &Served, further: &[&str]) -> Output {
    let database = host.state("mps-manager.db");
    let mut arguments = vec!["audit", "verify", "--database", database.to_str().expect("text")];
    arguments.extend(further);
    host.cli(&arguments)
}

/// The hash as docs/audit.md describes it.
fn digest(row: &Value) -> String {
    let mut hash = Sha256::new();
    for field in [
        "id", "at", "actor", "granted", "origin", "request", "action", "target", "outcome", "problem",
        "before", "after", "previous",
    ] {
        let text = match &row[field] {
            Value::Null => "-\n".to_owned(),
            Value::String(text) => format!("{}:{text}\n", text.len()),
            number => format!("{}:{number}\n", number.to_string().len()),
        };
        hash.update(text.as_bytes());
    }
    hex::encode(hash.finalize())
}

fn spec(sms: u32) -> Value {
    json!({ "daemon": "gpu1", "uid": rustix::process::geteuid().as_raw(), "device_memory_limit": "1G", "sms": sms })
}

#[test]
fn audit_row_shows_actor_before_and_after() {
    let host = InProcess::stopped();
    let api = host.api();
    let answer = api.tenant("web", &spec(8));
    let request = answer.header("x-request-id").expect("an ID").to_owned();
    answer.ok();
    api.tenant("web", &spec(16)).ok();
    api.send(reqwest::Method::PUT, "/api/v1/tenants/web?dry_run=true", &[], Some(spec(24).to_string())).ok();
    api.tenant("web", &json!({ "daemon": "nowhere", "uid": 0 })).problem(422, "invalid-request");
    api.delete("/api/v1/tenants/web");
    let reported = rows(&host, "&target=tenants/web");
    let outcomes: Vec<&str> = reported.iter().map(|row| row["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["done", "done", "refused", "done"]);
    let [created, changed, refused, deleted] = reported.as_slice() else { panic!("{reported:?}") };
    assert_eq!(created["request"], request);
    assert_eq!((&created["actor"], &created["granted"]), (&json!("admin token"), &json!("admin")));
    assert_eq!(
        (&created["origin"], &created["action"]),
        (&json!("127.0.0.1"), &json!("PUT /api/v1/tenants/{name}"))
    );
    let read =
        |text: &Value| -> Value { serde_json::from_str(text.as_str().expect("JSON text")).expect("JSON") };
    assert!(created["before"].is_null());
    assert_eq!((&read(&created["after"])["sms"], &read(&changed["before"])["sms"]), (&json!(8), &json!(8)));
    assert_eq!(read(&changed["after"])["sms"], 16);
    assert_eq!(refused["problem"], "urn:mps-manager:problem:invalid-request");
    assert!(deleted["after"].is_null() && !deleted["before"].is_null());
    // The journal has the same changes, by the same actor.
    let events = host.events("&tenant=web&type=tenant.");
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tenant.created", "tenant.changed", "tenant.deleted"]);
    assert_eq!(events[1]["details"]["fields"], json!(["sms"]));
    assert_eq!(events[1]["cause"], json!({ "by": "actor", "subject": "admin token" }));
    assert_eq!(rows(&host, "&actor=manager")[0]["action"], "seed");
    // -5, +7 and 007: no row has such a number.
    for bad in [
        "?outcome=maybe",
        "?cursor=eA",
        "?cursor=LTU",
        "?cursor=Kzc",
        "?cursor=MDA3",
        "?limit=0",
        "?colour=red",
    ] {
        api.get(&format!("/api/v1/audit{bad}")).problem(422, "invalid-request");
    }
}

#[test]
fn documented_audit_chain_survives_restart() {
    let mut host = Host::ready();
    host.api().tenant("web", &spec(8)).ok();
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    host.api().tenant("web", &spec(16)).ok();
    let all = rows(&host, "");
    let mut previous = "0".repeat(64);
    for (number, row) in (1..).zip(&all) {
        assert_eq!((&row["id"], &row["previous"]), (&json!(number), &json!(previous)));
        previous = digest(row);
        assert_eq!(row["hash"], previous);
    }
    let head = host.api().get("/api/v1/audit/head").ok();
    assert_eq!(head, json!({ "id": all.len(), "hash": previous }));
    // While it is served, and when it is not.
    for _ in 0..2 {
        let output = verify(&host, &[]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(&previous));
        if !host.manager_has_ended() {
            host.end_manager(Signal::TERM);
        }
    }
}

#[test]
fn tampered_audit_rows_are_detected() {
    let mut host = Host::ready();
    for sms in [8, 16, 24] {
        host.api().tenant("web", &spec(sms)).ok();
    }
    let head = host.api().get("/api/v1/audit/head").ok();
    let (last, hash) = (head["id"].as_i64().unwrap(), head["hash"].as_str().unwrap().to_owned());
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    let database = host.state("mps-manager.db");
    // The database refuses while nobody takes its triggers away.
    for change in ["UPDATE audit SET actor = 'another user' WHERE id = 2", "DELETE FROM audit WHERE id = 2"] {
        let refused = host.try_sql(change).expect_err("refused");
        assert!(refused.contains("never"), "{refused}");
    }
    let whole = std::fs::read(&database).unwrap();
    let free = "DROP TRIGGER audit_refuse_update; DROP TRIGGER audit_refuse_delete;";
    for (change, first) in [
        ("UPDATE audit SET actor = 'another user' WHERE id = 2".to_owned(), Some(2)),
        ("UPDATE audit SET after = '{}' WHERE id = 3".to_owned(), Some(3)),
        ("DELETE FROM audit WHERE id = 2".to_owned(), Some(3)),
        ("UPDATE audit SET actor = CAST(x'61ff62' AS TEXT) WHERE id = 5".to_owned(), Some(5)),
        ("PRAGMA ignore_check_constraints = ON; UPDATE audit SET outcome = 'odd' WHERE id = 5".to_owned(), Some(5)),
        ("ALTER TABLE audit RENAME COLUMN origin TO source".to_owned(), Some(1)),
        ("DROP TABLE audit".to_owned(), Some(1)),
        ("INSERT INTO audit SELECT 0, at, actor, granted, origin, request, action, target, outcome, problem, before, after, previous, hash FROM audit WHERE id = 1".to_owned(), Some(0)),
        (format!("DELETE FROM audit WHERE id = {last}"), Some(last)),
        (format!("DELETE FROM audit WHERE id = {last}; UPDATE sqlite_sequence SET seq = {} WHERE name = 'audit'", last - 1), None),
    ] {
        host.try_sql(&format!("{free} {change}")).expect("meddled with");
        let output = verify(&host, &[]);
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        match first {
            Some(first) => {
                assert_eq!(output.status.code(), Some(1), "{change}: {message}");
                assert!(message.contains(&format!("row {first} does not fit")), "{change}: {message}");
            }
            // Cut off with every trace of it: only a head that was kept elsewhere reveals that.
            None => assert_eq!(output.status.code(), Some(0), "{change}: {message}"),
        }
        let anchored = verify(&host, &["--anchor", &format!("{last}:{hash}")]);
        assert_eq!(anchored.status.code(), Some(1), "{change}");
        std::fs::write(&database, &whole).unwrap();
    }
    assert_eq!(verify(&host, &["--anchor", &format!("{last}:{hash}")]).status.code(), Some(0));
    let other = "f".repeat(64);
    assert_eq!(verify(&host, &["--anchor", &format!("2:{other}")]).status.code(), Some(1));
    assert_eq!(verify(&host, &["--anchor", "nonsense"]).status.code(), Some(2));
    let missing = host.cli(&["audit", "verify", "--database", "/nowhere/at/all.db"]);
    assert_eq!(missing.status.code(), Some(2));
}

#[test]
fn repeated_refusals_have_few_rows_without_secrets() {
    let host = InProcess::stopped();
    let secret = host.token();
    let stranger = host.api().with_token(Some("a-secret-that-is-wrong"));
    // Each of these is answered late in the end.
    for _ in 0..12 {
        stranger.put("/api/v1/tenants/web", &spec(8)).problem(401, "unauthorized");
    }
    for _ in 0..100 {
        host.api().tenant("web", &json!({ "daemon": "nowhere", "uid": 0 })).problem(422, "invalid-request");
    }
    let refused = rows(&host, "&outcome=refused");
    let count = |actor: &str| refused.iter().filter(|row| row["actor"] == actor).count();
    assert_eq!(count("nobody"), 10);
    // Another one for each minute.
    assert!((60..65).contains(&count("admin token")), "{} rows", refused.len());
    let all = serde_json::to_string(&rows(&host, "")).unwrap();
    assert!(!all.contains(&secret) && !all.contains("a-secret-that-is-wrong"));
    assert_eq!(verify(&host, &[]).status.code(), Some(0));
    // Another caller's refusals are recorded nevertheless.
    let socket = host.api().over(&host.runtime("api.sock"));
    socket.delete("/api/v1/tenants/none").problem(404, "not-found");
    assert_eq!(rows(&host, "&target=tenants/none").len(), 1);
}

#[test]
fn refusal_is_audited_after_caller_disconnects() {
    let host = InProcess::stopped();
    let (address, token) = (host.url(), host.token());
    for number in 0..20 {
        let mut stream = TcpStream::connect(address.trim_start_matches("http://")).expect("it listens");
        write!(
            stream,
            "DELETE /api/v1/tenants/missing{number} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .expect("sent");
    }
    eventually("all are recorded", || {
        let reported = rows(&host, "");
        let missing = |row: &&Value| row["target"].as_str().is_some_and(|target| target.contains("missing"));
        let reported: Vec<&Value> = reported.iter().filter(missing).collect();
        (reported.len() == 20 && reported.iter().all(|row| row["outcome"] == "refused")).then_some(())
    });
}

#[test]
fn refused_cancellation_has_one_audit_row() {
    let host = InProcess::stopped();
    let stopped = host.api().post("/api/v1/daemons/gpu1/stop?grace_s=0", &json!({}));
    let ended = host.api().succeeds(&stopped)["id"].as_str().expect("an ID").to_owned();
    let unknown = mps_manager::clock::Clock::system().new_id().to_string();
    for (id, status, kind) in [(&unknown, 404, "not-found"), (&ended, 409, "conflict")] {
        let target = format!("operations/{id}/cancel");
        for query in ["", "?dry_run=true"] {
            let refused = host.api().post(&format!("/api/v1/{target}{query}"), &json!({}));
            assert!((400..500).contains(&refused.status), "{}", refused.text);
        }
        host.api().post(&format!("/api/v1/{target}"), &json!({})).problem(status, kind);
        let reported = rows(&host, &format!("&target={target}"));
        assert!(
            reported.len() >= 2 && reported.iter().all(|row| row["outcome"] == "refused"),
            "{reported:?}"
        );
    }
}

#[test]
fn unchanged_write_is_audited_without_diff() {
    let host = InProcess::stopped();
    for _ in 0..2 {
        host.api().tenant("web", &spec(8)).ok();
        host.api().post("/api/v1/daemons/gpu1/cordon", &json!({})).ok();
    }
    for target in ["tenants/web", "daemons/gpu1"] {
        let reported = rows(&host, &format!("&target={target}&actor=admin%20token"));
        let [first, again] = reported.as_slice() else { panic!("{reported:?}") };
        assert_eq!((&first["outcome"], &again["outcome"]), (&json!("done"), &json!("done")));
        assert!(first["after"].is_string());
        assert!(again["before"].is_null() && again["after"].is_null(), "{again}");
    }
}

#[test]
fn bulk_request_is_audited_per_changed_resource() {
    let host = InProcess::stopped();
    let layouts = json!({ "version": "v1", "layouts": { "one": { "steps": [] }, "two": { "steps": [] } } });
    for _ in 0..2 {
        host.api().post("/api/v1/layouts/import", &layouts).ok();
    }
    let reported = rows(&host, "&actor=admin%20token");
    let targets: Vec<&str> = reported.iter().map(|row| row["target"].as_str().unwrap()).collect();
    assert_eq!(targets, ["layouts/one", "layouts/two", "layouts/import"]);
    assert!(
        reported[0]["after"].as_str().unwrap().contains("\"version\":1") && reported[0]["before"].is_null()
    );
    assert_eq!(reported[0]["request"], reported[1]["request"]);
    assert!(reported[2]["after"].is_null(), "the second time nothing changed: {}", reported[2]);
    assert_eq!(verify(&host, &[]).status.code(), Some(0));
}
