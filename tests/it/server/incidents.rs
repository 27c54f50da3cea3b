//! Incidents: what broke, who was affected, who may see that, and who acknowledged it.

use std::process::{Child, Command};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::foreign::beside_another;
use super::log_pages::page;
use super::tokens::create;
use crate::harness::{Client, Host, InProcess, Served, eventually, may_mount, signal, stderr_of};

/// The newest incident of a kind, once there is one for which `is_it` holds.
pub(super) fn incident(host: &Served, kind: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("an incident of kind {kind}"), || {
        let list = host.api().get(&format!("/api/v1/incidents?kind={kind}")).ok();
        list["items"].as_array().expect("items").iter().find(|one| is_it(one)).cloned()
    })
}

pub(super) fn recovered(incident: &Value) -> bool {
    incident["state"] == "recovered"
}

/// The affected processes, in order.
pub(super) fn affected(incident: &Value) -> Vec<u64> {
    let clients = incident["affected"].as_array().expect("clients");
    let mut pids: Vec<u64> = clients.iter().map(|client| client["pid"].as_u64().expect("a PID")).collect();
    pids.sort_unstable();
    pids
}

fn sorted(clients: &[&Client]) -> Vec<u64> {
    let mut pids: Vec<u64> = clients.iter().map(|client| client.pid().into()).collect();
    pids.sort_unstable();
    pids
}

#[test]
fn killed_daemon_is_one_incident_with_its_clients() {
    let host = InProcess::ready();
    let named =
        host.cli(&["tenant", "set", "batch", "--label", "slurm-job=4711", "--label", "slurm-user=alice"]);
    assert!(named.status.success(), "{}", stderr_of(&named));
    host.await_ready();
    let clients = [host.client("demo"), host.client("batch")];
    let shown = host.cli(&["client", "get", &clients[1].pid().to_string()]);
    let shown = String::from_utf8_lossy(&shown.stdout);
    assert!(shown.contains("batch, job 4711 of alice"), "{shown}");
    let info = "mps_manager_tenant_info{daemon=\"gpu0\",tenant=\"batch\",kubernetes_namespace=\"\",kubernetes_pod=\"\",kubernetes_container=\"\",slurm_job=\"4711\",slurm_user=\"alice\"} 1";
    eventually("it is in the metrics", || host.api().get("/metrics").text.contains(info).then_some(()));
    let daemon = host.daemon_pid("gpu0");
    signal(daemon, Signal::KILL);
    let died = incident(&host, "daemon_died", recovered);
    assert_eq!(affected(&died), sorted(&[&clients[0], &clients[1]]), "{died}");
    assert_eq!(died["tenants"], json!(["batch", "demo"]));
    assert_eq!((&died["daemon"], &died["ended_by"]), (&json!("gpu0"), &json!("recovered")));
    let summary = died["summary"].as_str().expect("text");
    assert!(summary.starts_with("gpu0's control daemon died and was restarted"), "{summary}");
    assert!(
        summary.ends_with("2 clients of batch (job 4711 of alice) and demo lost their work"),
        "{summary}"
    );
    let all = host.api().get("/api/v1/incidents").ok();
    assert_eq!(all["items"].as_array().expect("items").len(), 1, "its server's death is part of it: {all}");
    assert_eq!(died["workloads"], json!({"batch": "job 4711 of alice"}));
    let id = died["id"].as_i64().expect("an ID");
    assert!(page(&host, &format!("/incidents/{id}")).contains("job 4711 of alice"));
    assert!(page(&host, "/tenants/batch").contains("job 4711 of alice"));
    // Its events name it, and it names its events.
    let opened = host.api().get("/api/v1/events?type=incident.").ok()["items"].clone();
    let kinds: Vec<&str> =
        opened.as_array().expect("items").iter().map(|one| one["type"].as_str().expect("text")).collect();
    assert_eq!(kinds, ["incident.recovered", "incident.opened"], "{opened}");
    assert_eq!(opened[1]["details"]["incident"], died["id"]);
    let first = died["events"][0].as_i64().expect("an ID");
    assert_eq!(opened[1]["cause"], json!({"by": "event", "id": first}));
    let of_event = |id: &Value| host.api().get(&format!("/api/v1/events/{id}")).ok()["type"].clone();
    let events: Vec<Value> = died["events"].as_array().expect("IDs").iter().map(of_event).collect();
    assert!(events.contains(&json!("daemon.died")), "{events:?}");
}

#[test]
fn fault_incident_names_suspect_affected_and_unaffected() {
    let host = Host::ready();
    let victim = host.client("batch");
    // The server is in fault until this one is gone, so a poll sees it.
    victim.signal(Signal::STOP);
    let mut culprit = Client::start(host.client_command("demo", &["--spin", "600", "--fault-after", "1"]));
    host.listed(culprit.pid());
    incident(&host, "gpu_fault", |one| one["state"] == "open");
    victim.signal(Signal::CONT);
    let fault = incident(&host, "gpu_fault", |one| recovered(one) && one["affected"][0].is_object());
    assert_eq!(affected(&fault), sorted(&[&victim, &culprit]), "{fault}");
    assert_eq!((&fault["unaffected"], &fault["severity"]), (&json!(0), &json!("error")), "{fault}");
    assert_eq!(
        fault["suspected"],
        json!([]),
        "that MPS names the one who connected first says nothing: {fault}"
    );
    assert_eq!(fault["fault"]["named_by_mps"], json!([victim.pid()]), "{fault}");
    culprit.ended();
    let said =
        ["was opened", "has ended"].map(|what| format!("incident {} (gpu_fault) {what}: ", fault["id"]));
    eventually("the log has both", || said.iter().all(|said| host.log().contains(said)).then_some(()));
    let shown = host.cli(&["incident", "get", &fault["id"].to_string()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let last = format!("Affected:    process {} of demo: simulated-mps, uid 0, 145 MiB, ", culprit.pid());
    let parts =
        [last.as_str(), "hint: connected last, ", "no evidence: server.log names it", "Xid 31: memory fault"];
    for part in parts.into_iter().chain(["Recovered:", "What to do:", "GPU 0 (GPU-"]) {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let beginning = format!(" {}: Fatal GPU fault on gpu0", fault["id"]);
    let names_it = |words: &[&str]| {
        let shown = String::from_utf8_lossy(&host.cli(words).stdout).into_owned();
        let mut lines = shown.lines().filter(|line| line.starts_with("Incident:"));
        lines.any(|line| line.contains(&beginning) && line.ends_with(" (recovered)"))
    };
    for words in [["daemon", "get", "gpu0"], ["tenant", "get", "batch"], ["gpu", "get", "0"]] {
        assert!(names_it(&words), "{words:?}");
    }
    assert!(!names_it(&["gpu", "get", "1"]));
    let status = host.cli(&["status"]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains("Incidents") && text.contains("Fatal GPU fault"), "{text}");
    let console = page(&host, "/");
    assert!(console.contains("Fatal GPU fault") && console.contains("View incident"), "{console}");
    for at in ["/daemons/gpu0", "/tenants/batch", "/gpus/0", "/incidents"] {
        assert!(page(&host, at).contains("Fatal GPU fault"), "{at}");
    }
    let acknowledged = host.cli(&["incident", "acknowledge", &fault["id"].to_string(), "--note", "seen"]);
    assert!(acknowledged.status.success(), "{}", stderr_of(&acknowledged));
    assert!(!page(&host, "/").contains("View incident"), "it recovered, and was acknowledged");
    assert!(!names_it(&["daemon", "get", "gpu0"]));
}

/// Three clients of four kinds of faults, the culprit the last, the first and in between.
#[test]
fn evidence_of_faults_suspects_no_innocent() {
    let host = Host::ready();
    let kinds = [
        ("trap", 1, vec!["Xid 43"]),
        ("misaligned", 0, vec!["Xid 13: Misaligned Address (GPC 1, TPC 3, SM 0)", "Xid 43"]),
        ("stack", 2, vec!["Xid 13: Out Of Range Address (GPC 1, TPC 3, SM 0)", "Xid 43"]),
        (
            "address",
            2,
            vec!["Xid 31: memory fault of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE at 0x0_dead0000 (GPC 1)"],
        ),
    ];
    for (number, (kind, place, errors)) in (1..).zip(kinds) {
        let clients: Vec<Client> = (0..3)
            .map(|at| {
                let faults = ["--spin", "600", "--fault-after", "2", "--fault-kind", kind];
                let words: &[&str] = if at == place { &faults } else { &["--spin", "600"] };
                let client =
                    Client::start(host.client_command(if at == 1 { "demo" } else { "batch" }, words));
                host.listed(client.pid());
                client
            })
            .collect();
        let is_it = |one: &Value| recovered(one) && one["id"] == number && one["affected"][2].is_object();
        let fault = incident(&host, "gpu_fault", is_it);
        assert_eq!(affected(&fault), sorted(&[&clients[0], &clients[1], &clients[2]]), "{fault}");
        let suspected: Vec<&Value> =
            fault["suspected"].as_array().expect("suspects").iter().map(|one| &one["pid"]).collect();
        if kind == "trap" {
            assert_eq!(suspected, [&json!(clients[place].pid())], "{fault}");
            assert_eq!(fault["affected"][0]["pid"], clients[place].pid(), "it stands first: {fault}");
        } else {
            assert!(suspected.is_empty(), "{kind}: {fault}");
        }
        if kind == "misaligned" {
            assert_eq!(
                fault["affected"][0]["pid"],
                clients[place].pid(),
                "its context ended with it: {fault}"
            );
        }
        let seen = fault["fault"]["gpu_errors"].as_array().expect("errors").len();
        assert_eq!(seen, errors.len(), "{kind}: {fault}");
        let shown = host.cli(&["incident", "get", &fault["id"].to_string()]);
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let console = page(&host, &format!("/incidents/{}", fault["id"]));
        for error in errors {
            assert!(shown.contains(error) && console.contains(error), "{kind}: {error}: {shown}");
        }
        let presence = format!("its tenant was there in {number} of this GPU's last {number} faults");
        assert_eq!(shown.contains(&presence), number > 1, "{shown}");
        for mut client in clients {
            client.ended();
        }
    }
}

#[test]
fn fault_hits_tenants_with_or_without_poll() {
    let host = InProcess::ready();
    let victim = host.client("batch");
    let culprit = Client::start(host.client_command("demo", &["--spin", "600", "--fault-after", "1"]));
    host.listed(culprit.pid());
    let fault = incident(&host, "gpu_fault", |one| recovered(one) && one["affected"][1].is_object());
    assert_eq!(affected(&fault), sorted(&[&victim, &culprit]), "{fault}");
    assert_eq!(fault["tenants"], json!(["batch", "demo"]), "{fault}");
    assert!(fault["time_to_recovery_ms"].as_i64().is_some_and(|ms| ms < 30_000), "{fault}");
    let of_batch = host.api().with_token(Some(&create(&host, "b", "tenant:batch")));
    assert_eq!(of_batch.get("/api/v1/incidents").ok()["items"][0]["id"], fault["id"]);
}

#[test]
fn killed_server_and_drift_are_incidents_that_recover() {
    let host = InProcess::ready();
    let client = host.client("demo");
    signal(host.server_pid("gpu0"), Signal::KILL);
    let died = incident(&host, "server_died", recovered);
    assert_eq!((affected(&died), &died["tenants"]), (sorted(&[&client]), &json!(["demo"])), "{died}");
    // Its page shows its events, and theirs lead back to it.
    let at = format!("/incidents/{}", died["id"]);
    assert!(page(&host, &at).contains("<code>server.died</code>"), "{died}");
    let event = page(&host, &format!("/events/{}", died["events"][0]));
    assert!(event.contains(&format!("href=\"{at}\"")), "{event}");
    host.await_ready();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    let drift = incident(&host, "drift", recovered);
    let detail = drift["detail"].as_str().expect("text");
    assert!(detail.contains("default active thread percentage is 30 % instead of 50 %"), "{drift}");
    assert_eq!((&drift["severity"], &drift["affected"]), (&json!("warning"), &json!([])));
}

#[test]
fn tenant_sees_its_incident_without_others() {
    let host = InProcess::ready();
    let (own, other) = (host.client("demo"), host.client("batch"));
    signal(host.server_pid("gpu0"), Signal::KILL);
    let died = incident(&host, "server_died", recovered);
    let path = format!("/api/v1/incidents/{}", died["id"]);
    host.api().post(&format!("{path}/acknowledge"), &json!({"note": "secret"})).ok();
    let of_demo = host.api().with_token(Some(&create(&host, "d", "tenant:demo")));
    let seen = of_demo.get(&path).ok();
    assert_eq!((affected(&seen), &seen["tenants"]), (sorted(&[&own]), &json!(["demo"])), "{seen}");
    let text = seen.to_string();
    assert!(!text.contains(&other.pid().to_string()) && !text.contains("batch"), "{text}");
    assert!(!text.contains("secret") && seen["acknowledged"]["by"].is_null(), "{text}");
    assert_eq!((&seen["suspected"], &seen["unaffected"]), (&json!([]), &json!(null)));
    assert_eq!(of_demo.get("/api/v1/incidents").ok()["items"].as_array().expect("items").len(), 1);
    assert_eq!(of_demo.get("/api/v1/incidents?tenant=batch").ok()["items"], json!([]));
    of_demo.post(&format!("{path}/acknowledge"), &json!({})).problem(403, "forbidden");
    // One that it did not hit does not exist for it.
    host.await_ready();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    let drift = incident(&host, "drift", recovered);
    of_demo.get(&format!("/api/v1/incidents/{}", drift["id"])).problem(404, "not-found");
    let events = of_demo.get("/api/v1/events?type=incident.opened").ok()["items"].clone();
    assert_eq!(events.as_array().expect("items").len(), 1, "{events}");
    assert_eq!(events[0]["details"]["tenants"], json!([]), "{events}");
    // A tenant that takes the name later has nothing to do with it.
    assert_eq!(host.api().delete("/api/v1/tenants/demo").status, 204);
    assert_eq!(host.api().tenant("demo", &json!({"daemon": "gpu0", "uid": 0})).status, 201);
    let next = host.api().with_token(Some(&create(&host, "e", "tenant:demo")));
    assert_eq!(next.get("/api/v1/incidents").ok()["items"], json!([]));
}

#[test]
fn recreated_tenant_shows_no_earlier_incident() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    client.ended();
    incident(&host, "daemon_died", recovered);
    let shows_it = || page(&host, "/tenants/demo").contains("control daemon died");
    assert!(shows_it());
    assert_eq!(host.api().delete("/api/v1/tenants/demo").status, 204);
    assert_eq!(host.api().tenant("demo", &json!({"daemon": "gpu1", "uid": 0})).status, 201);
    assert!(!shows_it());
}

#[test]
fn second_acknowledgement_names_the_first() {
    let host = InProcess::ready();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    let drift = incident(&host, "drift", recovered);
    let path = format!("/api/v1/incidents/{}/acknowledge", drift["id"]);
    let note = json!({"note": "a script of ours"});
    let rehearsed = host.api().post(&format!("{path}?dry_run=true"), &note).ok();
    assert_eq!(rehearsed["acknowledged"]["note"], "a script of ours");
    let key = [("idempotency-key", "one")];
    let first = host.api().send(Method::POST, &path, &key, Some(note.to_string())).ok();
    assert_eq!(first["acknowledged"]["note"], "a script of ours", "{first}");
    assert_eq!(
        host.api().send(Method::POST, &path, &key, Some(note.to_string())).ok(),
        first,
        "the same request"
    );
    let problem = host.api().post(&path, &json!({})).problem(409, "conflict");
    let detail = problem["detail"].as_str().expect("text");
    assert!(detail.contains("was acknowledged by") && detail.contains(" at 20"), "{detail}");
    let events = host.api().get("/api/v1/events?type=incident.acknowledged").ok()["items"].clone();
    assert_eq!(events.as_array().expect("items").len(), 1, "{events}");
    let long = json!({"note": "x".repeat(1001)});
    host.api().post(&path, &long).problem(422, "invalid-request");
    host.api().post("/api/v1/incidents/999/acknowledge", &json!({})).problem(404, "not-found");
    let list = |query: &str| {
        let list = host.api().get(&format!("/api/v1/incidents?{query}")).ok()["items"].clone();
        list.as_array().expect("items").len()
    };
    assert_eq!((list("acknowledged=true"), list("acknowledged=false"), list("state=open")), (1, 0, 0));
    assert_eq!((list("gpu=0"), list("gpu=1"), list("daemon=gpu0&since=2020-01-01T00:00:00Z")), (1, 0, 1));
}

#[test]
fn bypass_without_its_directory_names_its_tenant() {
    let host = Host::ready();
    let mut command = host.client_command("batch", &["--spin", "600"]);
    let missing = host.dir().join("not/mounted/here");
    command.env("CUDA_MPS_PIPE_DIRECTORY", &missing);
    let _outside = Client::start(command);
    let open = incident(&host, "bypass", |one| one["state"] == "open");
    assert_eq!(open["tenants"], json!(["batch"]), "by its environment and its user: {open}");
    let condition = eventually("the condition says both", || {
        let conditions = host.daemon("gpu0")["status"]["conditions"].clone();
        conditions.as_array()?.iter().find(|one| one["type"] == "Bypass").cloned()
    });
    let message = condition["message"].as_str().expect("text");
    let words = format!("which reaches no directory {}, its", missing.display());
    assert!(message.contains(&words) && message.contains("hand the tenant's directory"), "{message}");
}

#[test]
fn process_outside_mps_is_an_incident() {
    let mut host = Host::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
    let outside = Client::start(command);
    let open = incident(&host, "bypass", |one| one["state"] == "open");
    assert_eq!(open["suspected"][0]["pid"], outside.pid(), "{open}");
    let status = host.cli(&["status"]);
    assert_eq!(status.status.code(), Some(1), "an incident is open");
    let listed = host.cli(&["incident", "list", "--open"]);
    assert_eq!(listed.status.code(), Some(1));
    // It ends while no manager runs: the next one says so.
    host.end_manager(Signal::KILL);
    drop(outside);
    host.serve();
    let over = incident(&host, "bypass", recovered);
    assert_eq!(over["id"], open["id"]);
    assert_eq!(host.cli(&["incident", "list", "--open"]).status.code(), Some(0));
}

/// Three that come and go within the minute in which one event is written of them.
#[test]
fn each_bypass_has_its_incident_open() {
    let host = Host::ready();
    for round in 1..=3 {
        let mut command = host.client_command("demo", &["--spin", "600"]);
        command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
        let outside = Client::start(command);
        let open = incident(&host, "bypass", |one| one["state"] == "open" && one["occurrences"] == round);
        let suspected = open["suspected"].as_array().expect("suspects");
        let present: Vec<&Value> = suspected.iter().filter(|one| one["has_ended"] == false).collect();
        assert_eq!(present.len(), 1, "{open}");
        assert_eq!(present[0]["pid"], outside.pid(), "{open}");
        drop(outside);
        let over = incident(&host, "bypass", |one| recovered(one) && one["occurrences"] == round);
        assert_eq!(over["id"], open["id"], "{over}");
    }
    let written = host.api().get("/api/v1/events?type=bypass.").ok()["items"].clone();
    let mut kinds: Vec<&str> =
        written.as_array().expect("items").iter().filter_map(|one| one["type"].as_str()).collect();
    kinds.sort_unstable();
    assert_eq!(kinds, ["bypass.appeared", "bypass.ended"], "two events a minute");
}

#[test]
fn client_that_mps_refuses_is_an_incident() {
    let host = InProcess::ready();
    let start = |_| {
        let mut command = host.client_command("demo", &["--spin", "600"]);
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", "32");
        Client::start(command)
    };
    let _clients: Vec<Client> = (0..5).map(start).collect();
    let refused = incident(&host, "client_refused", recovered);
    assert_eq!((&refused["daemon"], &refused["affected"]), (&json!("gpu0"), &json!([])), "{refused}");
    assert!(refused["remedy"].as_str().expect("text").contains("run --wait"), "{refused}");
}

#[test]
fn unanswered_termination_is_an_incident() {
    let host = InProcess::configured("control_deadline_s = 2");
    let mut client = host.stopping_client("demo");
    let id = host.listed(client.pid())["id"].as_str().expect("an ID").to_owned();
    let terminate = host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    assert_eq!(host.api().outcome(&terminate)["state"], "failed");
    let open = incident(&host, "unknown_outcome", |one| one["state"] == "open");
    assert_eq!((&open["suspected"][0]["pid"], &open["tenants"]), (&json!(client.pid()), &json!(["demo"])));
    client.signal(Signal::CONT);
    client.ended();
    let over = incident(&host, "unknown_outcome", recovered);
    assert_eq!(over["id"], open["id"]);
}

#[test]
fn missing_gpu_is_shown_once_until_back() {
    let host = InProcess::ready();
    let gpu = host.api().get("/api/v1/gpus").ok()["items"][1]["uuid"].as_str().expect("a UUID").to_owned();
    let mark = host.runtime("sim/gpus").join(&gpu).join("lost");
    std::fs::write(&mark, "").expect("marked");
    let open = incident(&host, "gpu_missing", |one| one["state"] == "open");
    assert_eq!((&open["daemon"], &open["gpus"]), (&json!("gpu1"), &json!([gpu])), "{open}");
    let console = page(&host, "/");
    assert!(
        console.contains("of gpu1 is no longer listed by the driver") && console.contains("1 incident open"),
        "{console}"
    );
    assert!(!console.contains("Daemon gpu1: blocked"), "the banner says so already: {console}");
    std::fs::remove_file(&mark).expect("unmarked");
    assert_eq!(incident(&host, "gpu_missing", recovered)["id"], open["id"]);
}

#[test]
fn incidents_are_filtered_in_the_console() {
    let host = InProcess::ready();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    incident(&host, "drift", recovered);
    let shown = |query: &str| page(&host, &format!("/incidents?{query}")).contains("Another program changed");
    assert!(shown("acknowledged=no") && shown("state=recovered&tenant="));
    assert!(!shown("acknowledged=yes") && !shown("tenant=demo"));
}

#[test]
fn several_incidents_are_acknowledged_at_once() {
    let host = InProcess::ready();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    let first = incident(&host, "drift", recovered)["id"].to_string();
    signal(host.daemon_pid("gpu1"), Signal::KILL);
    let second = incident(&host, "daemon_died", recovered)["id"].to_string();
    // One that is refused does not keep the others from it.
    let done = host.cli(&["incident", "acknowledge", "999", &first, &second, "--note", "seen"]);
    assert_eq!(done.status.code(), Some(2), "{}", stderr_of(&done));
    assert!(stderr_of(&done).contains("incident 999 was not acknowledged: "), "{}", stderr_of(&done));
    let left = host.api().get("/api/v1/incidents?acknowledged=false").ok();
    assert_eq!(left["items"], json!([]), "{left}");
    let again = host.cli(&["incident", "acknowledge", &first, &second]);
    assert_eq!(again.status.code(), Some(1), "{}", stderr_of(&again));
    for id in [&first, &second] {
        let complaint = format!("incident {id} was not acknowledged: ");
        assert!(stderr_of(&again).contains(&complaint), "{}", stderr_of(&again));
    }
}

#[test]
fn client_that_escapes_its_limit_is_a_breach() {
    let host = Host::ready();
    // An entry for a GPU that the client cannot see drops every limit.
    let mut command = host.client_command("demo", &["--spin", "600", "--alloc", "16384"]);
    command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "7=100G");
    let client = Client::start(command);
    assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
    let open = incident(&host, "breach", |one| one["state"] == "open");
    assert_eq!((&open["suspected"][0]["pid"], &open["tenants"]), (&json!(client.pid()), &json!(["demo"])));
    assert_eq!(open["suspected"][0]["program"], "simulated-mps");
    let summary = open["summary"].as_str().expect("text");
    assert!(summary.contains("of demo holds more memory on gpu0 than its limit allows"), "{summary}");
    drop(client);
    incident(&host, "breach", recovered);
}

/// A process in a mount namespace of its own, ended and reaped with this value.
struct Contained(Child);

impl Contained {
    /// One in which the script was run before.
    fn start(script: &str) -> Self {
        let script = format!("{script} && exec sleep 600");
        Self(Command::new("unshare").args(["--mount", "sh", "-c", &script]).spawn().expect("unshare"))
    }
}

impl Drop for Contained {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn mounted_daemon_directory_is_an_incident() {
    if !may_mount() {
        return;
    }
    let mut host = Host::ready();
    let mounted = host.dir().join("mounted");
    std::fs::create_dir(&mounted).expect("made");
    // It has a copy of all mounts of the host, and none of the directory.
    let _private = Contained::start("true");
    let tenant = host.api().get("/api/v1/tenants/demo/environment").ok();
    let own = tenant["container"]["mount"].as_str().expect("a path");
    let _client = Contained::start(&format!("mount --bind {own} {}", mounted.display()));
    let pipe = host.runtime("daemons/gpu0/pipe");
    let container = Contained::start(&format!("mount --bind {} {}", pipe.display(), mounted.display()));
    let open = incident(&host, "socket_exposed", |one| one["state"] == "open");
    let suspected = open["suspected"].as_array().expect("processes");
    let pids: Vec<u64> = suspected.iter().map(|one| one["pid"].as_u64().expect("a PID")).collect();
    assert_eq!(pids, [u64::from(container.0.id())], "{open}");
    assert_eq!((&open["daemon"], &open["severity"]), (&json!("gpu0"), &json!("warning")));
    let summary = open["summary"].as_str().expect("text");
    assert!(summary.contains(&format!("has it at {}", mounted.display())), "{summary}");
    assert!(open["remedy"].as_str().expect("text").contains("container.mount"), "{open}");

    // A second one comes and goes.
    let both = |one: &Value| one["suspected"].as_array().is_some_and(|pids| pids.len() == 2);
    let other = Contained::start(&format!("mount --bind {} {}", pipe.display(), mounted.display()));
    incident(&host, "socket_exposed", both);
    drop(other);
    let has_one_left = |one: &Value| both(one) && one["suspected"][1]["has_ended"] == true;
    let one_left = incident(&host, "socket_exposed", has_one_left);
    assert_eq!(one_left["suspected"][0]["has_ended"], false, "{one_left}");
    assert_eq!(one_left["summary"], open["summary"]);

    // It ends while no manager runs: the next one says so.
    host.end_manager(Signal::KILL);
    drop(container);
    host.serve();
    assert_eq!(incident(&host, "socket_exposed", recovered)["id"], open["id"]);
    let all = host.api().get("/api/v1/events?type=exposure.").ok()["items"].clone();
    let kinds: Vec<&str> =
        all.as_array().expect("items").iter().map(|one| one["type"].as_str().expect("text")).collect();
    let detected = "exposure.detected";
    assert_eq!(kinds, ["exposure.ended", detected, detected, detected], "{all}");

    // The directory around those of all daemons is each one's.
    let runtime = host.runtime("");
    let all_mounted = Contained::start(&format!("mount --bind {} {}", runtime.display(), mounted.display()));
    for daemon in ["gpu0", "gpu1"] {
        let is_it = |one: &Value| one["state"] == "open" && one["daemon"] == daemon;
        incident(&host, "socket_exposed", is_it);
    }
    drop(all_mounted);
    for daemon in ["gpu0", "gpu1"] {
        incident(&host, "socket_exposed", |one| recovered(one) && one["daemon"] == daemon);
    }
}

#[test]
fn mounted_directory_of_adopted_daemon_is_an_incident() {
    if !may_mount() {
        return;
    }
    let (host, foreign, _client): (InProcess, _, _) = beside_another();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    host.await_phase("theirs", "observed");
    let mounted = host.dir().join("mounted");
    std::fs::create_dir(&mounted).expect("made");
    let pipe = foreign.pipe();
    let around = pipe.parent().expect("a directory around it");
    let _container = Contained::start(&format!("mount --bind {} {}", around.display(), mounted.display()));
    incident(&host, "socket_exposed", |one| one["state"] == "open" && one["daemon"] == "theirs");
}
