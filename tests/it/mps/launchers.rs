//! Daemons started by another program, which executes the command in its own place, or refuses to.

use std::fs;
use std::time::Duration;

use mps_manager::host::process;
use mps_manager::mps::process::{DaemonSearch, Launcher, StartSpec, find, start};

use super::host::Host;
use crate::harness::eventually_async;
use crate::harness::scratch::install_script;

/// A spec whose daemon is to be started by a shell script of these lines.
fn launched_by(host: &Host, lines: &str) -> StartSpec {
    let program = host.path("launcher");
    install_script(&program, &format!("#!/bin/sh\n{lines}\n"));
    let arguments = ["--unit=a.scope", "--"].map(Into::into).into();
    StartSpec { launcher: Some(Launcher { program, arguments }), ..host.spec("a") }
}

#[tokio::test]
async fn a_launcher_executes_the_command_in_its_place() {
    let host = Host::new("h200x2");
    let spec = launched_by(&host, "echo \"$1\" >\"${0%/*}/unit\"; shift 2; exec \"$@\"");
    let started = start(&host.program(), &spec).await.expect("a daemon");
    assert_eq!(started.refused, None);
    assert_eq!(fs::read_to_string(host.path("unit")).expect("reported"), "--unit=a.scope\n");
    let words = process::command(started.identity.pid).expect("alive");
    assert_eq!(words.last().map(String::as_str), Some("-d"));
}

#[tokio::test]
async fn daemon_starts_without_refusing_launcher() {
    let host = Host::new("h200x2");
    let spec = launched_by(&host, "echo 'no scopes today' >&2; exit 1");
    let started = start(&host.program(), &spec).await.expect("a daemon");
    let refused = started.refused.expect("a reason");
    assert!(refused.contains("launcher failed") && refused.contains("no scopes today"), "{refused}");
    assert!(process::is_alive(started.identity));
}

#[tokio::test]
async fn hung_launcher_is_ended_and_skipped() {
    let host = Host::new("h200x2");
    let spec = launched_by(&host, "exec sleep 600");
    let spec = StartSpec { deadline: Duration::from_secs(10), ..spec };
    let started = start(&host.program(), &spec).await.expect("a daemon");
    let refused = started.refused.expect("a reason");
    assert!(refused.contains("did not end in time"), "{refused}");
    let marked = process::find_by_env("MPS_MANAGER_INCARNATION", &spec.token);
    assert_eq!(marked, [started.identity], "the launcher is gone");
}

#[tokio::test]
async fn running_launcher_counts_as_starting_daemon() {
    let host = Host::new("h200x2");
    let spec = launched_by(&host, "sleep 600; exec \"$@\"");
    let (token, pipe) = (spec.token.clone(), spec.pipe_directory.clone());
    let program = host.program();
    let starting = tokio::spawn(async move { start(&program, &spec).await });
    let at_work = || matches!(find(&token, &pipe), DaemonSearch::Starting(_));
    eventually_async("the launcher is seen at work", async || at_work()).await;
    starting.abort();
}

#[tokio::test]
async fn missing_launcher_is_skipped() {
    let host = Host::new("h200x2");
    let launcher = Launcher { program: host.path("nowhere"), arguments: Vec::new() };
    let spec = StartSpec { launcher: Some(launcher), ..host.spec("a") };
    let started = start(&host.program(), &spec).await.expect("a daemon");
    assert!(started.refused.is_some_and(|why| why.contains("nowhere")));
}
