//! Exit codes and bad input.

use std::os::unix::fs::PermissionsExt as _;

use super::super::layouts::static_host;
use super::{ok, stdout_of};
use crate::harness::{InProcess, stderr_of};

#[test]
fn exit_codes_hold_for_every_command() {
    let host = InProcess::ready();
    let nobody = uuid_of_nothing();
    for (words, code, said) in [
        (&["status"][..], 0, ""),
        (&["tenant", "get", "demo"], 0, ""),
        (&["whoami"], 0, ""),
        // The state of the host says no.
        (&["layout", "plan", "nothing", "--daemon", "gpu1"], 2, "nothing"),
        (&["operation", "wait", &nobody], 2, &nobody),
        (&["operation", "get", "nope"], 2, "this is not an ID"),
        (&["operation", "get", "00000000"], 2, "`mps-manager operation list` shows them"),
        (&["events", "--severity", "loud"], 2, "loud"),
        (&["tenant", "set", "demo", "--priority", "high"], 2, "high"),
        // Unknown names.
        (&["tenant", "get", "nobody"], 2, "tenant nobody"),
        (&["tenant", "delete", "nobody"], 2, "tenant nobody"),
        (&["daemon", "get", "nobody"], 2, "daemon nobody"),
        (&["daemon", "restart", "nobody"], 2, "daemon nobody"),
        (&["gpu", "get", "9"], 2, "9"),
        (&["client", "list", "--tenant", "nobody"], 2, "tenant nobody"),
        (&["clients", "--daemon", "nobody"], 2, "daemon nobody"),
        (&["client", "list", "--gpu", "9"], 2, "9"),
        (&["client", "get", "999999999"], 2, "there is no client 999999999"),
        (&["client", "terminate", "999999999"], 2, "`mps-manager client list` shows them"),
        (&["client", "terminate"], 2, "give clients by ID or PID, or --tenant"),
        (&["client", "terminate", "1", "--tenant", "demo"], 2, "not both"),
        (&["tenant", "list", "--daemon", "nobody"], 2, "daemon nobody"),
        (&["operation", "list", "--daemon", "nobody"], 2, "daemon nobody"),
        (&["events", "--tenant", "nobody"], 2, "tenant nobody"),
        (&["lease", "list", "nobody"], 2, "tenant nobody"),
        (&["env", "nobody"], 2, "tenant nobody"),
        (&["verify", "nobody"], 2, "tenant nobody"),
        // Wrong values.
        (&["tenant", "set", "web"], 2, "this host has several daemons: name one with --daemon (gpu0, gpu1)"),
        (&["tenant", "set", "web", "--daemon", "gpu0", "--memory-limit", "banana"], 2, "banana"),
        (&["tenant", "set", "demo", "--memory-limit", "-1"], 2, "memory limit"),
        (&["tenant", "set", "demo", "--memory-limit", "-1G"], 2, "\"-1G\" is not a memory limit"),
        (&["tenant", "set", "demo", "--thread-percentage", "-5%"], 2, "up to 100"),
        (&["daemon", "set", "gpu0", "--memory-limit", "-1G"], 2, "\"-1G\" is not a memory limit"),
        (&["tenant", "set", "demo", "--weight", "-1"], 2, "\"-1\" is not accepted here: give a whole number"),
        (&["tenant", "set", "demo", "--thread-percentage", "lots"], 2, "\"lots\" is not a thread percentage"),
        (&["daemon", "set", "gpu0", "--memory-overcommit", "nan"], 2, "NaN is not an over-commit ratio"),
        (&["incident", "acknowledge", "abc"], 2, "\"abc\" is not an incident's ID"),
        (&["tenant", "set", "web", "--daemon", "nobody"], 2, "nobody"),
        (&["tenant", "set", "demo", "--ttl", "0"], 2, "\"0\" is not a time to live: give at least 1s"),
        (&["tenant", "set", "demo", "--ttl", "-5s"], 2, "is not a duration"),
        (&["tenant", "ensure", "web", "--daemon", "gpu0", "--ttl", "1y"], 2, "is not a duration"),
        (&["tenant", "ensure", "web", "--daemon", "gpu0", "--timeout", "soon"], 2, "is not a duration"),
        (&["tenant", "ensure", "web", "--gpu", "9"], 2, "9"),
        (&["tenant", "delete", "demo", "--drain", "soon"], 2, "is not a duration"),
        (&["tenant", "delete", "demo", "--dry-run", "--force"], 2, "cannot be used with"),
        (&["env", "demo", "--format", "hcl"], 2, "hcl"),
        (&["tenant", "set", "demo", "--sms", "8", "--thread-percentage", "5"], 2, "cannot be used with"),
        (&["tenant", "set", "demo", "--label", "team"], 2, "KEY=VALUE"),
        (&["daemon", "set", "third"], 2, "give its GPU, for example --gpu 0"),
        (&["daemon", "set", "gpu0", "--mode", "fast"], 2, "fast"),
        (&["daemon", "drain", "gpu0", "--timeout", "soon"], 2, "is not a duration"),
        (&["token", "create", "ci", "--grant", "operator", "--expires-in", "1mo"], 2, "is not a duration"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["tenant", "list", "-o", "xml"], 2, "xml"),
        (&["--context", "lab", "status"], 2, "there is no context \"lab\""),
    ] {
        let output = host.cli(words);
        let text = format!("{}{}", stdout_of(&output), stderr_of(&output));
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(said), "{words:?}: {text}");
    }
    let names = host.api().get("/api/v1/tenants").ok()["items"].as_array().expect("a list").len();
    assert_eq!(names, 2, "nothing was changed");
}

#[test]
fn host_that_says_no_exits_with_one() {
    let host = InProcess::ready();
    let client = host.run_client("demo");
    let kept = host.cli(&["tenant", "delete", "demo"]);
    assert_eq!(kept.status.code(), Some(1), "{}", stderr_of(&kept));
    let left = host.cli(&["daemon", "drain", "gpu0", "--timeout", "0"]);
    assert_eq!(left.status.code(), Some(1), "{}", stderr_of(&left));
    assert!(stderr_of(&left).contains("daemon gpu0 was not drained: "), "{}", stderr_of(&left));
    assert!(stderr_of(&left).contains("mps-manager operation get "), "{}", stderr_of(&left));
    drop(client);
    ok(&host, &["daemon", "stop", "gpu1"]);
    let stopped = host.cli(&["tenant", "set", "other", "--daemon", "gpu1"]);
    assert_eq!(stopped.status.code(), Some(1), "{}", stderr_of(&stopped));
    assert!(stderr_of(&stopped).contains("tenant other is not ready: "), "{}", stderr_of(&stopped));
}

#[test]
fn tenant_without_partition_is_not_ready() {
    let host: InProcess = static_host("h200x2");
    let written = host.cli(&["tenant", "set", "web", "--daemon", "gpu1"]);
    assert_eq!(written.status.code(), Some(1), "{}", stderr_of(&written));
    assert!(stderr_of(&written).contains("tenant web is not ready: "), "{}", stderr_of(&written));
    assert!(stderr_of(&written).contains("it has no layout"), "{}", stderr_of(&written));
}

#[test]
fn full_disk_is_reported() {
    let host = InProcess::stopped();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let output = host.command(&["status"]).stdout(full).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr_of(&output).contains("the result cannot be written: "), "{}", stderr_of(&output));
}

#[test]
fn missing_database_is_named() {
    let host = InProcess::new("");
    let output = host.cli(&["audit", "verify", "--database", "/nowhere/mps-manager.db"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr_of(&output).contains("there is no database /nowhere/mps-manager.db"),
        "{}",
        stderr_of(&output)
    );
}

#[test]
fn unreachable_servers_are_explained() {
    let host = InProcess::stopped();
    let nowhere = host.cli(&["status", "--runtime-dir", "/nowhere/at/all"]);
    assert_eq!(nowhere.status.code(), Some(2));
    for part in [
        "/nowhere/at/all/api.sock cannot be reached",
        "`mps-manager serve` running?",
        "--runtime-dir or --url",
    ] {
        assert!(stderr_of(&nowhere).contains(part), "{}", stderr_of(&nowhere));
    }
    let url = host.url();
    let without = host.cli(&["status", "--url", &url]);
    assert_eq!(without.status.code(), Some(2));
    assert!(
        stderr_of(&without).contains("requires a token: set MPS_MANAGER_TOKEN"),
        "{}",
        stderr_of(&without)
    );
    let secure = host.cli(&["status", "--url", &url.replace("http://", "https://")]);
    assert!(stderr_of(&secure).contains("speaks http, not https: use http://"), "{}", stderr_of(&secure));
}

#[test]
fn contexts_name_servers() {
    let host = InProcess::stopped();
    let token = host.state("admin.token").display().to_string();
    let home = host.dir().join("home");
    let run = |words: &[&str]| {
        let mut command = host.command(words);
        command.env_remove("MPS_MANAGER_RUNTIME_DIR").env("XDG_CONFIG_HOME", &home);
        command.output().expect("it runs")
    };
    let added = run(&["context", "add", "lab", "--url", &host.url(), "--token-file", &token]);
    assert_eq!(added.status.code(), Some(0), "{}", stderr_of(&added));
    let who = run(&["whoami"]);
    assert!(stdout_of(&who).contains("(from 127.0.0.1)"), "{}{}", stdout_of(&who), stderr_of(&who));
    let socket = host.runtime("").display().to_string();
    assert!(stdout_of(&added).contains("; lab is in use"), "{}", stdout_of(&added));
    let second = run(&["context", "add", "here", "--runtime-dir", &socket]);
    let advice = "lab is in use (`mps-manager context use NAME` switches)";
    assert!(stdout_of(&second).contains(advice), "{}", stdout_of(&second));
    assert!(stdout_of(&run(&["whoami"])).contains("(from 127.0.0.1)"), "nothing was switched");
    run(&["context", "use", "here"]);
    assert!(stdout_of(&run(&["whoami"])).contains("(from socket)"));
    assert!(stdout_of(&run(&["whoami", "--context", "lab"])).contains("(from 127.0.0.1)"));
    assert!(stdout_of(&run(&["context", "list"])).contains("*        here"));
    for wrong in ["foo", "ftp://gpu7"] {
        let refused = run(&["context", "add", "wrong", "--url", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(!stdout_of(&run(&["context", "list"])).contains("wrong"));
    }
    let again = run(&["context", "add", "here", "--runtime-dir", &socket]);
    assert!(stdout_of(&again).contains("context here was replaced in "), "{}", stdout_of(&again));
    run(&["context", "use", "lab"]);
    assert!(stdout_of(&run(&["whoami"])).contains("(from 127.0.0.1)"));
    let unknown = run(&["status", "--context", "prod"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr_of(&unknown).contains("there is no context \"prod\": there is here, lab"));

    // A file that others could have read is not used.
    let file = home.join("mps-manager/contexts.toml");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("mode");
    let open = run(&["status"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(stderr_of(&open).contains("chmod 600"), "{}", stderr_of(&open));
}

fn uuid_of_nothing() -> String {
    "00000000-0000-7000-8000-000000000000".to_owned()
}
