//! Who has the GPUs open in maintenance: whose each is, and what is reported when that is unknown.

use std::fs;

use serde_json::{Value, json};

use super::foreign::beside_another;
use crate::harness::{Host, InProcess, Served, eventually, is_alive, pid};

const PATH: &str = "/api/v1/host/maintenance";

fn now(host: &Served) -> Value {
    host.api().get(PATH).ok()
}

/// Who has a GPU open in maintenance, and whether each counts as the manager's.
fn holders(host: &Served) -> Vec<(u32, bool)> {
    let now = now(host);
    let holders = now["holders"].as_array().unwrap_or_else(|| panic!("{now}")).iter();
    holders.map(|holder| (pid(&holder["pid"]), holder["ours"] == true)).collect()
}

#[test]
fn holders_mark_adopted_daemon_but_not_clients() {
    let (host, foreign, client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let (control, server) = (foreign.pid(), host.server_pid("theirs"));
    let gpus = host.daemon("theirs")["spec"]["gpus"].clone();
    let begun = host.api().post(PATH, &json!({"gpus": gpus, "timeout_s": 600}));
    eventually("the owners are reported", || {
        let now = holders(&host);
        let known = |pid, ours| now.contains(&(pid, ours));
        (known(control, true) && known(server, true) && known(client.pid(), false)).then_some(())
    });
    drop(client);
    host.api().succeeds(&begun);
    assert_eq!((is_alive(control), is_alive(server), holders(&host)), (false, false, Vec::new()));
    host.api().succeeds(&host.api().delete(PATH));
    host.await_ready();
}

#[test]
fn daemon_started_by_another_is_not_ours() {
    let (host, foreign, client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    drop(client);
    host.api().succeeds(&host.api().post("/api/v1/daemons/theirs/stop", &json!({})));
    foreign.start();
    let (control, client) = (foreign.pid(), foreign.client());
    host.api().succeeds(&host.api().post(PATH, &json!({"timeout_s": 5})));
    let found = holders(&host);
    assert!(found.contains(&(control, false)) && found.contains(&(client.pid(), false)), "{found:?}");
    assert!(is_alive(control));
    drop(client);
    foreign.quit();
    host.api().succeeds(&host.api().delete(PATH));
}

#[test]
fn observed_own_daemon_does_not_stop_maintenance() {
    let host = Host::ready();
    let mut spec = host.daemon("gpu1")["spec"].clone();
    spec["management"] = json!("observed");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_phase("gpu1", "observed");
    let control = host.daemon_pid("gpu1");
    host.api().succeeds(&host.api().post(PATH, &json!({"timeout_s": 5})));
    assert!(holders(&host).contains(&(control, false)), "{:?}", holders(&host));
    assert!(is_alive(control));
    host.api().succeeds(&host.api().delete(PATH));
    host.await_ready();
}

#[test]
fn maintenance_progress_is_shown_despite_driver_errors() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let accepted = host.api().post(PATH, &json!({"timeout_s": 600}));
    let draining = eventually("it drains", || Some(now(&host)).filter(|now| now["state"] == "draining"));
    assert!(draining["holders"].as_array().is_some_and(|holders| !holders.is_empty()), "{draining}");
    assert_eq!((&draining["holders_unknown"], &draining["unproven"]), (&json!(null), &json!([])));
    let (world, away) = (host.runtime("sim/world.json"), host.runtime("sim/away.json"));
    fs::rename(&world, &away).unwrap();
    let reported = now(&host);
    fs::rename(&away, &world).unwrap();
    assert_eq!((&reported["state"], &reported["holders"]), (&json!("draining"), &json!(null)));
    assert!(reported["holders_unknown"].as_str().unwrap().contains("world.json"), "{reported}");
    assert_eq!(reported["unproven"], reported["gpus"]);
    drop(client);
    host.api().succeeds(&accepted);
    host.api().succeeds(&host.api().delete(PATH));
    host.await_ready();
}
