//! Where daemons run, as status says it. Under a real systemd: `tests/systemd/run.sh`.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Host, Served};

#[test]
fn status_shows_session_cgroup_and_missing_scope() {
    let mut host = Host::ready();
    let pid = host.daemon_pid("gpu0");
    let assert_seen = |host: &Served| {
        let isolation = host.daemon("gpu0")["status"]["isolation"].clone();
        assert_eq!((&isolation["session"], &isolation["own_session"]), (&json!(pid), &json!(true)));
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        assert!(
            cgroups.lines().any(|line| line.ends_with(isolation["cgroup"].as_str().unwrap())),
            "{cgroups}"
        );
        assert_eq!(isolation["scope"] == Value::Null, isolation["reason"] != Value::Null, "{isolation}");
        isolation
    };
    assert_seen(&host);
    let shown = host.api().get("/api/v1/host").ok()["isolation"].clone();
    if shown["scopes"] == false {
        // What this test meets on a machine that systemd does not run, as in a container.
        let remark = shown["remarks"][0].as_str().unwrap();
        assert!(remark.starts_with("no scopes: "), "{remark}");
        let status = host.cli(&["status", "-o", "wide"]);
        assert!(String::from_utf8_lossy(&status.stdout).contains(remark), "{status:?}");
        let reason = assert_seen(&host)["reason"].as_str().unwrap().to_owned();
        assert!(remark.contains(reason.split(';').next().unwrap()), "{reason}");
    }
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    // An adopted daemon is where it was; it is not in its new manager's session.
    assert_seen(&host);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    assert_eq!(host.daemon("gpu0")["status"]["isolation"], Value::Null, "there is no process");
}
