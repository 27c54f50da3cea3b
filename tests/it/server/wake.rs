//! A line of a log wakes one poll, whichever program wrote it, and nothing else is made of it.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value;

use crate::harness::{InProcess, Served, eventually};

fn log(host: &Served, name: &str) -> PathBuf {
    host.runtime("daemons/gpu0/log").join(name)
}

fn append(host: &Served, name: &str, text: &str) {
    let line = format!("[2026-11-21 02:53:15.169 Control  1308] {text}\n");
    fs::File::options().append(true).open(log(host, name)).unwrap().write_all(line.as_bytes()).unwrap();
}

pub(super) fn polls(host: &Served) -> u64 {
    host.daemon("gpu0")["status"]["sessions"]["polls"].as_u64().unwrap()
}

/// The clients as they are known without a poll.
fn known(host: &Served) -> Vec<Value> {
    host.api().get("/api/v1/clients").ok()["items"].as_array().unwrap().clone()
}

fn await_clients(host: &Served, count: usize) {
    eventually(&format!("{count} clients are known"), || (known(host).len() == count).then_some(()));
}

#[test]
fn clients_are_seen_between_hourly_polls() {
    let host = InProcess::polled_hourly("");
    let client = crate::harness::Client::start(host.client_command("demo", &["--spin", "600"]));
    await_clients(&host, 1);
    drop(client);
    await_clients(&host, 0);
}

#[test]
fn read_only_sessions_cause_no_poll() {
    let host = InProcess::polled_hourly("");
    // What woke it at its start is over once a change by another program is restored and nothing follows.
    let polls_after = |change: &str| {
        let before = host.daemon("gpu0")["status"]["drift"]["count"].as_u64().unwrap();
        host.control("gpu0", change);
        eventually("it is restored", || {
            let status = host.daemon("gpu0")["status"].clone();
            (status["drift"]["count"].as_u64() > Some(before) && status["phase"] == "ready").then_some(())
        });
        polls(&host)
    };
    let before = polls_after("set_default_active_thread_percentage 30");
    for _ in 0..50 {
        host.control("gpu0", "get_server_list\nget_default_active_thread_percentage\nps\nlspart\nnonsense");
    }
    let after = polls_after("set_default_active_thread_percentage 30");
    // One poll detects the change, and one restores it; a late one of the first change may come in between.
    assert!(after - before <= 4, "{} polls", after - before);
}

#[test]
fn truncated_or_replaced_log_is_still_watched() {
    let host = InProcess::polled_hourly("");
    for name in ["control.log", "server.log"] {
        fs::File::options().write(true).truncate(true).open(log(&host, name)).unwrap();
    }
    let client = crate::harness::Client::start(host.client_command("demo", &["--spin", "600"]));
    await_clients(&host, 1);
    // The daemon keeps the deleted file; the server's own log still shows it.
    fs::remove_file(log(&host, "control.log")).unwrap();
    drop(client);
    await_clients(&host, 0);
    fs::write(log(&host, "control.log"), "").unwrap();
    let before = polls(&host);
    append(&host, "control.log", "NEW SERVER 1: Ready");
    eventually("the new file is followed", || (polls(&host) > before).then_some(()));
}

#[test]
fn many_commands_keep_both_logs_bounded() {
    const BOUND: u64 = 4 << 20;
    let host = InProcess::polled_hourly("");
    let size = |name: &str| fs::metadata(log(&host, name)).unwrap().len();
    let lines = "get_default_active_thread_percentage\n".repeat(10_000);
    let mut largest = 0;
    for _ in 0..4 {
        let replies = eventually("the daemon takes the commands", || {
            let replies = host.control_once("gpu0", &lines);
            (replies.lines().count() == 10_000).then_some(replies)
        });
        assert!(replies.starts_with("50.0\n50.0\n"));
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
    // A session of ten thousand commands is one held open, so a poll may have failed meanwhile.
    host.await_ready();
    assert_eq!(host.api().get("/api/v1/daemons/gpu0?fresh=true").status, 200);
}
