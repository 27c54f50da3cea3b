//! Databases of earlier versions, as their managers left them.

use std::fs;

use serde_json::json;

use crate::harness::Host;

const FIRST: &str = include_str!("../../fixtures/databases/schema-1.sql");

/// The seed of the simulated host that a database was made on.
fn seed_of(dump: &str) -> &str {
    dump.split("with the seed ").nth(1).and_then(|rest| rest.split('.').next()).unwrap()
}

/// Lays a database of an earlier version where the manager looks for it, on a simulated host of that seed.
fn left_by(dump: &str, seed: &str) -> Host {
    let host = Host::new("");
    for directory in [host.state(""), host.runtime("sim")] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(host.runtime("sim/seed"), seed).unwrap();
    host.execute_sql(dump);
    host
}

#[test]
fn a_database_of_the_first_schema_is_migrated_with_all_that_was_in_it() {
    let mut host = left_by(FIRST, seed_of(FIRST));
    let specs = "SELECT name || ' ' || spec FROM daemons UNION ALL SELECT name || ' ' || spec FROM tenants ORDER BY 1";
    let before = host.ask_sql(specs);
    assert_eq!(before.len(), 6);
    host.serve();
    host.await_ready();
    let daemons = host.api().get("/api/v1/daemons").ok();
    let names: Vec<_> =
        daemons["items"].as_array().unwrap().iter().map(|daemon| daemon["name"].clone()).collect();
    assert_eq!(names, ["gpu0", "gpu1"]);
    let gpu1 = &daemons["items"][1]["spec"];
    assert_eq!(
        (&gpu1["memory_overcommit"], &gpu1["defaults"]["device_memory_limit"]),
        (&json!(2.0), &json!(16_u64 << 30))
    );
    let counted = host.api().get("/api/v1/tenants/counted").ok();
    assert_eq!((&counted["spec"]["sms"], &counted["spec"]["labels"]["team"]), (&json!(32), &json!("vision")));
    let share = host.api().get("/api/v1/tenants/share").ok();
    assert_eq!(share["spec"]["gpus"], json!(["GPU-10ae054f-a181-5ea9-6d54-4ef7378bd381"]));
    assert_eq!(host.client("counted").seen["devices"][0]["sms"], 32);
    let operations = host.api().get("/api/v1/operations").ok();
    assert_eq!(operations["items"][0]["state"], "succeeded", "{operations}");
    host.end_manager(rustix::process::Signal::TERM);
    assert_eq!(host.ask_sql(specs), before, "not a spec has changed");
    let copies: Vec<String> = fs::read_dir(host.state(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("mps-manager.before-1-"))
        .collect();
    assert_eq!(copies.len(), 1, "the database as it was before");
}

#[test]
fn gpus_that_were_gone_before_anything_was_remembered_of_them_can_be_replaced() {
    let mut host = left_by(FIRST, "of another die");
    host.serve();
    let gpus = host.api().get("/api/v1/gpus").ok();
    let missing: Vec<_> =
        gpus["items"].as_array().unwrap().iter().filter(|gpu| gpu["present"] == false).cloned().collect();
    assert_eq!(missing.len(), 2);
    assert!(missing.iter().all(|gpu| gpu["name"].is_null() && gpu["memory_total"].is_null()), "{missing:?}");
    assert_eq!(host.api().get("/readyz").status, 503);
    // How many SMs it asks for cannot be a share of a GPU of which nothing is known: said, and not a fault of the manager.
    let spec = json!({"daemon": "gpu1", "sms": 64, "device_memory_limit": "1G"});
    let refused = host.api().tenant("counted", &spec);
    assert_eq!(refused.status, 409, "{}", refused.text);
    for gpu in missing {
        let uuid = gpu["uuid"].as_str().unwrap();
        assert_eq!(host.api().get(&format!("/api/v1/gpus/{uuid}")).ok()["daemon"], gpu["daemon"]);
        let with = if gpu["daemon"] == "gpu0" { "0" } else { "1" };
        host.api().post(&format!("/api/v1/gpus/{uuid}/replace"), &json!({"with": with})).ok();
    }
    host.await_ready();
    assert_eq!(host.client("counted").seen["devices"][0]["sms"], 32);
}
