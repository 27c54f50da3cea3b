//! Cordons and drains: nobody new comes in, and those who are there are waited for, ended, or left alone.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Answer, Client, Host, InProcess, Served, SmallDisk, environment, eventually, is_alive, stderr_of, unix_ms,
};

fn drain(host: &Served, query: &str) -> Answer {
    host.api().post(&format!("/api/v1/daemons/gpu0/drain?{query}"), &json!({}))
}

fn place(accepted: &Answer) -> String {
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    accepted.header("location").expect("a place").to_owned()
}

/// Waits until an operation has begun this step.
fn await_step(host: &Served, place: &str, name: &str) -> Value {
    eventually(&format!("the step {name:?} begins"), || {
        let operation = host.api().get(place).ok();
        steps(&operation).contains(&name).then_some(operation)
    })
}

fn steps(operation: &Value) -> Vec<&str> {
    let steps = operation["steps"].as_array().expect("steps");
    steps.iter().map(|step| step["name"].as_str().expect("a name")).collect()
}

fn schedulable(host: &Served) -> bool {
    host.daemon("gpu0")["spec"]["schedulable"].as_bool().expect("yes or no")
}

fn condition(host: &Served, kind: &str) -> Option<Value> {
    let daemon = host.daemon("gpu0");
    let conditions = daemon["status"]["conditions"].as_array().expect("conditions");
    conditions.iter().find(|condition| condition["type"] == kind).cloned()
}

#[test]
fn cordoned_daemon_keeps_clients_and_refuses_new() {
    let host = InProcess::ready();
    let mut client = host.run_client("demo");
    let tag = host.api().get("/api/v1/daemons/gpu0").header("etag").unwrap().to_owned();
    let dry = host.api().post("/api/v1/daemons/gpu0/cordon?dry_run=true", &json!({})).ok();
    assert_eq!((&dry["spec"]["schedulable"], schedulable(&host)), (&json!(false), true));
    let cordoned = host.api().post("/api/v1/daemons/gpu0/cordon", &json!({}));
    assert_eq!(cordoned.ok()["spec"]["schedulable"], false);
    assert_ne!(cordoned.revision(), tag.split('-').next().unwrap().to_owned() + "\"");
    let condition = eventually("it says so", || condition(&host, "Schedulable"));
    assert_eq!((&condition["status"], &condition["reason"]), (&json!(false), &json!("Cordoned")));
    host.await_ready();
    let refused = host.run("batch", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("takes no new clients"), "{}", stderr_of(&refused));
    assert!(client.is_running());

    let stale = host.api().send(Method::POST, "/api/v1/daemons/gpu0/uncordon", &[("if-match", &tag)], None);
    stale.problem(412, "precondition-failed");
    assert_eq!(
        host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok()["spec"]["schedulable"],
        true
    );
    let again = host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({}));
    assert_eq!(again.revision(), host.api().get("/api/v1/daemons/gpu0").revision(), "no change");
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(0));
    host.api().post("/api/v1/daemons/gpu9/cordon", &json!({})).problem(404, "not-found");
}

#[test]
fn drain_waits_for_the_last_client() {
    let host = InProcess::ready();
    let (client, server) = (host.run_client("demo"), host.server_pid("gpu0"));
    let accepted = drain(&host, "timeout_s=600");
    let operation = await_step(&host, &place(&accepted), "wait for clients");
    assert_eq!(operation["cancellable"], true);
    let waiting = format!("waits for 1 client ({}", client.pid());
    eventually("it says which client it waits for", || {
        let operation = host.api().get(&place(&accepted)).ok();
        let step = operation["steps"].as_array()?.last()?.clone();
        step["outcome"].as_str().is_some_and(|outcome| outcome.starts_with(&waiting)).then_some(())
    });
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(2), "nobody new");
    drop(client);
    let operation = host.api().succeeds(&accepted);
    assert_eq!(steps(&operation), ["note schedulable", "cordon", "wait for clients"]);
    assert_eq!(operation["cancellable"], false);
    assert!(!schedulable(&host));
    assert_eq!(host.server_pid("gpu0"), server, "nothing was stopped");
    // Drained again it is done at once, and is left as it was.
    let again = host.api().succeeds(&drain(&host, "timeout_s=0"));
    assert_eq!(again["steps"][0]["outcome"], "cordoned already");
}

#[test]
fn drain_waits_for_unconnected_run_process() {
    let host = InProcess::ready();
    let mut process = host.run_command("demo", &["sleep", "600"]).spawn().unwrap();
    eventually("it has its lease", || {
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", process.id())).unwrap();
        command.starts_with("sleep").then_some(())
    });
    let failed = host.api().outcome(&drain(&host, "timeout_s=1"));
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("1 process started by `run`") && error.contains(&process.id().to_string()));
    assert!(schedulable(&host));
    let ended = host.api().succeeds(&drain(&host, "timeout_s=0&on_timeout=terminate"));
    assert_eq!(ended["steps"].as_array().unwrap().last().unwrap()["outcome"], "1 ended");
    assert!(!process.wait().unwrap().success());
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 0);
}

#[test]
fn drain_ends_commands_in_adopted_pipe_directory() {
    let host = InProcess::ready();
    // No link leads from a tenant's directory to a socket on another file system, so the daemon's own directory is handed out.
    let others = ["/var/tmp", "/dev/shm"].map(Path::new);
    let Some(other) = others.into_iter().find(|other| device(other) != device(host.dir())) else {
        return eprintln!("not run: there is no second file system");
    };
    let elsewhere = tempfile::tempdir_in(other).expect("a directory");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1"));
    let foreign = host.foreign_in(elsewhere.path(), "1");
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_ready();
    assert_eq!(host.api().tenant("guest", &json!({"daemon": "theirs", "uid": 0})).status, 201);
    host.await_ready();
    let mut process = host.run_command("guest", &["sleep", "600"]).spawn().unwrap();
    eventually("it has its lease", || {
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", process.id())).unwrap();
        command.starts_with("sleep").then_some(())
    });
    assert_eq!(environment(process.id(), "CUDA_MPS_PIPE_DIRECTORY").as_deref(), foreign.pipe().to_str());
    let drain = host.api().post("/api/v1/daemons/theirs/drain?timeout_s=0&on_timeout=terminate", &json!({}));
    let ended = host.api().succeeds(&drain);
    assert_eq!(ended["steps"].as_array().unwrap().last().unwrap()["outcome"], "1 ended");
    assert!(!process.wait().unwrap().success());
    foreign.quit();
}

fn device(path: &Path) -> u64 {
    std::fs::metadata(path).expect("there").dev()
}

#[test]
fn timed_out_drain_fails_and_uncordons() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let operation = host.api().outcome(&drain(&host, "timeout_s=1&on_timeout=fail"));
    assert_eq!(operation["state"], "failed");
    let error = operation["error"].as_str().unwrap();
    for part in ["after 1 s", "1 client", &client.pid().to_string(), "on_timeout=terminate"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    assert_eq!(steps(&operation), ["note schedulable", "cordon", "wait for clients", "undo"]);
    assert!(schedulable(&host) && client.is_running());
    host.await_ready();
    assert_eq!(condition(&host, "Schedulable"), None);

    // One that was cordoned before stays so.
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    let operation = host.api().outcome(&drain(&host, "timeout_s=0"));
    assert_eq!(operation["state"], "failed");
    assert_eq!(operation["steps"][3]["outcome"], "cordoned, as before");
    assert!(!schedulable(&host));
}

#[test]
fn drain_can_terminate_remaining_clients() {
    let host = InProcess::ready();
    let mut clients = [host.client("demo"), host.run_client("batch")];
    let mut neighbour = Client::start(host.client_command("demo", &["--spin", "600"]));
    let operation = host.api().succeeds(&drain(&host, "timeout_s=0&on_timeout=terminate"));
    assert_eq!(steps(&operation).last(), Some(&"terminate the clients"));
    for client in &mut clients {
        client.ended();
    }
    neighbour.ended();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 3);
    assert!(host.clients().is_empty() && !schedulable(&host));
    host.await_ready();
}

#[test]
fn drain_is_cancelled_only_before_it_finishes() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let first = place(&drain(&host, "timeout_s=600"));
    await_step(&host, &first, "wait for clients");
    let second = place(&drain(&host, "timeout_s=600"));
    assert_eq!(host.api().get(&second).ok()["state"], "pending");
    let cancelled = host.api().post(&format!("{second}/cancel"), &json!({}));
    assert_eq!((cancelled.status, &cancelled.json()["state"]), (200, &json!("cancelled")));

    let tried = host.api().post(&format!("{first}/cancel?dry_run=true"), &json!({}));
    assert_eq!((tried.status, tried.header("location")), (200, None));
    assert!(tried.json()["cancel_requested_at"].is_string(), "as it would be: {}", tried.text);
    assert_eq!(host.api().get(&first).ok()["cancel_requested_at"], json!(null));

    let stopping = host.api().post(&format!("{first}/cancel"), &json!({}));
    assert!(stopping.ok()["cancel_requested_at"].is_string() && stopping.status == 202);
    let operation = host.api().outcome(&stopping);
    assert_eq!((&operation["state"], &operation["error"]), (&json!("cancelled"), &json!(null)));
    assert_eq!(steps(&operation), ["note schedulable", "cordon", "wait for clients", "undo"]);
    assert_eq!(operation["steps"][2]["outcome"], "cancelled");
    assert_eq!(operation["steps"][3]["outcome"], "schedulable again");
    assert!(schedulable(&host) && client.is_running());
    let done = host.api().post(&format!("{first}/cancel"), &json!({})).problem(409, "conflict");
    assert!(done["detail"].as_str().unwrap().contains("has ended (cancelled)"), "{done}");
}

#[test]
fn uncordon_fails_a_running_drain() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let accepted = drain(&host, "timeout_s=600");
    await_step(&host, &place(&accepted), "wait for clients");
    host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok();
    let operation = host.api().outcome(&accepted);
    assert_eq!(operation["state"], "failed");
    assert!(operation["error"].as_str().unwrap().contains("made schedulable again"), "{operation}");
    assert!(schedulable(&host));
    drop(client);
}

#[test]
fn drain_and_its_timeout_survive_manager_death() {
    let mut host = Host::ready();
    let client = host.client("demo");
    let long = drain(&host, "timeout_s=600");
    let began = await_step(&host, &place(&long), "wait for clients");
    host.end_manager(Signal::KILL);
    host.serve();
    assert!(!schedulable(&host));
    await_step(&host, &place(&long), "wait for clients");
    drop(client);
    let operation = host.api().succeeds(&long);
    assert_eq!(steps(&operation).iter().filter(|name| **name == "note schedulable").count(), 1);
    let first = operation["steps"].as_array().unwrap();
    let first = first.iter().find(|step| step["name"] == "wait for clients").unwrap();
    assert_eq!(first["started_at"], began["steps"][2]["started_at"]);
    assert_eq!(first["finished_at"], json!(null), "the manager died in it");

    // The limit counts from the first waiting: a later manager does not restart it.
    host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok();
    host.await_ready();
    let client = host.client("demo");
    let short = drain(&host, "timeout_s=2");
    let began = await_step(&host, &place(&short), "wait for clients")["steps"][2]["started_at"].clone();
    host.end_manager(Signal::KILL);
    let over = unix_ms(&began) + 2000;
    eventually("the time is over", || (jiff::Timestamp::now().as_millisecond() > over).then_some(()));
    host.serve();
    let operation = host.api().outcome(&short);
    assert_eq!(operation["state"], "failed");
    let waits = operation["steps"].as_array().unwrap().iter();
    let second = waits.filter(|step| step["name"] == "wait for clients").nth(1).unwrap().clone();
    let waited = unix_ms(&second["finished_at"]) - unix_ms(&second["started_at"]);
    assert!(waited < 2000, "{second}");
    assert!(schedulable(&host));
    assert!(is_alive(client.pid()));
}

#[test]
fn drain_is_idempotent_and_validates_its_query() {
    let host = InProcess::stopped();
    let post = |query: &str| {
        let path = format!("/api/v1/daemons/gpu0/drain?{query}");
        host.api().send(Method::POST, &path, &[("idempotency-key", "k")], None)
    };
    let dry = drain(&host, "dry_run=true&timeout_s=5&on_timeout=terminate");
    let request = json!({"kind": "drain_daemon", "timeout_s": 5, "on_timeout": "terminate"});
    assert_eq!((dry.status, &dry.json()["request"]), (200, &request));
    assert!(schedulable(&host));
    let first = post("timeout_s=5");
    assert_eq!(post("timeout_s=5").json()["id"], first.json()["id"]);
    post("timeout_s=6").problem(422, "idempotency-key-reused");
    host.api().succeeds(&first);
    for bad in ["timeout_s=86401", "timeout_s=-1", "on_timeout=maybe", "timeout=1"] {
        drain(&host, bad).problem(422, "invalid-request");
    }
    host.api().post("/api/v1/daemons/gpu9/drain", &json!({})).problem(404, "not-found");
    assert_eq!(host.api().get("/api/v1/operations").ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn drain_recovers_from_a_full_disk() {
    let mut host = Host::new("");
    let state = host.state("");
    let Some(disk) = SmallDisk::mount(&state, 16) else { return };
    host.serve();
    host.await_ready();
    let client = host.client("demo");
    let accepted = drain(&host, "timeout_s=600");
    await_step(&host, &place(&accepted), "wait for clients");
    let filler = disk.fill();
    drop(client);
    eventually("neither the step nor its undoing can be written", || {
        host.log().contains("it cannot be undone yet").then_some(())
    });
    assert_eq!(host.api().get(&place(&accepted)).ok()["state"], "running");
    std::fs::remove_file(filler).unwrap();
    let operation = host.api().outcome(&accepted);
    assert_eq!(operation["state"], "failed");
    assert!(operation["error"].as_str().unwrap().contains("is full"), "{operation}");
    let undo = operation["steps"].as_array().unwrap().last().unwrap();
    assert_eq!((&undo["name"], &undo["outcome"]), (&json!("undo"), &json!("schedulable again")));
    assert!(schedulable(&host));
    host.api().succeeds(&drain(&host, "timeout_s=5"));
}

#[test]
fn client_is_terminated_during_a_drain() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    let accepted = drain(&host, "timeout_s=600");
    await_step(&host, &place(&accepted), "wait for clients");
    let behind = drain(&host, "timeout_s=600");
    let ended = host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    host.api().succeeds(&ended);
    client.ended();
    host.api().succeeds(&accepted);
    host.api().succeeds(&behind);
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);
    assert_eq!(host.query_sql("SELECT daemon FROM operation_locks"), [] as [String; 0]);
}

#[test]
fn operations_are_listed_by_daemon_and_by_state() {
    let host = InProcess::ready();
    let _client = host.run_client("demo");
    let waits = drain(&host, "timeout_s=600");
    await_step(&host, &place(&waits), "wait for clients");
    let restarted = host.api().post("/api/v1/daemons/gpu1/restart?grace_s=0", &json!({}));
    host.api().succeeds(&restarted);
    let ids = |query: &str| -> Vec<String> {
        let listed = host.api().get(&format!("/api/v1/operations?{query}")).ok();
        let items = listed["items"].as_array().unwrap();
        items.iter().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
    };
    let id = |accepted: &Answer| place(accepted).rsplit('/').next().unwrap().to_owned();
    let (waits, restarted) = (&id(&waits), &id(&restarted));
    assert_eq!(ids("daemon=gpu0"), std::slice::from_ref(waits));
    assert_eq!(ids("state=pending,running"), std::slice::from_ref(waits));
    assert_eq!(ids("state=succeeded"), std::slice::from_ref(restarted));
    assert_eq!(ids("state=succeeded&daemon=gpu0"), [] as [String; 0]);
    assert_eq!(ids("state=running,succeeded"), [restarted.as_str(), waits.as_str()]);
    let refused = host.api().get("/api/v1/operations?state=over").problem(422, "invalid-request");
    assert_eq!(refused["errors"][0]["pointer"], "/state");
    assert!(refused["errors"][0]["detail"].as_str().unwrap().contains("succeeded"), "{refused}");
    host.api().get("/api/v1/operations?daemon=No").problem(422, "invalid-request");
}
