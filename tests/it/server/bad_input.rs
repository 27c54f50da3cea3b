//! Requests that no client of ours would send: each is answered with a problem document, and nothing is changed by any.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use reqwest::Method;
use serde_json::{Value, json};

use crate::document::expanded;
use crate::harness::{Host, InProcess, Served, SmallDisk, TIMEOUT, eventually};

/// One request as it stands, and its whole answer; the connection is closed after it.
pub(super) fn raw(host: &Served, head: &str, body: &[u8]) -> (u16, String) {
    let address = host.url().trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(&address).expect("connected");
    stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    let token = host.token();
    let length = body.len();
    let request = format!(
        "{head}\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).expect("sent");
    stream.write_all(body).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer)
}

pub(super) fn is_problem(answer: &str, kind: &str) {
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.to_ascii_lowercase().contains("content-type: application/problem+json"), "{answer}");
    let problem: Value = serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(problem["type"], format!("urn:mps-manager:problem:{kind}"), "{answer}");
}

#[test]
fn malformed_json_body_is_refused() {
    let host = InProcess::stopped();
    let specs = || {
        let listed = host.api().get("/api/v1/tenants").ok()["items"].clone();
        let tenants = listed.as_array().expect("a list").iter();
        tenants.map(|tenant| (tenant["name"].clone(), tenant["spec"].clone())).collect::<Vec<_>>()
    };
    let before = specs();
    let put = "PUT /api/v1/tenants/web HTTP/1.1\r\nContent-Type: application/json";
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let nested = format!("{{\"labels\":{}{}}}", "{\"a\":".repeat(50_000), "}".repeat(50_000));
    let cases: [(&[u8], u16, &str); 12] = [
        (b"", 400, "malformed-json"),
        (b"{", 400, "malformed-json"),
        (b"{\"daemon\": \"gpu0\"} {}", 400, "malformed-json"),
        (b"{\"daemon\": \"gpu0\",}", 400, "malformed-json"),
        (b"{\"daemon\": \"\xff\xfe\"}", 400, "malformed-json"),
        (b"\xef\xbb\xbf{\"daemon\": \"gpu0\"}", 400, "malformed-json"),
        (b"{\"daemon\": \"gpu0\x00\"}", 400, "malformed-json"),
        (b"{\"daemon\": \"\\ud800\"}", 400, "malformed-json"),
        (b"{\"daemon\": \"gpu0\", \"daemon\": \"gpu1\"}", 422, "invalid-request"),
        (b"[\"gpu0\"]", 422, "invalid-request"),
        (deep.as_bytes(), 422, "invalid-request"),
        (nested.as_bytes(), 422, "invalid-request"),
    ];
    for (body, status, kind) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let (answered, text) = raw(&host, put, body);
        assert_eq!(answered, status, "{shown}: {text}");
        is_problem(&text, kind);
    }
    // Where any JSON may stand, it may not be deeper than a reader's stack.
    let post = "POST /api/v1/replays HTTP/1.1\r\nContent-Type: application/json";
    let document = format!("{{\"daemon\": \"gpu0\", \"document\": {deep}}}");
    let (status, answer) = raw(&host, post, document.as_bytes());
    assert_eq!(status, 422, "{answer}");
    is_problem(&answer, "invalid-request");
    assert_eq!(specs(), before, "nothing was changed");
}

#[test]
fn invalid_field_value_is_refused_by_pointer() {
    let host = InProcess::stopped();
    let wrong = |spec: String, pointer: &str| {
        let answer = host.api().send(Method::PUT, "/api/v1/tenants/web", &[], Some(spec.clone()));
        let problem = answer.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{spec}: {problem}");
    };
    let with = |field: &str, value: &str| {
        let user = if field == "uid" { "" } else { "\"uid\": 0, " };
        format!("{{\"daemon\": \"gpu0\", {user}\"{field}\": {value}}}")
    };
    let digits = "9".repeat(5000);
    for value in
        ["-1", "4294967296", "18446744073709551616", "1e30", "1.5", "\"1\"", "true", "[]", digits.as_str()]
    {
        // A number past what a float holds is no JSON number here.
        if value == digits {
            let answer = host.api().send(Method::PUT, "/api/v1/tenants/web", &[], Some(with("uid", value)));
            assert!(matches!(answer.status, 400 | 422), "{}", answer.text);
            continue;
        }
        wrong(with("uid", value), "/uid");
    }
    wrong(with("uid", "4294967295"), "/uid");
    // A whole number is one however it is written.
    let whole =
        r#"{"daemon": "gpu0", "uid": 0, "device_memory_limit": "512Mi", "max_clients": 2.0}"#.to_owned();
    let path = "/api/v1/tenants/whole?dry_run=true";
    assert_eq!(host.api().send(Method::PUT, path, &[], Some(whole)).ok()["spec"]["max_clients"], 2);
    wrong(with("labels", "{\"a\": 1}"), "/labels/a");
    wrong(with("labels", &json!({"a\u{0}b": "x"}).to_string()), "/labels");
    wrong(with("labels", &json!({"a": "\u{1b}[31m"}).to_string()), "/labels");
    wrong(with("labels", &json!({"a": "x".repeat(254)}).to_string()), "/labels");
    wrong(with("gpus", "[0]"), "/gpus/0");
    // Characters count, and not the bytes that they take.
    let wide =
        json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "labels": {"name": "ü".repeat(128)}});
    assert_eq!(host.api().tenant("wide", &wide).status, 201);

    // A key that is no number where numbers are keys.
    let target = r#"{"daemon": "gpu0", "gpu_map": {"first": "0"}}"#;
    let answer = host.api().send(Method::POST, "/api/v1/layouts/x/plan", &[], Some(target.into()));
    let pointer = answer.problem(422, "invalid-request")["errors"][0]["pointer"].clone();
    assert!(pointer.as_str().is_some_and(|pointer| pointer.starts_with("/gpu_map")), "{pointer}");
}

#[test]
fn wrong_enum_values_name_the_accepted_ones() {
    let host = InProcess::stopped();
    let cases = [
        (
            "/api/v1/tenants/web",
            json!({"daemon": "gpu0", "uid": 0, "priority": 1}),
            "/priority",
            "\"normal\" or \"below_normal\"",
        ),
        ("/api/v1/daemons/gpu0", json!({"gpus": ["0"], "mode": 3}), "/mode", "\"shared\" or \"static\""),
        (
            "/api/v1/daemons/gpu0",
            json!({"gpus": ["0"], "desired_state": null}),
            "/desired_state",
            "\"running\"",
        ),
        (
            "/api/v1/daemons/gpu0",
            json!({"gpus": ["0"], "compute_mode": []}),
            "/compute_mode",
            "exclusive_process",
        ),
        (
            "/api/v1/daemons/gpu0",
            json!({"gpus": ["0"], "defaults": {"priority": true}}),
            "/defaults/priority",
            "\"normal\"",
        ),
        (
            "/api/v1/layouts/lx",
            json!({"layout": {"enforcement": 1, "steps": []}}),
            "/layout/enforcement",
            "\"percentage\"",
        ),
        ("/api/v1/layouts/lx", json!({"layout": {"steps": [7]}}), "/layout/steps/0", "\"add\" or \"remove\""),
        ("/api/v1/tenants/web", json!({"daemon": "gpu0", "uid": "x"}), "/uid", "give a whole number"),
        (
            "/api/v1/tenants/web",
            json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {}}),
            "/device_memory_limit",
            "no GPU is named: name one",
        ),
        ("/api/v1/tenants/web", json!({"daemon": 7, "uid": 0}), "/daemon", "a text"),
    ];
    for (path, body, pointer, accepted) in cases {
        let answer = host.api().send(Method::PUT, path, &[], Some(body.to_string()));
        let problem = answer.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(accepted), "{body}: {detail}");
        for rust in ["u32", "expected", "struct", "variant", "invalid type"] {
            assert!(!detail.contains(rust), "{body}: {detail}");
        }
    }
    let import = json!({"version": "v1", "layouts": {"lx": {"enforcement": 3, "steps": []}}});
    let problem = host.api().post("/api/v1/layouts/import", &import).problem(422, "invalid-request");
    assert!(
        problem["errors"][0]["pointer"].as_str().is_some_and(|at| at.ends_with("/layouts/lx/enforcement")),
        "{problem}"
    );
    let query = host.api().get("/api/v1/events?severity=loud").problem(422, "invalid-request");
    assert_eq!(query["errors"][0]["pointer"], "/severity", "{query}");
}

#[test]
fn malformed_paths_and_names_are_refused() {
    let host = InProcess::stopped();
    for path in [
        "/api/v1/tenants/../tenants/demo",
        "/api/v1/tenants/%2e%2e/demo",
        "/api/v1//tenants",
        "//api/v1/tenants",
        "/api/v1/tenants/",
        "/api/v1/tenants/demo/",
        "/API/v1/tenants",
        "/api/v1/tenants%2Fdemo",
        "/docs/../openapi.json",
        "/docs/%2e%2e/openapi.json",
        "/docs/page.css/x",
        "/api/v1/%00",
    ] {
        let (status, answer) = raw(&host, &format!("GET {path} HTTP/1.1"), b"");
        assert_eq!(status, 404, "{path}: {answer}");
        is_problem(&answer, "no-such-path");
    }
    for name in
        ["%2e%2e", "%00", "a%00", "a%2Fb", "..%5c", "%ff%fe", "%F0%9F%92%A9", "a%0d%0aX: y", "demo%20", "%25"]
    {
        let path = format!("/api/v1/tenants/{}", name.replace(' ', "%20"));
        let (status, answer) = raw(&host, &format!("GET {path} HTTP/1.1"), b"");
        assert_eq!(status, 422, "{path}: {answer}");
        is_problem(&answer, "invalid-request");
    }
    // Not even a name that is long enough to fill a disk is repeated whole.
    let (status, answer) = raw(&host, &format!("GET /api/v1/tenants/{} HTTP/1.1", "a".repeat(8000)), b"");
    assert_eq!(status, 422, "{answer}");
    assert!(answer.len() < 2000, "{answer}");
}

#[test]
fn malformed_header_is_refused() {
    let host = InProcess::stopped();
    let put = |header: &str| {
        format!("PUT /api/v1/tenants/demo HTTP/1.1\r\nContent-Type: application/json\r\n{header}")
    };
    let body = br#"{"daemon": "gpu0"}"#;
    for header in ["If-Match: 3", "If-Match:", "If-Match: {}", "If-Match: \"3", "If-None-Match: \"3\""] {
        let (status, answer) = raw(&host, &put(header), body);
        assert_eq!(status, 422, "{header}: {answer}");
        is_problem(&answer, "invalid-request");
    }
    let (status, answer) = raw(&host, &put("If-Match: \"ü\""), body);
    assert_eq!(status, 422, "{answer}");
    is_problem(&answer, "invalid-request");

    let post = |header: &str| format!("POST /api/v1/daemons/gpu0/start HTTP/1.1\r\n{header}");
    let too_long = format!("Idempotency-Key: {}", "k".repeat(256));
    for header in [too_long.as_str(), "Idempotency-Key:", "Idempotency-Key: a key", "Idempotency-Key: a\tkey"]
    {
        let (status, answer) = raw(&host, &post(header), b"");
        assert_eq!(status, 422, "{header}: {answer}");
        is_problem(&answer, "invalid-request");
    }
    let (status, answer) = raw(&host, "PUT /api/v1/tenants/demo HTTP/1.1\r\nContent-Type: text/plain", body);
    assert_eq!(status, 415, "{answer}");
    is_problem(&answer, "not-json");
}

#[test]
fn invalid_query_value_is_refused() {
    let host = InProcess::stopped();
    for query in [
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1e2",
        "limit=99999999999999999999",
        "limit=1&limit=2",
        "cursor=%00",
        "cursor=%ff",
        "cursor=Zm9",
        "cursor=..%2f..%2fetc",
        "daemon=%00",
        "daemon=..",
        "colour=red",
    ] {
        let answer = host.api().get(&format!("/api/v1/tenants?{query}"));
        answer.problem(422, "invalid-request");
    }
}

#[test]
fn unknown_query_parameter_is_refused_without_effect() {
    let host = Host::ready();
    let api = host.api();
    for path in ["/api/v1/host?fresh=true", "/api/v1/gpus?limit=5", "/api/v1/whoami?x=1", "/metrics?x=1"] {
        let reported = api.get(path).problem(422, "invalid-request");
        assert!(
            reported["detail"].as_str().is_some_and(|detail| detail.contains("takes no query")),
            "{reported}"
        );
    }
    for path in
        ["/healthz?x=1", "/readyz?x=1", "/openapi.json?x=1", "/docs?x=1", "/.well-known/api-catalog?x=1"]
    {
        assert_eq!(api.get(path).status, 200, "{path}");
    }
    let spec =
        json!({ "daemon": "gpu1", "uid": rustix::process::geteuid().as_raw(), "device_memory_limit": "1G" });
    api.tenant("web", &spec).ok();
    host.await_ready();
    let lease = |query: &str| {
        let body = json!({ "kind": "recorded", "pid": std::process::id() }).to_string();
        let path = format!("/api/v1/tenants/web/leases{query}");
        api.send(reqwest::Method::POST, &path, &[], Some(body)).status
    };
    assert_eq!(lease("?dry_run=true"), 200);
    // A process that is admitted for one tenant is no other's.
    api.tenant("other", &spec).ok();
    host.await_ready();
    let body = json!({ "kind": "recorded", "pid": std::process::id() }).to_string();
    let other = api.send(reqwest::Method::POST, "/api/v1/tenants/other/leases?dry_run=true", &[], Some(body));
    assert_eq!(other.status, 200, "{}", other.text);
    assert_eq!(lease("?dry=true"), 422);
}

#[test]
fn forged_cursor_is_refused_by_every_list() {
    use base64::Engine as _;
    let host = InProcess::stopped();
    let document = expanded(serde_json::from_str(include_str!("../../../openapi/v1.json")).unwrap());
    let mut lists = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        let parameters = methods["get"]["parameters"].as_array();
        let has_cursor = parameters.is_some_and(|all| all.iter().any(|one| one["name"] == "cursor"));
        let Some(path) =
            has_cursor.then(|| path.replace("tenants/{name}", "tenants/demo").replace("{name}", "gpu0"))
        else {
            continue;
        };
        lists += 1;
        for key in ["~~💥", "-5", "+7", "007", "NOT A NAME", " "] {
            let cursor = base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(key);
            host.api().get(&format!("{path}?cursor={cursor}")).problem(422, "invalid-request");
        }
    }
    assert!(lists > 6, "{lists} lists");
}

#[test]
fn no_resource_name_can_be_a_path() {
    let host = InProcess::stopped();
    let document: Value = serde_json::from_str(include_str!("../../../openapi/v1.json")).unwrap();
    let paths: Vec<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let mut taken = Vec::new();
    for path in &paths {
        let Some((collection, "{name}")) = path.rsplit_once('/') else { continue };
        let beside = paths.iter().filter_map(|other| other.strip_prefix(collection)?.strip_prefix('/'));
        let first = beside.filter_map(|rest| rest.split('/').next()).filter(|part| !part.starts_with('{'));
        taken.extend(first.map(|name| (collection.rsplit('/').next().unwrap(), name)));
    }
    assert_eq!(taken, [("layouts", "import")], "a name that nothing may have: see `LayoutName::is_free`");
    let layouts = json!({ "version": "v1", "layouts": { "import": { "steps": [] } } });
    let refused = host.api().post("/api/v1/layouts/import", &layouts).problem(422, "invalid-request");
    assert_eq!(refused["errors"][0]["pointer"], "/layouts/import", "{refused}");
    assert_eq!(host.api().get("/api/v1/layouts").ok()["items"], json!([]));
}

#[test]
fn full_disk_is_not_an_internal_error() {
    let mut host = Host::new("");
    let state = host.state("");
    let Some(disk) = SmallDisk::mount(&state, 16) else { return };
    host.serve();
    host.await_ready();
    let filler = disk.fill();
    eventually("it is reported though nobody writes", || {
        let ready = host.api().get("/readyz");
        (ready.status == 503).then(|| assert_eq!(ready.json()["conditions"], json!(["StateDiskFull"])))
    });
    let (mut refused, mut named) = (0, 0);
    let spec = |turn: usize| json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "labels": {"turn": turn.to_string()}});
    for turn in 0..50 {
        let answer = host.api().tenant("web", &spec(turn));
        if answer.status >= 300 {
            let message = answer.problem(503, "unavailable");
            assert!(message["detail"].as_str().unwrap().contains("is full"), "{message}");
            refused += 1;
            let ready = host.api().get("/readyz");
            named += usize::from(ready.status == 503 && ready.json()["conditions"][0] == "WritesFail");
        }
    }
    assert!(refused > 0, "everything was written");
    assert!(named > 0, "no answer reported that nothing can be written");
    std::fs::remove_file(filler).unwrap();
    // By itself: the manager tries to write again.
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/host").ok()["conditions"], json!([]));
    assert!(host.api().tenant("web", &spec(50)).status < 300);
}
