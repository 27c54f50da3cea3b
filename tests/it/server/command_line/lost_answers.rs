//! Commands whose manager is killed before it answers.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::json;

use super::{ok, stdout_of};
use crate::harness::{Host, eventually, pid, signal, stderr_of};

#[test]
fn set_outlives_manager_that_is_killed() {
    let mut host = Host::ready();
    ok(&host, &["tenant", "set", "web", "--daemon", "gpu0", "--max-clients", "2"]);
    // Its settings are not in force before its daemon answers.
    let control = pid(&host.api().get("/api/v1/daemons/gpu0").ok()["status"]["pid"]);
    signal(control, Signal::STOP);
    let mut set = host.command(&["tenant", "set", "web", "--max-clients", "4"]);
    let set = set.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    eventually("the change is committed", || {
        (host.api().get("/api/v1/tenants/web").ok()["spec"]["max_clients"] == json!(4)).then_some(())
    });
    host.end_manager(Signal::KILL);
    signal(control, Signal::CONT);
    host.serve();
    let set = set.wait_with_output().expect("it ends");
    assert_eq!(set.status.code(), Some(0), "{}", stderr_of(&set));
    assert!(stdout_of(&set).contains("was changed: max clients 2 -> 4"), "{}", stdout_of(&set));
}
