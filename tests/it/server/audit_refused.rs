//! What is refused before a use case is asked, and what is refused of a dry run: on record as any other refusal is.

use reqwest::Method;
use serde_json::{Value, json};

use super::layouts::add;
use super::sessions::cookie;
use super::tokens::made;
use crate::harness::{Answer, InProcess, Served};

const CORDON: &str = "/api/v1/daemons/gpu1/cordon";

/// The rows of what was refused, the first first.
fn refused(host: &Served) -> Vec<Value> {
    let list = host.api().get("/api/v1/audit?limit=1000&outcome=refused").ok();
    let mut rows = list["items"].as_array().expect("items").clone();
    rows.reverse();
    rows
}

fn kinds(rows: &[Value]) -> Vec<&str> {
    rows.iter()
        .map(|row| row["problem"].as_str().and_then(|kind| kind.rsplit(':').next()).expect("a type"))
        .collect()
}

#[test]
fn refusals_before_the_use_cases_are_audited() {
    let host = InProcess::stopped();
    let browser = cookie(&host, &host.token());
    let nobody = host.api().with_token(None);
    let mut answers = Vec::new();
    for proof in [("sec-fetch-site", "cross-site"), ("origin", "http://evil.example"), ("x-nothing", "")] {
        let answer = nobody.send(Method::POST, CORDON, &[("cookie", &browser), proof], None);
        answer.problem(403, "cross-site");
        answers.push(answer);
    }
    let out = nobody.send(Method::POST, "/logout", &[("cookie", &browser)], None);
    out.problem(403, "cross-site");
    answers.push(out);
    let large = json!({"labels": {"text": "x".repeat(2 << 20)}}).to_string();
    let answer = host.api().send(Method::PUT, "/api/v1/tenants/web", &[], Some(large));
    answer.problem(413, "body-too-large");
    answers.push(answer);
    let elsewhere = host.api().send(Method::POST, CORDON, &[("host", "evil.example")], None);
    elsewhere.problem(421, "wrong-host");
    answers.push(elsewhere);

    let rows = refused(&host);
    assert_eq!(
        kinds(&rows),
        ["cross-site", "cross-site", "cross-site", "cross-site", "body-too-large", "wrong-host"]
    );
    for (row, answer) in rows.iter().zip(&answers) {
        assert_eq!(row["request"].as_str(), answer.header("x-request-id"));
        assert_eq!((&row["actor"], &row["origin"]), (&json!("admin token"), &json!("127.0.0.1")));
    }
    let done =
        |row: &Value| format!("{} {}", row["action"].as_str().unwrap(), row["target"].as_str().unwrap());
    assert_eq!(done(&rows[0]), "POST /api/v1/daemons/{name}/cordon daemons/gpu1");
    assert_eq!(done(&rows[4]), "PUT /api/v1/tenants/{name} tenants/web");
}

#[test]
fn oversized_streamed_body_is_audited_once() {
    let host = InProcess::stopped();
    let piece = format!("{:x}\r\n{}\r\n", 1 << 19, "x".repeat(1 << 19));
    let request = format!(
        "PUT /api/v1/tenants/web HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{}0\r\n\r\n",
        host.token(),
        piece.repeat(3)
    );
    Answer::to_bytes(&host.url(), request.as_bytes()).problem(413, "body-too-large");
    let rows = refused(&host);
    assert_eq!(kinds(&rows), ["body-too-large"], "{rows:#?}");
}

#[test]
fn unauthenticated_or_unknown_requests_are_not_audited() {
    let host = InProcess::stopped();
    let nobody = host.api().with_token(None);
    let foreign = [("origin", "http://evil.example")];
    nobody.send(Method::POST, CORDON, &foreign, None).problem(403, "cross-site");
    let over = [("cookie", "mps_manager_session=over"), foreign[0]];
    nobody.send(Method::POST, CORDON, &over, None).problem(403, "cross-site");
    host.api().post("/api/v1/tenants/web", &json!({})).problem(405, "method-not-allowed");
    host.api().put("/api/v1/nowhere", &json!({})).problem(404, "no-such-path");
    // Reading changes nothing, whatever comes of it.
    host.api().get("/api/v1/tenants/none").problem(404, "not-found");
    assert_eq!(refused(&host), Vec::<Value>::new());
}

#[test]
fn refused_dry_run_is_audited_as_such() {
    let host = InProcess::stopped();
    let (id, secret) = made(&host, &json!({"name": "ci", "grant": "viewer"}));
    let viewer = host.api().with_token(Some(&secret));
    viewer.delete("/api/v1/tenants/demo?dry_run=true").problem(403, "forbidden");
    host.api().delete("/api/v1/tenants/demo?dry_run=false&dry_run=true").problem(422, "invalid-request");
    host.api().delete("/api/v1/tenants/none?dry_run=%74rue").problem(404, "not-found");
    host.api().delete("/api/v1/tenants/none?xdry_run=true").problem(422, "invalid-request");
    assert_eq!(host.api().delete("/api/v1/tenants/demo?dry_run=true").status, 204);
    let rows = refused(&host);
    let dry = "DELETE /api/v1/tenants/{name}?dry_run=true";
    let reported: Vec<[&str; 3]> =
        rows.iter().map(|row| ["actor", "action", "target"].map(|key| row[key].as_str().unwrap())).collect();
    let ci = format!("token {id} (ci)");
    assert_eq!(
        reported,
        [
            [&*ci, dry, "tenants/demo"],
            ["admin token", dry, "tenants/demo"],
            ["admin token", dry, "tenants/none"],
            ["admin token", "DELETE /api/v1/tenants/{name}", "tenants/none"],
        ]
    );
    let all = host.api().get("/api/v1/audit?target=tenants/demo&outcome=done").ok();
    assert!(!all.to_string().contains("DELETE"), "a dry run that would do leaves none: {all}");
}

#[test]
fn log_out_everywhere_is_audited_without_sessions() {
    let host = InProcess::stopped();
    assert_eq!(host.api().delete("/api/v1/sessions").status, 204);
    assert_eq!(host.api().over(&host.runtime("api.sock")).delete("/api/v1/sessions").status, 204);
    let rows = host.api().get("/api/v1/audit?target=sessions").ok();
    let rows: Vec<_> =
        rows["items"].as_array().unwrap().iter().map(|row| (&row["action"], &row["origin"])).collect();
    let action = json!("DELETE /api/v1/sessions");
    assert_eq!(rows, [(&action, &json!("socket")), (&action, &json!("127.0.0.1"))]);
}

#[test]
fn dry_run_entity_tag_is_never_reused() {
    let host = InProcess::stopped();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    let web = "/api/v1/tenants/web";
    host.api().tenant("web", &spec).ok();
    let other = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "2G"});
    let gpu1 = host.daemon("gpu1")["spec"].clone();
    let layout = json!({"layout": {"steps": [add("half", 2)]}});
    for (method, path, body) in [
        (Method::PUT, web, Some(&other)),
        (Method::PUT, "/api/v1/tenants/new", Some(&other)),
        (Method::PUT, "/api/v1/daemons/gpu1", Some(&gpu1)),
        (Method::PUT, "/api/v1/layouts/halves", Some(&layout)),
        (Method::POST, CORDON, None),
        (Method::POST, "/api/v1/daemons/gpu1/uncordon", None),
    ] {
        let body = body.map(Value::to_string);
        let dry = host.api().send(method.clone(), &format!("{path}?dry_run=true"), &[], body.clone());
        assert_eq!((dry.status, dry.header("etag")), (200, None), "{path}: {}", dry.text);
        let done = host.api().send(method, path, &[], body);
        assert!(done.status < 300 && done.header("etag").is_some(), "{path}: {}", done.text);
    }
}
