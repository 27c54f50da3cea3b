//! Settings that another program changes: noticed, reported, and restored or left, by the daemon's policy.

use serde_json::json;

use crate::harness::{Host, InProcess, eventually};

const CHANGE: &str = "set_default_active_thread_percentage 30\nset_default_device_pinned_mem_limit 0 1G";

#[test]
fn external_change_is_repaired_and_still_shown() {
    // No poll is due for an hour: only a line of control.log can trigger one.
    let host = InProcess::polled_hourly("");
    assert_eq!(host.daemon("gpu0")["status"]["drift"]["count"], 0);
    host.control("gpu0", CHANGE);
    let drift = eventually("the drift is counted and over", || {
        let status = host.daemon("gpu0")["status"].clone();
        (status["drift"]["count"] != 0 && status["phase"] == "ready").then(|| status["drift"].clone())
    });
    assert_eq!((&drift["present"], drift["last_at"].is_string()), (&json!(false), true), "{drift}");
    let last = drift["last"].as_array().unwrap();
    let percentage =
        last.iter().find(|one| one["setting"] == "default active thread percentage").expect("named");
    assert_eq!((&percentage["desired"], &percentage["read"]), (&json!("50.0"), &json!("30.0")));
    assert!(last.iter().any(|one| one["desired"] == "8192 MiB" && one["read"] == "1024 MiB"), "{drift}");
    assert!(drift["command"].as_str().unwrap().starts_with("set_default_"), "{drift}");
    let condition = host.condition("gpu0", "SettingsDrifted").expect("reported after it was restored");
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(false), &json!("Restored")));
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "50.0");
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    // And again.
    let before = drift["count"].as_u64().unwrap();
    let server = host.server_pid("gpu0");
    host.control("gpu0", &format!("set_active_thread_percentage {server} 20"));
    let drift = eventually("it is counted again", || {
        let status = host.daemon("gpu0")["status"].clone();
        (status["drift"]["count"].as_u64() > Some(before) && status["phase"] == "ready")
            .then(|| status["drift"].clone())
    });
    assert_eq!(drift["last"][0]["setting"], format!("active thread percentage of server {server}"));
    assert_eq!(host.control("gpu0", &format!("get_active_thread_percentage {server}")), "50.0");
}

#[test]
fn a_limit_changed_inside_its_gibibyte_is_drift() {
    let host = InProcess::polled_hourly("");
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1025M"});
    host.api().put("/api/v1/tenants/alone", &tenant).ok();
    host.await_ready();
    let ours = "Cmd:set_default_device_pinned_mem_limit 0 1025M";
    let before = host.logged("gpu1", ours);
    let drifted = |change: &str, count: u64| {
        host.control("gpu1", change);
        eventually(&format!("{change:?} is counted and restored"), || {
            let status = host.daemon("gpu1")["status"].clone();
            (status["drift"]["count"] == count && status["phase"] == "ready").then(|| status["drift"].clone())
        })
    };
    let drift = drifted("set_default_device_pinned_mem_limit 0 1999M", 1);
    assert_eq!(drift["last"][0]["desired"], "1025 MiB", "{drift}");
    assert_eq!(drift["last"][0]["read"], "changed by others", "{drift}");
    assert_eq!(drift["command"], "set_default_device_pinned_mem_limit 0 1999M");
    assert_eq!(host.logged("gpu1", ours), before + 1, "written again");
    // The getter of a percentage rounds as well.
    let drift = drifted("set_default_active_thread_percentage 99.96", 2);
    assert_eq!(drift["last"][0]["setting"], "default active thread percentage", "{drift}");
    // The same value, and one that MPS refuses, are none.
    host.control("gpu1", "set_default_device_pinned_mem_limit 0 1025M");
    let again = drifted("set_default_device_pinned_mem_limit 0 1100M", 3);
    assert_eq!(again["last"][0]["setting"], "default memory limit of device 0", "{again}");
    host.await_ready();
    let limit = host.daemon("gpu1")["status"]["effective"]["default_memory_limits"][0].clone();
    assert_eq!((&limit["bytes"], &limit["exact"]), (&json!(1025_u64 << 20), &json!(true)));
}

#[test]
fn reported_drift_stays_and_ends_readiness() {
    let host = InProcess::polled_hourly("fresh_timeout_s = 1");
    let report = json!({"gpus": ["0"], "drift_policy": "report"});
    let answer = host.api().put("/api/v1/daemons/gpu0", &report).ok();
    assert_eq!(answer["spec"]["drift_policy"], "report");
    host.await_ready();
    let changes = host.changes("gpu0");
    host.control("gpu0", CHANGE);
    let message = host.await_reason("gpu0", "SettingsDrifted");
    assert!(message.contains("default active thread percentage is 30 % instead of 50 %"), "{message}");
    let condition = host.condition("gpu0", "SettingsDrifted").unwrap();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(true), &json!("ChangedByOthers")));
    let refused = host.run("demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2), "its limits are not in force");
    host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    let drift = host.daemon("gpu0")["status"]["drift"].clone();
    assert_eq!(
        (&drift["present"], host.changes("gpu0")),
        (&json!(true), changes + 2),
        "nothing of ours: {drift}"
    );
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "30.0");
    let repair = json!({"gpus": ["0"], "drift_policy": "repair"});
    host.api().put("/api/v1/daemons/gpu0", &repair).ok();
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "50.0");
    let wrong = json!({"gpus": ["0"], "drift_policy": "ignore"});
    let problem = host.api().put("/api/v1/daemons/gpu0", &wrong).problem(422, "invalid-request");
    assert!(problem["detail"].as_str().unwrap().contains("repair"), "{problem}");
}

#[test]
fn reported_drift_behind_a_getter_stays() {
    let host = InProcess::polled_hourly("");
    let report = json!({"gpus": ["1"], "drift_policy": "report"});
    host.api().put("/api/v1/daemons/gpu1", &report).ok();
    host.api()
        .put("/api/v1/tenants/alone", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1025M"}))
        .ok();
    host.await_ready();
    let changes = host.changes("gpu1");
    host.control("gpu1", "set_default_device_pinned_mem_limit 0 1999M");
    let message = host.await_reason("gpu1", "SettingsDrifted");
    assert!(message.contains("default memory limit of device 0 is changed by others"), "{message}");
    host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
    let limit = host.daemon("gpu1")["status"]["effective"]["default_memory_limits"][0].clone();
    assert_eq!(
        (&limit["exact"], &limit["unreadable"]),
        (&json!(false), &json!("changed by others")),
        "{limit}"
    );
    assert_eq!(host.changes("gpu1"), changes + 1, "nothing of ours");
}

#[test]
fn change_made_without_manager_is_reported() {
    let mut host = Host::ready();
    host.end_manager(rustix::process::Signal::KILL);
    host.control("gpu0", CHANGE);
    host.serve();
    host.await_ready();
    let drift = host.daemon("gpu0")["status"]["drift"].clone();
    assert_eq!((&drift["count"], &drift["present"]), (&json!(1), &json!(false)), "{drift}");
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "50.0");
}
