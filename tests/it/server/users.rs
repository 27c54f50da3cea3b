//! Users: each tenant's processes run as its own, and meet only where that works.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde_json::json;

use crate::harness::{Client, Host, InProcess, eventually, stderr_of};

const NOBODY: u32 = 65_534;

#[test]
fn run_drops_to_tenant_user_and_groups() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::ready();
    let spec = json!({"daemon": "gpu1", "uid": NOBODY, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("other", &spec).status, 201);
    host.await_ready();
    let output = host.run("other", &["sh", "-c", "id -u; id -G; id -ru"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
    let groups = Command::new("id").args(["-G", "nobody"]).output().unwrap();
    let groups = String::from_utf8(groups.stdout).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{NOBODY}\n{groups}{NOBODY}\n"));
    let wrong = host.command(&["run", "--tenant", "other", "-u", "0", "--", "true"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr_of(&wrong).contains("has uid 65534"), "{}", stderr_of(&wrong));
}

#[test]
fn users_share_daemon_under_their_own_limits() {
    if !crate::harness::is_root() {
        return;
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
    // Neither of them passes through the daemon's own directory, which is closed.
    for tenant in ["root", "other"] {
        let status = host.api().get(&format!("/api/v1/tenants/{tenant}")).ok()["status"].clone();
        assert_eq!(status["conditions"][0]["status"], true, "{status}");
    }
    // Without a lease the user identifies the tenant.
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
fn changed_user_is_not_ready_until_idle() {
    let host = InProcess::ready();
    let of = |uid: u32| json!({"daemon": "gpu1", "uid": uid, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("moves", &of(0)).status, 201);
    host.await_ready();
    let client = host.client("moves");
    assert_eq!(host.api().tenant("moves", &of(NOBODY)).status, 200);
    let daemon = host.await_phase("gpu1", "applying");
    let ready = eventually("the reason is reported", || {
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
fn user_who_cannot_reach_pipes_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = InProcess::ready();
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
    let refused = host.run("other", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("cannot pass through"), "{}", stderr_of(&refused));
}
