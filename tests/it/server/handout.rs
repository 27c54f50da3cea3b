//! What a tenant's processes meet while their daemon may not be used.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Client, Host, InProcess, Served, eventually, signal};

const REFUSED: &str = "CUDA_ERROR_MPS_CONNECTION_FAILED";

pub(super) fn directory(host: &Served, tenant: &str) -> PathBuf {
    let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
    environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().unwrap().into()
}

pub(super) fn is_linked(host: &Served, directory: &std::path::Path) -> bool {
    let inode = |path: PathBuf| fs::metadata(path).map(|it| it.ino()).ok();
    let daemon = inode(host.home("gpu0").join("pipe/control"));
    daemon.is_some() && daemon == inode(directory.join("control"))
}

/// A client that may have to wait, in the background.
fn coming(host: &Served, tenant: &str) -> Child {
    let mut command = host.client_command(tenant, &[]);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn seen(client: Child) -> Value {
    let output = client.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Kills the control daemon twice, so that it pauses before it is started again; gives back while it does.
fn pause(host: &Served) {
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    eventually("it is started at once", || (host.daemon("gpu0")["status"]["deaths"] == 1).then_some(()));
    host.await_ready();
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    host.await_phase("gpu0", "back_off");
}

#[test]
fn client_of_dead_daemon_waits_and_connects() {
    let host = InProcess::ready();
    let demo = directory(&host, "demo");
    assert!(is_linked(&host, &demo));
    let entries: Vec<_> = fs::read_dir(&demo).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(entries, ["control"]);
    assert_eq!(fs::metadata(&demo).unwrap().permissions().mode() & 0o7777, 0o700, "it is its user's");
    let own = fs::metadata(host.home("gpu0").join("pipe")).unwrap();
    assert_eq!(own.permissions().mode() & 0o7777, 0o700, "nobody else's server runs here");
    pause(&host);
    assert!(!is_linked(&host, &demo) && demo.join("control").exists(), "a placeholder");
    let client = coming(&host, "demo");
    let pid = client.id();
    let waiting = || host.api().get("/api/v1/tenants/demo").ok()["status"]["waiting"].clone();
    eventually("it is listed or admitted", || {
        let listed = waiting();
        let ready = host.daemon("gpu0")["status"]["phase"] == "ready";
        (listed[0]["pid"] == pid || ready).then_some(())
    });
    let seen = seen(client);
    assert_eq!((&seen["mps"], &seen["devices"][0]["sms"]), (&json!(true), &json!(32)), "{seen}");
    host.await_ready();
    assert!(is_linked(&host, &demo));
    assert_eq!(waiting(), json!([]));
}

#[test]
fn no_client_slips_past_dying_daemons() {
    let host = InProcess::ready();
    let demo = directory(&host, "demo");
    // On a busy machine there may be another daemon before anybody has looked.
    let mut closed = 0;
    for _ in 0..8 {
        let daemon = host.daemon_pid("gpu0");
        let has_another = || {
            let status = host.daemon("gpu0")["status"].clone();
            status["phase"] == "ready" && status["pid"] != daemon
        };
        signal(daemon, Signal::KILL);
        eventually("its death is noticed", || (!is_linked(&host, &demo) || has_another()).then_some(()));
        closed += usize::from(!is_linked(&host, &demo));
        let clients: Vec<Child> = (0..4).map(|_| coming(&host, "demo")).collect();
        eventually("there is another daemon", || has_another().then_some(()));
        // Before the next death, at which one that comes late would find a dead daemon's socket for a moment.
        for client in clients {
            let seen = seen(client);
            assert_eq!(seen["mps"], true, "{seen}");
        }
        if closed == 3 {
            break;
        }
    }
    assert!(closed > 0, "no client came while its directory was closed");
}

#[test]
fn cordoned_tenant_is_refused_at_once() {
    let host = InProcess::ready();
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    let demo = directory(&host, "demo");
    assert!(!is_linked(&host, &demo) && demo.join("control").exists(), "a placeholder, when it is answered");
    assert_eq!(seen(coming(&host, "demo"))["error"], REFUSED);
    host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok();
    assert!(is_linked(&host, &demo), "the socket, when it is answered");
    assert_eq!(seen(coming(&host, "demo"))["mps"], true);
}

#[test]
fn deleted_tenant_stays_closed_while_held() {
    let host = InProcess::ready();
    let old = directory(&host, "demo");
    let late = host.client_command("demo", &[]);
    let mut holder = std::process::Command::new("sleep");
    let mut holder = holder.arg("600").env("CUDA_MPS_PIPE_DIRECTORY", &old).spawn().unwrap();
    assert_eq!(host.api().delete("/api/v1/tenants/demo").status, 204);
    assert!(!is_linked(&host, &old) && old.join("control").exists(), "a placeholder, when it is answered");
    assert_eq!(Client::start(late).seen["error"], REFUSED);
    assert_eq!(
        host.api().tenant("demo", &json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"})).status,
        201
    );
    host.await_ready();
    assert_ne!(directory(&host, "demo"), old, "another tenant's");
    assert!(old.join("control").exists(), "a process has it");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let mut late = host.client_command("demo", &[]);
    late.env("CUDA_MPS_PIPE_DIRECTORY", &old);
    assert_eq!(Client::start(late).seen["error"], REFUSED, "as of a shell that has its path");
    assert!(directory(&host, "demo").exists());
}

#[test]
fn waiting_client_is_refused_when_the_manager_dies() {
    let mut host = Host::ready();
    let demo = directory(&host, "demo");
    let command = host.client_command("demo", &[]);
    pause(&host);
    let client = { command }.stdout(Stdio::piped()).spawn().unwrap();
    // It was greeted: from here on it cannot run outside MPS, whether or not it was admitted before the manager died.
    eventually("it waits or was admitted", || {
        let status = host.api().get("/api/v1/tenants/demo").ok()["status"].clone();
        (status["waiting"][0]["pid"] == client.id() || status["conditions"][0]["status"] == true)
            .then_some(())
    });
    host.end_manager(Signal::KILL);
    let seen = seen(client);
    assert!(seen["error"] == REFUSED || seen["mps"] == true, "{seen}");
    host.serve();
    host.await_ready();
    assert!(is_linked(&host, &demo), "the next manager has restored it");
}

#[test]
fn unsafe_tenant_directory_hands_nothing_out() {
    let mut host = Host::ready();
    let demo = directory(&host, "demo");
    fs::remove_dir_all(&demo).unwrap();
    std::os::unix::fs::symlink("/tmp", &demo).unwrap();
    let refused = host.api().get("/api/v1/tenants/demo/environment").problem(503, "unavailable");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("symbolic link") && detail.contains("rm "), "{detail}");
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(2));
    let tenant = host.api().get("/api/v1/tenants/demo").ok();
    let conditions = tenant["status"]["conditions"].as_array().unwrap();
    let reason =
        |kind: &str| conditions.iter().find(|one| one["type"] == kind).map(|one| one["reason"].clone());
    assert_eq!(reason("ClientSocket"), Some(json!("TenantDirectoryUnsafe")), "{tenant}");
    assert_eq!(reason("Ready"), Some(json!("SocketNotHandedOut")));
    // Nor does it keep a manager from starting that has other tenants to serve.
    host.end_manager(Signal::KILL);
    host.serve();
    eventually("others are served", || host.run("batch", &["true"]).status.success().then_some(()));
    host.api().get("/api/v1/tenants/demo/environment").problem(503, "unavailable");
    fs::remove_file(&demo).unwrap();
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0), "it is made again");
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
}

#[test]
fn run_unsets_every_variable_of_mps() {
    let host = InProcess::ready();
    let mut command = host.run_command("demo", &["env"]);
    command
        .env("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING", "1")
        .env("CUDA_MPS_OF_A_LATER_RELEASE", "1")
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .env("CUDA_HOME", "/usr/local/cuda");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for gone in ["PER_CTX", "LATER_RELEASE", "CUDA_DEVICE_ORDER"] {
        assert!(!text.contains(gone), "{text}");
    }
    assert!(
        text.contains("CUDA_HOME=/usr/local/cuda\n") && text.contains("CUDA_MPS_PIPE_DIRECTORY="),
        "{text}"
    );
}
