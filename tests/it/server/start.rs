//! What a start gives.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::harness::scratch::install_script;
use crate::harness::{Host, InProcess, Served, is_alive};

#[test]
fn every_documented_profile_starts() {
    for profile in [
        "p100x1",
        "p100x2@12.8",
        "a100x1@13.2",
        "l40sx1@13.0",
        "h100x1",
        "l20x1@13.3",
        "a10x1",
        "gb10x1",
        "orinx1@12.2",
    ] {
        let mut host = InProcess::of(profile, "");
        host.serve();
        host.await_ready();
        let tenants = host.api().get("/api/v1/tenants").ok();
        assert_eq!(tenants["items"].as_array().unwrap().len(), 2, "{profile}: {tenants}");
    }
}

/// A host whose control program takes this many seconds to its first answer becomes ready, and takes one process a session then.
fn becomes_ready_slowly(delay: &str, deadline: u32) {
    let mut host = InProcess::new("");
    let (real, slow) = (host.runtime("sim/bin"), host.dir().join("slow"));
    fs::create_dir(&slow).unwrap();
    std::os::unix::fs::symlink(real.join("nvidia-cuda-mps-server"), slow.join("nvidia-cuda-mps-server"))
        .unwrap();
    let program = real.join("nvidia-cuda-mps-control");
    let script = format!("#!/bin/sh\nsleep {delay}\nexec {} \"$@\"\n", program.display());
    install_script(&slow.join("nvidia-cuda-mps-control"), &script);
    let config = host.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let further = format!(
        "mps_dir = \"{}\"\ncontrol_deadline_s = {deadline}\nfresh_timeout_s = {deadline}\n",
        slow.display()
    );
    fs::write(config, text + &further).unwrap();
    host.serve();
    host.await_ready();
    let sessions = |host: &Served| {
        let sessions = host.daemon("gpu0")["status"]["sessions"].clone();
        (sessions["control_processes"].as_u64().unwrap(), sessions["polls"].as_u64().unwrap())
    };
    let before = sessions(&host);
    let daemon = host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    assert_eq!(daemon["status"]["effective"]["control_processes"], 1, "{daemon}");
    let after = sessions(&host);
    assert_eq!(after.0 - before.0, after.1 - before.1, "one process a session");
    assert!(after.0 < 30, "{} processes since the start", after.0);
}

#[test]
fn slow_control_program_still_works() {
    becomes_ready_slowly("0.3", 5);
}

#[test]
fn very_slow_control_program_still_works() {
    becomes_ready_slowly("2", 10);
}

#[test]
fn new_simulated_host_becomes_ready() {
    let host = InProcess::ready();
    let api = host.api();
    assert_eq!(api.get("/healthz").ok(), json!({"status": "ok"}));
    assert_eq!(api.get("/readyz").ok(), json!({"ready": true, "not_ready": [], "conditions": []}));
    assert_eq!(
        api.get("/readyz/daemons/gpu0").ok(),
        json!({"ready": true, "not_ready": [], "conditions": []})
    );
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
fn token_and_database_are_private() {
    let host = InProcess::ready();
    for file in ["admin.token", "mps-manager.db"] {
        let mode = fs::metadata(host.state(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    assert_eq!(fs::metadata(host.state("")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn gpu_is_found_by_any_identifier() {
    let host = InProcess::ready();
    let gpus = host.api().get("/api/v1/gpus").ok();
    let gpu = &gpus["items"][1];
    let (uuid, address) = (gpu["uuid"].as_str().unwrap(), gpu["pci_bus_id"].as_str().unwrap());
    for name in ["1", uuid, &uuid[..13], address] {
        assert_eq!(host.api().get(&format!("/api/v1/gpus/{name}")).ok()["uuid"], uuid, "{name}");
    }
    assert_eq!(gpu["daemon"], "gpu1");
    assert_eq!(gpu["processes"].as_array().unwrap().len(), 1, "the server alone");
    assert_eq!(gpu["processes"][0]["kind"], "server");
    assert_eq!(gpus["items"][0]["memory_limits"], (4_u64 + 4 * 8) << 30);
    host.api().get("/api/v1/gpus/2").problem(404, "not-found");
}

#[test]
fn daemon_with_missing_gpu_is_not_ready() {
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
