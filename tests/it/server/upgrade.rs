//! The manager's binary is replaced while clients run: they and their daemons notice nothing.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::scratch::install;
use crate::harness::{Client, Host, MANAGER, Served, eventually, pid};

/// What must be the same after an upgrade.
fn in_force(host: &Served, daemon: &str) -> Value {
    let status = &host.api().get(&format!("/api/v1/daemons/{daemon}?fresh=true")).ok()["status"];
    let mut effective = status["effective"].clone();
    for volatile in ["observed_at", "control_processes"] {
        effective.as_object_mut().unwrap().remove(volatile);
    }
    json!({"pid": status["pid"], "effective": effective})
}

#[test]
fn binary_upgrade_keeps_clients_and_settings() {
    let mut host = Host::new("");
    // A copy, as a package installs one, and the next version put in its place as package managers do.
    let installed = host.dir().join("mps-manager");
    install(Path::new(MANAGER), &installed);
    host.serve_from(&installed);
    host.await_ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G", "max_clients": 20, "active_thread_percentage": 20});
    assert_eq!(host.api().tenant("many", &spec).status, 201);
    host.await_ready();
    let mut clients: Vec<Client> = (0..20)
        .map(|_| {
            let mut command = Command::new(&installed);
            command.arg0("mps-manager");
            let runtime = host.runtime("");
            command.args(["run", "--runtime-dir"]).arg(runtime).args(["--tenant", "many", "--"]);
            command.arg(&installed).args(["sim", "client", "--json", "--spin", "600", "--alloc", "64"]);
            command.env_clear().env("MPS_TEST_DIRECTORY", host.dir());
            Client::start(command)
        })
        .collect();
    for client in &clients {
        assert_eq!(client.seen["error"], Value::Null, "{}", client.seen);
    }
    eventually("all are listed", || (host.clients().len() == 20).then_some(()));
    let before = ["gpu0", "gpu1"].map(|daemon| (in_force(&host, daemon), host.changes(daemon)));

    let new = host.dir().join("mps-manager.new");
    install(Path::new(MANAGER), &new);
    fs::rename(&new, &installed).unwrap();
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    host.serve_from(&installed);
    host.await_ready();

    assert_eq!(["gpu0", "gpu1"].map(|daemon| (in_force(&host, daemon), host.changes(daemon))), before);
    let mut listed: Vec<u32> = host.clients().iter().map(|client| pid(&client["pid"])).collect();
    listed.sort_unstable();
    let mut started: Vec<u32> = clients.iter().map(Client::pid).collect();
    started.sort_unstable();
    assert_eq!(listed, started);
    assert!(clients.iter_mut().all(Client::is_running));
    assert!(
        host.clients().iter().all(|client| client["tenant"] == "many" && client["attributed_by"] == "lease")
    );
}
