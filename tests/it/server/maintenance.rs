//! Maintenance: daemons down, the driver released, nothing of ours on the GPUs, and all of it started again.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Host, InProcess, MANAGER, Served, eventually, is_alive, pid, signal_if_there, stderr_of,
};

const PATH: &str = "/api/v1/host/maintenance";

pub fn begin(host: &Served, body: &Value) -> Answer {
    host.api().post(PATH, body)
}

pub fn end(host: &Served) -> Value {
    host.api().succeeds(&host.api().delete(PATH))
}

pub fn now(host: &Served) -> Value {
    host.api().get(PATH).ok()
}

pub fn await_state(host: &Served, state: &str) -> Value {
    eventually(&format!("maintenance is {state}"), || {
        let now = now(host);
        (now["state"] == state).then_some(now)
    })
}

pub fn steps(operation: &Value) -> Vec<&str> {
    let steps = operation["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["name"].as_str().expect("a name")).collect()
}

pub const TAKEN_DOWN: [&str; 7] = [
    "see who has the GPUs open",
    "cordon",
    "wait for clients",
    "quit the daemons",
    "restore compute modes",
    "release the driver",
    "prove that nothing of ours has a GPU open",
];

/// Nobody at all has a device file open.
fn assert_released(host: &Served) {
    assert_eq!((host.holders(0), host.holders(1)), (Vec::<u32>::new(), Vec::<u32>::new()));
}

/// A tenant on the second GPU.
fn second_tenant(host: &Served) {
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "3G", "max_clients": 4});
    assert_eq!(host.api().tenant("second", &spec).status, 201);
    host.await_ready();
}

#[test]
fn whole_host_maintenance_restores_everything_afterwards() {
    let host = Host::ready();
    let client = host.run_client("demo");
    for gpu in 0..2 {
        assert!(host.holders(gpu).contains(&host.manager_pid()), "as NVML keeps the files of all GPUs open");
    }
    assert!(host.holders(0).contains(&client.pid()) && host.holders(0).contains(&host.server_pid("gpu0")));
    assert_eq!(now(&host)["state"], json!(null));
    let before = host.api().get("/api/v1/gpus").ok();
    let daemons = ["gpu0", "gpu1"].map(|name| host.daemon_pid(name));

    let accepted = begin(&host, &json!({"timeout_s": 600}));
    let draining = await_state(&host, "draining");
    assert_eq!((&draining["daemons"], &draining["live"]), (&json!(["gpu0", "gpu1"]), &json!(true)));
    eventually("the client is waited for, and nobody new comes in", || {
        stderr_of(&host.run("batch", &["true"])).contains("in maintenance").then_some(())
    });
    let daemon = host.daemon("gpu0");
    assert_eq!(
        (&daemon["spec"]["schedulable"], &daemon["spec"]["desired_state"]),
        (&json!(true), &json!("running"))
    );
    drop(client);
    let operation = host.api().succeeds(&accepted);
    assert_eq!(steps(&operation), TAKEN_DOWN);
    assert_eq!(operation["daemons"], json!(["gpu0", "gpu1"]));

    let active = now(&host);
    assert_eq!((&active["state"], &active["live"]), (&json!("active"), &json!(false)));
    assert_eq!((&active["holders"], &active["unexamined"]), (&json!([]), &json!(0)));
    assert_eq!(active["operation"], operation["id"]);
    assert_released(&host);
    assert!(!daemons.into_iter().any(is_alive));
    let daemon = host.daemon("gpu0");
    assert_eq!(
        (&daemon["status"]["phase"], &daemon["spec"]["desired_state"]),
        (&json!("stopped"), &json!("running"))
    );
    assert_eq!(daemon["status"]["conditions"][0]["reason"], "StoppedForMaintenance");
    assert_eq!(host.api().get("/readyz").status, 200, "down as desired");
    // The GPUs are shown as they were, and are marked as not polled.
    let shown = host.api().get("/api/v1/gpus").ok();
    assert_eq!(shown["items"][1]["uuid"], before["items"][1]["uuid"]);
    assert_eq!((&shown["items"][1]["live"], &before["items"][1]["live"]), (&json!(false), &json!(true)));
    assert_eq!(shown["items"][1]["processes"], json!(null), "not known");
    assert_eq!(host.api().get("/api/v1/host").ok()["live"], false);
    for refused in ["start", "restart", "drain"] {
        let problem =
            host.api().post(&format!("/api/v1/daemons/gpu0/{refused}"), &json!({})).problem(409, "conflict");
        assert!(problem["detail"].as_str().unwrap().contains("`mps-manager maintenance end`"), "{problem}");
    }
    begin(&host, &json!({})).problem(409, "conflict");
    // Tenants are written meanwhile as always.
    second_tenant(&host);

    let operation = end(&host);
    assert_eq!(
        steps(&operation),
        ["open the driver", "start the daemons", "wait until ready", "take clients again"]
    );
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "3G");
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
    assert_eq!((&now(&host)["state"], &now(&host)["live"]), (&json!(null), &json!(true)));
    host.api().delete(PATH).problem(409, "conflict");
}

#[test]
fn one_gpu_is_released_while_another_serves() {
    let host = InProcess::ready();
    second_tenant(&host);
    let mut client = host.run_client("second");
    let daemon = host.daemon_pid("gpu1");
    let operation = host.api().succeeds(&begin(&host, &json!({"gpus": ["0"], "timeout_s": 5})));
    assert_eq!((steps(&operation), &operation["daemons"]), (TAKEN_DOWN.into(), &json!(["gpu0"])));
    assert_eq!(host.holders(0), Vec::<u32>::new());
    assert!(host.holders(1).contains(&client.pid()));
    assert!(client.is_running());
    assert_eq!(host.daemon_pid("gpu1"), daemon);
    assert_eq!(host.run("second", &["true"]).status.code(), Some(0));
    assert!(stderr_of(&host.run("demo", &["true"])).contains("in maintenance"));
    // Present clients are still listed, without what only the driver reports.
    let listed = host.listed(client.pid());
    assert_eq!((&listed["tenant"], &listed["memory"]), (&json!("second"), &json!([])));
    // A daemon of the other GPU is started again when it dies, without the driver.
    crate::harness::signal(daemon, Signal::KILL);
    eventually("there is another daemon", || {
        let now = &host.daemon("gpu1")["status"];
        (now["phase"] == "ready" && now["pid"] != daemon).then_some(())
    });
    end(&host);
    host.await_ready();
}

#[test]
fn maintenance_stops_daemons_spanning_its_gpu() {
    let host = InProcess::ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    host.api().succeeds(&begin(&host, &json!({"gpus": ["1"], "timeout_s": 5})));
    assert_eq!(host.api().put("/api/v1/daemons/late", &json!({"gpus": ["1"]})).status, 201);
    host.await_phase("late", "stopped");
    assert_eq!(host.daemon("late")["status"]["pid"], json!(null));
    assert_eq!(now(&host)["daemons"], json!(["late"]));
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "ready");
    end(&host);
    host.await_phase("late", "ready");

    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    for name in ["gpu0", "late"] {
        host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{name}?grace_s=1")));
    }
    assert_eq!(host.api().put("/api/v1/daemons/both", &json!({"gpus": ["0", "1"]})).status, 201);
    host.await_ready();
    let operation = host.api().succeeds(&begin(&host, &json!({"gpus": ["1"], "timeout_s": 5})));
    assert_eq!(operation["daemons"], json!(["both"]));
    assert_released(&host);
    end(&host);
    host.await_ready();
}

#[test]
fn daemon_cannot_change_gpus_across_maintenance() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    host.api().succeeds(&begin(&host, &json!({"gpus": ["1"], "timeout_s": 5})));
    for (name, gpus) in [("gpu0", json!(["1"])), ("gpu0", json!(["0", "1"])), ("gpu1", json!(["0"]))] {
        let path = format!("/api/v1/daemons/{name}");
        let refused = host.api().put(&path, &json!({"gpus": gpus})).problem(409, "conflict");
        assert!(refused["detail"].as_str().unwrap().contains("`mps-manager maintenance end`"), "{refused}");
    }
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "ready");
    assert!(client.is_running());
    end(&host);
    host.await_ready();
}

#[test]
fn maintenance_awaits_clients_of_late_daemon() {
    let host = InProcess::ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    let first = host.client("demo");
    let accepted = begin(&host, &json!({"timeout_s": 600}));
    await_state(&host, "draining");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 201);
    second_tenant(&host);
    let mut command = Command::new(MANAGER);
    command.args(["sim", "client", "--json", "--spin", "600"]).env_clear();
    command.env("MPS_SIM_WORLD", host.runtime("sim"));
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.runtime("daemons/gpu1/pipe"));
    let mut late = Client::start(command);
    assert_eq!(late.seen["mps"], true, "{:?}", late.seen);
    drop(first);
    let place = accepted.header("location").unwrap();
    eventually("it waits for the second, too", || {
        let operation = host.api().get(place).ok();
        let waits = steps(&operation).iter().filter(|step| **step == "wait for clients").count();
        (waits == 2).then_some(())
    });
    assert!(late.is_running() && now(&host)["state"] == "draining");
    let place = place.to_owned();
    eventually("it can be called off again", || {
        (host.api().get(&place).ok()["cancellable"] == true).then_some(())
    });
    drop(late);
    host.api().succeeds(&accepted);
    assert_released(&host);
    end(&host);
    host.await_ready();
}

#[test]
fn wedged_daemon_stops_when_termination_is_allowed() {
    let host = InProcess::configured("control_deadline_s = 1\nstop_grace_s = 1");
    let daemon = host.daemon_pid("gpu0");
    crate::harness::signal(daemon, Signal::STOP);
    host.await_reason("gpu0", "Wedged");
    let failed = host.api().outcome(&begin(&host, &json!({"gpus": ["0"], "timeout_s": 0})));
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("mps-manager daemon stop gpu0"), "{error}");
    assert!(is_alive(daemon));
    let body = json!({"gpus": ["0"], "timeout_s": 0, "on_timeout": "terminate"});
    let operation = host.api().succeeds(&begin(&host, &body));
    assert!(operation["steps"][3]["outcome"].as_str().unwrap().contains("goes down"), "{operation}");
    assert!(!is_alive(daemon));
    assert_eq!(host.holders(0), Vec::<u32>::new());
    end(&host);
    host.await_ready();
}

#[test]
fn interrupted_proof_is_repeated_by_next_manager() {
    let mut host = Host::ready();
    let client = host.run_client("demo");
    let accepted = begin(&host, &json!({"timeout_s": 600}));
    await_state(&host, "draining");
    let clinging = super::maintenance_holders::Clinging::start(&host);
    drop(client);
    let at = accepted.header("location").expect("a location").to_owned();
    eventually("it is being proven", || {
        let operation = host.api().get(&at).ok();
        steps(&operation).last().is_some_and(|step| step.starts_with("prove")).then_some(())
    });
    let active = await_state(&host, "active");
    assert_eq!(
        (pid(&active["holders"][0]["pid"]), &active["holders"][0]["ours"]),
        (clinging.0.id(), &json!(true))
    );
    host.end_manager(Signal::KILL);
    host.serve();
    assert_eq!(now(&host)["live"], false, "nothing is opened for it again");
    drop(clinging);
    let operation = host.api().succeeds(&accepted);
    assert_eq!(steps(&operation).iter().filter(|step| step.starts_with("prove")).count(), 2);
    assert_released(&host);
    end(&host);
    host.await_ready();
}

#[test]
fn remaining_clients_fail_maintenance_or_are_terminated() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let failed = host.api().outcome(&begin(&host, &json!({"timeout_s": 1})));
    assert_eq!(
        (&failed["state"], steps(&failed)),
        (&json!("failed"), vec![TAKEN_DOWN[0], "cordon", "wait for clients", "undo"])
    );
    assert!(failed["error"].as_str().unwrap().contains(&client.pid().to_string()), "{failed}");
    assert!(client.is_running());
    assert_eq!(now(&host)["state"], json!(null));
    host.await_ready();
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(0));

    let ended = host.api().succeeds(&begin(&host, &json!({"timeout_s": 0, "on_timeout": "terminate"})));
    assert_eq!(ended["steps"][3]["outcome"], "1 ended");
    client.ended();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);
    assert_released(&host);
    end(&host);
}

#[test]
fn cancelled_maintenance_changes_nothing() {
    let host = InProcess::ready();
    let client = host.client("demo");
    // Behind another operation it waits, with its daemons free for what came before it.
    let drain = host.api().post("/api/v1/daemons/gpu0/drain?timeout_s=600", &json!({}));
    let waiting = begin(&host, &json!({"timeout_s": 600}));
    let place = waiting.header("location").unwrap().to_owned();
    assert_eq!(host.api().get(&place).ok()["state"], "pending");
    begin(&host, &json!({})).problem(409, "conflict");
    host.api().delete(PATH).problem(409, "conflict");
    assert_eq!(host.api().post(&format!("{place}/cancel"), &json!({})).ok()["state"], "cancelled");
    host.api().post(&format!("{}/cancel", drain.header("location").unwrap()), &json!({})).ok();
    assert_eq!(host.api().outcome(&drain)["state"], "cancelled");

    let accepted = begin(&host, &json!({"timeout_s": 600}));
    await_state(&host, "draining");
    let place = accepted.header("location").unwrap();
    let stopping = eventually("it can be called off", || {
        let answer = host.api().post(&format!("{place}/cancel"), &json!({}));
        (answer.status == 202).then_some(answer)
    });
    let operation = host.api().outcome(&stopping);
    assert_eq!(operation["state"], "cancelled");
    assert_eq!(operation["steps"].as_array().unwrap().last().unwrap()["outcome"], "gpu0, gpu1 as before");
    assert_eq!(now(&host)["state"], json!(null));
    host.await_ready();
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(0));
    drop(client);

    // Once the daemons are stopped there is only the way forward.
    let accepted = begin(&host, &json!({"timeout_s": 600}));
    host.api().succeeds(&accepted);
    let place = accepted.header("location").unwrap();
    host.api().post(&format!("{place}/cancel"), &json!({})).problem(409, "conflict");
    end(&host);
}

#[test]
fn interrupted_drain_resumes_after_manager_death() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let accepted = begin(&host, &json!({"timeout_s": 600}));
    await_state(&host, "draining");
    host.end_manager(Signal::KILL);
    host.serve();
    assert_eq!((&now(&host)["state"], &now(&host)["live"]), (&json!("draining"), &json!(true)));
    assert!(stderr_of(&host.run("batch", &["true"])).contains("in maintenance"));
    drop(client);
    host.api().succeeds(&accepted);
    assert_released(&host);
    end(&host);
    host.await_ready();
}

#[test]
fn interrupted_quit_resumes_after_manager_death() {
    let mut host = Host::configured("control_deadline_s = 1\nstop_grace_s = 20");
    // A daemon that stands still is asked to quit until its grace is over.
    let daemon = host.daemon_pid("gpu0");
    crate::harness::signal(daemon, Signal::STOP);
    host.await_reason("gpu0", "Wedged");
    let body = json!({"gpus": ["0"], "timeout_s": 0, "on_timeout": "terminate"});
    let accepted = begin(&host, &body);
    await_state(&host, "quitting");
    host.end_manager(Signal::KILL);
    let state = host.query_sql("SELECT state FROM maintenance");
    assert_eq!((state, is_alive(daemon)), (vec!["quitting".to_owned()], true));
    signal_if_there(daemon, Signal::CONT);
    host.serve();
    let operation = host.api().succeeds(&accepted);
    assert_eq!(steps(&operation).iter().filter(|step| **step == "quit the daemons").count(), 2);
    assert_eq!(steps(&operation).last(), TAKEN_DOWN.last());
    assert!(!is_alive(daemon));
    assert_eq!(host.holders(0), Vec::<u32>::new());
    end(&host);
    host.await_ready();
}

#[test]
fn manager_started_in_maintenance_avoids_driver() {
    let mut host = Host::ready();
    let begun = host.api().succeeds(&begin(&host, &json!({"timeout_s": 5})));
    for signal in [Signal::KILL, Signal::TERM] {
        host.end_manager(signal);
        // The driver itself may be gone meanwhile, as while it is upgraded.
        fs::rename(host.runtime("sim/dev"), host.runtime("sim/away")).unwrap();
        fs::create_dir(host.runtime("sim/dev")).unwrap();
        host.serve();
        fs::remove_dir_all(host.runtime("sim/dev")).unwrap();
        fs::rename(host.runtime("sim/away"), host.runtime("sim/dev")).unwrap();
        let active = now(&host);
        assert_eq!((&active["state"], &active["live"]), (&json!("active"), &json!(false)));
        assert_eq!((&active["operation"], &active["holders"]), (&begun["id"], &json!([])));
        assert_released(&host);
        host.await_phase("gpu0", "stopped");
        assert_eq!(host.api().get("/api/v1/gpus").ok()["items"].as_array().unwrap().len(), 2);
        assert_eq!(host.daemon("gpu0")["status"]["pid"], json!(null));
    }
    assert!(host.log().contains("the driver is not queried"));
    end(&host);
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert!(host.holders(0).contains(&host.manager_pid()));
}

#[test]
fn maintenance_of_other_machine_is_ignored() {
    let mut host = Host::ready();
    host.api().succeeds(&begin(&host, &json!({"timeout_s": 5})));
    host.end_manager(Signal::TERM);
    host.execute_sql("UPDATE host SET machine_id = '0123456789abcdef0123456789abcdef'");
    host.serve();
    let shown = host.api().get("/api/v1/host").ok();
    assert_eq!(shown["live"], true, "the GPUs are polled");
    begin(&host, &json!({})).problem(409, "read-only");
    let confirm = json!({"machine_id": shown["machine_id"]});
    assert_eq!(host.api().post("/api/v1/host/confirm", &confirm).status, 200);
    host.await_ready();
    assert_eq!(now(&host)["state"], json!(null));
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "ready");
}

#[test]
fn interrupted_maintenance_end_restores_everything() {
    let mut host = Host::ready();
    host.api().succeeds(&begin(&host, &json!({"timeout_s": 5})));
    let accepted = host.api().delete(PATH);
    assert_eq!(accepted.status, 202);
    host.end_manager(Signal::KILL);
    host.serve();
    host.api().succeeds(&accepted);
    host.await_ready();
    assert_eq!(host.daemon("gpu0")["status"]["phase"], "ready");
    assert_eq!(now(&host)["state"], json!(null));
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let host = InProcess::stopped();
    for (body, pointer) in [
        (json!({"gpus": []}), "/gpus"),
        (json!({"gpus": ["0", "7"]}), "/gpus/1"),
        (json!({"timeout_s": 86401}), "/timeout_s"),
        (json!({"on_timeout": "maybe"}), "/on_timeout"),
        (json!({"gpu": ["0"]}), "/gpu"),
    ] {
        let problem = begin(&host, &body).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let dry = host.api().post(&format!("{PATH}?dry_run=true"), &json!({"gpus": ["1", "1"]}));
    assert_eq!((dry.status, &dry.json()["daemons"]), (200, &json!(["gpu1"])));
    assert_eq!(dry.json()["request"]["gpus"].as_array().unwrap().len(), 1);
    assert_eq!(host.api().get("/api/v1/operations").ok()["items"], json!([]));
    assert_eq!(now(&host)["state"], json!(null));
}
