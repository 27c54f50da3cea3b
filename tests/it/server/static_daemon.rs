//! Daemons in static mode: started, changed, refused, adopted, and their partitions read.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::foreign::{condition, delete};
use super::foreign_refused::refused;
use super::layouts::uuid;
use crate::harness::{Client, Host, InProcess, MANAGER, Served, command_line, eventually, is_alive};

/// Puts the second GPU's daemon, which serves nobody, into static mode, and waits until it is ready.
fn in_static_mode(host: &Served) -> Value {
    let before = host.daemon_pid("gpu1");
    let spec = json!({"gpus": ["1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    let daemon = host.await_phase("gpu1", "ready");
    assert_ne!(daemon["status"]["pid"], before, "a mode is what a process is started with");
    assert!(!is_alive(before));
    daemon
}

/// The partitions of a daemon, by a poll that begins now.
fn partitions(host: &Served, daemon: &str) -> Value {
    let daemon = host.api().get(&format!("/api/v1/daemons/{daemon}?fresh=true")).ok();
    daemon["status"]["effective"]["partitions"].clone()
}

fn has_option(pid: u32) -> bool {
    command_line(pid).iter().any(|word| word == "-S")
}

#[test]
fn partitions_are_listed_with_their_clients() {
    let host = InProcess::ready();
    let daemon = in_static_mode(&host);
    assert_eq!(daemon["spec"]["mode"], "static");
    assert!(has_option(host.daemon_pid("gpu1")) && !has_option(host.daemon_pid("gpu0")));
    let gpu = uuid(&host, 1);
    let empty = json!([{"gpu": gpu, "free_chunks": 15, "used_chunks": 0, "free_sms": 132, "used_sms": 0, "partitions": []}]);
    assert_eq!(daemon["status"]["effective"]["partitions"], empty);
    assert_eq!(host.daemon("gpu0")["spec"]["mode"], "shared");
    assert_eq!(partitions(&host, "gpu0"), json!(null), "a daemon in shared mode has none");

    let seven = host.control("gpu1", &format!("sm_partition add {gpu} 7"));
    let two = host.control("gpu1", &format!("sm_partition add {gpu} 2"));
    let id = |name: &str| name.split_once('/').expect("a partition").1.to_owned();
    let polls = |daemon: &Value| daemon["status"]["sessions"]["control_processes"].as_u64().expect("a count");
    let before = polls(&host.daemon("gpu1"));
    let with = |in_use: bool, clients: Value| {
        json!([{"gpu": gpu, "free_chunks": 6, "used_chunks": 9, "free_sms": 60, "used_sms": 72, "partitions": [
            {"id": id(&seven), "chunks": 7, "sms": 56, "in_use": in_use, "clients": clients},
            {"id": id(&two), "chunks": 2, "sms": 16, "in_use": false, "clients": []},
        ]}])
    };
    assert_eq!(partitions(&host, "gpu1"), with(false, json!([])));
    assert!(polls(&host.daemon("gpu1")) > before, "it was read by a session of its own");

    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "max_clients": 4});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    host.await_ready();
    let client = host.stranger("gpu1", &seven);
    assert_eq!(client.seen["devices"][0]["sms"], 56);
    let named = host.listed(client.pid())["id"].clone();
    assert_eq!(partitions(&host, "gpu1"), with(true, json!([named])));
    let threads = &host.api().get("/api/v1/tenants/parts").ok()["status"]["effective"]["threads"];
    assert_eq!(threads["predicted_sms"], json!(null), "no percentage predicts what a client sees");
    drop(client);
    eventually("nobody is in it", || (partitions(&host, "gpu1") == with(false, json!([]))).then_some(()));
}

#[test]
fn conflicting_partition_claims_are_both_shown() {
    let host = InProcess::ready();
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    delete(&host, "gpu0");
    delete(&host, "gpu1");
    let both = json!({"gpus": ["0", "1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/both", &both).status, 201);
    host.await_ready();
    let tenant = json!({"daemon": "both", "uid": 0, "device_memory_limit": "8G", "max_clients": 4});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    host.await_ready();
    let made = |index: u32, chunks: u32| {
        host.control("both", &format!("sm_partition add {} {chunks}", uuid(&host, index)))
    };
    let (first, second) = (made(0, 4), made(1, 2));
    let everywhere = host.stranger("both", &format!("{first},{second}"));
    assert_eq!(everywhere.seen["devices"][0]["sms"], 32);
    assert_eq!(everywhere.seen["devices"][1]["sms"], 16);
    let seen = |gpu: usize| partitions(&host, "both")[gpu]["partitions"][0].clone();
    let id = host.listed(everywhere.pid())["id"].clone();
    for gpu in 0..2 {
        assert_eq!((&seen(gpu)["in_use"], &seen(gpu)["clients"]), (&json!(true), &json!([id])));
    }
    drop(everywhere);

    // It names both partitions and is on the first GPU alone.
    let mut command = host.stranger_command("both", &format!("{second},{first}"));
    command.env("CUDA_VISIBLE_DEVICES", uuid(&host, 0));
    let one = Client::start(command);
    assert_eq!(one.seen["error"], json!(null), "{}", one.seen);
    let id = host.listed(one.pid())["id"].clone();
    eventually("the first client is gone", || (seen(1)["clients"] == json!([id])).then_some(()));
    assert_eq!(seen(1)["in_use"], false, "the daemon's word stays beside the client's");
    assert_eq!((&seen(0)["in_use"], &seen(0)["clients"]), (&json!(true), &json!([id])));
}

#[test]
fn mode_changes_when_idle_and_persists() {
    let mut host = Host::ready();
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G"});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    host.await_ready();
    let mut client = host.client("parts");
    let before = host.daemon_pid("gpu1");
    let spec = json!({"gpus": ["1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_phase("gpu1", "applying");
    let restart = crate::harness::eventually("it says so", || host.condition("gpu1", "RestartRequired"));
    assert!(restart["message"].as_str().unwrap().contains("its mode"), "{restart}");
    for _ in 0..3 {
        assert_eq!(partitions(&host, "gpu1"), json!(null), "the process that runs has none");
    }
    // A manager that knows nothing but the process reads its mode from it.
    host.end_manager(Signal::KILL);
    host.serve();
    assert!(condition(&host.await_phase("gpu1", "applying"), "RestartRequired").is_some());
    assert!(client.is_running() && host.daemon_pid("gpu1") == before);
    drop(client);
    let daemon = host.await_phase("gpu1", "ready");
    let pid = host.daemon_pid("gpu1");
    assert!(!is_alive(before) && has_option(pid), "{daemon}");
    assert_eq!(daemon["status"]["deaths"], 0);

    host.control("gpu1", "sm_partition add 0 5");
    let kept = partitions(&host, "gpu1");
    assert_eq!(kept[0]["partitions"][0]["chunks"], 5);
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!((host.daemon_pid("gpu1"), partitions(&host, "gpu1")), (pid, kept));

    let shared = json!({"gpus": ["1"]});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &shared).status, 200);
    let daemon = host.await_phase("gpu1", "ready");
    assert_ne!(daemon["status"]["pid"], pid);
    assert!(!has_option(host.daemon_pid("gpu1")));
    assert_eq!(partitions(&host, "gpu1"), json!(null));
}

#[test]
fn thread_percentages_are_refused_where_mps_ignores_them() {
    let host = InProcess::ready();
    in_static_mode(&host);
    for (field, value) in [("sms", json!(32)), ("active_thread_percentage", json!(25))] {
        let mut tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G"});
        tenant[field] = value;
        let problem = host.api().tenant("new", &tenant).problem(409, "not-admitted");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"));
        assert!(problem["detail"].as_str().unwrap().contains("MPS ignores thread percentages"), "{problem}");
        host.api().get("/api/v1/tenants/new").problem(404, "not-found");
    }
    let spec = json!({"gpus": ["1"], "mode": "static", "defaults": {"active_thread_percentage": 50}});
    let problem = host.api().put("/api/v1/daemons/gpu1", &spec).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/defaults/active_thread_percentage");

    let (before, pid, changes) =
        (host.daemon("gpu0")["spec"].clone(), host.daemon_pid("gpu0"), host.changes("gpu0"));
    let spec = json!({"gpus": ["0"], "mode": "static"});
    let problem = host.api().put("/api/v1/daemons/gpu0", &spec).problem(409, "conflict");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("batch (sms 66), demo (active_thread_percentage 25.0)"), "{detail}");
    host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    assert_eq!((&host.daemon("gpu0")["spec"], host.daemon_pid("gpu0")), (&before, pid));
    assert_eq!(host.changes("gpu0"), changes);
    let problem = host
        .api()
        .put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"], "mode": "dynamic"}))
        .problem(422, "invalid-request");
    assert!(problem.to_string().contains("dynamic"), "{problem}");
}

#[test]
fn missing_static_mode_names_the_needed_version() {
    let mut host = InProcess::of("h200x2@13.0", "");
    host.serve();
    host.await_ready();
    let (before, pid) = (host.daemon("gpu1"), host.daemon_pid("gpu1"));
    let spec = json!({"gpus": ["1"], "mode": "static"});
    let problem = host.api().put("/api/v1/daemons/gpu1", &spec).problem(409, "conflict");
    let detail = problem["detail"].as_str().unwrap();
    for words in ["13010 (CUDA 13.1)", "13000 (CUDA 13.0)"] {
        assert!(detail.contains(words), "{detail}");
    }
    assert_eq!((&host.daemon("gpu1")["spec"], host.daemon_pid("gpu1")), (&before["spec"], pid));
}

#[test]
fn downgraded_program_blocks_static_daemon() {
    let mut host = Host::ready();
    in_static_mode(&host);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    host.end_manager(Signal::TERM);
    // As after a driver was taken back.
    let world = host.runtime("sim/world.json");
    let text = fs::read_to_string(&world).unwrap();
    assert!(text.contains("13010"), "{text}");
    fs::write(&world, text.replace("13010", "13000")).unwrap();
    host.serve();
    let failed = host.api().outcome(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    assert_eq!(failed["state"], "failed", "{failed}");
    assert!(failed["error"].as_str().unwrap().contains("13010 (CUDA 13.1)"), "{failed}");
    let spec = json!({"gpus": ["1"], "mode": "static", "schedulable": false});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200, "the rest of it may be changed");
    let blocked = host.await_phase("gpu1", "blocked");
    assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "StaticModeUnsupported");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 200);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    host.await_phase("gpu1", "ready");
}

#[test]
fn foreign_static_daemon_is_adopted_with_partitions() {
    let mut host = Host::ready();
    delete(&host, "gpu1");
    let foreign = host.foreign_with("theirs", &[("CUDA_VISIBLE_DEVICES", "1")], &["-S"]);
    let gpu = uuid(&host, 1);
    let partition = foreign.control(&format!("sm_partition add {gpu} 3"));
    let mut command = std::process::Command::new(MANAGER);
    command
        .args(["sim", "client", "--json", "--spin", "600", "--alloc", "64"])
        .env_clear()
        .env("MPS_SIM_WORLD", host.runtime("sim"))
        .env("CUDA_MPS_PIPE_DIRECTORY", foreign.pipe())
        .env("CUDA_MPS_SM_PARTITION", &partition);
    let mut client = Client::start(command);
    assert_eq!(client.seen["devices"][0]["sms"], 24, "{}", client.seen);
    let listed = eventually("the client is listed", || {
        let daemon = host.foreign_daemons().remove(0);
        (daemon["clients"] != json!([])).then_some(daemon)
    });
    assert_eq!(listed["static_partitions"], true);
    let id = listed["clients"][0]["id"].clone();
    let theirs = json!([{"gpu": gpu, "free_chunks": 12, "used_chunks": 3, "free_sms": 108, "used_sms": 24, "partitions": [
        {"id": partition.split_once('/').unwrap().1, "chunks": 3, "sms": 24, "in_use": true, "clients": [id]},
    ]}]);
    assert_eq!(listed["effective"]["partitions"], theirs);

    let (pid, changes) = (foreign.pid(), foreign.changes());
    for management in ["observed", "managed"] {
        let adopted = host.adopt("theirs", &foreign, management);
        assert_eq!(adopted.status, 201, "{}", adopted.text);
        assert_eq!(adopted.json()["spec"]["mode"], "static");
        for with in [None, Some(Signal::KILL)] {
            if let Some(with) = with {
                host.end_manager(with);
                host.serve();
                host.await_ready();
            }
            let word = if management == "managed" { "ready" } else { "observed" };
            assert_eq!(host.await_phase("theirs", word)["status"]["pid"], pid);
            assert_eq!(partitions(&host, "theirs"), theirs);
        }
        let mut spec = host.daemon("theirs")["spec"].clone();
        spec["mode"] = json!("shared");
        if management == "observed" {
            let problem = host.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
            assert!(problem["detail"].as_str().unwrap().contains("never changed"), "{problem}");
        }
        let released = host.api().post("/api/v1/daemons/theirs/release", &json!({}));
        assert_eq!(released.status, 204, "{}", released.text);
    }
    assert!(client.is_running() && foreign.changes() == changes, "nothing was written to it");

    foreign.control("set_default_active_thread_percentage 40");
    refused(&host, &foreign, "MPS ignores in static mode");
}
