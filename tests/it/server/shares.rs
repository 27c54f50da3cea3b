//! Layouts whose partitions are thread percentages: the shares of their tenants, who are verified when such a layout is applied.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Host, InProcess, Manager, Served, SetOnDrop, Simulated, eventually, signal, stderr_of,
};

/// Partitions of so many chunks, each with a tenant of its name.
fn layout(partitions: &[(&str, u32)]) -> Value {
    let add = |(name, chunks): &(&str, u32)| json!({"add": {"gpu": 0, "partition": name, "chunks": chunks, "tenants": [name]}});
    json!({"enforcement": "percentage", "steps": partitions.iter().map(add).collect::<Vec<_>>()})
}

fn write(host: &Served, name: &str, partitions: &[(&str, u32)]) {
    let body = json!({"layout": layout(partitions)});
    assert_eq!(host.api().put(&format!("/api/v1/layouts/{name}"), &body).status, 201);
}

/// A host of one GPU, whose daemon has a tenant for each of these partitions and no layout.
pub(super) fn bare<M: Manager>(profile: &str, partitions: &[(&str, u32)]) -> Simulated<M> {
    let host = Simulated::ready_of(profile, "fresh_timeout_s = 2");
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    for (name, _) in partitions {
        let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G", "max_clients": 2});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    host
}

/// The same with the layout asked for.
pub(super) fn host_with<M: Manager>(profile: &str, partitions: &[(&str, u32)]) -> Simulated<M> {
    let host = bare(profile, partitions);
    write(&host, "main", partitions);
    let operation = host.api().outcome(&post(&host, "main", "apply"));
    assert_eq!(operation["state"], "succeeded", "{operation}");
    for (name, _) in partitions {
        assert_eq!(verified(&operation, name), "a CUDA client saw its SMs", "{operation}");
    }
    host
}

/// What an operation has found out about a tenant.
fn verified(operation: &Value, tenant: &str) -> String {
    let steps = operation["steps"].as_array().expect("steps");
    let name = format!("verify {tenant}");
    let step = steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("{operation}"));
    step["outcome"].as_str().expect("words").to_owned()
}

pub(super) fn post(host: &Served, layout: &str, verb: &str) -> Answer {
    host.api().post(&format!("/api/v1/layouts/{layout}/{verb}"), &json!({"daemon": "gpu0"}))
}

/// Whether the daemon holds a layout, and in what it does not.
pub(super) fn asserted(host: &Served, layout: &str) -> (bool, Vec<String>) {
    let answer = post(host, layout, "assert").ok();
    let message = |difference: &Value| difference["message"].as_str().expect("words").to_owned();
    let differences = answer["differences"].as_array().expect("differences").iter().map(message).collect();
    (answer["matches"] == true, differences)
}

/// Waits until the layout is in force, and gives its status.
pub(super) fn applied(host: &Served) -> Value {
    let daemon = host.await_phase("gpu0", "ready");
    let layout = &daemon["status"]["layout"];
    assert_eq!(
        (&layout["state"], &layout["enforcement"]),
        (&json!("applied"), &json!("percentage")),
        "{daemon}"
    );
    layout.clone()
}

/// Chunks, percentage and SMs of each partition.
pub(super) fn partitions(layout: &Value) -> Vec<(u64, f64, u64)> {
    let of = |partition: &Value| {
        let (chunks, sms) = (partition["chunks"].as_u64(), partition["sms"].as_u64());
        (chunks.expect("chunks"), partition["percentage"].as_f64().expect("a percentage"), sms.expect("SMs"))
    };
    layout["partitions"].as_array().expect("partitions").iter().map(of).collect()
}

/// The SMs that a CUDA program of a tenant sees.
pub(super) fn sees(host: &Served, tenant: &str) -> u64 {
    let client = Client::start(host.client_command(tenant, &[]));
    client.seen["devices"][0]["sms"].as_u64().unwrap_or_else(|| panic!("{}", client.seen))
}

fn server_percentage(host: &Served) -> Value {
    host.daemon("gpu0")["status"]["effective"]["servers"][0]["active_thread_percentage"].clone()
}

pub(super) const THREE: [(&str, u32); 3] = [("seven", 7), ("five", 5), ("three", 3)];

#[test]
fn h200_shares_give_exact_sms_after_restart() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    let planned = [(7, 42.5, 56), (5, 30.4, 40), (3, 18.2, 24)];
    assert_eq!(partitions(&applied(&host)), planned);
    let seen = || THREE.map(|(tenant, _)| sees(&host, tenant));
    assert_eq!(seen(), [56, 40, 24]);
    assert_eq!(server_percentage(&host), json!(42.5), "nobody gets more by leaving the environment out");
    let effective = |tenant: &str| {
        let tenant = host.api().get(&format!("/api/v1/tenants/{tenant}")).ok();
        let threads = &tenant["status"]["effective"]["threads"];
        (threads["active_thread_percentage"].clone(), threads["enforced_by"].clone())
    };
    assert_eq!(effective("seven"), (json!(42.5), json!("server")));
    assert_eq!(effective("five"), (json!(30.4), json!("environment")));
    assert_eq!(asserted(&host, "main"), (true, vec![]));

    let before = host.daemon_pid("gpu0");
    signal(before, Signal::KILL);
    eventually("another daemon is ready", || {
        let daemon = host.daemon("gpu0");
        let another = daemon["status"]["pid"] != before && daemon["status"]["phase"] == "ready";
        another.then_some(())
    });
    assert_eq!(partitions(&applied(&host)), planned, "in force again");
    assert_eq!(seen(), [56, 40, 24]);
    assert_eq!(asserted(&host, "main"), (true, vec![]));
}

/// Another tenant's label is written all the time, while this tenant is admitted.
pub(super) fn is_admitted_while_another_is_written(host: &Served, daemon: &str, tenant: &str) {
    let ended = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0_u32;
            while !ended.load(Ordering::Relaxed) {
                let labels = json!({"count": written.to_string()});
                let spec = json!({"daemon": daemon, "uid": 0, "device_memory_limit": "1G", "labels": labels});
                assert!(matches!(host.api().tenant("another", &spec).status, 200 | 201));
                written += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            written
        });
        let end = SetOnDrop(&ended);
        for run in 0..20 {
            let output = host.run(tenant, &["true"]);
            assert!(output.status.success(), "run {run}: {}", stderr_of(&output));
            host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
        }
        drop(end);
        writer.join().expect("every label is written")
    });
    assert!(written >= 20, "{written}");
}

#[test]
fn tenant_with_share_connects_during_other_writes() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    is_admitted_while_another_is_written(&host, "gpu0", "five");
    assert_eq!(sees(&host, "five"), 40);
}

#[test]
fn percentage_plan_shows_shares_and_reserves_nothing() {
    let host: InProcess = bare("h200x1@13.0", &THREE);
    write(&host, "main", &THREE);
    let plan = post(&host, "main", "plan").ok();
    assert_eq!((&plan["reserves_nothing"], &plan["in_force"]), (&json!(true), &json!(false)));
    let step = |number: usize| {
        let step = &plan["steps"][number];
        (step["chunks"].clone(), step["sms"].clone(), step["percentage"].clone(), step["command"].clone())
    };
    assert_eq!(step(0), (json!(7), json!(56), json!(42.5), Value::Null));
    assert_eq!(step(2), (json!(3), json!(24), json!(18.2), Value::Null));
    let gpu = &plan["gpus"][0];
    assert_eq!(
        (&gpu["before"]["free"], &gpu["after"]["free"]),
        (&json!(15), &json!(0)),
        "as the splitter counts them"
    );
    assert_eq!(gpu["left_over_sms"], 12);
    let headers = [("accept", "text/plain"), ("content-type", "application/json")];
    let body = json!({"daemon": "gpu0"}).to_string();
    let text = host.api().send(Method::POST, "/api/v1/layouts/main/plan", &headers, Some(body)).text;
    assert!(text.contains("nothing is reserved"), "{text}");
    assert!(text.contains("+ five: 5 chunks, 40 SMs, 30.4 %  [used 7 -> 12]"), "{text}");

    write(&host, "greedy", &[("seven", 9), ("five", 7)]);
    let refused = post(&host, "greedy", "apply").problem(409, "layout-blocked");
    let detail = refused["errors"][0]["detail"].as_str().expect("words");
    assert!(detail.contains("asks for 7 chunks") && detail.contains("give at most 6"), "{detail}");
    let own = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G", "sms": 40});
    assert_eq!(host.api().tenant("five", &own).status, 200);
    let refused = post(&host, "main", "apply").problem(409, "layout-blocked");
    assert!(refused["errors"][0]["detail"].as_str().expect("words").contains("sms of its own"), "{refused}");
    assert_eq!(host.daemon("gpu0")["spec"]["layout"], Value::Null, "nothing was changed");
}

#[test]
fn layout_replaces_another_and_can_be_removed() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    let working = host.client("seven");
    write(&host, "next", &[("seven", 7), ("five", 8)]);
    let plan = post(&host, "next", "plan").ok();
    let actions: Vec<&Value> =
        plan["steps"].as_array().expect("steps").iter().map(|step| &step["action"]).collect();
    assert_eq!(actions, ["keep", "remove", "remove", "add"]);
    host.api().succeeds(&post(&host, "next", "apply"));
    host.await_ready();
    assert_eq!(
        [sees(&host, "seven"), sees(&host, "five"), sees(&host, "three")],
        [56, 64, 132],
        "three has no partition"
    );
    assert_eq!(working.seen["devices"][0]["sms"], 56, "and nobody was disturbed");
    assert!(!asserted(&host, "main").0);

    let mut spec = host.daemon("gpu0")["spec"].clone();
    spec["layout"] = Value::Null;
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &spec).status, 200);
    host.await_ready();
    assert_eq!(host.daemon("gpu0")["status"]["layout"], Value::Null);
    assert_eq!(sees(&host, "five"), 132);
}

#[test]
fn sms_without_percentage_are_refused() {
    // One chunk of an A100 is 4 SMs, and no client sees fewer than 8.
    let host: InProcess = host_with("a100x1@13.0", &[("seven", 7)]);
    write(&host, "tiny", &[("seven", 1)]);
    let refused = post(&host, "tiny", "apply").problem(409, "conflict");
    let detail = refused["detail"].as_str().expect("words");
    assert!(detail.contains("no thread percentage gives 4 of the 108 SMs"), "{detail}");
    assert_eq!(partitions(&applied(&host))[0].2, 28);
    assert_eq!((sees(&host, "seven"), asserted(&host, "main")), (28, (true, vec![])));
}

#[test]
fn bound_tenant_cannot_set_its_own_share() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    applied(&host);
    for (field, value) in [("sms", json!(32)), ("active_thread_percentage", json!(25))] {
        let mut spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"});
        spec[field] = value;
        let refused = host.api().tenant("five", &spec).problem(409, "conflict");
        let detail = refused["detail"].as_str().expect("words");
        assert!(detail.contains("tenant five") && detail.contains(field), "{detail}");
        assert!(detail.contains("partition five"), "{detail}");
    }
    assert_eq!(host.api().get("/api/v1/tenants/five").ok()["generation"], 1, "nothing was changed");
    // A tenant that is in no partition may; the server follows, and the partitions stay as they are.
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G", "sms": 66});
    assert_eq!(host.api().tenant("beside", &spec).status, 201);
    eventually("the server holds as much", || (server_percentage(&host) == json!(50.0)).then_some(()));
    assert_eq!((sees(&host, "beside"), sees(&host, "three")), (66, 24));
}

#[test]
fn formula_holds_for_other_gpus() {
    for profile in ["a100x1@13.0", "l40sx1@12.8"] {
        let mut host: Host = host_with(profile, &[("seven", 7), ("twelve", 12)]);
        let given = partitions(&applied(&host));
        assert_eq!(given.iter().map(|(_, _, sms)| *sms).collect::<Vec<_>>(), [28, 48], "{profile}");
        assert_eq!([sees(&host, "seven"), sees(&host, "twelve")], [28, 48], "{profile}");
        assert_eq!(server_percentage(&host), json!(given[1].1), "{profile}");
        let seven = host.api().get("/api/v1/tenants/seven").ok()["status"].clone();
        assert_eq!(seven["effective"]["threads"]["measured_on_this_gpu"], false, "{profile}");
        assert_eq!(seven["verification"]["last"]["outcome"], "verified", "{profile}");
        host.end_manager(Signal::KILL);
        host.serve();
        assert_eq!(partitions(&applied(&host)), given, "{profile}");
    }
}

#[test]
fn other_sms_fail_the_apply() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    let mut spec = host.daemon("gpu0")["spec"].clone();
    spec["drift_policy"] = json!("report");
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &spec).status, 200);
    host.await_ready();
    host.control("gpu0", &format!("set_active_thread_percentage {} 10", host.server_pid("gpu0")));
    host.await_reason("gpu0", "SettingsDrifted");
    let operation = host.api().outcome(&post(&host, "main", "apply"));
    assert_eq!(operation["state"], "failed", "{operation}");
    assert_eq!(verified(&operation, "five"), "a CUDA client saw 12 SMs and should see 40");
    let error = operation["error"].as_str().expect("words");
    assert!(
        error.contains("tenant five: a CUDA client saw 12 SMs") && error.contains("main version 1"),
        "{error}"
    );
}

#[test]
fn client_that_cannot_run_proves_nothing() {
    let host: InProcess = host_with("h200x1@13.0", &THREE);
    // A device has 127 connections: there is none left for a verifying client.
    let busy = ["32", "32", "32", "30"].map(|connections| {
        let mut command = host.client_command("seven", &["--spin", "600"]);
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        Client::start(command)
    });
    assert!(busy.iter().all(|client| client.seen["error"].is_null()), "{}", busy[3].seen);
    write(&host, "next", &[("seven", 7), ("five", 6)]);
    let operation = host.api().outcome(&post(&host, "next", "apply"));
    assert_eq!(operation["state"], "succeeded", "{operation}");
    let outcome = verified(&operation, "five");
    assert!(
        outcome.starts_with("not verified: ") && outcome.contains("MAX_CONNECTIONS_REACHED"),
        "{outcome}"
    );
    let five = host.api().get("/api/v1/tenants/five").ok()["status"]["verification"]["last"].clone();
    assert_eq!(five["outcome"], "not_verified", "{five}");
    let ended = busy.map(|client| client.pid().to_string());
    // The server notices the end of a client a moment later.
    eventually("their connections are free", || {
        let listed = host.control("gpu0", "ps");
        ended.iter().all(|pid| !listed.contains(pid)).then_some(())
    });
    assert_eq!(sees(&host, "five"), 48);
}
