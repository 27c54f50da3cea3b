//! Each noun with its verbs.

use serde_json::json;

use super::{json_of, ok, stdout_of};
use crate::harness::{InProcess, stderr_of};

#[test]
fn tenant_is_created_changed_and_deleted() {
    let host = InProcess::ready();
    let made =
        ok(&host, &["tenant", "set", "web", "--daemon", "gpu0", "--memory-limit", "4 GiB", "--sms", "32"]);
    let uid = rustix::process::geteuid().as_raw();
    let fields = "daemon gpu0, memory limit 4 GiB, SMs 32";
    assert_eq!(
        made,
        format!("tenant web was created: {fields}; its processes run as uid {uid}; it is ready\n")
    );
    let spec = || host.api().get("/api/v1/tenants/web").ok()["spec"].clone();
    assert_eq!(spec()["device_memory_limit"], 4_u64 << 30);
    assert_eq!(spec()["sms"], 32);

    // Only what is given changes.
    let changed =
        ok(&host, &["tenant", "set", "web", "--priority", "below_normal", "--label", "team=search"]);
    assert_eq!(
        changed,
        "tenant web was changed: label team (none) -> search, priority (default) -> below_normal; it is ready\n"
    );
    assert_eq!((&spec()["sms"], &spec()["labels"]), (&json!(32), &json!({"team": "search"})));
    ok(&host, &["tenant", "set", "web", "--label", "tier=1"]);
    assert_eq!(spec()["labels"], json!({"team": "search", "tier": "1"}));
    // SMs and a percentage exclude each other, so the one replaces the other.
    ok(&host, &["tenant", "set", "web", "--thread-percentage", "25"]);
    assert_eq!((spec().get("sms"), spec()["active_thread_percentage"].as_f64()), (None, Some(25.0)));
    let before = spec();
    assert_eq!(
        ok(&host, &["tenant", "set", "web", "--thread-percentage", "25"]),
        "tenant web is unchanged; it is ready\n"
    );
    let dry = ok(&host, &["tenant", "set", "web", "--unset", "memory-limit", "--dry-run"]);
    assert!(dry.starts_with("tenant web would be changed: memory limit 4 GiB -> (default)"), "{dry}");
    assert_eq!(spec(), before);
    ok(&host, &["tenant", "set", "web", "--unset", "thread-percentage,labels"]);
    assert_eq!((spec().get("active_thread_percentage"), &spec()["labels"]), (None, &json!({})));

    assert_eq!(ok(&host, &["tenant", "list", "-o", "name"]), "batch\ndemo\nweb\n");
    assert_eq!(ok(&host, &["tenant", "list", "--daemon", "gpu1", "-o", "name"]), "");
    let shown = ok(&host, &["tenant", "get", "web"]);
    let limit = shown.lines().find(|line| line.starts_with("Memory limit:"));
    assert!(limit.is_some_and(|line| line.trim_end_matches('*').ends_with(" 4 GiB")), "{shown}");
    assert_eq!(ok(&host, &["tenant", "delete", "web", "--dry-run"]), "tenant web would be deleted\n");
    assert_eq!(ok(&host, &["tenant", "delete", "web"]), "tenant web was deleted\n");
    host.api().get("/api/v1/tenants/web").problem(404, "not-found");
}

#[test]
fn daemon_is_created_changed_and_deleted() {
    let host = InProcess::ready();
    assert!(ok(&host, &["daemon", "delete", "gpu1"]).starts_with("daemon gpu1 was deleted ("));
    let first = ok(&host, &["daemon", "set", "second", "--gpu", "1", "--mode", "static"]);
    assert!(first.starts_with("daemon second was created: GPUs GPU 1 (GPU-"), "{first}");
    assert!(first.ends_with(", mode static; it is ready\n"), "{first}");
    let changed = ok(&host, &["daemon", "set", "second", "--memory-limit", "8G", "--drift-policy", "report"]);
    for words in ["default memory limit none -> 8 GiB", "drift policy repair -> report", "; it is ready\n"] {
        assert!(changed.starts_with("daemon second was changed: ") && changed.contains(words), "{changed}");
    }
    let spec = host.daemon("second")["spec"].clone();
    assert_eq!(spec["defaults"]["device_memory_limit"], 8_u64 << 30);
    assert_eq!((&spec["mode"], &spec["drift_policy"]), (&json!("static"), &json!("report")));
    let on_one = ok(&host, &["daemon", "set", "second", "--memory-limit", "1=4G"]);
    assert!(on_one.contains("default memory limit 8 GiB -> GPU 1 (GPU-"), "{on_one}");
    ok(&host, &["daemon", "set", "second", "--unset", "memory-limit"]);
    assert_eq!(host.daemon("second")["spec"]["defaults"].get("device_memory_limit"), None);
    let listed = json_of(&host, &["daemon", "list"]);
    assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&json!("gpu0"), &json!("second")));
    let shown = ok(&host, &["daemon", "get", "second"]);
    let mode = shown.lines().find(|line| line.starts_with("Mode:"));
    assert!(mode.is_some_and(|line| line.ends_with(" static")), "{shown}");
}

#[test]
fn daemon_is_stopped_started_restarted_and_drained() {
    let host = InProcess::ready();
    for (words, said) in [
        (&["daemon", "stop", "gpu1", "--grace", "1s"][..], "daemon gpu1 is stopped ("),
        (&["daemon", "start", "gpu1"], "daemon gpu1 is ready ("),
        (&["daemon", "restart", "gpu1", "--grace", "1"], "daemon gpu1 was restarted and is ready ("),
        (&["daemon", "drain", "gpu1", "--timeout", "10s"], "daemon gpu1 has no clients and is cordoned ("),
        (&["daemon", "uncordon", "gpu1"], "daemon gpu1 admits clients\n"),
        (&["daemon", "cordon", "gpu1"], "daemon gpu1 is cordoned: it admits no new clients\n"),
    ] {
        let printed = ok(&host, words);
        assert!(printed.starts_with(said), "{words:?}: {printed}");
    }
    assert_eq!(host.daemon("gpu1")["spec"]["schedulable"], false);
    // What is started without waiting is waited for later.
    let id = ok(&host, &["daemon", "restart", "gpu1", "--no-wait", "-o", "name"]);
    let waited = ok(&host, &["operation", "wait", id.trim()]);
    assert_eq!(waited, format!("operation {} (restart_daemon) succeeded\n", id.trim()));
    let kinds: Vec<_> = json_of(&host, &["operation", "list", "--daemon", "gpu1"])
        .as_array()
        .expect("a list")
        .iter()
        .map(|operation| operation["request"]["kind"].as_str().expect("a kind").to_owned())
        .collect();
    assert_eq!(kinds, ["restart_daemon", "drain_daemon", "restart_daemon", "start_daemon", "stop_daemon"]);
    assert!(ok(&host, &["operation", "get", id.trim()]).contains("Step:"));
    // All operations of this test began within a minute, so a prefix needs more than their common time.
    assert!(ok(&host, &["operation", "get", &id.trim()[..23]]).contains(id.trim()));
}

#[test]
fn logs_of_a_daemon_are_printed() {
    let host = InProcess::ready();
    let client = host.run_client("demo");
    let server = ok(&host, &["daemon", "logs", "gpu0"]);
    assert!(server.contains("Server"), "{server}");
    assert_eq!(ok(&host, &["daemon", "logs", "gpu0", "-n", "2"]).lines().count(), 2);
    let own = ok(&host, &["daemon", "logs", "gpu0", "control", "--own", "--contains", "GET_SERVER_LIST"]);
    let lines = |text: &str| text.lines().count();
    assert!(own.lines().all(|line| line.to_lowercase().contains("get_server_list")), "{own}");
    let without = ok(&host, &["daemon", "logs", "gpu0", "control", "--contains", "get_server_list"]);
    assert!(lines(&own) > lines(&without), "{own}");
    let read = json_of(&host, &["daemon", "logs", "gpu0"]);
    assert!(read["path"].as_str().expect("a path").ends_with("/server.log"), "{read}");
    drop(client);
}

#[test]
fn clients_are_terminated_by_pid_and_by_tenant() {
    let host = InProcess::ready();
    let (mut one, mut other, mut neighbour) =
        (host.run_client("batch"), host.run_client("batch"), host.run_client("demo"));
    let pid = one.pid().to_string();
    assert_eq!(ok(&host, &["client", "list", "--gpu", "0", "-o", "name"]).lines().count(), 3);
    assert_eq!(ok(&host, &["client", "list", "--gpu", "1", "-o", "name"]), "");
    assert!(ok(&host, &["client", "get", &pid]).contains("Tenant:    batch\n"));
    let said = ok(&host, &["client", "terminate", &pid]);
    assert!(said.starts_with(&format!("client {pid} (batch) was terminated (")), "{said}");
    one.ended();
    let said = ok(&host, &["terminate", "--tenant", "batch"]);
    assert_eq!(said.lines().count(), 1, "{said}");
    other.ended();
    assert!(neighbour.is_running());
    let none = host.cli(&["client", "terminate", "--tenant", "batch"]);
    assert_eq!((none.status.code(), stdout_of(&none).as_str()), (Some(0), ""));
    assert_eq!(stderr_of(&none), "There are no such clients.\n");
    ok(&host, &["kill", "--gpu", "0"]);
    neighbour.ended();
}

#[test]
fn maintenance_begins_and_ends() {
    let host = InProcess::ready();
    ok(&host, &["daemon", "cordon", "gpu1"]);
    let begun = ok(&host, &["maintenance", "begin", "--gpu", "1", "--timeout", "10s"]);
    assert!(begun.starts_with("maintenance has begun: the manager has released the driver ("), "{begun}");
    assert!(ok(&host, &["maintenance", "status"]).starts_with("Maintenance:  active\n"));
    let ended = ok(&host, &["maintenance", "end"]);
    assert!(
        ended.contains("gpu1 is still cordoned: `mps-manager daemon uncordon gpu1` admits clients again")
    );
    let restarted = ok(&host, &["daemon", "restart", "gpu1", "--grace", "1"]);
    assert!(restarted.contains("is ready, and still cordoned: "), "{restarted}");
    assert_eq!(json_of(&host, &["maintenance", "status"])["state"], json!(null));
}

#[test]
fn layouts_are_imported_shown_and_deleted() {
    let host = InProcess::stopped();
    let file = host.dir().join("prod.yaml");
    let text =
        "version: v1\nlayouts:\n  prod:\n    steps:\n      - add: {gpu: 0, partition: web, chunks: 3}\n";
    std::fs::write(&file, text).expect("written");
    assert_eq!(ok(&host, &["layout", "import", file.to_str().expect("text")]), "prod version 1\n");
    assert!(ok(&host, &["layout", "list"]).contains("prod    1        static"));
    assert!(ok(&host, &["layout", "get", "prod"]).starts_with("version: v1\n"));
    assert_eq!(json_of(&host, &["layout", "show", "prod"])["version"], "v1");
    assert!(ok(&host, &["layout", "get", "prod", "-o", "table"]).contains("add web on GPU 0: 3 chunks"));
    assert_eq!(ok(&host, &["layout", "delete", "prod"]), "layout prod was deleted\n");
}

#[test]
fn other_nouns_are_listed() {
    let host = InProcess::stopped();
    let gpus = json_of(&host, &["gpu", "list"]);
    let uuid = gpus[0]["uuid"].as_str().expect("a UUID");
    assert!(ok(&host, &["gpu", "get", "0"]).contains(uuid));
    assert_eq!(ok(&host, &["gpu", "get", uuid, "-o", "name"]), format!("{uuid}\n"));
    for noun in ["replay", "foreign", "audit"] {
        assert!(json_of(&host, &[noun, "list"]).is_array(), "{noun}");
    }
    let head = ok(&host, &["audit", "head"]);
    assert!(head.trim().split_once(':').is_some_and(|(_, hash)| hash.len() == 64), "{head}");
    let body = serde_json::json!({ "token": host.token() });
    assert_eq!(host.api().with_token(None).post("/api/v1/session", &body).status, 201);
    let sessions = json_of(&host, &["session", "list"]);
    assert_eq!((&sessions[0]["subject"], &sessions[0]["grant"]), (&json!("admin token"), &json!("admin")));
    assert_eq!(ok(&host, &["session", "end"]), "all your sessions have ended\n");
    assert_eq!(json_of(&host, &["session", "list"]), json!([]));
    assert!(ok(&host, &["login-url"]).starts_with("http://"));
}
