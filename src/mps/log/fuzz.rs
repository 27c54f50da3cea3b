//! Logs at volume: recordings with mutations, however they are cut.
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "what a program prints reads best as one format"
)]

use std::fs;
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::fuzz::{Inputs, values};

const WORDS: [&str; 24] = [
    "\n",
    "[2026-11-21 02:53:15.169 Control  1308] ",
    "[2026-11-21 02:53:15.169 Server  1326] ",
    "[2026-11-21 02:53:15.169 Other   511] ",
    "Client {PID: 1, Context ID: 1}",
    "{PID: ",
    "}",
    " connected",
    "The following devices will be reset:",
    "The following client process have a sticky error set:",
    " to be torn down",
    "NEW CLIENT ",
    " from user ",
    ": Server is not ready, push client to pending list",
    "Device pinned memory limit for device ",
    " set to 0x",
    " bytes",
    "Server ",
    "Cmd:",
    "UI closed",
    "All clients belonging to error trigging process ",
    " on device ",
    "(uuid ",
    ") is associated",
];

fn recorded() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings");
    let mut samples = Vec::new();
    for file in ["04-h200-x4-control.log", "04-h200-x4-server.log"] {
        let log = fs::read(directory.join(file)).expect("a recording");
        let lines: Vec<&[u8]> = log.split_inclusive(|b| *b == b'\n').collect();
        samples.extend(lines.chunks(6).map(<[_]>::concat));
    }
    assert!(samples.len() > 20);
    samples
}

fn bounded(reader: &Reader) {
    let held = reader.held.as_ref().map_or(0, |held| held.text.len());
    // A byte that is no UTF-8 becomes three.
    assert!(reader.partial.len() <= LONGEST && held <= 3 * LONGEST, "{} {held}", reader.partial.len());
}

#[test]
fn logs_in_pieces() {
    Inputs::new(recorded(), &WORDS).check(|log| {
        let whole = read(log);
        // Cut where the input itself says, so that an input fails alike whenever it is tried.
        let sum: usize = log.iter().map(|b| usize::from(*b)).sum();
        let mut cuts = [sum % (log.len() + 1), (sum / 7) % (log.len() + 1)];
        cuts.sort_unstable();
        let mut reader = Reader::default();
        let mut records = Vec::new();
        for piece in [&log[..cuts[0]], &log[cuts[0]..cuts[1]], &log[cuts[1]..]] {
            records.extend(reader.feed(piece));
            bounded(&reader);
        }
        records.extend(reader.flush());
        assert_eq!(records, whole);
        let all: usize = whole.iter().map(|record| record.text.len()).sum();
        assert!(all <= 3 * log.len(), "{all} bytes of text in {} bytes of log", log.len());
        whole.iter().any(|record| !matches!(record.event, LogEvent::Other(_) | LogEvent::Reply(_)))
    });
}

#[test]
fn a_line_that_never_ends() {
    let parts = ["x", "[2026-11-21 02:53:15.169 Control  1308] ", "\n", "é", "x\n"];
    // Most pieces are as short as lines are.
    let size = prop_oneof![63 => 0_usize..64, 1 => 0..2 * LONGEST];
    values(vec((select(parts.to_vec()), size), 1..8), |pieces| {
        let mut reader = Reader::default();
        for (part, size) in pieces {
            let piece = part.repeat(size / part.len());
            for record in reader.feed(piece.as_bytes()) {
                assert!(record.text.len() <= 3 * LONGEST);
            }
            bounded(&reader);
        }
    });
}

/// The words of a message with everything that a number, a name or a client could be.
fn message() -> impl Strategy<Value = (String, LogEvent)> {
    (0..22_u8, any::<[u32; 4]>(), any::<u64>(), "[!-~]{0,30}").prop_map(message_of)
}

fn message_of(
    (which, [pid, context, n, m], bytes, plain): (u8, [u32; 4], u64, String),
) -> (String, LogEvent) {
    let client = LogClient { pid, context };
    let named = format!("{{PID: {pid}, Context ID: {context}}}");
    match which {
        0 => (format!("NEW SERVER {n}: Ready"), LogEvent::ServerReady { server: n }),
        1 => (
            format!("NEW CLIENT {n} from user {m}: Server already exists"),
            LogEvent::ClientAccepted { pid: n, user: m },
        ),
        2 => (
            format!("NEW CLIENT {n} from user {m}: Server is not ready, push client to pending list"),
            LogEvent::PushedToPending { pid: n, user: m },
        ),
        3 => (format!("Starting new server {n} for user {m}"), LogEvent::StartingServer { pid: n, uid: m }),
        4 => (format!("Server {n} exited with status -{}", n % 256), {
            let status = -i32::try_from(n % 256).expect("a byte");
            LogEvent::ServerExited { server: n, status }
        }),
        5 => (
            format!("Server {n} has {m} active worker threads. Server will not shutdown."),
            LogEvent::StillActive { server: n, workers: m },
        ),
        6 => (format!("Force shutting down server {n}"), LogEvent::ShuttingDown { server: n, forced: true }),
        7 => (format!("Client {named} connected"), LogEvent::ClientConnected(client)),
        8 => (format!("Creating worker thread for client {named}"), LogEvent::ClientServed(client)),
        9 => {
            (format!("Status of client {named} is {plain}"), LogEvent::ClientStatus { client, status: plain })
        }
        10 => (
            format!("Server failed to recevie command with status {n}, assuming client {named} exit"),
            LogEvent::ClientHungUp { client, status: n },
        ),
        11 => (
            format!(
                "Client {named} exiting.{} Number of active client contexts is {n}.",
                if n % 2 == 0 { " Worker is in reset." } else { "" }
            ),
            LogEvent::ContextExited { client, remaining: n, in_reset: n % 2 == 0 },
        ),
        12 => (format!("Client process {n} disconnected"), LogEvent::ClientDisconnected { pid: n }),
        13 => (
            format!("Client {{PID: {pid}, Context: {context}}} encountered a fatal GPU error."),
            LogEvent::FatalError(client),
        ),
        14 => (
            format!("Client {named} on device {n} to be torn down"),
            LogEvent::TornDownOnDevice { client, device: n },
        ),
        15 => (
            format!("All clients belonging to error trigging process {n} will be torn down"),
            LogEvent::ProcessTornDown { pid: n },
        ),
        16 => {
            let device = format!("GPU-{n:x}");
            let message = format!("Device pinned memory limit for device {device} set to 0x{bytes:x} bytes");
            (message, LogEvent::MemoryLimitSet { device, bytes })
        }
        17 => (format!("Cmd:{plain}"), LogEvent::Command(plain)),
        18 => {
            let uuid = format!("GPU-{n:x}");
            (format!("Device {plain} (uuid {uuid}) is associated"), LogEvent::DeviceAssociated { uuid })
        }
        19 => (
            format!("Creating server context on device {n} (NVIDIA H200)"),
            LogEvent::ServerContext { device: n, created: true },
        ),
        20 => (
            format!("Client {named} on the error-trigging process {n} to be torn down"),
            LogEvent::TornDownWithProcess { client, pid: n },
        ),
        _ => (format!("Display Driver version: {n}"), LogEvent::DriverVersion(n)),
    }
}

#[test]
fn written_log_messages_are_read_back() {
    let sources =
        [(LogSource::Control, "Control"), (LogSource::Server, "Server"), (LogSource::Other, "Other")];
    values(vec((select(sources.to_vec()), 1..=4_194_304_u32, 0..1000_u16, message()), 1..6), |messages| {
        let log: String = messages
            .iter()
            .map(|((_, source), pid, ms, (text, _))| {
                format!("[2026-11-21 02:53:15.{ms:03} {source} {pid:>5}] {text}\n")
            })
            .collect();
        let records = read(log.as_bytes());
        assert_eq!(records.len(), messages.len(), "{log}");
        for (record, ((source, _), pid, ms, (text, event))) in records.iter().zip(messages) {
            let (read, written) = (i32::from(record.at.millisecond()), i32::from(*ms));
            assert_eq!((record.source, record.pid, read), (*source, *pid, written));
            assert_eq!((&record.text, &record.event), (text, event));
        }
    });
}
