//! A database that wakes on another machine, or after a reboot.

use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Host, Served, environment, eventually, is_alive, signal};

const ANOTHER: &str = "0123456789abcdef0123456789abcdef";

/// A host with a lease and running daemons whose manager is stopped, and whose database is another machine's.
fn moved() -> (Host, [u32; 2]) {
    let mut host = Host::ready();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    move_away(&mut host);
    (host, daemons)
}

/// Stops the manager, and makes its database another machine's.
fn move_away(host: &mut Host) {
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!("UPDATE host SET machine_id = '{ANOTHER}'"));
}

#[test]
fn read_only_manager_keeps_closed_sockets_closed() {
    let mut host = Host::ready();
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("open", &tenant).status, 201);
    host.await_ready();
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    let clients = ["demo", "open"].map(|tenant| host.client_command(tenant, &[]));
    move_away(&mut host);
    host.serve();
    let [mut refused, served] = clients;
    let refused = eventually("the cordoned daemon's clients are refused", || {
        let output = refused.output().unwrap();
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (!seen["error"].is_null()).then_some(seen)
    });
    assert_eq!(refused["error"], "CUDA_ERROR_MPS_CONNECTION_FAILED", "{refused}");
    let served: Value = serde_json::from_slice(&{ served }.output().unwrap().stdout).unwrap();
    assert_eq!(
        (&served["mps"], &served["error"]),
        (&json!(true), &Value::Null),
        "a daemon that takes clients: {served}"
    );
}

#[test]
fn database_of_other_machine_is_read_only() {
    let (mut host, daemons) = moved();
    // Asked for there, and not begun: nobody wants it here.
    host.execute_sql(
        r#"INSERT INTO operations (id, request, state, created_at)
           VALUES ('01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c', '{"kind":"stop_daemon","grace_s":0}', 'pending', 1);
           INSERT INTO operation_daemons (operation, daemon) VALUES ('01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c', 'gpu0');"#,
    );
    host.serve();
    let shown = host.api().get("/api/v1/host").ok();
    let here = shown["machine_id"].as_str().unwrap().to_owned();
    assert_eq!(shown["read_only"]["stored_machine_id"], ANOTHER);
    assert_eq!(shown["read_only"]["machine_id"], *here);
    let reason = shown["read_only"]["reason"].as_str().unwrap();
    assert!(reason.contains("/api/v1/host/confirm") && reason.contains(&here), "{reason}");
    let readiness = host.api().get("/readyz");
    assert_eq!(readiness.status, 503);
    let of_one = host.api().with_token(None).get("/readyz/daemons/gpu0");
    for probe in [&readiness, &of_one] {
        assert!(probe.json()["read_only"].as_str().unwrap().contains("another machine's"), "{}", probe.text);
        assert!(
            !probe.text.contains(&here) && !probe.text.contains(ANOTHER),
            "anybody reads it: {}",
            probe.text
        );
    }
    assert_eq!(host.api().get("/healthz").status, 200);
    let status = host.cli(&["status"]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("READ-ONLY"), "{status:?}");

    // Reads work, and nothing was adopted.
    assert_eq!(host.api().get("/api/v1/tenants").ok()["items"].as_array().unwrap().len(), 2);
    assert_eq!(host.daemon("gpu0")["status"], Value::Null);
    let tenant = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"});
    for refused in [
        host.api().tenant("new", &tenant),
        host.api().put("/api/v1/tenants/new?dry_run=true", &tenant),
        host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"], "schedulable": false})),
        host.api().delete("/api/v1/tenants/demo"),
        host.api().delete("/api/v1/daemons/gpu1"),
        host.api().post("/api/v1/daemons/gpu0/stop", &json!({})),
        host.api().post("/api/v1/operations/01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c/cancel", &json!({})),
    ] {
        refused.problem(409, "read-only");
    }
    assert_eq!(host.run_command("demo", &["true"]).output().unwrap().status.code(), Some(2));
    let wrong = host.api().post("/api/v1/host/confirm", &json!({"machine_id": ANOTHER}));
    assert_eq!(wrong.problem(422, "invalid-request")["errors"][0]["pointer"], "/machine_id");
    assert!(daemons.into_iter().all(is_alive), "what runs here is not touched");
    let log = host.log();
    assert!(!log.contains("adopted") || log.find("adopted") < log.find("another machine"), "{log}");
    let pending = host.api().get("/api/v1/operations/01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c").ok();
    assert_eq!(pending["state"], "pending", "no operation is claimed");

    // The other machine had daemons of its own, in another boot; these here stand in the way as anybody's would.
    for pid in daemons {
        signal(pid, Signal::KILL);
    }
    let confirmed = host.api().post("/api/v1/host/confirm", &json!({"machine_id": here})).ok();
    assert_eq!(confirmed["read_only"], Value::Null);
    host.await_ready();
    assert!(!daemons.contains(&host.daemon_pid("gpu0")));
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
    let abandoned = host.api().get("/api/v1/operations/01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c").ok();
    assert_eq!(abandoned["state"], "failed");
    assert!(abandoned["error"].as_str().unwrap().contains("another machine"), "{abandoned}");
    // Saying it again changes nothing, and the next start needs no word.
    host.api().post("/api/v1/host/confirm", &json!({"machine_id": here})).ok();
    host.end_manager(Signal::TERM);
    host.serve();
    host.await_ready();
}

/// The ID of the machine that the manager is on.
fn here(host: &Served) -> Value {
    host.api().get("/api/v1/host").ok()["machine_id"].clone()
}

#[test]
fn daemons_survive_a_changed_machine_id() {
    let mut host = Host::ready();
    let mut client = host.run_client("demo");
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!("UPDATE host SET machine_id = '{ANOTHER}'"));
    host.serve();
    host.api().post("/api/v1/host/confirm", &json!({"machine_id": here(&host)})).ok();
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons);
    assert!(client.is_running());
    let listed = host.listed(client.pid());
    assert_eq!((&listed["tenant"], &listed["attributed_by"]), (&json!("demo"), &json!("lease")), "{listed}");
}

#[test]
fn failed_adoption_is_retried_by_next_confirmation() {
    let (mut host, daemons) = moved();
    let spec = host.query_sql("SELECT spec FROM daemons WHERE name = 'gpu0'").remove(0);
    host.execute_sql("UPDATE daemons SET spec = '[]' WHERE name = 'gpu0'");
    host.serve();
    let body = json!({"machine_id": here(&host)});
    assert_eq!(host.api().post("/api/v1/host/confirm", &body).status, 500);
    let shown = host.api().get("/api/v1/host").ok();
    let reason = shown["read_only"]["reason"].as_str().unwrap();
    assert!(
        reason.contains("loading it is not complete") && reason.contains("/host/confirm) again"),
        "{reason}"
    );
    host.api().delete("/api/v1/tenants/demo").problem(409, "read-only");

    host.execute_sql(&format!("UPDATE daemons SET spec = '{spec}' WHERE name = 'gpu0'"));
    assert_eq!(host.api().post("/api/v1/host/confirm", &body).ok()["read_only"], Value::Null);
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons);
}

#[test]
fn concurrent_confirmations_adopt_once() {
    let (mut host, daemons) = moved();
    host.serve();
    let body = json!({"machine_id": here(&host)});
    let threads = std::array::from_fn::<_, 8, _>(|_| {
        let (api, body) = (host.api().clone(), body.clone());
        std::thread::spawn(move || api.post("/api/v1/host/confirm", &body).ok()["read_only"].clone())
    });
    for thread in threads {
        assert_eq!(thread.join().unwrap(), Value::Null);
    }
    host.await_ready();
    assert_eq!(["gpu0", "gpu1"].map(|name| host.daemon_pid(name)), daemons);
    assert_eq!(host.log().matches("was confirmed to belong").count(), 1);
}

#[test]
fn copied_state_directory_seeds_no_simulated_host() {
    let (mut host, daemons) = moved();
    std::fs::write(host.state("seeding"), "").unwrap();
    host.serve();
    assert_eq!(host.api().get("/readyz").status, 503);
    assert!(daemons.into_iter().all(is_alive));
}

#[test]
fn read_only_manager_stays_so_after_restart() {
    let (mut host, daemons) = moved();
    host.serve();
    assert_eq!(host.end_manager(Signal::TERM), Some(0), "{}", host.log());
    assert_eq!(host.query_sql("SELECT machine_id FROM host"), [ANOTHER]);
    assert_eq!(host.query_sql("SELECT count(*) || '' FROM incarnations"), ["2"], "nothing was forgotten");
    host.serve();
    assert_eq!(host.api().get("/readyz").status, 503);
    assert!(daemons.into_iter().all(is_alive));
}

#[test]
fn gpus_of_other_machine_are_missing() {
    let (mut host, daemons) = moved();
    for pid in daemons {
        signal(pid, Signal::KILL);
    }
    // Another machine has other GPUs.
    std::fs::remove_dir_all(host.runtime("sim")).unwrap();
    host.serve();
    let here = host.api().get("/api/v1/host").ok()["machine_id"].clone();
    host.api().post("/api/v1/host/confirm", &json!({"machine_id": here})).ok();
    for daemon in ["gpu0", "gpu1"] {
        eventually("its GPU is missing", || {
            (host.daemon(daemon)["status"]["conditions"][0]["reason"] == "GpuMissing").then_some(())
        });
    }
    let gpus = host.api().get("/api/v1/gpus").ok();
    let gpus = gpus["items"].as_array().unwrap();
    assert_eq!(
        gpus.iter().map(|gpu| gpu["present"].as_bool().unwrap()).collect::<Vec<_>>(),
        [true, true, false, false]
    );
    for gpu in &gpus[2..] {
        let with = if gpu["daemon"] == "gpu0" { "0" } else { "1" };
        let path = format!("/api/v1/gpus/{}/replace", gpu["uuid"].as_str().unwrap());
        host.api().post(&path, &json!({"with": with})).ok();
    }
    host.await_ready();
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32);
}

/// A process that has nothing to do with any of this.
struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Field 22 of `/proc/PID/stat`.
fn start_time(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().to_owned()
}

#[test]
fn reboot_starts_daemons_and_ignores_reused_pids() {
    let mut host = Host::ready();
    let client = host.run_client("demo");
    let tokens =
        ["gpu0", "gpu1"].map(|name| environment(host.daemon_pid(name), "MPS_MANAGER_INCARNATION").unwrap());
    let old = ["gpu0", "gpu1"].map(|name| (host.daemon_pid(name), host.server_pid(name)));
    host.end_manager(Signal::KILL);
    drop(client);
    for (daemon, server) in old {
        signal(daemon, Signal::KILL);
        eventually("the server follows", || (!is_alive(server)).then_some(()));
    }
    let mut stranger = Stranger(Command::new("sleep").arg("600").env_clear().spawn().unwrap());
    let pid = stranger.0.id();
    // As a reboot leaves it: another boot, and PIDs that are given to others.
    host.execute_sql(&format!(
        "UPDATE incarnations SET boot_id = 'b', pid = {pid}, start_time = {};
         UPDATE leases SET boot_id = 'b', pid = {pid};",
        start_time(pid)
    ));
    assert_eq!(host.query_sql("SELECT count(*) || '' FROM leases"), ["1"]);
    host.serve();
    host.await_ready();
    for (name, token) in ["gpu0", "gpu1"].into_iter().zip(&tokens) {
        let status = &host.daemon(name)["status"];
        assert_eq!((&status["incarnation"], &status["deaths"]), (&json!(1), &json!(0)), "{status}");
        let now = environment(host.daemon_pid(name), "MPS_MANAGER_INCARNATION").unwrap();
        assert_ne!(now, *token);
    }
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "50.0");
    assert!(
        host.run_command("demo", &["true"]).output().unwrap().status.success(),
        "no lease holds its place"
    );
    assert!(is_alive(pid) && stranger.0.try_wait().unwrap().is_none(), "the stranger was left alone");
    host.end_manager(Signal::TERM);
    assert_eq!(host.query_sql("SELECT count(*) || '' FROM leases WHERE boot_id = 'b'"), ["0"]);
    assert_eq!(host.query_sql("SELECT count(*) || '' FROM incarnations WHERE boot_id = 'b'"), ["0"]);
}

#[test]
fn reused_pid_is_not_adopted() {
    let mut host = Host::ready();
    let daemon = host.daemon_pid("gpu1");
    host.end_manager(Signal::KILL);
    signal(daemon, Signal::KILL);
    let mut stranger = Stranger(Command::new("sleep").arg("600").env_clear().spawn().unwrap());
    let pid = stranger.0.id();
    host.execute_sql(&format!(
        "UPDATE incarnations SET pid = {pid}, start_time = {} WHERE daemon = 'gpu1'",
        start_time(pid)
    ));
    host.serve();
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu1"), pid);
    assert!(stranger.0.try_wait().unwrap().is_none(), "the stranger was left alone");
}
