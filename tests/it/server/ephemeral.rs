//! Tenants for a time: ensured again and again, expired, collected, and taken down with what still runs in them.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use mps_manager::domain::rfc3339;
use reqwest::Method;
use serde_json::{Value, json};

use super::host_file::{changes, exported};
use super::log_pages::page;
use crate::harness::{InProcess, Served, command_line, eventually, is_alive, stderr_of, unix_ms};

const WEB: &str = "/api/v1/tenants/web";
/// What a poll of a daemon leaves in its log.
const POLLED: &str = "Cmd:ps";

/// The time in so many milliseconds.
fn in_ms(ms: i64) -> String {
    rfc3339::format(jiff::Timestamp::now().as_millisecond() + ms)
}

fn until(expires_at: &str) -> Value {
    json!({"daemon": "gpu1", "uid": rustix::process::geteuid().as_raw(), "expires_at": expires_at})
}

fn stdout_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn ensure(host: &Served, words: &[&str]) -> Output {
    host.cli(&[&["tenant", "ensure", "job-1"][..], words].concat())
}

#[track_caller]
fn said(output: &Output, code: i32) -> String {
    let text = format!("{}{}", stdout_of(output), stderr_of(output));
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

fn await_gone(host: &Served, path: &str) {
    eventually("the tenant is gone", || (host.api().get(path).status == 404).then_some(()));
}

/// A tenant without processes that expired later than another one: once it is gone, the other was looked at too.
fn await_collection(host: &Served) {
    assert_eq!(host.api().tenant("later", &until(&in_ms(1_000))).status, 201);
    await_gone(host, "/api/v1/tenants/later");
}

/// Waits until a tenant has expired, and gives what it says of that.
fn await_expiry(host: &Served) -> String {
    eventually("the tenant has expired", || {
        let conditions = host.api().get(WEB).ok()["status"]["conditions"].clone();
        let ready =
            conditions.as_array().expect("conditions").iter().find(|one| one["type"] == "Ready")?.clone();
        let has_expired = ready["reason"] == "Expired" && ready["status"] == false;
        has_expired.then(|| ready["message"].as_str().expect("a message").to_owned())
    })
}

#[test]
fn ensured_twice_only_the_expiry_changes() {
    let host = InProcess::ready();
    let words = ["--gpu", "1", "--memory-limit", "4G", "--label", "job=1", "--ttl", "48h"];
    let made = said(&ensure(&host, &words), 0);
    assert!(made.starts_with("tenant job-1 was created: GPUs GPU 1 ("), "{made}");
    assert!(made.contains(", memory limit 4 GiB, label job 1, expiry 2"), "{made}");
    assert!(made.ends_with("; it is ready\n"), "{made}");
    let first = host.api().get("/api/v1/tenants/job-1").ok();
    assert_eq!((&first["spec"]["daemon"], &first["generation"]), (&json!("gpu1"), &json!(1)));
    let lives = unix_ms(&first["spec"]["expires_at"]) - unix_ms(&first["created_at"]);
    assert!((47 * 3_600_000..=49 * 3_600_000).contains(&lives), "{lives}");

    let changes = host.changes("gpu1");
    let again = said(&ensure(&host, &words), 0);
    assert!(
        again.starts_with("tenant job-1 was changed: expiry ") && again.ends_with("; it is ready\n"),
        "{again}"
    );
    let second = host.api().get("/api/v1/tenants/job-1").ok();
    assert_eq!(second["generation"], 2);
    assert!(unix_ms(&second["spec"]["expires_at"]) > unix_ms(&first["spec"]["expires_at"]));
    let without_expiry = |tenant: &Value| {
        let mut spec = tenant["spec"].clone();
        spec.as_object_mut().expect("fields").remove("expires_at");
        spec
    };
    assert_eq!(without_expiry(&second), without_expiry(&first));
    assert_eq!(host.changes("gpu1"), changes, "nothing is written to the daemon");

    let rehearsed = said(&ensure(&host, &["--daemon", "gpu1", "--sms", "32", "--dry-run"]), 0);
    assert!(rehearsed.starts_with("tenant job-1 would be changed: "), "{rehearsed}");
    assert!(rehearsed.contains("memory limit 4 GiB -> (default)"), "{rehearsed}");
    assert_eq!(host.api().get("/api/v1/tenants/job-1").ok()["spec"], second["spec"], "nothing was changed");

    // What is not given is not kept.
    let less = said(&ensure(&host, &["--daemon", "gpu1", "--sms", "32"]), 0);
    assert!(less.contains("memory limit 4 GiB -> (default)") && less.contains(" -> (none)"), "{less}");
    let spec = host.api().get("/api/v1/tenants/job-1").ok()["spec"].clone();
    assert_eq!((&spec["sms"], &spec["labels"], &spec["expires_at"]), (&json!(32), &json!({}), &Value::Null));
    assert!(said(&ensure(&host, &["--gpu", "1", "--gpu", "0"]), 2).contains("name GPUs of one daemon"));
}

#[test]
fn ensure_ends_in_time_and_says_why() {
    let mut host = InProcess::new("");
    let words = ["--daemon", "gpu1", "--timeout", "300ms"];
    assert!(said(&ensure(&host, &words), 2).contains("api.sock cannot be reached"));
    host.serve();
    host.await_ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=0", &json!({})));
    let stopped = said(&ensure(&host, &["--daemon", "gpu1", "--timeout", "2s"]), 1);
    assert!(stopped.contains("tenant job-1 is not ready after 2 s: daemon gpu1"), "{stopped}");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/start", &json!({})));
    said(&ensure(&host, &["--daemon", "gpu1"]), 0);
    let several = said(&ensure(&host, &[]), 2);
    assert!(several.contains("name one with --daemon (gpu0, gpu1)"), "{several}");
}

#[test]
fn expired_tenant_without_processes_is_collected() {
    let host = InProcess::ready();
    let at = in_ms(1_500);
    let made = host.api().tenant("web", &until(&at));
    assert_eq!((made.status, &made.json()["spec"]["expires_at"]), (201, &json!(at)));
    let environment = host.api().get(&format!("{WEB}/environment")).ok();
    let directory = environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().expect("a path").to_owned();
    await_gone(&host, WEB);
    let events = host.events("&type=tenant.deleted");
    let [deleted] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(deleted["message"], format!("tenant web expired at {at} and was deleted"));
    assert_eq!(
        (&deleted["cause"], &deleted["subject"]["daemon"]),
        (&json!({"by": "manager"}), &json!("gpu1"))
    );
    let row = host.api().get("/api/v1/audit?target=tenants/web&limit=1").ok()["items"][0].clone();
    assert_eq!(
        (&row["actor"], &row["action"], &row["outcome"], &row["after"]),
        (&json!("manager"), &json!("expire"), &json!("done"), &Value::Null)
    );
    assert!(row["before"].as_str().expect("a spec").contains(&at), "{row}");
    // A shell that has its path would go past MPS without the socket in it.
    await_collection(&host);
    assert!(Path::new(&directory).join("control").exists(), "{directory}");
}

#[test]
fn expired_tenant_admits_nobody_and_keeps_its_client() {
    let host = InProcess::ready();
    let permanent = json!({"daemon": "gpu1", "uid": rustix::process::geteuid().as_raw()});
    assert_eq!(host.api().tenant("web", &permanent).status, 201);
    host.await_ready();
    let mut client = host.client("web");
    assert_eq!(host.api().tenant("web", &until(&in_ms(1_000))).status, 200);
    let why = await_expiry(&host);
    assert!(why.contains("tenant web expired at ") && why.contains("tenant set web --ttl 24h"), "{why}");

    let refused = host.api().get(&format!("{WEB}/environment")).problem(409, "conflict");
    assert_eq!(refused["detail"], why.as_str());
    let recorded = json!({"kind": "recorded", "pid": client.pid()});
    let refused = host.api().post(&format!("{WEB}/leases"), &recorded).problem(409, "conflict");
    assert_eq!(refused["detail"], why.as_str());
    for words in [&["run", "--tenant", "web", "--wait", "60s", "--", "true"][..], &["env", "web"]] {
        let output = host.cli(words);
        assert!(!output.status.success() && stderr_of(&output).contains(&why), "{}", stderr_of(&output));
    }
    await_collection(&host);
    assert_eq!(host.api().get(WEB).status, 200, "it has a client");
    assert!(client.is_running());

    // Renewed, it is as before; expired again, it goes with its client.
    assert_eq!(host.api().tenant("web", &permanent).status, 200);
    assert_eq!(host.api().get(WEB).ok()["spec"].get("expires_at"), None);
    assert_eq!(host.run("web", &["true"]).status.code(), Some(0));
    assert_eq!(host.api().tenant("web", &until(&in_ms(1_000))).status, 200);
    await_expiry(&host);
    drop(client);
    await_gone(&host, WEB);
}

/// A program of a tenant that never becomes a client.
fn leased(host: &Served) -> Child {
    let child = host.run_command("web", &["sleep", "600"]).spawn().expect("it starts");
    eventually("it has a lease and is its command", || {
        let held = host.api().get(&format!("{WEB}/leases")).ok()["items"].as_array().expect("items").clone();
        let is_command = command_line(child.id()).first().is_some_and(|word| word == "sleep");
        (is_command && held.iter().any(|lease| lease["pid"] == child.id())).then_some(())
    });
    child
}

/// A host with the tenant `web`, which stays.
fn with_tenant() -> InProcess {
    let host = InProcess::ready();
    assert_eq!(
        host.api()
            .tenant("web", &json!({"daemon": "gpu1", "uid": rustix::process::geteuid().as_raw()}))
            .status,
        201
    );
    host.await_ready();
    host
}

#[test]
fn forced_deletion_ends_clients_and_is_repeatable() {
    let host = with_tenant();
    let (mut client, mut other) = (host.run_client("web"), host.run_client("demo"));
    host.listed(client.pid());
    let mut sleeper = leased(&host);
    let left = said(&host.cli(&["tenant", "delete", "web", "--drain", "1s"]), 1);
    for part in [
        "tenant web was not deleted",
        &format!("client {} (", client.pid()),
        &format!("process {} (", sleeper.id()),
        "tenant set web --unset ttl",
    ] {
        assert!(left.contains(part), "{left}");
    }
    assert!(client.is_running());
    let deleted = said(&host.cli(&["tenant", "delete", "web", "--drain", "0", "--force"]), 0);
    assert!(deleted.contains("tenant web was deleted\n") && deleted.contains("was revoked"), "{deleted}");
    client.ended();
    assert!(other.is_running() && is_alive(sleeper.id()));
    host.api().get(WEB).problem(404, "not-found");
    assert_eq!(host.logged("gpu1", "Cmd:terminate_client"), 1);
    sleeper.kill().expect("it runs");
    sleeper.wait().expect("waited for");

    let again = said(&host.cli(&["tenant", "delete", "web", "--drain", "1s", "--force"]), 0);
    assert!(again.contains("there is no tenant web: nothing was done"), "{again}");
    let json = host.cli(&["tenant", "delete", "web", "--force", "-o", "json"]);
    let answer: Value = serde_json::from_str(&stdout_of(&json)).expect("JSON");
    assert_eq!(answer, json!({"name": "web", "deleted": false}));
    assert!(said(&host.cli(&["tenant", "delete", "web"]), 2).contains("there is no tenant web"));
}

#[test]
fn drained_tenant_is_deleted_when_its_client_ends() {
    let host = with_tenant();
    let client = host.run_client("web");
    host.listed(client.pid());
    let mut command: Command = host.command(&["tenant", "delete", "web", "--drain", "60s"]);
    let mut waiting = command.stdout(Stdio::null()).spawn().expect("it starts");
    let polls = host.logged("gpu1", POLLED);
    eventually("the daemon is polled while it waits", || {
        (host.logged("gpu1", POLLED) > polls + 2).then_some(())
    });
    assert!(waiting.try_wait().expect("waited for").is_none());
    drop(client);
    let status = eventually("it ends", || waiting.try_wait().expect("waited for"));
    assert_eq!(status.code(), Some(0));
    host.api().get(WEB).problem(404, "not-found");
}

fn directory_of_web(host: &Served) -> String {
    let environment = host.api().get(&format!("{WEB}/environment")).ok();
    environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().expect("a path").to_owned()
}

fn socket_in(directory: &str) -> u64 {
    std::fs::metadata(Path::new(directory).join("control")).expect("a socket").ino()
}

#[test]
fn interrupted_drain_shows_and_can_be_taken_back() {
    let host = with_tenant();
    let mut client = host.run_client("web");
    host.listed(client.pid());
    let directory = directory_of_web(&host);
    let socket = || socket_in(&directory);
    let open = socket();
    let mut command: Command = host.command(&["tenant", "delete", "web", "--drain", "60s"]);
    let mut waiting = command.stdout(Stdio::null()).spawn().expect("it starts");
    let why = await_expiry(&host);
    waiting.kill().expect("it runs");
    waiting.wait().expect("waited for");
    assert!(why.contains("or none (--unset ttl)"), "{why}");
    eventually("a placeholder is in its place", || (socket() != open).then_some(()));
    let refused = host.cli(&["run", "--tenant", "web", "--", "true"]);
    assert!(said(&refused, 2).contains(&why));
    assert!(client.is_running());

    let kept = said(&host.cli(&["tenant", "set", "web", "--unset", "ttl"]), 0);
    assert!(kept.contains("it is ready"), "{kept}");
    eventually("the daemon's socket is back", || (socket() == open).then_some(()));
    assert_eq!(host.run("web", &["true"]).status.code(), Some(0));
    assert!(client.is_running());

    let mut command: Command = host.command(&["tenant", "delete", "web", "--drain", "60s"]);
    let waiting = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    await_expiry(&host);
    said(&host.cli(&["tenant", "set", "web", "--unset", "ttl"]), 0);
    let ended = waiting.wait_with_output().expect("waited for");
    assert!(said(&ended, 1).contains("was not deleted: the drain was taken back"));
    assert!(client.is_running());
}

#[test]
fn dry_run_of_drain_changes_nothing() {
    let host = with_tenant();
    let delete = |query: &str| host.api().send(Method::DELETE, &format!("{WEB}?{query}"), &[], None).status;
    let client = host.run_client("web");
    host.listed(client.pid());
    let directory = directory_of_web(&host);
    let open = socket_in(&directory);
    let file = exported(&host);
    assert_eq!(delete("drain=true&dry_run=true"), 204);
    assert_eq!((host.api().get(WEB).ok()["spec"].get("expires_at"), socket_in(&directory)), (None, open));
    assert_eq!(delete("drain=true"), 204);
    assert_ne!(socket_in(&directory), open, "a placeholder, when it is answered");
    assert_eq!(delete("drain=true"), 204);
    let taken_back = changes(&host, &file, "");
    assert!(taken_back.is_empty(), "a file that has the tenant takes no drain back: {taken_back:?}");
    let tenant = host.api().get(WEB).ok();
    assert_eq!(tenant["generation"], 2, "the second changes nothing");
    assert_eq!(tenant["status"]["draining"], true);
    assert!(unix_ms(&tenant["spec"]["expires_at"]) > unix_ms(&tenant["created_at"]));
    drop(client);
    await_gone(&host, WEB);
    assert_eq!(delete("drain=true"), 404);
}

#[test]
fn wrong_expiries_are_refused() {
    let host = InProcess::stopped();
    for (expires_at, words) in [
        (json!(in_ms(-1_000)), "has passed, since it is"),
        (json!("1970-01-01T00:00:00Z"), "give a later time, or leave expires_at out"),
        (json!("tomorrow"), "RFC 3339"),
        (json!(4_070_908_800_000_u64), ""),
    ] {
        let answer = host.api().tenant("web", &json!({"daemon": "gpu1", "uid": 0, "expires_at": expires_at}));
        let problem = answer.problem(422, "invalid-request");
        let error = &problem["errors"][0];
        assert_eq!(error["pointer"], "/expires_at", "{problem}");
        assert!(error["detail"].as_str().expect("a detail").contains(words), "{problem}");
    }
    host.api().get(WEB).problem(404, "not-found");
    // A tenant that lives keeps its expiry.
    assert_eq!(
        host.api()
            .tenant("web", &json!({"daemon": "gpu1", "uid": 0, "expires_at": "2099-01-01T01:00:00+01:00"}))
            .status,
        201
    );
    host.api().tenant("web", &until(&in_ms(-1_000))).problem(422, "invalid-request");
    assert_eq!(host.api().get(WEB).ok()["spec"]["expires_at"], "2099-01-01T00:00:00.000Z");
    assert!(page(&host, "/tenants/web").contains("<dt>Expires</dt>"));
    let file = host.cli(&["export"]);
    assert!(!said(&file, 0).contains("web:"), "it is not desired for good");
}

#[test]
fn task_prolog_and_nomad_job_get_variables() {
    let host = InProcess::ready();
    let view = host.api().get("/api/v1/tenants/demo/environment").ok();
    let directory = view["container"]["mount"].as_str().expect("a directory");
    let printed = said(&host.cli(&["env", "demo", "--format", "taskprolog"]), 0);
    for (name, value) in view["variables"].as_object().expect("variables") {
        let line = format!("export {name}={}", value.as_str().expect("a text"));
        assert!(printed.lines().any(|printed| printed == line), "{line}: {printed}");
    }
    for name in view["unset"].as_array().expect("names") {
        assert!(printed.contains(&format!("unset {}\n", name.as_str().expect("a name"))), "{printed}");
    }
    let world = host.runtime("sim").display().to_string();
    let printed = said(&host.cli(&["env", "demo", "--format", "nomad"]), 0);
    assert!(
        printed.contains(&format!("  volumes = [\"{directory}:{directory}:ro\", \"{world}:{world}\"]\n")),
        "{printed}"
    );
    assert!(printed.contains(&format!("  CUDA_MPS_PIPE_DIRECTORY = \"{directory}\"\n")), "{printed}");
    assert!(page(&host, "/tenants/demo").contains("volumes = ["), "the console has the same");
    let file = |format: &str| said(&host.cli(&["env", "demo", "--format", format]), 0);
    assert!(file("dotenv").contains(&format!("CUDA_MPS_PIPE_DIRECTORY={directory}\n")));
    assert_eq!(file("dotenv"), file("env-file"));
    assert!(said(&host.cli(&["env", "demo", "--format", "hcl"]), 2).contains("hcl"));
}

#[test]
fn directory_of_a_finished_tenant_goes_at_once() {
    let host = InProcess::ready();
    assert_eq!(host.api().tenant("web", &until(&in_ms(3_600_000))).status, 201);
    host.await_ready();
    let environment = host.api().get(&format!("{WEB}/environment")).ok();
    let directory = environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().expect("a path").to_owned();
    said(&host.cli(&["tenant", "delete", "web", "--force", "--finished"]), 0);
    eventually("its directory is gone", || (!Path::new(&directory).exists()).then_some(()));
}
