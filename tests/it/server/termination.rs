//! Ending clients: in the safe order, once, and with the truth when it cannot be.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use super::log_pages::page;
use crate::harness::{Answer, Api, Client, Host, InProcess, Served, eventually, stderr_of};
use mps_manager::host::process::is_stopped;

fn id(host: &Served, pid: u32) -> String {
    host.listed(pid)["id"].as_str().expect("an ID").to_owned()
}

fn terminate(host: &Served, id: &str) -> Answer {
    host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}))
}

#[test]
fn client_is_terminated_without_its_neighbour() {
    let host = InProcess::ready();
    let (mut ended, mut neighbour) = (host.client("demo"), host.client("batch"));
    let operation = host.api().succeeds(&terminate(&host, &id(&host, ended.pid())));
    assert_eq!(operation["request"]["kind"], "terminate_client");
    let steps: Vec<(&str, &str)> = operation["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| (step["name"].as_str().expect("a name"), step["outcome"].as_str().expect("an outcome")))
        .collect();
    assert_eq!(steps[0], ("ask MPS to end its work", "MPS ended its work"));
    assert_eq!(steps[1].0, "end its process");
    assert_eq!(steps[2], ("confirm that it is gone", "its daemon no longer lists it"));
    assert_eq!(steps.len(), 3, "{operation}");
    ended.ended();
    assert!(neighbour.is_running());
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);
    assert_eq!(host.clients().len(), 1);
}

#[test]
fn terminate_command_waits_for_the_end() {
    let host = InProcess::ready();
    let mut client = host.run_client("demo");
    let id = id(&host, client.pid());
    let output = host.cli(&["terminate", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.starts_with(&format!("client {} (demo) was terminated (", client.pid())), "{said}");
    client.ended();
    let again = host.cli(&["terminate", &id]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("there is no client"));
}

#[test]
fn unknown_client_is_not_found() {
    let host = InProcess::ready();
    let me = std::process::id();
    for id in ["1-1".to_owned(), format!("{me}-1")] {
        terminate(&host, &id).problem(404, "not-found");
    }
    terminate(&host, "nonsense").problem(422, "invalid-request");
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 0);
    assert_eq!(host.api().get("/api/v1/operations").ok()["items"], json!([]));
}

#[test]
fn repeated_key_is_one_operation() {
    let host = InProcess::ready();
    let (client, other) = (host.client("demo"), host.client("batch"));
    let post = |path: &str, body: Option<&str>| {
        let headers = [("idempotency-key", "once")];
        host.api().send(Method::POST, path, &headers, body.map(str::to_owned))
    };
    let path = format!("/api/v1/clients/{}/terminate", id(&host, client.pid()));
    let first = post(&path, None);
    let again = post(&path, None);
    assert_eq!((first.status, again.status), (202, 202));
    assert_eq!(first.json()["id"], again.json()["id"]);
    let other = format!("/api/v1/clients/{}/terminate", id(&host, other.pid()));
    post(&other, None).problem(422, "idempotency-key-reused");
    post("/api/v1/daemons/gpu1/restart?grace_s=1", None).problem(422, "idempotency-key-reused");
    host.api().succeeds(&first);
    // Also when the client is long gone: the answer was given.
    assert_eq!(post(&path, None).json()["id"], first.json()["id"]);
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);
    assert_eq!(host.api().get("/api/v1/operations").ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn another_request_under_the_same_key_is_refused() {
    let host = InProcess::ready();
    let restart = |grace: &str| {
        let path = format!("/api/v1/daemons/gpu1/restart?grace_s={grace}");
        host.api().send(Method::POST, &path, &[("idempotency-key", "k")], None)
    };
    let first = restart("1");
    restart("2").problem(422, "idempotency-key-reused");
    assert_eq!(restart("1").json()["id"], first.json()["id"]);
    host.api().succeeds(&first);
    let empty =
        host.api().send(Method::POST, "/api/v1/daemons/gpu1/restart", &[("idempotency-key", "")], None);
    empty.problem(422, "invalid-request");
}

#[test]
fn idempotency_keys_are_separate_per_caller() {
    let host = InProcess::ready();
    let socket = host.api().over(&host.runtime("api.sock"));
    let restart = |api: &Api| {
        api.send(Method::POST, "/api/v1/daemons/gpu1/restart?grace_s=1", &[("idempotency-key", "k")], None)
    };
    let first = restart(host.api());
    let second = restart(&socket);
    assert_eq!((first.status, second.status), (202, 202));
    assert_ne!(first.json()["id"], second.json()["id"]);
    assert_eq!(restart(&socket).json()["id"], second.json()["id"]);
    host.api().succeeds(&first);
    host.api().succeeds(&second);
}

#[test]
fn client_stopping_during_termination_wedges_daemon() {
    let host = InProcess::configured("control_deadline_s = 2");
    let mut client = host.stopping_client("demo");
    let id = id(&host, client.pid());
    let operation = host.api().outcome(&terminate(&host, &id));
    assert_eq!(operation["state"], "failed");
    let error = operation["error"].as_str().unwrap();
    for part in ["did not answer in time", "terminate_client", "may still take effect", "SIGCONT"] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let daemon = host.await_phase("gpu0", "wedged");
    let ready = &daemon["status"]["conditions"][0];
    assert_eq!(
        (&ready["type"], &ready["status"], &ready["reason"]),
        (&json!("Ready"), &json!(false), &json!("Wedged"))
    );
    assert_eq!(host.api().get("/readyz").status, 503);
    let status = host.cli(&["status"]);
    let table = String::from_utf8(status.stdout).unwrap();
    assert_eq!(status.status.code(), Some(1), "{table}");
    assert!(table.contains("Attention:") && table.contains("gpu0: not ready: "), "{table}");
    assert_eq!(host.api().get("/readyz/daemons/gpu1").status, 200, "the other daemon is well");
    assert!(client.is_running());

    client.signal(Signal::CONT);
    client.ended();
    host.await_ready();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1, "it was not sent again");
}

#[test]
fn interrupted_termination_is_reported_not_repeated() {
    let mut host = Host::configured("control_deadline_s = 60");
    let mut client = host.stopping_client("demo");
    let id = id(&host, client.pid());
    let accepted = terminate(&host, &id);
    eventually("it is sent", || (host.logged("gpu0", "Cmd:terminate_client") == 1).then_some(()));
    host.end_manager(Signal::KILL);
    host.serve();
    let operation = host.api().outcome(&accepted);
    assert_eq!(operation["state"], "failed");
    assert!(operation["error"].as_str().unwrap().contains("the manager was restarted"), "{operation}");
    assert!(client.is_running());
    client.signal(Signal::CONT);
    client.ended();
    host.await_ready();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);
}

/// Stops a client and waits until it is.
fn stopped(host: &Served, client: &Client) -> String {
    let id = id(host, client.pid());
    client.signal(Signal::STOP);
    eventually("it is stopped", || is_stopped(client.pid()).then_some(()));
    id
}

#[test]
fn stopped_client_is_not_passed_to_mps() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let id = stopped(&host, &client);
    for dry in ["", "?dry_run=true"] {
        let refused = host.api().post(&format!("/api/v1/clients/{id}/terminate{dry}"), &json!({}));
        let refused = refused.problem(409, "conflict");
        let detail = refused["detail"].as_str().unwrap();
        for part in ["is stopped", "nothing was sent", "stopped=continue", "stopped=kill"] {
            assert!(detail.contains(part), "{part} in {detail}");
        }
    }
    let output = host.cli(&["terminate", &id]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    assert!(stderr_of(&output).contains("stopped=continue"), "{}", stderr_of(&output));
    let page = page(&host, &format!("/clients/{id}/terminate"));
    assert!(page.contains("This client is stopped") && page.contains(r#"value="kill""#), "{page}");
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 0);
    assert!(is_stopped(client.pid()) && client.is_running());
    assert_eq!(host.api().get("/readyz").status, 200, "the daemon answers");
}

#[test]
fn stopped_client_is_continued_or_killed_by_choice() {
    let host = InProcess::ready();
    let (mut continued, mut killed) = (host.client("demo"), host.client("batch"));
    let id = stopped(&host, &continued);
    let output = host.cli(&["terminate", &id, "--stopped", "continue"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    continued.ended();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1);

    let id = stopped(&host, &killed);
    let accepted = host.api().post(&format!("/api/v1/clients/{id}/terminate?stopped=kill"), &json!({}));
    let operation = host.api().succeeds(&accepted);
    assert_eq!(operation["request"]["stopped"], "kill");
    assert_eq!(operation["steps"][0]["outcome"], "it was stopped, and was killed without asking MPS");
    killed.ended();
    assert_eq!(host.logged("gpu0", "Cmd:terminate_client"), 1, "MPS was not asked");
    host.await_ready();
    let bad = host.api().post(&format!("/api/v1/clients/{id}/terminate?stopped=perhaps"), &json!({}));
    bad.problem(422, "invalid-request");
}

#[test]
fn drain_continues_stopped_clients_before_it_ends_them() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    stopped(&host, &client);
    let accepted = host.api().post("/api/v1/daemons/gpu0/drain?timeout_s=0&on_timeout=terminate", &json!({}));
    let operation = host.api().succeeds(&accepted);
    assert_eq!(operation["steps"].as_array().unwrap().last().unwrap()["outcome"], "1 ended");
    client.ended();
    host.await_ready();
}
