//! The state kept from a daemon's logs, line by line.

use super::*;
use crate::mps::log;

fn feed(state: &mut LogState, log: &str) -> usize {
    let records = log::read(log.as_bytes());
    records.iter().filter(|record| state.control(record)).count()
}

fn lines(texts: &[&str]) -> String {
    texts.iter().flat_map(|text| ["[2026-11-21 02:53:15.169 Control  1308] ", text, "\n"]).collect()
}

#[test]
fn only_changes_in_external_sessions_wake_polling() {
    let ours = lines(&[
        "Accepting connection...",
        "NEW UI",
        "Cmd:zz-00c0ffee00c0ffee-1",
        "Unknown command \"zz-00c0ffee00c0ffee-1\"",
        "Cmd:set_default_active_thread_percentage 50.0",
        "50.0",
        "Cmd:start_server -uid 0",
        "UI closed",
        "Accepting connection...",
        "User did not send valid credentials",
    ]);
    let mut state = LogState::default();
    assert_eq!(feed(&mut state, &ours), 0);
    assert_eq!(feed(&mut state, &lines(&["NEW UI", "Cmd:get_server_list", "511", "Cmd:ps", "UI closed"])), 0);
    assert_eq!(state.foreign(), None);
    assert_eq!(
        feed(&mut state, &lines(&["NEW UI", "Cmd:set_default_client_priority 1", "1", "UI closed"])),
        1
    );
    assert_eq!(state.foreign(), Some("set_default_client_priority 1"));
    // A delimiter in the middle of another program's session makes it no session of ours.
    let late = lines(&["NEW UI", "Cmd:ps", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:quit", "UI closed"]);
    assert_eq!(feed(&mut state, &late), 1);
}

#[test]
fn server_that_ends_before_it_is_ready_failed() {
    let mut state = LogState::default();
    // As the programs of drivers 535 and 550 write it without a GPU (recording 22).
    feed(
        &mut state,
        &lines(&[
            "Starting new server 20 for user 0",
            "Server 20 exited with status 1",
            "Removed Shm file at ",
        ]),
    );
    assert_eq!(state.take_failed(), Some(FailedServer { pid: 20, status: 1 }));
    assert_eq!(state.take_failed(), None);
    let alive = |_| true;
    feed(&mut state, &lines(&["Starting new server 21 for user 0"]));
    assert_eq!(state.status_of(21, alive), ServerStatus::Initializing);
    feed(&mut state, &lines(&["NEW SERVER 21: Ready"]));
    assert_eq!(
        (state.status_of(21, alive), state.status_of(7, alive)),
        (ServerStatus::Active, ServerStatus::Active)
    );
    let faults = log::read(
        b"[2026-11-21 02:53:15.169 Server 21] Client {PID: 30, Context: 1} encountered a fatal GPU error.\n\
                             [2026-11-21 02:53:15.169 Server 21] Process 31 will be torn down\n",
    );
    for record in &faults {
        state.server(record, &[]);
    }
    state.affects(21, 31);
    assert_eq!(state.status_of(21, alive), ServerStatus::Fault);
    assert_eq!(state.status_of(21, |_| false), ServerStatus::Active, "who was affected has ended");
    feed(&mut state, &lines(&["Server 21 exited with status 0"]));
    assert_eq!(state.take_failed(), None, "it had been ready");
}

#[test]
fn waiting_client_is_tracked_until_admitted_or_gone() {
    let mut state = LogState::default();
    let waits = "NEW CLIENT 1323 from user 1000: Server is not ready, push client to pending list";
    let other = "NEW CLIENT 1400 from user 1000: Server is not ready, push client to pending list";
    assert_eq!(feed(&mut state, &lines(&["Starting new server 1310 for user 0", waits, other])), 3);
    assert_eq!(state.user_of(1310), Some(0));
    assert_eq!(
        state.pending().map(|(pid, pending)| (pid, pending.uid)).collect::<Vec<_>>(),
        [(1323, 1000), (1400, 1000)]
    );
    feed(&mut state, &lines(&["NEW CLIENT 1323 from user 1000: Server already exists"]));
    assert_eq!(state.pending().count(), 1);
    state.prune(|pid| pid != 1400);
    assert_eq!(state.pending().count(), 0);
    assert_eq!(state.user_of(1310), Some(0));
}

#[test]
fn daemon_death_in_external_session_is_recognised() {
    let died = |texts: &[&str]| died_in_session(&log::read(lines(texts).as_bytes()), false);
    let message =
        died(&["NEW UI", "Cmd:ps", "UI closed", "Accepting connection...", "NEW UI"]).expect("in a session");
    assert!(message.contains("before its first command") && message.contains("4100"), "{message}");
    let message = died(&["NEW UI", "Cmd:get_server_list", "511"]).expect("in a session");
    assert!(message.contains("after the command \"get_server_list\""), "{message}");
    assert_eq!(died(&["NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:ps"]), None, "ours");
    assert_eq!(died(&["NEW UI", "Cmd:ps", "UI closed"]), None);
    assert_eq!(died(&["NEW UI", "Cmd:quit", "Exit with status 0"]), None);
    assert_eq!(died(&[]), None);
    let may_be_ours = |texts: &[&str]| died_in_session(&log::read(lines(texts).as_bytes()), true);
    assert_eq!(may_be_ours(&["NEW UI"]), None, "it may be ours");
    assert!(may_be_ours(&["NEW UI", "Cmd:get_server_list"]).is_some(), "ours begins with a delimiter");
}

#[test]
fn session_open_before_ours_is_anothers() {
    let (earlier, later) = (
        lines(&["NEW UI", "Cmd:ps", "UI closed", "NEW UI"]),
        lines(&["NEW CLIENT 7 from user 0: Server already exists"]),
    );
    assert!(!opened_before(&format!("\u{FFFD}{earlier}"), 0), "what was written is longer or shorter");
    assert!(opened_before(&earlier, 0));
    assert!(opened_before(&format!("{earlier}{later}"), later.len()));
    let ours = lines(&["NEW UI"]);
    assert!(!opened_before(&format!("{earlier}{ours}"), ours.len()), "the last one was opened later");
    assert!(
        !opened_before(&earlier, earlier.len()) && !opened_before(&ours, 10_000),
        "none was opened before"
    );
}

#[test]
fn server_hang_is_detected_from_its_log() {
    let hung = |lines: &[&str]| {
        let mut state = LogState::default();
        for line in lines {
            let line = format!("[2026-11-21 10:37:17.446 Server  1115] {line}\n");
            for record in log::read(line.as_bytes()) {
                state.server(&record, &[]);
            }
        }
        let waiting: Vec<u32> = state.waiting().map(|(pid, _)| pid).collect();
        (state.hung().collect::<Vec<_>>(), waiting)
    };
    let (connecting, denied) =
        ("Received new client request for {PID: 1146, Context ID: 0}", "User did not send valid credentials");
    let enters = "Client {PID: 1149, Context ID: 0} connected";
    assert_eq!(hung(&[denied]).0, [0; 0]);
    assert_eq!(hung(&[connecting]).0, [0; 0], "it may be taking it");
    assert_eq!(hung(&[connecting, enters, denied]), (vec![], vec![1149]));
    assert_eq!(
        hung(&[connecting, "Failed to accept client {PID: 1149, Context ID: 0} with status 807", denied]).0,
        [0; 0]
    );
    // As recorded: the end of a client comes between the two lines.
    let left =
        "Server failed to recevie command with status 806, assuming client {PID: 1149, Context ID: 0} exit";
    assert_eq!(hung(&[connecting, enters, connecting, left, denied]), (vec![1115], vec![1149]));
    assert_eq!(hung(&[connecting, denied, "Client process 1149 disconnected"]).0, [1115]);
}

#[test]
fn connected_clients_are_known_until_lines_are_missed() {
    let mut state = LogState::default();
    let read = |state: &mut LogState, line: &str| {
        for record in log::read(format!("[2026-11-21 10:37:17.446 Server  1115] {line}\n").as_bytes()) {
            state.server(&record, &[]);
        }
    };
    let followed = |state: &LogState| state.followed().collect::<Vec<_>>();
    read(&mut state, "Client {PID: 7, Context ID: 0} connected");
    assert_eq!(followed(&state), [0; 0], "others may have come before");
    read(&mut state, "Startup");
    assert_eq!(followed(&state), [1115]);
    state.missed();
    assert_eq!(followed(&state), [0; 0]);
    state.polled([1115].into_iter());
    assert_eq!(followed(&state), [1115]);
    read(&mut state, "Client process 7 disconnected");
    assert_eq!((state.connected().count(), state.left().collect::<Vec<_>>()), (0, vec![7]));
    read(&mut state, "Client {PID: 7, Context ID: 1} connected");
    assert_eq!((state.connected().collect::<Vec<_>>(), state.left().count()), (vec![(7, 1115)], 0));
    // Clients beyond the limit count as missed.
    for pid in 10_000..12_000 {
        read(&mut state, &format!("Client {{PID: {pid}, Context ID: 1}} connected"));
    }
    assert_eq!(followed(&state), [0; 0]);
}

#[test]
fn a_client_without_a_context_is_waiting() {
    let mut state = LogState::default();
    let server = |state: &mut LogState, texts: &[&str]| {
        for text in texts {
            let line = format!("[2026-11-21 10:37:17.446 Server  1115] {text}\n");
            for record in log::read(line.as_bytes()) {
                state.server(&record, &[]);
            }
        }
    };
    let who = |state: &LogState| {
        let waiting: Vec<u32> = state.waiting().map(|(pid, _)| pid).collect();
        (waiting, state.connected().map(|(pid, _)| pid).collect::<Vec<u32>>())
    };
    // The client is handed over, and nothing more is logged, as in recording 20.
    feed(&mut state, &lines(&["NEW CLIENT 7 from user 0: Server already exists"]));
    assert_eq!(who(&state), (vec![7], vec![]));
    server(&mut state, &["Client {PID: 7, Context ID: 0} connected"]);
    assert_eq!(who(&state), (vec![7], vec![]));
    server(&mut state, &["Client {PID: 7, Context ID: 1} connected"]);
    assert_eq!(who(&state), (vec![], vec![7]));
    feed(&mut state, &lines(&["NEW CLIENT 7 from user 0: Server already exists"]));
    assert_eq!(who(&state), (vec![], vec![7]), "with a further context");
    feed(&mut state, &lines(&["NEW CLIENT 8 from user 0: Server already exists"]));
    feed(&mut state, &lines(&["Starting new server 1200 for user 0"]));
    assert_eq!(who(&state).0, [0; 0], "they have to come again");
    server(&mut state, &["Client process 7 disconnected"]);
    assert_eq!(who(&state), (vec![], vec![]));
}

#[test]
fn fault_affects_clients_named_by_server() {
    let mut state = LogState::default();
    let read = |state: &mut LogState, texts: &[&str]| {
        for text in texts {
            let line = format!("[2026-11-21 10:37:17.446 Server  1115] {text}\n");
            for record in log::read(line.as_bytes()) {
                state.server(&record, &[]);
            }
        }
    };
    read(&mut state, &["Client {PID: 5, Context ID: 1} on device 0 to be torn down"]);
    assert!(state.affected(1115).is_empty(), "without a fault before it");
    read(
        &mut state,
        &[
            "Client {PID: 668, Context: 1} encountered a fatal GPU error.",
            "Client {PID: 669, Context ID: 1} on device 0 to be torn down",
            "All clients belonging to error trigging process 670 will be torn down",
        ],
    );
    assert_eq!(state.affected(1115), BTreeSet::from([669, 670]));
    state.recovered([1115].into_iter());
    assert!(state.affected(1115).is_empty());
}

#[test]
fn quit_of_another_program_is_kept() {
    let mut state = LogState::default();
    feed(&mut state, &lines(&["NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:ps", "UI closed"]));
    assert_eq!(state.quit(), None);
    feed(&mut state, &lines(&["NEW UI", "Cmd:quit -t 1", "Exit with status 0"]));
    assert_eq!(state.quit(), Some("quit -t 1"));
    feed(&mut state, &lines(&["Starting control daemon using socket /p/control"]));
    assert_eq!(state.quit(), None, "another process");
}

#[test]
fn forged_log_lines_take_bounded_memory() {
    let mut state = LogState::default();
    let forged: Vec<String> = (1..5000)
        .flat_map(|pid| {
            [
                format!("NEW CLIENT {pid} from user 1: Server is not ready, push client to pending list"),
                format!("Starting new server {pid} for user 1"),
            ]
        })
        .collect();
    feed(&mut state, &lines(&forged.iter().map(String::as_str).collect::<Vec<_>>()));
    assert_eq!((state.pending.len(), state.servers.len()), (KEPT, KEPT));
}

#[test]
fn server_log_clients_faults_and_limits_are_tracked() {
    let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
    let log = "[2026-11-21 02:36:32.974 Server   511] Received new client request for {PID: 0, Context ID: 0}\n\
        [2026-11-21 02:36:32.974 Server   511] Client {PID: 647, Context ID: 0} connected\n\
        [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device 0 set to 0x100000000 bytes\n\
        [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device GPU-514466a0-8e68-f857-9f73-e438010e48cb set to 0x200000000 bytes\n\
        [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device 7 set to 0x200000000 bytes\n\
        [2026-11-21 02:36:32.974 Server   511] Client {PID: 668, Context: 1} encountered a fatal GPU error.\n";
    let mut state = LogState::default();
    let records = log::read(log.as_bytes());
    let woke = records.iter().filter(|record| state.server(record, std::slice::from_ref(&gpu))).count();
    assert_eq!(woke, 2);
    assert_eq!(state.limits().iter().collect::<Vec<_>>(), [(&(511, 0), &0x2_0000_0000)]);
}
