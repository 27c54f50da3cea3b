//! Documents of layouts whose partitions are thread percentages, and their replay: compared by SMs, which CUDA clients see.

use mps_manager::domain::layout::document::Document;
use serde_json::{Value, json};

use super::shares::{THREE, applied, asserted, bare, host_with, partitions, post, sees};
use crate::harness::{Answer, InProcess, Served};

fn exported(host: &Served) -> Value {
    let json = [("accept", "application/json")];
    host.api().send(reqwest::Method::GET, "/api/v1/layouts/main/export?daemon=gpu0", &json, None).ok()
}

/// The document, changed and with a new checksum, as only a manager makes it.
fn resealed(document: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut document = document.clone();
    change(&mut document["layouts"]["main"]["recorded"]);
    document.as_object_mut().expect("fields").remove("checksum");
    let document: Document = serde_json::from_value(document).expect("a document");
    serde_json::to_value(Document::sealed(document.layouts)).expect("text")
}

fn replay(host: &Served, document: &Value) -> Answer {
    host.api().post("/api/v1/replays", &json!({"daemon": "gpu0", "document": document}))
}

/// Waits for a replay that was accepted, and gives its operation and its record.
fn ended(host: &Served, accepted: &Answer) -> (Value, Value) {
    let operation = host.api().outcome(accepted);
    let id = accepted.json()["replay"].as_str().expect("an ID").to_owned();
    (operation, host.api().get(&format!("/api/v1/replays/{id}")).ok())
}

/// Takes the layout out of the daemon's spec, which a percentage layout allows at any time.
fn take_out(host: &Served) {
    let mut spec = host.daemon("gpu0")["spec"].clone();
    spec["layout"] = Value::Null;
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &spec).status, 200);
    host.await_ready();
}

fn all_see(host: &Served) -> [u64; 3] {
    THREE.map(|(tenant, _)| sees(host, tenant))
}

#[test]
fn recorded_sms_are_compared_on_another_host() {
    let first: InProcess = host_with("h200x1@13.0", &THREE);
    let document = exported(&first);
    let recorded = &document["layouts"]["main"]["recorded"];
    let share = |partition: &str, percentage: f64, sms: u32| json!({"partition": partition, "active_thread_percentage": percentage, "sms": sms});
    assert_eq!(
        recorded["shares"],
        json!([share("seven", 42.5, 56), share("five", 30.4, 40), share("three", 18.2, 24)])
    );
    assert_eq!(recorded["ids"], Value::Null, "no IDs are invented");
    let fingerprint = &recorded["fingerprint"];
    assert_eq!((&fingerprint["chunk_count"], &fingerprint["chunk_sms"]), (&json!(15), &json!(8)));
    assert!(!document.to_string().contains("GPU-"), "no UUID of a machine is in it: {document}");
    let there = replay(&first, &document).problem(409, "conflict");
    assert!(there["detail"].as_str().expect("words").contains("seven"), "{there}");

    let second: InProcess = bare("h200x1@13.0", &THREE);
    let (operation, record) = ended(&second, &replay(&second, &document));
    assert_eq!(operation["state"], "succeeded", "{operation}");
    assert_eq!((&record["verdict"], &record["error"]), (&json!("same"), &Value::Null), "{record}");
    assert_eq!((&record["seen"], &record["steps"]), (&recorded["shares"], &json!([])));
    assert_eq!(partitions(&applied(&second)), partitions(&applied(&first)));
    assert_eq!(all_see(&second), [56, 40, 24]);
    assert_eq!(asserted(&second, "main"), (true, vec![]));
    let again = exported(&second);
    assert_eq!(again["layouts"]["main"]["recorded"]["shares"], recorded["shares"]);

    // Without a document there is nothing to compare with.
    take_out(&second);
    assert_eq!(all_see(&second), [132; 3]);
    let here = second.api().post("/api/v1/replays", &json!({"daemon": "gpu0", "layout": "main"}));
    let (_, record) = ended(&second, &here);
    assert_eq!((&record["verdict"], &record["seen"]), (&json!("first"), &recorded["shares"]), "{record}");
    assert_eq!(all_see(&second), [56, 40, 24]);
}

#[test]
fn differing_sms_fail_and_keep_the_daemon() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    let other = resealed(&exported(&host), |recorded| recorded["shares"][1]["sms"] = json!(48));
    take_out(&host);
    let (operation, record) = ended(&host, &replay(&host, &other));
    assert_eq!((&operation["state"], &record["verdict"]), (&json!("failed"), &json!("differs")), "{record}");
    let error = operation["error"].as_str().expect("words");
    for part in ["partition five has 40 SMs", "48 are recorded", "no layout, as before"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!((&record["error"], &record["seen"][1]["sms"]), (&operation["error"], &json!(40)));
    assert_eq!(host.daemon("gpu0")["spec"]["layout"], Value::Null);
    host.await_ready();
    assert_eq!(all_see(&host), [132; 3]);
}

#[test]
fn recording_of_other_hardware_is_refused_first() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    let document = exported(&host);
    take_out(&host);
    for (field, value) in [("simulated", json!(false)), ("chunk_count", json!(14)), ("sms", json!(114))] {
        let other = resealed(&document, |recorded| recorded["fingerprint"][field] = value);
        let problem = replay(&host, &other).problem(409, "fingerprint-differs");
        let pointer = format!("/document/layouts/main/recorded/fingerprint/{field}");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let other: InProcess = bare("a100x1@13.0", &THREE);
    let mut named = document.clone();
    named["layouts"]["main"]["sku"] = json!("NVIDIA H200");
    for document in [document, resealed(&named, |_| {})] {
        let problem = replay(&other, &document).problem(409, "fingerprint-differs");
        assert_eq!(
            problem["errors"][0]["pointer"], "/document/layouts/main/recorded/fingerprint/sku",
            "{problem}"
        );
        let text = problem.to_string();
        assert!(text.contains("H200") && text.contains("A100"), "{text}");
    }
    assert_eq!(other.api().get("/api/v1/replays").ok()["items"], json!([]));
    // A daemon of 13.0 has no static partitions, whatever a layout asks for.
    let ids = json!({"layout": {"steps": [{"add": {"gpu": 0, "partition": "a", "chunks": 1}}]}});
    assert_eq!(host.api().put("/api/v1/layouts/fixed", &ids).status, 201);
    let refused = post(&host, "fixed", "plan").problem(409, "conflict");
    assert!(refused["detail"].as_str().expect("words").contains("13.1"), "{refused}");
}
