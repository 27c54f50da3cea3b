//! What a daemon hears from the manager while nobody uses it.

use std::fs;

use super::wake::polls;
use crate::harness::{Client, Host, Served, eventually};

/// What a daemon's control.log has.
#[derive(Debug)]
struct Lines {
    all: usize,
    /// Commands, without those that only delimit replies in the manager's own sessions.
    sent: usize,
    delimiters: usize,
}

fn lines(host: &Served) -> Lines {
    let text = fs::read_to_string(host.runtime("daemons/gpu0/log/control.log")).unwrap();
    let (commands, delimiters) = (text.matches("] Cmd:").count(), text.matches("] Cmd:zz-").count());
    Lines { all: text.lines().count(), sent: commands - delimiters, delimiters }
}

#[test]
fn idle_daemons_log_grows_by_few_lines() {
    let mut host = Host::new("");
    host.poll_every(60);
    host.serve();
    host.await_ready();
    let is_in_journal = |kind: &str| {
        let events = host.api().get(&format!("/api/v1/events?type={kind}")).ok();
        (!events["items"].as_array().unwrap().is_empty()).then_some(())
    };
    // A program outside MPS comes and goes, which only reading the GPU's processes shows: these readings are the clock here.
    let before = (polls(&host), lines(&host));
    let mut command = host.client_command("demo", &["--spin", "600"]);
    command.env("CUDA_MPS_PIPE_DIRECTORY", host.dir());
    let outside = Client::start(command);
    eventually("the GPU's processes are read", || is_in_journal("bypass.appeared"));
    drop(outside);
    eventually("they are read again", || is_in_journal("bypass.ended"));
    let after = (polls(&host), lines(&host));
    assert!(after.0 - before.0 <= 2, "{} sessions", after.0 - before.0);
    assert!(after.1.all - before.1.all < 60, "{before:?} {after:?}");

    // Few delimiters separate the replies of a session's commands.
    let before = lines(&host);
    for _ in 0..5 {
        host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    }
    let after = lines(&host);
    assert!(after.sent > before.sent && after.delimiters > before.delimiters, "{before:?} {after:?}");
    let (sent, delimiters) = (after.sent - before.sent, after.delimiters - before.delimiters);
    assert!(delimiters < sent, "{delimiters} delimiters for {sent} commands");
}
