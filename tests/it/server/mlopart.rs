//! Daemons with MLOPart devices, on the simulated host, which follows NVIDIA's documentation (recording 29).

use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use super::verification::verify;
use crate::harness::{Client, Host, InProcess, Served, eventually, is_alive, signal};
use rustix::process::Signal;

const PROFILE: &str = "b300x2@13.1";

/// The device of the second GPU with this number, once a server has it.
fn device(host: &Served, number: u64) -> Value {
    eventually("the device is listed", || {
        let listed = host.api().get("/api/v1/gpus").ok()["items"].as_array().unwrap().clone();
        listed.into_iter().find(|gpu| gpu["index"] == 1 && gpu["mlopart"]["number"] == number)
    })
}

/// Has the daemon of the second GPU give MLOPart devices.
fn divide(host: &Served) {
    let spec = json!({"gpus": ["1"], "mlopart": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_ready();
}

fn tenant(host: &Served, name: &str, gpus: &Value, more: &Value) -> u16 {
    let mut spec = json!({"daemon": "gpu1", "uid": 0, "gpus": gpus});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    host.api().tenant(name, &spec).status
}

fn of_setting(verified: &Value, setting: &str) -> Value {
    let all = verified["comparisons"].as_array().expect("comparisons");
    all.iter().find(|one| one["setting"] == setting).expect("it is compared").clone()
}

fn environment(host: &Served, name: &str) -> Value {
    host.api().get(&format!("/api/v1/tenants/{name}/environment")).ok()["variables"].clone()
}

#[test]
fn tenants_name_devices_and_see_them() {
    let host = InProcess::ready_of(PROFILE, "");
    divide(&host);
    assert_eq!(device(&host, 0)["sms"], Value::Null, "nobody has seen it");
    assert_eq!(tenant(&host, "left", &json!(["1/mlo0"]), &json!({"device_memory_limit": "4G"})), 201);
    let own = device(&host, 1)["mlopart"]["uuid"].clone();
    assert_eq!(tenant(&host, "right", &json!([own]), &json!({"active_thread_percentage": 50})), 201);
    assert_eq!(tenant(&host, "both", &json!([]), &json!({})), 201);
    let right = host.api().get("/api/v1/tenants/right").ok();
    assert!(right["spec"]["gpus"][0].as_str().unwrap().ends_with("-mlo1"), "{right}");

    let left = environment(&host, "left");
    let uuid = device(&host, 0)["mlopart"]["uuid"].as_str().unwrap().to_owned();
    assert_eq!(left["CUDA_VISIBLE_DEVICES"], uuid);
    assert_eq!(left["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], format!("{uuid}=4096M"));
    let both = environment(&host, "both")["CUDA_VISIBLE_DEVICES"].as_str().unwrap().to_owned();
    assert_eq!(both, format!("{uuid},{}", own.as_str().unwrap()));

    let verified = verify(&host, "left");
    assert_eq!(verified["outcome"], "verified", "{verified}");
    assert_eq!(of_setting(&verified, "device_memory_limit")["verdict"], "holds", "{verified}");
    assert_eq!(verify(&host, "both")["outcome"], "verified");
    // What clients without a share have seen is what the devices have: no half of the GPU's 148.
    for number in 0..2 {
        let device = device(&host, number);
        assert_eq!((&device["sms"], &device["memory_total"]), (&json!(70), &json!(143_881_404_416_u64)));
    }
    let half = of_setting(&verify(&host, "right"), "sms");
    assert_eq!(
        (&half["expected"], &half["seen"], &half["verdict"]),
        (&json!(34), &json!(34), &json!("holds"))
    );
    let mut client = host.run_client("left");
    let effective = || host.api().get("/api/v1/tenants/left").ok()["status"].clone();
    eventually("it is listed", || effective()["clients"] == 1);
    assert_eq!(effective()["effective"]["clients_with_other_limits"], 0, "it has the tenant's limit");
    // Of the two devices of a GPU, its tenant has one.
    for (gpu, is_there) in [("1/mlo0", true), ("1/mlo1", false), ("1", true)] {
        let listed = String::from_utf8(host.cli(&["client", "list", "--gpu", gpu]).stdout).unwrap();
        assert_eq!(listed.contains("left"), is_there, "{gpu}: {listed}");
    }
    host.cli(&["terminate", "--gpu", "1/mlo1", "--yes"]);
    assert!(client.is_running());
    drop(client);
    // The server has no limit, since it is not documented which device its ordinals name.
    let tenants = host.api().get("/api/v1/tenants/left").ok();
    assert_eq!(tenants["status"]["effective"]["device_memory_limits"][0]["enforced_by"], "environment");
    let view = host.api().get("/api/v1/host").ok();
    assert_eq!(view["documented_only"], json!(["mlopart_devices"]));
    let own = format!("/gpus/{}", device(&host, 0)["uuid"].as_str().unwrap());
    for page in ["/gpus/1", "/daemons/gpu1", "/tenants/left", &own] {
        assert!(super::log_pages::page(&host, page).contains("1/mlo0"), "{page}");
    }
    let shown = |arguments: &[&str]| String::from_utf8(host.cli(arguments).stdout).unwrap();
    let get = shown(&["daemon", "get", "gpu1"]);
    assert!(get.lines().any(|line| line.starts_with("MLOPart devices") && line.ends_with("yes")), "{get}");
    assert!(!shown(&["daemon", "get", "gpu0"]).contains("MLOPart devices"), "only where it is true");
    assert!(shown(&["daemon", "list", "-o", "wide"]).contains("MLOPART"));
    let listed = shown(&["gpu", "list"]);
    assert!(listed.contains("1/mlo1") && listed.contains("MLOPart 1"), "{listed}");
}

#[test]
fn console_shows_devices_and_predicts_them() {
    let host = InProcess::ready_of(PROFILE, "");
    divide(&host);
    device(&host, 1);
    let page = |path: &str| super::log_pages::page(&host, path);
    assert!(page("/").contains(">GPU 1/mlo1</a>"));
    assert!(page("/gpus").contains(">GPU 1/mlo1</a></dt><dd>not verified yet</dd>"));
    let predicted = |name: &str, share: &str| {
        let fields = [("name", name), ("daemon", "gpu1"), ("uid", "0"), ("share", share), ("sms", "16")];
        super::forms::send(&host, "/tenants/-/predict", &fields).text
    };
    let before = predicted("new", "default");
    assert!(before.contains("<h3>GPU 1/mlo0</h3>") && !before.contains("<h3>GPU 1</h3>"), "{before}");
    assert!(before.contains("all of its memory <span class=\"quiet\">less its context"), "{before}");
    assert!(predicted("new", "sms").contains("how many SMs an MLOPart device has"));
    assert!(page("/tenants/-/new?daemon=gpu1").contains("value=\"gpu1\" data-mlopart selected"));

    assert_eq!(tenant(&host, "left", &json!(["1/mlo0"]), &json!({"device_memory_limit": "4G"})), 201);
    assert_eq!(verify(&host, "left")["outcome"], "verified");
    assert!(page("/gpus").contains("<dd>a client saw 70 SMs and 134 GiB; limits 4 GiB</dd>"));
    assert_eq!(tenant(&host, "both", &json!([]), &json!({"device_memory_limit": "2G"})), 201);
    assert_eq!(tenant(&host, "free", &json!(["1"]), &json!({})), 201);
    assert!(page("/gpus").contains("<dd>not verified yet; limits 2 GiB; 1 tenant without a limit</dd>"));
    assert!(page("/tenants/left/edit").contains("<dd>70 of 70"), "as its page says");
    // Nothing of what the driver knows of the GPU alone is awaited on the page of a device.
    let own = page(&format!("/gpus/{}", device(&host, 0)["uuid"].as_str().unwrap()));
    assert!(
        own.contains("The driver reports them of the whole GPU") && !own.contains("No data yet"),
        "{own}"
    );
    assert!(!page("/settings/maintenance").contains("1/mlo0"), "only its GPU is taken");
}

#[test]
fn form_offers_devices_beside_the_mode() {
    for (profile, is_offered) in [(PROFILE, true), ("b300x1@13.0", false), ("h200x1@13.1", false)] {
        let host = InProcess::ready_of(profile, "");
        let form = super::log_pages::page(&host, "/daemons/-/new");
        let (common, folded) = form.split_once("<details class=\"more\"").expect("folded fields");
        assert_eq!(common.contains("name=\"mlopart\""), is_offered, "{profile}");
        assert!(!folded.contains("name=\"mlopart\""), "{profile}");
    }
}

#[test]
fn server_without_devices_is_replaced_before_handing_out() {
    let host = InProcess::ready_of(PROFILE, "");
    assert_eq!(tenant(&host, "early", &json!([]), &json!({})), 201);
    let mut early = host.run_client("early");
    let plain = host.server_pid("gpu1");
    // Its client keeps the server, so that nothing is handed out.
    let spec = json!({"gpus": ["1"], "mlopart": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    let message = host.await_reason("gpu1", "NoMlopartDevices");
    assert!(
        message.contains(&plain.to_string()) && message.contains("once its clients have ended"),
        "{message}"
    );
    assert!(!host.run("early", &["true"]).status.success());
    assert!(early.is_running() && is_alive(plain));
    early.signal(Signal::KILL);
    host.await_ready();
    assert_ne!(host.server_pid("gpu1"), plain);
    assert_eq!(verify(&host, "early")["outcome"], "verified");
    // A server that dies is replaced by one with devices.
    let before = host.server_pid("gpu1");
    signal(before, Signal::KILL);
    eventually("another serves", || {
        let daemon = host.daemon("gpu1");
        let pid = daemon["status"]["effective"]["servers"][0]["pid"].as_u64();
        daemon["status"]["phase"] == "ready" && pid.is_some_and(|pid| pid != u64::from(before))
    });
    assert_eq!(verify(&host, "early")["outcome"], "verified");
    // A client that came first is drift.
    signal(host.server_pid("gpu1"), Signal::KILL);
    let stranger = Client::start(host.stranger_command("gpu1", ""));
    let drift = super::incidents::incident(&host, "drift", |_| true);
    assert!(drift.to_string().contains("device kind of server"), "{drift}");
    drop(stranger);
    host.await_ready();
    // And back: whole GPUs again.
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 200);
    eventually("the daemon has whole GPUs", || {
        let verified = verify(&host, "early");
        (of_setting(&verified, "sms")["seen"] == 148).then_some(())
    });
}

#[test]
fn what_devices_cannot_have_is_refused() {
    let host = InProcess::ready_of(PROFILE, "");
    let shown = |host: &Served| String::from_utf8(host.cli(&["host", "get"]).stdout).unwrap();
    assert!(shown(&host).contains("supported, documented only: built from"), "{}", shown(&host));
    divide(&host);
    device(&host, 1);
    let before = host.api().get("/api/v1/host/spec").ok();
    for (spec, status, words) in [
        (json!({"gpus": ["1"], "mlopart": true, "mode": "static"}), 422, "in static mode MPS ignores"),
        (json!({"gpus": ["1/mlo0"]}), 422, "name its GPU"),
        (json!({"gpus": ["1"], "mlopart": true, "admission": "reserved"}), 422, "share its memory"),
    ] {
        let refused = host.api().put("/api/v1/daemons/gpu1", &spec);
        assert_eq!(refused.status, status, "{spec}: {}", refused.text);
        assert!(refused.text.contains(words), "{spec}: {}", refused.text);
    }
    for (spec, status, words) in [
        (json!({"daemon": "gpu1", "gpus": ["1", "1/mlo0"]}), 422, "name one of the two"),
        (json!({"daemon": "gpu1", "gpus": ["1/mlo2"]}), 409, "it has 1/mlo0, 1/mlo1"),
        (json!({"daemon": "gpu1", "gpus": ["0/mlo0"]}), 409, "does not offer"),
        (json!({"daemon": "gpu0", "gpus": ["0/mlo0"]}), 409, "get whole GPUs: set mlopart"),
        (json!({"daemon": "gpu1", "sms": 16}), 409, "give active_thread_percentage"),
        (json!({"daemon": "gpu1", "visible_devices": "ordinal"}), 409, "visible_devices"),
    ] {
        let mut whole = spec.clone();
        whole["uid"] = json!(0);
        let refused = host.api().tenant("another", &whole);
        assert_eq!(refused.status, status, "{spec}: {}", refused.text);
        assert!(refused.text.contains(words), "{spec}: {}", refused.text);
    }
    let refused = host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["1/mlo0"], "timeout_s": 20}));
    assert!(refused.problem(422, "invalid-request").to_string().contains("name their GPU, GPU 1"));
    assert_eq!(host.api().get("/api/v1/host/spec").ok(), before, "nothing changed");
    for (profile, words) in [
        ("h200x1@13.1", "compute capability 9.0"),
        ("b300x1@13.0", "need CUDA 13.1"),
        ("h100x2-mig", "no MLOPart"),
    ] {
        let host = InProcess::ready_of(profile, "");
        let gpu = if profile.contains("mig") { "0/mig0" } else { "0" };
        let daemon = host.api().get("/api/v1/daemons").ok()["items"][0]["name"].as_str().unwrap().to_owned();
        let spec = json!({"gpus": [gpu], "mlopart": true});
        let refused = host.api().put(&format!("/api/v1/daemons/{daemon}"), &spec);
        assert!(refused.status >= 400 && refused.text.contains(words), "{profile}: {}", refused.text);
        if profile.starts_with("h200") {
            assert!(
                shown(&host).contains("by the control program, and by none of the GPUs"),
                "{}",
                shown(&host)
            );
            let spec = json!({"daemon": daemon, "uid": 0, "gpus": ["0/mlo0"]});
            let refused = host.api().tenant("another", &spec).problem(422, "invalid-request").to_string();
            assert!(refused.contains("need 10.0 or newer: name the GPU"), "{refused}");
        }
    }
}

#[test]
fn limits_of_single_devices_hold() {
    let host = InProcess::ready_of(PROFILE, "");
    divide(&host);
    let [zero, one] =
        [0, 1].map(|number| device(&host, number)["mlopart"]["uuid"].as_str().unwrap().to_owned());
    let limits = json!({"1/mlo0": "1G", "1/mlo1": "2G"});
    let named = json!(["1/mlo0", "1/mlo1"]);
    assert_eq!(tenant(&host, "both", &named, &json!({"device_memory_limit": limits})), 201);
    let set = environment(&host, "both")["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].as_str().unwrap().to_owned();
    assert_eq!(set, format!("{zero}=1024M,{one}=2048M"));
    let verified = verify(&host, "both");
    assert_eq!(verified["outcome"], "verified");
    let tried = of_setting(&verified, "largest_allocation");
    assert_eq!(tried["verdict"], "holds");
    assert!(tried["seen"].as_u64().is_some_and(|bytes| bytes < 1 << 30), "{verified}");
    // Each limit is one of a device: what the driver reports of the GPU is no breach.
    let mut command = host.client_command("both", &["--spin", "600", "--alloc", "768"]);
    command.args(["--gpus", "0,1"]);
    let client = Client::start(command);
    host.listed(client.pid());
    let sums = host.api().get("/api/v1/gpus/1").ok();
    assert_eq!((&sums["memory_limits"], &sums["tenants_without_limit"]), (&json!(3_u64 << 30), &json!(0)));
    assert_eq!(device(&host, 1)["memory_limits"], json!(2_u64 << 30));
    // Of one who sees every device, and has a limit on one, the others have none.
    assert_eq!(tenant(&host, "half", &json!([]), &json!({"device_memory_limit": {"1/mlo0": "1G"}})), 201);
    let sums = host.api().get("/api/v1/gpus/1").ok();
    assert_eq!((&sums["memory_limits"], &sums["tenants_without_limit"]), (&json!(4_u64 << 30), &json!(1)));
    // One limit is of each device, whether others name them or not.
    assert_eq!(tenant(&host, "each", &json!([]), &json!({"device_memory_limit": "200G"})), 201);
    assert_eq!(device(&host, 1)["memory_limits"], json!(202_u64 << 30));
    let listed = host.api().get("/api/v1/gpus").ok()["items"].clone();
    let sums = listed.as_array().unwrap().iter().find(|gpu| gpu["uuid"] == sums["uuid"]).unwrap();
    assert_eq!(sums["memory_limits"], json!(404_u64 << 30));
    let verified = verify(&host, "each");
    assert_eq!(of_setting(&verified, "largest_allocation")["verdict"], "not_seen", "no device has 200 GiB");
    assert_eq!(host.api().get("/api/v1/incidents?kind=breach").ok()["items"], json!([]));
    let metrics = host.api().get("/metrics").text;
    assert_eq!(metrics.matches("mps_manager_gpu_part_info{").count(), 2);
    drop(client);
    // Where clients get whole GPUs, such a limit would be nobody's.
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {"0/mlo0": "1G"}});
    let refused = host.api().tenant("another", &spec).problem(409, "not-admitted");
    assert!(refused.to_string().contains("get whole GPUs"), "{refused}");
    let spec = json!({"gpus": ["0"], "defaults": {"device_memory_limit": {"0/mlo0": "1G"}}});
    let refused = host.api().put("/api/v1/daemons/gpu0", &spec).problem(422, "invalid-request");
    assert!(refused.to_string().contains("get whole GPUs"), "{refused}");
}

#[test]
fn manager_that_restarts_reads_devices_again() {
    let mut host = Host::ready_of(PROFILE, "");
    divide(&host);
    assert_eq!(tenant(&host, "kept", &json!([]), &json!({})), 201);
    let before = host.server_pid("gpu1");
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(host.server_pid("gpu1"), before, "it was adopted");
    assert_eq!(verify(&host, "kept")["outcome"], "verified");
    // Whole GPUs are desired while a client keeps the server, and another manager goes on.
    let client = host.run_client("kept");
    host.listed(client.pid());
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 200);
    host.await_reason("gpu1", "RestartRequired");
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_reason("gpu1", "RestartRequired");
    // A program that starts by what the environment says now would find no device.
    let control = |directory: &str| std::fs::metadata(format!("{directory}/control")).unwrap().ino();
    let handed = environment(&host, "kept")["CUDA_MPS_PIPE_DIRECTORY"].as_str().unwrap().to_owned();
    let own = host.daemon("gpu1")["status"]["pipe_directory"].as_str().unwrap().to_owned();
    eventually("it waits at a placeholder", || control(&handed) != control(&own));
    drop(client);
    host.await_ready();
    let verified = verify(&host, "kept");
    assert_eq!(
        (of_setting(&verified, "sms")["seen"].as_u64(), &verified["outcome"]),
        (Some(148), &json!("verified"))
    );
}

#[test]
fn foreign_server_with_devices_is_adopted() {
    let host = Host::ready_of(PROFILE, "");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    let foreign = host.foreign("theirs", &super::gpus::uuid(&host, 1));
    foreign.control("start_server -uid 0 -mlopart");
    eventually("it has a server", || !foreign.control("get_server_list").trim().is_empty());
    let adopted = eventually("it is adopted", || {
        let adopted = host.adopt("theirs", &foreign, "managed");
        (adopted.status < 300).then_some(adopted)
    });
    assert!(adopted.text.contains("mlopart\":true"), "{}", adopted.text);
    eventually("it is ready", || host.daemon("theirs")["status"]["phase"] == "ready");
    let spec = json!({"daemon": "theirs", "uid": 0, "gpus": ["1/mlo1"]});
    assert_eq!(host.api().tenant("guest", &spec).status, 201);
    assert_eq!(verify(&host, "guest")["outcome"], "verified");
}

#[test]
fn devices_are_exported_and_applied_elsewhere() {
    let host = Host::ready_of(PROFILE, "");
    divide(&host);
    assert_eq!(tenant(&host, "left", &json!(["1/mlo0"]), &json!({"device_memory_limit": "4G"})), 201);
    let exported = String::from_utf8(host.cli(&["export"]).stdout).unwrap();
    assert!(exported.contains("mlopart: true") && exported.contains("- 1/mlo0"), "{exported}");
    let other = Host::ready_of(PROFILE, "");
    let file = other.state("host.yaml");
    std::fs::write(&file, &exported).unwrap();
    // Its server has no devices yet: a device may be named before.
    let applied = other.cli(&["apply", "-f", file.to_str().unwrap(), "--prune", "--yes"]);
    assert!(applied.status.success(), "{}", crate::harness::stderr_of(&applied));
    other.await_ready();
    assert_eq!(verify(&other, "left")["outcome"], "verified");
    assert_eq!(String::from_utf8(other.cli(&["export"]).stdout).unwrap(), exported);
}

#[test]
fn fault_is_shared_by_devices_of_a_gpu() {
    let host = InProcess::ready_of(PROFILE, "");
    divide(&host);
    assert_eq!(tenant(&host, "left", &json!(["1/mlo0"]), &json!({})), 201);
    assert_eq!(tenant(&host, "right", &json!(["1/mlo1"]), &json!({})), 201);
    let mut right = host.run_client("right");
    let mut left = Client::start(host.client_command("left", &["--fault-after", "0.2"]));
    left.ended();
    right.ended();
    let found = super::incidents::incident(&host, "gpu_fault", |_| true);
    assert_eq!(found["daemon"], "gpu1", "{found}");
    host.await_ready();
}

#[test]
fn devices_are_recorded_for_others() {
    let recorded = super::layout_hosts::recorded(&["--mlopart", "--sim", PROFILE]);
    let replies = recorded["commands"].as_array().unwrap();
    assert_eq!(replies[1]["line"], "start_server -uid 0 -mlopart");
    let listed = replies[2]["reply"].as_str().unwrap();
    assert!(
        listed.contains("GPU-00000001-0000-0000") && listed.contains("GPU-00000002-0000-0000"),
        "{listed}"
    );
    assert!(
        replies.iter().filter(|one| one["line"].as_str().unwrap().starts_with("cuda-probe")).count() >= 9
    );
}
