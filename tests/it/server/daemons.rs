//! Daemons: written, started, stopped, replaced, forgotten.

use reqwest::Method;
use serde_json::{Value, json};

use super::log_pages::page;
use crate::harness::{Host, InProcess, eventually, is_alive};

fn steps(operation: &Value) -> Vec<&str> {
    let steps = operation["steps"].as_array().expect("steps");
    assert!(
        steps.iter().all(|step| step["finished_at"].is_string() && step["outcome"].is_string()),
        "{operation}"
    );
    steps.iter().map(|step| step["name"].as_str().expect("a name")).collect()
}

#[test]
fn a_cordon_never_makes_the_host_unready() {
    let host = InProcess::polled_hourly("");
    let polls = || host.daemon("gpu0")["status"]["sessions"]["polls"].clone();
    host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    let before = polls();
    for schedulable in [false, true].into_iter().cycle().take(20) {
        let spec = json!({"gpus": ["0"], "schedulable": schedulable});
        let written = host.api().put("/api/v1/daemons/gpu0", &spec).ok();
        let ready = host.api().get("/readyz");
        assert_eq!(ready.status, 200, "{}", ready.text);
        let daemon = host.daemon("gpu0");
        assert_eq!(daemon["status"]["phase"], "ready", "{daemon}");
        assert_eq!(daemon["status"]["observed_generation"], written["generation"], "{daemon}");
    }
    assert_eq!(polls(), before, "nothing was read or written for it");
}

#[test]
fn daemon_stop_start_and_restart_have_steps() {
    let host = InProcess::ready();
    let post = |action: &str| {
        let grace = if action == "start" { "" } else { "?grace_s=1" };
        host.api().succeeds(&host.api().post(&format!("/api/v1/daemons/gpu0/{action}{grace}"), &json!({})))
    };
    let first = host.daemon_pid("gpu0");
    assert_eq!(steps(&post("stop")), ["write desired state", "stop"]);
    assert!(!is_alive(first));
    let stopped = host.daemon("gpu0");
    assert_eq!(stopped["status"]["phase"], "stopped");
    assert_eq!(stopped["spec"]["desired_state"], "stopped");
    assert_eq!(host.api().get("/readyz").status, 200, "stopped as desired is ready");
    let tenant = host.api().get("/api/v1/tenants/demo").ok();
    assert_eq!(tenant["status"]["conditions"][0]["status"], false);

    let refused = host.api().outcome(&host.api().post("/api/v1/daemons/gpu0/restart", &json!({})));
    assert_eq!(refused["state"], "failed");
    assert!(refused["error"].as_str().unwrap().contains("start it instead"), "{refused}");

    assert_eq!(steps(&post("start")), ["write desired state", "wait until ready"]);
    let second = host.daemon_pid("gpu0");
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(steps(&post("restart")), ["note the running process", "stop", "wait until ready"]);
    let third = host.daemon_pid("gpu0");
    assert!(first != second && second != third && !is_alive(second));
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.daemon("gpu0")["status"]["deaths"], 0, "none of these was a death");
}

#[test]
fn stopped_daemon_stays_stopped_after_manager_restart() {
    let mut host = Host::ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    host.end_manager(rustix::process::Signal::TERM);
    host.serve();
    host.await_ready();
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "stopped");
    assert_eq!(host.daemon("gpu1")["status"]["phase"], "ready");
}

#[test]
fn gpu_is_reassigned_only_after_daemon_deletion() {
    let host = InProcess::ready();
    let both = json!({"gpus": ["1", "0"]});
    let held = host.api().put("/api/v1/daemons/both", &both).problem(409, "conflict");
    assert!(held["detail"].as_str().unwrap().contains("belongs to daemon gpu"), "{held}");
    let served = host.api().delete("/api/v1/daemons/gpu0").problem(409, "conflict");
    assert!(served["detail"].as_str().unwrap().contains("batch, demo"), "{served}");
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    for name in ["gpu0", "gpu1"] {
        let pid = host.daemon_pid(name);
        let operation = host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{name}?grace_s=1")));
        assert_eq!(steps(&operation), ["note the desired state", "write desired state", "stop", "forget"]);
        assert!(!is_alive(pid));
        host.api().get(&format!("/api/v1/daemons/{name}")).problem(404, "not-found");
        assert_eq!(host.api().get(&format!("/readyz/daemons/{name}")).status, 503);
    }
    assert_eq!(host.api().put("/api/v1/daemons/both", &both).status, 201);
    host.await_ready();
    let daemon = host.daemon("both");
    assert_eq!(daemon["spec"]["gpus"].as_array().unwrap().len(), 2);
    assert_eq!(daemon["spec"]["gpus"][0], host.api().get("/api/v1/gpus/0").ok()["uuid"], "in PCI order");
    let escapable = &daemon["status"]["conditions"][1];
    assert_eq!((&escapable["type"], &escapable["status"]), (&json!("LimitsEscapable"), &json!(true)));

    let wide =
        json!({"daemon": "both", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25});
    assert_eq!(host.api().tenant("wide", &wide).status, 201);
    host.await_ready();
    let seen = host.client("wide").seen.clone();
    for device in 0..2 {
        assert_eq!(seen["devices"][device]["sms"], 32);
        assert!(seen["devices"][device]["memory_free"].as_u64().unwrap() < 4 << 30);
    }
    let second = json!({"daemon": "both", "uid": 0, "gpus": ["1"], "device_memory_limit": "2G"});
    assert_eq!(host.api().tenant("second", &second).status, 201);
    host.await_ready();
    let tenant = host.api().get("/api/v1/tenants/second").ok();
    assert_eq!(tenant["status"]["effective"]["device_memory_limits"][0]["enforced_by"], "environment");
    let seen = host.client("second").seen.clone();
    assert_eq!(seen["devices"].as_array().unwrap().len(), 1);
    assert!(seen["devices"][0]["memory_free"].as_u64().unwrap() < 2 << 30);

    // One fact about the daemon is reported once, however many tenants it has.
    for name in ["wide", "second"] {
        let tenant = host.api().get(&format!("/api/v1/tenants/{name}")).ok();
        let conditions = tenant["status"]["conditions"].as_array().expect("conditions");
        assert!(conditions.iter().all(|condition| condition["type"] != "LimitsEscapable"), "{conditions:?}");
    }
    let status = host.cli(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert_eq!(status.matches("escapes the server's memory limits").count(), 1, "{status}");

    // One that is made again under an old name is another daemon, and its page says nothing of the first one.
    eventually("the clients are gone", || host.clients().is_empty().then_some(()));
    for name in ["wide", "second"] {
        let deleted = host.api().delete(&format!("/api/v1/tenants/{name}"));
        assert_eq!(deleted.status, 204, "{}", deleted.text);
    }
    host.api().succeeds(&host.api().delete("/api/v1/daemons/both?grace_s=1"));
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"]})).status, 201);
    host.await_phase("gpu0", "ready");
    let events = page(&host, "/events?daemon=gpu0");
    assert!(events.contains("daemon gpu0 was deleted"), "{events}");
    let own = page(&host, "/daemons/gpu0");
    assert!(own.contains("daemon gpu0 was created") && !own.contains("was deleted"), "{own}");
    assert!(own.contains("<dd>1 desired, 1 observed</dd>"), "{own}");
}

#[test]
fn daemon_operations_queue_and_can_be_cancelled() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let stop =
        |grace: u32| host.api().post(&format!("/api/v1/daemons/gpu0/restart?grace_s={grace}"), &json!({}));
    let first = stop(600);
    host.await_phase("gpu0", "stopping");
    let second = stop(1);
    let place = second.header("location").unwrap().to_owned();
    assert_eq!(host.api().get(&place).ok()["state"], "pending");
    let tried = host.api().post(&format!("{place}/cancel?dry_run=true"), &json!({}));
    assert_eq!(tried.ok()["state"], "cancelled");
    assert_eq!(host.api().get(&place).ok()["state"], "pending", "a dry run calls nothing off");
    let cancelled = host.api().post(&format!("{place}/cancel"), &json!({}));
    assert_eq!(cancelled.ok()["state"], "cancelled");
    host.api().post(&format!("{place}/cancel"), &json!({})).problem(409, "conflict");
    let running = format!("{}/cancel", first.header("location").unwrap());
    let refused = host.api().post(&running, &json!({})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("is running"), "{refused}");
    // Meanwhile another daemon has its own turn.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));

    drop(client);
    host.api().succeeds(&first);
    let listed = host.api().get("/api/v1/operations").ok();
    let kinds: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|item| &item["state"]).collect();
    assert_eq!(kinds, ["succeeded", "cancelled", "succeeded"], "the newest first");
    let nowhere = format!("/api/v1/operations/{}", mps_manager::clock::Clock::system().new_id());
    host.api().get(&nowhere).problem(404, "not-found");
    host.api().get("/api/v1/operations/1").problem(422, "invalid-request");
}

#[test]
fn daemon_replacement_waits_for_last_client() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let before = host.daemon_pid("gpu0");
    let shared = json!({"gpus": ["0"], "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &shared).status, 200);
    let waiting = eventually("a restart is reported as necessary", || {
        let daemon = host.daemon("gpu0");
        let conditions = daemon["status"]["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == "RestartRequired").cloned()
    });
    assert_eq!(waiting["status"], true);
    assert_eq!(host.daemon_pid("gpu0"), before);
    assert_eq!(host.daemon("gpu0")["status"]["conditions"][0]["reason"], "RestartRequired");
    assert_eq!(host.api().get("/readyz/daemons/gpu0").status, 503);
    assert!(client.is_running());
    drop(client);
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu0"), before);
    assert_eq!(host.daemon("gpu0")["status"]["deaths"], 0);
}

#[test]
fn daemon_put_honours_etag_and_dry_run() {
    let host = InProcess::ready();
    let put = |path: &str, headers: &[(&str, &str)], spec: &Value| {
        host.api().send(Method::PUT, path, headers, Some(spec.to_string()))
    };
    let read = host.api().get("/api/v1/daemons/gpu1");
    let tag = read.revision();
    let spec = json!({"gpus": ["1"], "defaults": {"device_memory_limit": "2G"}});
    let dry = put("/api/v1/daemons/gpu1?dry_run=true", &[], &spec);
    assert_eq!(dry.status, 200);
    assert_eq!(host.api().get("/api/v1/daemons/gpu1").revision(), tag);
    let new = put("/api/v1/daemons/new?dry_run=true", &[], &spec);
    new.problem(409, "conflict");
    assert_eq!(put("/api/v1/daemons/gpu1", &[("if-match", &tag)], &spec).status, 200);
    put("/api/v1/daemons/gpu1", &[("if-match", &tag)], &spec).problem(412, "precondition-failed");
    host.await_ready();
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "2G");
    let stop = host.api().post("/api/v1/daemons/gpu1/stop?dry_run=true", &json!({}));
    assert_eq!((stop.status, stop.header("location")), (200, None), "nothing was accepted");
    host.api()
        .get(&format!("/api/v1/operations/{}", stop.json()["id"].as_str().unwrap()))
        .problem(404, "not-found");
    host.api().post("/api/v1/daemons/gpu1/stop?grace_s=9999", &json!({})).problem(422, "invalid-request");
    // A body would be ignored, and its sender would believe otherwise.
    host.api().post("/api/v1/daemons/gpu1/stop", &json!({"grace_s": 1})).problem(422, "invalid-request");
    host.api().post("/api/v1/daemons/gpu9/stop", &json!({})).problem(404, "not-found");
    assert_eq!(host.daemon("gpu1")["status"]["phase"], "ready");
}

#[test]
fn wedged_daemon_is_stopped_without_leftovers() {
    let host = InProcess::configured("control_deadline_s = 1");
    let (daemon, server) = (host.daemon_pid("gpu1"), host.server_pid("gpu1"));
    crate::harness::signal(daemon, rustix::process::Signal::STOP);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    assert!(!is_alive(daemon) && !is_alive(server));
    let left = std::fs::read_dir(host.runtime("daemons/gpu1/pipe")).unwrap().count();
    assert_eq!(left, 0, "sockets, lock, FIFO and pid file are gone");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    assert_eq!(host.daemon("gpu1")["status"]["phase"], "ready");
}
