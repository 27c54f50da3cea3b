//! Headers that say what a caller takes, has already, or sends.

use reqwest::Method;
use serde_json::{Value, json};

use super::bad_input::{is_problem, raw};
use super::layouts::{add, apply, host as static_host, target, write};
use crate::harness::{Answer, InProcess, eventually};

#[test]
fn answers_come_in_the_format_preferred() {
    let host: InProcess = static_host();
    let api = host.api();
    write(&host, "lx", &[add("web", 7)]);
    let mime = |answer: &Answer| answer.header("content-type").unwrap_or_default().to_owned();
    let plan = |accept: &str| {
        let body = Some(target(&json!({})).to_string());
        api.send(Method::POST, "/api/v1/layouts/lx/plan", &[("accept", accept)], body)
    };
    let environment = |accept: &str| {
        api.send(Method::GET, "/api/v1/tenants/batch/environment", &[("accept", accept)], None)
    };
    let export = |accept: &str| {
        api.send(Method::GET, "/api/v1/layouts/lx/export?daemon=gpu1", &[("accept", accept)], None)
    };
    for (accept, text) in [
        ("*/*", false),
        ("application/json, text/plain, */*", false),
        ("application/json, text/plain;q=0", false),
        ("text/plain;q=0, */*", false),
        ("text/plain", true),
        ("application/json;q=0.1, text/*", true),
    ] {
        let answer = plan(accept);
        assert_eq!(answer.status, 200, "{accept}: {}", answer.text);
        if text {
            assert!(mime(&answer).starts_with("text/plain"), "{accept}: {}", mime(&answer));
            assert!(answer.text.contains("+ web: 7 chunks"), "{accept}: {}", answer.text);
        } else {
            assert_eq!(mime(&answer), "application/json", "{accept}");
            assert_eq!(answer.json()["in_force"], false, "{accept}: {}", answer.text);
        }
    }
    apply(&host, "lx", &json!({}));
    for (accept, yaml) in [
        ("*/*", false),
        ("application/json, application/yaml", false),
        ("application/json, application/yaml;q=0", false),
        ("application/yaml", true),
        ("application/json;q=0.5, application/yaml", true),
    ] {
        let answer = export(accept);
        assert_eq!(answer.status, 200, "{accept}: {}", answer.text);
        assert_eq!(mime(&answer), if yaml { "application/yaml" } else { "application/json" }, "{accept}");
        assert_eq!(answer.text.starts_with("version: v1\n"), yaml, "{accept}: {}", answer.text);
        assert_eq!(serde_json::from_str::<Value>(&answer.text).is_err(), yaml, "{accept}: {}", answer.text);
    }
    for (accept, shell) in [
        ("*/*", false),
        ("application/json, text/x-shellscript;q=0", false),
        ("text/x-shellscript, application/json;q=0.5", true),
        ("text/*", true),
    ] {
        let answer = environment(accept);
        assert_eq!(answer.status, 200, "{accept}: {}", answer.text);
        assert_eq!(mime(&answer).starts_with("text/x-shellscript"), shell, "{accept}");
    }
    let refused = [plan("image/png"), plan("text/plain;q=0"), export("text/html"), environment("text/html")];
    for answer in refused.into_iter().chain([environment("application/json;q=0")]) {
        answer.problem(406, "not-acceptable");
    }
}

#[test]
fn unchanged_reads_are_not_modified() {
    let host = InProcess::stopped();
    let api = host.api();
    assert_eq!(api.put("/api/v1/layouts/lx", &json!({"layout": {"steps": []}})).status, 201);
    for path in [
        "/api/v1/gpus/0",
        "/api/v1/gpus",
        "/api/v1/tenants",
        "/api/v1/incidents?limit=1",
        "/api/v1/host",
        "/api/v1/tokens",
        "/api/v1/layouts/lx/versions",
        "/api/v1/daemons/gpu0",
        "/api/v1/tenants/demo",
        "/api/v1/layouts/lx",
    ] {
        // What a poll sees may change between two reads: then the second one is answered whole.
        let tag = eventually("two reads in a row are the same", || {
            let tag = api.get(path).header("etag").expect("an entity tag").to_owned();
            let headers = [("if-none-match", tag.as_str())];
            let again = api.send(Method::GET, path, &headers, None);
            (again.status == 304).then(|| {
                assert_eq!((again.text.as_str(), again.header("etag")), ("", Some(tag.as_str())));
                tag
            })
        });
        let other = api.send(Method::GET, path, &[("if-none-match", "\"0-0000000000000000\"")], None);
        assert_eq!(other.status, 200, "{path}");
        // The tag of a read holds a write to its revision.
        if !path.ends_with("gpu0") && !path.ends_with("demo") {
            continue;
        }
        let spec = api.get(path).json()["spec"].clone();
        let write = |tag: &str| {
            let path = format!("{path}?dry_run=true");
            api.send(Method::PUT, &path, &[("if-match", tag)], Some(spec.to_string())).status
        };
        assert_eq!((write(&tag), write("\"999-0123456789abcdef\"")), (200, 412), "{path}");
    }
}

#[test]
fn a_changed_status_is_no_304() {
    let host = InProcess::ready();
    let path = "/api/v1/daemons/gpu0";
    let read = host.api().get(path);
    let tag = read.header("etag").expect("an entity tag").to_owned();
    let _client = host.run_client("demo");
    eventually("the status is another one", || {
        let now =
            host.api().send(Method::GET, &format!("{path}?fresh=true"), &[("if-none-match", &tag)], None);
        (now.status == 200).then_some(())
    });
    let now: Value = host.api().get(path).json();
    assert_eq!(now["revision"], read.json()["revision"], "its spec is the same");
}

#[test]
fn encoded_bodies_and_nameless_requests_are_refused() {
    let host = InProcess::stopped();
    let head = "PUT /api/v1/tenants/web HTTP/1.1\r\nContent-Type: application/json\r\nContent-Encoding: gzip";
    let (status, answer) = raw(&host, head, b"\x1f\x8b\x08\x00");
    assert_eq!(status, 415, "{answer}");
    is_problem(&answer, "unsupported-encoding");
    assert!(answer.to_ascii_lowercase().contains("accept-encoding: identity"), "{answer}");

    let get = |version: &str, host_header: &str| {
        let head = format!("GET /healthz HTTP/{version}\r\n{host_header}Connection: close\r\n\r\n");
        Answer::to_bytes(&host.url(), head.as_bytes())
    };
    get("1.1", "").problem(400, "no-host");
    assert_eq!(get("1.1", "Host: localhost\r\n").status, 200);
    assert_eq!(get("1.0", "").status, 200, "HTTP/1.0 has no such header");
}
