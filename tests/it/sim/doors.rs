//! What stands at a client's pipe directory, and where it leads (recordings 18, 19 and 21 to 23).

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, send,
    socket_with,
};
use rustix::process::Signal;
use serde_json::Value;

use super::host::{Busy, Host, NOBODY, can_become_nobody, finish};
use crate::harness::{TIMEOUT, eventually};

/// A directory with the daemon's socket under a second name, and nothing else.
fn view(host: &Host) -> PathBuf {
    let view = host.path("view");
    fs::create_dir_all(&view).unwrap();
    let _ = fs::remove_file(view.join("control"));
    fs::hard_link(host.pipe().join("control"), view.join("control")).unwrap();
    view
}

fn seen_through(host: &Host, pipe: &Path) -> Value {
    host.see(&[("CUDA_MPS_PIPE_DIRECTORY", pipe.to_str().unwrap())])
}

fn is_outside(seen: &Value) -> bool {
    seen["mps"] == false && seen["devices"][0]["sms"] == 132 && seen["error"].is_null()
}

/// A sequenced-packet socket that is listened on.
fn door(path: &Path) -> OwnedFd {
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&fd, 16).unwrap();
    fd
}

/// A client in the background that has not got anywhere yet.
fn client_at(host: &Host, pipe: &Path) -> Busy {
    let env = [("CUDA_MPS_PIPE_DIRECTORY", pipe.to_str().unwrap())];
    Busy::spawn(&mut host.client_command(&["--json"], &env))
}

#[test]
fn client_without_daemon_socket_bypasses_mps() {
    let host = Host::new("h200x1@13.0");
    let place = host.path("place");
    assert!(is_outside(&seen_through(&host, &place)), "no directory");
    fs::create_dir(&place).unwrap();
    assert!(is_outside(&seen_through(&host, &place)), "an empty one");
    let control = place.join("control");
    fs::write(&control, "").unwrap();
    assert!(is_outside(&seen_through(&host, &place)), "a file");
    fs::remove_file(&control).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &control, rustix::fs::Mode::from_raw_mode(0o666)).unwrap();
    assert!(is_outside(&seen_through(&host, &place)), "a FIFO");
    fs::remove_file(&control).unwrap();
    let listener = UnixListener::bind(&control).unwrap();
    assert!(is_outside(&seen_through(&host, &place)), "a stream socket");
    drop(listener);
    fs::remove_file(&control).unwrap();
    drop(door(&control));
    assert!(is_outside(&seen_through(&host, &place)), "nobody listens");
}

#[test]
fn silent_socket_holds_a_client_until_it_closes() {
    let host = Host::new("h200x1@13.0");
    let place = host.path("place");
    fs::create_dir(&place).unwrap();
    let door = door(&place.join("control"));
    let mut client = client_at(&host, &place);
    let connection = accept(&door).unwrap();
    // Something that is no greeting is none.
    send(&connection, &[0; 8], SendFlags::empty()).unwrap();
    assert!(client.running());
    drop(connection);
    let done = client.finish(TIMEOUT);
    assert!(is_outside(&serde_json::from_str(&done.stdout).unwrap()), "{done:?}");
}

#[test]
fn greeted_client_never_runs_outside() {
    let host = Host::new("h200x1@13.0");
    let place = host.path("place");
    fs::create_dir(&place).unwrap();
    let control = place.join("control");
    let greet = |door: &OwnedFd| {
        let connection = accept(door).unwrap();
        send(&connection, b"OUTBHELL\0", SendFlags::empty()).unwrap();
        connection
    };
    for closes_at_once in [true, false] {
        let _ = fs::remove_file(&control);
        let door = door(&control);
        let client = client_at(&host, &place);
        let first = greet(&door);
        if closes_at_once {
            // Nobody is there for its second connection.
            fs::remove_file(&control).unwrap();
            drop((first, door));
        } else {
            drop((greet(&door), first));
        }
        let done = client.finish(TIMEOUT);
        let seen: Value = serde_json::from_str(&done.stdout).unwrap();
        assert_eq!(
            (done.rc, &seen["error"]),
            (3, &Value::from("CUDA_ERROR_MPS_CONNECTION_FAILED")),
            "{seen}"
        );
    }
}

#[test]
fn linked_socket_grants_no_operator_rights() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    host.ask("set_default_active_thread_percentage 25");
    let view = view(&host);
    assert_eq!(seen_through(&host, &view)["devices"][0]["sms"], 32);
    let ask = |lines: &str| {
        let mut control = host.control_program();
        finish(control.env("CUDA_MPS_PIPE_DIRECTORY", &view), format!("{lines}\n").as_bytes(), TIMEOUT)
    };
    assert_eq!(ask("get_default_active_thread_percentage").stdout, "25.0\n");
    let uid = rustix::process::getuid().as_raw();
    let refused = format!(
        "Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who started it or by the root user.\n"
    );
    assert_eq!(ask("set_default_active_thread_percentage 50").stdout, refused);
    assert_eq!(ask("quit -t 1").stdout, "Not enough privilege to execute quit command\n");
    // A server that dies is replaced behind the link; a daemon is not.
    host.signal(host.ready(), Signal::KILL);
    // The daemon notices that only after a while (recording 11); until then a client fails, and is not outside.
    eventually("a new server serves it", || {
        let seen = seen_through(&host, &view);
        assert!(!is_outside(&seen), "{seen}");
        seen["mps"] == true
    });
    let daemon = host.daemon();
    host.signal(daemon, Signal::KILL);
    eventually("the daemon is dead", || host.control("get_server_list").rc == 1);
    assert!(is_outside(&seen_through(&host, &view)), "its socket is dead");
    host.start(&["-d"], &[]);
    assert!(is_outside(&seen_through(&host, &view)), "the link is to the old one");
}

#[test]
fn closed_pipe_directory_ends_servers_without_multi_user() {
    if !can_become_nobody() {
        return;
    }
    for (options, works) in [(&["-d"][..], false), (&["-d", "-M"][..], true)] {
        let host = Host::new("h200x1@13.0");
        host.start(options, &[]);
        host.ask("set_default_active_thread_percentage 25");
        let view = view(&host);
        fs::set_permissions(host.pipe(), fs::Permissions::from_mode(0o700)).unwrap();
        let nobody = |pipe: &Path| {
            let env = [("CUDA_MPS_PIPE_DIRECTORY", pipe.to_str().unwrap())];
            let mut command = host.client_command(&["--json"], &env);
            let done = finish(std::os::unix::process::CommandExt::uid(&mut command, NOBODY), b"", TIMEOUT);
            serde_json::from_str::<Value>(&done.stdout).unwrap()
        };
        assert!(is_outside(&nobody(&host.pipe())), "the directory itself is closed");
        let seen = nobody(&view);
        if works {
            assert_eq!(seen["devices"][0]["sms"], 32, "{seen}");
            continue;
        }
        assert_eq!(seen["error"], "CUDA_ERROR_MPS_CONNECTION_FAILED");
        let log = host.log("control.log");
        assert!(log.matches("for user 65534").count() >= 3 && log.contains("exited with status 0"), "{log}");
        fs::set_permissions(host.pipe(), fs::Permissions::from_mode(0o711)).unwrap();
        assert_eq!(nobody(&view)["devices"][0]["sms"], 32, "it can be passed");
    }
}
