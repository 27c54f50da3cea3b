//! Audit rows and events of tokens and sessions; and that a stream ends with the right to read it.

use std::io::ErrorKind;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::sessions::cookie;
use super::tokens::{create, made};
use crate::harness::{Answer, EventStream, Host, InProcess, Served, eventually, unix_ms};

const SAME_SITE: (&str, &str) = ("sec-fetch-site", "same-origin");

/// Rows of the audit, the first first, without what the start of the host left.
fn rows(host: &Served) -> Vec<Value> {
    let list = host.api().get("/api/v1/audit?limit=1000").ok();
    let mut rows = list["items"].as_array().expect("items").clone();
    rows.retain(|row| row["actor"] != "manager");
    rows.reverse();
    rows
}

fn as_browser(host: &Served, method: Method, path: &str, cookie: &str) -> Answer {
    host.api().with_token(None).send(method, path, &[("cookie", cookie), SAME_SITE], None)
}

#[test]
fn token_and_session_changes_are_audited() {
    let host = InProcess::stopped();
    let (id, secret) = made(&host, &json!({"name": "ci", "grant": "viewer"}));
    let dry = host.api().post("/api/v1/tokens?dry_run=true", &json!({"name": "t", "grant": "viewer"}));
    assert_eq!(dry.status, 200);
    let (one, two, three) = (cookie(&host, &secret), cookie(&host, &secret), cookie(&host, &secret));
    assert_eq!(as_browser(&host, Method::DELETE, "/api/v1/session", &one).status, 204);
    as_browser(&host, Method::POST, "/logout", &two);
    as_browser(&host, Method::GET, "/api/v1/whoami", &two).problem(401, "unauthorized");
    assert_eq!(host.api().delete(&format!("/api/v1/sessions?token={id}")).status, 204);
    as_browser(&host, Method::GET, "/api/v1/whoami", &three).problem(401, "unauthorized");
    assert_eq!(host.api().post("/api/v1/login-urls", &json!({})).status, 201);
    let viewer = host.api().with_token(Some(&secret));
    viewer.post("/api/v1/tokens", &json!({"name": "more", "grant": "admin"})).problem(403, "forbidden");
    for _ in 0..2 {
        assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    }

    let token = format!("tokens/{id}");
    let (admin, own) = ("admin token".to_owned(), format!("token {id} (ci)"));
    let nobody = "nobody".to_owned();
    let expected = [
        (&admin, "POST /api/v1/tokens", &*token, "done"),
        (&own, "POST /api/v1/session", "session", "done"),
        (&own, "POST /api/v1/session", "session", "done"),
        (&own, "POST /api/v1/session", "session", "done"),
        (&own, "DELETE /api/v1/session", "session", "done"),
        (&own, "POST /logout", "session", "done"),
        (&nobody, "authenticate", "", "refused"),
        (&admin, "DELETE /api/v1/sessions", &*token, "done"),
        (&nobody, "authenticate", "", "refused"),
        (&admin, "POST /api/v1/login-urls", "login-urls", "done"),
        (&own, "POST /api/v1/tokens", "tokens", "refused"),
        (&admin, "DELETE /api/v1/tokens/{id}", &*token, "done"),
        (&admin, "DELETE /api/v1/tokens/{id}", &*token, "done"),
    ];
    let rows = rows(&host);
    assert_eq!(rows.len(), expected.len(), "{rows:#?}");
    for (row, (actor, action, target, outcome)) in rows.iter().zip(expected) {
        let reported = [&row["actor"], &row["action"], &row["target"], &row["outcome"]];
        assert_eq!(reported, [&json!(actor), &json!(action), &json!(target), &json!(outcome)]);
    }
    let read =
        |text: &Value| -> Value { serde_json::from_str(text.as_str().expect("JSON text")).expect("JSON") };
    assert!(rows[0]["before"].is_null());
    assert_eq!(
        (&read(&rows[0]["after"])["grant"], &read(&rows[0]["after"])["name"]),
        (&json!("viewer"), &json!("ci"))
    );
    assert!(
        read(&rows[11]["before"])["revoked_at"].is_null()
            && read(&rows[11]["after"])["revoked_at"].is_string()
    );
    assert!(rows[12]["after"].is_null(), "revoked before");

    let events = host.events("&type=token.,session.");
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().expect("a type")).collect();
    let opened = ["session.opened"; 3];
    let ended = ["session.ended"; 3];
    for row in &rows {
        assert!(row["request"].as_str().is_some_and(|id| id.len() == 36), "{row}");
    }
    let all: Vec<&str> =
        ["token.created"].into_iter().chain(opened).chain(ended).chain(["token.revoked"]).collect();
    assert_eq!(kinds, all);
    for event in &events {
        assert_eq!(event["details"], json!({"kind": "token", "id": id, "name": "ci"}));
        assert_eq!(event["subject"], json!({}));
    }
    assert_eq!(events[0]["cause"], json!({"by": "actor", "subject": admin}));
    assert_eq!(events[4]["cause"], json!({"by": "actor", "subject": own}));
    let all = serde_json::to_string(&(rows, events)).expect("JSON");
    for secret in [&secret[22..], value(&one), value(&two), value(&three)] {
        assert!(!all.contains(secret), "{}…", &secret[..6]);
    }
}

fn value(cookie: &str) -> &str {
    cookie.split_once('=').expect("a value").1
}

#[test]
fn refused_logins_have_few_audit_rows() {
    let host = InProcess::stopped();
    let wrong = json!({"token": format!("mpsm_{}_{}", "a".repeat(16), "b".repeat(64))});
    let socket = host.api().over(&host.runtime("api.sock"));
    let answers: Vec<u16> = (0..40).map(|_| socket.post("/api/v1/session", &wrong).status).collect();
    assert!(answers.iter().all(|status| matches!(status, 401 | 429)), "{answers:?}");
    assert!(answers.contains(&429), "{answers:?}");
    let held_back =
        |_| socket.send(Method::GET, "/api/v1/whoami", &[("authorization", "Bearer wrong")], None).status;
    assert!((0..5).map(held_back).all(|status| matches!(status, 401 | 429)));
    let refused: Vec<Value> = rows(&host).into_iter().filter(|row| row["outcome"] == "refused").collect();
    assert_eq!(refused.len(), 10, "{refused:#?}");
    for row in refused {
        assert_eq!((&row["actor"], &row["origin"]), (&json!("nobody"), &json!("socket")));
    }
}

#[test]
fn tenant_sees_own_tokens_deletion_revokes_them() {
    let host = InProcess::stopped();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    let (web, demo) =
        (made(&host, &json!({"name": "t", "grant": "tenant:web"})), create(&host, "u", "tenant:demo"));
    let own = host.api().with_token(Some(&web.1)).get("/api/v1/events?type=token.").ok();
    assert_eq!(own["items"].as_array().expect("items").len(), 1);
    assert_eq!(own["items"][0]["details"]["id"], web.0);
    let theirs = host.api().with_token(Some(&demo)).get("/api/v1/events?type=token.").ok();
    assert!(!theirs.to_string().contains(&web.0), "{theirs}");
    assert_eq!(host.api().delete("/api/v1/tenants/web").status, 204);
    let reported = host.events("&type=token.revoked,tenant.deleted");
    assert_eq!(reported.len(), 2, "{reported:#?}");
    let revoked = reported.iter().find(|event| event["type"] == "token.revoked").expect("reported");
    assert_eq!((&revoked["details"]["id"], &revoked["subject"]), (&json!(web.0), &json!({"tenant": "web"})));
    // On record under the token's ID, too, by the same request.
    let rows = rows(&host);
    let [.., one, other] = rows.as_slice() else { panic!("{rows:#?}") };
    assert_eq!(
        (&one["target"], &other["target"]),
        (&json!("tenants/web"), &json!(format!("tokens/{}", web.0)))
    );
    assert_eq!((&one["request"], &one["action"]), (&other["request"], &other["action"]));
    let revoked_at = |spec: &Value| -> Value {
        let spec: Value = serde_json::from_str(spec.as_str().expect("JSON text")).expect("JSON");
        spec["revoked_at"].clone()
    };
    assert!(revoked_at(&other["before"]).is_null() && revoked_at(&other["after"]).is_string(), "{other}");
}

/// Reads to the end that the other side makes of it.
fn await_end(stream: &mut EventStream) {
    eventually("the stream ends", || {
        stream.read(1000).is_err_and(|error| error.kind() == ErrorKind::UnexpectedEof).then_some(())
    });
}

#[test]
fn stream_ends_with_its_session() {
    let host = InProcess::stopped();
    let (id, secret) = made(&host, &json!({"name": "reader", "grant": "viewer"}));
    let begun = |cookie: &str| {
        let credential = format!("Cookie: {cookie}");
        EventStream::open_as(&host.url(), &credential, "", None).expect("sent").expect("a stream")
    };
    let (one, two) = (cookie(&host, &secret), cookie(&host, &secret));
    let (mut first, mut second) = (begun(&one), begun(&two));
    assert_eq!(as_browser(&host, Method::DELETE, "/api/v1/session", &one).status, 204);
    await_end(&mut first);
    // Of another session of the same token: what it logged out is reported there, and it stays open.
    assert_eq!(second.next()["type"], "session.ended");
    assert_eq!(host.api().delete(&format!("/api/v1/sessions?token={id}")).status, 204);
    await_end(&mut second);
    let three = cookie(&host, &secret);
    let mut third = begun(&three);
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    await_end(&mut third);
    let again = EventStream::open_as(&host.url(), &format!("Cookie: {three}"), "", None).expect("sent");
    assert!(matches!(again, Err((401, _))));
}

#[test]
fn open_stream_keeps_its_session_alive() {
    let mut host = Host::ready();
    let (_, secret) = made(&host, &json!({"name": "console", "grant": "viewer"}));
    let cookie = cookie(&host, &secret);
    let open = || {
        EventStream::open_as(&host.url(), &format!("Cookie: {cookie}"), "?type=tenant.", None)
            .expect("sent")
            .expect("a stream")
    };
    let mut stream = open();
    // Whatever happens meanwhile, the page does nothing but watch.
    host.api().tenant("web", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"})).ok();
    let watched_at = unix_ms(&stream.next()["at"]);
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    let used: i64 =
        host.query_sql("SELECT last_used_at || '' FROM sessions").remove(0).parse().expect("a time");
    assert!(used >= watched_at, "used last at {used}, and watched at {watched_at}");
}

#[test]
fn a_stream_ends_when_its_token_expires() {
    let mut host = Host::ready();
    let (id, secret) = made(&host, &json!({"name": "reader", "grant": "viewer", "expires_in_s": 3600}));
    host.end_manager(Signal::TERM);
    // No token lives as short as this test; it has to be read before it expires.
    host.execute_sql(&format!("UPDATE tokens SET expires_at = unixepoch() * 1000 + 15000 WHERE id = '{id}'"));
    host.serve();
    let mut stream = EventStream::open(&host.url(), &secret, "", None).expect("sent").expect("a stream");
    await_end(&mut stream);
    let again = EventStream::open(&host.url(), &secret, "", None).expect("sent");
    assert!(matches!(again, Err((401, _))));
}
