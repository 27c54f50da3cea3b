//! The state directory is lost: the daemons run on, and an administrator takes them back with their clients.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, apply, partitions, static_host, write};
use crate::harness::{Host, Served, is_alive, pid, stderr_of};

/// The control daemon and the server of a daemon.
fn processes(host: &Served, daemon: &str) -> (u32, u32) {
    (host.daemon_pid(daemon), host.server_pid(daemon))
}

/// What is in force in a daemon.
fn in_force(host: &Served, daemon: &str) -> Value {
    let mut effective =
        host.api().get(&format!("/api/v1/daemons/{daemon}?fresh=true")).ok()["status"]["effective"].clone();
    for volatile in ["observed_at", "control_processes"] {
        effective.as_object_mut().unwrap().remove(volatile);
    }
    effective
}

#[test]
fn daemons_of_lost_database_are_taken_back() {
    let mut host = Host::ready();
    let mut client = host.client("demo");
    let before = ["gpu0", "gpu1"].map(|daemon| processes(&host, daemon));
    let settings = ["gpu0", "gpu1"].map(|daemon| in_force(&host, daemon));
    let gpus = ["gpu0", "gpu1"].map(|daemon| host.daemon(daemon)["spec"]["gpus"].clone());
    host.end_manager(Signal::KILL);
    fs::remove_dir_all(host.state("")).unwrap();
    host.serve();

    // Nothing is known of them, and the examples of a new simulated host do not take their place.
    assert_eq!(host.api().get("/api/v1/daemons").ok()["items"], json!([]));
    let foreign = host.api().get("/api/v1/foreign-daemons").ok();
    let refusal = foreign["items"][0]["adoption"]["managed"]["reason"].as_str().unwrap();
    assert!(refusal.contains("daemon adopt --all-ours"), "{refusal}");
    let rehearsed = host.api().post("/api/v1/foreign-daemons/adopt-lost?dry_run=true", &json!({})).ok();
    assert_eq!(rehearsed["daemons"][0]["name"], "gpu0");
    assert_eq!(
        (&rehearsed["daemons"][0]["clients"], &rehearsed["daemons"][0]["adopted"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(host.api().get("/api/v1/daemons").ok()["items"], json!([]), "a dry run");

    let status = host.cli(&["status"]);
    let status = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(status.contains("lost daemons of its own: `mps-manager daemon adopt --all-ours`"), "{status}");

    let unasked = host.cli(&["daemon", "adopt", "--all-ours"]);
    assert_eq!(unasked.status.code(), Some(2), "there is no terminal to ask on");
    assert!(stderr_of(&unasked).contains("add --yes"), "{}", stderr_of(&unasked));
    assert!(String::from_utf8_lossy(&unasked.stdout).contains("1 client"));
    let adopted = host.cli(&["daemon", "adopt", "--all-ours", "--yes"]);
    let text = String::from_utf8_lossy(&adopted.stdout).into_owned();
    assert_eq!(adopted.status.code(), Some(0), "{text}{}", stderr_of(&adopted));
    assert!(text.contains("adopted: gpu0 ") && text.contains("tenants are not known any more"), "{text}");
    host.await_ready();

    assert_eq!(["gpu0", "gpu1"].map(|daemon| processes(&host, daemon)), before);
    assert_eq!(["gpu0", "gpu1"].map(|daemon| in_force(&host, daemon)), settings);
    assert_eq!(["gpu0", "gpu1"].map(|daemon| host.daemon(daemon)["spec"]["gpus"].clone()), gpus);
    assert!(client.is_running());
    assert_eq!(host.clients().iter().map(|client| pid(&client["pid"])).collect::<Vec<_>>(), [client.pid()]);
    assert_eq!(host.api().get("/api/v1/foreign-daemons").ok()["items"], json!([]));
    assert_eq!(host.api().get("/api/v1/tenants").ok()["items"], json!([]));
    let events = host.api().get("/api/v1/events?type=daemon.adopted&order=oldest").ok();
    assert_eq!(events["items"][0]["message"], "daemon gpu0 was adopted with its running process");
    let again = host.cli(&["daemon", "adopt", "--all-ours"]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr_of(&again));
    let none = host.cli(&["daemon", "adopt", "--all-ours", "--yes", "-o", "json"]);
    let none: Value = serde_json::from_slice(&none.stdout).expect("JSON");
    assert_eq!(none, json!({"daemons": []}));
    assert!(String::from_utf8_lossy(&again.stdout).contains("No daemon of this manager"));

    // They are its own again: a restart adopts them, a tenant comes back, and a delete stops one.
    host.end_manager(Signal::TERM);
    host.serve();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|daemon| processes(&host, daemon)), before);
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "4G", "max_clients": 2});
    assert_eq!(host.api().tenant("demo", &spec).status, 201);
    host.await_ready();
    assert!(client.is_running());
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1"));
    crate::harness::eventually("gpu1 is stopped", || (!is_alive(before[1].0)).then_some(()));
}

#[test]
fn only_own_and_unknown_daemons_are_taken_back() {
    let mut host = Host::ready();
    let before = processes(&host, "gpu0");
    let other = Host::ready();
    let theirs = processes(&other, "gpu0");
    host.end_manager(Signal::TERM);
    fs::remove_dir_all(host.state("")).unwrap();
    host.serve();
    let gpu = host.api().get("/api/v1/gpus/0").ok()["uuid"].clone();
    // Its GPU was given to another name meanwhile: that one waits, and gpu0 is not adopted beside it.
    let spec = json!({"gpus": [gpu], "desired_state": "stopped"});
    assert_eq!(host.api().put("/api/v1/daemons/another", &spec).status, 201);
    let done = host.api().post("/api/v1/foreign-daemons/adopt-lost", &json!({})).ok();
    let found = done["daemons"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{done}");
    assert_eq!((&found[0]["name"], &found[0]["adopted"]), (&json!("gpu0"), &json!(false)));
    assert!(found[0]["reason"].as_str().unwrap().contains("belongs to daemon another"), "{done}");
    assert_eq!((&found[1]["name"], &found[1]["adopted"]), (&json!("gpu1"), &json!(true)));
    host.api().succeeds(&host.api().delete("/api/v1/daemons/another"));
    let adopted = host.cli(&["daemon", "adopt", "--all-ours", "--yes"]);
    assert_eq!(adopted.status.code(), Some(0), "{}", stderr_of(&adopted));
    host.await_ready();
    assert_eq!(processes(&host, "gpu0"), before);
    assert_eq!(processes(&other, "gpu0"), theirs);
    assert_eq!(
        other.api().post("/api/v1/foreign-daemons/adopt-lost", &json!({})).ok(),
        json!({"daemons": []})
    );
}

#[test]
fn partitions_survive_being_taken_back() {
    let mut host: Host = static_host("h200x2");
    write(&host, "mine", &[add("web", 7), add("jobs", 5)]);
    apply(&host, "mine", &json!({}));
    // Their names are the layout's, which is lost; MPS knows them by ID.
    let ids = |host: &Host| partitions(host).into_iter().map(|(_, id)| id).collect::<Vec<_>>();
    let (before, running) = (ids(&host), processes(&host, "gpu1"));
    host.end_manager(Signal::KILL);
    fs::remove_dir_all(host.state("")).unwrap();
    host.serve();
    let done = host.api().post("/api/v1/foreign-daemons/adopt-lost", &json!({})).ok();
    assert!(done["daemons"].as_array().unwrap().iter().all(|daemon| daemon["adopted"] == true), "{done}");
    crate::harness::eventually("gpu1 was polled", || {
        let daemon = host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
        (daemon["status"]["effective"] != Value::Null).then_some(())
    });
    assert_eq!(ids(&host), before);
    assert_eq!(processes(&host, "gpu1"), running);
}
