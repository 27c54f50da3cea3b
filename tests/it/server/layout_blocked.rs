//! A daemon whose partitions have other IDs than the recorded ones hands nothing out, however often it is retried.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::incidents::{incident, recovered};
use super::layouts::{add, apply, host, matches, partitions, post, write};
use super::verification::verify;
use crate::harness::{Host, Served, eventually, signal, stderr_of};

/// Gives the second GPU another die.
fn swap_die(host: &Served) {
    let file = host.runtime("sim/world.json");
    let mut world: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let gpcs = &mut world["gpus"][1]["gpcs"];
    assert!(gpcs.is_array(), "{world}");
    *gpcs = json!([9, 9, 9, 9, 4, 9, 9, 8]);
    std::fs::write(&file, world.to_string()).unwrap();
}

/// The control process of the second daemon, asked of the system: there may be no manager.
fn control(host: &Served) -> u32 {
    let pid = host.runtime("daemons/gpu1/pipe/nvidia-cuda-mps-control.pid");
    std::fs::read_to_string(pid).expect("it runs").trim().parse().expect("a PID")
}

/// Nothing is handed out: no environment, no lease, no partition with an ID of a layout; and nothing that compares or
/// exports calls the layout good.
fn is_closed(host: &Served, when: &str) {
    let daemon = host.await_phase("gpu1", "blocked");
    let ready = &daemon["status"]["conditions"][0];
    assert_eq!(ready["reason"], "PartitionIdDiffers", "{when}: {ready}");
    let environment = host.api().get("/api/v1/tenants/tt/environment");
    environment.problem(409, "conflict");
    let run = host.run("tt", &["true"]);
    assert_eq!(run.status.code(), Some(2), "{when}: {}", stderr_of(&run));
    let tenant = host.api().get("/api/v1/tenants/tt").ok();
    assert_eq!(tenant["status"]["conditions"][0]["status"], false, "{when}: {tenant}");
    let handed_out = &daemon["status"]["layout"]["partitions"];
    assert!(handed_out.as_array().unwrap().iter().all(|one| one["id"].is_null()), "{when}: {handed_out}");

    let verified = verify(host, "tt");
    assert_eq!(verified["outcome"], "not_verified", "{when}: {verified}");
    assert_eq!(verified["blocker"]["code"], "daemon_not_ready", "{when}: {verified}");
    let compared = post(host, "two", "assert", &json!({})).ok();
    assert_eq!(compared["matches"], false, "{when}: {compared}");
    assert_ne!(compared["differences"], json!([]), "{when}: {compared}");
    let exported = host.api().get("/api/v1/layouts/two/export?daemon=gpu1").problem(409, "conflict");
    assert!(exported["detail"].as_str().unwrap().contains("is recorded"), "{when}: {exported}");
}

#[test]
fn failed_apply_leaves_a_blocked_daemon_blocked() {
    let mut host: Host = host();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G", "max_clients": 2});
    assert_eq!(host.api().tenant("tt", &spec).status, 201);
    // More chunks than there are GPCs, since the first of each are the same on every die.
    let mut bound = add("b", 7);
    bound["add"]["tenants"] = json!(["tt"]);
    write(&host, "two", &[add("a", 2), bound.clone()]);
    apply(&host, "two", &json!({}));
    let before = partitions(&host);
    host.api().get("/api/v1/tenants/tt/environment").ok();

    let pid = control(&host);
    host.end_manager(Signal::KILL);
    swap_die(&host);
    signal(pid, Signal::KILL);
    host.serve();
    is_closed(&host, "after the start");
    let differs = incident(&host, "layout_ids_differ", |one| one["state"] == "open");
    assert_eq!((&differs["daemon"], &differs["severity"]), (&json!("gpu1"), &json!("error")), "{differs}");
    for (attempt, more) in [json!({}), json!({"recreate": true}), json!({})].iter().enumerate() {
        let operation = host.api().outcome(&post(&host, "two", "apply", more));
        assert_eq!(operation["state"], "failed", "{operation}");
        let error = operation["error"].as_str().unwrap();
        assert!(error.contains("is recorded") && error.contains("not in force"), "{error}");
        is_closed(&host, &format!("after apply {attempt}"));
        assert_eq!(partitions(&host).iter().filter(|(_, id)| id != "?").count(), 0);
    }
    // A retry by the daemon's own verbs, another control process, another manager.
    host.api().outcome(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    is_closed(&host, "after a restart");
    signal(control(&host), Signal::KILL);
    eventually("it died", || (host.daemon("gpu1")["status"]["deaths"] != 0).then_some(()));
    is_closed(&host, "after a death");
    host.end_manager(Signal::KILL);
    host.serve();
    is_closed(&host, "after another start of the manager");

    // Only a new version takes the IDs as they come.
    write(&host, "two", &[add("a", 2), bound, add("c", 1)]);
    apply(&host, "two", &json!({}));
    host.await_phase("gpu1", "ready");
    assert!(matches(&host, "two"));
    let over = incident(&host, "layout_ids_differ", recovered);
    assert_eq!(over["id"], differs["id"], "one incident, however often it was tried");
    assert_ne!(partitions(&host)[1], before[1]);
    host.api().get("/api/v1/tenants/tt/environment").ok();
    assert_eq!(verify(&host, "tt")["outcome"], "verified");
    host.api().get("/api/v1/layouts/two/export?daemon=gpu1").ok();
}
