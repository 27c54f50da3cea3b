//! Operations on a daemon that something stands in the way of: over at once where it takes a hand, and telling what
//! they wait for where it may pass.

use std::fs;

use serde_json::{Value, json};

use super::foreign::delete;
use crate::harness::{Host, InProcess, Served, SmallDisk, eventually, is_alive, signal};

fn ask(host: &Served, what: &str) -> Value {
    host.api().outcome(&host.api().post(&format!("/api/v1/daemons/gpu1/{what}"), &json!({})))
}

#[test]
fn start_beside_foreign_daemon_fails_with_remedy() {
    let host = InProcess::ready();
    delete(&host, "gpu1");
    let foreign = host.foreign("theirs", "1");
    let stopped = json!({"gpus": ["1"], "desired_state": "stopped"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &stopped).status, 201);
    host.await_phase("gpu1", "stopped");
    // The second time it is blocked already, and nothing about that has changed.
    for what in ["start", "start", "restart?grace_s=1"] {
        let operation = ask(&host, what);
        assert_eq!(operation["state"], "failed", "{operation}");
        let error = operation["error"].as_str().unwrap();
        let served = format!("is served by control daemon {}", foreign.pid());
        for words in [served.as_str(), "share_gpus", "as soon as"] {
            assert!(error.contains(words), "{error}");
        }
    }
    assert!(is_alive(foreign.pid()));
    assert_eq!(host.daemon("gpu1")["spec"]["desired_state"], "running");
    // What was in the way a moment ago is no reason now.
    foreign.quit();
    let operation = ask(&host, "start");
    assert_eq!(operation["state"], "succeeded", "{operation}");
    host.await_ready();
}

#[test]
fn waiting_start_names_its_blocker() {
    let host = Host::ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    let uuid = host.api().get("/api/v1/gpus/1").ok()["uuid"].as_str().unwrap().to_owned();
    // A directory where the driver would write.
    let draft = host.runtime("sim/gpus").join(uuid).join(format!("compute_mode.set-{}", host.manager_pid()));
    fs::create_dir(&draft).unwrap();
    let spec = json!({"gpus": ["1"], "compute_mode": "exclusive_process", "desired_state": "stopped"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    let accepted = host.api().post("/api/v1/daemons/gpu1/start", &json!({}));
    let place = accepted.header("location").unwrap().to_owned();
    let waiting = eventually("it says what it waits for", || {
        let operation = host.api().get(&place).ok();
        let step = operation["steps"].as_array().unwrap().last().cloned()?;
        step["outcome"].as_str().is_some_and(|outcome| outcome.starts_with("waits: ")).then_some(operation)
    });
    assert_eq!(waiting["state"], "running");
    let step = &waiting["steps"][1];
    assert_eq!((&step["name"], &step["finished_at"]), (&json!("wait until ready"), &json!(null)));
    assert!(step["outcome"].as_str().unwrap().contains("cannot be set to"), "{step}");
    fs::remove_dir(&draft).unwrap();
    let operation = host.api().succeeds(&accepted);
    assert!(operation["steps"][1]["outcome"].as_str().unwrap().contains("read back"), "{operation}");
}

#[test]
fn startup_on_full_disk_finishes_operations_later() {
    let mut host = Host::new("control_deadline_s = 60");
    let state = host.state("");
    let Some(disk) = SmallDisk::mount(&state, 16) else { return };
    host.serve();
    host.await_ready();
    let client = host.stopping_client("demo");
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    let accepted = host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    eventually("it is sent", || (host.logged("gpu0", "Cmd:terminate_client") == 1).then_some(()));
    host.end_manager(rustix::process::Signal::KILL);
    let filler = disk.fill();
    host.serve();
    eventually("its end cannot be written", || {
        host.log().contains("the end of the operation cannot be written yet").then_some(())
    });
    let place = accepted.header("location").unwrap();
    assert_eq!(host.api().get(place).ok()["state"], "running");
    fs::remove_file(filler).unwrap();
    let operation = host.api().outcome(&accepted);
    assert_eq!(operation["state"], "failed");
    assert!(operation["error"].as_str().unwrap().contains("the manager was restarted"), "{operation}");
    signal(client.pid(), rustix::process::Signal::CONT);
    host.await_ready();
}
