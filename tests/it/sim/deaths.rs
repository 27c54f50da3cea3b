//! Which processes die together, and what stays (recordings 02, 06, 10 and 11).

use rustix::process::{Signal, test_kill_process};

use super::host::{Host, uid};
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

const RPC: &str =
    "cudaErrorMpsRpcFailure the remote procedural call between the MPS server and the MPS client failed";

fn names(host: &Host) -> Vec<String> {
    let entries = host.pipe().read_dir().unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ALL: [&str; 5] =
    ["control", "control_lock", "control_privileged", "log", "nvidia-cuda-mps-control.pid"];

#[test]
fn killed_server_ends_clients_and_is_replaced() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready();
    host.signal(server, Signal::KILL);
    let done = client.finish(TIMEOUT);
    assert_eq!(done.rc, 4);
    assert!(done.stderr.contains(RPC), "{}", done.stderr);
    eventually("the daemon has noticed", || host.ask("get_server_list").is_empty());
    assert_eq!(host.ask("ps"), "Server not found\n");
    assert_eq!(names(&host), ALL);
    assert_eq!(host.client(&[], &[]).rc, 0);
    assert_ne!(host.ready(), server);
}

#[test]
fn killed_server_is_listed_until_noticed() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let recorded = transcript::hardware("11-h200-x1-server-death.txt");
    assert!(recorded.contains("\n814\nFAULT\n") && recorded.contains("] Server 814 exited with status 0\n"));
    // Where the session is too late it proves nothing, and another server dies.
    eventually("a session is through before the end is noticed", || {
        let server = host.server();
        let name = server.as_raw_nonzero();
        let ended = || host.log("control.log").contains(&format!("] Server {name} exited with status 0\n"));
        host.signal(server, Signal::KILL);
        let seen = host.ask(&format!(
            "get_server_list\nps\nget_server_status {name}\nstart_server -uid {}\nget_server_list",
            uid()
        ));
        if ended() {
            return false;
        }
        assert_eq!(seen, format!("{name}\nFAULT\n{name}\n"));
        eventually("the end is noticed", ended);
        assert_eq!(host.ask("get_server_list\nps"), "Server not found\n");
        assert_ne!(host.server(), server);
        true
    });
}

#[test]
fn killed_daemon_ends_its_server_and_clients() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    let (server, daemon) = (host.ready(), host.daemon());
    host.signal(daemon, Signal::KILL);
    let done = client.finish(TIMEOUT);
    assert_eq!(done.rc, 4);
    assert!(done.stderr.contains(RPC), "{}", done.stderr);
    assert_eq!(names(&host), ALL);
    let next = host.control("get_server_list");
    assert_eq!((next.rc, next.stderr.as_str()), (1, "Cannot find MPS control daemon process\n"));
    // Nothing reaps it here: dead is what is no longer running.
    eventually("the server is dead", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.as_raw_nonzero()));
        test_kill_process(server).is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    host.start(&["-d"], &[]);
    assert_ne!(host.daemon(), daemon);
    assert_eq!(host.ask("get_server_list"), "");
    assert_eq!(host.client(&[], &[]).rc, 0);
}

#[test]
fn killed_client_frees_only_its_memory() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let killed = host.busy_client(&["--spin", "60", "--alloc", "4096"], &[]);
    let stays = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready().as_raw_nonzero();
    let free = || host.see(&[])["devices"][0]["memory_free"].as_u64().unwrap();
    eventually("the memory is taken", || free() < 145 << 30);
    let before = free();
    killed.signal(Signal::KILL);
    killed.finish(TIMEOUT);
    assert!(free() > before + (4096 << 20));
    let lists_the_other = format!("{}\n", stays.pid().as_raw_nonzero());
    eventually("the list is right", || host.ask(&format!("get_client_list {server}")) == lists_the_other);
    assert_eq!(host.ask(&format!("get_server_status {server}")), "ACTIVE\n");
}

#[test]
fn quit_waits_for_clients_and_refuses_new_ones() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    host.ready();
    let quit =
        super::host::finish(&mut host.control_program(), b"quit\n", std::time::Duration::from_millis(500));
    assert_eq!(quit.rc, 124, "it waits as long as it is let");
    assert_eq!(host.client(&[], &[]).rc, 3);
    client.signal(Signal::KILL);
    client.finish(TIMEOUT);
    eventually("the daemon is gone", || host.control("ps").stderr.starts_with("Cannot find"));
    assert_eq!(names(&host), ["control", "control_lock", "control_privileged"]);
}

#[test]
fn server_process_resembles_its_daemon() {
    let host = Host::new("h200x1@13.0");
    let bin = host.world.bin();
    let mut program = host.command(bin.join("nvidia-cuda-mps-control"));
    assert_eq!(super::host::finish(program.arg("-d").current_dir(host.path("w")), b"", TIMEOUT).rc, 0);
    let (server, daemon) = (host.server().as_raw_nonzero(), host.daemon().as_raw_nonzero());
    let recorded = transcript::hardware("10-h200-x1-probe.txt");
    let (_, recorded) = recorded.split_once("## process 548: server\n").unwrap();
    let cmdline = recorded.lines().next().unwrap().replace("/usr/local/nvidia/bin", bin.to_str().unwrap());
    let read = |pid, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    assert_eq!(format!("cmdline: {}", read(server, "cmdline").trim_end_matches('\0')), cmdline);
    assert_eq!(read(server, "comm"), "nvidia-cuda-mps\n");
    let line = |pid, start: &str| {
        read(pid, "status").lines().find(|line| line.starts_with(start)).map(str::to_owned).unwrap()
    };
    for start in ["Gid:", "Groups:", "Umask:"] {
        assert_eq!(line(server, start), line(daemon, start));
    }
    for pid in [server, daemon] {
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), host.path("w"));
    }
    let processes = host.world.dir().join("gpus").join(&host.uuids()[0]).join("processes");
    let record = std::fs::read(processes.join(server.to_string())).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!(record["name"], bin.join("nvidia-cuda-mps-server").to_str().unwrap());
}

#[test]
fn daemon_process_resembles_a_real_one() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[("MPS_MANAGER_TOKEN_OF_A_TEST", "abc")]);
    let server = host.server().as_raw_nonzero();
    let daemon = host.daemon().as_raw_nonzero();
    let read = |pid, file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
    assert_eq!(read(daemon, "cmdline"), b"nvidia-cuda-mps-control\0-d\0");
    assert_eq!(read(server, "cmdline"), b"nvidia-cuda-mps-server\0");
    let environ = String::from_utf8(read(daemon, "environ")).unwrap();
    assert!(environ.split('\0').any(|variable| variable == "MPS_MANAGER_TOKEN_OF_A_TEST=abc"));
    // pid (comm) state ppid pgrp session
    let fields = |pid| {
        let stat = String::from_utf8(read(pid, "stat")).unwrap();
        let (head, tail) = stat.rsplit_once(") ").unwrap();
        let comm = head.split_once('(').unwrap().1.to_owned();
        let numbers: Vec<i32> = tail.split(' ').skip(1).take(3).map(|n| n.parse().unwrap()).collect();
        (comm, numbers)
    };
    let me = i32::try_from(std::process::id()).unwrap();
    assert_eq!(fields(daemon), ("nvidia-cuda-mps".to_owned(), vec![me, daemon.get(), daemon.get()]));
    assert_eq!(
        fields(server),
        ("nvidia-cuda-mps".to_owned(), vec![daemon.get(), daemon.get(), daemon.get()])
    );
    let modes = names(&host).into_iter().map(|name| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(host.pipe().join(name)).unwrap().permissions().mode() & 0o777
    });
    assert_eq!(modes.collect::<Vec<_>>(), [0o666, 0o666, 0o755, 0o777, 0o666]);
}
