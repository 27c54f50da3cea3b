//! MIG instances as devices of daemons, on the simulated host, which follows NVIDIA's documentation.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::gpus::mark;
use super::incidents::incident;
use super::layout_hosts::recorded;
use super::verification::verify;
use crate::harness::{Client, Host, InProcess, Served, eventually};

pub(super) const PROFILE: &str = "h100x2-mig@13.1";
const NOBODY: u32 = 65_534;

/// The devices of the host by their places, as `1/mig0`.
fn devices(host: &Served) -> Vec<(String, Value)> {
    let listed = host.api().get("/api/v1/gpus").ok()["items"].as_array().unwrap().clone();
    let place = |gpu: &Value| match &gpu["mig"] {
        Value::Null => gpu["index"].to_string(),
        mig => format!("{}/mig{}", gpu["index"], mig["number"]),
    };
    listed.into_iter().map(|gpu| (place(&gpu), gpu)).collect()
}

pub(super) fn device(host: &Served, place: &str) -> Value {
    devices(host).into_iter().find(|(named, _)| named == place).expect("it is listed").1
}

/// Changes the instances of the second GPU; the manager need not run.
pub(super) fn change_instances(host: &Served, change: impl FnOnce(Vec<String>) -> Vec<String>) {
    let world: Value = serde_json::from_slice(&fs::read(host.runtime("sim/world.json")).unwrap()).unwrap();
    let gpu = world["gpus"][1]["uuid"].as_str().unwrap();
    let file = host.runtime("sim/gpus").join(gpu).join("mig");
    let lines = fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect();
    let draft = file.with_extension("new");
    fs::write(&draft, change(lines).join("\n")).unwrap();
    fs::rename(draft, file).unwrap();
}

/// Two tenants on the two instances of GPU 1.
pub(super) fn tenants(host: &Served) {
    for (name, daemon) in [("left", "gpu1-mig0"), ("right", "gpu1-mig1")] {
        let spec =
            json!({"daemon": daemon, "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 50});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
}

#[test]
fn instances_are_devices_of_their_own() {
    let host = InProcess::ready_of(PROFILE, "");
    let places: Vec<String> = devices(&host).into_iter().map(|(place, _)| place).collect();
    let small = (0..7).map(|number| format!("0/mig{number}"));
    let expected: Vec<String> =
        ["0".to_owned()].into_iter().chain(small).chain(["1", "1/mig0", "1/mig1"].map(Into::into)).collect();
    assert_eq!(places, expected);
    let (whole, half) = (device(&host, "1"), device(&host, "1/mig0"));
    assert_eq!((&whole["mig_enabled"], &whole["daemon"]), (&json!(true), &Value::Null));
    assert_eq!((&half["sms"], &half["compute_mode"]), (&json!(60), &Value::Null));
    assert_eq!(half["mig"], json!({"parent": whole["uuid"], "number": 0, "profile": "3g.40gb"}));
    let view = host.api().get("/api/v1/host").ok();
    assert_eq!((&view["gpus"], &view["mig_instances"]), (&json!(2), &json!(9)));
    assert_eq!(view["documented_only"], json!(["mig_instances"]));
    let shown = String::from_utf8(host.cli(&["host", "get"]).stdout).unwrap();
    assert!(shown.contains("Documented only") && shown.contains("mig-parted"), "{shown}");
    assert_eq!(host.api().get("/api/v1/gpus/1/mig0").status, 404, "a slash divides paths");
    assert_eq!(host.api().get("/api/v1/gpus/1%2Fmig0").ok()["uuid"], half["uuid"]);
    for page in ["/", "/gpus", "/gpus/1", &format!("/gpus/{}", half["uuid"].as_str().unwrap()), "/settings"] {
        let text = super::log_pages::page(&host, page);
        assert!(text.contains("1/mig0") || page.starts_with("/gpus/1") || page == "/settings", "{page}");
        let has_mode = text.contains("In MIG mode: 7 instances, each with a daemon");
        assert_eq!(has_mode, ["/", "/gpus"].contains(&page), "{page}");
    }
    let path = format!("/gpus/{}", half["uuid"].as_str().unwrap());
    let own = super::log_pages::page(&host, &path);
    assert!(own.contains("id=\"chart-memory\"") && !own.contains("id=\"chart-power\""), "{own}");
    assert!(own.contains("The driver reports them of the whole GPU"), "{own}");
    let whole = super::log_pages::page(&host, "/gpus/1");
    assert!(whole.contains("id=\"chart-power\"") && !whole.contains("No data yet"), "{whole}");
    let api = host.api();
    api.succeeds(&api.delete("/api/v1/daemons/gpu1-mig1?grace_s=0"));
    assert!(super::log_pages::page(&host, "/gpus").contains("In MIG mode: 2 instances, 1 with a daemon"));
}

#[test]
fn tenants_of_instances_are_verified_and_kept_apart() {
    let host = InProcess::ready_of(PROFILE, "");
    tenants(&host);
    for (name, place) in [("left", "1/mig0"), ("right", "1/mig1")] {
        let verified = verify(&host, name);
        assert_eq!(verified["outcome"], "verified", "{verified}");
        let sms = verified["comparisons"].as_array().unwrap().iter().find(|one| one["setting"] == "sms");
        assert_eq!(sms.unwrap()["seen"], 30, "half of the instance: {verified}");
        let environment = host.api().get(&format!("/api/v1/tenants/{name}/environment")).ok();
        assert_eq!(environment["variables"]["CUDA_VISIBLE_DEVICES"], device(&host, place)["uuid"]);
        assert_eq!(environment["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], "0=4096M");
    }
    // A fault stays in its instance.
    let mut right = host.run_client("right");
    let mut faulting = Client::start(host.client_command("left", &["--fault-after", "0.2"]));
    faulting.ended();
    let found = incident(&host, "gpu_fault", |_| true);
    assert_eq!(found["daemon"], "gpu1-mig0", "{found}");
    assert!(right.is_running());
    assert_eq!(host.daemon("gpu1-mig1")["status"]["phase"], "ready");
}

#[test]
fn other_users_are_clients_of_instances() {
    if !crate::harness::is_root() {
        return;
    }
    let host = InProcess::ready_of(PROFILE, "");
    let program = host.program_for_everybody();
    let spec = json!({"daemon": "gpu1-mig0", "uid": NOBODY, "active_thread_percentage": 50});
    assert_eq!(host.api().tenant("guest", &spec).status, 201);
    let environment = host.client_command("guest", &[]);
    let environment = environment.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut command = Command::new(program);
    command.args(["sim", "client", "--json"]).env_clear().envs(environment).uid(NOBODY).gid(NOBODY);
    let seen: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(seen["devices"][0]["uuid"], device(&host, "1/mig0")["uuid"], "{seen}");
    assert_eq!(seen["devices"][0]["sms"], 30, "{seen}");
}

#[test]
fn what_instances_cannot_have_is_refused() {
    let host = InProcess::ready_of(PROFILE, "");
    let [one, other] = ["1/mig0", "1/mig1"].map(|place| device(&host, place)["uuid"].clone());
    let before = host.api().get("/api/v1/host/spec").ok();
    let unknown = "MIG-00000000-0000-0000-0000-000000000000";
    for (spec, status, kind, words) in [
        (json!({"gpus": ["1"]}), 409, "conflict", "name one of 1/mig0 ("),
        (json!({"gpus": [unknown]}), 422, "invalid-request", "there is no GPU"),
        (json!({"gpus": ["1/mig2"]}), 422, "invalid-request", "there is no GPU 1/mig2"),
        (json!({"gpus": [one, other]}), 422, "invalid-request", "a daemon of its own"),
        (json!({"gpus": ["1/mig0"]}), 409, "conflict", "belongs to daemon gpu1-mig0"),
        (json!({"gpus": ["1/mig0"], "mode": "static"}), 422, "invalid-request", "for whole GPUs only"),
        (
            json!({"gpus": ["1/mig0"], "compute_mode": "exclusive_process"}),
            422,
            "invalid-request",
            "reported as bypasses",
        ),
    ] {
        let refused = host.api().put("/api/v1/daemons/another", &spec).problem(status, kind);
        assert!(refused["detail"].as_str().unwrap().contains(words), "{spec}: {refused}");
    }
    let crowd = json!({"daemon": "gpu0-mig1", "uid": 0, "max_clients": 9});
    let refused = host.api().tenant("crowd", &crowd).problem(409, "not-admitted");
    assert!(refused.to_string().contains("takes 6"), "in proportion to its size: {refused}");
    assert_eq!(host.api().get("/api/v1/host/spec").ok(), before, "nothing changed");
}

#[test]
fn vanished_instance_is_seen_and_replaced() {
    let host = InProcess::ready_of(PROFILE, "");
    tenants(&host);
    let gone = device(&host, "1/mig0")["uuid"].as_str().unwrap().to_owned();
    let mut client = host.run_client("left");
    change_instances(&host, |lines| lines.into_iter().filter(|line| !line.contains(&gone)).collect());
    let message = host.await_reason("gpu1-mig0", "GpuMissing");
    assert!(message.contains(&gone) && message.contains("gpu replace"), "{message}");
    client.ended();
    let found = incident(&host, "gpu_missing", |_| true);
    assert_eq!(found["daemon"], "gpu1-mig0");
    let refused = host.run("left", &["true"]);
    assert!(!refused.status.success(), "nothing is handed out");
    assert_eq!(host.daemon("gpu1-mig1")["status"]["phase"], "ready");
    // It is made anew, and is another device.
    let new = "MIG-11111111-1111-1111-1111-111111111111";
    change_instances(&host, |mut lines| {
        lines.push(format!("0 {new} 3g.40gb 60 42412802048"));
        lines
    });
    eventually("it is listed", || devices(&host).iter().any(|(_, gpu)| gpu["uuid"] == new));
    let replaced = host.api().post(&format!("/api/v1/gpus/{gone}/replace"), &json!({"with": "1/mig0"}));
    assert_eq!(replaced.status, 200, "{}", replaced.text);
    host.await_ready();
    assert_eq!(verify(&host, "left")["outcome"], "verified");
}

#[test]
fn maintenance_covers_all_instances_of_gpu() {
    let host = InProcess::ready_of(PROFILE, "");
    let one = host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["1/mig0"], "timeout_s": 20}));
    assert!(
        one.problem(422, "invalid-request").to_string().contains("name their GPU, GPU 1"),
        "{}",
        one.text
    );
    let form = super::log_pages::page(&host, "/settings/maintenance");
    assert!(form.contains("stops gpu1-mig0, gpu1-mig1<") && !form.contains("GPU 1/mig0"), "{form}");
    let begun = host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["1"], "timeout_s": 20}));
    host.api().succeeds(&begun);
    for daemon in ["gpu1-mig0", "gpu1-mig1"] {
        assert_eq!(host.daemon(daemon)["status"]["phase"], "stopped", "{daemon}");
    }
    assert_eq!(host.daemon("gpu0-mig0")["status"]["phase"], "ready");
    host.api().succeeds(&host.api().delete("/api/v1/host/maintenance"));
    host.await_ready();
}

#[test]
fn mig_mode_under_a_running_daemon_blocks_it() {
    let host = InProcess::ready();
    let gpu = super::gpus::uuid(&host, 1);
    mark(&host, &gpu, "mig");
    let message = host.await_reason("gpu1", "MigEnabled");
    assert!(message.contains("one of its instances"), "{message}");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=0"));
    let refused = host.api().put("/api/v1/daemons/other", &json!({"gpus": ["1"]})).problem(409, "conflict");
    assert!(refused.to_string().contains("has none yet"), "{refused}");
    change_instances(&host, |_| {
        vec!["0 MIG-11111111-1111-1111-1111-111111111111 1g.18gb 16 18253611008".to_owned()]
    });
    eventually("the instance is listed", || devices(&host).len() == 3);
    assert_eq!(host.api().put("/api/v1/daemons/small", &json!({"gpus": ["1/mig0"]})).status, 201);
    host.await_ready();
}

#[test]
fn host_file_waits_for_instances() {
    let mut host = Host::ready_of(PROFILE, "");
    tenants(&host);
    let file = host.state("host.yaml");
    fs::write(&file, host.cli(&["export"]).stdout).unwrap();
    host.end_manager(Signal::TERM);
    // As after a boot, before mig-parted has made them again.
    change_instances(&host, |_| Vec::new());
    host.serve_with(&["--apply", file.to_str().unwrap()]);
    let waits = || {
        let conditions = host.api().get("/api/v1/host").ok()["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == "HostFileNotApplied")
    };
    let message = waits().expect("the file waits")["message"].to_string();
    assert!(message.contains("1/mig0, 1/mig1") && message.contains("mig-parted"), "{message}");
    // The others are served meanwhile, and the host is not as the file says.
    host.await_phase("gpu0-mig0", "ready");
    let status = host.cli(&["status"]);
    let text = String::from_utf8_lossy(&status.stdout);
    assert!(status.status.code() == Some(1) && text.contains("it names the MIG instances"), "{text}");
    super::doctor::examine(&host).is("manager", "warn", "1/mig0, 1/mig1");
    let new = |number: u32| format!("MIG-{number}1111111-1111-1111-1111-111111111111");
    change_instances(&host, |_| {
        (0..2).map(|number| format!("{number} {} 3g.40gb 60 42412802048", new(number))).collect()
    });
    eventually("it is applied", || waits().is_none());
    eventually("the daemons are on them", || host.daemon("gpu1-mig1")["spec"]["gpus"] == json!([new(1)]));
    host.await_ready();
    super::doctor::examine(&host).is("manager", "ok", "serves at");
    assert_eq!(verify(&host, "right")["outcome"], "verified");
}

#[test]
fn instance_is_recorded_for_others() {
    let recorded = recorded(&["--gpu", "1/mig1", "--sim", PROFILE]);
    assert!(recorded["gpu"]["name"].as_str().unwrap().ends_with("MIG 3g.40gb"), "{recorded}");
    let replies = recorded["commands"].as_array().unwrap();
    let seen = |limit: &str| {
        let line = format!("cuda-probe CUDA_MPS_PINNED_DEVICE_MEM_LIMIT={limit}=2048M");
        let probe =
            replies.iter().find(|one| one["line"].as_str().unwrap().starts_with(&line)).expect("it ran");
        let report: Value = serde_json::from_str(probe["reply"].as_str().unwrap()).unwrap();
        report["devices"][0]["memory_free"].as_u64().unwrap()
    };
    // That is what a recording of a real one would decide.
    assert!(seen("0") < 2 << 30 && seen("MIG-00000000-0000-0000-0000-000000000000") > 30 << 30);
}
