//! control.log and server.log against the recorded ones.

use std::collections::BTreeMap;

use super::host::{Host, uid};
use super::replay::Replay;
use super::transcript;

/// A line without what differs from day to day: its time, its PIDs, and the client that came before, which the
/// real server prints by mistake.
fn template(line: &str) -> String {
    let line = match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        // The time is 23 bytes long; after it come who speaks and its PID.
        Some((head, text)) if head.is_char_boundary(23) && head.len() > 23 => {
            format!("{}: {text}", &head[24..])
        }
        _ => line.to_owned(),
    };
    let line = match line.split_once("Received new client request for") {
        Some((before, _)) => format!("{before}Received new client request"),
        None => line,
    };
    // A status is no PID though it has three digits.
    let mut text = String::new();
    for part in line.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        if digits.len() >= 3 && digits != "806" && digits != "807" {
            text.push('N');
            text.push_str(&part[digits.len()..]);
        } else {
            text.push_str(part);
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines that come when they come, within a session or not.
const ELSEWHERE: [&str; 5] = [
    "Accepting connection",
    "NEW CLIENT",
    "NEW SERVER",
    "Starting new server",
    "did not send valid credentials",
];

/// The sessions of a control.log, each as its lines.
fn sessions(log: &str) -> Vec<Vec<String>> {
    let mut sessions: Vec<Vec<String>> = Vec::new();
    let mut open = false;
    for line in log.lines().map(template) {
        if line.ends_with("NEW UI") {
            sessions.push(Vec::new());
            open = true;
        } else if line.ends_with("UI closed") {
            open = false;
        } else if open && !ELSEWHERE.iter().any(|part| line.contains(part)) {
            sessions.last_mut().expect("a session is open").push(line);
        }
    }
    sessions
}

/// The logs of recording 01.
pub(super) fn compare_01(host: &Host, replay: &Replay<'_>) {
    let text = transcript::text("01-h200-x1-commands-clients-fault.txt");
    let (_, rest) = text.split_once("## logs\n").unwrap();
    let (logs, _) = rest.split_once("$ shutdown_server").unwrap();
    let (control, server) = logs.split_once("----\n").unwrap();
    // Everything was recorded as root.
    let user = |log: String| {
        let uid = uid();
        log.replace(&format!(" user {uid}"), " user 0")
            .replace(&format!("-uid {uid}"), "-uid 0")
            .replace(&format!(".shm.{uid}."), ".shm.0.")
    };
    let simulated = user(replay.recorded(&host.log("control.log")));

    // Every recorded session in its order; between them stand those with which this test waited.
    let ours = sessions(&simulated);
    let mut left = ours.iter();
    for session in sessions(control) {
        assert!(
            left.any(|ours| *ours == session),
            "control.log has no session {session:#?} there:\n{simulated}"
        );
    }
    // Every other kind of line, and no kind that is not recorded but of that waiting.
    let kinds = |log: &str| -> BTreeMap<String, usize> { count(log.lines().map(template)) };
    let (recorded, simulated) = (kinds(control), kinds(&simulated));
    for line in recorded.keys() {
        assert!(simulated.contains_key(line), "control.log lacks {line:?}");
    }
    for line in simulated.keys().filter(|line| !line.ends_with("INITIALIZING")) {
        assert!(recorded.contains_key(line), "control.log has {line:?}, which is not recorded");
    }

    // The server has no part in the waiting: each line is there as often.
    let simulated = kinds(&user(replay.recorded(&host.log("server.log"))));
    assert_eq!(kinds(server), simulated);
}

fn count(lines: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in lines {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

/// The fault of recording 04, line by line: which clients it takes down, and in which order.
pub(super) fn compare_04(host: &Host, replay: &Replay<'_>) {
    // PIDs are of importance here, so they are translated and stay.
    let text = |line: &str| line.split_once("] ").map_or(line, |(_, text)| text).to_owned();
    let fault = |log: &str| -> Vec<String> {
        let lines = log.lines().map(text);
        let lines = lines.skip_while(|line| !line.contains("encountered a fatal GPU error"));
        lines.take_while(|line| !line.contains("status 806")).collect()
    };
    let recorded = transcript::text("04-h200-x4-server.log");
    let simulated = replay.recorded(&host.log("server.log"));
    assert_eq!(fault(&recorded), fault(&simulated));
    let recovery = |log: &str| -> Vec<String> {
        let wanted = ["Destroy server context", "Refusing to accept", "with status 807"];
        let lines = log.lines().skip_while(|line| !line.contains("sticky error set"));
        let lines = lines.filter(|line| wanted.iter().any(|part| line.contains(part)));
        lines.map(template).map(|line| text(&line)).collect()
    };
    assert_eq!(recovery(&recorded), recovery(&simulated));
    let again = |log: &str| {
        let lines = log.lines().skip_while(|line| !line.contains("Refusing to accept"));
        lines.filter(|line| line.contains("Creating server context")).count()
    };
    assert_eq!(again(&recorded), again(&simulated));
}
