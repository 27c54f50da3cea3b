//! Recording 12: limits that are no whole GiB, and a server that is to make way for another user's.

use rustix::process::Signal;

use super::host::{Host, NOBODY, finish};
use super::replay::replace_word;
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

const RECORDING: &str = "12-h200-x1-limit-getter.txt";

#[test]
fn recording_12_getter_rounds_limits_log_does_not() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let server = host.server().as_raw_nonzero().to_string();
    let recorded = transcript::hardware(RECORDING);
    let mut played = 0;
    for line in recorded.lines().filter_map(|line| line.strip_prefix("$ ")) {
        let (command, seen) = line.split_once("; get -> ").unwrap();
        let command = replace_word(command, "S", &server);
        let (device, _) = command.rsplit_once(' ').unwrap();
        let getter = device.replacen("set_", "get_", 1);
        let (value, log) = seen.split_once("  log: ").map_or((seen, None), |(value, log)| (value, Some(log)));
        assert_eq!(host.ask(&format!("{command}\n{getter}")), format!("{value}\n"), "{command}");
        if let Some((_, text)) = log.map(|log| log.split_once("] ").unwrap()) {
            let ours = host.log("server.log");
            assert!(ours.ends_with(&format!("] {text}\n")), "{command}: {text}\n{ours}");
        }
        played += 1;
    }
    assert_eq!(played, 18);
    // After `## default 0 unset, then get`: nothing comes back, and the log says why.
    let (_, unset) = recorded.split_once("set_default_device_pinned_mem_limit 0 0.\n").unwrap();
    let (_, reason) = unset.trim_end().split_once("] ").unwrap();
    let lines = "set_default_device_pinned_mem_limit 0 0\nget_default_device_pinned_mem_limit 0";
    assert_eq!(host.ask(lines), "");
    assert!(host.log("control.log").contains(&format!("] {reason}\n")), "{reason}");

    let free = recorded.split_once("free under 1536M: ").unwrap().1.lines().next().unwrap();
    let seen = host.see(&[("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1536M")]);
    let seen = seen["devices"][0]["memory_free"].as_u64().unwrap();
    assert!(seen.abs_diff(free.parse().unwrap()) <= 64 << 20, "{seen} {free}");
}

/// What control.log says of attempts to end a server.
fn attempts(log: &str, server: &str) -> Vec<String> {
    let texts = log.lines().filter_map(|line| line.split_once("] "));
    let texts = texts.map(|(_, text)| replace_word(text, server, "S"));
    texts.filter(|text| text.contains("shutting down") || text.contains("will not shutdown")).collect()
}

#[test]
fn recording_12_busy_server_shutdown_backs_off() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready().as_raw_nonzero().to_string();
    let queries = "get_server_list\nps";
    let before = host.ask(queries);
    assert_eq!(before.lines().count(), 3);
    assert_eq!(
        host.ask(&format!("{queries}\nstart_server -uid {NOBODY}\n{queries}")),
        format!("{before}{before}")
    );

    let recorded = attempts(&transcript::hardware(RECORDING), "450");
    assert_eq!(recorded.len(), 15);
    let four = 4 * 3;
    eventually("four attempts", || attempts(&host.log("control.log"), &server).len() >= four);
    assert_eq!(attempts(&host.log("control.log"), &server)[..four], recorded[..four]);
    let busy =
        host.log("server.log").matches("] Server was unable to shutdown due to 2 active clients\n").count();
    assert!(busy >= 4);
    assert_eq!(host.ask(queries), before);

    client.signal(Signal::KILL);
    client.finish(TIMEOUT);
    eventually("another server is there", || host.ask("get_server_list").trim() != server);
    host.ready();
    let log = host.log("control.log");
    assert!(log.contains(&format!("] Server {server} exited with status 0\n")));
    assert!(log.contains(&format!(" for user {NOBODY}\n")));
}

#[test]
fn a_server_without_clients_is_replaced_at_once() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let server = host.server().as_raw_nonzero().to_string();
    let listed = host.ask(&format!("start_server -uid {NOBODY}\nget_server_list"));
    assert_ne!(listed, format!("{server}\n"));
    let attempts = attempts(&host.log("control.log"), &server);
    assert_eq!(attempts, ["Try shutting down server S, backoff is disabled"]);
    let log = host.log("server.log");
    let shutdown: Vec<_> = log
        .lines()
        .filter_map(|line| line.split_once(&format!(" {server}] ")))
        .map(|(_, text)| text)
        .skip_while(|text| *text != "Server has started")
        .collect();
    // The last lines of server 548 in recording 10.
    let wanted = [
        "Server has started",
        "Server has been notified to shutdown",
        "Waiting for current clients to finish",
        "Exiting",
    ];
    assert_eq!(shutdown, wanted);
    let recorded = transcript::hardware("10-h200-x1-probe.txt");
    assert!(wanted[1..].iter().all(|text| recorded.contains(&format!("Server   548] {text}\n"))));
    host.ready();
}

#[test]
fn quit_backs_off_in_the_same_way() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60"], &[]);
    let server = host.ready().as_raw_nonzero().to_string();
    assert_eq!(finish(&mut host.control_program(), b"quit -t 1\n", TIMEOUT).rc, 0);
    let log = host.log("control.log");
    assert!(log.contains("] quit command issued with timeout of 1\n"), "{log}");
    let recorded = &attempts(&transcript::hardware(RECORDING), "450")[..6];
    let attempts = attempts(&log, &server);
    assert_eq!(attempts[..recorded.len()], *recorded);
    assert_eq!(attempts.last().unwrap(), "Force shutting down server S");
    assert_eq!(client.finish(TIMEOUT).rc, 4);
}
