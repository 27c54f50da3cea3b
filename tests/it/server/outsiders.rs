//! What others do to a daemon has a name and a remedy, gives no wrong answer meanwhile, and is over when they stop.

use std::fs;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Host, InProcess, Served, SetOnDrop, SmallDisk, eventually, is_alive, limit_files, limit_of_one_more,
    open_files, signal, unix_ms,
};

/// A fresh read that must be refused for this reason, in time.
fn assert_no_answer(host: &Served, daemon: &str, reason: &str) {
    let answer = host.api().get(&format!("/api/v1/daemons/{daemon}?fresh=true"));
    assert!(matches!(answer.status, 503 | 504), "{} {}", answer.status, answer.text);
    let problem = answer.json();
    assert!(problem["detail"].as_str().unwrap().contains(reason), "{problem}");
    assert_eq!(host.api().get(&format!("/readyz/daemons/{daemon}")).status, 503);
}

fn observed_at(host: &Served, daemon: &str) -> Value {
    host.daemon(daemon)["status"]["effective"]["observed_at"].clone()
}

#[test]
fn held_open_session_is_named_with_holder() {
    let host = Host::configured("control_deadline_s = 2");
    let held = host.hold("gpu0");
    let message = host.await_reason("gpu0", "SessionHeldOpen");
    assert!(message.contains(&format!("process {} ", held.pid())), "{message}");
    assert!(message.contains(&format!("started by process {}", std::process::id())), "{message}");
    let before = observed_at(&host, "gpu0");
    assert_no_answer(&host, "gpu0", "SessionHeldOpen");
    assert_eq!(observed_at(&host, "gpu0"), before, "what was read stays dated");
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 200, "the other daemon is well");
    drop(held);
    host.await_ready();
    let sessions = host.daemon("gpu0")["status"]["sessions"].clone();
    assert!(
        sessions["failed"].as_u64().unwrap() > 0 && sessions["retried"].as_u64().unwrap() > 0,
        "{sessions}"
    );
    assert!(sessions["control_processes"].as_u64() > sessions["retried"].as_u64(), "{sessions}");
}

#[test]
fn interfering_callers_are_named_by_parent() {
    let host = Host::configured("control_deadline_s = 2");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let held = host.try_hold("gpu0");
                    std::thread::sleep(Duration::from_millis(250));
                    drop(held);
                }
            });
        }
        let _quiet = SetOnDrop(&over);
        let message = host.await_reason("gpu0", "OthersInterfere");
        assert!(
            message.contains("others keep the daemon busy") && message.contains("started by"),
            "{message}"
        );
    });
    host.await_ready();
}

#[test]
fn stopped_daemon_is_wedged_and_named() {
    let host = InProcess::configured("control_deadline_s = 2");
    let daemon = host.daemon_pid("gpu0");
    let before = observed_at(&host, "gpu0");
    signal(daemon, Signal::STOP);
    let message = host.await_reason("gpu0", "Wedged");
    assert!(
        message.contains(&format!("control daemon {daemon}")) && message.contains("kill -CONT"),
        "{message}"
    );
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "wedged");
    assert_no_answer(&host, "gpu0", "Wedged");
    assert!(unix_ms(&observed_at(&host, "gpu0")) >= unix_ms(&before));
    signal(daemon, Signal::CONT);
    host.await_ready();
    assert_eq!((host.daemon_pid("gpu0"), &host.daemon("gpu0")["status"]["deaths"]), (daemon, &json!(0)));
}

#[test]
fn stopped_client_blocking_termination_is_named() {
    let host = InProcess::configured("control_deadline_s = 2");
    let client = host.stopping_client("demo");
    let id = eventually("the client is known", || {
        let known = host.api().get("/api/v1/clients").ok()["items"][0].clone();
        known["id"].as_str().map(str::to_owned)
    });
    let accepted = host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    let message = host.await_reason("gpu0", "Wedged");
    assert!(
        message.contains(&format!("client {}", client.pid())) && message.contains("kill -CONT"),
        "{message}"
    );
    assert_no_answer(&host, "gpu0", "Wedged");
    client.signal(Signal::CONT);
    host.api().outcome(&accepted);
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
}

/// Sets what is done about a server that hangs under clients.
fn set_wedge(host: &Served, field: &str, value: &Value) {
    let mut spec = host.daemon("gpu0")["spec"].clone();
    spec[field] = value.clone();
    let written = host.api().put("/api/v1/daemons/gpu0", &spec);
    assert_eq!(written.status, 200, "{}", written.text);
    host.await_ready();
}

#[test]
fn hung_server_is_replaced_after_its_grace() {
    let host = InProcess::ready();
    let refused = host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"], "wedge_grace_s": 3601}));
    assert!(refused.status == 422 && refused.text.contains("3601"), "{}", refused.text);
    set_wedge(&host, "wedge_grace_s", &json!(1));
    let mut client = host.client("demo");
    let daemon = host.daemon_pid("gpu0");
    let server = host.hang_server("gpu0", "demo");
    client.ended();
    host.await_ready();
    assert!(!is_alive(server));
    let replaced = host.condition("gpu0", "ServerReplaced").expect("reported for a while");
    let message = replaced["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("server {server} hung and was killed"))
            && message.contains(&format!("process {} lost their work", client.pid())),
        "{message}"
    );
    // They are written after it is published that it is ready.
    let (replaced, died) = eventually("both events", || {
        let events = host.api().get("/api/v1/events?type=server.died,server.replaced&order=oldest").ok();
        let [replaced, died] = &events["items"].as_array()?[..] else { return None };
        Some((replaced.clone(), died.clone()))
    });
    assert_eq!((&replaced["type"], &died["cause"]["id"]), (&json!("server.replaced"), &replaced["id"]));
    assert_eq!(died["details"]["clients"][0]["tenant"], "demo", "{died}");
    assert_eq!(host.daemon_pid("gpu0"), daemon);
}

#[test]
fn hung_server_is_ended_once_idle() {
    let host = InProcess::configured("control_deadline_s = 2");
    set_wedge(&host, "wedge_policy", &json!("wait"));
    let (daemon, server) = (host.daemon_pid("gpu0"), host.server_pid("gpu0"));
    let mut client = host.client("demo");
    host.hang_server("gpu0", "demo");
    let message = host.await_reason("gpu0", "ServerHangs");
    assert!(
        message.contains(&format!("server {server} hangs"))
            && message.contains(&format!("still at work: process {}", client.pid())),
        "{message}"
    );
    assert_no_answer(&host, "gpu0", "ServerHangs");
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 200, "the other daemon is well");
    assert!(client.is_running() && is_alive(server), "a connected client continues");
    client.signal(Signal::KILL);
    client.ended();
    host.await_ready();
    assert!(!is_alive(server));
    assert_ne!(host.server_pid("gpu0"), server);
    assert_eq!((host.daemon_pid("gpu0"), &host.daemon("gpu0")["status"]["deaths"]), (daemon, &json!(0)));
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    // Nobody is connected now, so nobody has to be waited for.
    host.hang_server("gpu0", "demo");
    eventually("another server serves", || host.run("demo", &["true"]).status.success().then_some(()));
    host.client("demo");
}

#[test]
fn hung_server_with_unknown_clients_is_kept() {
    let mut host = Host::configured("control_deadline_s = 2");
    set_wedge(&host, "wedge_policy", &json!("wait"));
    let server = host.server_pid("gpu0");
    let mut client = host.client("demo");
    // The next manager reads the end of the log only.
    let log = host.home("gpu0").join("log/server.log");
    let line = format!("[2026-11-21 02:53:15.169 Other  {server}] {}\n", "x".repeat(1000));
    let mut file = fs::File::options().append(true).open(log).unwrap();
    file.write_all(line.repeat(1400).as_bytes()).unwrap();
    host.hang_server("gpu0", "demo");
    host.end_manager(Signal::KILL);
    host.serve();
    let message = host.await_reason("gpu0", "ServerHangs");
    assert!(
        message.contains(&format!("server {server} hangs")) && message.contains("is not known"),
        "{message}"
    );
    // One more failed poll changes nothing.
    let failed = || host.daemon("gpu0")["status"]["sessions"]["failed"].as_u64().unwrap();
    let before = failed();
    eventually("it was polled again", || (failed() > before).then_some(()));
    assert!(is_alive(server) && client.is_running());
    signal(server, Signal::KILL);
    host.await_ready();
}

#[test]
fn restart_ends_a_hung_server() {
    let host = InProcess::configured("control_deadline_s = 2");
    set_wedge(&host, "wedge_policy", &json!("wait"));
    let server = host.server_pid("gpu0");
    let mut client = host.client("demo");
    host.hang_server("gpu0", "demo");
    host.await_reason("gpu0", "ServerHangs");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/restart?grace_s=0", &json!({})));
    assert!(!is_alive(server));
    client.ended();
    host.await_ready();
    host.client("demo");
}

#[test]
fn fatal_control_line_is_reported_after_recovery() {
    // What is opened while a session of the manager opens may be the manager's own, which accuses nobody: nothing is polled here but for what
    // the outsider does (supervisor/tests/daemon_death.rs has the rest).
    let host = InProcess::polled_hourly("");
    let daemon = host.daemon_pid("gpu0");
    let sessions = || host.daemon("gpu0")["status"]["sessions"]["control_processes"].clone();
    eventually("its start is over, and with it the manager's own sessions", || {
        let before = sessions();
        std::thread::sleep(Duration::from_millis(300));
        (sessions() == before).then_some(())
    });
    eventually("the daemon has died of the line", || {
        host.control_once("gpu0", &format!("{}\n", "x".repeat(4100)));
        // A caller that was turned away has killed nothing, and tries again.
        (0..100)
            .any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                !is_alive(daemon)
            })
            .then_some(())
    });
    eventually("it is back", || {
        let status = host.daemon("gpu0")["status"].clone();
        (status["deaths"] == 1 && status["phase"] == "ready").then_some(())
    });
    let failure = host.condition("gpu0", "LastFailure").unwrap_or_else(|| {
        let events = host.api().get("/api/v1/events?limit=50").ok();
        panic!("not reported once it is ready again: {} {events}", host.daemon("gpu0"))
    });
    assert_eq!(failure["reason"], "DiedInSession", "{failure}");
    assert!(failure["message"].as_str().unwrap().contains("a line of 4100 bytes kills it"), "{failure}");
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
}

#[test]
fn deleted_pipe_directory_is_recreated_when_idle() {
    let host = InProcess::ready();
    let daemon = host.daemon_pid("gpu1");
    fs::remove_dir_all(host.runtime("daemons/gpu1/pipe")).unwrap();
    eventually("the daemon is replaced", || {
        let status = host.daemon("gpu1")["status"].clone();
        (status["phase"] == "ready" && status["pid"] != daemon).then_some(())
    });
    let client = host.client("demo");
    let daemon = host.daemon_pid("gpu0");
    fs::remove_dir_all(host.runtime("daemons/gpu0/pipe")).unwrap();
    let message = host.await_reason("gpu0", "PipeDirectoryLost");
    assert!(message.contains("runs outside MPS") && message.contains("restart the daemon"), "{message}");
    assert_no_answer(&host, "gpu0", "PipeDirectoryLost");
    assert!(
        is_alive(daemon) && is_alive(client.pid()),
        "a client is connected: nothing is restarted unasked"
    );
    drop(client);
    eventually("the daemon is replaced", || {
        let status = host.daemon("gpu0")["status"].clone();
        (status["phase"] == "ready" && status["pid"] != daemon).then_some(())
    });
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
}

#[test]
fn replaced_pipe_directory_is_lost() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let daemon = host.daemon_pid("gpu0");
    let pipe = host.runtime("daemons/gpu0/pipe");
    let socket = host.dir().join("socket");
    let born = || fs::metadata(&pipe).unwrap().created().ok();
    let before = born();
    // What answers is there all the time, in a directory that most often has the same number.
    fs::rename(pipe.join("control"), &socket).unwrap();
    fs::remove_dir_all(&pipe).unwrap();
    fs::create_dir(&pipe).unwrap();
    fs::rename(&socket, pipe.join("control")).unwrap();
    if before.is_none() {
        eprintln!("SKIPPED: this file system does not say when a directory was made");
        return;
    }
    assert_ne!(born(), before);
    let message = host.await_reason("gpu0", "PipeDirectoryLost");
    assert!(message.contains("was removed or replaced"), "{message}");
    assert!(is_alive(daemon) && is_alive(client.pid()));

    // The next manager remembers which one it was.
    host.end_manager(Signal::KILL);
    host.serve();
    let message = host.await_reason("gpu0", "DoubtfulProcess");
    assert!(message.contains("not the directory that the daemon was started in"), "{message}");
    assert!(is_alive(daemon) && is_alive(client.pid()));
}

#[test]
fn pipe_directory_without_socket_is_lost() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let daemon = host.daemon_pid("gpu0");
    let socket = host.runtime("daemons/gpu0/pipe/control");
    fs::rename(&socket, host.dir().join("socket")).unwrap();
    let message = host.await_reason("gpu0", "PipeDirectoryLost");
    assert!(message.contains("pipe/control was removed"), "{message}");
    fs::rename(host.dir().join("socket"), &socket).unwrap();
    host.await_ready();
    assert_eq!(host.daemon_pid("gpu0"), daemon);
    drop(client);
}

#[test]
fn full_log_disk_is_reported() {
    let mut host = Host::new("");
    let log = host.runtime("daemons/gpu0/log");
    let Some(disk) = SmallDisk::mount(&log, 16) else { return };
    host.serve();
    host.await_ready();
    assert!(host.condition("gpu0", "LogDiskFull").is_none());
    let filler = disk.fill();
    let condition = eventually("the full disk is reported", || host.condition("gpu0", "LogDiskFull"));
    assert!(condition["message"].as_str().unwrap().contains("make room there"), "{condition}");
    assert!(host.condition("gpu1", "LogDiskFull").is_none(), "the other daemon logs elsewhere");
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "9G", "max_clients": 1});
    assert_eq!(host.api().tenant("late", &spec).status, 201);
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "9G");
    let daemon = host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    assert_eq!(daemon["status"]["effective"]["default_memory_limits"][0]["bytes"], 9_u64 << 30);
    assert_eq!(host.client("late").seen["error"], json!(null));
    fs::remove_file(filler).unwrap();
    eventually("there is room again", || host.condition("gpu0", "LogDiskFull").is_none().then_some(()));
}

#[test]
fn manager_out_of_files_keeps_its_daemons() {
    let host = Host::ready();
    let client = host.client("demo");
    let daemons = ["gpu0", "gpu1"].map(|name| (host.daemon_pid(name), host.server_pid(name)));
    let manager = host.manager_pid();
    let before = limit_files(manager, Some(limit_of_one_more(manager)));
    let message = host.await_reason("gpu0", "FilesExhausted");
    assert!(message.contains("LimitNOFILE") && message.contains("fs.file-max"), "{message}");
    assert_no_answer(&host, "gpu0", "FilesExhausted");
    limit_files(manager, before);
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| (host.daemon_pid(name), host.server_pid(name))), daemons);
    for name in ["gpu0", "gpu1"] {
        assert_eq!(host.daemon(name)["status"]["deaths"], 0);
    }
    assert!(is_alive(client.pid()));
}

#[test]
fn daemon_low_on_files_is_reported_early() {
    let host = Host::ready();
    let daemon = host.daemon_pid("gpu0");
    assert!(host.condition("gpu0", "FileDescriptorsLow").is_none());
    // Two to spare: one for a caller, one for a client.
    let before = limit_files(daemon, Some(open_files(daemon) + 2));
    // While a caller is served one less is left, so that the share differs from poll to poll.
    let low = eventually("the shortage is reported", || host.condition("gpu0", "FileDescriptorsLow"));
    let message = low["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("control daemon {daemon} has")) && message.contains("LimitNOFILE"),
        "{message}"
    );
    limit_files(daemon, before);
    eventually("it is well", || host.condition("gpu0", "FileDescriptorsLow").is_none().then_some(()));
    assert_eq!(host.daemon_pid("gpu0"), daemon);
}
