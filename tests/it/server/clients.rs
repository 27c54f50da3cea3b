//! Clients: who they are and whose.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Client, Host, InProcess, MANAGER, eventually, may_mount, unix_ms};

#[test]
fn client_listing_has_tenant_memory_and_user() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let listed = eventually("its memory is seen", || {
        let listed = host.listed(client.pid());
        (listed["memory"][0]["used_bytes"].as_u64()? > 256 << 20).then_some(listed)
    });
    assert_eq!(listed["tenant"], "demo");
    assert_eq!(listed["daemon"], "gpu0");
    assert_eq!(listed["server"], host.server_pid("gpu0"));
    assert_eq!(listed["uid"], rustix::process::getuid().as_raw());
    assert!(listed["command"].as_str().unwrap().contains("sim client"), "{listed}");
    assert!(listed["memory"][0]["used_bytes"].as_u64().unwrap() < 4 << 30);
    let now = jiff::Timestamp::now().as_millisecond();
    let since = unix_ms(&listed["since"]);
    assert!(since <= now + 2000 && since > now - 600_000, "{since} against {now}");
    // Two tenants share the user, so only the environment distinguishes them.
    assert_eq!(listed["attributed_by"], "environment");

    let id = listed["id"].as_str().unwrap();
    assert_eq!(host.api().get(&format!("/api/v1/clients/{id}")).ok()["pid"], client.pid());
    let counted = |path: &str| host.api().get(path).ok()["items"].as_array().unwrap().len();
    assert_eq!(counted("/api/v1/clients?tenant=demo"), 1);
    assert_eq!(counted("/api/v1/clients?tenant=batch"), 0);
    assert_eq!(counted("/api/v1/clients?daemon=gpu1&fresh=true"), 0);
    assert_eq!(counted("/api/v1/tenants/demo/clients"), 1);
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["status"]["clients"], 1);
    let gpu = host.api().get("/api/v1/gpus/0").ok();
    let kinds = |kind: &str| {
        gpu["processes"].as_array().unwrap().iter().filter(|process| process["kind"] == kind).count()
    };
    assert_eq!((kinds("server"), kinds("client"), kinds("bypass")), (1, 1, 0), "{gpu}");

    let printed = host.cli(&["clients"]);
    let table = String::from_utf8(printed.stdout).unwrap();
    assert!(table.contains(id) && table.contains("demo"), "{table}");
    let printed: Value =
        serde_json::from_slice(&host.cli(&["clients", "--tenant", "demo", "-o", "json"]).stdout).unwrap();
    assert_eq!(printed[0]["id"], id);
}

#[test]
fn a_grandchild_of_run_counts_for_its_tenant() {
    let host = InProcess::ready();
    let script = format!("{MANAGER} sim client --json --spin 600 & wait");
    let mut command = host.run_command("batch", &["sh", "-c", &script]);
    // Whatever the program says of itself, its parent's lease is the better word.
    command.stderr(Stdio::null());
    let shell = Client::start(command);
    assert_eq!(shell.seen["error"], json!(null));
    let listed = host.listed(u32::try_from(shell.seen["pid"].as_u64().unwrap()).unwrap());
    assert_ne!(listed["pid"], shell.pid());
    assert_eq!((&listed["tenant"], &listed["attributed_by"]), (&json!("batch"), &json!("lease")));
}

#[test]
fn program_without_tenant_is_unattributed() {
    let host = InProcess::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env_remove("MPS_MANAGER_TENANT");
    let client = Client::start(command);
    let listed = host.listed(client.pid());
    assert_eq!((&listed["tenant"], &listed["attributed_by"]), (&json!(null), &json!("unattributed")));
    assert!(String::from_utf8(host.cli(&["clients"]).stdout).unwrap().contains("unattributed"));
}

/// The command in a mount namespace of its own, where these directories are mounted somewhere.
fn with_mounts(command: &Command, mounts: &[(&Path, &Path)]) -> Command {
    let mount = |(from, to): &(&Path, &Path)| format!("mount --bind {} {} && ", from.display(), to.display());
    let script = mounts.iter().map(mount).collect::<String>() + "exec \"$@\"";
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    inside.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    inside
}

#[test]
fn client_in_a_container_is_its_mounted_tenants() {
    if !may_mount() {
        return;
    }
    let host = InProcess::ready();
    let points = ["first", "second"].map(|name| host.dir().join(name));
    for point in &points {
        std::fs::create_dir(point).unwrap();
    }
    let directory = |tenant: &str| -> PathBuf {
        let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
        environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().unwrap().into()
    };
    let (demo, batch, runtime) = (directory("demo"), directory("batch"), host.runtime(""));
    let (demo, batch, runtime) = (demo.as_path(), batch.as_path(), runtime.as_path());
    let attributed = |mounted: &[&Path]| {
        // What a process says of itself can be forged.
        let mut command = host.client_command("demo", &["--spin", "600"]);
        command.env("MPS_MANAGER_TENANT", "batch");
        let mounts: Vec<(&Path, &Path)> =
            mounted.iter().copied().zip(points.iter().map(PathBuf::as_path)).collect();
        let client = Client::start(with_mounts(&command, &mounts));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        let listed = host.listed(client.pid());
        (listed["tenant"].clone(), listed["attributed_by"].clone())
    };
    assert_eq!(attributed(&[demo]), (json!("demo"), json!("container")));
    let by_environment = (json!("batch"), json!("environment"));
    assert_eq!(attributed(&[]), by_environment, "a private copy of the host's mounts");
    assert_eq!(attributed(&[demo, batch]), by_environment, "it may have connected by either");
    assert_eq!(attributed(&[runtime, demo]), by_environment, "it has those of all tenants");
}

#[test]
fn program_outside_mps_is_a_bypass() {
    let host = Host::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
    let client = Client::start(command);
    assert_eq!(client.seen["mps"], false);
    let seen = eventually("the driver lists it", || {
        let gpu = host.api().get("/api/v1/gpus/0").ok();
        let processes = gpu["processes"].as_array().unwrap();
        processes.iter().find(|process| process["pid"] == client.pid()).cloned()
    });
    assert_eq!(seen["kind"], "bypass");
    // What an operator needs to find out whose it is.
    assert_eq!(seen["uid"], rustix::process::getuid().as_raw());
    assert!(seen["command"].as_str().unwrap().ends_with("--spin 600"), "{seen}");
    assert!(host.clients().is_empty());
    let condition = eventually("the daemon says so", || host.condition("gpu0", "Bypass"));
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("process {}", client.pid())) && message.contains("exclusive_process"),
        "{message}"
    );
    assert!(String::from_utf8(host.cli(&["status", "-o", "wide"]).stdout).unwrap().contains("outside MPS"));
    let reported = |kind: &str| host.api().get(&format!("/api/v1/events?type={kind}")).ok()["items"].clone();
    let event = eventually("it is in the journal", || reported("bypass.appeared").get(0).cloned());
    assert_eq!(
        (&event["details"]["pid"], &event["subject"]["daemon"]),
        (&json!(client.pid()), &json!("gpu0"))
    );
    drop(client);
    eventually("its end is in the journal", || reported("bypass.ended").get(0).cloned());
    assert_eq!(host.condition("gpu0", "Bypass"), None);
    assert_eq!(reported("bypass.appeared").as_array().unwrap().len(), 1, "once");
}

#[test]
fn command_line_cannot_inject_terminal_or_html() {
    use std::os::unix::process::CommandExt as _;
    let host = InProcess::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.arg0("\u{1b}]0;pwned\u{7}\u{1b}[31mRED\r\n9-9  forged");
    let client = Client::start(command);
    host.listed(client.pid());
    let printed = String::from_utf8(host.cli(&["clients"]).stdout).unwrap();
    assert_eq!(printed.lines().count(), 2, "{printed:?}");
    assert!(printed.contains("\\u001b[31mRED\\u000d\\u000a9-9"), "{printed:?}");
    let page = super::log_pages::page(&host, "/clients");
    assert!(page.contains("\u{241b}[31mRED") && !page.contains('\u{1b}'), "{page}");
}

#[test]
fn clients_come_in_pages_by_process_id() {
    let host = InProcess::ready();
    let held: Vec<Client> = (0..4).map(|_| host.client("batch")).collect();
    let mut pids: Vec<u32> = held.iter().map(Client::pid).collect();
    pids.sort_unstable();
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = host.api().get(&format!("/api/v1/clients?limit=3{cursor}")).ok();
        seen.extend(page["items"].as_array().unwrap().iter().map(|client| client["pid"].clone()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(json!(seen), json!(pids));
}
