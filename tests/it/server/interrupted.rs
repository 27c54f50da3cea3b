//! What a manager that was killed in the middle of something leaves, and what the next one makes of it; and what a
//! change in the middle of something does.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};

use rustix::process::Signal;
use serde_json::json;

use super::foreign::beside_another;
use crate::harness::scratch::install_script;
use crate::harness::{
    Client, Host, InProcess, command_line, eventually, is_alive, processes_with, signal, stderr_of,
};

#[test]
fn half_seeded_host_is_completed_once() {
    let mut host = Host::ready();
    let changed = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "3G"});
    assert_eq!(host.api().tenant("demo", &changed).status, 200);
    assert_eq!(host.api().delete("/api/v1/tenants/batch").status, 204);
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    host.end_manager(Signal::KILL);
    host.serve();
    assert_eq!(host.api().get("/api/v1/daemons").ok()["items"].as_array().unwrap().len(), 1, "as was wanted");

    // As a manager leaves it that is killed after the first daemon and the first tenant.
    host.end_manager(Signal::KILL);
    fs::write(host.state("seeding"), "").unwrap();
    host.serve();
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/daemons").ok()["items"].as_array().unwrap().len(), 2);
    assert_eq!(host.api().get("/api/v1/tenants/batch").ok()["spec"]["max_clients"], 4);
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["spec"]["device_memory_limit"], 3_u64 << 30);
    assert!(!host.state("seeding").exists());
}

/// The manager dies after the daemon is forgotten: before it says so in the journal, or after.
#[test]
fn resumed_deletion_already_done_succeeds() {
    let mut host = Host::ready();
    let accepted = host.api().delete("/api/v1/daemons/gpu1?grace_s=0");
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    host.api().succeeds(&accepted);
    let taken_up = |host: &mut Host| {
        for undone in
            ["", "UPDATE operation_steps SET outcome = NULL, finished_at = NULL WHERE name = 'forget'"]
        {
            host.end_manager(Signal::KILL);
            host.execute_sql(&format!(
                "UPDATE operations SET state = 'running', finished_at = NULL WHERE id = '{id}';
                 INSERT INTO operation_locks (daemon, operation) VALUES ('gpu1', '{id}'); {undone}"
            ));
            host.serve();
            let operation = eventually("it has ended", || {
                let operation = host.api().get(&format!("/api/v1/operations/{id}")).ok();
                operation["finished_at"].is_string().then_some(operation)
            });
            assert_eq!(operation["state"], "succeeded", "{operation}");
        }
    };
    taken_up(&mut host);
    assert_eq!(host.api().get("/api/v1/daemons/gpu1").status, 404);
    // One of its name that is created later is another one.
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    host.await_ready();
    let later = host.daemon_pid("gpu1");
    taken_up(&mut host);
    host.await_ready();
    assert_eq!(host.daemon_pid("gpu1"), later);
}

#[test]
fn partial_token_file_is_replaced() {
    let mut host = InProcess::new("");
    fs::create_dir(host.state("")).unwrap();
    fs::write(host.state("admin.token.new"), "0123").unwrap();
    host.serve();
    assert_eq!(host.token().len(), 64);
    assert!(!host.state("admin.token.new").exists());
    host.await_ready();
}

/// Control daemon and manager die while a server hangs, and the next manager sees that off.
fn seen_off(host: &mut Host, daemon: &str) {
    let spec = json!({"daemon": daemon, "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("dies", &spec).status, 201);
    host.await_ready();
    let (control, hung) = (host.daemon_pid(daemon), host.hang_server(daemon, "dies"));
    signal(control, Signal::KILL);
    host.end_manager(Signal::KILL);
    assert!(is_alive(hung), "it outlives its daemon");
    host.serve();
    host.await_ready();
    assert!(!is_alive(hung));
    assert_ne!(host.daemon_pid(daemon), control);
}

#[test]
fn hung_server_is_ended_by_next_manager() {
    seen_off(&mut Host::ready(), "gpu1");
}

#[test]
fn adopted_hung_server_is_ended_by_next_manager() {
    let (mut host, foreign, client): (Host, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    drop(client);
    let bystander = host.server_pid("gpu0");
    seen_off(&mut host, "theirs");
    assert_eq!(host.server_pid("gpu0"), bystander);
}

#[test]
fn half_started_daemon_is_adopted_once_up() {
    let mut host = Host::new("");
    let (programs, slow) = (host.dir().join("programs"), host.dir().join("slow"));
    fs::create_dir(&programs).unwrap();
    let real = host.runtime("sim/bin");
    for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = -d ] && [ -e {} ] && sleep 1\nexec {} \"$@\"\n",
            slow.display(),
            real.join(name).display()
        );
        install_script(&programs.join(name), &script);
    }
    let config = host.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, format!("{text}mps_dir = \"{}\"\n", programs.display())).unwrap();
    host.serve();
    host.await_ready();

    let before = host.daemon_pid("gpu1");
    fs::write(&slow, "").unwrap();
    signal(before, Signal::KILL);
    let pipe = host.runtime("daemons/gpu1/pipe");
    eventually("the next is being started", || {
        let found = processes_with("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        found.into_iter().find(|pid| *pid != before && command_line(*pid).iter().any(|word| word == "-d"))
    });
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    let daemon = host.daemon("gpu1");
    assert_eq!((&daemon["status"]["deaths"], &daemon["status"]["incarnation"]), (&json!(0), &json!(1)));
    assert_ne!(host.daemon_pid("gpu1"), before);
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("works", &spec).status, 201);
    host.await_ready();
    let client = Client::start(host.client_command("works", &["--spin", "600"]));
    assert_eq!(client.seen["mps"], true, "{}", client.seen);
}

/// The files that a process has open.
fn open_files(pid: u32) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

#[test]
fn lock_held_by_dying_child_is_awaited() {
    let host = Host::new("");
    fs::create_dir(host.state("")).unwrap();
    fs::set_permissions(host.state(""), fs::Permissions::from_mode(0o700)).unwrap();
    let lock =
        fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(host.state("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut manager = host.start_manager();
    eventually("it has tried, or has ended", || {
        let tries = open_files(manager.id()).contains(&host.state("lock"));
        (tries || manager.try_wait().unwrap().is_some()).then_some(())
    });
    drop(lock);
    let mut first = [0; 18];
    let read = manager.stdout.take().unwrap().read_exact(&mut first);
    manager.kill().unwrap();
    manager.wait().unwrap();
    read.expect("it serves");
    assert_eq!(&first, b"mps-manager serves");
}

#[test]
fn lease_follows_tenant_changed_while_waiting() {
    let host = Host::ready();
    for name in ["goes", "moves"] {
        let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    let daemon = host.daemon_pid("gpu1");
    // A lease waits for a poll of the daemon, which is stopped.
    signal(daemon, Signal::STOP);
    let spawn = |tenant: &str| {
        let mut command = host.run_command(tenant, &["env"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let asking = ["goes", "moves"].map(spawn);
    for run in &asking {
        eventually("it has asked", || {
            let sockets =
                open_files(run.id()).into_iter().filter(|file| file.to_string_lossy().starts_with("socket:"));
            (sockets.count() > 0).then_some(())
        });
    }
    assert_eq!(host.api().delete("/api/v1/tenants/goes").status, 204);
    let moved = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"});
    assert_eq!(host.api().tenant("moves", &moved).status, 200);
    signal(daemon, Signal::CONT);
    let [gone, moved] = asking.map(|run| run.wait_with_output().unwrap());
    assert_eq!(gone.status.code(), Some(2));
    assert!(stderr_of(&gone).contains("there is no tenant goes"), "{}", stderr_of(&gone));
    assert_eq!(moved.status.code(), Some(0), "{}", stderr_of(&moved));
    let environment = String::from_utf8(moved.stdout).unwrap();
    assert!(
        environment.contains("MPS_MANAGER_TENANT=moves\n") && environment.contains("/run/tenants/"),
        "{environment}"
    );
    assert!(environment.contains("=2048M"), "{environment}");
}
