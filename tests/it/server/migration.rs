//! Databases of earlier versions, as their managers left them.

use std::fs;

use serde_json::json;

use crate::harness::Host;

/// Lays a database of an earlier version where the manager looks for it, on the simulated host that it was made on.
fn left_by(dump: &str) -> Host {
    let host = Host::new("");
    for directory in [host.state(""), host.runtime("sim")] {
        fs::create_dir_all(directory).unwrap();
    }
    let seed = dump.split("with the seed ").nth(1).and_then(|rest| rest.split('.').next()).unwrap();
    fs::write(host.runtime("sim/seed"), seed).unwrap();
    host.execute_sql(dump);
    host
}

#[test]
fn a_database_of_the_first_schema_is_migrated_with_all_that_was_in_it() {
    let mut host = left_by(include_str!("../../fixtures/databases/schema-1.sql"));
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
