//! One session at a time: what a caller sees who is not the one.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::host::{DEADLINE, Done, Host, finish};
use super::terminal::Terminal;

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
    end(&finish(&mut host.control_program(), b"get_server_list\nzz-1\n", DEADLINE))
}

#[test]
fn a_caller_alone_is_never_refused() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    assert!((0..300).all(|_| call(&host) == End::Answered));
}

#[test]
fn beside_a_held_session_all_fail_and_in_both_ways() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let mut held = Terminal::open(&host);
    // An idle session disturbs nobody.
    assert!((0..20).all(|_| call(&host) == End::Answered));
    held.say("zz-held");
    held.shows("zz-held\"\r\n", DEADLINE);
    let ends: Vec<End> = (0..60).map(|_| call(&host)).collect();
    assert!(!ends.contains(&End::Answered));
    assert!(ends.contains(&End::Refused) && ends.contains(&End::Empty), "{ends:?}");
    // A CUDA client beside it is served.
    assert_eq!(host.client(&[], &[]).rc, 0);
    assert_eq!(held.close(), 0);
    assert!((0..20).all(|_| call(&host) == End::Answered));
}

#[test]
fn callers_break_each_other_but_what_is_answered_is_whole() {
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
