//! What container engines and systemd read of the tenants: the CDI specification and the environment files, as they change.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use mps_manager::domain::rfc3339;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::gpu_limits::of_two_gpus;
use super::layouts::uuid;
use crate::harness::{Client, Host, InProcess, Served, eventually};

const SPECIFICATION: &str = "sim/cdi/mps-manager.json";
const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

/// What an engine reads; `None` where there is nothing.
fn read(path: &Path) -> Option<Value> {
    let text = fs::read_to_string(path).ok()?;
    Some(serde_json::from_str(&text).expect("a whole file"))
}

/// The names of the devices; none where there is no specification.
fn devices(host: &Served) -> Vec<String> {
    let specification = read(&host.runtime(SPECIFICATION)).unwrap_or_default();
    let devices = specification["devices"].as_array().cloned().unwrap_or_default();
    devices.iter().map(|device| device["name"].as_str().expect("a name").to_owned()).collect()
}

fn await_devices(host: &Served, names: &[&str]) {
    eventually(&format!("the devices are {names:?}"), || (devices(host) == names).then_some(()));
}

/// What a device changes of a container.
fn edits(host: &Served, device: &str) -> Option<Value> {
    let specification = read(&host.runtime(SPECIFICATION))?;
    let devices = specification["devices"].as_array()?.iter();
    devices.filter(|one| one["name"] == device).map(|one| one["containerEdits"].clone()).next()
}

/// The environment that a device gives a container.
fn variables(host: &Served, device: &str) -> Option<BTreeMap<String, String>> {
    let edits = edits(host, device)?;
    let entries = edits["env"].as_array()?.iter().filter_map(|entry| entry.as_str()?.split_once('='));
    Some(entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// The environment file of a tenant, as a shell reads it too.
fn environment_file(host: &Served, tenant: &str) -> Option<String> {
    fs::read_to_string(host.runtime("env").join(format!("{tenant}.env"))).ok()
}

fn has_environment(host: &Served, tenant: &str) -> bool {
    environment_file(host, tenant).is_some()
}

/// A client with nothing but what a device gives.
fn client_of(host: &Served, device: &str) -> Client {
    let variables = variables(host, device).expect("a device");
    Client::start(crate::host::client_command(&json!({ "variables": variables }), &[]))
}

/// The condition of the host about these files.
fn problem(host: &Served) -> Option<Value> {
    let conditions = host.api().get("/api/v1/host").ok()["conditions"].as_array().cloned()?;
    conditions.into_iter().find(|condition| condition["type"] == "EngineFilesNotWritten")
}

/// A host that keeps its specification in this directory.
fn host_with_cdi(directory: &Path) -> InProcess {
    InProcess::configured(&format!("cdi_dir = \"{}\"", directory.display()))
}

#[test]
fn files_follow_tenant_and_its_limit() {
    let host = InProcess::ready();
    await_devices(&host, &["batch", "demo"]);
    let limited = |limit: &str| json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": limit});
    assert_eq!(host.api().tenant("web", &limited("2G")).status, 201);
    for (limit, mib) in [("2G", "=2048M"), ("3G", "=3072M")] {
        host.api().tenant("web", &limited(limit)).ok();
        eventually(&format!("both files say {limit}"), || {
            let given = variables(&host, "web")?;
            let file = environment_file(&host, "web")?;
            let line = format!("{LIMIT}=\"{}\"\n", given[LIMIT]);
            (given[LIMIT].ends_with(mib) && file.contains(&line)).then_some(())
        });
    }
    let given = host.api().get("/api/v1/tenants/web/environment").ok();
    let device = variables(&host, "web").expect("a device");
    for (name, value) in given["variables"].as_object().expect("variables") {
        assert_eq!(Some(device[name].as_str()), value.as_str(), "{name}");
    }
    let mounts = edits(&host, "web").expect("a device")["mounts"].clone();
    let directory = &given["variables"]["CUDA_MPS_PIPE_DIRECTORY"];
    assert_eq!((&mounts[0]["hostPath"], &mounts[0]["containerPath"]), (directory, directory));
    assert_eq!(mounts.as_array().map(Vec::len), Some(1), "the one socket and nothing else");
    let mode = |file: &str| fs::metadata(host.runtime(file)).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode(SPECIFICATION), mode("env/web.env")), (0o400, 0o400));
    assert_eq!(given["cdi_device"], "mps-manager.dev/tenant=web");
    let printed = host.cli(&["env", "web", "--format", "cdi"]).stdout;
    let (world, uid) = (host.runtime("sim").display().to_string(), &given["container"]["uid"]);
    assert_eq!(
        String::from_utf8_lossy(&printed),
        format!("--volume {world}:{world} --device mps-manager.dev/tenant=web --user {uid}\n")
    );
    assert_eq!(host.api().delete("/api/v1/tenants/web").status, 204);
    await_devices(&host, &["batch", "demo"]);
    eventually("the file is gone", || (!has_environment(&host, "web")).then_some(()));
}

#[test]
fn specification_is_valid() {
    let host = of_two_gpus(false);
    host.api().tenant("both", &json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"})).ok();
    await_devices(&host, &["both", "both-gpu0", "both-gpu1"]);
    let schema = include_str!("../../fixtures/cdi/schema.json");
    let schema: Value = serde_json::from_str(schema).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("a schema");
    let good = read(&host.runtime(SPECIFICATION)).expect("a specification");
    let errors: Vec<String> = validator.iter_errors(&good).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let changed = |pointer: &str, value: Value| {
        let mut changed = good.clone();
        *changed.pointer_mut(pointer).expect("there") = value;
        changed
    };
    for bad in [
        changed("/cdiVersion", json!("0.6.0")),
        changed("/kind", json!("tenant")),
        changed("/devices", json!([])),
        changed("/devices/0/name", json!("-web")),
        changed("/devices/0", json!({"name": "web"})),
        changed("/devices/0/containerEdits", json!({})),
        changed("/devices/0/containerEdits/env/0", json!("NAME")),
        changed("/devices/0/containerEdits/mounts/0/hostPath", json!("run")),
        changed("/devices/0/containerEdits/mounts/0/options", json!("ro")),
    ] {
        assert!(!validator.is_valid(&bad), "{bad}");
    }
}

#[test]
fn each_gpu_has_a_device() {
    let host = of_two_gpus(false);
    let (zero, one) = (uuid(&host, 0), uuid(&host, 1));
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {"0": "1G", "1": "2G"}});
    assert_eq!(host.api().tenant("both", &spec).status, 201);
    await_devices(&host, &["both", "both-gpu0", "both-gpu1"]);
    let all = variables(&host, "both").expect("a device");
    assert_eq!(all["CUDA_VISIBLE_DEVICES"], format!("{zero},{one}"));
    let second = variables(&host, "both-gpu1").expect("a device");
    assert_eq!((second["CUDA_VISIBLE_DEVICES"].as_str(), &second[LIMIT]), (&*one, &format!("{one}=2048M")));
    host.await_ready();
    let seen = client_of(&host, "both-gpu1").seen.clone();
    assert_eq!((&seen["mps"], &seen["devices"][0]["uuid"]), (&json!(true), &json!(one)), "{seen}");
    let devices = seen["devices"].as_array().expect("devices");
    assert!(devices.len() == 1 && devices[0]["memory_free"].as_u64() < Some(2 << 30), "{seen}");
    // A tenant of that name has the device of that name.
    let own = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("both-gpu1", &own).status, 201);
    await_devices(&host, &["both", "both-gpu0", "both-gpu1", "both-gpu1-gpu0", "both-gpu1-gpu1"]);
    assert_eq!(variables(&host, "both-gpu1").expect("a device")["MPS_MANAGER_TENANT"], "both-gpu1");
}

#[test]
fn closed_tenant_is_withdrawn() {
    let host = InProcess::ready();
    assert_eq!(
        host.api().tenant("other", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"})).status,
        201
    );
    await_devices(&host, &["batch", "demo", "other"]);
    let post = |action: &str| host.api().post(&format!("/api/v1/daemons/gpu0/{action}"), &json!({}));
    let withdrawn = || {
        await_devices(&host, &["other"]);
        eventually("the file is gone", || (!has_environment(&host, "demo")).then_some(()));
        assert!(has_environment(&host, "other"), "its daemon is another");
    };
    let back = || {
        await_devices(&host, &["batch", "demo", "other"]);
        eventually("the file is back", || has_environment(&host, "demo").then_some(()));
    };
    post("cordon").ok();
    withdrawn();
    post("uncordon").ok();
    back();
    host.api().succeeds(&post("stop?grace_s=0"));
    withdrawn();
    host.api().succeeds(&post("start"));
    back();
    host.api().post("/api/v1/daemons/gpu1/cordon", &json!({})).ok();
    post("cordon").ok();
    eventually("no device is no file", || (!host.runtime(SPECIFICATION).exists()).then_some(()));
    assert!(host.runtime("sim/cdi").exists(), "the directory is others' too");
}

#[test]
fn device_alone_makes_a_client() {
    let host = InProcess::ready();
    await_devices(&host, &["batch", "demo"]);
    let seen = client_of(&host, "demo").seen.clone();
    assert_eq!((&seen["mps"], &seen["devices"][0]["sms"]), (&json!(true), &json!(32)), "{seen}");
}

#[test]
fn files_of_an_earlier_manager_do_not_survive() {
    let mut host = Host::ready();
    await_devices(&host, &["batch", "demo"]);
    host.end_manager(Signal::TERM);
    assert!(!host.runtime(SPECIFICATION).exists(), "nobody keeps it true");
    assert_eq!(fs::read_dir(host.runtime("env")).expect("a directory").count(), 0);
    // As of a manager that was killed, or of an earlier boot.
    let stale =
        json!({"cdiVersion": "0.3.0", "kind": "mps-manager.dev/tenant", "devices": [{"name": "ghost"}]});
    fs::write(host.runtime(SPECIFICATION), stale.to_string()).expect("written");
    fs::write(host.runtime("env/ghost.env"), "").expect("written");
    host.serve();
    assert!(!devices(&host).contains(&"ghost".to_owned()), "removed before anybody is answered");
    assert!(!has_environment(&host, "ghost"));
    host.await_ready();
    await_devices(&host, &["batch", "demo"]);
    host.end_manager(Signal::KILL);
    host.serve();
    await_devices(&host, &["batch", "demo"]);
    assert!(has_environment(&host, "demo"));
}

#[test]
fn missing_directory_is_reported_until_made() {
    let place = tempfile::tempdir().expect("a directory");
    let cdi = place.path().join("cdi");
    let host = host_with_cdi(&cdi);
    let reported = eventually("it is reported", || problem(&host));
    let message = reported["message"].as_str().expect("a message");
    assert!(message.contains(&cdi.display().to_string()) && message.contains("mkdir"), "{message}");
    assert!(!cdi.exists(), "it may be misspelt");
    assert_eq!(host.api().get("/api/v1/tenants/demo/environment").ok()["cdi_device"], json!(null));
    let refused = host.cli(&["env", "demo", "--format", "cdi"]);
    assert_eq!(refused.status.code(), Some(2));
    eventually("units are given the tenant", || has_environment(&host, "demo").then_some(()));
    assert_eq!(host.client("demo").seen["mps"], true, "nothing else is harmed");
    fs::create_dir(&cdi).expect("made");
    fs::set_permissions(&cdi, fs::Permissions::from_mode(0o755)).expect("mode");
    eventually("it is written", || read(&cdi.join("mps-manager.json")));
    eventually("it is reported no longer", || problem(&host).is_none().then_some(()));
}

#[test]
fn unwritable_directory_is_reported() {
    // Nobody makes a file there, root included.
    let host = host_with_cdi(Path::new("/sys/kernel"));
    let reported = eventually("it is reported", || problem(&host));
    assert!(reported["message"].as_str().expect("a message").contains("/sys/kernel"), "{reported}");
    assert_eq!(host.client("demo").seen["mps"], true, "nothing else is harmed");
    assert_eq!(host.api().get("/readyz").status, 200);
}

#[test]
fn no_specification_is_kept_where_none_is_wanted() {
    let host = InProcess::configured("cdi_dir = \"off\"");
    eventually("units are given the tenant", || has_environment(&host, "demo").then_some(()));
    assert!(!host.runtime(SPECIFICATION).exists() && problem(&host).is_none());
    assert_eq!(host.api().get("/api/v1/tenants/demo/environment").ok()["cdi_device"], json!(null));
}

#[test]
fn expired_tenant_is_withdrawn_while_its_client_runs() {
    let host = InProcess::ready();
    let expires_at = rfc3339::format(jiff::Timestamp::now().as_millisecond() + 5_000);
    let uid = rustix::process::geteuid().as_raw();
    let spec = json!({"daemon": "gpu1", "uid": uid, "expires_at": expires_at});
    assert_eq!(host.api().tenant("brief", &spec).status, 201);
    host.await_ready();
    let client = host.run_client("brief");
    host.listed(client.pid());
    eventually("it has a device", || edits(&host, "brief"));
    eventually("it has none", || edits(&host, "brief").is_none().then_some(()));
    eventually("it has no environment", || (!has_environment(&host, "brief")).then_some(()));
    assert_eq!(host.api().get("/api/v1/tenants/brief").status, 200, "it has a client");
}
