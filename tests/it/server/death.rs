//! Death of every part, and what comes back.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Host, InProcess, Served, eventually, is_alive, signal};

/// What a daemon of the example tenants holds, asked of the daemon itself.
fn assert_limits(host: &Served) {
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "50.0");
    let server = host.server_pid("gpu0");
    assert_eq!(host.control("gpu0", &format!("get_device_pinned_mem_limit {server} 0")), "8G");
    assert_eq!(host.control("gpu0", &format!("get_active_thread_percentage {server}")), "50.0");
}

#[test]
fn killed_server_is_replaced_with_same_limits() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let (daemon, server) = (host.daemon_pid("gpu0"), host.server_pid("gpu0"));
    // A daemon that stands still cannot start the next server before readiness was checked.
    signal(daemon, Signal::STOP);
    signal(server, Signal::KILL);
    eventually("readiness ends", || (host.api().get("/readyz/daemons/gpu0").status == 503).then_some(()));
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 200, "the other daemon is well");
    signal(daemon, Signal::CONT);
    assert_eq!(client.ended().code(), Some(4), "a client dies with its server");
    host.await_ready();
    assert_eq!(host.daemon_pid("gpu0"), daemon);
    assert_ne!(host.server_pid("gpu0"), server);
    assert_limits(&host);
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
}

#[test]
fn killed_daemon_is_restarted_with_same_limits() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let (daemon, server) = (host.daemon_pid("gpu0"), host.server_pid("gpu0"));
    signal(daemon, Signal::KILL);
    eventually("there is another daemon", || {
        let now = host.daemon("gpu0");
        (now["status"]["deaths"] == 1 && now["status"]["phase"] == "ready").then_some(())
    });
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu0"), daemon);
    assert_eq!(host.daemon("gpu0")["status"]["incarnation"], 2);
    assert!(!is_alive(server));
    client.ended();
    assert!(host.clients().is_empty());
    assert_limits(&host);
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
}

#[test]
fn daemons_survive_killed_manager_and_are_adopted() {
    let mut host = Host::ready();
    let mut client = host.run_client("demo");
    let daemons = ["gpu0", "gpu1"].map(|name| (host.daemon_pid(name), host.server_pid(name)));
    let changes = host.changes("gpu0") + host.changes("gpu1");
    assert_eq!(host.end_manager(Signal::KILL), None);
    for (daemon, server) in daemons {
        assert!(is_alive(daemon) && is_alive(server));
    }
    host.serve();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| (host.daemon_pid(name), host.server_pid(name))), daemons);
    assert!(client.is_running());
    let listed = host.listed(client.pid());
    assert_eq!((&listed["tenant"], &listed["attributed_by"]), (&json!("demo"), &json!("lease")));
    assert_limits(&host);
    assert_eq!(host.changes("gpu0") + host.changes("gpu1"), changes, "nothing had to be written again");
    assert_eq!(
        host.run_command("demo", &["true"]).output().unwrap().status.code(),
        Some(2),
        "its place is held"
    );
}

#[test]
fn daemons_survive_graceful_manager_shutdown() {
    let mut host = Host::ready();
    let mut client = host.client("demo");
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    assert_eq!(host.end_manager(Signal::TERM), Some(0), "{}", host.log());
    assert!(daemons.into_iter().all(is_alive));
    assert!(client.is_running());
    assert!(!host.runtime("api.sock").exists());
    host.serve();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons);
}

#[test]
fn answered_change_survives_a_killed_manager() {
    let mut host = Host::ready();
    let spec =
        json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "3G", "active_thread_percentage": 50});
    // Answered is written: whatever the driver had done of it by then.
    assert_eq!(host.api().tenant("late", &spec).status, 201);
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/tenants/late").ok()["spec"]["device_memory_limit"], 3_u64 << 30);
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "3G");
}

#[test]
fn daemon_that_died_without_manager_is_restarted() {
    let mut host = Host::ready();
    let daemon = host.daemon_pid("gpu0");
    host.end_manager(Signal::KILL);
    signal(daemon, Signal::KILL);
    host.serve();
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu0"), daemon);
    assert_limits(&host);
}

#[test]
fn interrupted_operation_is_finished_by_next_manager() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let before = host.daemon_pid("gpu0");
    // It waits for the client, for as long as the grace lasts.
    let accepted = host.api().post("/api/v1/daemons/gpu0/restart?grace_s=600", &json!({}));
    host.await_phase("gpu0", "stopping");
    host.end_manager(Signal::KILL);
    drop(client);
    host.serve();
    let operation = host.api().succeeds(&accepted);
    assert_eq!(operation["request"]["kind"], "restart_daemon");
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu0"), before);
    assert_limits(&host);
}

#[test]
fn resumed_restart_does_not_count_adopted_process() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let before = host.daemon_pid("gpu0");
    let accepted = host.api().post("/api/v1/daemons/gpu0/restart?grace_s=2", &json!({}));
    host.await_phase("gpu0", "stopping");
    host.end_manager(Signal::KILL);
    host.serve();
    let operation = host.api().succeeds(&accepted);
    let steps = operation["steps"].as_array().unwrap();
    assert_eq!(steps[0]["outcome"], before.to_string());
    let replaced = steps.iter().rev().find(|step| step["name"] == "stop").unwrap();
    assert_ne!(replaced["outcome"], format!("replaced by process {before}"));
    drop(client);
}

#[test]
fn manager_shutdown_does_not_await_stopping_daemon() {
    let mut host = Host::ready();
    let mut client = host.client("demo");
    let accepted = host.api().post("/api/v1/daemons/gpu0/stop?grace_s=600", &json!({}));
    host.await_phase("gpu0", "stopping");
    assert_eq!(host.end_manager(Signal::TERM), Some(0), "{}", host.log());
    assert!(client.is_running());
    drop(client);
    host.serve();
    host.api().succeeds(&accepted);
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "stopped");
}
