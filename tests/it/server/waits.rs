//! Writes and reads that wait for the effect, and changes of single fields.

use std::{fs, thread};

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, InProcess, eventually};

const WEB: &str = "/api/v1/tenants/web";

fn patch(host: &InProcess, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
    host.api().send(Method::PATCH, path, headers, Some(body.to_string()))
}

/// A stopped host with tenant web on gpu0.
fn with_web() -> InProcess {
    let host = InProcess::stopped();
    let spec = json!({
        "daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "max_clients": 2, "labels": {"team": "ml", "tier": "prod"}
    });
    assert_eq!(host.api().put(WEB, &spec).status, 201);
    host
}

#[test]
fn patch_changes_named_fields_alone() {
    let host = with_web();
    let before = host.api().get(WEB).ok()["spec"].clone();
    for (body, field, value) in [
        (json!({"max_clients": 3}), "/max_clients", json!(3)),
        (json!({"max_clients": null}), "/max_clients", Value::Null),
        (json!({"device_memory_limit": "2G"}), "/device_memory_limit", json!(2_u64 << 30)),
        (json!({"labels": {"team": null, "zone": "a"}}), "/labels", json!({"tier": "prod", "zone": "a"})),
        (json!({}), "/uid", json!(0)),
    ] {
        let dry = patch(&host, &format!("{WEB}?dry_run=true"), &[], &body).ok();
        let unchanged = host.api().get(WEB).ok()["spec"].clone();
        let changed = patch(&host, WEB, &[], &body).ok();
        assert_eq!(dry["spec"], changed["spec"], "{body}");
        assert_eq!(changed["spec"].pointer(field).unwrap_or(&Value::Null), &value, "{body}: {changed}");
        let root = format!("/{}", field.split('/').nth(1).unwrap());
        for name in before.as_object().unwrap().keys().filter(|name| format!("/{name}") != root) {
            assert_eq!(changed["spec"][name], unchanged[name], "{body}: {name} stays");
        }
    }
    let daemon =
        patch(&host, "/api/v1/daemons/gpu0", &[], &json!({"defaults": {"priority": "below_normal"}})).ok();
    assert_eq!(daemon["spec"]["defaults"]["priority"], "below_normal", "{daemon}");
    assert!(!daemon["spec"]["gpus"].as_array().unwrap().is_empty(), "{daemon}");
}

#[test]
fn impossible_patches_change_nothing() {
    let host = with_web();
    let before = host.api().get(WEB).ok();
    for (body, pointer) in [
        (json!({"max_clients": 0}), "/max_clients"),
        (json!({"nonsense": 1}), "/nonsense"),
        (json!({"labels": {"a": 7}}), "/labels/a"),
        (json!({"daemon": null}), "/daemon"),
        (json!([{"op": "replace", "path": "/uid", "value": 1}]), ""),
    ] {
        let problem = patch(&host, WEB, &[], &body).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
    }
    patch(&host, WEB, &[("if-match", "\"7\"")], &json!({})).problem(412, "precondition-failed");
    patch(&host, "/api/v1/tenants/nobody", &[], &json!({})).problem(404, "not-found");
    let plain = [("content-type", "text/plain")];
    patch(&host, WEB, &plain, &json!({})).problem(415, "not-json");
    assert_eq!(host.api().get(WEB).ok()["generation"], before["generation"]);
}

#[test]
fn patches_beside_each_other_all_land() {
    let host = with_web();
    thread::scope(|scope| {
        for number in 0..4 {
            let host = &host;
            scope.spawn(move || {
                patch(host, WEB, &[], &json!({"labels": {format!("of{number}"): "here"}})).ok()
            });
        }
    });
    let labels = host.api().get(WEB).ok()["spec"]["labels"].clone();
    assert_eq!((0..4).filter(|number| labels[format!("of{number}")] == "here").count(), 4, "{labels}");
}

#[test]
fn user_of_tenant_has_no_default() {
    let host = InProcess::stopped();
    let spec = json!({"daemon": "gpu0", "device_memory_limit": "1G"});
    let problem = host.api().put(WEB, &spec).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/uid", "{problem}");
    let file = "version: v1\ntenants: {web: {daemon: gpu0}}\n".to_owned();
    let refused = host.api().send_text(Method::PUT, "/api/v1/host/spec", "application/yaml", file);
    let problem = refused.problem(422, "invalid-request");
    assert!(problem.to_string().contains("uid"), "{problem}");
    host.api().get(WEB).problem(404, "not-found");
}

#[test]
fn tenants_are_selected_by_label() {
    let host = with_web();
    for (name, labels) in
        [("a", json!({"team": "ml"})), ("b", json!({"tier": "prod", "o'clock": "5"})), ("c", json!({}))]
    {
        assert_eq!(
            host.api().tenant(name, &json!({"daemon": "gpu1", "uid": 0, "labels": labels})).status,
            201
        );
    }
    for (selector, expected) in [
        ("team=ml", vec!["a", "web"]),
        ("tier", vec!["b", "web"]),
        ("team%3Dml%2Ctier%3Dprod", vec!["web"]),
        ("team=ml,team2", vec![]),
        ("o%27clock=5", vec!["b"]),
        ("team=", vec![]),
    ] {
        let listed = host.api().get(&format!("/api/v1/tenants?labels={selector}")).ok();
        let names: Vec<&str> =
            listed["items"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
        assert_eq!(names, expected, "{selector}");
    }
    for wrong in ["", "=ml", "a,,b"] {
        let problem =
            host.api().get(&format!("/api/v1/tenants?labels={wrong}")).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/labels", "{problem}");
    }
}

#[test]
fn writes_and_reads_wait_for_the_effect() {
    let host = InProcess::ready();
    let spec = |limit: &str| json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": limit});
    let file = host.runtime("env/web.env");
    for (limit, mib) in [("4G", "=4096M"), ("5G", "=5120M"), ("5G", "=5120M")] {
        let written = host.api().put(&format!("{WEB}?wait_s=30"), &spec(limit));
        let view = written.json();
        assert_eq!(view["status"]["conditions"][0]["status"], json!(true), "{view}");
        assert_eq!(view["status"]["observed_generation"], view["generation"], "{view}");
        let text = fs::read_to_string(&file).expect("written by then");
        assert!(text.contains(mib), "{limit}: {text}");
        let tag = written.header("etag").unwrap().to_owned();
        let unchanged = host.api().send(Method::GET, WEB, &[("if-none-match", &tag)], None);
        assert_eq!(unchanged.status, 304, "its tag is that of a read: {tag}");
    }
    assert_eq!(host.api().delete(WEB).status, 204);
    eventually("the file goes with its tenant", || (!file.exists()).then_some(()));
    host.api().put(&format!("{WEB}?wait_s=30"), &spec("5G"));
    let verified = host.api().post(&format!("{WEB}/verify?wait_s=60"), &json!({}));
    let status = verified.status;
    let verified = verified.json();
    assert_eq!((status, &verified["running_since"]), (200, &Value::Null));
    let comparisons = verified["last"]["comparisons"].as_array().unwrap();
    let of = |setting: &str| comparisons.iter().find(|one| one["setting"] == setting).unwrap();
    assert_eq!((&of("mps")["seen"], &of("priority")["expected"]), (&json!(true), &json!("normal")));
    assert!(of("sms")["seen"].is_u64() && of("largest_allocation")["expected"].is_u64(), "{comparisons:?}");
    assert_eq!(of("gpus")["seen"], host.daemon("gpu0")["spec"]["gpus"]);
    let restart = host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({}));
    let place = restart.header("location").unwrap().to_owned();
    assert_eq!(host.api().get(&format!("{place}?wait_s=60")).ok()["state"], "succeeded");
    assert_eq!(host.api().get("/api/v1/daemons/gpu1?wait_s=60").ok()["status"]["phase"], "ready");
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    // It would last for ever: so it is not waited for.
    let cordoned = host.api().get(&format!("{WEB}?wait_s=60")).ok();
    assert_eq!(cordoned["status"]["conditions"][0]["reason"], "Cordoned", "{cordoned}");
    let problem = host.api().get(&format!("{WEB}?wait_s=61")).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/wait_s", "{problem}");
}

#[test]
fn operations_are_listed_since_a_time() {
    let host = InProcess::ready();
    let of = |daemon: &str| {
        let accepted = host.api().post(&format!("/api/v1/daemons/{daemon}/restart?grace_s=1"), &json!({}));
        host.api().succeeds(&accepted)
    };
    let (earlier, later) = (of("gpu0"), of("gpu1"));
    let since = |time: &Value| {
        let listed = host.api().get(&format!("/api/v1/operations?since={}", time.as_str().unwrap())).ok();
        listed["items"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(since(&later["created_at"]), [later["id"].clone()]);
    assert_eq!(since(&earlier["created_at"]), [later["id"].clone(), earlier["id"].clone()]);
    assert!(since(&json!("2999-01-01T00:00:00Z")).is_empty());
}
