//! The compute mode: set before a daemon starts, read back, and restored whatever happens in between.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::incidents::incident;
use crate::harness::{Client, Host, InProcess, MANAGER, Served, eventually, is_alive};

/// A GPU's directory in the simulated kernel.
fn directory(host: &Served, gpu: usize) -> PathBuf {
    let gpu = host.api().get(&format!("/api/v1/gpus/{gpu}")).ok();
    host.runtime("sim/gpus").join(gpu["uuid"].as_str().expect("a UUID"))
}

/// The mode as the simulated kernel has it.
fn mode(host: &Served, gpu: usize) -> String {
    fs::read_to_string(directory(host, gpu).join("compute_mode")).expect("a mode").trim().to_owned()
}

/// Another program sets it.
fn set(host: &Served, gpu: usize, mode: &str) {
    fs::write(directory(host, gpu).join("compute_mode"), mode).expect("written");
}

fn spec(host: &Served, gpu: usize, extra: &Value) {
    let mut spec = json!({"gpus": [gpu.to_string()]});
    spec.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    let answer = host.api().put(&format!("/api/v1/daemons/gpu{gpu}"), &spec);
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn exclusive(host: &Served, gpu: usize) {
    spec(host, gpu, &json!({"compute_mode": "exclusive_process"}));
    eventually("the mode is set and reported", || {
        (condition(host, gpu)?["status"] == true && mode(host, gpu) == "exclusive_process").then_some(())
    });
    host.await_ready();
}

fn condition(host: &Served, gpu: usize) -> Option<Value> {
    let daemon = host.daemon(&format!("gpu{gpu}"));
    let conditions = daemon["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "ComputeMode").cloned()
}

fn await_mode(host: &Served, gpu: usize, wanted: &str) {
    eventually(&format!("the mode is {wanted}"), || (mode(host, gpu) == wanted).then_some(()));
}

/// A program that does not find MPS.
fn outsider(host: &Served, gpu: usize) -> Client {
    let mut command = Command::new(MANAGER);
    command.args(["sim", "client", "--json", "--spin", "600", "--gpus", &gpu.to_string()]).env_clear();
    command.env("MPS_SIM_WORLD", host.runtime("sim")).env("CUDA_MPS_PIPE_DIRECTORY", host.runtime("nowhere"));
    Client::start(command)
}

#[test]
fn exclusive_mode_excludes_outsiders_and_is_restored() {
    let host = InProcess::ready();
    assert_eq!((mode(&host, 0).as_str(), condition(&host, 0)), ("default", None));
    assert_eq!(outsider(&host, 0).seen["error"], json!(null), "the way past MPS is open");
    let (daemon, client) = (host.daemon_pid("gpu0"), host.client("demo"));
    exclusive(&host, 0);
    assert_eq!((mode(&host, 1).as_str(), host.daemon_pid("gpu0")), ("default", daemon), "nothing else");
    let status = host.daemon("gpu0")["status"]["compute_modes"].clone();
    let uuid = host.api().get("/api/v1/gpus/0").ok()["uuid"].clone();
    assert_eq!(status, json!([{"gpu": uuid, "mode": "exclusive_process", "previous": "default"}]));
    assert_eq!(host.api().get("/api/v1/gpus/0").ok()["compute_mode"], "exclusive_process");

    let refused = outsider(&host, 0);
    assert_eq!(
        (&refused.seen["mps"], &refused.seen["error"]),
        (&json!(false), &json!("CUDA_ERROR_DEVICE_UNAVAILABLE"))
    );
    drop(client);
    assert_eq!(host.client("demo").seen["devices"][0]["sms"], 32, "clients of MPS come in");

    // Taken away again while it runs: the mode goes back, and the daemon stays.
    spec(&host, 0, &json!({}));
    await_mode(&host, 0, "default");
    eventually("it is no longer reported", || {
        let status = &host.daemon("gpu0")["status"];
        (status["compute_modes"] == json!([]) && condition(&host, 0).is_none()).then_some(())
    });
    assert_eq!(host.daemon_pid("gpu0"), daemon);
}

#[test]
fn stopped_or_deleted_daemon_restores_the_mode() {
    let host = InProcess::ready();
    set(&host, 1, "prohibited");
    exclusive(&host, 1);
    assert_eq!(host.daemon("gpu1")["status"]["compute_modes"][0]["previous"], "prohibited");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    assert_eq!(mode(&host, 1), "exclusive_process", "a restart is no end");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    assert_eq!(mode(&host, 1), "prohibited", "restored before the daemon was reported as stopped");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    assert_eq!(mode(&host, 1), "exclusive_process");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    assert_eq!(mode(&host, 1), "prohibited");
}

#[test]
fn externally_changed_mode_is_set_again() {
    let host = InProcess::ready();
    exclusive(&host, 0);
    set(&host, 0, "default");
    await_mode(&host, 0, "exclusive_process");
    assert_eq!(host.daemon("gpu0")["status"]["compute_modes"][0]["previous"], "default");
    assert_eq!(host.daemon("gpu0")["status"]["deaths"], 0);
    // Each time, and all of them as one incident: the first is over before the next, which its reading back could take for its own.
    incident(&host, "drift", |one| one["occurrences"] == 1 && one["state"] == "recovered");
    set(&host, 0, "prohibited");
    await_mode(&host, 0, "exclusive_process");
    let changed = incident(&host, "drift", |one| one["occurrences"] == 2);
    let summary = changed["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("Another program changed a compute mode of gpu0 twice, which is restored"),
        "{summary}"
    );
    assert!(summary.contains("was in mode prohibited instead of exclusive_process"), "{summary}");
    assert_eq!((&changed["state"], &changed["time_to_recovery_ms"]), (&json!("recovered"), &json!(null)));
    let events = host.api().get("/api/v1/events?type=compute_mode.repaired").ok()["items"].clone();
    assert_eq!(events.as_array().unwrap().len(), 2, "{events}");
    // What another program has set stays when the daemon ends.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    await_mode(&host, 0, "default");
}

#[test]
fn next_manager_remembers_the_previous_mode() {
    let mut host = Host::ready();
    exclusive(&host, 0);
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    assert_eq!(mode(&host, 0), "exclusive_process");
    eventually("it is known again", || {
        (host.daemon("gpu0")["status"]["compute_modes"][0]["previous"] == "default").then_some(())
    });

    // A daemon that went while no manager lived is started again in its mode.
    let daemon = host.daemon_pid("gpu0");
    host.end_manager(Signal::KILL);
    crate::harness::signal(daemon, Signal::KILL);
    host.serve();
    host.await_ready();
    assert!(!is_alive(daemon));
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    assert_eq!(mode(&host, 0), "default");
}

#[test]
fn next_manager_restores_mode_after_a_crash() {
    let mut host = Host::ready();
    exclusive(&host, 0);
    let daemon = host.daemon_pid("gpu0");
    host.end_manager(Signal::KILL);
    // As if it had died between the end of the daemon and the mode.
    crate::harness::signal(daemon, Signal::KILL);
    host.execute_sql(
        "UPDATE daemons SET spec = json_set(spec, '$.desired_state', 'stopped') WHERE name = 'gpu0'",
    );
    host.serve();
    host.await_phase("gpu0", "stopped");
    await_mode(&host, 0, "default");

    // And one whose daemon was deleted.
    exclusive(&host, 1);
    let daemon = host.daemon_pid("gpu1");
    host.end_manager(Signal::KILL);
    crate::harness::signal(daemon, Signal::KILL);
    host.execute_sql("DELETE FROM daemons WHERE name = 'gpu1'");
    host.serve();
    await_mode(&host, 1, "default");
}

#[test]
fn reboot_restores_own_and_sets_desired_mode() {
    let mut host = Host::ready();
    set(&host, 0, "prohibited");
    set(&host, 1, "prohibited");
    exclusive(&host, 0);
    exclusive(&host, 1);
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    // The processes are gone with the boot, and the rows are an earlier one's.
    let reboot = |host: &mut Host, daemons: &[u32]| {
        host.end_manager(Signal::KILL);
        for daemon in daemons {
            crate::harness::signal(*daemon, Signal::KILL);
        }
        for table in ["incarnations", "compute_modes"] {
            host.execute_sql(&format!("UPDATE {table} SET boot_id = 'another boot'"));
        }
    };
    reboot(&mut host, &daemons);
    // Both modes outlived the boot, and both daemons still want them.
    host.serve();
    host.await_ready();
    assert_eq!(host.daemon("gpu0")["status"]["compute_modes"][0]["previous"], "prohibited", "it was kept");

    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    let device = directory(&host, 1);
    reboot(&mut host, &daemons);
    // This time the second GPU's did not.
    fs::write(device.join("compute_mode"), "default").unwrap();
    host.serve();
    host.await_ready();
    await_mode(&host, 1, "exclusive_process");
    eventually("what this boot had set is what goes back", || {
        (host.daemon("gpu1")["status"]["compute_modes"][0]["previous"] == "default").then_some(())
    });

    // Wanted by nobody: what is still ours goes back, and what the boot has reset is left.
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));
    reboot(&mut host, &daemons);
    host.execute_sql("UPDATE daemons SET spec = json_set(spec, '$.desired_state', 'stopped')");
    fs::write(device.join("compute_mode"), "prohibited").unwrap();
    host.serve();
    await_mode(&host, 0, "prohibited");
    for name in ["gpu0", "gpu1"] {
        host.await_phase(name, "stopped");
    }
    assert_eq!(mode(&host, 1), "prohibited");
    eventually("nothing is held", || {
        let held = |name: &str| host.daemon(name)["status"]["compute_modes"].as_array().map_or(1, Vec::len);
        (held("gpu0") + held("gpu1") == 0).then_some(())
    });
}

#[test]
fn maintenance_restores_the_mode_until_its_end() {
    let host = InProcess::ready();
    exclusive(&host, 0);
    let begun = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 5}));
    host.api().succeeds(&begun);
    assert_eq!(mode(&host, 0), "default");
    host.api().succeeds(&host.api().delete("/api/v1/host/maintenance"));
    host.await_ready();
    assert_eq!(mode(&host, 0), "exclusive_process");

    // During the maintenance of another GPU the mode that was set stays, and no other can be set.
    host.api()
        .succeeds(&host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["1"], "timeout_s": 5})));
    let daemon = host.daemon_pid("gpu0");
    crate::harness::signal(daemon, Signal::KILL);
    eventually("it is started again", || {
        let now = &host.daemon("gpu0")["status"];
        (now["phase"] == "ready" && now["pid"] != daemon).then_some(())
    });
    spec(&host, 0, &json!({}));
    let condition = eventually("it is reported that it cannot be restored now", || {
        condition(&host, 0).filter(|condition| condition["status"] == false)
    });
    assert!(condition["message"].as_str().unwrap().contains("maintenance"), "{condition}");
    assert_eq!(mode(&host, 0), "exclusive_process");
    host.api().succeeds(&host.api().delete("/api/v1/host/maintenance"));
    await_mode(&host, 0, "default");
}

#[test]
fn missing_gpu_gets_its_mode_restored_later() {
    let host = InProcess::ready();
    exclusive(&host, 0);
    let device = directory(&host, 0);
    // Not by its index, which is another's while it is missing.
    let mode = || fs::read_to_string(device.join("compute_mode")).unwrap().trim().to_owned();
    let uuid = device.file_name().unwrap().to_str().unwrap();
    fs::write(device.join("lost"), "").unwrap();
    host.await_phase("gpu0", "blocked");
    let held = eventually("it is shown, and not as read", || {
        let status = &host.daemon("gpu0")["status"];
        (status["compute_modes"][0]["mode"] == json!(null)).then(|| status["compute_modes"].clone())
    });
    assert_eq!(held, json!([{"gpu": uuid, "mode": null, "previous": "default"}]));
    let condition = condition(&host, 0).unwrap();
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(false), &json!("NotReadBack")));

    let begun = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 5}));
    let operation = host.api().succeeds(&begun);
    let restored = operation["steps"][4]["outcome"].as_str().unwrap();
    assert!(restored.contains(uuid) && restored.contains("missing"), "{restored}");
    assert_eq!(mode(), "exclusive_process", "nobody can");
    host.api().outcome(&host.api().delete("/api/v1/host/maintenance"));
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    fs::remove_file(device.join("lost")).unwrap();
    eventually("it is restored", || (mode() == "default").then_some(()));
}

#[test]
fn daemon_deleted_during_maintenance_restores_its_mode() {
    let host = InProcess::ready();
    exclusive(&host, 1);
    let path = "/api/v1/host/maintenance";
    host.api().succeeds(&host.api().post(path, &json!({"gpus": ["0"], "timeout_s": 5})));
    host.api().outcome(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    assert_eq!(host.api().get("/api/v1/daemons/gpu1").status, 404);
    assert_eq!(mode(&host, 1), "exclusive_process", "the driver is not queried");
    host.api().succeeds(&host.api().delete(path));
    await_mode(&host, 1, "default");
}

#[test]
fn failed_mode_change_blocks_the_start() {
    let host = Host::ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    // A directory where the driver would write.
    let device = directory(&host, 1);
    let draft = device.join(format!("compute_mode.set-{}", host.manager_pid()));
    fs::create_dir(&draft).unwrap();
    spec(&host, 1, &json!({"compute_mode": "exclusive_process"}));
    let blocked = host.await_phase("gpu1", "blocked");
    let ready = &blocked["status"]["conditions"][0];
    assert_eq!(ready["reason"], "ComputeModeNotSet");
    assert!(ready["message"].as_str().unwrap().contains("cannot be set to"), "{ready}");
    assert_eq!((&blocked["status"]["pid"], mode(&host, 1).as_str()), (&json!(null), "default"));
    assert_eq!(host.api().get("/readyz/daemons/gpu0").status, 200);
    fs::remove_dir(&draft).unwrap();
    host.await_phase("gpu1", "ready");
    assert_eq!(mode(&host, 1), "exclusive_process");
}

#[test]
fn prohibited_mode_is_refused() {
    let host = InProcess::stopped();
    for bad in ["prohibited", "exclusive_thread", ""] {
        let answer = host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"], "compute_mode": bad}));
        let problem = answer.problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/compute_mode", "{problem}");
    }
    let path = "/api/v1/daemons/gpu0?dry_run=true";
    let dry = host.api().put(path, &json!({"gpus": ["0"], "compute_mode": "exclusive_process"}));
    assert_eq!(dry.status, 200);
    assert_eq!(mode(&host, 0), "default");
}
