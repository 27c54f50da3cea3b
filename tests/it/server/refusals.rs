//! Values that MPS would misread, and all else that is refused: named, remedied, and sent to nobody.

use serde_json::{Value, json};

use crate::harness::{Answer, InProcess, Served};

/// What must not change by a request that is refused.
struct Before {
    tenants: Value,
    daemons: Vec<(Value, Value)>,
    changes: usize,
}

fn state(host: &Served) -> Before {
    let daemons = ["gpu0", "gpu1"].map(|name| {
        // After a poll that begins now nothing that a request caused is still in progress.
        let daemon = host.api().get(&format!("/api/v1/daemons/{name}?fresh=true")).ok();
        (daemon["generation"].clone(), daemon["spec"].clone())
    });
    let specs = |tenant: &Value| json!([tenant["name"], tenant["generation"], tenant["spec"]]);
    let tenants = host.api().get("/api/v1/tenants").ok();
    Before {
        tenants: tenants["items"].as_array().expect("items").iter().map(specs).collect(),
        daemons: daemons.to_vec(),
        changes: host.changes("gpu0") + host.changes("gpu1"),
    }
}

fn assert_unchanged(host: &Served, before: &Before) {
    let now = state(host);
    assert_eq!(now.tenants, before.tenants);
    assert_eq!(now.daemons, before.daemons);
    assert_eq!(now.changes, before.changes, "something was sent to a daemon");
}

/// The one field that a refusal names, with the words for it.
fn named(answer: &Answer) -> (String, String) {
    let problem = answer.json();
    let errors = problem["errors"].as_array().expect("errors");
    assert_eq!(errors.len(), 1, "{problem}");
    let text = |key: &str| errors[0][key].as_str().expect("text").to_owned();
    (text("pointer"), text("detail"))
}

#[test]
fn misreadable_value_is_refused_with_remedy() {
    let host = InProcess::ready();
    let before = state(&host);
    let memory = "whole MiB";
    let percent = "above 0 and up to 100";
    for (field, value, shown, remedy) in [
        ("device_memory_limit", json!("512K"), "512K", "the nearest is 1M"),
        ("device_memory_limit", json!("2T"), "2097152 MiB", memory),
        ("device_memory_limit", json!("0"), "0", memory),
        ("device_memory_limit", json!(0), "0", memory),
        ("device_memory_limit", json!("-1"), "-1", memory),
        ("device_memory_limit", json!(-1), "-1", memory),
        ("device_memory_limit", json!("1.3G"), "1.3G", "1331M and 1332M"),
        ("device_memory_limit", json!(1.5), "1.5", "\"4G\""),
        ("device_memory_limit", json!("nan"), "nan", memory),
        ("device_memory_limit", json!("4  G"), "4  G", memory),
        ("device_memory_limit", json!("banana"), "banana", memory),
        ("device_memory_limit", json!(1_000_000), "1000000", memory),
        ("device_memory_limit", json!("2000000G"), "2048000000", memory),
        ("active_thread_percentage", json!("nan"), "nan", percent),
        ("active_thread_percentage", json!("50%"), "50%", percent),
        ("active_thread_percentage", json!(101), "101", percent),
        ("active_thread_percentage", json!("101"), "101", percent),
        ("active_thread_percentage", json!(0), "0", percent),
        ("active_thread_percentage", json!(-1), "-1", percent),
        ("active_thread_percentage", json!(33.33), "33.33", percent),
        ("active_thread_percentage", json!("1e1"), "1e1", percent),
    ] {
        let spec = json!({"daemon": "gpu1", field: value});
        let answer = host.api().tenant("bad", &spec);
        answer.problem(422, "invalid-request");
        let (pointer, detail) = named(&answer);
        assert_eq!(pointer, format!("/{field}"), "{spec}");
        assert!(detail.contains(shown), "{spec}: {detail}");
        assert!(detail.contains(remedy), "{spec}: {detail}");
    }
    assert_unchanged(&host, &before);
}

#[test]
fn a_wrong_field_is_named_by_its_pointer() {
    let host = InProcess::ready();
    let before = state(&host);
    let uuid = host.api().get("/api/v1/gpus/0").ok()["uuid"].clone();
    for (status, spec, pointer, shown) in [
        (422, json!({"daemon": "gpu1", "colour": "red"}), "/colour", "colour"),
        (422, json!({"daemon": "Gpu1"}), "/daemon", "\"Gpu1\""),
        (422, json!({"daemon": "gpu7", "uid": 0}), "/daemon", "gpu7"),
        (422, json!({"daemon": "gpu1", "uid": 0, "gpus": ["9"]}), "/gpus", "there is no GPU 9"),
        (422, json!({"daemon": "gpu1", "uid": 0, "gpus": ["GPU-00000000"]}), "/gpus", "GPU-00000000"),
        (422, json!({"daemon": "gpu1", "uid": 0, "gpus": ["1", 1.5]}), "/gpus/1", "1.5"),
        (409, json!({"daemon": "gpu1", "uid": 0, "gpus": [uuid]}), "/gpus", "does not offer"),
        (409, json!({"daemon": "gpu1", "uid": 0, "sms": 33}), "/sms", "32 and 34"),
        (
            422,
            json!({"daemon": "gpu1", "uid": 0, "sms": 32, "active_thread_percentage": 25}),
            "/sms",
            "exclude each other",
        ),
        (422, json!({"daemon": "gpu1", "uid": 0, "max_clients": 0}), "/max_clients", "at least 1"),
        (422, json!({"daemon": "gpu1", "uid": 0, "max_clients": 61}), "/max_clients", "at most that"),
        (422, json!({"daemon": "gpu1", "uid": 4_294_967_295_u32}), "/uid", "no user"),
        (422, json!({"daemon": "gpu1", "uid": -1}), "/uid", "-1"),
        (422, json!({"daemon": "gpu1", "uid": 0, "priority": "high"}), "/priority", "below_normal"),
        (422, json!({"daemon": "gpu1", "uid": 0, "labels": {"a": 1}}), "/labels/a", "give a text"),
    ] {
        let answer = host.api().tenant("bad", &spec);
        assert_eq!(answer.status, status, "{spec}: {}", answer.text);
        let (at, detail) = named(&answer);
        assert_eq!(at, pointer, "{spec}: {detail}");
        assert!(detail.contains(shown), "{spec}: {detail}");
    }
    let missing = host.api().tenant("bad", &json!({})).problem(422, "invalid-request");
    assert!(missing["detail"].as_str().unwrap().contains("daemon"), "{missing}");
    assert_unchanged(&host, &before);
}

/// Text that is stored and shown holds nothing that is not seen, and nothing that turns its direction.
#[test]
fn invisible_text_is_refused_everywhere() {
    let host = InProcess::stopped();
    let steps = json!([{"add": {"partition": "a", "gpu": 0, "chunks": 1}}]);
    for hostile in ["\u{202e}", "\u{2067}", "\u{200b}", "\u{2060}", "\u{feff}", "\u{e0041}", "\u{1b}"] {
        let text = format!("a{hostile}b");
        let layout = |sku: &str, note: &str| json!({"layout": {"sku": sku, "steps": steps}, "note": note});
        let file = |note: &str| json!({"version": "v1", "layouts": {"l": {"note": note, "steps": steps}}});
        for (answer, pointer) in [
            (host.api().tenant("t", &json!({"daemon": "gpu0", "uid": 0, "labels": {"a": text}})), "/labels"),
            (
                host.api().tenant("t", &json!({"daemon": "gpu0", "uid": 0, "labels": {text.as_str(): "a"}})),
                "/labels",
            ),
            (host.api().put("/api/v1/layouts/l", &layout(&text, "a")), "/layout/sku"),
            (host.api().put("/api/v1/layouts/l", &layout("NVIDIA H200", &text)), "/note"),
            (host.api().post("/api/v1/layouts/import", &file(&text)), "/layouts/l/note"),
            (host.api().put("/api/v1/host/spec", &file(&text)), "/layouts/l/note"),
            (host.api().post("/api/v1/incidents/1/acknowledge", &json!({"note": text})), "/note"),
            (host.api().post("/api/v1/tokens", &json!({"name": text, "grant": "viewer"})), "/name"),
        ] {
            assert_eq!(answer.status, 422, "{hostile:?} at {pointer}: {}", answer.text);
            assert_eq!(named(&answer).0, pointer, "{hostile:?}: {}", answer.text);
        }
    }
    let plain = json!({"layout": {"sku": "NVIDIA H200", "steps": steps}, "note": "für 東京\nשלום"});
    let made = host.api().put("/api/v1/layouts/l", &plain);
    assert_eq!(made.status, 201, "{}", made.text);
}

#[test]
fn a_name_that_is_not_allowed_is_refused() {
    let host = InProcess::ready();
    let before = state(&host);
    let long = "x".repeat(64);
    for name in ["Web", "1web", "web-", "_web", "w%20b", "%C3%A4", long.as_str()] {
        let problem =
            host.api().tenant(name, &json!({"daemon": "gpu1", "uid": 0})).problem(422, "invalid-request");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("lower-case letters, digits, hyphens and underscores"), "{name}: {detail}");
        host.api()
            .put(&format!("/api/v1/daemons/{name}"), &json!({"gpus": ["1"]}))
            .problem(422, "invalid-request");
    }
    assert_unchanged(&host, &before);
}

#[test]
fn a_daemon_that_cannot_be_is_refused() {
    let host = InProcess::ready();
    let before = state(&host);
    let long = "x".repeat(63);
    for (status, name, spec, shown) in [
        (422, "d", json!({"gpus": []}), "at least one GPU"),
        (422, "d", json!({"gpus": ["0", "0"]}), "named twice"),
        (422, "d", json!({"gpus": ["5"]}), "there is no GPU 5"),
        (422, "d", json!({"gpus": ["1"], "memory_overcommit": 0.5}), "over-commit"),
        (422, "d", json!({"gpus": ["1"], "defaults": {"device_memory_limit": "512K"}}), "512K"),
        (422, "d", json!({"gpus": ["1"], "speed": 1}), "speed"),
        (409, long.as_str(), json!({"gpus": ["1"]}), "--runtime-dir"),
        (409, "d", json!({"gpus": ["1"]}), "belongs to daemon gpu1"),
    ] {
        let answer = host.api().put(&format!("/api/v1/daemons/{name}"), &spec);
        assert_eq!(answer.status, status, "{spec}: {}", answer.text);
        let detail = answer.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(shown), "{spec}: {detail}");
    }
    assert_unchanged(&host, &before);
}

#[test]
fn names_differing_in_hyphens_only_are_refused() {
    let host = InProcess::stopped();
    let tenant = json!({"daemon": "gpu1", "uid": 0});
    assert_eq!(host.api().tenant("web-prod", &tenant).status, 201);
    let layout = json!({"layout": {"steps": [{"add": {"gpu": 0, "partition": "a-b", "chunks": 1}}]}});
    assert_eq!(host.api().put("/api/v1/layouts/lab-1", &layout).status, 201);
    let before = state(&host);
    for (path, body, there) in
        [("tenants/web_prod", &tenant, "tenant web-prod"), ("layouts/lab_1", &layout, "layout lab-1")]
    {
        let problem = host.api().put(&format!("/api/v1/{path}"), body).problem(409, "conflict");
        assert!(problem["detail"].as_str().unwrap().contains(there), "{problem}");
    }
    let step = |name: &str| json!({"add": {"gpu": 0, "partition": name, "chunks": 1}});
    let alike = json!({"layout": {"steps": [step("a-b"), step("a_b")]}});
    let problem = host.api().put("/api/v1/layouts/other", &alike).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/layout/steps/1/add/partition", "{problem}");
    assert_unchanged(&host, &before);
    // The same name is the same thing.
    assert_eq!(host.api().tenant("web-prod", &tenant).status, 200);
}

#[test]
fn sizes_are_answered_as_understood() {
    let host = InProcess::stopped();
    for (text, bytes) in [("1.5 GiB", 3_u64 << 29), ("2gb", 2 << 30), ("512M", 512 << 20)] {
        let answer =
            host.api().tenant("sized", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": text}));
        assert_eq!(answer.json()["spec"]["device_memory_limit"], bytes, "{text}: {}", answer.text);
    }
}
