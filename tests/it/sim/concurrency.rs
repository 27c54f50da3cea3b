//! One session at a time: what a caller sees who is not the one.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, flock};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;

use super::host::{Done, Host, finish, uid};
use super::terminal::Terminal;
use crate::harness::{TIMEOUT, eventually};

const REFUSED: &str = "Cannot send command to MPS control daemon process\n";

/// How a batch of one command and its delimiter ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Answered,
    /// rc 1, and said so.
    Refused,
    /// rc 0 and nothing: the honest answer to `ps` looks the same.
    Empty,
}

fn end(done: &Done) -> End {
    match (done.rc, done.stdout.as_str(), done.stderr.as_str()) {
        (0, text, "") if text.ends_with("Unknown command \"zz-1\"\n") => End::Answered,
        (1, "", REFUSED) => End::Refused,
        (0, "", "") => End::Empty,
        _ => panic!("{done:?}"),
    }
}

fn call(host: &Host) -> End {
    end(&finish(&mut host.control_program(), b"get_server_list\nzz-1\n", TIMEOUT))
}

#[test]
fn a_caller_alone_is_never_refused() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    assert!((0..300).all(|_| call(&host) == End::Answered));
}

#[test]
fn held_session_fails_others_in_both_ways() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let mut held = Terminal::open(&host);
    // An idle session disturbs nobody.
    assert!((0..20).all(|_| call(&host) == End::Answered));
    held.say("zz-held");
    held.shows("zz-held\"\r\n", TIMEOUT);
    let ends: Vec<End> = (0..60).map(|_| call(&host)).collect();
    assert!(!ends.contains(&End::Answered));
    assert!(ends.contains(&End::Refused) && ends.contains(&End::Empty), "{ends:?}");
    // A CUDA client beside it is served.
    assert_eq!(host.client(&[], &[]).rc, 0);
    assert_eq!(held.close(), 0);
    assert!((0..20).all(|_| call(&host) == End::Answered));
}

#[test]
fn interfering_callers_get_whole_answers_or_none() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let (answered, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..25 {
                    match call(&host) {
                        End::Answered => &answered,
                        End::Refused | End::Empty => &failed,
                    }
                    .fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(answered.into_inner() + failed.into_inner(), 200);
    // Who was refused disturbed nothing.
    assert!((0..20).all(|_| call(&host) == End::Answered));
}

/// A connection that the daemon has not taken yet.
fn connect(host: &Host, socket: &str) -> OwnedFd {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .unwrap();
    rustix::net::connect(&fd, &SocketAddrUnix::new(host.pipe().join(socket)).unwrap()).unwrap();
    fd
}

fn send(conn: &OwnedFd, packet: &[u8]) {
    rustix::net::send(conn, packet, SendFlags::NOSIGNAL).unwrap();
}

fn receive(conn: &OwnedFd) -> Vec<u8> {
    let mut bytes = [0; 256];
    let (read, _) = rustix::net::recv(conn, &mut bytes, RecvFlags::empty()).unwrap();
    bytes[..read].to_vec()
}

/// The daemon takes the client while the command waits for the server, and must not wait for another one after it.
#[test]
fn connecting_client_beside_waiting_command_blocks_nobody() {
    let host = Host::new("h200x4@13.0");
    host.start(&["-d"], &[]);
    // A server has no context, and so is starting, as long as it may take no memory.
    let memory =
        File::open(host.world.dir().join("gpus").join(&host.uuids()[0]).join("memory.lock")).unwrap();
    flock(&memory, FlockOperation::LockExclusive).unwrap();
    host.ask(&format!("start_server -uid {}", uid()));
    eventually("the server has connected", || host.log("server.log").contains("Creating server context"));
    let list = host.ask("get_server_list");
    let name = list.trim();
    assert_eq!(host.ask(&format!("get_server_status {name}")), "INITIALIZING\n");
    let session = connect(&host, "control_privileged");
    assert_eq!(receive(&session), b"OUTBHELL\0");
    send(&session, b"\"Ui\"");
    assert_eq!(receive(&session), b"G");
    // While it stands still, both come.
    host.signal(host.daemon(), Signal::STOP);
    send(&session, format!("Cget_active_thread_percentage {name}").as_bytes());
    let client = connect(&host, "control");
    drop(client);
    host.signal(host.daemon(), Signal::CONT);
    eventually("the command waits for the server", || {
        host.log("control.log").contains(&format!("Cmd:get_active_thread_percentage {name}"))
    });
    drop(memory);
    assert_eq!((receive(&session), receive(&session)), (b"T100.0\n".to_vec(), b"E".to_vec()));
    drop(session);
    eventually("the session is closed", || {
        let answer = host.control("get_server_list");
        answer.rc == 0 && answer.stdout == list
    });
}
