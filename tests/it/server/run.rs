//! `mps-manager run`: becomes the command, under the tenant's limits and as its user.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Client, Host, eventually};

const NOBODY: u32 = 65_534;

fn run(host: &Host, tenant: &str, words: &[&str]) -> Output {
    host.run_command(tenant, words).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn run_becomes_the_command_with_its_process_id_and_its_exit_code() {
    let host = Host::ready();
    let mut command = host.run_command("demo", &["sh", "-c", "echo $$"]);
    command.stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), pid.to_string());
    for code in [0, 7, 255] {
        let output = run(&host, "demo", &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn a_command_that_is_missing_or_cannot_run_is_told_as_a_shell_tells_it() {
    let host = Host::ready();
    let missing = run(&host, "demo", &["no-such-command"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(said(&missing).contains("no-such-command"), "{}", said(&missing));
    assert_eq!(run(&host, "demo", &["/etc/passwd"]).status.code(), Some(126));
    let unknown = run(&host, "nobody", &["true"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said(&unknown).contains("there is no tenant nobody"), "{}", said(&unknown));
}

#[test]
fn the_command_has_the_tenants_environment_and_no_secret_of_its_caller() {
    let host = Host::ready();
    let output = host
        .run_command("demo", &["env"])
        .env("MPS_MANAGER_TOKEN", "secret")
        .env("CUDA_MPS_SM_PARTITION", "somebody else's")
        .env("KEPT", "yes")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("secret") && !text.contains("somebody else's"), "{text}");
    assert!(text.contains("KEPT=yes\n"), "{text}");
    let environment = host.api().get("/api/v1/tenants/demo/environment").ok();
    for (name, value) in environment["variables"].as_object().unwrap() {
        assert!(text.contains(&format!("{name}={}\n", value.as_str().unwrap())), "{name} in {text}");
    }
}

#[test]
fn a_cuda_program_under_run_sees_the_tenants_share() {
    let host = Host::ready();
    let client = host.run_client("demo");
    assert_eq!(client.seen["devices"][0]["sms"], 32);
    assert!(client.seen["devices"][0]["memory_free"].as_u64().unwrap() < 4 << 30);
    assert_eq!(host.listed(client.pid())["attributed_by"], "lease");
}

#[test]
fn no_more_run_than_max_clients() {
    let host = Host::ready();
    let first = host.run_client("demo");
    let refused = run(&host, "demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("1 of at most 1"), "{}", said(&refused));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(host.run_client("batch"));
    }
    assert_eq!(run(&host, "batch", &["true"]).status.code(), Some(2));
    // A place is free again as soon as its holder is gone.
    drop(first);
    assert_eq!(run(&host, "demo", &["true"]).status.code(), Some(0));
    held.pop();
    assert_eq!(run(&host, "batch", &["true"]).status.code(), Some(0));
}

#[test]
fn sixteen_callers_at_once_get_no_more_places_than_there_are() {
    let host = Host::ready();
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
fn run_drops_to_the_tenants_user_with_no_group_of_its_callers() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can become somebody else.
    }
    let host = Host::ready();
    let spec = json!({"daemon": "gpu1", "uid": NOBODY, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("other", &spec).status, 201);
    host.await_ready();
    let output = run(&host, "other", &["sh", "-c", "id -u; id -G; id -ru"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let groups = Command::new("id").args(["-G", "nobody"]).output().unwrap();
    let groups = String::from_utf8(groups.stdout).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{NOBODY}\n{groups}{NOBODY}\n"));
    let wrong = host.command(&["run", "--tenant", "other", "-u", "0", "--", "true"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(said(&wrong).contains("has uid 65534"), "{}", said(&wrong));
}

#[test]
fn users_meet_on_a_multi_user_daemon_each_under_its_own_limits() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root can become somebody else.
    }
    let host = Host::ready();
    let shared = json!({"gpus": ["1"], "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &shared).status, 200);
    for (name, uid) in [("root", 0), ("other", NOBODY)] {
        let spec = json!({
            "daemon": "gpu1", "uid": uid, "device_memory_limit": "2G", "active_thread_percentage": 25,
        });
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    let program = host.program_for_everybody();
    let words = [program.to_str().unwrap(), "sim", "client", "--json", "--spin", "600"];
    let clients: Vec<(Client, u32)> = [("root", 0), ("other", NOBODY)]
        .map(|(tenant, uid)| (Client::start(host.run_command(tenant, &words)), uid))
        .into();
    for (client, uid) in &clients {
        assert_eq!(client.seen["devices"][0]["sms"], 32, "{}", client.seen);
        let listed = host.listed(client.pid());
        assert_eq!((&listed["uid"], &listed["attributed_by"]), (&json!(uid), &json!("lease")));
    }
    // Without a lease the user tells whose it is.
    let mut stranger = Command::new(&program);
    let environment = host.client_command("other", &[]);
    let environment = environment.get_envs().filter_map(|(name, value)| Some((name, value?)));
    stranger.args(&words[1..]).env_clear().envs(environment).env_remove("MPS_MANAGER_TENANT");
    stranger.uid(NOBODY).gid(NOBODY);
    let stranger = Client::start(stranger);
    let listed = host.listed(stranger.pid());
    assert_eq!((&listed["tenant"], &listed["attributed_by"]), (&json!("other"), &json!("uid")));
}

#[test]
fn another_user_is_not_called_ready_while_a_client_of_the_first_is_connected() {
    let host = Host::ready();
    let of = |uid: u32| json!({"daemon": "gpu1", "uid": uid, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("moves", &of(0)).status, 201);
    host.await_ready();
    let client = host.client("moves");
    assert_eq!(host.api().tenant("moves", &of(NOBODY)).status, 200);
    let daemon = host.await_phase("gpu1", "applying");
    let ready = eventually("the reason is told", || {
        let ready = host.daemon("gpu1")["status"]["conditions"][0].clone();
        (ready["reason"] == "OtherUser").then_some(ready)
    });
    assert!(ready["message"].as_str().unwrap().contains("65534"), "{ready}");
    assert_eq!(host.api().get("/readyz").status, 503, "{daemon}");
    drop(client);
    host.await_ready();
    assert_eq!(host.daemon("gpu1")["status"]["effective"]["servers"][0]["uid"], NOBODY);
}

#[test]
fn a_user_who_cannot_reach_the_pipes_is_refused_since_it_would_run_outside_mps() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::ready();
    let close = |mode: u32| {
        std::fs::set_permissions(host.dir(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let spec = json!({"daemon": "gpu1", "uid": NOBODY, "device_memory_limit": "1G"});
    close(0o700);
    let problem = host.api().tenant("other", &spec).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/uid");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("uid 65534 cannot pass through") && detail.contains("outside MPS"), "{detail}");
    close(0o755);
    assert_eq!(host.api().tenant("other", &spec).status, 201);
    host.await_ready();
    close(0o700);
    let refused = run(&host, "other", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("cannot pass through"), "{}", said(&refused));
}

#[test]
fn nothing_runs_while_the_daemon_is_stopped_or_takes_no_clients() {
    let host = Host::configured("fresh_patience_s = 1");
    let closed = json!({"gpus": ["0"], "schedulable": false});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &closed).status, 200);
    let refused = run(&host, "demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("takes no new clients"), "{}", said(&refused));
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &json!({"gpus": ["0"]})).status, 200);
    assert_eq!(run(&host, "demo", &["true"]).status.code(), Some(0));

    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    let refused = run(&host, "demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("stopped"), "{}", said(&refused));
}

#[test]
fn a_lease_is_for_a_process_that_there_is() {
    let host = Host::ready();
    let ask = |pid: u32| host.api().post("/api/v1/tenants/demo/leases", &json!({"pid": pid}));
    let problem = ask(4_000_000).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/pid");
    let me = std::process::id();
    let lease: Value = ask(me).ok();
    assert_eq!(lease["uid"], rustix::process::getuid().as_raw());
    // The same process asking again holds the same place.
    assert_eq!(ask(me).status, 201);
}
