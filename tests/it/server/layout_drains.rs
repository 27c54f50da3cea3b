//! Layouts that wait for the clients of the partitions that they remove, while the other partitions go on.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{apply, host, matches, partitions, post, write};
use super::partition_tenants::{bound, tenants};
use crate::harness::{Answer, Host, InProcess, Manager, Served, Simulated, eventually, stderr_of};

/// A host with `kept` in a partition that the next version keeps, and `moved` in one that it enlarges.
fn host_with_two<M: Manager>() -> Simulated<M> {
    let host = host();
    tenants(&host, &["kept", "moved"]);
    write(&host, "prod", &[bound("a", 4, &["kept"]), bound("b", 3, &["moved"])]);
    apply(&host, "prod", &json!({}));
    write(&host, "prod", &[bound("a", 4, &["kept"]), bound("b", 5, &["moved"])]);
    host
}

fn drained(host: &Served, limit: &Value) -> Answer {
    post(host, "prod", "apply", &json!({"recreate": true, "drain": limit}))
}

fn place(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    accepted.header("location").expect("a place").to_owned()
}

/// Waits until the operation waits for this process.
fn await_wait(host: &Served, place: &str, pid: u32) {
    eventually("it waits for the client", || {
        let operation = host.api().get(place).ok();
        let outcome = operation["steps"].as_array()?.last()?["outcome"].as_str()?.to_owned();
        outcome.contains(&format!("waits for 1 client ({pid}-")).then_some(())
    });
}

#[test]
fn drained_partition_is_applied_when_its_client_ends() {
    let host: InProcess = host_with_two();
    let (kept, moved) = (host.run_client("kept"), host.run_client("moved"));
    let plan = post(&host, "prod", "plan", &json!({})).ok();
    assert_eq!(plan["summary"], "a keeps its 32 SMs; b grows from 24 to 40 SMs; 1 client must stop first");
    post(&host, "prod", "apply", &json!({"recreate": true})).problem(409, "layout-blocked");
    let accepted = drained(&host, &json!({"timeout_s": 600}));
    await_wait(&host, &place(&accepted), moved.pid());

    // The tenant of the partition is closed meanwhile, and the other one is not.
    let refused = host.run("moved", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("its partition is emptied for another layout"),
        "{}",
        stderr_of(&refused)
    );
    let ready = &host.api().get("/api/v1/tenants/moved").ok()["status"]["conditions"][0].clone();
    assert_eq!((&ready["status"], &ready["reason"]), (&json!(false), &json!("PartitionDrained")), "{ready}");
    assert_eq!(host.run("kept", &["true"]).status.code(), Some(0));

    drop(moved);
    assert_eq!(host.api().succeeds(&accepted)["state"], "succeeded");
    assert!(matches(&host, "prod"));
    host.await_ready();
    assert_eq!(host.run("moved", &["true"]).status.code(), Some(0), "it admits processes again");
    drop(kept);
}

#[test]
fn drain_that_runs_out_changes_nothing() {
    let host: InProcess = host_with_two();
    let mut moved = host.run_client("moved");
    let before = partitions(&host);
    let operation = host.api().outcome(&drained(&host, &json!({"timeout_s": 1, "on_timeout": "fail"})));
    assert_eq!(operation["state"], "failed", "{operation}");
    assert!(operation["error"].as_str().unwrap().contains("still there after 1 s: 1 client"), "{operation}");
    assert_eq!(partitions(&host), before);
    assert!(moved.is_running());
    host.await_ready();
    assert_eq!(host.run("moved", &["true"]).status.code(), Some(0), "it admits processes again");
}

#[test]
fn drain_terminates_only_clients_in_the_way() {
    let host: InProcess = host_with_two();
    let (mut kept, mut moved) = (host.run_client("kept"), host.run_client("moved"));
    let accepted = drained(&host, &json!({"timeout_s": 0, "on_timeout": "terminate"}));
    assert_eq!(host.api().succeeds(&accepted)["state"], "succeeded");
    assert!(!moved.ended().success(), "it was terminated");
    assert!(kept.is_running() && matches(&host, "prod"));
}

#[test]
fn cancelled_drain_opens_its_tenants() {
    let host: InProcess = host_with_two();
    let moved = host.run_client("moved");
    let place = place(&drained(&host, &json!({})));
    await_wait(&host, &place, moved.pid());
    host.api().post(&format!("{place}/cancel"), &json!({})).ok();
    eventually("it is cancelled", || (host.api().get(&place).ok()["state"] == "cancelled").then_some(()));
    host.await_ready();
    assert_eq!(host.run("moved", &["true"]).status.code(), Some(0));
}

#[test]
fn killed_manager_goes_on_with_a_drain() {
    let mut host: Host = host_with_two();
    let moved = host.run_client("moved");
    let place = place(&drained(&host, &json!({"timeout_s": 600})));
    await_wait(&host, &place, moved.pid());
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(host.run("moved", &["true"]).status.code(), Some(2), "it is still closed");
    await_wait(&host, &place, moved.pid());
    drop(moved);
    eventually("it is applied", || (host.api().get(&place).ok()["state"] == "succeeded").then_some(()));
    assert!(matches(&host, "prod"));
    assert_eq!(host.run("moved", &["true"]).status.code(), Some(0));
}

#[test]
fn implausible_drain_is_refused() {
    let host: InProcess = host_with_two();
    let refused = drained(&host, &json!({"timeout_s": 86_401})).problem(422, "invalid-request");
    assert_eq!(refused["errors"][0]["pointer"], "/drain/timeout_s", "{refused}");
    let refused = drained(&host, &json!({"on_timeout": "kill"})).problem(422, "invalid-request");
    assert!(refused["errors"][0]["pointer"].as_str().unwrap().starts_with("/drain"), "{refused}");
}
