//! docs/cli.md, held to the commands that there are; and completions.

use std::fmt::Write as _;
use std::process::Output;

use clap::{Command, CommandFactory as _};
use mps_manager::cli::Cli;

use super::super::openapi::kept;
use super::stdout_of;
use crate::harness::InProcess;

const BEGIN: &str = "<!-- commands: written by a test -->\n";
const END: &str = "<!-- end -->";

/// A row for each command that does something.
fn rows(command: &Command, path: &str, table: &mut String) {
    for one in command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "help") {
        let path = format!("{path}{}", one.get_name());
        if one.has_subcommands() {
            rows(one, &format!("{path} "), table);
            continue;
        }
        let about = one.get_about().unwrap_or_else(|| panic!("{path} says nothing of itself")).to_string();
        let aliases: Vec<&str> = one.get_visible_aliases().collect();
        let also =
            if aliases.is_empty() { String::new() } else { format!(" (also `{}`)", aliases.join("`, `")) };
        writeln!(table, "| `{path}`{also} | {} |", about.replace('|', "\\|")).expect("a string");
    }
}

#[test]
fn command_table_lists_every_command() {
    let mut table = String::from("| command | what it does |\n| --- | --- |\n");
    rows(&Cli::command(), "", &mut table);
    let text = include_str!("../../../../docs/cli.md");
    let (before, rest) = text.split_once(BEGIN).expect("a place for the table");
    let (_, after) = rest.split_once(END).expect("its end");
    kept("docs/cli.md", &format!("{before}{BEGIN}{table}{END}{after}"));
}

#[test]
fn connection_options_are_last_in_help() {
    let mut command = Cli::command();
    let mut found = 0;
    let mut all = vec![&mut command];
    while let Some(one) = all.pop() {
        let help = one.render_help().to_string();
        if let Some(at) = help.find("\nConnection:") {
            found += 1;
            let options = help.find("\nOptions:").unwrap_or(0);
            assert!(options < at, "{help}");
            assert!(help.contains("MPS_MANAGER_TOKEN"), "{help}");
        }
        all.extend(one.get_subcommands_mut());
    }
    assert!(found > 40, "{found}");
}

fn completed(host: &InProcess, words: &[&str], runtime_dir: &str) -> Output {
    let index = words.len().to_string();
    let line = [&["--", "mps-manager"], words].concat();
    let mut command = host.command(&line);
    command
        .env("MPS_MANAGER_COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", index)
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_COMP_TYPE", "9")
        .env("_CLAP_COMPLETE_SPACE", "true")
        .env("MPS_MANAGER_RUNTIME_DIR", runtime_dir);
    command.output().expect("it runs")
}

#[test]
fn completions_name_what_the_server_has() {
    let host = InProcess::stopped();
    let directory = host.runtime("").display().to_string();
    for (words, expected) in [
        (&["tenant", "get", ""][..], &["batch", "demo"][..]),
        (&["daemon", "restart", "g"], &["gpu0", "gpu1"]),
        (&["gpu", "get", ""], &["0", "1"]),
        (&["run", "--tenant", "d"], &["demo"]),
        (&["tena"], &["tenant"]),
    ] {
        let output = completed(&host, words, &directory);
        let printed = stdout_of(&output);
        let offered: Vec<&str> = printed.lines().map(str::trim).collect();
        for name in expected {
            assert!(offered.contains(name), "{words:?}: {printed}");
        }
    }
    // Without a server there are no names, and no message that would disturb the line.
    let output = completed(&host, &["tenant", "get", "d"], "/nowhere");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    assert!(!stdout_of(&output).contains("demo"));
}

#[test]
fn completion_scripts_are_printed_for_each_shell() {
    let host = InProcess::new("");
    for shell in ["bash", "zsh", "fish"] {
        let output = host.cli(&["completions", shell]);
        assert!(output.status.success() && stdout_of(&output).contains("MPS_MANAGER_COMPLETE"), "{shell}");
    }
}
