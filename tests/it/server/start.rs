//! What a start gives.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::harness::{Host, is_alive};

#[test]
fn a_new_simulated_host_has_a_daemon_a_gpu_and_two_tenants_and_becomes_ready() {
    let host = Host::ready();
    let api = host.api();
    assert_eq!(api.get("/healthz").ok(), json!({"status": "ok"}));
    assert_eq!(api.get("/readyz").ok(), json!({"ready": true, "not_ready": []}));
    assert_eq!(api.get("/readyz/daemons/gpu0").ok(), json!({"ready": true, "not_ready": []}));
    api.get("/readyz/daemons/gpu7").problem(404, "not-found");

    let described = api.get("/api/v1/host").ok();
    assert_eq!((&described["simulated"], &described["gpus"]), (&json!(true), &json!(2)));
    assert_eq!(described["profile"], "h200x2@13.1");

    let names = |path: &str| -> Vec<String> {
        let items = api.get(path).ok()["items"].as_array().expect("items").clone();
        items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("/api/v1/daemons"), ["gpu0", "gpu1"]);
    assert_eq!(names("/api/v1/tenants"), ["batch", "demo"]);

    for name in ["gpu0", "gpu1"] {
        let daemon = host.daemon(name);
        assert_eq!(daemon["status"]["phase"], "ready");
        assert_eq!(daemon["status"]["observed_generation"], daemon["generation"]);
        assert!(is_alive(host.daemon_pid(name)));
        assert!(is_alive(host.server_pid(name)));
    }
    let status = host.cli(&["status"]);
    assert_eq!(status.status.code(), Some(0));
    let table = String::from_utf8(status.stdout).unwrap();
    assert!(table.contains("SIMULATED (h200x2@13.1)") && table.contains("demo"), "{table}");
}

#[test]
fn the_token_and_the_database_are_for_their_owner_alone() {
    let host = Host::ready();
    for file in ["admin.token", "mps-manager.db"] {
        let mode = fs::metadata(host.state(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::metadata(host.state("")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_gpu_is_found_by_index_uuid_beginning_and_pci_address() {
    let host = Host::ready();
    let gpus = host.api().get("/api/v1/gpus").ok();
    let gpu = &gpus["items"][1];
    let (uuid, address) = (gpu["uuid"].as_str().unwrap(), gpu["pci_bus_id"].as_str().unwrap());
    for name in ["1", uuid, &uuid[..13], address] {
        assert_eq!(host.api().get(&format!("/api/v1/gpus/{name}")).ok()["uuid"], uuid, "{name}");
    }
    assert_eq!(gpu["daemon"], "gpu1");
    assert_eq!(gpu["processes"].as_array().unwrap().len(), 1, "the server alone");
    assert_eq!(gpu["processes"][0]["kind"], "server");
    assert_eq!(gpus["items"][0]["memory_promised"], (4_u64 + 4 * 8) << 30);
    host.api().get("/api/v1/gpus/2").problem(404, "not-found");
}

#[test]
fn a_daemon_whose_gpu_is_gone_is_never_called_ready() {
    let mut host = Host::ready();
    let sms = json!({"daemon": "gpu1", "sms": 32, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("counted", &sms).status, 201);
    host.await_ready();
    host.end_manager(rustix::process::Signal::TERM);
    let path = host.runtime("sim/world.json");
    let mut world: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    world["gpus"].as_array_mut().unwrap().pop();
    fs::write(&path, world.to_string()).unwrap();
    host.serve();
    host.await_phase("gpu0", "ready");
    let readiness = host.api().get("/readyz");
    assert_eq!(readiness.status, 503);
    assert_eq!(readiness.json()["not_ready"][0]["daemon"], "gpu1");
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 503);
}
