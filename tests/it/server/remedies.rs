//! Remedies: what a condition, an incident, a check or a refusal says to do is done as it stands there, and is gone then.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::json;

use super::doctor::examine;
use super::gpus::{mark, uuid};
use super::incidents::{incident, recovered};
use super::layouts::{add, apply, in_static_mode, matches, write};
use crate::harness::{Client, Host, Trap, eventually, is_root, stderr_of};

/// How a command begins that a person can copy out of a sentence.
const COMMANDS: [&str; 6] = ["mps-manager ", "kill ", "chown ", "chmod ", "mkdir ", "unset "];

/// The commands that a text names, with what is filled in for words in capitals.
fn commands(text: &str, fill: &[(&str, &str)]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = COMMANDS.iter().filter_map(|begin| rest.find(begin)).min() {
        let (before, command) = rest.split_at(at);
        let end = command.find(['`', ')', ';', ',', '"', '\n']).unwrap_or(command.len());
        // In a sentence that goes on, only what is marked as a command is one.
        if before.ends_with(['`', '(', ' ']) || before.is_empty() {
            let words = command[..end].trim_end_matches('.').split_whitespace();
            let filled = words.map(|word| {
                fill.iter().find(|(name, _)| *name == word).map_or(word, |(_, value)| *value).to_owned()
            });
            found.push(filled.collect());
        }
        rest = &command[end..];
    }
    found
}

/// Carries out the first command of a text that begins with these words.
fn carry_out(host: &Host, text: &str, begin: &str, fill: &[(&str, &str)]) {
    let all = commands(text, fill);
    let command = all.iter().find(|words| words.join(" ").starts_with(begin));
    let command = command.unwrap_or_else(|| panic!("no {begin:?} in {all:?} of {text:?}"));
    let (program, arguments) = command.split_first().expect("a program");
    let mut words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = if program == "mps-manager" {
        // Without a terminal a question is answered beforehand.
        let asks = ["daemon restart", "daemon adopt", "terminate"];
        if asks.iter().any(|begin| words.join(" ").starts_with(begin)) {
            words.push("--yes");
        }
        host.cli(&words)
    } else {
        Command::new(program).args(&words).output().expect("it runs")
    };
    assert!(
        output.status.success(),
        "{command:?} of {text:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        stderr_of(&output)
    );
}

/// The message of a condition of a daemon that needs attention, once it is there.
fn condition(host: &Host, daemon: &str, kind: &str) -> String {
    eventually(&format!("{kind} of {daemon}"), || {
        let condition = host.condition(daemon, kind)?;
        let is_good = ["Ready", "Schedulable", "ComputeMode", "Layout"].contains(&kind);
        (condition["status"] != json!(is_good)).then(|| condition["message"].as_str().unwrap().to_owned())
    })
}

fn gone(host: &Host, daemon: &str, kind: &str) {
    eventually(&format!("{kind} of {daemon} is gone"), || {
        let is_good = ["Ready", "Schedulable", "ComputeMode", "Layout"].contains(&kind);
        host.condition(daemon, kind)
            .is_none_or(|condition| condition["status"] == json!(is_good))
            .then_some(())
    });
}

/// What doctor says of one check, and its remedy.
fn check_of(host: &Host, id: &str) -> (String, String) {
    let seen = examine(host);
    (seen.status(id).to_owned(), seen.checks[id]["remedy"].as_str().unwrap_or_default().to_owned())
}

/// The remedy of a check of doctor about a daemon's condition.
fn check(host: &Host) -> String {
    check_of(host, "daemons").1
}

/// Carries out the remedy of a check that is not well; it is well then.
fn mend(host: &Host, id: &str, begin: &str, fill: &[(&str, &str)]) {
    let (status, remedy) = check_of(host, id);
    assert!(status == "warn" || status == "fail", "{id} is {status}");
    carry_out(host, &remedy, begin, fill);
    eventually(&format!("{id} is well"), || (check_of(host, id).0 == "ok").then_some(()));
}

#[test]
fn cordoned_daemon_takes_clients_again() {
    let host = Host::ready();
    for from_doctor in [false, true] {
        host.api().post("/api/v1/daemons/gpu1/cordon", &json!({})).ok();
        let message = condition(&host, "gpu1", "Schedulable");
        let text = if from_doctor { check(&host) } else { message };
        carry_out(&host, &text, "mps-manager daemon uncordon", &[]);
        gone(&host, "gpu1", "Schedulable");
    }
    // A refusal of a new process has it as well.
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    let refused = host.run("demo", &["true"]);
    assert_eq!(refused.status.code(), Some(2));
    carry_out(&host, &stderr_of(&refused), "mps-manager daemon uncordon", &[]);
    assert!(host.run("demo", &["true"]).status.success());
}

#[test]
fn maintenance_is_ended() {
    let host = Host::ready();
    let begun = host.api().post("/api/v1/host/maintenance", &json!({"gpus": ["1"]}));
    host.api().succeeds(&begun);
    let message = condition(&host, "gpu1", "Schedulable");
    carry_out(&host, &message, "mps-manager maintenance end", &[]);
    gone(&host, "gpu1", "Schedulable");
    host.await_ready();
}

#[test]
fn stopped_daemon_is_started() {
    let host = Host::ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    carry_out(&host, &check(&host), "mps-manager daemon start gpu1", &[]);
    host.await_phase("gpu1", "ready");
}

#[test]
fn expired_tenant_gets_a_later_expiry() {
    let host = Host::ready();
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "max_clients": 1});
    assert_eq!(host.api().tenant("short", &spec).status, 201);
    host.await_ready();
    let _client = host.client("short");
    let drained = host.api().delete("/api/v1/tenants/short?drain=true");
    assert_eq!(drained.status, 204, "{}", drained.text);
    let refused = stderr_of(&host.run("short", &["true"]));
    carry_out(&host, &refused, "mps-manager tenant set", &[]);
    eventually("it is drained no longer", || {
        (host.api().get("/api/v1/tenants/short").ok()["status"]["draining"] != true).then_some(())
    });
}

#[test]
fn gpu_that_is_missing_is_replaced() {
    let host = Host::ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    let lost = uuid(&host, 0);
    mark(&host, &lost, "lost");
    let message = condition(&host, "gpu0", "Ready");
    let open = incident(&host, "gpu_missing", |one| one["state"] == "open");
    carry_out(&host, &message, "mps-manager gpu replace", &[("GPU", "1")]);
    host.await_phase("gpu0", "ready");
    let over = incident(&host, "gpu_missing", recovered);
    assert_eq!(over["id"], open["id"]);
}

#[test]
fn holders_of_a_server_continue_or_end() {
    let host = Host::ready();
    let at_work = host.client("demo");
    let stopped = host.client("demo");
    stopped.signal(Signal::STOP);
    let mut faulting = host.client_command("demo", &["--spin", "600", "--fault-after", "0"]);
    faulting.status().expect("it ends by its own fault");
    let message = eventually("what holds the server is named", || {
        let message = condition(&host, "gpu0", "ServerFault");
        message.contains("kill -CONT").then_some(message)
    });
    let open = incident(&host, "gpu_fault", |one| one["state"] == "open");
    carry_out(&host, &message, "kill -CONT", &[]);
    drop(at_work);
    gone(&host, "gpu0", "ServerFault");
    assert_eq!(incident(&host, "gpu_fault", recovered)["id"], open["id"]);
}

#[test]
fn directory_of_another_is_given_back() {
    if !is_root() {
        return;
    }
    let mut host = Host::new("");
    let of_daemon = host.runtime("daemons/gpu1");
    fs::create_dir_all(&of_daemon).unwrap();
    std::os::unix::fs::chown(&of_daemon, Some(33), Some(33)).unwrap();
    let refusal = host.refused(&[]);
    carry_out(&host, &refusal, "chown", &[]);
    host.serve();
    host.await_phase("gpu1", "ready");
}

#[test]
fn settings_that_others_changed_are_restored() {
    let host = Host::ready();
    let report = json!({"gpus": ["0"], "drift_policy": "report"});
    host.api().put("/api/v1/daemons/gpu0?wait_s=30", &report).ok();
    host.control("gpu0", "set_default_active_thread_percentage 30");
    let message = condition(&host, "gpu0", "SettingsDrifted");
    let open = incident(&host, "drift", |one| one["state"] == "open");
    carry_out(&host, &message, "mps-manager daemon set gpu0", &[]);
    gone(&host, "gpu0", "SettingsDrifted");
    assert_ne!(host.control("gpu0", "get_default_active_thread_percentage"), "30.0");
    let over = incident(&host, "drift", recovered);
    assert_eq!(over["id"], open["id"]);
}

#[test]
fn partitions_that_others_changed_are_restored() {
    let host: Host = super::layouts::host();
    in_static_mode(&host);
    write(&host, "prod", &[add("web", 3), add("more", 2)]);
    apply(&host, "prod", &json!({"drift_policy": "report"}));
    assert!(matches(&host, "prod"));
    let more = super::layouts::partitions(&host).pop().expect("two").1;
    host.control("gpu1", &format!("sm_partition rm {}/{more}", uuid(&host, 1)));
    let message = condition(&host, "gpu1", "PartitionsDrifted");
    let open = incident(&host, "drift", |one| one["state"] == "open");
    carry_out(&host, &message, "mps-manager layout apply prod", &[]);
    gone(&host, "gpu1", "PartitionsDrifted");
    assert!(matches(&host, "prod"));
    let over = incident(&host, "drift", recovered);
    assert_eq!(over["id"], open["id"]);
}

#[test]
fn process_outside_mps_is_started_by_run() {
    let host = Host::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
    let outside = Client::start(command);
    let open = incident(&host, "bypass", |one| one["state"] == "open");
    let message = condition(&host, "gpu0", "Bypass");
    assert!(message.contains("start them with `mps-manager run`"), "{message}");
    outside.signal(Signal::KILL);
    let inside = host.run_client("demo");
    gone(&host, "gpu0", "Bypass");
    assert_eq!(host.listed(inside.pid())["tenant"], "demo");
    assert_eq!(incident(&host, "bypass", recovered)["id"], open["id"]);
}

#[test]
fn daemon_that_needs_a_restart_is_restarted() {
    let host = Host::ready();
    let _client = host.client("demo");
    let changed = json!({"gpus": ["0"], "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &changed).status, 200);
    let message = condition(&host, "gpu0", "RestartRequired");
    carry_out(&host, &message, "mps-manager daemon restart gpu0", &[]);
    gone(&host, "gpu0", "RestartRequired");
    host.await_phase("gpu0", "ready");
}

#[test]
fn database_of_another_machine_is_confirmed() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    host.execute_sql("UPDATE host SET machine_id = '00000000000000000000000000000001'");
    host.serve();
    let spec = json!({"daemon": "gpu0", "uid": 0});
    let refused = host.api().tenant("web", &spec).problem(409, "read-only");
    carry_out(&host, refused["detail"].as_str().unwrap(), "mps-manager host confirm", &[]);
    assert_eq!(host.api().tenant("web", &spec).status, 201);
}

#[test]
fn daemons_of_lost_database_come_back() {
    let mut host = Host::ready();
    host.end_manager(Signal::KILL);
    fs::remove_dir_all(host.state("")).unwrap();
    host.serve();
    let status = String::from_utf8_lossy(&host.cli(&["status"]).stdout).into_owned();
    carry_out(&host, &status, "mps-manager daemon adopt --all-ours", &[]);
    host.await_phase("gpu0", "ready");
    let status = String::from_utf8_lossy(&host.cli(&["status"]).stdout).into_owned();
    assert!(!status.contains("adopt --all-ours"), "{status}");
}

#[test]
fn crash_loop_ends_once_its_cause_is_mended() {
    let trap = Trap::new();
    let mut host = Host::new(&trap.config());
    trap.install(&host);
    host.serve();
    host.await_ready();
    trap.refuse_starts();
    super::super::harness::signal(host.daemon_pid("gpu1"), Signal::KILL);
    host.await_phase("gpu1", "crash_loop");
    let open = incident(&host, "crash_loop", |one| one["state"] == "open");
    let remedy = open["remedy"].as_str().unwrap();
    carry_out(&host, remedy, "mps-manager daemon logs gpu1", &[]);
    trap.install(&host);
    assert!(remedy.ends_with("start the daemon."), "{remedy}");
    assert!(host.cli(&["daemon", "start", "gpu1"]).status.success());
    host.await_phase("gpu1", "ready");
    assert_eq!(incident(&host, "crash_loop", recovered)["id"], open["id"]);
}

#[test]
fn full_tenant_is_waited_for() {
    let host = Host::ready();
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "max_clients": 1});
    assert_eq!(host.api().tenant("one", &spec).status, 201);
    host.await_ready();
    let running = host.run_client("one");
    let refused = stderr_of(&host.run("one", &["true"]));
    assert!(refused.contains("mps-manager run --wait"), "{refused}");
    let mut command = host.command(&["run", "--wait", "--tenant", "one", "--", "true"]);
    let mut waiting = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    BufReader::new(waiting.stderr.take().expect("piped")).read_line(&mut said).expect("a line");
    assert!(said.contains("waiting: "), "{said}");
    drop(running);
    assert!(waiting.wait().expect("it ends").success());
}

#[test]
fn client_beyond_its_limit_is_terminated() {
    let host = Host::ready();
    let mut command = host.client_command("demo", &["--spin", "600", "--alloc", "16384"]);
    command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "7=100G");
    let client = Client::start(command);
    let open = incident(&host, "breach", |one| one["state"] == "open");
    let remedy = open["remedy"].as_str().unwrap();
    for begin in ["mps-manager client get", "mps-manager client terminate"] {
        carry_out(&host, remedy, begin, &[]);
    }
    let over = incident(&host, "breach", recovered);
    assert!(!over["remedy"].as_str().unwrap().contains("terminate"), "{over}");
    drop(client);
}

#[test]
fn open_files_and_directories_are_closed() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&host.state("admin.token"), 0o644);
    mend(&host, "state_directory", "chmod 600", &[]);
    mode(&host.runtime(""), 0o777);
    mend(&host, "runtime_directory", "chmod go-w", &[]);
}

#[test]
fn process_outside_mps_is_ended() {
    let host = Host::ready();
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
    let outside = Client::start(command);
    eventually("it is seen", || (check_of(&host, "outside_mps").0 == "warn").then_some(()));
    mend(&host, "outside_mps", &format!("kill {}", outside.pid()), &[]);
}

#[test]
fn missing_directory_of_specifications_is_made() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("cdi");
    let host = Host::configured(&format!("cdi_dir = \"{}\"", directory.display()));
    mend(&host, "cdi", "mkdir -m 755", &[]);
}

#[test]
fn damaged_database_is_restored() {
    let mut host = Host::ready();
    let backup = host.dir().join("backup.db").display().to_string();
    let state = host.state("").display().to_string();
    assert!(host.cli(&["backup", &backup, "--state-dir", &state]).status.success());
    host.end_manager(Signal::TERM);
    fs::write(host.state("mps-manager.db"), "words").unwrap();
    mend(&host, "database", "mps-manager restore", &[("FILE", &backup)]);
    host.serve();
    host.await_ready();
}
