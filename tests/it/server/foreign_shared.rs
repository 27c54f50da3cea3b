//! Two daemons on one GPU: never without saying what that means.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::incidents::{incident, recovered};
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
    for word in [&pid.to_string(), "take turns", "quit it", "share_gpus", foreign.pipe().to_str().unwrap()] {
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
fn job_daemon_is_incident_with_its_tenant() {
    let mut host = Host::ready();
    let environment = [("CUDA_VISIBLE_DEVICES", "0"), ("MPS_MANAGER_TENANT", "batch")];
    let foreign = host.foreign_with("theirs", &environment, &[]);
    let shared = incident(&host, "gpu_shared", |one| one["state"] == "open");
    assert_eq!((&shared["daemon"], &shared["tenants"]), (&json!("gpu0"), &json!(["batch"])));
    let (summary, pid) = (shared["summary"].as_str().unwrap(), foreign.pid());
    for words in ["not this manager's, with tenant batch in its environment", &pid.to_string()] {
        assert!(summary.contains(words), "{words} is not in {summary}");
    }
    let message = condition(&host.daemon("gpu0"), "SharesGpu").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().contains("its environment names tenant batch"), "{message}");
    let listed = &host.foreign_daemons()[0];
    assert_eq!((&listed["owner"]["tenant"], &listed["owner"]["parent"]), (&json!("batch"), &json!(null)));
    assert!(listed["remedy"].as_str().unwrap().starts_with("take the lines"), "{listed}");
    let metric = "mps_manager_incidents_open{kind=\"gpu_shared\",severity=\"warning\"} 1";
    eventually("it is in the metrics", || host.api().get("/metrics").text.contains(metric).then_some(()));

    // The next manager knows that it is reported.
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    foreign.quit();
    let over = incident(&host, "gpu_shared", recovered);
    assert_eq!((&over["id"], &over["occurrences"]), (&shared["id"], &json!(1)));
    let kinds = host.api().get("/api/v1/events?type=foreign_daemon.").ok()["items"].clone();
    let kinds: Vec<&str> =
        kinds.as_array().unwrap().iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["foreign_daemon.ended", "foreign_daemon.appeared"]);
}

#[test]
fn sharing_that_is_allowed_ends_its_incident() {
    let host = InProcess::ready();
    let foreign = host.foreign("theirs", "1");
    let open = incident(&host, "gpu_shared", |one| one["state"] == "open");
    let mut spec = host.daemon("gpu1")["spec"].clone();
    spec["share_gpus"] = json!(true);
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    assert_eq!(incident(&host, "gpu_shared", recovered)["id"], open["id"]);
    spec["share_gpus"] = json!(false);
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    incident(&host, "gpu_shared", |one| one["state"] == "open");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    incident(&host, "gpu_shared", recovered);
    foreign.quit();
}

#[test]
fn supervised_daemon_is_shown_with_who_keeps_it() {
    let host = InProcess::ready();
    delete(&host, "gpu1");
    let foreign = host.foreign("theirs", "1");
    foreign.quit();
    let world = host.runtime("sim");
    let script = format!("while :; do {}/bin/nvidia-cuda-mps-control -f; sleep 0.1; done", world.display());
    let mut supervisor = Command::new("sh");
    supervisor.args(["-c", &script]).env("MPS_SIM_WORLD", &world).env("CUDA_VISIBLE_DEVICES", "1");
    supervisor.env("CUDA_MPS_PIPE_DIRECTORY", foreign.pipe()).env("CUDA_MPS_LOG_DIRECTORY", foreign.log());
    let mut supervisor = supervisor.stdout(Stdio::null()).spawn().unwrap();
    let keeper = format!("sh ({})", supervisor.id());
    let listed = eventually("it is found", || {
        host.foreign_daemons().into_iter().find(|one| one["owner"]["parent"] == json!(keeper))
    });
    assert!(listed["remedy"].as_str().unwrap().starts_with(&format!("end {keeper} first")), "{listed}");
    let notes = listed["adoption"]["managed"]["notes"].clone();
    assert!(notes.to_string().contains(&format!("kept by {keeper}")), "{notes}");
    let table = host.cli(&["foreign", "list"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains(&format!("kept by {keeper}")));
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    foreign.quit();
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
