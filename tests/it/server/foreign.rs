//! Daemons that others started: listed, adopted, observed, given back, and never disturbed.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Client, Foreign, Host, InProcess, Manager, Served, Simulated, environment, eventually, is_alive, signal,
    stderr_of,
};

/// Takes a daemon out of the manager's hands, so that its GPU is free.
pub(super) fn delete(host: &Served, name: &str) {
    host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{name}?grace_s=1")));
}

/// A host whose second GPU a foreign daemon serves, with settings of their own and a client.
pub(super) fn beside_another<M: Manager>() -> (Simulated<M>, Foreign, Client) {
    let host = Simulated::ready();
    delete(&host, "gpu1");
    let foreign = host.foreign("theirs", "1");
    foreign.control(
        "set_default_device_pinned_mem_limit 0 1536M\nset_default_active_thread_percentage 40\nset_default_client_priority 1",
    );
    let client = foreign.client();
    eventually("the client is listed", || {
        let listed = foreign.control("ps").contains(&client.pid().to_string());
        listed.then_some(())
    });
    (host, foreign, client)
}

pub(super) fn condition(daemon: &Value, kind: &str) -> Option<Value> {
    let conditions = daemon["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

#[test]
fn foreign_daemon_is_found_in_any_directory() {
    let (host, foreign, client): (Host, _, _) = beside_another();
    let all = host.foreign_daemons();
    assert_eq!(all.len(), 1, "our own are none of them: {all:?}");
    let daemon = &all[0];
    let gpu = host.api().get("/api/v1/gpus/1").ok()["uuid"].clone();
    assert_eq!(
        (&daemon["pid"], &daemon["uid"]),
        (&json!(foreign.pid()), &json!(rustix::process::geteuid().as_raw()))
    );
    assert_eq!((&daemon["gpus"], &daemon["options"]), (&json!([gpu]), &json!(["-d"])));
    assert_eq!((&daemon["multi_user"], &daemon["held_by"]), (&json!(false), &json!(null)));
    assert_eq!(daemon["pipe_directory"], foreign.pipe().to_str().unwrap());
    assert_eq!(daemon["log_directory"], foreign.log().to_str().unwrap());
    let effective = &daemon["effective"];
    assert_eq!(effective["default_active_thread_percentage"], 40.0);
    assert_eq!(effective["default_priority"], "below_normal");
    assert_eq!(effective["servers"][0]["status"], "ACTIVE");
    assert_eq!(effective["servers"][0]["memory_limits"][0]["bytes"], 1536u64 << 20, "as server.log says");
    assert_eq!(daemon["clients"][0]["pid"], client.pid());
    assert_eq!(daemon["clients"][0]["memory"][0]["gpu"], gpu);
    let managed = &daemon["adoption"]["managed"];
    assert_eq!((&managed["possible"], &managed["reason"]), (&json!(true), &json!(null)));
    assert!(managed["notes"][0].as_str().unwrap().contains("the 1.5 GiB that its server says"), "{managed}");
    assert_eq!(daemon["unreadable"], json!(null));
    let one = host.api().get(&format!("/api/v1/foreign-daemons/{}", daemon["id"].as_str().unwrap())).ok();
    assert_eq!((&one["id"], &one["gpus"]), (&daemon["id"], &daemon["gpus"]));
    let status = host.cli(&["status"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        text.contains("Foreign control daemons") && text.contains(daemon["id"].as_str().unwrap()),
        "{text}"
    );

    drop(client);
    foreign.quit();
    // An answer holds for some milliseconds after a process has ended.
    eventually("it is gone", || host.foreign_daemons().is_empty().then_some(()));
    let gone = host.api().get(&format!("/api/v1/foreign-daemons/{}", daemon["id"].as_str().unwrap()));
    assert!(gone.problem(404, "not-found")["detail"].as_str().unwrap().contains("has ended"));
    host.api().get("/api/v1/foreign-daemons/banana").problem(404, "not-found");
}

#[test]
fn adoption_changes_nothing_and_survives_managers() {
    let (mut host, foreign, mut client): (Host, _, _) = beside_another();
    let mut others: Vec<Client> = (1..20).map(|_| foreign.client()).collect();
    let (pid, changes) = (foreign.pid(), foreign.changes());
    let dry = host.api().post(
        "/api/v1/daemons/theirs/adopt?dry_run=true",
        &json!({"process": host.foreign_id(&foreign), "management": "managed"}),
    );
    assert_eq!((dry.status, dry.ok()["status"].clone()), (200, json!(null)));
    host.api().get("/api/v1/daemons/theirs").problem(404, "not-found");

    let adopted = host.adopt("theirs", &foreign, "managed");
    assert_eq!(adopted.status, 201, "{}", adopted.text);
    let spec = &adopted.json()["spec"];
    assert_eq!(
        spec["defaults"],
        json!({"device_memory_limit": 1536u64 << 20, "active_thread_percentage": 40.0, "priority": "below_normal"})
    );
    assert_eq!((&spec["management"], &spec["multi_user"]), (&json!("managed"), &json!(false)));
    host.await_ready();
    assert_eq!(host.foreign_daemons(), [] as [Value; 0], "it is ours now");
    for with in [None, Some(Signal::TERM), Some(Signal::KILL)] {
        if let Some(with) = with {
            host.end_manager(with);
            host.serve();
            host.await_ready();
        }
        let daemon = host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
        assert_eq!((&daemon["status"]["pid"], &daemon["status"]["phase"]), (&json!(pid), &json!("ready")));
        assert_eq!(daemon["status"]["pipe_directory"], foreign.pipe().to_str().unwrap());
        assert_eq!(daemon["status"]["observed_generation"], daemon["generation"]);
        let listed = host.listed(client.pid());
        assert_eq!(listed["daemon"], "theirs");
        let clients = host.api().get("/api/v1/clients?limit=100").ok();
        let clients = clients["items"].as_array().unwrap();
        assert_eq!(clients.iter().filter(|client| client["daemon"] == "theirs").count(), 20);
        assert!(client.is_running() && others.iter_mut().all(Client::is_running));
        assert_eq!(foreign.changes(), changes, "nothing was written to it");
    }

    // From now on it is one of ours: a limit changed behind our back is restored, a tenant gets its directory.
    foreign.control("set_default_active_thread_percentage 10");
    eventually("the drift is undone", || {
        (foreign.control("get_default_active_thread_percentage") == "40.0").then_some(())
    });
    let tenant =
        json!({"daemon": "theirs", "uid": 0, "device_memory_limit": "1536M", "active_thread_percentage": 40});
    assert_eq!(host.api().tenant("new", &tenant).status, 201);
    host.await_ready();
    let variables = &host.api().get("/api/v1/tenants/new/environment").ok()["variables"];
    let pipe = std::path::Path::new(variables["CUDA_MPS_PIPE_DIRECTORY"].as_str().unwrap());
    assert_eq!(pipe.parent(), Some(host.runtime("tenants").as_path()), "not the daemon's own");
    assert_eq!(variables["CUDA_MPS_CLIENT_PRIORITY"], "1", "the daemon's default");
    let _ours = host.run_client("new");
    let kept = host.api().post("/api/v1/daemons/theirs/release", &json!({})).problem(409, "conflict");
    assert!(kept["detail"].as_str().unwrap().contains("serves the tenants new"), "{kept}");
    assert!(client.is_running() && is_alive(pid));
}

#[test]
fn adopted_daemon_is_released_unchanged() {
    let (host, foreign, mut client): (InProcess, _, _) = beside_another();
    let (pid, changes) = (foreign.pid(), foreign.changes());
    // Under a name that was there before, its first generation is another than 1.
    for management in ["managed", "observed", "managed"] {
        assert_eq!(host.adopt("theirs", &foreign, management).status, 201);
        host.await_ready();
        host.listed(client.pid());
        let dry = host.api().post("/api/v1/daemons/theirs/release?dry_run=true", &json!({}));
        assert_eq!(dry.status, 204, "{}", dry.text);
        assert_eq!(host.daemon("theirs")["status"]["pid"], pid);
        let stale = host.api().send(
            reqwest::Method::POST,
            "/api/v1/daemons/theirs/release",
            &[("if-match", "\"7\"")],
            Some("{}".into()),
        );
        stale.problem(412, "precondition-failed");
        assert_eq!(host.api().post("/api/v1/daemons/theirs/release", &json!({})).status, 204);
        host.api().get("/api/v1/daemons/theirs").problem(404, "not-found");
        assert_eq!(host.foreign_daemons()[0]["pid"], pid, "it is foreign again");
    }
    assert!(is_alive(pid) && client.is_running());
    assert_eq!(foreign.changes(), changes, "nothing was written to it");
    // One that this manager started would be an orphan.
    let ours = host.daemon_pid("gpu0");
    host.api().delete("/api/v1/tenants/demo");
    host.api().delete("/api/v1/tenants/batch");
    let refused = host.api().post("/api/v1/daemons/gpu0/release", &json!({})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("was started by this manager"), "{refused}");
    host.api().post("/api/v1/daemons/gpu9/release", &json!({})).problem(404, "not-found");
    assert_eq!(host.daemon_pid("gpu0"), ours);
}

#[test]
fn an_observed_daemon_is_shown_and_never_touched() {
    let (host, foreign, mut client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    let daemon = host.await_phase("theirs", "observed");
    let (pid, id) = (foreign.pid(), host.listed(client.pid())["id"].as_str().unwrap().to_owned());
    assert_eq!(condition(&daemon, "Ready").unwrap()["reason"], "OnlyObserved");
    foreign.control("set_default_active_thread_percentage 10");
    let changes = foreign.changes();
    eventually("the change is seen", || {
        let daemon = host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
        (daemon["status"]["effective"]["default_active_thread_percentage"] == 10.0).then_some(())
    });
    assert_eq!(host.api().get("/readyz").status, 200, "it has no desired state");
    for action in ["start", "stop?grace_s=0", "restart?grace_s=0"] {
        let refused = host.api().post(&format!("/api/v1/daemons/theirs/{action}"), &json!({}));
        let refused = refused.problem(409, "conflict");
        assert!(refused["detail"].as_str().unwrap().contains("only observed"), "{refused}");
    }
    let refused = host.api().delete("/api/v1/daemons/theirs?grace_s=0").problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("release it"), "{refused}");
    host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({})).problem(409, "conflict");
    let tenant = json!({"daemon": "theirs", "uid": 0, "device_memory_limit": "1G"});
    let refused = host.api().tenant("new", &tenant).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("only observed"), "{refused}");
    assert_eq!(host.run("new", &["true"]).status.code(), Some(2), "there is no such tenant");
    let other = json!({"gpus": ["0", "1"], "management": "observed"});
    let refused = host.api().put("/api/v1/daemons/theirs", &other).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("never changed"), "{refused}");
    assert!(is_alive(pid) && client.is_running());
    assert_eq!(foreign.changes(), changes, "nothing was written to it");
}

#[test]
fn restarted_observed_daemon_is_followed_never_started() {
    let (mut host, foreign, client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    host.await_phase("theirs", "observed");
    drop(client);
    foreign.quit();
    let absent = host.await_phase("theirs", "absent");
    assert_eq!(condition(&absent, "Ready").unwrap()["reason"], "NotRunning");
    assert_eq!(host.api().get("/readyz").status, 200);
    assert!(!foreign.pipe().join("nvidia-cuda-mps-control.pid").exists(), "nobody started it");
    foreign.start();
    let again = host.await_phase("theirs", "observed");
    assert_eq!(again["status"]["pid"], foreign.pid());
    host.end_manager(Signal::KILL);
    host.serve();
    let again = host.await_phase("theirs", "observed");
    assert_eq!(again["status"]["pid"], foreign.pid(), "and remembered");
    // Started otherwise than it was observed, it is another daemon.
    foreign.quit();
    host.await_phase("theirs", "absent");
    let both = host.foreign_with("theirs", &[("CUDA_VISIBLE_DEVICES", "0,1")], &[]);
    let blocked = host.await_phase("theirs", "blocked");
    assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "ShapeDiffers");
    assert_eq!(host.api().post("/api/v1/daemons/theirs/release", &json!({})).status, 204);
    assert!(is_alive(both.pid()));
}

#[test]
fn observed_daemon_can_become_managed_and_back() {
    let (host, foreign, mut client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    host.await_phase("theirs", "observed");
    let pid = foreign.pid();
    let mut spec = host.daemon("theirs")["spec"].clone();
    spec["management"] = json!("managed");
    spec["defaults"]["active_thread_percentage"] = json!(50);
    assert_eq!(host.api().put("/api/v1/daemons/theirs", &spec).status, 200);
    host.await_phase("theirs", "ready");
    assert_eq!(foreign.control("get_default_active_thread_percentage"), "50.0", "as its spec says now");
    assert_eq!(
        host.api().put("/api/v1/daemons/other", &json!({"gpus": ["1"]})).status,
        409,
        "it has the GPU"
    );
    spec["management"] = json!("observed");
    assert_eq!(host.api().put("/api/v1/daemons/theirs", &spec).status, 200);
    host.await_phase("theirs", "observed");
    foreign.control("set_default_active_thread_percentage 10");
    let changes = foreign.changes();
    for _ in 0..3 {
        let daemon = host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
        assert_eq!(daemon["status"]["effective"]["default_active_thread_percentage"], 10.0);
    }
    assert_eq!((foreign.pid(), foreign.changes()), (pid, changes));
    assert!(client.is_running());
    // One of our own with tenants is not released.
    let mut ours = host.daemon("gpu0")["spec"].clone();
    ours["management"] = json!("observed");
    let refused = host.api().put("/api/v1/daemons/gpu0", &ours).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("serves tenants"), "{refused}");
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    host.await_phase("gpu0", "ready");
    let ours_pid = host.daemon_pid("gpu0");
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &ours).status, 200);
    host.await_phase("gpu0", "observed");
    // There is one way to be rid of it, and both refusals name that one.
    let refusals = [
        host.api().post("/api/v1/daemons/gpu0/release", &json!({})),
        host.api().delete("/api/v1/daemons/gpu0?grace_s=0"),
    ];
    for refused in refusals {
        let refused = refused.problem(409, "conflict");
        assert!(refused["detail"].as_str().unwrap().contains("set its management to managed"), "{refused}");
    }
    ours["management"] = json!("managed");
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &ours).status, 200);
    host.await_phase("gpu0", "ready");
    assert_eq!(host.daemon_pid("gpu0"), ours_pid);
}

#[test]
fn dead_adopted_daemon_restarts_in_its_directory() {
    let (host, foreign, mut client): (Host, _, _) = beside_another();
    let pid = foreign.pid();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let server = host.server_pid("theirs");
    assert_eq!(condition(&host.daemon("theirs"), "MovesAtRestart"), None);
    signal(pid, Signal::KILL);
    client.ended();
    eventually("another process is ready", || {
        let status = &host.daemon("theirs")["status"];
        (status["phase"] == "ready" && status["pid"] != pid).then_some(())
    });
    assert!(!is_alive(server));
    let now = host.daemon_pid("theirs");
    assert!(environment(now, "MPS_MANAGER_INCARNATION").is_some(), "ours by its token from now on");
    assert_eq!(host.daemon("theirs")["status"]["pipe_directory"], foreign.pipe().to_str().unwrap());
    assert_eq!(foreign.control("get_default_active_thread_percentage"), "40.0");
    assert_eq!(foreign.control("get_default_client_priority"), "1");
    let _client = foreign.client();
    // Started by this manager now, in directories that it remembers.
    let mut host = host;
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(host.daemon_pid("theirs"), now);
    host.api().post("/api/v1/daemons/theirs/release", &json!({})).problem(409, "conflict");
    host.api().succeeds(&host.api().post("/api/v1/daemons/theirs/stop?grace_s=0", &json!({})));
    assert!(!is_alive(now));
}

#[test]
fn adopted_daemon_leaves_unsafe_directory_on_restart() {
    let (host, foreign, client): (InProcess, _, _) = beside_another();
    fs::set_permissions(foreign.pipe(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let moves =
        eventually("it is reported from the start", || condition(&host.daemon("theirs"), "MovesAtRestart"));
    let message = moves["message"].as_str().unwrap();
    let own = host.runtime("daemons/theirs/pipe");
    assert!(message.contains(own.to_str().unwrap()) && message.contains("outside MPS"), "{message}");
    assert!(message.contains("can be written by others"), "{message}");
    assert_eq!(host.daemon("theirs")["status"]["pipe_directory"], foreign.pipe().to_str().unwrap());
    drop(client);
    host.api().succeeds(&host.api().post("/api/v1/daemons/theirs/restart?grace_s=1", &json!({})));
    let daemon = host.daemon("theirs");
    assert_eq!(daemon["status"]["pipe_directory"], own.to_str().unwrap());
    assert_eq!(condition(&daemon, "MovesAtRestart"), None, "it has moved");
    assert_eq!(host.control("theirs", "get_default_active_thread_percentage"), "40.0");
    let tenant = json!({"daemon": "theirs", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("new", &tenant).status, 201);
    host.await_ready();
    let output = host.run("new", &["sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"]);
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let inode = |path: &std::path::Path| fs::metadata(path).map(|it| it.ino()).ok();
    let linked = inode(&std::path::Path::new(&directory).join("control"));
    assert!(linked.is_some() && linked == inode(&own.join("control")), "{}", stderr_of(&output));
}

/// Lets a log of it grow past the length at which our own are emptied, and gives the log.
fn fill(foreign: &Foreign) -> std::path::PathBuf {
    let log = foreign.log().join("control.log");
    let line = "[2026-11-21 02:53:15.169 Control  1308] UI closed\n";
    let mut file = fs::File::options().append(true).open(&log).unwrap();
    std::io::Write::write_all(&mut file, line.repeat((5 << 20) / line.len()).as_bytes()).unwrap();
    log
}

#[test]
fn adopted_log_is_emptied_only_where_safe() {
    let (host, foreign, _client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let length = |log: &std::path::Path| fs::metadata(log).unwrap().len();
    let log = fill(&foreign);
    eventually("it is emptied", || (length(&log) < 4 << 20).then_some(()));

    fs::set_permissions(foreign.log(), fs::Permissions::from_mode(0o777)).unwrap();
    // The driver has seen that before it reads the log again.
    host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
    fill(&foreign);
    for _ in 0..3 {
        host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
    }
    assert!(length(&log) > 4 << 20, "it stays as it is");
    fs::set_permissions(foreign.log(), fs::Permissions::from_mode(0o755)).unwrap();
    eventually("it is emptied", || (length(&log) < 4 << 20).then_some(()));
}

#[test]
fn reused_pid_is_no_adopted_daemon() {
    let (mut host, foreign, mut client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let pid = foreign.pid();
    host.end_manager(Signal::TERM);
    // The store says that the daemon had this PID and another start time, as after the number was used again.
    host.execute_sql("UPDATE incarnations SET start_time = start_time - 1 WHERE daemon = 'theirs'");
    let changes = foreign.changes();
    host.serve();
    let blocked = host.await_phase("theirs", "blocked");
    assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "ForeignDaemon", "{blocked}");
    assert!(is_alive(pid) && client.is_running(), "it is nobody of ours, and left alone");
    assert_eq!(foreign.changes(), changes);
    assert_eq!(host.foreign_daemons()[0]["pid"], pid, "and can be adopted again");
}
