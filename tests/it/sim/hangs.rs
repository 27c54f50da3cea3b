//! A server that hangs over a client which died before it was taken, and what hangs with it (recordings 10, 17 and 20).

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::host::{Busy, Done, Host, NOBODY, can_become_nobody, finish};
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

/// How long nothing is waited for.
const SILENCE: Duration = Duration::from_millis(400);
const LAST_WORDS: &str = "User did not send valid credentials";

/// A host whose first server, that of a client which was killed meanwhile, hangs.
fn hung() -> (Host, Pid) {
    // Four GPUs take a server more than a second to start.
    let host = Host::new("h200x4@13.0");
    host.start(&["-d"], &[]);
    let client = Busy::spawn(&mut host.client_command(&[], &[]));
    eventually("the client waits", || host.log("control.log").contains("push client to pending list"));
    client.signal(Signal::KILL);
    client.finish(TIMEOUT);
    eventually("the server hangs", || host.log("server.log").ends_with(&format!("{LAST_WORDS}\n")));
    let server = host.ask("get_server_list");
    let server = Pid::from_raw(server.trim().parse().unwrap()).unwrap();
    (host, server)
}

/// What mostly waits, for all of these at once.
fn all_at_once<T: Send>(all: impl IntoIterator<Item = T>, each: impl Fn(T) + Sync) {
    let each = &each;
    thread::scope(|scope| {
        for one in all {
            scope.spawn(move || each(one));
        }
    });
}

fn assert_unanswered(host: &Host, line: &str) {
    let done = finish(&mut host.control_program(), format!("{line}\n").as_bytes(), SILENCE);
    assert_eq!(done, Done { stdout: String::new(), stderr: String::new(), rc: 124 }, "{line}");
}

/// Whether the GPU's memory of a process is still taken.
fn on_gpu(host: &Host, pid: Pid) -> bool {
    let processes = host.world.dir().join("gpus").join(&host.uuids()[0]).join("processes");
    let lock = std::fs::File::open(processes.join(pid.as_raw_nonzero().to_string()));
    lock.is_ok_and(|file| {
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_err()
    })
}

#[test]
fn client_killed_during_server_start_hangs_it() {
    let hangs_and_heals = |command: &str| {
        let (host, server) = hung();
        let name = server.as_raw_nonzero();
        // The list is the daemon's own knowledge, until another command waits for the server.
        assert_eq!(host.ask("get_server_list\nget_server_list"), format!("{name}\n{name}\n"));
        let command =
            if command == "get_server_status" { format!("{command} {name}") } else { command.into() };
        assert_unanswered(&host, &command);
        assert_unanswered(&host, "get_server_list");
        host.signal(server, Signal::KILL);
        if command.starts_with("quit") {
            eventually("the daemon quits", || host.control("ps").stderr.starts_with("Cannot find"));
            return;
        }
        eventually("the daemon is back", || host.ask("get_server_list").is_empty());
        assert_eq!(host.client(&[], &[]).rc, 0);
        assert_ne!(host.ready(), server);
    };
    all_at_once(["ps", "get_server_status", "quit -t 1"], hangs_and_heals);
}

#[test]
fn hung_server_outlives_its_daemon() {
    let (host, server) = hung();
    let daemon = host.daemon();
    let waits = Busy::spawn(&mut host.client_command(&[], &[]));
    eventually("it is handed over", || host.log("control.log").contains("Server already exists"));
    host.signal(daemon, Signal::KILL);
    eventually("the daemon is gone", || host.control("ps").stderr.starts_with("Cannot find"));
    host.start(&["-d"], &[]);
    assert_eq!(host.ask("get_server_list"), "");
    assert_ne!(host.server(), server);
    assert!(on_gpu(&host, server));
    host.signal(server, Signal::KILL);
    eventually("its memory is free", || !on_gpu(&host, server));
    assert_eq!(waits.finish(TIMEOUT).rc, 3);
    assert_eq!(host.client(&[], &[]).rc, 0);
}

#[test]
fn client_killed_behind_other_user_hangs_server() {
    if !can_become_nobody() {
        return;
    }
    let recorded = transcript::hardware("10-h200-x1-probe.txt");
    let (_, rest) = recorded.split_once("# waiting-client-killed").unwrap();
    let (_, rest) = rest.split_once("[quit rc 124]").unwrap();
    let (logs, _) = rest.split_once("\n\n").unwrap();
    let last = logs.lines().rfind(|line| line.starts_with("  s| ")).unwrap();
    assert!(last.ends_with(LAST_WORDS));

    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let first = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready();
    let mut waiting = host.client_command(&[], &[]);
    let waiting = Busy::spawn(waiting.uid(NOBODY).gid(NOBODY));
    eventually("the second user waits", || {
        host.log("control.log").contains("from user 65534: Server is not")
    });
    waiting.signal(Signal::KILL);
    waiting.finish(TIMEOUT);
    first.signal(Signal::KILL);
    first.finish(TIMEOUT);
    eventually("the next server hangs", || host.log("server.log").ends_with(&format!("{LAST_WORDS}\n")));
    assert_ne!(host.ask("get_server_list").trim(), server.as_raw_nonzero().to_string());
    assert_unanswered(&host, "ps");
}

/// Recorded in 17-h200-x1-killed-connecting.txt: with the process's own connection (its hang 1) and that of a context
/// (its hang 6).
#[test]
fn client_killed_while_connecting_hangs_server() {
    let recorded = transcript::hardware("17-h200-x1-killed-connecting.txt");
    let (_, hangs) = recorded.split_once("== hang 1 ").unwrap();
    let (first, _) = hangs.split_once("== hang 2 ").unwrap();
    let (_, server) = first.split_once(", server ").unwrap();
    let (server_there, _) = server.split_once(',').unwrap();
    let unanswered: Vec<&str> = first
        .lines()
        .filter_map(|line| line.trim().split_once(": NO ANSWER in "))
        .map(|(ask, _)| ask)
        .collect();
    assert_eq!(unanswered.len(), 8);
    all_at_once(["0", "1"], |connection| {
        let host = Host::new("h200x1@13.0");
        host.start(&["-d"], &[]);
        let server = host.server();
        let name = server.as_raw_nonzero();
        let mut busy = host.busy_client(&["--spin", "60"], &[]);
        assert_eq!(host.client(&["--die-connecting", connection], &[]).rc, 128 + 9);
        eventually("the server hangs", || host.log("server.log").contains(LAST_WORDS));
        let log = host.log("server.log");
        let (before, _) = log.split_once(LAST_WORDS).unwrap();
        // The threads of its other connection may write their farewell in between.
        assert!(
            before.lines().rev().take(6).any(|line| line.contains("Received new client request")),
            "{log}"
        );
        let waits = Busy::spawn(&mut host.client_command(&["--json"], &[]));
        let accepted = format!("NEW CLIENT {} from user", waits.pid().as_raw_nonzero());
        eventually("the daemon hands it over", || host.log("control.log").contains(&accepted));
        all_at_once(unanswered.iter().copied(), |line| {
            assert_unanswered(&host, &line.replace(server_there, &name.to_string()));
        });
        assert!(busy.running(), "a connected client continues");

        host.signal(server, Signal::KILL);
        eventually("the daemon is back", || host.ask("get_server_list").is_empty());
        let waited = waits.finish(TIMEOUT);
        assert!(waited.rc == 3 && waited.stdout.contains("CUDA_ERROR_MPS_CONNECTION_FAILED"), "{waited:?}");
        let ended = busy.finish(TIMEOUT);
        assert!(ended.rc == 4 && ended.stderr.contains("cudaErrorMpsRpcFailure"), "{ended:?}");
        assert_eq!(host.client(&[], &[]).rc, 0);
    });
}

#[test]
fn client_killed_after_connecting_is_harmless() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let server = host.server();
    for _ in 0..10 {
        let client = host.busy_client(&["--spin", "60"], &[]);
        client.signal(Signal::KILL);
        client.finish(TIMEOUT);
    }
    assert_eq!(host.client(&[], &[]).rc, 0);
    assert_eq!(host.ready(), server);
    let list: PathBuf = host.world.dir().join("gpus").join(&host.uuids()[0]).join("processes");
    eventually("only the server is left", || {
        // A reader of the list removes what is dead.
        host.see(&[]);
        list.read_dir().unwrap().count() == 1
    });
}

/// Recorded in 20-h200-x1-killed-while-another-connects.txt: the control daemon hangs with its server, the end of the client that
/// waits heals nothing, and the end of the server heals at once.
#[test]
fn connecting_hang_heals_with_the_server() {
    let recorded = transcript::hardware("20-h200-x1-killed-while-another-connects.txt");
    let (_, control) = recorded.split_once("-- control.log").unwrap();
    let (control, asked) = control.split_once("$ get_server_list").unwrap();
    let last = control.lines().rfind(|line| line.contains("Control")).unwrap();
    assert!(last.ends_with("NEW CLIENT 661 from user 0: Server already exists"), "{last}");
    assert_eq!(asked.split("-- another client now").next().unwrap().matches("[rc 124]").count(), 3);
    assert!(asked.contains("-- heal 1: kill A") && asked.contains("-- last: kill -9 server\nSM 132 "));

    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let server = host.server();
    assert_eq!(host.client(&["--die-connecting", "1"], &[]).rc, 128 + 9);
    eventually("the server hangs", || host.log("server.log").contains(LAST_WORDS));
    let waits = Busy::spawn(&mut host.client_command(&["--json"], &[]));
    let accepted = format!("NEW CLIENT {} from user 0: Server already exists", waits.pid().as_raw_nonzero());
    eventually("its last words", || host.log("control.log").trim_end().ends_with(&accepted));
    let status = format!("get_server_status {}", server.as_raw_nonzero());
    let commands = ["get_server_list", status.as_str(), "ps"];
    all_at_once(commands, |command| assert_unanswered(&host, command));
    let another = Busy::spawn(&mut host.client_command(&["--json"], &[]));
    waits.signal(Signal::KILL);
    waits.finish(TIMEOUT);
    all_at_once(commands, |command| assert_unanswered(&host, command));
    host.signal(server, Signal::KILL);
    eventually("the daemon answers", || host.ask("get_server_list").is_empty());
    another.finish(TIMEOUT);
    assert_eq!(host.client(&[], &[]).rc, 0);
    assert_ne!(host.ready(), server);
}
