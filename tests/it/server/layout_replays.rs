//! Layouts as documents, and their replay on other hosts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mps_manager::domain::layout::document::Document;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{
    add, apply, host, in_static_mode, matches, partitions, post, remove, static_host, target, uuid, write,
};
use crate::harness::scratch::install;
use crate::harness::{Answer, Host, InProcess, MANAGER, Manager, Served, Simulated, eventually, signal};

/// A layout whose IDs depend on the order of its steps.
fn steps() -> Vec<Value> {
    vec![add("web", 7), add("gap", 2), add("batch", 5), remove("gap"), add("tail", 1)]
}

/// The document of what the second daemon holds.
pub(super) fn exported(host: &Served) -> Value {
    export(host).ok()
}

fn export(host: &Served) -> Answer {
    let json = [("accept", "application/json")];
    host.api().send(Method::GET, "/api/v1/layouts/prod/export?daemon=gpu1", &json, None)
}

/// A host that holds the layout `prod`, and the document of it.
fn recorded<M: Manager>() -> (Simulated<M>, Value) {
    let host = host();
    write(&host, "prod", &steps());
    apply(&host, "prod", &json!({}));
    let document = exported(&host);
    (host, document)
}

fn replay(host: &Served, more: &Value) -> Answer {
    host.api().post("/api/v1/replays", &target(more))
}

/// Waits for a replay that was accepted, and gives its operation and its record.
fn ended(host: &Served, accepted: &Answer) -> (Value, Value) {
    let operation = host.api().outcome(accepted);
    let id = accepted.json()["replay"].as_str().expect("an ID").to_owned();
    (operation, host.api().get(&format!("/api/v1/replays/{id}")).ok())
}

/// The document with other words in its fingerprint and a new checksum, as only a manager makes it.
fn with_fingerprint(document: &Value, field: &str, value: Value) -> Value {
    let mut document = document.clone();
    document["layouts"]["prod"]["recorded"]["fingerprint"][field] = value;
    sealed(&document)
}

fn sealed(document: &Value) -> Value {
    let mut document = document.clone();
    document.as_object_mut().expect("fields").remove("checksum");
    let document: Document = serde_json::from_value(document).expect("a document");
    serde_json::to_value(Document::sealed(document.layouts)).expect("text")
}

#[test]
fn identical_host_gives_identical_partition_ids() {
    let (first, document): (InProcess, _) = recorded();
    let recorded = &document["layouts"]["prod"]["recorded"];
    assert_eq!(recorded["ids"].as_array().unwrap().len(), 5);
    let fingerprint = &recorded["fingerprint"];
    assert_eq!((&fingerprint["simulated"], &fingerprint["chunk_count"]), (&json!(true), &json!(15)));
    assert_eq!((&fingerprint["sms"], &fingerprint["binary_version"]), (&json!(132), &json!(13010)));
    assert_eq!(
        (&recorded["provenance"]["daemon"], &recorded["provenance"]["author"]),
        (&json!("gpu1"), &json!("admin token"))
    );
    assert!(!document.to_string().contains(&uuid(&first, 1)), "no UUID of a machine is in it");

    let second: InProcess = static_host("h200x2");
    assert_ne!(uuid(&first, 1), uuid(&second, 1));
    let dry = second.api().post("/api/v1/replays?dry_run=true", &target(&json!({"document": document})));
    assert_eq!((dry.status, partitions(&second).len()), (200, 0));
    let (operation, record) = ended(&second, &replay(&second, &json!({"document": document})));
    assert_eq!(operation["state"], "succeeded", "{operation}");
    assert_eq!(
        (&record["verdict"], &record["cause"], &record["error"]),
        (&json!("same"), &json!("requested"), &json!(null))
    );
    let taken = record["steps"].as_array().unwrap();
    assert_eq!(taken.len(), 5);
    for (step, id) in taken.iter().zip(recorded["ids"].as_array().unwrap()) {
        assert_eq!(step["id"], *id, "{step}");
        assert!(step["change"] == "remove" || step["expected"] == *id, "{step}");
        assert!(
            step["duration_us"].is_u64() && step["command"].as_str().unwrap().starts_with("sm_partition")
        );
    }
    assert_eq!(
        (&record["operation"], &record["provenance"]["host"]),
        (&operation["id"], &recorded["provenance"]["host"])
    );
    assert!(record["duration_us"].is_u64() && record["finished_at"].is_string());
    assert_eq!(partitions(&second), partitions(&first));
    assert!(matches(&first, "prod") && matches(&second, "prod"));
    assert_eq!(second.api().get("/api/v1/replays").ok()["items"], json!([record]));
    assert_eq!(second.api().get("/api/v1/layouts/prod").ok()["newest"]["author"], "admin token");
    // What was replayed is recorded there, and can be changed from there.
    let again = exported(&second);
    assert_eq!(again["layouts"]["prod"]["recorded"]["ids"], recorded["ids"]);
}

#[test]
fn other_die_stops_at_first_differing_step() {
    let (_first, document): (InProcess, _) = recorded();
    let other: InProcess = static_host("h200x2@13.1:gpcs=9.9.8.9.9.4.9.9");
    let (operation, record) = ended(&other, &replay(&other, &json!({"document": document})));
    assert_eq!(operation["state"], "failed");
    assert_eq!(record["verdict"], "differs", "{record}");
    let taken = record["steps"].as_array().unwrap();
    let differs =
        |step: &&Value| step["undo"] == false && step["change"] == "add" && step["expected"] != step["id"];
    let first = taken.iter().find(differs).unwrap();
    let error = operation["error"].as_str().unwrap();
    for part in [first["expected"].as_str().unwrap(), first["id"].as_str().unwrap(), "no layout, as before"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(taken.iter().filter(differs).count(), 1, "it stopped there");
    assert!(taken.iter().any(|step| step["undo"] == true));
    assert_eq!(record["error"], operation["error"]);
    assert_eq!(partitions(&other), []);
    assert_eq!(other.daemon("gpu1")["spec"].get("layout"), None);
    other.await_phase("gpu1", "ready");
    // Applied, its own IDs are taken as they come.
    apply(&other, "prod", &json!({}));
    assert!(matches(&other, "prod"));
}

#[test]
fn incomparable_replay_is_refused_before_any_command() {
    let (host, document): (InProcess, _) = recorded();
    let sent = || host.logged("gpu1", "sm_partition");
    let before = sent();
    let there = replay(&host, &json!({"document": document})).problem(409, "conflict");
    assert!(there["detail"].as_str().unwrap().contains(&partitions(&host)[0].1), "{there}");
    write(&host, "empty", &[]);
    apply(&host, "empty", &json!({"gpu_map": {}}));
    let emptied = sent();
    assert!(emptied > before);

    for (field, value) in [
        ("simulated", json!(false)),
        ("sku", json!("NVIDIA H100")),
        ("sms", json!(114)),
        ("chunk_sms", json!(4)),
        ("chunk_count", json!(14)),
    ] {
        let other = with_fingerprint(&document, field, value);
        for force in [false, true] {
            let problem = replay(&host, &json!({"document": other, "force": force}));
            let problem = problem.problem(409, "fingerprint-differs");
            assert_eq!(
                problem["errors"][0]["pointer"],
                format!("/document/layouts/prod/recorded/fingerprint/{field}"),
                "{problem}"
            );
        }
    }
    let newer = with_fingerprint(&document, "driver_version", json!("999.1"));
    let problem = replay(&host, &json!({"document": newer})).problem(409, "fingerprint-differs");
    assert!(problem["errors"][0]["detail"].as_str().unwrap().contains("force"), "{problem}");

    let mut edited = document.clone();
    edited["layouts"]["prod"]["steps"][0]["add"]["chunks"] = json!(6);
    let mut unsealed = edited.clone();
    unsealed.as_object_mut().unwrap().remove("checksum");
    let mut schema = document.clone();
    schema["version"] = json!("v2");
    let two = {
        let mut layouts: BTreeMap<String, Value> = BTreeMap::new();
        for name in ["a", "b"] {
            layouts.insert(name.into(), json!({"steps": [add("web", 1)]}));
        }
        json!({"version": "v1", "layouts": layouts})
    };
    for (body, pointer) in [
        (json!({"document": edited}), "/document/checksum"),
        (json!({"document": unsealed}), "/document/checksum"),
        (json!({"document": schema}), "/document/version"),
        (json!({"document": two}), "/entry"),
        (json!({"document": two, "entry": "c"}), "/entry"),
        (json!({"document": document, "layout": "prod"}), "/layout"),
        (json!({"document": document, "version": 1}), "/version"),
        (json!({"layout": "prod", "entry": "prod"}), "/entry"),
        (json!({}), "/document"),
    ] {
        let problem = replay(&host, &body).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    assert_eq!((sent(), partitions(&host).len()), (emptied, 0));
    assert_eq!(host.api().get("/api/v1/replays").ok()["items"], json!([]));

    // Another version is passed over when it is said, and stays recorded.
    let (operation, record) = ended(&host, &replay(&host, &json!({"document": newer, "force": true})));
    assert_eq!(operation["state"], "succeeded", "{operation}");
    assert_eq!(
        (&record["verdict"], &record["forced"][0]["field"]),
        (&json!("same"), &json!("driver_version"))
    );
}

#[test]
fn local_layout_is_replayed_and_recorded() {
    let host: InProcess = host();
    write(&host, "prod", &steps());
    let (_, first) = ended(&host, &replay(&host, &json!({"layout": "prod"})));
    assert_eq!((&first["verdict"], &first["expected"]), (&json!("first"), &json!(null)));
    let made = partitions(&host);
    assert_eq!(made.len(), 3);
    // The record of a daemon is of the layout that it holds last.
    write(&host, "empty", &[]);
    apply(&host, "empty", &json!({"gpu_map": {}}));
    let (_, again) = ended(&host, &replay(&host, &json!({"layout": "prod", "version": 1})));
    assert_eq!(again["verdict"], "first");
    assert_eq!(partitions(&host), made, "the same steps from empty give the same IDs");
    let listed = host.api().get("/api/v1/replays?limit=1").ok();
    assert_eq!(listed["items"][0]["id"], again["id"]);
    host.api().get("/api/v1/replays/00000000-0000-7000-8000-000000000000").problem(404, "not-found");
}

#[test]
fn documents_are_imported_and_exported_again() {
    let (host, document): (InProcess, _) = recorded();
    let send = |path: &str, mime: &str, text: String| {
        host.api().send_text(Method::POST, &format!("/api/v1/layouts/{path}"), mime, text)
    };
    // The same says nothing new, whatever it is written as.
    let yaml = host.api().send(
        Method::GET,
        "/api/v1/layouts/prod/export?daemon=gpu1",
        &[("accept", "application/yaml")],
        None,
    );
    assert_eq!(yaml.header("content-type"), Some("application/yaml"));
    let imported = send("import", "application/yaml", yaml.text.clone()).ok();
    assert_eq!(imported["items"][0]["newest"]["version"], 1);
    let mut bare = json!({"version": "v1", "layouts": {"prod": {"steps": [add("web", 3)]}, "new": {"steps": steps(), "note": "why"}}});
    let imported = send("import", "application/json", bare.to_string()).ok();
    let versions: Vec<(&Value, &Value)> = imported["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (&one["newest"]["name"], &one["newest"]["version"]))
        .collect();
    assert_eq!(versions, [(&json!("new"), &json!(1)), (&json!("prod"), &json!(2))]);
    assert_eq!(host.api().get("/api/v1/layouts/new").ok()["newest"]["note"], "why");

    let before = host.api().get("/api/v1/layouts").ok();
    let mut edited = document;
    edited["layouts"]["prod"]["steps"][0]["add"]["chunks"] = json!(6);
    let mut unsealed = edited.clone();
    unsealed.as_object_mut().unwrap().remove("checksum");
    let with = |field: &str, text: &str| {
        let mut document = bare.clone();
        document["layouts"]["new"][field] = json!(text);
        document.to_string()
    };
    let (note, long_note) = (with("note", "a\u{1b}[2Jb"), with("note", &"x".repeat(1025)));
    let (sku, long_sku) = (with("sku", ""), with("sku", &"x".repeat(97)));
    bare["layouts"]["new"]["steps"] = json!([add("a", 0)]);
    for (path, mime, text, status) in [
        ("import", "application/json", edited.to_string(), 422),
        ("import", "application/json", bare.to_string(), 422),
        ("import", "application/json", unsealed.to_string(), 422),
        ("import", "application/json", note, 422),
        ("import", "application/json", long_note, 422),
        ("import", "application/json", sku, 422),
        ("import", "application/json", long_sku, 422),
        ("import", "application/json", yaml.text.replace("version: v1", "version: v9"), 422),
        ("import", "application/yaml", yaml.text.replace("version: v1", "version: v9"), 422),
        ("import?name=x", "application/json", "{}".into(), 422),
        ("import", "text/html", "<p>".into(), 415),
        ("import", "text/x-shellscript", "sm_partition add 0 7\n".into(), 415),
    ] {
        let refused = send(path, mime, text);
        assert_eq!(refused.status, status, "{}", refused.text);
        assert!(refused.json()["detail"].is_string());
    }
    assert_eq!(host.api().get("/api/v1/layouts").ok(), before);
    // What a daemon does not hold is not recorded of it.
    host.api().get("/api/v1/layouts/new/export?daemon=gpu1").problem(409, "conflict");
    host.api().get("/api/v1/layouts/none/export?daemon=gpu1").problem(409, "conflict");
    assert_eq!(post(&host, "prod", "assert", &json!({"version": 1})).ok()["matches"], true);
}

#[test]
fn other_sku_is_refused_with_every_field() {
    let (_first, document): (InProcess, _) = recorded();
    let mut named = document.clone();
    named["layouts"]["prod"]["sku"] = json!("NVIDIA H200");
    let mut both = named.clone();
    // A role for which this host has no GPU of that name at all.
    both["layouts"]["prod"]["steps"][0]["add"]["gpu"] = json!(7);
    let other: InProcess = static_host("a100x4@13.1");
    let fields = ["sku", "sms", "chunk_sms", "chunk_count"];
    for document in [document, sealed(&named), sealed(&both)] {
        for (map, force) in [(json!({"0": "1"}), false), (json!({"0": "1"}), true), (json!({}), false)] {
            let refused = replay(&other, &json!({"document": document, "gpu_map": map, "force": force}));
            let problem = refused.problem(409, "fingerprint-differs");
            let pointers: Vec<&str> = problem["errors"]
                .as_array()
                .unwrap()
                .iter()
                .map(|error| error["pointer"].as_str().unwrap().rsplit('/').next().unwrap())
                .collect();
            assert_eq!(pointers, fields, "{problem}");
            let detail = problem["errors"][0]["detail"].as_str().unwrap();
            assert!(detail.contains("H200") && detail.contains("A100"), "{detail}");
        }
    }
    // What is wrong with the map alone is still said of the map.
    let same: InProcess = static_host("h200x2");
    let elsewhere = replay(&same, &json!({"document": sealed(&named), "gpu_map": {"0": "0"}}));
    let problem = elsewhere.problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/gpu_map", "{problem}");
    assert_eq!(other.logged("gpu1", "sm_partition"), 0);
}

#[test]
fn only_ids_of_running_daemon_are_exported() {
    let (mut host, document): (Host, _) = recorded();
    let ids = document["layouts"]["prod"]["recorded"]["ids"].clone();
    // What another program has made since changes nothing about what the steps gave.
    host.control("gpu1", &format!("sm_partition add {} 1", uuid(&host, 1)));
    eventually("it is noticed", || {
        (host.daemon("gpu1")["status"]["layout"]["state"] == "drifted").then_some(())
    });
    assert_eq!(exported(&host)["layouts"]["prod"]["recorded"]["ids"], ids);

    // As after an upgrade of the driver under which the steps give other IDs.
    let file = host.runtime("sim/world.json");
    let before = fs::read_to_string(&file).unwrap();
    let mut world: Value = serde_json::from_str(&before).unwrap();
    world["gpus"][1]["gpcs"].as_array_mut().unwrap().reverse();
    world["driver_version"] = json!("999.1");
    let killed = host.daemon_pid("gpu1");
    host.end_manager(Signal::TERM);
    signal(killed, Signal::KILL);
    fs::write(&file, world.to_string()).unwrap();
    host.serve();
    host.await_phase("gpu1", "blocked");
    let refused = export(&host).problem(409, "conflict");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("is not in force") && detail.contains("is recorded"), "{detail}");

    // It is in force again where its steps give the recorded IDs again.
    host.end_manager(Signal::TERM);
    fs::write(&file, before).unwrap();
    host.serve();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    host.await_phase("gpu1", "ready");
    let again = exported(&host);
    let recorded = &again["layouts"]["prod"]["recorded"];
    assert_eq!(
        (&recorded["ids"], &recorded["fingerprint"]),
        (&ids, &document["layouts"]["prod"]["recorded"]["fingerprint"])
    );
}

#[test]
fn export_is_refused_until_replaced_program_runs() {
    let mut host = Host::new("");
    let installed = host.dir().join("mps-manager");
    install(Path::new(MANAGER), &installed);
    host.serve_from(&installed);
    host.await_ready();
    in_static_mode(&host);
    write(&host, "prod", &steps());
    apply(&host, "prod", &json!({}));
    let before = exported(&host);
    let new = host.dir().join("mps-manager.new");
    install(Path::new(MANAGER), &new);
    fs::rename(&new, &installed).unwrap();
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    host.serve_from(&installed);
    host.await_ready();
    let refused = export(&host).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("restart the daemon"), "{refused}");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    host.await_phase("gpu1", "ready");
    assert_eq!(
        exported(&host)["layouts"]["prod"]["recorded"]["ids"],
        before["layouts"]["prod"]["recorded"]["ids"]
    );
}

#[test]
fn replay_keeps_the_daemons_drift_policy() {
    let (host, document): (InProcess, _) = recorded();
    write(&host, "empty", &[]);
    apply(&host, "empty", &json!({"gpu_map": {}, "drift_policy": "repair"}));
    let (operation, record) = ended(&host, &replay(&host, &json!({"document": document})));
    assert_eq!((&operation["state"], &record["verdict"]), (&json!("succeeded"), &json!("same")), "{record}");
    let layout = &host.daemon("gpu1")["spec"]["layout"];
    assert_eq!((&layout["name"], &layout["drift_policy"]), (&json!("prod"), &json!("repair")), "{layout}");
}
