//! The command line against a manager: nouns, exit codes, formats, contexts, and bad input.

mod formats;
mod lost_answers;
mod nouns;
mod reference;
mod refusals;
mod top;

use std::process::Output;

use serde_json::Value;

use crate::harness::{Served, stderr_of};

fn stdout_of(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Runs a command that must succeed, and gives what it printed.
#[track_caller]
fn ok(host: &Served, arguments: &[&str]) -> String {
    let output = host.cli(arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", stdout_of(&output), stderr_of(&output));
    stdout_of(&output)
}

/// The same with its result as JSON.
#[track_caller]
fn json_of(host: &Served, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(host, &[arguments, &["-o", "json"]].concat())).expect("JSON")
}
