//! Pairs of clients that start at the same moment, of which one dies while it connects: the server may hang, the control daemon
//! hangs with it, and the other client waits forever (recording 20). Each time the daemon is ready again by itself within 10 s.
//!
//! `MPS_MANAGER_PAIRS` gives the rounds; every other one has a client at work, which is waited for as the default says.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Client, Host, MANAGER, heavy, setting, signal_if_there};

/// Longest time from the death of a client to a daemon that was read and is ready.
const READY: Duration = Duration::from_secs(10);
/// Longest time for the other client, which works for a moment, to end.
const ENDS: Duration = Duration::from_secs(20);

#[test]
fn daemon_heals_when_a_connecting_client_dies() {
    let _turn = heavy();
    let rounds = setting("MPS_MANAGER_PAIRS").unwrap_or(6);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or_else(|| getrandom::u64().expect("random bytes") >> 32);
    eprintln!("{rounds} rounds, seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let host = Host::ready();
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "max_clients": 8});
    assert_eq!(host.api().tenant("pairs", &spec).status, 201);
    host.await_ready();
    let mut working: Option<Client> = None;
    let (mut longest, mut longest_beside, mut hung) = (Duration::ZERO, Duration::ZERO, 0);
    for round in 0..rounds * 10 {
        // Not each death hangs the server; a few rounds more find one that does.
        if round >= rounds && hung > 0 {
            break;
        }
        if round % 2 == 1 {
            if !working.as_mut().is_some_and(Client::is_running) {
                working = Some(host.client("pairs"));
            }
        } else {
            working = None;
        }
        let server = host.server_pid("gpu0");
        let way = rng.u32(..4);
        let mut doomed = if way < 2 {
            start(&host, &["--spin", "1", "--die-connecting", &way.to_string()])
        } else {
            start(&host, &["--spin", "1"])
        };
        let mut other = start(&host, &["--spin", "0.2"]);
        if way >= 2 {
            std::thread::sleep(Duration::from_millis(rng.u64(..60)));
            signal_if_there(doomed.id(), Signal::KILL);
        }
        doomed.wait().expect("reaped");
        let died = Instant::now();
        let took = loop {
            let daemon = host.api().get("/api/v1/daemons/gpu0?fresh=true");
            if daemon.status == 200 && daemon.json()["status"]["phase"] == "ready" {
                break died.elapsed();
            }
            assert!(died.elapsed() < READY, "round {round}, seed {seed}: not ready: {}", daemon.text);
        };
        while other.try_wait().expect("waited for").is_none() {
            assert!(died.elapsed() < ENDS, "round {round}, seed {seed}: the other client waits forever");
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have hung the server just after that.
        let daemon = host.api().get("/api/v1/daemons/gpu0?fresh=true");
        assert_eq!(daemon.status, 200, "round {round}, seed {seed}: {}", daemon.text);
        if host.server_pid("gpu0") != server {
            hung += 1;
            assert_reported(&host, server);
        }
        if working.is_some() {
            longest_beside = longest_beside.max(took);
        } else {
            longest = longest.max(took);
        }
    }
    eprintln!(
        "{hung} of {rounds} rounds hung the server; ready again after at most {longest:?}, and {longest_beside:?} beside a client \
         at work"
    );
    assert!(hung > 0, "no round hung the server: seed {seed}");
    assert_eq!(host.daemon("gpu0")["status"]["deaths"], 0, "the server's end was enough");
}

/// A program of `run` that is admitted at once.
fn start(host: &Host, arguments: &[&str]) -> Child {
    let mut words = vec![MANAGER, "sim", "client"];
    words.extend(arguments);
    let mut command: Command = host.run_command("pairs", &words);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts")
}

/// The replacement of a server is an event that says who waited and who lost work.
fn assert_reported(host: &Host, server: u32) {
    let replaced = crate::harness::eventually("its replacement is reported", || {
        let events = host.api().get("/api/v1/events?type=server.replaced&order=newest&limit=5").ok();
        let of_it = |event: &&Value| event["subject"]["server"] == server;
        events["items"].as_array().expect("items").iter().find(of_it).cloned()
    });
    let details = &replaced["details"];
    assert!(details["clients"].is_array() && details["waiting"].is_array(), "{replaced}");
    assert!(replaced["message"].as_str().expect("text").contains("hung and was killed"), "{replaced}");
}
