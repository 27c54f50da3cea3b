//! Two daemons on one GPU: never without saying what that means.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Host, InProcess, Served, eventually, is_alive};

fn delete(host: &Served, name: &str) {
    host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{name}?grace_s=1")));
}

fn condition(daemon: &Value, kind: &str) -> Option<Value> {
    let conditions = daemon["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

#[test]
fn daemon_beside_foreign_one_needs_share_gpus() {
    let host = InProcess::ready();
    delete(&host, "gpu1");
    let foreign = host.foreign("theirs", "1");
    let (pid, changes) = (foreign.pid(), foreign.changes());
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    let blocked = host.await_phase("gpu1", "blocked");
    let ready = condition(&blocked, "Ready").unwrap();
    assert_eq!(ready["reason"], "GpuSharedWithForeignDaemon");
    let message = ready["message"].as_str().unwrap();
    for word in [&pid.to_string(), "take turns", "adopt it", "share_gpus", foreign.pipe().to_str().unwrap()] {
        assert!(message.contains(word), "{word} is not in {message}");
    }
    assert_eq!(blocked["status"]["pid"], json!(null));
    assert_eq!(condition(&host.daemon("gpu0"), "SharesGpu"), None, "the other GPU is not concerned");

    let spec = json!({"gpus": ["1"], "share_gpus": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_ready();
    let shares = condition(&host.daemon("gpu1"), "SharesGpu").expect("reported for as long as it is true");
    assert!(shares["message"].as_str().unwrap().contains(&pid.to_string()), "{shares}");
    assert!(is_alive(pid));
    assert_eq!(foreign.changes(), changes, "nothing was sent to it");
    foreign.quit();
    eventually("it is no longer reported", || {
        condition(&host.daemon("gpu1"), "SharesGpu").is_none().then_some(())
    });
}

#[test]
fn deleted_daemon_is_not_reported_as_sharing() {
    let host = InProcess::ready();
    for round in 0..3 {
        let (old, new) = if round % 2 == 0 { ("gpu1", "other") } else { ("other", "gpu1") };
        for tenant in host.api().get("/api/v1/tenants?daemon=gpu1").ok()["items"].as_array().expect("items") {
            let name = tenant["name"].as_str().expect("a name");
            assert_eq!(host.api().delete(&format!("/api/v1/tenants/{name}")).status, 204);
        }
        // The last scan may still have found the daemon that is ending.
        delete(&host, old);
        assert_eq!(host.api().put(&format!("/api/v1/daemons/{new}"), &json!({"gpus": ["1"]})).status, 201);
        eventually("the new daemon is ready, and no other daemon is reported", || {
            let daemon = host.daemon(new);
            assert_eq!(condition(&daemon, "SharesGpu"), None, "{daemon}");
            assert_ne!(condition(&daemon, "Ready").expect("one")["reason"], "GpuSharedWithForeignDaemon");
            (daemon["status"]["phase"] == "ready").then_some(())
        });
    }
}

#[test]
fn waiting_daemon_starts_once_foreign_one_quits() {
    let host = InProcess::ready();
    delete(&host, "gpu1");
    // Without CUDA_VISIBLE_DEVICES it serves every GPU.
    let foreign = host.foreign_with("theirs", &[], &["-M"]);
    let shares = eventually("reported for a running daemon", || condition(&host.daemon("gpu0"), "SharesGpu"));
    assert!(
        shares["message"].as_str().unwrap().contains("admission here knows only its own tenants"),
        "{shares}"
    );
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "ready", "it still serves");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    host.await_phase("gpu1", "blocked");
    foreign.quit();
    host.await_ready();
    assert_eq!(condition(&host.daemon("gpu0"), "SharesGpu"), None);
}

#[test]
fn only_one_of_two_managers_starts_daemon() {
    let first = Host::ready();
    let mut second = Host::new("");
    fs::create_dir(second.runtime("")).unwrap();
    std::os::unix::fs::symlink(first.runtime("sim"), second.runtime("sim")).unwrap();
    second.serve();
    let (pid, changes) = (first.daemon_pid("gpu0"), first.changes("gpu0"));
    for name in ["gpu0", "gpu1"] {
        let blocked = second.await_phase(name, "blocked");
        let ready = condition(&blocked, "Ready").unwrap();
        assert_eq!(ready["reason"], "GpuSharedWithForeignDaemon");
        let message = ready["message"].as_str().unwrap();
        assert!(message.contains("started by another mps-manager"), "{message}");
    }
    assert_eq!(second.api().get("/readyz").status, 503);
    let seen = second.foreign_daemons();
    assert_eq!(seen.len(), 2, "{seen:?}");
    let theirs = seen.iter().find(|daemon| daemon["pid"] == pid).unwrap();
    assert!(theirs["held_by"].as_str().is_some_and(|token| token.len() == 32), "{theirs}");
    assert_eq!(theirs["adoption"]["managed"]["possible"], false);
    let body = |management: &str| json!({"process": theirs["id"], "management": management});
    let refused =
        second.api().post("/api/v1/daemons/theirs/adopt", &body("managed")).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("another mps-manager"), "{refused}");
    let observed = second.api().post("/api/v1/daemons/theirs/adopt", &body("observed"));
    assert_eq!(observed.status, 201, "{}", observed.text);
    second.await_phase("theirs", "observed");
    let mut spec = second.daemon("theirs")["spec"].clone();
    spec["management"] = json!("managed");
    spec["gpus"] = json!(["1"]);
    let refused = second.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("another mps-manager"), "{refused}");
    // The first is not affected.
    assert_eq!(first.api().get("/readyz").status, 200);
    assert_eq!((first.daemon_pid("gpu0"), first.changes("gpu0")), (pid, changes));
    assert_eq!(first.foreign_daemons(), [] as [Value; 0], "the second has started none");
}
