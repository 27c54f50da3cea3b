//! Adopted daemons kept and given back: by one name, exactly as they were, whatever else happens at the same time.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use super::foreign::{beside_another, condition};
use super::foreign_refused::{Sleeper, adopt, host_with_a_free_gpu, refused};
use crate::harness::scratch::install_script;
use crate::harness::{Client, Host, InProcess, eventually, is_alive, signal};

#[test]
fn daemon_released_during_write_is_foreign_again() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let pid = foreign.pid();
    foreign.hold_in_a_write(&host, "theirs");
    let answer = std::thread::scope(|scope| {
        let releasing = scope.spawn(|| host.api().post("/api/v1/daemons/theirs/release", &json!({})));
        eventually("it is forgotten", || {
            (host.api().get("/api/v1/daemons/theirs").status == 404).then_some(())
        });
        signal(pid, Signal::CONT);
        releasing.join().unwrap()
    });
    assert_eq!(answer.status, 204, "{}", answer.text);
    let foreign_now = host.foreign_daemons();
    assert_eq!(foreign_now.len(), 1, "{foreign_now:?}");
    assert_eq!(foreign_now[0]["pid"], pid);
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    let blocked = host.await_phase("gpu1", "blocked");
    assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "GpuSharedWithForeignDaemon");
}

#[test]
fn daemon_recreated_during_release_is_driven() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    let spec = json!({"gpus": ["1"]}).to_string();
    for _ in 0..5 {
        assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
        host.await_phase("theirs", "observed");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                eventually("the name is free", || {
                    let only_creates = [("if-none-match", "*")];
                    let body = Some(spec.clone());
                    let put = host.api().send(Method::PUT, "/api/v1/daemons/theirs", &only_creates, body);
                    assert!(matches!(put.status, 201 | 412), "{} {}", put.status, put.text);
                    (put.status == 201).then_some(())
                });
            });
            assert_eq!(host.api().post("/api/v1/daemons/theirs/release", &json!({})).status, 204);
        });
        let blocked = host.await_phase("theirs", "blocked");
        assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "GpuSharedWithForeignDaemon");
        super::foreign::delete(&host, "theirs");
    }
}

#[test]
fn concurrent_adoptions_give_one_daemon() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    let body = json!({"process": host.foreign_id(&foreign), "management": "observed"});
    let mut statuses: Vec<u16> = std::thread::scope(|scope| {
        let asking: Vec<_> = ["a", "b", "c", "d", "e", "f"]
            .into_iter()
            .map(|name| {
                let (host, body) = (&host, &body);
                scope.spawn(move || host.api().post(&format!("/api/v1/daemons/{name}/adopt"), body).status)
            })
            .collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409]);
}

#[test]
fn inexact_limit_is_never_adopted() {
    let host: InProcess = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    foreign.control("set_default_device_pinned_mem_limit 0 1536M");
    refused(&host, &foreign, "rounded down");
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    let observed = host.await_phase("theirs", "observed");
    assert_eq!(observed["spec"]["defaults"], json!({}), "none that it may not have");
    let changes = foreign.changes();
    let mut spec = observed["spec"].clone();
    spec["management"] = json!("managed");
    let refused = host.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("rounded down"), "{refused}");
    assert_eq!(foreign.changes(), changes, "nothing was written to it");
    let uuid = observed["spec"]["gpus"][0].as_str().unwrap().to_owned();
    foreign.control(&format!("set_default_device_pinned_mem_limit {uuid} 2G"));
    let refused = host.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("under that UUID"), "{refused}");
    foreign.control(&format!("set_default_device_pinned_mem_limit {uuid} 0"));

    // Its server says what it was given.
    let mut client = foreign.client();
    spec["defaults"]["device_memory_limit"] = json!("1536M");
    assert_eq!(host.api().put("/api/v1/daemons/theirs", &spec).status, 200);
    let ready = host.await_phase("theirs", "ready");
    let limit = &ready["status"]["effective"]["servers"][0]["memory_limits"][0];
    assert_eq!((&limit["bytes"], &limit["exact"]), (&json!(1536u64 << 20), &json!(true)));
    assert!(client.is_running());
}

#[test]
fn wrapper_is_not_mistaken_for_its_daemon() {
    let host: InProcess = host_with_a_free_gpu();
    let foreign_home = host.dir().join("wrapped");
    for directory in ["pipe", "log", "bin"] {
        fs::create_dir_all(foreign_home.join(directory)).unwrap();
    }
    let real = host.runtime("sim/bin/nvidia-cuda-mps-control");
    let wrapper = foreign_home.join("bin/nvidia-cuda-mps-control");
    install_script(&wrapper, &format!("#!/bin/sh\n'{}' \"$@\"\nexit $?\n", real.display()));
    let mut command = Command::new(&wrapper);
    command
        .arg("-f")
        .env_clear()
        .env("MPS_SIM_WORLD", host.runtime("sim"))
        .env("CUDA_VISIBLE_DEVICES", "1")
        .env("CUDA_MPS_PIPE_DIRECTORY", foreign_home.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", foreign_home.join("log"))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    let wrapping = Sleeper(command.spawn().unwrap());
    let daemon = eventually("the daemon is listed", || {
        let daemons = host.foreign_daemons();
        // While it has not started the daemon yet, the wrapper is one that looks like it.
        daemons.into_iter().find(|daemon| daemon["effective"].is_object() && daemon["pid"] != wrapping.0.id())
    });
    let pid = u32::try_from(daemon["pid"].as_u64().unwrap()).unwrap();
    assert_eq!(host.foreign_daemons().len(), 1, "it is one daemon");
    let problem = adopt(&host, "theirs", &wrapping.id()).problem(422, "invalid-request");
    assert!(problem["detail"].as_str().unwrap().contains("a wrapper that runs one"), "{problem}");
    let adopted = adopt(&host, "theirs", daemon["id"].as_str().unwrap());
    assert_eq!(adopted.status, 201, "{}", adopted.text);
    assert_eq!(host.await_phase("theirs", "ready")["status"]["pid"], pid);
}

#[test]
fn adoption_keeps_another_users_server() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can become another user.
    }
    let host: Host = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    let mut command = Command::new(host.program_for_everybody());
    command
        .args(["sim", "client", "--json", "--spin", "600"])
        .env_clear()
        .env("MPS_SIM_WORLD", host.runtime("sim"))
        .env("CUDA_MPS_PIPE_DIRECTORY", foreign.pipe())
        .uid(65_534)
        .gid(65_534);
    drop(Client::start(command));
    let server = foreign.control("get_server_list");
    let changes = foreign.changes();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    let ready = host.await_phase("theirs", "ready");
    assert_eq!(ready["status"]["effective"]["servers"][0]["uid"], 65_534);
    for _ in 0..3 {
        host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
    }
    assert_eq!(foreign.control("get_server_list"), server);
    assert_eq!(foreign.changes(), changes, "nothing was written to it, and no server asked for");
}

#[test]
fn doubtful_daemon_can_be_released() {
    let (mut host, foreign, mut client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    host.end_manager(Signal::TERM);
    host.execute_sql("UPDATE incarnations SET pipe_inode = pipe_inode + 1 WHERE daemon = 'theirs'");
    host.serve();
    let blocked = host.await_phase("theirs", "blocked");
    assert_eq!(condition(&blocked, "Ready").unwrap()["reason"], "DoubtfulProcess");
    assert_eq!(host.api().post("/api/v1/daemons/theirs/release", &json!({})).status, 204);
    assert_eq!(host.foreign_daemons()[0]["pid"], foreign.pid());
    assert!(is_alive(foreign.pid()) && client.is_running());
}

#[test]
fn failed_deletion_leaves_daemon_unchanged() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let deleting = host.api().delete("/api/v1/daemons/theirs?grace_s=5");
    let tenant = json!({"daemon": "theirs", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("late", &tenant).status, 201);
    let operation = host.api().outcome(&deleting);
    assert_eq!(operation["state"], "failed", "{operation}");
    assert!(operation["error"].as_str().unwrap().contains("a tenant was put on"), "{operation}");
    assert_eq!(host.daemon("theirs")["spec"]["desired_state"], "running");
    host.await_ready();
}

#[test]
fn daemon_made_observed_is_never_written_again() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    let pid = foreign.pid();
    let mut spec = foreign.hold_in_a_write(&host, "theirs");
    spec["management"] = json!("observed");
    let answer = std::thread::scope(|scope| {
        let releasing = scope.spawn(|| host.api().put("/api/v1/daemons/theirs", &spec));
        eventually("it is written", || {
            (host.daemon("theirs")["spec"]["management"] == "observed").then_some(())
        });
        assert!(!releasing.is_finished(), "the session continues");
        signal(pid, Signal::CONT);
        releasing.join().unwrap()
    });
    assert_eq!(answer.status, 200, "{}", answer.text);
    let changes = foreign.changes();
    host.await_phase("theirs", "observed");
    host.api().get("/api/v1/daemons/theirs?fresh=true").ok();
    assert_eq!(foreign.changes(), changes, "nothing was written since");
}

#[test]
fn observed_daemon_is_polled_less_often() {
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    host.await_phase("theirs", "observed");
    let polls = |name: &str| host.daemon(name)["status"]["sessions"]["polls"].as_u64().unwrap();
    eventually("it was polled", || (polls("theirs") > 0).then_some(()));
    let before = [polls("gpu0"), polls("theirs")];
    eventually("ours was polled ten times", || (polls("gpu0") >= before[0] + 10).then_some(()));
    let theirs = polls("theirs") - before[1];
    assert!(theirs <= 4, "polled {theirs} times, and each poll stays in its control.log");
}

#[test]
fn maintenance_skips_observed_and_refuses_managed_adoption() {
    let (host, foreign, mut client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    host.await_phase("theirs", "observed");
    let (pid, changes) = (foreign.pid(), foreign.changes());
    let maintenance = "/api/v1/host/maintenance";
    let begun = host.api().succeeds(&host.api().post(maintenance, &json!({"timeout_s": 30})));
    assert_eq!(begun["daemons"], json!(["gpu0"]), "it is its owner's");
    assert_eq!(host.daemon("theirs")["status"]["phase"], "observed");
    let mut spec = host.daemon("theirs")["spec"].clone();
    spec["management"] = json!("managed");
    let refused = host.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("in maintenance"), "{refused}");
    assert_eq!(host.api().post("/api/v1/daemons/theirs/release", &json!({})).status, 204);
    let refused = host.adopt("theirs", &foreign, "managed").problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("in maintenance"), "{refused}");
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201, "nothing waits for a poll of it");
    host.api().succeeds(&host.api().delete(maintenance));
    host.await_ready();
    assert!(is_alive(pid) && client.is_running());
    assert_eq!((foreign.pid(), foreign.changes()), (pid, changes), "nothing was written to it");
    assert_eq!(host.api().put("/api/v1/daemons/theirs", &spec).status, 200);
    host.await_phase("theirs", "ready");
}
