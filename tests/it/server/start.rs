//! What a start gives.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::json;

use super::log_pages::page;
use crate::harness::scratch::install_script;
use crate::harness::{Host, InProcess, Served, is_alive, stderr_of};

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

/// What a driver that is not loaded leaves: a manager that answers, changes nothing, and begins once the driver is here.
#[test]
fn missing_driver_is_waited_for() {
    let mut host = Host::new("wait_for_driver = true");
    host.serve();
    host.await_ready();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    host.end_manager(Signal::TERM);
    let absent = host.runtime("sim/driver-absent");
    fs::write(&absent, "").unwrap();
    host.serve();

    let api = host.api();
    let readiness = api.get("/readyz");
    assert_eq!((readiness.status, &readiness.json()["conditions"]), (503, &json!(["WaitingForDriver"])));
    let shown = api.get("/api/v1/host").ok();
    let condition = &shown["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("WaitingForDriver"), &json!("DriverMissing"))
    );
    assert!(condition["message"].as_str().unwrap().contains("driver-absent"), "{condition}");
    assert_eq!(
        (&shown["read_only"]["waiting_for_driver"], &shown["capabilities"]),
        (&json!(true), &json!([]))
    );
    assert_eq!(api.get("/api/v1/tenants/demo").ok()["spec"]["daemon"], "gpu0", "what is stored is shown");
    let spec = json!({"daemon": "gpu0", "uid": 0});
    let refused = api.put("/api/v1/tenants/late", &spec);
    assert!(
        refused.status >= 400 && refused.text.contains("the NVIDIA driver is waited for"),
        "{}",
        refused.text
    );
    let confirmed = api.post("/api/v1/host/confirm", &json!({"machine_id": shown["machine_id"]}));
    assert!(confirmed.status >= 400, "it is no other machine's: {}", confirmed.text);
    assert!(host.cli(&["login-url"]).status.success(), "the console can be reached");
    let page = page(&host, "/settings");
    assert!(page.contains("The NVIDIA driver is not here yet") && !page.contains("confirm-host"), "{page}");
    let status = host.cli(&["status"]);
    assert!(
        String::from_utf8_lossy(&status.stdout).contains("the NVIDIA driver is waited for"),
        "{}",
        String::from_utf8_lossy(&status.stdout)
    );
    let clients = api.get("/api/v1/clients");
    assert!(
        clients.status == 503 && clients.text.contains("the NVIDIA driver is waited for"),
        "that there are none is not known: {}",
        clients.text
    );
    let environment = api.get("/api/v1/tenants/demo/environment");
    assert!(environment.text.contains("the NVIDIA driver is waited for"), "{}", environment.text);
    let run = stderr_of(&host.run("demo", &["true"]));
    assert!(run.contains("the NVIDIA driver is waited for"), "{run}");
    assert!(daemons.into_iter().all(is_alive), "nothing is touched");

    fs::remove_file(&absent).unwrap();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons, "adopted as they are");
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
}

#[test]
fn first_start_may_wait_for_the_driver() {
    let mut host = Host::new("wait_for_driver = true");
    let absent = host.runtime("sim/driver-absent");
    fs::create_dir_all(absent.parent().unwrap()).unwrap();
    fs::write(&absent, "").unwrap();
    host.serve();
    assert_eq!(host.api().get("/readyz").status, 503);
    fs::remove_file(&absent).unwrap();
    host.await_ready();
    let tenants = host.api().get("/api/v1/tenants").ok();
    assert_eq!(tenants["items"].as_array().unwrap().len(), 2, "with its examples");
}

#[test]
fn missing_driver_may_end_a_start() {
    let host = Host::new("wait_for_driver = false");
    let absent = host.runtime("sim/driver-absent");
    fs::create_dir_all(absent.parent().unwrap()).unwrap();
    fs::write(&absent, "").unwrap();
    let said = host.refused(&[]);
    assert!(said.contains("no usable NVIDIA driver") && said.contains("driver-absent"), "{said}");
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
    assert_eq!(api.get("/readyz/daemons/gpu7").status, 503, "which daemons there are is nobody's business");

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
    let sms = json!({"daemon": "gpu1", "uid": 0, "sms": 32, "device_memory_limit": "1G"});
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
