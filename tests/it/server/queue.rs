//! Users who wait for each other on a daemon that serves one at a time.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::harness::{Host, InProcess, Served, eventually, unix_ms};

const NOBODY: u32 = 65_534;

struct Waits(Child);

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A client of another user, which is not waited for.
fn of_another_user(host: &Served, program: &std::path::Path) -> Waits {
    let environment = host.client_command("demo", &[]);
    let environment = environment.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let mut command = Command::new(program);
    command.args(["sim", "client", "--json", "--spin", "600"]).env_clear().envs(environment);
    command.uid(NOBODY).gid(NOBODY).stdout(Stdio::null()).stderr(Stdio::null());
    Waits(command.spawn().unwrap())
}

#[test]
fn waiting_clients_are_shown_until_admitted() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::polled_hourly("");
    let program = host.program_for_everybody();
    assert!(host.cli(&["daemon", "set", "gpu0", "--user", "65534"]).status.success());
    let client = host.client("demo");
    assert_eq!(host.daemon("gpu0")["status"]["queue"], json!([]), "a first client waits for nobody");
    let server = host.server_pid("gpu0");
    let waits = of_another_user(&host, &program);
    let queue = eventually("it is seen to wait", || {
        let queue = host.daemon("gpu0")["status"]["queue"].clone();
        (queue != json!([])).then_some(queue)
    });
    let since = unix_ms(&queue[0]["waiting"][0]["since"]);
    assert_eq!(
        queue,
        json!([{
            "uid": NOBODY,
            "waiting": [{"pid": waits.0.id(), "since": queue[0]["waiting"][0]["since"]}],
            "behind": {"uid": 0, "server": server, "clients": [client.pid()]},
        }])
    );
    let now = jiff::Timestamp::now().as_millisecond();
    assert!((now - 60_000..=now).contains(&since), "{since} is not a moment ago");
    let condition = host.condition("gpu0", "UsersWaiting").expect("reported");
    let message = condition["message"].as_str().unwrap();
    for part in [
        format!("processes {} of uid 65534", waits.0.id()),
        client.pid().to_string(),
        "multi_user".to_owned(),
    ] {
        assert!(message.contains(&part), "{message}");
    }
    drop(client);
    eventually("it is admitted and no longer waits", || {
        let daemon = host.daemon("gpu0");
        let listed = host.api().get("/api/v1/clients").ok()["items"][0]["pid"] == waits.0.id();
        (daemon["status"]["queue"] == json!([]) && listed).then_some(())
    });
    assert!(host.condition("gpu0", "UsersWaiting").is_none());
}

#[test]
fn unreachable_pipes_of_one_tenant_block_daemon() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = InProcess::ready();
    let spec = json!({"gpus": ["1"], "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    for (name, uid) in [("first", 0), ("other", NOBODY)] {
        let tenant = json!({"daemon": "gpu1", "uid": uid, "device_memory_limit": "1G"});
        assert_eq!(host.api().tenant(name, &tenant).status, 201);
    }
    host.await_ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    let close = |mode: u32| {
        std::fs::set_permissions(host.dir(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    close(0o700);
    let started = host.api().post("/api/v1/daemons/gpu1/start", &json!({}));
    let message = host.await_reason("gpu1", "DirectoryUnusable");
    assert!(message.contains("uid 65534 cannot pass through") && message.contains("chmod o+x"), "{message}");
    assert_eq!(host.daemon("gpu1")["status"]["pid"], json!(null));
    let failed = host.api().outcome(&started);
    assert_eq!(failed["state"], "failed", "it takes a hand: {failed}");
    assert!(failed["error"].as_str().unwrap().contains("chmod o+x"), "{failed}");
    close(0o755);
    host.await_ready();
}
