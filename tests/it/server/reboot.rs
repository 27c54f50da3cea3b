//! Daemons that others started, after the host was started again.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Foreign, Host, environment, is_alive, signal};

/// A host with a foreign daemon on its second GPU, adopted as `theirs`.
fn with_theirs(management: &str) -> (Host, Foreign) {
    let host = Host::ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    let foreign = host.foreign("theirs", "1");
    foreign.control("set_default_active_thread_percentage 40");
    assert_eq!(host.adopt("theirs", &foreign, management).status, 201);
    host.await_phase("theirs", if management == "managed" { "ready" } else { "observed" });
    (host, foreign)
}

/// Ends everything as a reboot does, and gives what is stored another boot.
fn reboot(host: &mut Host, foreign: &Foreign) {
    let daemons = [host.daemon_pid("gpu0"), foreign.pid()];
    host.end_manager(Signal::KILL);
    for pid in daemons {
        signal(pid, Signal::KILL);
    }
    // What is made at each boot, as in /run, is empty after it.
    std::fs::remove_dir_all(foreign.pipe()).unwrap();
    host.execute_sql("UPDATE incarnations SET boot_id = 'b'; UPDATE leases SET boot_id = 'b'");
}

#[test]
fn observed_daemon_is_found_again_after_reboot() {
    let (mut host, foreign) = with_theirs("observed");
    reboot(&mut host, &foreign);
    host.serve();
    host.await_phase("theirs", "absent");
    std::fs::create_dir_all(foreign.pipe()).unwrap();
    foreign.start();
    let daemon = host.await_phase("theirs", "observed");
    assert_eq!(daemon["status"]["pid"], foreign.pid());
    assert_eq!(daemon["status"]["pipe_directory"], foreign.pipe().to_str().unwrap());
    assert_eq!(daemon["status"]["log_directory"], foreign.log().to_str().unwrap());
    assert_eq!(foreign.changes(), 1, "only its owner has changed anything");
}

#[test]
fn adopted_daemon_restarts_in_place_after_reboot() {
    let (mut host, foreign) = with_theirs("managed");
    reboot(&mut host, &foreign);
    host.serve();
    let daemon = host.await_phase("theirs", "ready");
    assert_eq!(daemon["status"]["pipe_directory"], foreign.pipe().to_str().unwrap());
    assert_eq!(daemon["status"]["log_directory"], foreign.log().to_str().unwrap());
    assert_eq!(foreign.control("get_default_active_thread_percentage"), "40.0");
    let pid = host.daemon_pid("theirs");
    assert!(environment(pid, "MPS_MANAGER_INCARNATION").is_some(), "ours by its token from now on");
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(host.daemon_pid("theirs"), pid);
    host.api().succeeds(&host.api().post("/api/v1/daemons/theirs/stop?grace_s=0", &json!({})));
    assert!(!is_alive(pid));
}
