//! `mps-manager run`: becomes the command, under the tenant's limits and as its user.

use serde_json::{Value, json};

use rustix::process::Signal;

use crate::harness::{Client, Host, InProcess, eventually, pid, signal, stderr_of};

#[test]
fn run_replaces_itself_with_the_command() {
    let host = InProcess::ready();
    let mut command = host.run_command("demo", &["sh", "-c", "echo $$"]);
    command.stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), pid.to_string());
    for code in [0, 7, 255] {
        let output = host.run("demo", &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn failed_command_exits_like_a_shell() {
    let host = InProcess::ready();
    let missing = host.run("demo", &["no-such-command"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr_of(&missing).contains("no-such-command"), "{}", stderr_of(&missing));
    assert_eq!(host.run("demo", &["/etc/passwd"]).status.code(), Some(126));
    let unknown = host.run("nobody", &["true"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr_of(&unknown).contains("there is no tenant nobody"), "{}", stderr_of(&unknown));
}

#[test]
fn command_gets_tenant_environment_without_secrets() {
    let host = InProcess::ready();
    let output = host
        .run_command("demo", &["env"])
        .env("MPS_MANAGER_TOKEN", "secret")
        .env("CUDA_MPS_SM_PARTITION", "another user's")
        .env("KEPT", "yes")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("secret") && !text.contains("another user's"), "{text}");
    assert!(text.contains("KEPT=yes\n"), "{text}");
    let environment = host.api().get("/api/v1/tenants/demo/environment").ok();
    for (name, value) in environment["variables"].as_object().unwrap() {
        assert!(text.contains(&format!("{name}={}\n", value.as_str().unwrap())), "{name} in {text}");
    }
}

#[test]
fn cuda_program_sees_the_tenants_share() {
    let host = InProcess::ready();
    let client = host.run_client("demo");
    assert_eq!(client.seen["devices"][0]["sms"], 32);
    assert!(client.seen["devices"][0]["memory_free"].as_u64().unwrap() < 4 << 30);
    assert_eq!(host.listed(client.pid())["attributed_by"], "lease");
}

#[test]
fn no_more_run_than_max_clients() {
    let host = InProcess::ready();
    let first = host.run_client("demo");
    let refused = host.run("demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("1 process running and max_clients is 1"),
        "{}",
        stderr_of(&refused)
    );
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(host.run_client("batch"));
    }
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(2));
    // A place is free again as soon as its holder is gone.
    drop(first);
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
    held.pop();
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(0));
}

#[test]
fn each_child_of_run_takes_a_place() {
    let host = InProcess::ready();
    let program = env!("CARGO_BIN_EXE_mps-manager");
    let script = format!("for i in 1 2 3 4; do {program} sim client --spin 60 & done; wait");
    let shell = Client::start(host.run_command("batch", &["sh", "-c", &script]));
    eventually("all four are listed", || (host.clients().len() == 4).then_some(()));
    let refused = host.run("batch", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("4 processes running and max_clients is 4"),
        "{}",
        stderr_of(&refused)
    );
    for client in host.clients() {
        signal(pid(&client["pid"]), Signal::KILL);
    }
    drop(shell);
}

#[test]
fn run_is_refused_without_pipe_directory() {
    let host = InProcess::ready();
    let client = host.client("demo");
    eventually("the client is listed", || (host.clients().len() == 1).then_some(()));
    let daemon = host.daemon_pid("gpu0");
    std::fs::rename(host.runtime("daemons/gpu0/pipe"), host.runtime("daemons/gpu0/elsewhere")).unwrap();
    let refused = host.run("batch", &["true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_of(&refused));
    let reported = eventually("it says what is wrong", || {
        let reported = host.daemon("gpu0")["status"]["conditions"][0]["message"].as_str()?.to_owned();
        reported.contains("was removed or replaced").then_some(reported)
    });
    assert!(reported.contains("restart the daemon"), "{reported}");
    assert_eq!(host.daemon_pid("gpu0"), daemon, "a client is connected: nothing is restarted unasked");
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/restart?grace_s=0", &json!({})));
    host.await_ready();
    assert_ne!(host.daemon_pid("gpu0"), daemon);
    drop(client);
    assert_eq!(host.run("batch", &["true"]).status.code(), Some(0));
}

#[test]
fn concurrent_runs_never_exceed_max_clients() {
    let host = InProcess::ready();
    let mut callers: Vec<_> = (0..16)
        .map(|_| {
            let mut command = host.run_command("batch", &["sleep", "600"]);
            command.stderr(std::process::Stdio::null()).spawn().unwrap()
        })
        .collect();
    let mut refused = 0;
    eventually("all but four are refused", || {
        let before = callers.len();
        callers.retain_mut(|caller| match caller.try_wait().unwrap() {
            None => true,
            Some(status) => {
                assert_eq!(status.code(), Some(2));
                false
            }
        });
        refused += before - callers.len();
        (refused == 12).then_some(())
    });
    // The rest have become their command.
    for caller in &mut callers {
        eventually("it sleeps", || {
            let command = std::fs::read_to_string(format!("/proc/{}/cmdline", caller.id())).unwrap();
            command.starts_with("sleep").then_some(())
        });
        caller.kill().unwrap();
        caller.wait().unwrap();
    }
    assert_eq!(callers.len(), 4);
}

#[test]
fn stopped_or_cordoned_daemon_runs_nothing() {
    let host = InProcess::configured("fresh_timeout_s = 1");
    let closed = json!({"gpus": ["0"], "schedulable": false});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &closed).status, 200);
    let refused = host.run("demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("takes no new clients"), "{}", stderr_of(&refused));
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"]})).status, 200);
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));

    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    let refused = host.run("demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("stopped"), "{}", stderr_of(&refused));
}

#[test]
fn lease_needs_an_existing_process() {
    let host = Host::ready();
    let ask =
        |pid: u32| host.api().post("/api/v1/tenants/demo/leases", &json!({"kind": "recorded", "pid": pid}));
    let problem = ask(4_000_000).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/pid");
    let me = std::process::id();
    // The test's own process is none of the manager's.
    let lease: Value = ask(me).ok();
    assert_eq!(lease["uid"], rustix::process::getuid().as_raw());
    // The same process asking again holds the same place.
    assert_eq!(ask(me).status, 201);
}
