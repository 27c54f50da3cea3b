//! The ceiling on clients, what a client does that cannot have what it wants, and what is written of fatal errors.

use super::host::{Busy, Host};
use super::transcript;
use crate::harness::{TIMEOUT, eventually};

/// Fills a GPU with clients; returns how many got in and the last one's words.
fn fill(host: &Host) -> (usize, String) {
    let mut clients = Vec::new();
    loop {
        let mut client = Busy::spawn(&mut host.client_command(&["--spin", "60", "--gpus", "0"], &[]));
        eventually("the client got in or not", || {
            let text = client.output().0;
            text.contains("SM ") || text.contains("_UNAVAILABLE")
        });
        if !client.running() || client.output().0.contains("_UNAVAILABLE") {
            let count = clients.len();
            let done = client.finish(TIMEOUT);
            assert_eq!(done.rc, 3);
            for client in clients {
                let client: Busy = client;
                client.signal(rustix::process::Signal::KILL);
                client.finish(TIMEOUT);
            }
            return (count, done.stdout);
        }
        clients.push(client);
    }
}

#[test]
fn a_device_takes_48_clients_on_13_0() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let (count, message) = fill(&host);
    assert_eq!(count, 48);
    assert!(
        message.ends_with("cuDevicePrimaryCtxRetain(&ctx,d) -> CUDA_ERROR_DEVICE_UNAVAILABLE\n"),
        "{message}"
    );
    assert!(
        host.log("server.log")
            .contains("Failed to accept new client. Maximum number of clients (48) reached.")
    );
}

#[test]
fn client_ceiling_depends_on_version_and_gpu() {
    for (profile, ceiling) in [("h200x1@13.1", 60), ("p100x1@12.8", 16)] {
        let host = Host::new(profile);
        host.start(&["-d"], &[]);
        assert_eq!(fill(&host).0, ceiling, "{profile}");
    }
}

#[test]
fn exclusive_mode_stops_a_client_outside_mps() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    host.server();
    let mode = host.world.dir().join("gpus").join(&host.uuids()[0]).join("compute_mode");
    let outside = [("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")];
    assert_eq!(host.see(&outside)["mps"], false);
    std::fs::write(&mode, "exclusive_process\n").unwrap();
    assert_eq!(host.see(&outside)["error"], "CUDA_ERROR_DEVICE_UNAVAILABLE");
    assert_eq!(host.see(&[])["mps"], true);
}

/// A line of recording 23: `addr n=4 culprit=4 blamed [1] torn [1, 4, 3, 2] sticky [1, 4, 3, 2] in reset [] exit order …`.
struct RecordedFault {
    kind: &'static str,
    clients: usize,
    culprit: usize,
    lists: String,
}

fn recorded_faults() -> Vec<RecordedFault> {
    let text = transcript::text("23-h200-x1-fatal-errors-and-whom-mps-names.txt");
    let read = |line: &str| {
        let (head, lists) = line.split_once(" blamed ")?;
        let words: Vec<&str> = head.split_whitespace().collect();
        let kind = match words[0] {
            "addr" => "address",
            "mis" => "misaligned",
            "trap" => "trap",
            _ => "stack",
        };
        let number = |word: &str| word.split_once('=').expect("a number").1.parse().expect("a number");
        let (lists, _) = lists.split_once(" exit order").expect("lists");
        Some(RecordedFault {
            kind,
            clients: number(words[1]),
            culprit: number(words[2]),
            lists: lists.to_owned(),
        })
    };
    text.lines().filter_map(read).collect()
}

/// The lists of server.log, by start order of the clients.
fn lists(log: &str, clients: &[u32]) -> String {
    let place = |pid: &str| {
        let pid: u32 = pid.trim().parse().expect("a PID");
        1 + clients.iter().position(|known| *known == pid).expect("a client")
    };
    let between = |from: &str, to: &str, of: &str| -> Vec<usize> {
        let lines = log.lines().filter(|line| line.contains(of));
        lines.filter_map(|line| Some(place(line.split_once(from)?.1.split(to).next()?))).collect()
    };
    let named = between("PID: ", ",", "encountered a fatal GPU error");
    let torn = between("PID: ", ",", "on device 0 to be torn down");
    let in_reset = between("PID: ", ",", "Worker is in reset");
    let after = log.lines().skip_while(|line| !line.contains("sticky error set")).skip(1);
    let sticky: Vec<usize> = after
        .map_while(|line| line.split_once("] ").filter(|(_, pid)| pid.parse::<u32>().is_ok()))
        .map(|(_, pid)| place(pid))
        .collect();
    format!("{named:?} torn {torn:?} sticky {sticky:?} in reset {in_reset:?}")
}

#[test]
fn faults_are_written_as_recorded() {
    let all = recorded_faults();
    let largest = |kind: &str| all.iter().filter(|one| one.kind == kind).map(|one| one.clients).max();
    let ends: Vec<&RecordedFault> = all
        .iter()
        .filter(|one| Some(one.clients) == largest(one.kind) && [1, one.clients].contains(&one.culprit))
        .collect();
    assert!(ends.len() >= 8, "{}", ends.len());
    std::thread::scope(|scope| {
        for kind in ["address", "misaligned", "trap", "stack"] {
            let ends = ends.iter().filter(move |one| one.kind == kind);
            scope.spawn(move || ends.for_each(|recorded| compare_fault(recorded)));
        }
    });
}

fn compare_fault(recorded: &RecordedFault) {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let RecordedFault { kind, clients, culprit, lists: expected } = recorded;
    let started: Vec<Busy> = (1..=*clients)
        .map(|place| {
            let faults = ["--fault-after", "1", "--fault-kind", kind];
            host.busy_client(if place == *culprit { &faults } else { &["--spin", "60"] }, &[])
        })
        .collect();
    let pids: Vec<u32> = started.iter().map(|one| one.pid().as_raw_nonzero().get().unsigned_abs()).collect();
    for client in started {
        client.finish(TIMEOUT);
    }
    eventually("the last one is gone", || host.log("server.log").contains("Destroy server context"));
    let log = host.log("server.log");
    assert_eq!(&lists(&log, &pids), expected, "{kind}, culprit {culprit} of {clients}:\n{log}");
}

#[test]
fn assertion_of_a_kernel_harms_no_neighbour() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let neighbour = host.busy_client(&["--spin", "2"], &[]);
    let failed = host.busy_client(&["--fault-after", "0", "--fault-kind", "assert"], &[]).finish(TIMEOUT);
    assert_eq!(failed.rc, 0, "{}", failed.stderr);
    assert_eq!(neighbour.finish(TIMEOUT).rc, 0);
    assert!(!host.log("server.log").contains("fatal GPU error"));
}
