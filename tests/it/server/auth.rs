//! Who may call.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::harness::Host;

const NOBODY: u32 = 65_534;

#[test]
fn over_tcp_the_admin_token_is_needed_and_probes_are_open() {
    let host = Host::ready();
    let path = "/api/v1/host";
    for token in [None, Some("wrong"), Some("")] {
        let answer = host.api().with_token(token).get(path);
        answer.problem(401, "unauthorized");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    assert_eq!(host.api().with_token(Some(&host.token())).get(path).status, 200);
    for probe in ["/healthz", "/readyz", "/readyz/daemons/gpu0", "/openapi.json"] {
        assert_eq!(host.api().with_token(None).get(probe).status, 200, "{probe}");
    }
    // Not even what exists is told without a token.
    host.api().with_token(None).get("/api/v1/tenants/nobody").problem(401, "unauthorized");
}

#[test]
fn a_refused_caller_changes_nothing() {
    let host = Host::ready();
    let stranger = host.api().with_token(None);
    stranger.delete("/api/v1/tenants/demo").problem(401, "unauthorized");
    stranger.tenant("new", &serde_json::json!({"daemon": "gpu1"})).problem(401, "unauthorized");
    assert_eq!(host.api().get("/api/v1/tenants/demo").status, 200);
    host.api().get("/api/v1/tenants/new").problem(404, "not-found");
}

#[test]
fn on_the_socket_the_managers_user_needs_no_token_and_a_wrong_one_is_told() {
    let host = Host::ready();
    let socket = host.api().over(&host.runtime("api.sock"));
    assert_eq!(socket.get("/api/v1/host").status, 200);
    let shown = socket.send(reqwest::Method::GET, "/api/v1/host", &[("authorization", "Bearer wrong")], None);
    shown.problem(401, "unauthorized");
}

#[test]
fn on_the_socket_another_user_is_refused() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::ready();
    let program = host.program_for_everybody();
    let output = Command::new(&program)
        .args(["clients", "--runtime-dir"])
        .arg(host.runtime(""))
        .env_clear()
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("No valid token") && said.contains("admin.token"), "{said}");
}

#[test]
fn what_is_no_request_of_the_api_is_answered_as_a_problem_too() {
    let host = Host::ready();
    host.api().get("/api/v1/nothing").problem(404, "no-such-path");
    host.api().delete("/api/v1/host").problem(405, "method-not-allowed");
    host.api().get("/api/v1/tenants?colour=1").problem(422, "invalid-request");
    let put =
        |body: &str| host.api().send(reqwest::Method::PUT, "/api/v1/tenants/t", &[], Some(body.to_owned()));
    put("{").problem(400, "malformed-json");
    let untyped = host.api().send(reqwest::Method::PUT, "/api/v1/tenants/t", &[], None);
    untyped.problem(415, "not-json");
}

#[test]
fn a_body_that_is_too_large_is_refused_by_its_announcement() {
    let host = Host::ready();
    let mut stream = std::net::TcpStream::connect(host.url().replace("http://", "")).unwrap();
    let head = format!(
        "PUT /api/v1/tenants/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
         Content-Length: 2097152\r\nConnection: close\r\n\r\n",
        host.token()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(
        answer.contains("application/problem+json") && answer.contains("problem:body-too-large"),
        "{answer}"
    );
}

#[test]
fn bytes_that_are_not_http_end_their_own_connection_only() {
    let host = Host::ready();
    let address = host.url().replace("http://", "");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"\0\0\0 nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(host.api().get("/healthz").status, 200);
}
