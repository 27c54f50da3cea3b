//! Host files on several hosts at once.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::harness::{InProcess, Served, stderr_of};

const FILE: &str = "
version: v1
daemons:
  gpu0: {gpus: [0]}
tenants:
  web: {daemon: gpu0, uid: 0, device_memory_limit: 4G}
";

fn runtime(host: &Served) -> String {
    host.runtime("").display().to_string().trim_end_matches('/').to_owned()
}

/// Host and result of each row.
fn results(output: &Output) -> Vec<(String, String)> {
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&output.stdout), stderr_of(output))
    });
    let word = |row: &Value, field: &str| row[field].as_str().expect("a word").to_owned();
    rows.as_array().expect("rows").iter().map(|row| (word(row, "host"), word(row, "result"))).collect()
}

fn written(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).expect("written");
    path.display().to_string()
}

#[test]
fn host_file_is_applied_on_several_hosts() {
    let hosts = [InProcess::configured(""), InProcess::configured("")];
    let file = written(hosts[0].dir(), "host.yaml", FILE);
    let names = [runtime(&hosts[0]), runtime(&hosts[1])];
    let list = written(hosts[0].dir(), "hosts", &format!("# both\n{}\n{}\n", names[0], names[1]));
    let on_both = |words: &[&str]| {
        let mut all = words.to_vec();
        all.extend(["-f", &file, "--hosts-file", &list, "-o", "json"]);
        hosts[0].cli(&all)
    };
    let expected = |result: &str| names.clone().map(|name| (name, result.to_owned())).to_vec();
    let differs = on_both(&["diff"]);
    assert_eq!((differs.status.code(), results(&differs)), (Some(1), expected("differs")));
    let rehearsed = on_both(&["apply", "--dry-run"]);
    assert_eq!((rehearsed.status.code(), results(&rehearsed)), (Some(0), expected("differs")));
    assert_eq!(hosts[1].api().get("/api/v1/tenants/web").status, 404);
    let applied = on_both(&["apply"]);
    assert_eq!(
        (applied.status.code(), results(&applied)),
        (Some(0), expected("applied")),
        "{}",
        stderr_of(&applied)
    );
    for host in &hosts {
        let tenant = host.api().get("/api/v1/tenants/web").ok();
        assert_eq!(tenant["spec"]["daemon"], "gpu0", "{tenant}");
    }
    let again = on_both(&["apply"]);
    assert_eq!((again.status.code(), results(&again)), (Some(0), expected("same")));
}

#[test]
fn host_that_fails_outweighs_others_and_stops_none() {
    let host = InProcess::configured("");
    let file = written(host.dir(), "host.yaml", FILE);
    let own = runtime(&host);
    let hosts = format!("127.0.0.1:1,{own}");
    let output = host.cli(&["apply", "-f", &file, "--hosts", &hosts, "-o", "json"]);
    let expected = [("127.0.0.1:1", "unreachable"), (own.as_str(), "applied")];
    assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
    let results = results(&output);
    let results: Vec<(&str, &str)> =
        results.iter().map(|(host, result)| (host.as_str(), result.as_str())).collect();
    assert_eq!(results, expected);
    let table = host.cli(&["diff", "-f", &file, "--hosts", &hosts]);
    let text = String::from_utf8_lossy(&table.stdout).into_owned();
    assert_eq!(table.status.code(), Some(2), "{text}");
    assert!(text.contains("cannot be reached") && text.contains("same"), "{text}");
}

#[test]
fn hosts_come_from_contexts_and_from_programs() {
    let host = InProcess::configured("");
    let (file, own) = (written(host.dir(), "host.yaml", FILE), runtime(&host));
    let config = host.dir().join("config");
    let with = |words: &[&str], path: &Path| {
        let mut command = host.command(words);
        let paths = std::env::join_paths(
            std::iter::once(path.to_owned())
                .chain(std::env::split_paths(&std::env::var_os("PATH").expect("set"))),
        );
        command.env("PATH", paths.expect("joined")).env("XDG_CONFIG_HOME", &config);
        command.output().expect("it runs")
    };
    let bin = host.dir().join("bin");
    fs::create_dir(&bin).expect("made");
    let added = with(&["context", "add", "lab", "--runtime-dir", &own], &bin);
    assert!(added.status.success(), "{}", stderr_of(&added));
    let known = with(&["diff", "-f", &file, "--contexts", "all", "-o", "json"], &bin);
    assert_eq!(results(&known), [("lab".to_owned(), "differs".to_owned())]);
    let unknown = with(&["diff", "-f", &file, "--contexts", "attic"], &bin);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr_of(&unknown).contains("attic"), "{}", stderr_of(&unknown));

    // What the programs of Slurm and Kubernetes print: one node a line.
    let program = |name: &str, text: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
    };
    program("scontrol", &format!("[ \"$*\" = 'show hostnames gpu[1-2]' ] && echo '{own}'"));
    program("kubectl", &format!("[ \"$*\" = 'get nodes -o name -l gpu=yes' ] && echo 'node/{own}'"));
    for (option, value) in [("--slurm", "gpu[1-2]"), ("--kubernetes", "gpu=yes")] {
        let listed = with(&["diff", "-f", &file, option, value, "-o", "json"], &bin);
        assert_eq!(results(&listed), [(own.clone(), "differs".to_owned())], "{option}");
    }
    // What names hosts may name others a moment later: what was compared is what is applied.
    let second = InProcess::ready();
    let other = runtime(&second);
    let calls = host.dir().join("calls");
    program(
        "kubectl",
        &format!(
            "if [ -e '{0}' ]; then echo 'node/{own}'; else touch '{0}'; printf 'node/{other}\\nnode/{own}\\n'; fi",
            calls.display()
        ),
    );
    let applied = with(&["apply", "-f", &file, "--kubernetes", "gpu=yes", "-o", "json"], &bin);
    let both = [(other.clone(), "applied".to_owned()), (own.clone(), "applied".to_owned())];
    assert_eq!(results(&applied), both, "{}", stderr_of(&applied));
    let refused = with(&["diff", "-f", &file, "--slurm", "gpu[9"], &bin);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr_of(&refused).contains("`scontrol show hostnames gpu[9` failed"),
        "{}",
        stderr_of(&refused)
    );
    let both = with(&["diff", "-f", &file, "--hosts", &own, "--runtime-dir", &own], &bin);
    assert_eq!(both.status.code(), Some(2), "{}", stderr_of(&both));
}

#[test]
fn deletions_on_several_hosts_are_counted_together() {
    let hosts = [InProcess::stopped(), InProcess::stopped()];
    let file = written(hosts[0].dir(), "empty.yaml", "version: v1\n");
    let names = format!("{},{}", runtime(&hosts[0]), runtime(&hosts[1]));
    let shown = hosts[0].cli(&["diff", "-f", &file, "--prune", "--hosts", &names, "-o", "json"]);
    let rows: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let deleted = |row: &Value| {
        let changes = row["changes"].as_array().expect("changes");
        changes.iter().filter(|change| change["action"] == json!("delete")).count()
    };
    let counts: Vec<usize> = rows.as_array().expect("rows").iter().map(deleted).collect();
    assert!(counts[0] > 0 && counts[0] == counts[1], "{rows}");
}
