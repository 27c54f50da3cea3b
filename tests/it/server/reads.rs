//! Reading beside others: no failure, and no wrong answer.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;

use crate::harness::{Host, InProcess, Served, SetOnDrop, heavy, setting};

const READERS: usize = 16;

/// How often each of them reads.
fn reads() -> usize {
    setting("MPS_MANAGER_NOISY_ROUNDS").and_then(|rounds| usize::try_from(rounds).ok()).unwrap_or(8)
}

/// Sixteen readers of a daemon at once, which all get right answers.
fn read_at_once(host: &Served) {
    let right = AtomicUsize::new(0);
    // A log that has grown past its bound is emptied, and the defaults are written again, since a command in it may have been missed.
    let was_emptied = || host.runtime("daemons/gpu0/log/control.log.kept").exists();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                for _ in 0..reads() {
                    let answer = host.api().get("/api/v1/daemons/gpu0?fresh=true");
                    assert_eq!(answer.status, 200, "{}", answer.text);
                    let daemon = answer.json();
                    let seen = &daemon["status"]["effective"];
                    let phase = &daemon["status"]["phase"];
                    assert!(phase == "ready" || phase == "applying" && was_emptied(), "{daemon}");
                    assert_eq!(seen["default_active_thread_percentage"], 50.0, "{daemon}");
                    assert_eq!(seen["default_memory_limits"][0]["bytes"], 8_u64 << 30, "{daemon}");
                    assert_eq!(seen["servers"].as_array().expect("servers").len(), 1, "{daemon}");
                    assert_eq!(seen["servers"][0]["status"], "ACTIVE", "{daemon}");
                    right.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(right.into_inner(), READERS * reads());
}

#[test]
fn readers_beside_noisy_callers_get_right_answers() {
    let _turn = heavy();
    // On a machine that does much else, a caller of the daemon may be turned away for seconds.
    let host = Host::configured("control_deadline_s = 30\nfresh_timeout_s = 40");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let quiet = SetOnDrop(&over);
        let noise: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut calls = 0;
                    while !over.load(Ordering::Relaxed) {
                        host.control_once("gpu0", "get_default_active_thread_percentage\nps\n");
                        calls += 1;
                    }
                    calls
                })
            })
            .collect();
        read_at_once(&host);
        drop(quiet);
        let calls: usize = noise.into_iter().map(|caller| caller.join().expect("a caller")).sum();
        assert!(calls > 0);
    });
    assert_eq!(host.api().get("/readyz").status, 200);
}

#[test]
fn fresh_read_starts_at_most_two_processes() {
    let host = InProcess::ready();
    let _client = host.client("demo");
    let before = host.logged("gpu0", "NEW UI");
    let daemon = host.api().get("/api/v1/daemons/gpu0?fresh=true").ok();
    let processes = daemon["status"]["effective"]["control_processes"].as_u64().unwrap();
    assert!((1..=2).contains(&processes), "{processes}");
    // The manager may have polled meanwhile: its interval is a second here.
    assert!(host.logged("gpu0", "NEW UI") - before <= 4);
}

#[test]
fn fresh_read_shows_all_earlier_changes() {
    let host = InProcess::ready();
    for _ in 0..10 {
        let client = host.client("demo");
        assert!(host.clients().iter().any(|listed| listed["pid"] == client.pid()));
        drop(client);
        assert_eq!(json!(host.clients()), json!([]), "a client that ended before the request");
    }
}
