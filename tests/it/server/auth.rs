//! Who may call.

use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::harness::{Host, InProcess};

const NOBODY: u32 = 65_534;

#[test]
fn tcp_needs_admin_token_except_for_probes() {
    let host = InProcess::stopped();
    let path = "/api/v1/host";
    for token in [None, Some("wrong"), Some("")] {
        let answer = host.api().with_token(token).get(path);
        answer.problem(401, "unauthorized");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
    }
    assert_eq!(host.api().with_token(Some(&host.token())).get(path).status, 200);
    for probe in ["/healthz", "/readyz", "/readyz/daemons/gpu0", "/openapi.json", "/.well-known/api-catalog"]
    {
        assert_eq!(host.api().with_token(None).get(probe).status, 200, "{probe}");
    }
    // Without a token, not even what exists is revealed.
    host.api().with_token(None).get("/api/v1/tenants/nobody").problem(401, "unauthorized");
}

#[test]
fn a_refused_caller_changes_nothing() {
    let host = InProcess::stopped();
    let stranger = host.api().with_token(None);
    stranger.delete("/api/v1/tenants/demo").problem(401, "unauthorized");
    stranger.tenant("new", &serde_json::json!({"daemon": "gpu1", "uid": 0})).problem(401, "unauthorized");
    assert_eq!(host.api().get("/api/v1/tenants/demo").status, 200);
    host.api().get("/api/v1/tenants/new").problem(404, "not-found");
}

#[test]
fn socket_owner_may_omit_but_not_forge_token() {
    let host = InProcess::stopped();
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
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("No valid token") && message.contains("admin.token"), "{message}");
}

#[test]
fn unroutable_requests_are_answered_as_problems() {
    let host = InProcess::stopped();
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
fn oversized_body_is_refused_by_content_length() {
    let host = InProcess::stopped();
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
fn invalid_http_ends_only_its_connection() {
    let host = InProcess::stopped();
    let address = host.url().replace("http://", "");
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(b"\0\0\0 nonsense\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert_eq!(host.api().get("/healthz").status, 200);
}
