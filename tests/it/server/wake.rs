//! A line of a log wakes one look, whoever wrote it, and nothing else is made of it.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{Host, eventually};

fn log(host: &Host, name: &str) -> PathBuf {
    host.runtime("daemons/gpu0/log").join(name)
}

fn append(host: &Host, name: &str, text: &str) {
    let line = format!("[2026-11-21 02:53:15.169 Control  1308] {text}\n");
    fs::File::options().append(true).open(log(host, name)).unwrap().write_all(line.as_bytes()).unwrap();
}

fn looks(host: &Host) -> u64 {
    host.daemon("gpu0")["status"]["sessions"]["looks"].as_u64().unwrap()
}

/// The clients as they are known without a look.
fn known(host: &Host) -> Vec<Value> {
    host.api().get("/api/v1/clients").ok()["items"].as_array().unwrap().clone()
}

fn await_clients(host: &Host, count: usize) {
    eventually(&format!("{count} clients are known"), || (known(host).len() == count).then_some(()));
}

#[test]
fn clients_who_come_and_go_are_seen_though_nobody_looks_for_an_hour() {
    let host = Host::looked_at_once_an_hour("");
    let client = crate::harness::Client::start(host.client_command("demo", &["--spin", "600"]));
    await_clients(&host, 1);
    drop(client);
    await_clients(&host, 0);
}

#[test]
fn sessions_that_only_read_wake_nobody() {
    let host = Host::looked_at_once_an_hour("");
    // What woke it at its start is over once a change of somebody else's is put back and nothing follows.
    let settled = |change: &str| {
        let before = host.daemon("gpu0")["status"]["drift"]["count"].as_u64().unwrap();
        host.control("gpu0", change);
        eventually("it is put back", || {
            let status = host.daemon("gpu0")["status"].clone();
            (status["drift"]["count"].as_u64() > Some(before) && status["phase"] == "ready").then_some(())
        });
        looks(&host)
    };
    let before = settled("set_default_active_thread_percentage 30");
    for _ in 0..50 {
        host.control("gpu0", "get_server_list\nget_default_active_thread_percentage\nps\nlspart\nnonsense");
    }
    let after = settled("set_default_active_thread_percentage 30");
    // One look finds the change, and one puts it right; a late one of the first change may come in between.
    assert!(after - before <= 4, "{} looks", after - before);
}

#[test]
fn a_forged_line_costs_a_look_and_is_not_believed() {
    let host = Host::looked_at_once_an_hour("");
    host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    let before = looks(&host);
    let me = std::process::id();
    append(
        &host,
        "control.log",
        &format!("NEW CLIENT {me} from user 4242: Server is not ready, push client to pending list"),
    );
    append(&host, "control.log", "Server 1 exited with status 0");
    append(&host, "server.log", "Client {PID: 1, Context ID: 0} connected");
    append(&host, "server.log", "Client {PID: 1, Context: 1} encountered a fatal GPU error.");
    eventually("it was looked at", || (looks(&host) > before).then_some(()));
    let status = host.daemon("gpu0")["status"].clone();
    assert_eq!((&status["phase"], &status["queue"]), (&json!("ready"), &json!([])), "{status}");
    assert!(known(&host).is_empty());
    assert_eq!(status["conditions"].as_array().unwrap().len(), 1, "{status}");
    assert!(looks(&host) - before <= 4, "one burst, one look, and a second at most");
}

#[test]
fn a_log_that_is_emptied_or_replaced_is_still_watched() {
    let host = Host::looked_at_once_an_hour("");
    for name in ["control.log", "server.log"] {
        fs::File::options().write(true).truncate(true).open(log(&host, name)).unwrap();
    }
    let client = crate::harness::Client::start(host.client_command("demo", &["--spin", "600"]));
    await_clients(&host, 1);
    // The daemon keeps the deleted file; the server's own log still tells.
    fs::remove_file(log(&host, "control.log")).unwrap();
    drop(client);
    await_clients(&host, 0);
    fs::write(log(&host, "control.log"), "").unwrap();
    let before = looks(&host);
    append(&host, "control.log", "NEW SERVER 1: Ready");
    eventually("the new file is followed", || (looks(&host) > before).then_some(()));
}

#[test]
fn forty_thousand_commands_leave_both_logs_under_their_bound() {
    const BOUND: u64 = 4 << 20;
    let host = Host::looked_at_once_an_hour("");
    let size = |name: &str| fs::metadata(log(&host, name)).unwrap().len();
    let lines = "get_default_active_thread_percentage\n".repeat(10_000);
    let mut largest = 0;
    for _ in 0..4 {
        let said = eventually("the daemon takes the commands", || {
            let said = host.control_once("gpu0", &lines);
            (said.lines().count() == 10_000).then_some(said)
        });
        assert!(said.starts_with("50.0\n50.0\n"));
        largest = largest.max(size("control.log"));
    }
    eventually("both are under their bound", || {
        (size("control.log") <= BOUND && size("server.log") <= BOUND).then_some(())
    });
    assert!(largest < 4 * BOUND, "control.log had {largest} bytes meanwhile");
    // What was emptied is kept, without the manager's own sessions.
    let kept = fs::read_to_string(log(&host, "control.log.kept")).unwrap();
    assert!(kept.len() as u64 <= BOUND && kept.contains("Cmd:get_default_active_thread_percentage"));
    assert!(!kept.contains("Cmd:zz-"), "no session of ours");
    // A session of ten thousand commands is one held open, so a look may have failed meanwhile.
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/daemons/gpu0?fresh=true").status, 200);
}
