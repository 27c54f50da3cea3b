//! What others do to a daemon, and what is not ours.

use std::fs;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Host, InProcess, Served, environment, eventually, is_alive, pid};

#[test]
fn externally_changed_limit_is_repaired() {
    let host = InProcess::ready();
    let server = host.server_pid("gpu0");
    for (behind, getter, right) in [
        ("set_default_device_pinned_mem_limit 0 1G", "get_default_device_pinned_mem_limit 0".into(), "8G"),
        ("set_default_active_thread_percentage 10", "get_default_active_thread_percentage".into(), "50.0"),
        ("set_default_client_priority 1", "get_default_client_priority".into(), "0"),
        (
            &format!("set_device_pinned_mem_limit {server} 0 512K"),
            format!("get_device_pinned_mem_limit {server} 0"),
            "8G",
        ),
        (
            &format!("set_active_thread_percentage {server} 100"),
            format!("get_active_thread_percentage {server}"),
            "50.0",
        ),
    ] {
        host.control("gpu0", behind);
        eventually(&format!("{behind} is undone"), || (host.control("gpu0", &getter) == right).then_some(()));
    }
    host.await_ready();
    assert_eq!(host.server_pid("gpu0"), server, "nothing had to be restarted");
}

#[test]
fn externally_shut_down_server_is_restarted() {
    let host = InProcess::ready();
    let server = host.server_pid("gpu0");
    host.control("gpu0", &format!("shutdown_server {server} -f"));
    eventually("there is another server", || {
        let now = &host.daemon("gpu0")["status"];
        (now["phase"] == "ready" && now["effective"]["servers"][0]["pid"] != server).then_some(())
    });
}

#[test]
fn externally_quit_daemon_is_restarted() {
    let host = InProcess::ready();
    let daemon = host.daemon_pid("gpu1");
    host.control_once("gpu1", "quit -t 1\n");
    eventually("there is another daemon", || {
        let now = &host.daemon("gpu1")["status"];
        (now["phase"] == "ready" && now["pid"] != daemon).then_some(())
    });
}

#[test]
fn stopped_daemon_is_wedged_and_recovers() {
    let host = InProcess::configured("control_deadline_s = 1");
    let (daemon, changes) = (host.daemon_pid("gpu1"), host.changes("gpu1"));
    crate::harness::signal(daemon, Signal::STOP);
    let wedged = host.await_phase("gpu1", "wedged");
    let ready = &wedged["status"]["conditions"][0];
    assert!(ready["message"].as_str().unwrap().contains("SIGSTOP"), "{ready}");
    let late = host.api().get("/api/v1/daemons/gpu1?fresh=true").problem(503, "unavailable");
    assert!(late["detail"].as_str().unwrap().contains("could not be read"), "{late}");
    crate::harness::signal(daemon, Signal::CONT);
    host.await_ready();
    assert_eq!(
        (host.daemon_pid("gpu1"), host.changes("gpu1")),
        (daemon, changes),
        "nothing but reads was sent"
    );
}

/// Takes a daemon out of the manager's hands, so that its directory is free.
fn delete(host: &Served, name: &str) {
    host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{name}?grace_s=1")));
}

/// A foreign control daemon in the pipe directory of a daemon of that name.
fn foreign(host: &Served, name: &str) -> u32 {
    let home = host.runtime("daemons").join(name);
    for directory in ["pipe", "log"] {
        fs::create_dir_all(home.join(directory)).unwrap();
    }
    let started = host.program("nvidia-cuda-mps-control", name).arg("-d").status().unwrap();
    assert!(started.success());
    eventually("the foreign daemon runs", || {
        fs::read_to_string(home.join("pipe/nvidia-cuda-mps-control.pid")).ok()?.trim().parse().ok()
    })
}

#[test]
fn foreign_daemon_in_directory_blocks_ours() {
    let host = InProcess::ready();
    delete(&host, "gpu1");
    let foreign = foreign(&host, "gpu1");
    let changes = host.changes("gpu1");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    let blocked = host.await_phase("gpu1", "blocked");
    let ready = &blocked["status"]["conditions"][0];
    assert_eq!((&ready["reason"], &ready["status"]), (&json!("ForeignDaemon"), &json!(false)));
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains(&format!("process {foreign}")) && message.contains("quit it"), "{message}");
    assert_eq!(host.api().get("/readyz").status, 503);
    assert!(is_alive(foreign));
    assert_eq!(host.changes("gpu1"), changes, "nothing was sent to it");

    host.control_once("gpu1", "quit -t 1\n");
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu1"), foreign);
}

/// A process with a daemon's token that is no daemon.
struct Impostor(Child);

impl Impostor {
    fn start(token: &str, world: &std::path::Path) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().env("MPS_MANAGER_INCARNATION", token).env("MPS_SIM_WORLD", world);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn impostor_with_our_token_is_left_alone() {
    let mut host = Host::ready();
    let daemon = host.daemon_pid("gpu1");
    let token = environment(daemon, "MPS_MANAGER_INCARNATION").unwrap();
    host.end_manager(Signal::TERM);
    crate::harness::signal(daemon, Signal::KILL);
    eventually("the daemon is gone", || (!is_alive(daemon)).then_some(()));
    let mut impostor = Impostor::start(&token, &host.runtime("sim"));
    host.serve();
    let blocked = host.await_phase("gpu1", "blocked");
    let ready = &blocked["status"]["conditions"][0];
    assert_eq!(ready["reason"], "DoubtfulProcess");
    let message = ready["message"].as_str().unwrap();
    assert!(message.contains(&impostor.0.id().to_string()), "{message}");
    assert!(impostor.0.try_wait().unwrap().is_none(), "nothing was killed");
    assert_eq!(blocked["status"]["pid"], json!(null));
    host.await_phase("gpu0", "ready");
    drop(impostor);
    host.await_ready();
}

#[test]
fn only_servers_of_dead_daemon_are_ended() {
    let host = InProcess::ready();
    let daemon = host.daemon_pid("gpu1");
    let token = environment(daemon, "MPS_MANAGER_INCARNATION").unwrap();
    let mut impostor = Impostor::start(&token, &host.runtime("sim"));
    crate::harness::signal(daemon, Signal::KILL);
    eventually("there is another daemon", || {
        let now = &host.daemon("gpu1")["status"];
        (now["phase"] == "ready" && now["pid"] != daemon).then_some(())
    });
    assert!(impostor.0.try_wait().unwrap().is_none(), "nothing was killed");
}

#[test]
fn daemon_in_another_directory_is_doubtful() {
    let mut host = Host::ready();
    let daemon = host.daemon_pid("gpu1");
    host.end_manager(Signal::TERM);
    let home = host.runtime("daemons/gpu1");
    fs::rename(home.join("pipe"), home.join("moved")).unwrap();
    fs::create_dir(home.join("pipe")).unwrap();
    host.serve();
    let blocked = host.await_phase("gpu1", "blocked");
    assert_eq!(blocked["status"]["conditions"][0]["reason"], "DoubtfulProcess");
    assert!(is_alive(daemon));
    // It may have clients that nobody can be asked about.
    let unread = host.api().get("/api/v1/daemons/gpu1?fresh=true");
    assert_eq!(unread.status, 503, "{}", unread.text);
    let detail = unread.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("is not the directory that the daemon was started in"), "{detail}");
    fs::remove_dir(home.join("pipe")).unwrap();
    fs::rename(home.join("moved"), home.join("pipe")).unwrap();
    host.await_ready();
    assert_eq!(host.daemon_pid("gpu1"), daemon, "the very same is taken up");
    assert_eq!(pid(&host.daemon("gpu1")["status"]["pid"]), daemon);
}

#[test]
fn directory_writable_by_others_blocks_start() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = InProcess::ready();
    delete(&host, "gpu1");
    let pipe = host.runtime("daemons/gpu1/pipe");
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    let blocked = host.await_phase("gpu1", "blocked");
    let ready = &blocked["status"]["conditions"][0];
    assert_eq!(ready["reason"], "DirectoryUnusable");
    assert!(ready["message"].as_str().unwrap().contains("can be written by others"), "{ready}");
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o755)).unwrap();
    host.await_ready();
}
