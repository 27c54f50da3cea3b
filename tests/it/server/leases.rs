//! Leases: who may hold one, who is ended for one, and how one is revoked.

use std::process::Command;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::log_pages::page;
use super::tokens::create;
use crate::harness::{Api, Host, InProcess, Served, command_line, eventually, is_alive, stderr_of};

const LEASES: &str = "/api/v1/tenants/demo/leases";

/// A process that nobody asked for, ended with this value.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().expect("sleep"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn recorded(pid: u32) -> Value {
    json!({"kind": "recorded", "pid": pid})
}

fn drained(host: &Served) -> Value {
    let drain = "/api/v1/daemons/gpu0/drain?timeout_s=1&on_timeout=terminate";
    host.api().succeeds(&host.api().post(drain, &json!({})))
}

fn last_outcome(operation: &Value) -> String {
    operation["steps"].as_array().unwrap().last().unwrap()["outcome"].as_str().unwrap().to_owned()
}

fn eight_clients(host: &Served) {
    let mut spec = host.api().get("/api/v1/tenants/demo").ok()["spec"].clone();
    (spec["max_clients"], spec["device_memory_limit"]) = (json!(8), json!("1G"));
    assert_eq!(host.api().tenant("demo", &spec).status, 200);
    host.await_ready();
}

/// The local API, whose calls come from this test's process.
fn local(host: &Served) -> Api {
    host.api().over(&host.runtime("api.sock"))
}

#[test]
fn tenant_gets_no_process_killed_by_naming_it() {
    let host = Host::ready();
    eight_clients(&host);
    let mut sleeper = Sleeper::new();
    let secret = create(&host, "dj", "tenant:demo");
    let named = [host.manager_pid(), host.daemon_pid("gpu1"), host.server_pid("gpu0"), sleeper.pid()];
    let callers =
        [host.api().with_token(Some(&secret)), local(&host).with_token(Some(&secret)), local(&host)];
    for pid in named {
        for caller in &callers {
            let refused = caller.post(LEASES, &json!({"pid": pid})).problem(422, "invalid-request");
            assert_eq!(refused["errors"][0]["pointer"], "/pid", "{refused}");
        }
        // An operator may not record what is never a client, and what it records is not signalled.
        let status = host.api().post(LEASES, &recorded(pid)).status;
        assert_eq!(status, if pid == sleeper.pid() { 201 } else { 422 }, "{pid}");
    }
    let outcome = last_outcome(&drained(&host));
    let left = format!("process {}-", sleeper.pid());
    assert!(
        outcome.starts_with("0 ended; not signalled and left running: ") && outcome.contains(&left),
        "{outcome}"
    );
    for pid in named {
        assert!(is_alive(pid), "{pid}");
    }
    assert!(sleeper.0.try_wait().unwrap().is_none());
    assert_eq!(host.api().get("/healthz").status, 200);
}

#[test]
fn recorded_process_is_ended_once_mps_lists_it() {
    let host = InProcess::ready();
    eight_clients(&host);
    let (mut client, sleeper) = (host.client("demo"), Sleeper::new());
    for pid in [client.pid(), sleeper.pid()] {
        assert_eq!(host.api().post(LEASES, &recorded(pid)).status, 201);
    }
    // Both hold up a drain.
    let failed = host.api().outcome(&host.api().post("/api/v1/daemons/gpu0/drain?timeout_s=0", &json!({})));
    let error = failed["error"].as_str().unwrap();
    assert!(error.contains("1 client and 1 other process recorded for a tenant"), "{error}");
    let outcome = last_outcome(&drained(&host));
    assert!(outcome.starts_with("1 ended; ") && outcome.contains(&sleeper.pid().to_string()), "{outcome}");
    client.ended();
    assert!(is_alive(sleeper.pid()));
}

#[test]
fn lease_of_old_release_on_init_is_revoked() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let init = mps_manager::host::process::identify(1).expect("PID 1");
    let boot = mps_manager::host::boot_id().expect("a boot");
    host.execute_sql(&format!(
        "INSERT INTO leases (pid, start_time, boot_id, tenant, created_at) VALUES (1, {}, '{boot}', 'demo', 0)",
        init.start_time
    ));
    host.serve();
    host.await_ready();
    let id = format!("1-{}", init.start_time);
    let held = host.api().get(LEASES).ok();
    let [lease] = held["items"].as_array().unwrap().as_slice() else { panic!("{held}") };
    assert_eq!((&lease["id"], &lease["kind"]), (&json!(id), &json!("recorded")));
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(2), "it takes the place");
    assert!(last_outcome(&drained(&host)).contains("process 1-"));
    host.api().post("/api/v1/daemons/gpu0/uncordon", &json!({})).ok();
    let kept = host.api().delete("/api/v1/tenants/demo").problem(409, "conflict");
    assert!(kept["detail"].as_str().unwrap().contains("revoke their leases"), "{kept}");

    let listed = host.cli(&["lease", "list", "demo"]);
    assert!(stderr_of(&listed).contains(&id) || String::from_utf8_lossy(&listed.stdout).contains(&id));
    let page = page(&host, "/tenants/demo");
    assert!(page.contains(&format!("/tenants/demo/leases/{id}/revoke")), "{page}");
    let output = host.cli(&["lease", "revoke", "demo", &id]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    assert_eq!(host.api().get(LEASES).ok()["items"], json!([]));
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
    assert_eq!(host.api().delete("/api/v1/tenants/demo").status, 204);
}

#[test]
fn lease_has_events_and_audit_rows() {
    let host = InProcess::ready();
    let mut client = host.run_client("demo");
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    let held = host.api().get(LEASES).ok()["items"][0].clone();
    assert_eq!(
        (&held["id"], &held["kind"], &held["is_client"]),
        (&json!(id), &json!("own"), &json!(true)),
        "{held}"
    );
    let path = format!("{LEASES}/{id}");
    assert_eq!(host.api().send(Method::DELETE, &format!("{path}?dry_run=true"), &[], None).status, 204);
    let viewer = host.api().with_token(Some(&create(&host, "v", "viewer")));
    viewer.delete(&path).problem(403, "forbidden");
    assert_eq!(host.api().delete(&path).status, 204);
    host.api().delete(&path).problem(404, "not-found");
    assert!(client.is_running(), "nothing is ended");

    let of = |kind: &str| host.events(&format!("&type={kind}"));
    for (kind, count) in [("lease.granted", 1), ("lease.revoked", 1)] {
        let events = of(kind);
        assert_eq!(events.len(), count, "{events:?}");
        let details = &events[0]["details"];
        assert_eq!((&details["pid"], &details["lease"]), (&json!(client.pid()), &json!("own")), "{details}");
        assert_eq!(
            (&events[0]["subject"]["tenant"], &events[0]["subject"]["client"]),
            (&json!("demo"), &json!(id))
        );
    }
    let rows = host.api().get("/api/v1/audit?limit=1000").ok();
    let target = format!("tenants/demo/leases/{id}");
    let rows: Vec<&Value> = rows["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["target"] == *target && row["outcome"] == "done")
        .collect();
    let [granted, revoked] = {
        let mut rows = rows.clone();
        rows.sort_by_key(|row| row["id"].as_i64());
        <[&Value; 2]>::try_from(rows).expect("two rows")
    };
    let lease: Value = serde_json::from_str(granted["after"].as_str().unwrap()).unwrap();
    assert_eq!((&lease["pid"], &lease["kind"]), (&json!(client.pid()), &json!("own")));
    assert!(
        lease["start_time"].is_u64() && lease["command"].as_str().unwrap().contains("sim client"),
        "{lease}"
    );
    assert_eq!((&granted["before"], &revoked["before"]), (&Value::Null, &granted["after"]));
    assert_eq!(revoked["after"], Value::Null);
}

#[test]
fn lease_revoked_while_it_is_taken_kills_nothing() {
    let host = InProcess::ready();
    eight_clients(&host);
    let mut processes: Vec<_> =
        (0..4).map(|_| host.run_command("demo", &["sleep", "600"]).spawn().expect("started")).collect();
    let mut revoked = 0;
    // Each is revoked as soon as it is listed, most of them before `run` has become its command.
    eventually("each was leased and revoked", || {
        for lease in host.api().get(LEASES).ok()["items"].as_array().unwrap() {
            let status = host.api().delete(&format!("{LEASES}/{}", lease["id"].as_str().unwrap())).status;
            assert_eq!(status, 204);
            revoked += 1;
        }
        (revoked == processes.len()).then_some(())
    });
    for process in &mut processes {
        assert!(process.try_wait().unwrap().is_none(), "it runs on");
    }
    assert_eq!(last_outcome(&drained(&host)), "no client is connected, and no lease is held");
    for process in &mut processes {
        assert!(process.try_wait().unwrap().is_none());
        process.kill().unwrap();
        process.wait().unwrap();
    }
}

/// A program that takes a lease by itself and does not become a command, as a proxy before the socket does.
fn forwarder(host: &Served) -> Sleeper {
    let script = format!(
        "import socket, time
s = socket.socket(socket.AF_UNIX)
s.connect('{}')
s.sendall(b'POST {LEASES} HTTP/1.1\\r\\nHost: m\\r\\nContent-Type: application/json\\r\\nContent-Length: 2\\r\\n\\r\\n{{}}')
print(s.recv(65536).split()[1].decode(), flush=True)
time.sleep(600)",
        host.runtime("api.sock").display()
    );
    let mut python = Command::new("python3");
    let mut child =
        python.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().expect("python3");
    let mut answered = String::new();
    let output = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut answered).expect("an answer");
    assert_eq!(answered.trim(), "201");
    Sleeper(child)
}

#[test]
fn drain_spares_lease_holder_without_started_command() {
    let host = InProcess::ready();
    eight_clients(&host);
    let forwarder = forwarder(&host);
    let outcome = last_outcome(&drained(&host));
    let spared = format!("process {}-", forwarder.pid());
    assert!(outcome.contains(&spared) && outcome.contains("no command that run has started"), "{outcome}");
    assert!(is_alive(forwarder.pid()));
}

#[test]
fn lease_is_never_answered_from_an_earlier_answer() {
    let host = Host::ready();
    eight_clients(&host);
    let take = || {
        local(&host).send(
            Method::POST,
            LEASES,
            &[("Idempotency-Key", "one"), ("content-type", "application/json")],
            Some("{}".to_owned()),
        )
    };
    assert_eq!(take().status, 201);
    assert_eq!(take().status, 201, "the same process");
    assert_eq!(host.api().get(LEASES).ok()["items"].as_array().expect("items").len(), 1);
    let dry = local(&host).post(&format!("{LEASES}?dry_run=true"), &json!({}));
    assert_eq!(dry.status, 200);
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    assert_eq!(take().status, 409);
}

#[test]
fn drain_spares_process_with_revoked_lease() {
    let host = InProcess::ready();
    eight_clients(&host);
    let sleep = || Sleeper(host.run_command("demo", &["sleep", "600"]).spawn().expect("it starts"));
    let mut commands = [sleep(), sleep()];
    // In the order in which a drain ends them.
    commands.sort_by_key(Sleeper::pid);
    let leases = eventually("both have leases and are commands", || {
        let held = host.api().get(LEASES).ok()["items"].as_array().expect("items").clone();
        let are_commands =
            commands.iter().all(|one| command_line(one.pid()).first().is_some_and(|word| word == "sleep"));
        (held.len() == 2 && are_commands).then_some(held)
    });
    let last = leases.iter().find(|lease| lease["pid"] == commands[1].pid()).expect("its lease");
    let drain = "/api/v1/daemons/gpu0/drain?timeout_s=0&on_timeout=terminate";
    let accepted = host.api().post(drain, &json!({}));
    let place = accepted.header("location").expect("a place").to_owned();
    eventually("clients are being terminated", || {
        let steps = host.api().get(&place).ok()["steps"].as_array().expect("steps").clone();
        steps.iter().any(|step| step["name"] == "terminate the clients").then_some(())
    });
    // The first one is waited for, for two seconds.
    let id = last["id"].as_str().expect("an ID");
    assert_eq!(host.api().delete(&format!("{LEASES}/{id}")).status, 204);
    let outcome = last_outcome(&host.api().succeeds(&accepted));
    assert_eq!(outcome, "1 ended");
    assert!(commands[0].0.try_wait().expect("waited for").is_some() && is_alive(commands[1].pid()));
}

#[test]
fn tenant_revokes_nothing_that_an_operator_recorded() {
    let host = Host::ready();
    eight_clients(&host);
    assert_eq!(host.api().post(LEASES, &recorded(std::process::id())).status, 201);
    // This process takes a lease itself, too.
    assert_eq!(local(&host).post(LEASES, &json!({})).status, 201);
    let held = host.api().get(LEASES).ok();
    assert_eq!((held["items"].as_array().unwrap().len(), &held["items"][0]["kind"]), (1, &json!("own")));
    let lease = format!("{LEASES}/{}", held["items"][0]["id"].as_str().unwrap());
    let own = host.api().with_token(Some(&create(&host, "tenant", "tenant:demo")));
    own.delete(&lease).problem(403, "forbidden");
    assert_eq!(host.api().delete(&lease).status, 204);
}

#[test]
fn client_is_recorded_though_no_place_is_free() {
    let host = InProcess::ready();
    let (client, sleeper) = (host.client("demo"), Sleeper::new());
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["spec"]["max_clients"], 1);
    host.listed(client.pid());
    assert_eq!(host.api().post(LEASES, &recorded(client.pid())).status, 201, "it has the place already");
    host.api().post(LEASES, &recorded(sleeper.pid())).problem(409, "at-capacity");
}

/// The command in PID and mount namespaces of its own, where it is process 1; `None` where this test may make none.
fn in_namespaces(command: &Command) -> Option<Command> {
    let namespaces = ["--pid", "--mount-proc", "--fork", "--kill-child"];
    if !Command::new("unshare").args(namespaces).arg("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a PID namespace cannot be made here, which takes root");
        return None;
    }
    let mut inside = Command::new("unshare");
    inside.args(namespaces).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    Some(inside)
}

#[test]
fn pid_namespace_process_is_leased_by_host_pid() {
    let host = Host::ready();
    let Some(mut command) = in_namespaces(&host.run_command("demo", &["sleep", "600"])) else { return };
    let _outside = Sleeper(command.spawn().expect("it starts"));
    let pid = eventually("it holds a lease and became its command", || {
        let pid = host.api().get(LEASES).ok()["items"][0]["pid"].as_u64()?;
        let pid = u32::try_from(pid).expect("a PID");
        command_line(pid).first().is_some_and(|word| word == "sleep").then_some(pid)
    });
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).expect("its numbers");
    assert_eq!(numbers.split_whitespace().last(), Some("1"), "{numbers}");
    // Its number inside is another process of the host, which is refused.
    let refused = host.api().post(LEASES, &recorded(1)).problem(422, "invalid-request");
    assert_eq!(refused["errors"][0]["pointer"], "/pid", "{refused}");
    assert_eq!(last_outcome(&drained(&host)), "1 ended");
    eventually("it has ended", || (!is_alive(pid)).then_some(()));
}
