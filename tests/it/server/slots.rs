//! Slots for processes: as many as a tenant has and MPS takes, and who waits for one.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Host, InProcess, Served, eventually, is_alive, stderr_of};

/// A command of a tenant that waits for its slot.
fn waiting(host: &Served, tenant: &str, wait: &str, words: &[&str]) -> Child {
    let mut command = host.command(&["run", "--tenant", tenant, wait, "--"]);
    command.args(words).stderr(Stdio::piped()).spawn().expect("started")
}

/// Whether a process has become its command, which it does once it has its lease.
fn is_running(child: &Child) -> bool {
    let command = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap_or_default();
    command.starts_with(b"sleep\0")
}

fn end(mut child: Child) {
    let _ = child.kill();
    child.wait().expect("it ends");
}

#[test]
fn waiting_processes_start_in_order() {
    let host = InProcess::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let mut later = Vec::new();
    for number in 1..=3 {
        later.push(waiting(&host, "demo", "--wait=10m", &["sleep", "600"]));
        // The next one comes after this one waits.
        eventually("it waits", || {
            let refused = host.run("demo", &["true"]);
            assert_eq!(refused.status.code(), Some(2));
            let words = stderr_of(&refused);
            words.starts_with(&format!("mps-manager: At capacity: {number} process")).then_some(())
        });
    }
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["status"]["queued"], 3);
    end(first);
    while !later.is_empty() {
        let next = later.remove(0);
        eventually("the next has its slot", || is_running(&next).then_some(()));
        assert!(later.iter().all(|one| is_alive(one.id()) && !is_running(one)), "the others wait");
        end(next);
    }
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
}

#[test]
fn wait_ends_after_its_time() {
    let host = InProcess::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let output = waiting(&host, "demo", "--wait=1s", &["true"]).wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    let words = stderr_of(&output);
    assert!(
        words.starts_with("mps-manager: waiting: At capacity: tenant demo has 1 process running"),
        "{words}"
    );
    let (before, given_up) = words.split_once("mps-manager: gave up after 1 s: ").expect(&words);
    assert!(!before.contains("--wait"), "it waits already: {words}");
    assert!(given_up.starts_with("tenant demo has 1 process running"), "{words}");
    assert!(given_up.contains("wait longer (--wait) or raise max_clients"), "{words}");
    assert!(!given_up.contains("keeps its turn"), "{words}");
    let malformed =
        host.command(&["run", "--tenant", "demo", "--wait", "soon", "--", "true"]).output().expect("it runs");
    assert_eq!(malformed.status.code(), Some(2));
    assert!(stderr_of(&malformed).contains("\"soon\" is not a duration"), "{}", stderr_of(&malformed));
    end(first);
}

#[test]
fn process_that_gives_up_waiting_holds_up_nobody() {
    let host = InProcess::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let gone = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("it waits", || {
        stderr_of(&host.run("demo", &["true"])).contains("1 process waits").then_some(())
    });
    end(gone);
    end(first);
    eventually("its turn is over", || host.run("demo", &["true"]).status.success().then_some(()));
}

/// Processes that are recorded as a tenant's, each of which takes a slot.
struct Recorded(Vec<Child>);

impl Recorded {
    fn new(host: &InProcess, tenant: &str, count: usize) -> Self {
        let recorded =
            Self((0..count).map(|_| Command::new("sleep").arg("600").spawn().expect("sleep")).collect());
        for process in &recorded.0 {
            let body = json!({"kind": "recorded", "pid": process.id()});
            assert_eq!(host.api().post(&format!("/api/v1/tenants/{tenant}/leases"), &body).status, 201);
        }
        recorded
    }

    fn end_one(&mut self) {
        end(self.0.pop().expect("one is left"));
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        for process in self.0.drain(..) {
            end(process);
        }
    }
}

#[test]
fn gpu_takes_as_many_processes_as_mps() {
    let host = InProcess::ready();
    for name in ["a", "b"] {
        let spec: Value = json!({"daemon": "gpu1", "uid": rustix::process::geteuid().as_raw()});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    // The simulated host has a version of MPS that takes 60.
    let (mut mine, others) = (Recorded::new(&host, "a", 40), Recorded::new(&host, "b", 20));
    let refused = host.run("b", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    let words = stderr_of(&refused);
    assert!(
        words.contains("At capacity: GPU 1 has 60 of the 60 clients that this version of MPS takes"),
        "{words}"
    );
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0), "the other GPU has room");

    let waits = waiting(&host, "b", "--wait", &["sleep", "600"]);
    eventually("a process of another tenant comes after it", || {
        stderr_of(&host.run("a", &["true"]))
            .contains("1 process waits for a slot of tenant a or of its GPUs")
            .then_some(())
    });
    mine.end_one();
    eventually("it has the slot", || is_running(&waits).then_some(()));
    assert!(stderr_of(&host.run("a", &["true"])).contains("GPU 1 has 60 of the 60 clients"));
    end(waits);
    drop(others);
    assert_eq!(host.run("a", &["true"]).status.code(), Some(0));
}

#[test]
fn waiting_leaves_no_audit_rows() {
    let host = InProcess::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let refused = || {
        let rows = host.api().get("/api/v1/audit?limit=1000").ok();
        let rows = rows["items"].as_array().expect("rows").clone();
        rows.iter()
            .filter(|row| row["action"].as_str().is_some_and(|action| action.contains("leases")))
            .count()
    };
    let before = refused();
    let output = waiting(&host, "demo", "--wait=2s", &["true"]).wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), refused()), (Some(2), before));
    // Whoever does not wait is refused, and that is recorded.
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(2));
    eventually("it is recorded", || (refused() > before).then_some(()));
    end(first);
}

#[test]
fn waits_survive_a_restart_of_the_manager() {
    let mut host = Host::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let waits = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("it waits", || {
        stderr_of(&host.run("demo", &["true"])).contains("1 process waits").then_some(())
    });
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert!(is_alive(waits.id()) && !is_running(&waits));
    end(first);
    eventually("it has the slot", || is_running(&waits).then_some(()));
    end(waits);
}

#[test]
fn order_survives_a_killed_manager() {
    let mut host = Host::ready();
    let first = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("the first has its slot", || is_running(&first).then_some(()));
    let queued = |host: &Host| host.api().get("/api/v1/tenants/demo").ok()["status"]["queued"].clone();
    let mut later = Vec::new();
    for number in 1..=4 {
        later.push(waiting(&host, "demo", "--wait", &["sleep", "600"]));
        eventually("it waits", || (queued(&host) == number).then_some(()));
    }
    host.end_manager(Signal::KILL);
    // A slot is free before any of them comes back.
    end(first);
    host.serve();
    while !later.is_empty() {
        let next = later.remove(0);
        eventually("the next has its slot", || is_running(&next).then_some(()));
        assert!(later.iter().all(|one| is_alive(one.id()) && !is_running(one)), "the others wait");
        end(next);
    }
}

#[test]
fn recorded_and_running_processes_need_no_turn() {
    let host = InProcess::ready();
    let connected = host.run_client("demo");
    let waits = waiting(&host, "demo", "--wait", &["sleep", "600"]);
    eventually("it waits", || {
        stderr_of(&host.run("demo", &["true"])).contains("1 process waits").then_some(())
    });
    let body = json!({"kind": "recorded", "pid": connected.pid()});
    assert_eq!(host.api().post("/api/v1/tenants/demo/leases", &body).status, 201);
    end(waits);
}
