//! Verification: what a CUDA client saw in a tenant's environment, beside what is configured, and what it says when that differs.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, apply, write};
use super::tokens::create;
use crate::harness::{Answer, Api, Host, InProcess, Served, eventually, signal, stderr_of, unix_ms};

/// Asks for a verification and waits for what comes of it.
pub(super) fn verify(host: &Served, tenant: &str) -> Value {
    verify_as(host.api(), tenant)
}

fn verify_as(api: &Api, tenant: &str) -> Value {
    let asked = ask(api, tenant);
    assert_eq!(asked.status, 202, "{}", asked.text);
    assert_eq!(asked.header("location"), Some(&*format!("/api/v1/tenants/{tenant}")));
    let since = unix_ms(&asked.json()["running_since"]);
    eventually("the verification ends", || {
        let last = of(api, tenant)["last"].clone();
        (!last.is_null() && unix_ms(&last["requested_at"]) >= since).then_some(last)
    })
}

fn ask(api: &Api, tenant: &str) -> Answer {
    api.post(&format!("/api/v1/tenants/{tenant}/verify"), &json!({}))
}

fn of(api: &Api, tenant: &str) -> Value {
    api.get(&format!("/api/v1/tenants/{tenant}")).ok()["status"]["verification"].clone()
}

/// The comparison of a setting.
fn of_setting<'r>(result: &'r Value, setting: &str) -> &'r Value {
    let all = result["comparisons"].as_array().expect("comparisons");
    all.iter().find(|one| one["setting"] == setting).unwrap_or_else(|| panic!("no {setting}: {result}"))
}

/// The settings of this verdict.
fn settings<'r>(result: &'r Value, verdict: &str) -> Vec<&'r str> {
    let all = result["comparisons"].as_array().expect("comparisons").iter();
    all.filter(|one| one["verdict"] == verdict).map(|one| one["setting"].as_str().expect("a word")).collect()
}

#[test]
fn ordinals_name_the_gpu_of_the_daemon() {
    let host = InProcess::ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G", "sms": 32, "visible_devices": "ordinal"});
    assert_eq!(host.api().tenant("numbers", &spec).status, 201);
    let environment = host.api().get("/api/v1/tenants/numbers/environment").ok();
    assert_eq!(environment["variables"]["CUDA_VISIBLE_DEVICES"], "0", "the daemon's own numbering");
    let verified = verify(&host, "numbers");
    assert_eq!(verified["outcome"], "verified", "{verified}");
    let second = host.api().get("/api/v1/gpus/1").ok();
    assert_eq!(verified["comparisons"][1]["seen"][0], second["uuid"], "{verified}");
}

#[test]
fn verification_confirms_every_configured_setting() {
    let host = InProcess::ready();
    assert!(of(host.api(), "demo").is_null(), "nobody has asked");
    let dry = host.api().post("/api/v1/tenants/demo/verify?dry_run=true", &json!({}));
    assert_eq!((dry.status, dry.json()["running_since"].is_string()), (200, true), "{}", dry.text);
    assert!(of(host.api(), "demo").is_null(), "nothing is kept");
    let result = verify(&host, "demo");
    assert_eq!(result["outcome"], "verified", "{result}");
    let all = ["mps", "gpus", "sms", "device_memory_limit", "largest_allocation"];
    assert_eq!(settings(&result, "holds"), all);
    assert_eq!(settings(&result, "not_seen"), ["priority"], "a hint that nobody sees");
    let sms = of_setting(&result, "sms");
    assert_eq!((&sms["expected"], &sms["seen"]), (&json!(32), &json!(32)));
    let seen: u64 = of_setting(&result, "device_memory_limit")["seen"].as_u64().unwrap();
    assert!((3 << 30..4 << 30).contains(&seen), "a context is paid from 4 GiB: {seen}");
    let largest: u64 = of_setting(&result, "largest_allocation")["seen"].as_u64().unwrap();
    assert!((3 << 30..4 << 30).contains(&largest), "{largest}");
    let given = host.api().get("/api/v1/tenants/demo/environment").ok();
    assert_eq!(result["environment"], given["variables"], "exactly what the tenant is given");
    assert_eq!((&result["stale"], &result["blocker"]), (&Value::Null, &Value::Null));
    let event = eventually("it is reported", || {
        host.api().get("/api/v1/events?type=tenant.verified&tenant=demo").ok()["items"].get(0).cloned()
    });
    assert_eq!((&event["subject"]["daemon"], &event["cause"]["by"]), (&json!("gpu0"), &json!("actor")));
    eventually("the client is gone", || host.clients().is_empty().then_some(()));
    let audit = host.api().get("/api/v1/audit?limit=1").ok()["items"][0].clone();
    assert_eq!(audit["action"], "POST /api/v1/tenants/{name}/verify");
    // The list shows it, too.
    let listed = host.api().get("/api/v1/tenants").ok();
    let tenants = listed["items"].as_array().unwrap();
    assert!(tenants.iter().all(|one| one["status"]["verification"].is_object() == (one["name"] == "demo")));
    // A request with conditions is held to them, and one with a key is done once.
    let conditional = |headers: &[(&str, &str)]| {
        host.api().send(Method::POST, "/api/v1/tenants/demo/verify", headers, None)
    };
    conditional(&[("if-match", "\"99\"")]).problem(412, "precondition-failed");
    let key = [("idempotency-key", "once")];
    let first = conditional(&key).json();
    let since = &first["running_since"];
    eventually("it is done", || (&of(host.api(), "demo")["last"]["requested_at"] == since).then_some(()));
    assert_eq!(conditional(&key).json(), first);
    assert_eq!(&of(host.api(), "demo")["last"]["requested_at"], since, "no second client was sent");
    host.api()
        .send(Method::POST, "/api/v1/tenants/batch/verify", &key, None)
        .problem(422, "idempotency-key-reused");
}

#[test]
fn ineffective_setting_is_named_as_differing() {
    let host = InProcess::polled_hourly("fresh_timeout_s = 1");
    let report = json!({"gpus": ["0"], "drift_policy": "report"});
    host.api().put("/api/v1/daemons/gpu0", &report).ok();
    host.await_ready();
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    // Behind the manager's back; the tenant's spec, its environment and its generation are what they were.
    let server = host.server_pid("gpu0");
    host.control("gpu0", &format!("set_active_thread_percentage {server} 10"));
    host.control("gpu0", &format!("set_device_pinned_mem_limit {server} 0 1G"));
    host.await_reason("gpu0", "SettingsDrifted");
    let output = host.cli(&["verify", "demo"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        printed.starts_with("differs\n") && printed.contains("sms: the client has fewer SMs"),
        "{printed}"
    );
    let result = of(host.api(), "demo")["last"].clone();
    assert_eq!(result["outcome"], "differs", "{result}");
    assert_eq!(settings(&result, "differs"), ["sms", "device_memory_limit"], "{result}");
    for setting in ["sms", "device_memory_limit"] {
        let one = of_setting(&result, setting);
        assert_ne!(one["expected"], one["seen"]);
        assert!(one["reason"].is_string() && one["remedy"].as_str().unwrap().contains("restart"), "{one}");
    }
    let reported = host.api().get("/api/v1/events?type=tenant.verification_failed").ok()["items"][0].clone();
    assert!(reported["message"].as_str().unwrap().ends_with("sms, device_memory_limit"), "{reported}");
    assert_eq!(reported["severity"], "warning");
    // Put back by the program that changed it, the same is verified again.
    let repair = json!({"gpus": ["0"], "drift_policy": "repair"});
    host.api().put("/api/v1/daemons/gpu0", &repair).ok();
    host.await_ready();
    assert_eq!(of(host.api(), "demo")["last"]["stale"], "daemon_changed");
    let output = host.cli(&["verify", "demo", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&printed["outcome"], &printed["stale"]), (&json!("verified"), &Value::Null));
}

#[test]
fn static_mode_is_verified_by_partition_sms() {
    let host: InProcess = super::layouts::host();
    let bound = json!({"add": {"gpu": 0, "partition": "web", "chunks": 7, "tenants": ["web"]}});
    host.api().tenant("web", &json!({"daemon": "gpu1", "device_memory_limit": "4G", "uid": uid()})).ok();
    let early = verify(&host, "web");
    assert_eq!(early["blocker"]["code"], "no_environment", "it is bound to no partition: {early}");
    write(&host, "prod", &[bound, add("spare", 1)]);
    apply(&host, "prod", &json!({}));
    let result = verify(&host, "web");
    assert_eq!(result["outcome"], "verified", "{result}");
    assert_eq!(of_setting(&result, "sms")["seen"], 56, "7 chunks of 8");
    assert!(result["environment"]["CUDA_MPS_SM_PARTITION"].is_string());
}

/// The user of this test, which the manager can run as.
fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn verification_needs_no_free_client_place() {
    let host = InProcess::ready();
    let spec = host.api().get("/api/v1/tenants/demo").ok()["spec"].clone();
    let mut one = spec;
    one["max_clients"] = json!(1);
    host.api().tenant("demo", &one).ok();
    host.await_ready();
    let mut client = host.run_client("demo");
    let result = verify(&host, "demo");
    assert_eq!(result["outcome"], "verified", "{result}");
    assert_eq!(
        settings(&result, "not_seen"),
        ["largest_allocation", "priority"],
        "it takes no more than a context"
    );
    assert!(client.is_running());
}

#[test]
fn failed_verification_is_explained_without_results() {
    let host = InProcess::ready();
    let last = |result: &Value, code: &str| {
        assert_eq!(
            (&result["outcome"], &result["blocker"]["code"]),
            (&json!("not_verified"), &json!(code)),
            "{result}"
        );
        assert_eq!(result["comparisons"], json!([]));
        result["blocker"]["message"].as_str().expect("words").to_owned()
    };
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    assert_eq!(of(host.api(), "demo")["last"]["stale"], "daemon_changed");
    assert!(last(&verify(&host, "demo"), "cordoned").contains("uncordon"));
    host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=0", &json!({})));
    let output = host.cli(&["verify", "demo"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("daemon gpu0 is stopped: start it first"), "{}", stderr_of(&output));
    last(&of(host.api(), "demo")["last"], "daemon_not_ready");
    let reported = host.api().get("/api/v1/events?type=tenant.verification_failed").ok();
    assert_eq!(reported["items"].as_array().unwrap().len(), 2, "{reported}");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/start", &json!({})));
    host.await_ready();
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    // What was seen is of one server, and of one spec.
    assert_eq!(of(host.api(), "demo")["last"]["stale"], Value::Null);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/restart?grace_s=0", &json!({})));
    eventually("it is known that the server is another", || {
        (of(host.api(), "demo")["last"]["stale"] == "server_replaced").then_some(())
    });
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    let mut spec = host.api().get("/api/v1/tenants/demo").ok()["spec"].clone();
    spec["active_thread_percentage"] = json!(50);
    host.api().tenant("demo", &spec).ok();
    assert_eq!(of(host.api(), "demo")["last"]["stale"], "tenant_changed");
    let result = verify(&host, "demo");
    assert_eq!((&result["outcome"], &of_setting(&result, "sms")["seen"]), (&json!("verified"), &json!(66)));
    // Maintenance takes the daemon down.
    host.api()
        .succeeds(&host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["0"], "timeout_s": 5})));
    last(&verify(&host, "demo"), "maintenance");
}

#[test]
fn probe_does_not_wait_behind_another_user() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::configured("fresh_timeout_s = 5");
    let spec = json!({"daemon": "gpu1", "uid": 65_534, "device_memory_limit": "1G"});
    host.api().tenant("other", &spec).ok();
    host.await_ready();
    assert_eq!(verify(&host, "other")["outcome"], "verified", "as its own user");
    let mut stranger = host.stranger("gpu1", "");
    let result = verify(&host, "other");
    assert_eq!(result["outcome"], "not_verified", "{result}");
    let code = result["blocker"]["code"].as_str().unwrap();
    assert!(["other_user", "daemon_not_ready"].contains(&code), "{result}");
    assert!(stranger.is_running());
}

#[test]
fn only_operators_and_own_tenant_may_verify() {
    let host = InProcess::ready();
    let caller = |name: &str, grant: &str| host.api().with_token(Some(&create(&host, name, grant)));
    ask(&caller("v", "viewer"), "demo").problem(403, "forbidden");
    ask(&caller("b", "tenant:batch"), "demo").problem(404, "not-found");
    ask(&host.api().with_token(None), "demo").problem(401, "unauthorized");
    ask(host.api(), "nobody").problem(404, "not-found");
    assert!(of(host.api(), "demo").is_null());
    let own = caller("d", "tenant:demo");
    assert_eq!(verify_as(&own, "demo")["outcome"], "verified");
    assert_eq!(verify_as(&caller("o", "operator"), "demo")["outcome"], "verified");
    let reported = own.get("/api/v1/events?type=tenant.verified").ok();
    assert!(
        reported["items"][0]["message"]
            .as_str()
            .unwrap()
            .contains("verification of tenant demo: a CUDA client saw"),
        "{reported}"
    );
    // Its own client is no client of anybody.
    let met = own.get("/api/v1/events?type=client.connected,client.left").ok();
    assert_eq!(met["items"], json!([]));
    // Why a daemon is not ready may name others.
    let pid = host.daemon_pid("gpu0");
    signal(pid, Signal::STOP);
    let result = verify_as(&own, "demo");
    let whole = of(host.api(), "demo")["last"]["blocker"].clone();
    signal(pid, Signal::CONT);
    assert_eq!(result["blocker"]["code"], "daemon_not_ready", "{result}");
    let message = result["blocker"]["message"].as_str().unwrap();
    assert!(message.ends_with("ask the host's operator"), "{message}");
    assert_ne!(whole["message"], message, "an operator sees why");
    // The answer to another request has this result, since its own is not there yet.
    assert_eq!(ask(&own, "demo").json()["last"]["blocker"]["message"], message);
}

#[test]
fn interrupted_verification_is_reported_as_such() {
    let mut host = Host::configured("fresh_timeout_s = 60");
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    let pid = host.daemon_pid("gpu0");
    signal(pid, Signal::STOP);
    let first = ask(host.api(), "demo").json();
    assert_eq!(ask(host.api(), "demo").json()["running_since"], first["running_since"], "one is enough");
    let now = of(host.api(), "demo");
    assert_eq!(
        (&now["running_since"], &now["last"]["outcome"]),
        (&first["running_since"], &json!("verified"))
    );
    host.end_manager(Signal::KILL);
    signal(pid, Signal::CONT);
    host.serve();
    host.await_ready();
    let now = of(host.api(), "demo");
    assert_eq!(
        (&now["running_since"], &now["last"]["blocker"]["code"]),
        (&Value::Null, &json!("interrupted"))
    );
    assert_eq!(now["last"]["requested_at"], first["running_since"]);
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    // A manager that is asked to stop does not wait for a client.
    signal(pid, Signal::STOP);
    assert_eq!(ask(host.api(), "demo").status, 202);
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    signal(pid, Signal::CONT);
}

#[test]
fn verification_is_deleted_with_its_tenant() {
    let host = InProcess::ready();
    assert_eq!(verify(&host, "demo")["outcome"], "verified");
    assert_eq!(host.query_sql("SELECT tenant FROM verifications"), ["demo"]);
    let spec = host.api().get("/api/v1/tenants/demo").ok()["spec"].clone();
    eventually("no process of it is left", || {
        (host.api().delete("/api/v1/tenants/demo").status == 204).then_some(())
    });
    assert!(host.query_sql("SELECT tenant FROM verifications").is_empty());
    host.api().tenant("demo", &spec).ok();
    assert!(of(host.api(), "demo").is_null(), "of another tenant of that name");
}
