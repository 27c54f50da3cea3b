//! Every recorded reply and log line, through the parser of its command.
//!
//! Replies and lines that no parser takes stand in the tables below; a change of either side shows here first.

use crate::domain::daemon::ServerStatus;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::super::log::{self, LogEvent};
use super::*;

fn recordings() -> Vec<(String, String)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings");
    let mut files: Vec<(String, String)> = fs::read_dir(directory)
        .expect("the recordings")
        .map(|file| {
            let path = file.expect("a file").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            // One recording holds a NUL, which the program printed.
            (name, String::from_utf8_lossy(&fs::read(&path).expect("readable")).into_owned())
        })
        .collect();
    files.sort();
    assert_eq!(files.len(), 14);
    files
}

/// Parses a reply and returns the outcome in words: a value, or the kind of refusal or error.
fn taken(command: &str, reply: &[u8]) -> String {
    fn outcome<T>(read: Result<T, ParseError>, surprise: impl Fn(&T) -> bool) -> String {
        match read {
            Ok(value) if surprise(&value) => "surprise".into(),
            Ok(_) => "value".into(),
            Err(ParseError::UnknownCommand { word }) => format!("unknown command {word}"),
            Err(ParseError::InsufficientPrivileges { .. }) => "privileges".into(),
            Err(ParseError::ServerNotFound { server }) => format!("no server {server}"),
            Err(ParseError::Refused { text }) => format!("refused: {text}"),
            Err(error @ ParseError::NotUnderstood { .. }) => error.to_string(),
        }
    }
    let word = command.split_ascii_whitespace().next().unwrap_or_default();
    match word {
        "get_server_list" => outcome(server_list(reply), |_| false),
        "get_server_status" => {
            outcome(server_status(reply), |status| matches!(status, Some(ServerStatus::Other(_))))
        }
        "ps" => outcome(
            clients(reply),
            |clients| matches!(clients, Clients::Listed { bad, .. } if !bad.is_empty()),
        ),
        "device_query" => outcome(device_query(reply), |devices| !devices.bad.is_empty()),
        "get_client_list" => outcome(client_list(reply), |_| false),
        "get_device_client_list" => outcome(device_client_list(reply), |_| false),
        "terminate_client" => outcome(terminate(reply), |_| false),
        "get_default_client_priority" => outcome(priority(reply), |_| false),
        "lspart" => outcome(lspart(reply), |_| true),
        "sm_partition" => outcome(sm_partition_add(reply), |_| true),
        word if word.ends_with("_active_thread_percentage") => outcome(percentage(reply), |_| false),
        word if word.starts_with("get_") && word.ends_with("device_pinned_mem_limit") => {
            match memory_limit(reply) {
                Ok(Some(LimitReading::Nonsense(text))) => format!("nonsense: {text}"),
                read => outcome(read, |_| false),
            }
        }
        // Setters, starts and stops say nothing; what the daemon does not know, it says so.
        _ => outcome(silent(reply), |()| false),
    }
}

/// The commands of a transcript with their replies: `$ command`, what came, `[rc N]`.
fn exchanges(transcript: &str) -> Vec<(String, String)> {
    let mut exchanges = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in transcript.split_inclusive('\n') {
        let text = line.trim_end_matches('\n');
        if let Some(command) = text.strip_prefix("$ ").or_else(|| text.strip_prefix("nobody$ ")) {
            open = Some((command.to_owned(), String::new()));
        } else if text.starts_with("[rc ") {
            // Code 1 is the control program's own complaint and 124 a time limit: those are no replies.
            exchanges.extend(open.take().filter(|_| text == "[rc 0]"));
        } else if let Some((_, reply)) = &mut open {
            reply.push_str(line);
        }
    }
    exchanges
}

/// The batches of recording 09: commands parted by ` | `, and below them the output as Python wrote it.
fn batches(transcript: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = transcript.lines().collect();
    let mut exchanges = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let Some(output) = line.strip_prefix("out b'") else { continue };
        let output = output.rsplit_once('\'').expect("its end").0.replace("\\n", "\n");
        let above = lines[index.saturating_sub(2)..index].iter().rev().find(|line| line.contains(" | "));
        let Some(commands) = above else { continue };
        let commands =
            commands.trim_start_matches("## ").split(" | ").map(|word| word.trim_matches(['"', ' ']));
        let replies = output.split("Unknown command \"zz-1\"\n");
        let count = exchanges.len();
        exchanges
            .extend(commands.zip(replies).map(|(command, reply)| (command.to_owned(), reply.to_owned())));
        assert!(exchanges.len() > count, "{line}");
    }
    exchanges
}

/// Every recorded command of a recording with its reply.
fn commands_of(name: &str, transcript: &str) -> Vec<(String, String)> {
    if name.starts_with("09") { batches(transcript) } else { exchanges(transcript) }
}

/// Every recorded reply to a command that begins with that word, each once.
pub(super) fn replies(word: &str) -> Vec<String> {
    let all = recordings().into_iter().flat_map(|(name, transcript)| commands_of(&name, &transcript));
    let replies = all.filter(|(command, _)| command.starts_with(word)).map(|(_, reply)| reply);
    replies.collect::<BTreeSet<String>>().into_iter().collect()
}

#[test]
fn every_recorded_reply_is_what_its_parser_expects() {
    let (mut values, mut unparsed) = (0, BTreeSet::new());
    for (name, transcript) in recordings() {
        let exchanges = commands_of(&name, &transcript);
        for (command, reply) in exchanges {
            match taken(&command, reply.as_bytes()).as_str() {
                "value" => values += 1,
                outcome => {
                    unparsed.insert(format!("{} {command} -> {outcome}", &name[..2]));
                }
            }
        }
    }
    let expected: BTreeSet<String> = EXPECTED.iter().map(|line| (*line).to_owned()).collect();
    assert_eq!(unparsed, expected);
    assert!(values > 150, "only {values} replies were found");
}

/// The recorded replies that are no value, each for a reason.
const EXPECTED: &[&str] = &[
    "01 ? -> unknown command ?",
    "01 bogus -> unknown command bogus",
    "01 get_device_pinned_mem_limit 99999 0 -> no server 99999",
    "01 get_log_directory -> unknown command get_log_directory",
    "01 get_server_status -> refused: A server PID is required",
    "01 help -> unknown command help",
    "01 lspart -> unknown command lspart",
    "01 set_default_client_priority 7 -> refused: Invalid priority value - must be 0 or 1!",
    "01 sm_partition add GPU-x 2 -> unknown command sm_partition",
    "01 version -> unknown command version",
    "03 get_client_list 1 -> no server 1",
    "03 get_device_pinned_mem_limit 657 0 -> nonsense: 17179869183G",
    "03 get_device_pinned_mem_limit 657 0 -> nonsense: 4194304G",
    "03 shutdown_server -> no server 0",
    "03 shutdown_server 1 -> no server 1",
    "03 shutdown_server 657 -f -> no server 657",
    "03 start_server -> refused: A user id (UID) is required to start a new server",
    "03 start_server -uid abc -> refused: A user id (UID) is required to start a new server",
    // Beside a session that another program held: an empty reply and return code 0.
    "06 get_server_status 475 -> the reply is not the status of a server: \"\"",
    // Another uid's.
    "07 quit -> privileges",
    "07 quit -t 1 -> privileges",
    "07 set_active_thread_percentage 759 10 -> privileges",
    "07 set_default_active_thread_percentage 10 -> privileges",
    "07 shutdown_server 759 -> privileges",
    "07 terminate_client 759 862 -> privileges",
    "09 PS -> unknown command PS",
    "09 set_default_client_priority 7 -> refused: Invalid priority value - must be 0 or 1!",
    "09 shutdown_server 1 -> no server 1",
    "09 start_server -> refused: A user id (UID) is required to start a new server",
];

#[test]
fn every_recorded_log_line_is_an_event() {
    let (mut events, mut unknown) = (0, BTreeSet::new());
    for (name, text) in recordings() {
        // A run of lines that begins with a prefix is a piece of a log; the transcript around it is not.
        let mut piece = String::new();
        for line in text.lines().chain(["[rc"]) {
            if line.starts_with("[20") || (!piece.is_empty() && line.starts_with("Server ")) {
                piece.push_str(line);
                piece.push('\n');
                continue;
            }
            for record in log::read(std::mem::take(&mut piece).as_bytes()) {
                match record.event {
                    LogEvent::Other(text) => {
                        unknown.insert(format!("{} {text}", &name[..2]));
                    }
                    _ => events += 1,
                }
            }
        }
    }
    assert_eq!(unknown, BTreeSet::new());
    assert!(events > 600, "only {events} messages were found");
}

/// The messages of recording 09, which are quoted there without their prefix.
#[test]
fn the_messages_of_a_forced_quit_are_events() {
    let samples = [
        (
            "Try shutting down server 506, backoff is enabled",
            LogEvent::ShuttingDown { server: 506, forced: false },
        ),
        (
            "Server 506 has 2 active worker threads. Server will not shutdown.",
            LogEvent::StillActive { server: 506, workers: 2 },
        ),
        ("Force shutting down server 506", LogEvent::ShuttingDown { server: 506, forced: true }),
        ("Server 506 exited with status 0", LogEvent::ServerExited { server: 506, status: 0 }),
        ("Exit with status 0", LogEvent::DaemonExited { status: 0 }),
    ];
    for (text, event) in samples {
        let records = log::read(format!("[2026-11-21 03:55:00.000 Control   500] {text}\n").as_bytes());
        assert_eq!(records[0].event, event);
    }
}
