//! GPUs that go, that come back, that are replaced, and that are in MIG mode.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::incidents::{affected, incident, recovered};
use super::log_pages::page;
use crate::harness::{Host, InProcess, Served, eventually, is_alive};

/// The UUID of a GPU.
pub(super) fn uuid(host: &Served, index: usize) -> String {
    host.api().get("/api/v1/gpus").ok()["items"][index]["uuid"].as_str().unwrap().to_owned()
}

/// Takes a GPU out of the simulated host, or switches it to MIG mode.
pub(super) fn mark(host: &Served, uuid: &str, mark: &str) {
    fs::write(host.runtime("sim/gpus").join(uuid).join(mark), "").unwrap();
}

fn unmark(host: &Served, uuid: &str, mark: &str) {
    fs::remove_file(host.runtime("sim/gpus").join(uuid).join(mark)).unwrap();
}

/// Waits until a daemon is blocked for that reason, and gives the condition that says so.
fn await_reason(host: &Served, daemon: &str, reason: &str) -> Value {
    eventually(&format!("{daemon} is blocked: {reason}"), || {
        let status = &host.daemon(daemon)["status"];
        let ready = status["conditions"][0].clone();
        (status["phase"] == "blocked" && ready["reason"] == reason).then_some(ready)
    })
}

fn stop(host: &Served, daemon: &str) {
    host.api().succeeds(&host.api().post(&format!("/api/v1/daemons/{daemon}/stop?grace_s=1"), &json!({})));
}

#[test]
fn gpu_that_reports_less_is_managed() {
    for (profile, unreported) in [("gb10x1", 1), ("orinx1", 5)] {
        let host = InProcess::ready_of(profile, "");
        let gpu = host.api().get("/api/v1/gpus/0").ok();
        let facts = ["memory_total", "compute_mode", "pci_bus_id", "sms", "compute_capability"];
        assert_eq!(facts.iter().filter(|fact| gpu[**fact].is_null()).count(), unreported, "{gpu}");
        assert!(gpu["present"] == true && gpu["memory_capacity"].is_null());
        // A limit holds, though it is compared with nothing.
        let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"});
        assert_eq!(host.api().tenant("limited", &spec).status, 201);
        assert_eq!(super::verification::verify(&host, "limited")["outcome"], "verified");
        let reserved = json!({"gpus": ["0"], "admission": "reserved"});
        let refused = host.api().put("/api/v1/daemons/gpu0", &reserved).problem(409, "conflict");
        assert!(refused.to_string().contains("does not report how much memory"), "{refused}");
        for page in ["/", "/gpus", "/gpus/0", "/tenants/limited"] {
            let text = super::log_pages::page(&host, page);
            assert!(page.starts_with("/tenants") || text.contains("not reported by this driver"), "{page}");
        }
        assert!(!host.api().get("/metrics").text.contains("gpu_memory_total_bytes{"));
        let examined = super::doctor::examine(&host);
        examined.is("compute_capability", if unreported > 1 { "skipped" } else { "ok" }, "");
        examined.is("compute_mode", if unreported > 1 { "skipped" } else { "ok" }, "");
    }
    // An unreported list of processes is no empty one.
    let host = InProcess::ready_of("orinx1", "");
    let client = host.client("demo");
    assert_eq!(host.api().get("/api/v1/gpus/0").ok()["processes"], json!(null));
    super::doctor::examine(&host).is("outside_mps", "skipped", "does not report the processes of GPU");
    drop(client);
    let begun = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 20}));
    let proof =
        host.api().succeeds(&begun)["steps"].as_array().unwrap().last().unwrap()["outcome"].to_string();
    assert!(proof.contains("not proven for GPU-"), "{proof}");
    host.api().succeeds(&host.api().delete("/api/v1/host/maintenance"));
    host.await_ready();
    // Nothing is set that could not be restored.
    let exclusive = json!({"gpus": ["0"], "compute_mode": "exclusive_process"});
    let refused = host.api().put("/api/v1/daemons/gpu0", &exclusive).problem(409, "conflict");
    assert!(refused.to_string().contains("could not be restored"), "{refused}");
}

#[test]
fn vitals_follow_driver_and_kernel_log() {
    let host = InProcess::ready();
    let gpu = uuid(&host, 0);
    let vitals = || host.api().get("/api/v1/gpus/0").ok()["vitals"].clone();
    let client = host.client("demo");
    let busy = eventually("a client shows", || {
        let vitals = vitals();
        (vitals["utilization_percent"].as_u64() > Some(0)).then_some(vitals)
    });
    assert!(busy["power_watts"].as_f64() > Some(100.0) && busy["xids"] == 0, "{busy}");
    drop(client);
    let file = host.runtime("sim/gpus").join(&gpu).join("vitals");
    let set =
        json!({"power_watts": 690.0, "temperature_celsius": null, "throttle_reasons": ["sw_power_cap"]});
    fs::write(&file, set.to_string()).unwrap();
    let set = eventually("they are set", || {
        let vitals = vitals();
        (vitals["power_watts"] == 690.0 && vitals["utilization_percent"] == 0).then_some(vitals)
    });
    assert_eq!((&set["temperature_celsius"], &set["slowdown_celsius"]), (&Value::Null, &json!(87)));
    let shown = String::from_utf8(host.cli(&["gpu", "get", "0"]).stdout).unwrap();
    assert!(shown.contains("690 W of 700 W") && shown.contains("power limit"), "{shown}");
    assert!(!shown.contains("Temperature"), "{shown}");
    let listed = String::from_utf8(host.cli(&["gpu", "list", "-o", "wide"]).stdout).unwrap();
    assert!(listed.contains("690 W"), "{listed}");
    let metrics = host.api().get("/metrics").text;
    for sample in ["gpu_power_draw_watts{", "gpu_throttled{", "gpu_xids_total{"] {
        assert!(metrics.contains(&format!("mps_manager_{sample}gpu=\"{gpu}\"")), "{sample}");
    }
    assert!(!metrics.contains(&format!("gpu_temperature_celsius{{gpu=\"{gpu}\"")));

    let begun = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 20}));
    host.api().succeeds(&begun);
    assert_eq!(vitals(), Value::Null, "the driver is not queried");
}

#[test]
fn nothing_is_promised_before_volta() {
    let host = InProcess::ready_of("p100x1", "");
    let tenants = host.api().get("/api/v1/tenants").ok();
    let limited = |tenant: &Value| !tenant["spec"]["device_memory_limit"].is_null();
    assert!(!tenants["items"].as_array().unwrap().iter().any(limited), "{tenants}");
    for field in
        [json!({"device_memory_limit": "4G"}), json!({"active_thread_percentage": 33}), json!({"sms": 18})]
    {
        let (name, _) = field.as_object().unwrap().iter().next().unwrap();
        let mut spec = json!({"daemon": "gpu0", "uid": 0});
        spec[name] = field[name].clone();
        let refused = host.api().tenant("wanting", &spec).problem(409, "not-admitted");
        assert!(refused.to_string().contains("compute capability 6.0"), "{refused}");
    }
    for more in [
        json!({"multi_user": true}),
        json!({"defaults": {"device_memory_limit": "4G"}}),
        json!({"provisioning": {"strategy": "uniform", "expected_clients": 4}}),
    ] {
        let mut spec = json!({"gpus": ["0"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let refused = host.api().put("/api/v1/daemons/gpu0", &spec).problem(409, "conflict");
        assert!(refused.to_string().contains("before 7.0 (Volta)"), "{refused}");
    }
    // The simulated one holds none of them either, as documented.
    let limits = [("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"), ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")];
    let mut client = host.client_command("demo", &[]);
    let seen: Value = serde_json::from_slice(&client.envs(limits).output().unwrap().stdout).unwrap();
    assert_eq!(seen["devices"][0]["sms"], 56, "{seen}");
    assert!(seen["devices"][0]["memory_free"].as_u64().unwrap() > 12 << 30, "{seen}");
}

#[test]
fn restart_queries_driver_for_returned_gpu() {
    let mut host = Host::polled_hourly("");
    let (gone, before) = (uuid(&host, 1), host.daemon_pid("gpu1"));
    mark(&host, &gone, "lost");
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_reason("gpu1", "GpuMissing");
    unmark(&host, &gone, "lost");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=0", &json!({})));
    assert_ne!(host.daemon_pid("gpu1"), before);
    host.await_ready();
}

#[test]
fn lost_gpu_blocks_only_its_daemon() {
    let host = InProcess::ready();
    let gone = uuid(&host, 1);
    let (daemon, other) = (host.daemon_pid("gpu1"), host.daemon_pid("gpu0"));
    mark(&host, &gone, "lost");
    let ready = await_reason(&host, "gpu1", "GpuMissing");
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains(&gone) && message.contains("mps-manager gpu replace"), "{message}");
    assert!(is_alive(daemon), "nobody has stopped it");
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 503);
    assert_eq!(host.api().get("/readyz/daemons/gpu0").status, 200, "the other daemon is well");

    let gpus = host.api().get("/api/v1/gpus").ok();
    let listed = &gpus["items"][1];
    assert_eq!(
        (&listed["uuid"], &listed["present"], &listed["daemon"]),
        (&json!(gone), &json!(false), &json!("gpu1"))
    );
    assert_eq!((&listed["name"], &listed["sms"]), (&json!("NVIDIA H200"), &json!(132)));
    assert_eq!(listed["index"], 1, "it keeps its index");
    for unknown in ["memory_used", "compute_mode", "mig_enabled", "processes"] {
        assert_eq!(listed[unknown], Value::Null, "{unknown}");
    }
    assert_eq!(host.api().get(&format!("/api/v1/gpus/{gone}")).ok()["present"], false);
    assert_eq!(host.api().get("/api/v1/gpus/1").ok()["uuid"], json!(gone));

    unmark(&host, &gone, "lost");
    host.await_ready();
    assert_eq!((host.daemon_pid("gpu1"), host.daemon_pid("gpu0")), (daemon, other));
}

#[test]
fn missing_gpu_yields_its_index_to_another() {
    let host = InProcess::ready_of("h200x8", "");
    let (gone, next) = (uuid(&host, 2), uuid(&host, 3));
    let pci = host.api().get("/api/v1/gpus/2").ok()["pci_bus_id"].as_str().unwrap().to_owned();
    mark(&host, &gone, "lost");
    await_reason(&host, "gpu2", "GpuMissing");
    let indices = || {
        let gpus = host.api().get("/api/v1/gpus").ok();
        gpus["items"].as_array().unwrap().iter().map(|gpu| gpu["index"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(json!(indices()), json!([0, 1, 2, 3, 4, 5, 6, 7]), "nobody is renamed");
    let shown = String::from_utf8(host.cli(&["gpu", "get", "2"]).stdout).unwrap();
    assert!(shown.contains(&gone) && shown.contains("missing") && shown.contains(&pci), "{shown}");
    assert!(page(&host, "/gpus").contains("GPU 2 (missing)"));

    // After a boot without it the driver numbers the others from 0 on.
    fs::write(host.runtime("sim/gpus").join(&gone).join("lost"), "renumbered").unwrap();
    eventually("the driver's numbers are shown", || {
        (host.api().get("/api/v1/gpus/2").ok()["uuid"] == json!(next)).then_some(())
    });
    assert_eq!(json!(indices()), json!([0, 1, 2, 3, 4, 5, 6, null]));
    let found = host.api().get(&format!("/api/v1/gpus/{pci}")).ok();
    assert_eq!((&found["uuid"], &found["index"]), (&json!(gone), &Value::Null));
    let listed = String::from_utf8(host.cli(&["gpu", "list"]).stdout).unwrap();
    assert!(
        listed.lines().any(|line| line.trim().starts_with(&pci) && line.trim().ends_with("missing")),
        "{listed}"
    );
    assert!(page(&host, "/gpus").contains(&format!("GPU at PCI {pci} (missing)")));
}

#[test]
fn clients_of_a_lost_gpu_fail() {
    let host = InProcess::configured("fresh_timeout_s = 2");
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G", "max_clients": 2});
    assert_eq!(host.api().tenant("left", &spec).status, 201);
    host.await_ready();
    let mut client = host.client("left");
    mark(&host, &uuid(&host, 1), "lost");
    await_reason(&host, "gpu1", "GpuMissing");
    assert_eq!(client.ended().code(), Some(4), "what it launches fails");
    let refused = host.run_command("left", &["true"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("missing"), "{refused:?}");
}

#[test]
fn daemon_with_missing_gpu_can_be_deleted() {
    let mut host = Host::ready();
    // Its share needs the GPU's SMs to be worked out.
    let sms = json!({"daemon": "gpu1", "uid": 0, "sms": 32, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("counted", &sms).status, 201);
    host.await_ready();
    let gone = uuid(&host, 1);
    host.end_manager(Signal::TERM);
    mark(&host, &gone, "lost");
    host.serve();
    host.await_phase("gpu0", "ready");
    await_reason(&host, "gpu1", "GpuMissing");
    assert_eq!(host.api().get("/api/v1/tenants/counted").ok()["spec"]["sms"], 32);

    let more = json!({"daemon": "gpu1", "uid": 0, "sms": 64, "device_memory_limit": "2G", "gpus": [gone]});
    assert_eq!(host.api().tenant("counted", &more).status, 200);
    let refused =
        host.api().tenant("counted", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "200G"}));
    refused.problem(409, "not-admitted");
    let spec = json!({"gpus": [gone], "schedulable": false});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["2"]})).problem(422, "invalid-request");
    let by_index = json!({"gpus": ["1"], "schedulable": false});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &by_index).ok()["spec"]["gpus"], json!([gone]));
    stop(&host, "gpu1");
    assert_eq!(host.daemon("gpu1")["status"]["phase"], "stopped");
    assert_eq!(host.api().delete("/api/v1/tenants/counted").status, 204);
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    let gpus = host.api().get("/api/v1/gpus").ok();
    assert_eq!(gpus["items"].as_array().unwrap().len(), 1, "no daemon holds the missing one");
}

#[test]
fn gpu_replacement_updates_daemon_and_tenants() {
    let host = InProcess::ready();
    let (new, gone) = (uuid(&host, 0), uuid(&host, 1));
    let path = format!("/api/v1/gpus/{gone}/replace");
    for (name, spec) in [
        (
            "named",
            json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "3G", "sms": 32, "gpus": [gone]}),
        ),
        ("unnamed", json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"})),
    ] {
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    let here = host.api().post(&path, &json!({"with": "0"})).problem(409, "conflict");
    assert!(here["detail"].as_str().unwrap().contains("still in this host"), "{here}");
    mark(&host, &gone, "lost");
    await_reason(&host, "gpu1", "GpuMissing");
    let held = host.api().post(&path, &json!({"with": new})).problem(409, "conflict");
    assert!(held["detail"].as_str().unwrap().contains("belongs to daemon gpu0"), "{held}");
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu0?grace_s=1"));
    mark(&host, &new, "mig");
    let mig = host.api().post(&path, &json!({"with": new})).problem(409, "conflict");
    assert!(mig["detail"].as_str().unwrap().contains("MIG"), "{mig}");
    unmark(&host, &new, "mig");
    host.api().post(&path, &json!({"with": "7"})).problem(422, "invalid-request");
    host.api().post(&path, &json!({"with": gone})).problem(409, "conflict");
    host.api().post("/api/v1/gpus/GPU-ffffffff/replace", &json!({"with": "0"})).problem(404, "not-found");

    let before = host.daemon("gpu1");
    let dry = host.api().post(&format!("{path}?dry_run=true"), &json!({"with": "0"})).ok();
    assert_eq!((&dry["with"], &dry["tenants"]), (&json!(new), &json!(["named"])));
    assert_eq!(host.daemon("gpu1")["spec"], before["spec"], "a dry run keeps nothing");
    let done = host.api().post(&path, &json!({"with": "0"})).ok();
    assert_eq!(done["daemon"]["spec"]["gpus"], json!([new]));
    for target in ["daemons/gpu1", "tenants/named"] {
        let row = host.api().get(&format!("/api/v1/audit?limit=1&target={target}")).ok()["items"][0].clone();
        assert_eq!(row["action"], "POST /api/v1/gpus/{gpu}/replace", "{row}");
        assert!(row["before"].as_str().unwrap().contains(&gone), "{row}");
        assert!(row["after"].as_str().unwrap().contains(&new), "{row}");
    }
    assert!(done["daemon"]["generation"].as_i64() > before["generation"].as_i64());
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/tenants/named").ok()["spec"]["gpus"], json!([new]));
    let reported = host.events("&type=gpu.replaced,daemon.changed,tenant.changed");
    let reported: Vec<_> = reported.iter().rev().take(3).rev().collect();
    let types: Vec<_> = reported.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["gpu.replaced", "daemon.changed", "tenant.changed"]);
    assert!(reported[1..].iter().all(|event| event["details"]["fields"] == json!(["gpus"])), "{reported:?}");
    assert_eq!(reported[2]["subject"]["tenant"], "named");
    assert!(reported.iter().all(|event| event["cause"]["by"] == "actor"), "{reported:?}");
    assert_eq!(host.client("named").seen["devices"][0]["sms"], 32);
    assert_eq!(host.api().get("/api/v1/gpus").ok()["items"].as_array().unwrap().len(), 1);
    host.api().post(&path, &json!({"with": "0"})).problem(404, "not-found");
}

#[test]
fn replacement_too_small_for_tenants_is_refused() {
    let mut host = Host::ready();
    let (gone, new) = (uuid(&host, 1), uuid(&host, 0));
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "100G"});
    assert_eq!(host.api().tenant("large", &spec).status, 201);
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu0?grace_s=1"));
    host.end_manager(Signal::TERM);
    // The GPU that stays becomes a smaller one.
    let path = host.runtime("sim/world.json");
    let mut world: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    world["gpus"][0]["memory_total"] = json!(80_u64 << 30);
    fs::write(&path, world.to_string()).unwrap();
    mark(&host, &gone, "lost");
    host.serve();
    let refused = host.api().post(&format!("/api/v1/gpus/{gone}/replace"), &json!({"with": new}));
    let problem = refused.problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("large"), "{problem}");
    assert_eq!(host.daemon("gpu1")["spec"]["gpus"], json!([gone]));
}

#[test]
fn gpu_in_mig_mode_is_not_managed() {
    let host = InProcess::ready();
    let mig = uuid(&host, 1);
    stop(&host, "gpu1");
    mark(&host, &mig, "mig");
    assert_eq!(host.api().get("/api/v1/gpus/1").ok()["mig_enabled"], true);
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 200);
    let ready = await_reason(&host, "gpu1", "MigEnabled");
    assert!(ready["message"].as_str().unwrap().contains("nvidia-smi -mig 0"), "{ready}");
    assert_eq!(host.api().get("/readyz/daemons/gpu0").status, 200);
    // What holds it already may still be changed; nobody else gets it.
    let spec = json!({"gpus": ["1"], "desired_state": "stopped"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_phase("gpu1", "stopped");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    let refused = host.api().put("/api/v1/daemons/other", &json!({"gpus": ["1"]})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("MIG mode"), "{refused}");
    unmark(&host, &mig, "mig");
    assert_eq!(host.api().put("/api/v1/daemons/other", &json!({"gpus": ["1"]})).status, 201);
    host.await_ready();
}

#[test]
fn gpu_replacement_is_refused_during_other_work() {
    let mut host = Host::ready();
    let (kept, gone) = (uuid(&host, 0), uuid(&host, 1));
    let path = format!("/api/v1/gpus/{gone}/replace");
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu0?grace_s=1"));
    host.end_manager(Signal::TERM);
    mark(&host, &gone, "lost");
    // As both leave it for a while.
    let operation = "01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c";
    host.execute_sql(&format!(
        "INSERT INTO maintenance (id, operation, state, gpus, since) VALUES (1, '{operation}', 'draining', '[\"{kept}\"]', 1)"
    ));
    host.serve();
    await_reason(&host, "gpu1", "GpuMissing");
    let refused = host.api().post(&path, &json!({"with": "0"})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("maintenance"), "{refused}");
    host.execute_sql(&format!(
        r#"DELETE FROM maintenance;
           INSERT INTO operations (id, request, state, created_at)
           VALUES ('{operation}', '{{"kind":"stop_daemon","grace_s":0}}', 'pending', 1);
           INSERT INTO operation_daemons (operation, daemon) VALUES ('{operation}', 'gpu1');"#
    ));
    let refused = host.api().post(&path, &json!({"with": "0"})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains(operation), "{refused}");
    assert_eq!(host.daemon("gpu1")["spec"]["gpus"], json!([gone]));
}

#[test]
fn missing_gpus_never_seen_can_be_replaced() {
    let mut earlier = Host::ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "sms": 32, "device_memory_limit": "3G", "max_clients": 2});
    assert_eq!(earlier.api().tenant("counted", &spec).status, 201);
    earlier.end_manager(Signal::TERM);
    earlier.execute_sql("DELETE FROM gpus; DELETE FROM incarnations");
    let mut host = Host::new("");
    for directory in [host.state(""), host.runtime("sim")] {
        std::fs::create_dir_all(directory).unwrap();
    }
    // The same host with other GPUs.
    std::fs::write(host.runtime("sim/seed"), "of another die").unwrap();
    std::fs::copy(earlier.state("mps-manager.db"), host.state("mps-manager.db")).unwrap();
    drop(earlier);
    host.serve();
    let gpus = host.api().get("/api/v1/gpus").ok();
    let missing: Vec<_> =
        gpus["items"].as_array().unwrap().iter().filter(|gpu| gpu["present"] == false).cloned().collect();
    assert_eq!(missing.len(), 2);
    assert!(missing.iter().all(|gpu| gpu["name"].is_null() && gpu["memory_total"].is_null()), "{missing:?}");
    assert_eq!(host.api().get("/readyz").status, 503);
    // How many SMs it asks for cannot be a share of a GPU of which nothing is known: said, and not a fault of the manager.
    let spec = json!({"daemon": "gpu1", "uid": 0, "sms": 64, "device_memory_limit": "1G"});
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

#[test]
fn work_lost_with_a_gpu_is_recorded() {
    let host = InProcess::ready();
    let clients = [host.client("demo"), host.client("batch")];
    let mut pids = clients.iter().map(|client| client.pid().into()).collect::<Vec<u64>>();
    pids.sort_unstable();
    let gpu = host.api().get("/api/v1/gpus/0").ok();
    let mark = host.runtime("sim/gpus").join(gpu["uuid"].as_str().expect("a UUID")).join("lost");
    fs::write(&mark, "").expect("marked");
    let all = |one: &Value| affected(one).len() == 2;
    let open = incident(&host, "gpu_missing", all);
    assert_eq!((affected(&open), &open["tenants"]), (pids, &json!(["batch", "demo"])));
    let board = format!("GPU 0 (PCI {}) of gpu0", gpu["pci_bus_id"].as_str().expect("an address"));
    let summary = open["summary"].as_str().expect("text");
    assert!(
        summary
            .starts_with(&format!("{board} is no longer listed by the driver; 2 clients of batch and demo")),
        "{summary}"
    );
    for client in open["affected"].as_array().expect("clients") {
        assert!(
            client["client"].is_string() && client["uid"].is_u64() && client["program"].is_string(),
            "{client}"
        );
    }
    let of_tenant = host.cli(&["incident", "list", "--tenant", "demo", "-o", "name"]);
    assert_eq!(String::from_utf8_lossy(&of_tenant.stdout).trim(), open["id"].to_string());

    fs::remove_file(&mark).expect("unmarked");
    incident(&host, "gpu_missing", recovered);
    let expected =
        ["client.left", "client.left", "gpu.back", "gpu.missing", "incident.opened", "incident.recovered"];
    eventually("the incident has all of its events", || {
        let now = incident(&host, "gpu_missing", recovered);
        let of_event = |id: &Value| host.api().get(&format!("/api/v1/events/{id}")).ok()["type"].clone();
        let mut kinds: Vec<Value> = now["events"].as_array().expect("IDs").iter().map(of_event).collect();
        kinds.sort_by_key(Value::to_string);
        (json!(kinds) == json!(expected)).then_some(())
    });
}
