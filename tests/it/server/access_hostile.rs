//! What is tried with tokens, sessions and names of other users, or of nobody.

use reqwest::Method;
use serde_json::{Value, json};

use super::sessions::cookie;
use super::tokens::{create, made};
use crate::harness::{Answer, Api, EventStream, InProcess, Served, eventually};

const ABSENT: &str = "01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c";

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

fn id_of(host: &Served, pid: u32) -> String {
    text(&host.listed(pid)["id"])
}

/// Ends a client as its tenant; gives the operation.
fn terminate(api: &Api, client: &str, key: &str) -> Answer {
    let path = format!("/api/v1/clients/{client}/terminate");
    api.send(Method::POST, &path, &[("idempotency-key", key)], None)
}

#[test]
fn filters_and_cursors_show_nothing_of_another_tenant() {
    let host = InProcess::ready();
    let (theirs, own) = (host.run_client("demo"), host.run_client("batch"));
    let (demo, batch) = (id_of(&host, theirs.pid()), id_of(&host, own.pid()));
    let tenant = |name: &str, grant: &str| host.api().with_token(Some(&create(&host, name, grant)));
    let (owner, other) = (tenant("t", "tenant:demo"), tenant("u", "tenant:batch"));
    let ended = terminate(&owner, &demo, "end-it");
    owner.succeeds(&ended);
    let operation = text(&ended.json()["id"]);
    let event = eventually("its end is reported", || {
        let reported =
            host.api().get(&format!("/api/v1/events?client={demo}&type=client.left,client.terminated")).ok();
        reported["items"][0]["id"].as_i64()
    });
    for (path, name, absent) in [
        ("/api/v1/clients?tenant=NAME", "demo", "nope"),
        ("/api/v1/clients?daemon=NAME", "gpu1", "nope"),
        ("/api/v1/tenants?daemon=NAME", "gpu1", "nope"),
        ("/api/v1/events?tenant=NAME", "demo", "nope"),
        ("/api/v1/events?client=NAME", &demo, "9-9"),
        ("/api/v1/events?operation=NAME", &operation, ABSENT),
    ] {
        let asked = other.get(&path.replace("NAME", name));
        assert_eq!((asked.status, &asked.json()["items"]), (200, &json!([])), "{path}: {}", asked.text);
        let missing = other.get(&path.replace("NAME", absent));
        assert_eq!((missing.status, &asked.text), (200, &missing.text), "{path}");
        assert_eq!(asked.header_names(), missing.header_names());
    }
    let event = event.to_string();
    for (path, name, absent) in
        [("/api/v1/operations/NAME", &*operation, ABSENT), ("/api/v1/events/NAME", &event, "999999")]
    {
        let (asked, missing) =
            (other.get(&path.replace("NAME", name)), other.get(&path.replace("NAME", absent)));
        asked.problem(404, "not-found");
        assert_eq!(asked.text.replace(name, absent), missing.text);
    }
    // A cursor is a place in a list, and the list is the caller's own, wherever the cursor came from.
    terminate(&other, &batch, "end-it");
    for list in ["/api/v1/clients", "/api/v1/tenants", "/api/v1/operations", "/api/v1/events"] {
        let all = host.api().get(&format!("{list}?limit=1")).ok();
        let mut cursor = all["next_cursor"].as_str().map(str::to_owned);
        while let Some(at) = cursor {
            let page = other.get(&format!("{list}?limit=1&cursor={at}"));
            let shown = page.ok();
            for hidden in [&demo, &operation, "\"demo\""] {
                assert!(!page.text.contains(hidden), "{list}: {}", page.text);
            }
            cursor = shown["next_cursor"].as_str().map(str::to_owned);
        }
    }
    // Nor are the host's GPUs any of its business.
    assert_eq!(other.get("/api/v1/events?gpu=99").ok()["items"], json!([]));
    assert!(host.api().get("/api/v1/events?gpu=99").text.contains("GPU-"));
}

#[test]
fn idempotency_keys_are_separate_per_caller() {
    let host = InProcess::ready();
    let clients = [host.run_client("demo"), host.run_client("batch")];
    let [demo, batch] = [&clients[0], &clients[1]].map(|client| id_of(&host, client.pid()));
    let tenant = |name: &str, grant: &str| host.api().with_token(Some(&create(&host, name, grant)));
    let (owner, other) = (tenant("t", "tenant:demo"), tenant("u", "tenant:batch"));
    let first = terminate(&owner, &demo, "same");
    owner.succeeds(&first);
    assert_eq!(terminate(&owner, &demo, "same").json()["id"], first.json()["id"], "one's own answer again");
    // With the same key and the same request, another does not get that answer.
    terminate(&other, &demo, "same").problem(404, "not-found");
    let second = terminate(&other, &batch, "same");
    other.succeeds(&second);
    assert_ne!(second.json()["id"], first.json()["id"]);
    // Nor does another token of the same tenant.
    let again = terminate(&tenant("v", "tenant:demo"), &demo, "same");
    assert_ne!(again.json()["id"], first.json()["id"], "{}", again.text);
}

#[test]
fn tenant_stream_has_only_its_own_events() {
    let host = InProcess::stopped();
    let secret = create(&host, "t", "tenant:batch");
    let open = |query: &str| {
        EventStream::open(&host.url(), &secret, query, Some(0)).expect("sent").expect("a stream")
    };
    let expected = host.events("&tenant=batch");
    let (mut stream, mut narrowed) = (open(""), open("?tenant=batch"));
    for event in &expected {
        assert_eq!((&stream.next(), &narrowed.next()), (event, event));
    }
    let spec = |size: &str| json!({"daemon": "gpu0", "uid": rustix::process::geteuid().as_raw(), "device_memory_limit": size});
    host.api().put("/api/v1/tenants/demo", &spec("2G")).ok();
    host.api().put("/api/v1/tenants/batch", &spec("3G")).ok();
    // Some of what happened at the start may be written only now.
    let changed = std::iter::repeat_with(|| stream.next()).find(|next| {
        assert_eq!(next["subject"]["tenant"], "batch", "{next}");
        next["type"] == "tenant.changed"
    });
    assert!(changed.is_some());
    // Who asks for another's gets a stream in which nothing happens, as for one that does not exist.
    for name in ["demo", "nope"] {
        let mut silent = open(&format!("?tenant={name}"));
        assert!(silent.read(1).is_ok());
    }
}

#[test]
fn each_secret_works_only_for_its_purpose() {
    let host = InProcess::stopped();
    let (_, token) = made(&host, &json!({"name": "t", "grant": "viewer"}));
    let cookie = cookie(&host, &token);
    let (name, session) = cookie.split_once('=').expect("a value");
    let url = text(&host.api().post("/api/v1/login-urls", &json!({})).ok()["url"]);
    let code = url.split_once("code=").expect("a code").1;
    let nobody = host.api().with_token(None);
    let whoami = |header: (&str, &str)| nobody.send(Method::GET, "/api/v1/whoami", &[header], None);
    for secret in [session, code, &token[22..], &format!("mpsm_{}_{session}", &token[5..21])] {
        whoami(("authorization", &format!("Bearer {secret}"))).problem(401, "unauthorized");
        nobody.post("/api/v1/session", &json!({"token": secret})).problem(401, "unauthorized");
    }
    for secret in [code, &*token, &token[22..], &host.token()] {
        whoami(("cookie", &format!("{name}={secret}"))).problem(401, "unauthorized");
    }
    // A session that an attacker put into the browser beforehand is not the one that a log-in opens.
    let body = Some(json!({"token": token}).to_string());
    let put = [("cookie", &*cookie), ("sec-fetch-site", "same-origin")];
    let opened = nobody.send(Method::POST, "/api/v1/session", &put, body);
    assert!(!opened.header("set-cookie").expect("a cookie").contains(session));
}

#[test]
fn a_request_that_names_two_hosts_is_refused() {
    let host = InProcess::stopped();
    let send =
        |head: &str| Answer::to_bytes(&host.url(), format!("{head}\r\nConnection: close\r\n\r\n").as_bytes());
    for head in [
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
        "GET /healthz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost",
        "GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost",
        "GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example",
        "GET /healthz HTTP/1.1\r\nHost: localhost.",
        "GET /healthz HTTP/1.1\r\nHost: ",
    ] {
        let answer = send(head);
        assert!(
            answer.status == 421 && answer.text.contains("wrong-host"),
            "{head}: {} {}",
            answer.status,
            answer.text
        );
    }
    assert_eq!(send("GET http://localhost/healthz HTTP/1.1\r\nHost: localhost").status, 200);
    assert_eq!(send("GET /healthz HTTP/1.0").status, 200);
}

#[test]
fn open_metrics_opens_only_metrics() {
    let host = InProcess::stopped();
    let nobody = host.api().with_token(None);
    nobody.get("/metrics").problem(401, "unauthorized");
    let host = InProcess::stopped_with("[access]\nopen_metrics = true");
    let nobody = host.api().with_token(None);
    let scraped = nobody.get("/metrics");
    assert!(scraped.status == 200 && scraped.text.contains("mps_manager_daemon_up"), "{}", scraped.text);
    assert_eq!(nobody.send(Method::HEAD, "/metrics", &[], None).status, 200);
    nobody.post("/metrics", &json!({})).problem(405, "method-not-allowed");
    for path in [
        "/metrics/",
        "//metrics",
        "/metrics/../api/v1/host",
        "/api/v1/host",
        "/api/v1/whoami",
        "/api/v1/events",
    ] {
        assert!(matches!(nobody.get(path).status, 401 | 404), "{path}");
    }
    // A caller that shows a wrong secret has made a mistake, and is refused.
    host.api().with_token(Some("wrong")).get("/metrics").problem(401, "unauthorized");
    let tenant = create(&host, "t", "tenant:demo");
    host.api().with_token(Some(&tenant)).get("/metrics").problem(403, "forbidden");
    let over = [("cookie", "mps_manager_session=over")];
    assert_eq!(nobody.send(Method::GET, "/metrics", &over, None).status, 200);
    // A name that leads here by rebinding is none of this server's for them either.
    nobody.send(Method::GET, "/metrics", &[("host", "evil.example")], None).problem(421, "wrong-host");
}
