//! What the two logs of a daemon tell: whether something happened that is worth a look, and some hints. Pure.
//!
//! Whoever reaches the pipe directory can write into the logs (FACTS.md, "Logs"). So a line may cost a look, and what
//! is kept here is shown only where /proc or the daemon's own answer agrees.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use super::limits::Logged;
use crate::domain::gpu::GpuUuid;
use crate::mps::log::{Event, Record};

/// The most that is kept of each kind: the logs are anybody's to write, and memory is not.
const KEPT: usize = 1024;

/// What the logs have told so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Whose sessions lines belong to at the moment.
    session: Session,
    /// For whom each server was started.
    servers: BTreeMap<u32, u32>,
    /// The exact limits that servers wrote.
    limits: Logged,
    /// Processes that wait for a server, with their user and since when.
    pending: BTreeMap<u32, Pending>,
    /// Where each server stands with the client at its door.
    doors: BTreeMap<u32, Door>,
    /// Processes that a server let in and that it has not said to be gone, and those that it has.
    let_in: BTreeSet<u32>,
    left: BTreeSet<u32>,
    /// Servers of which every client is known: from their first line on, or from a look on.
    followed: BTreeSet<u32>,
    /// The last command of somebody else that changes something.
    foreign: Option<String>,
}

/// Where a server stands with the client at its door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    /// It takes the client.
    Taking,
    /// It found the client dead, and hangs: it has never written anything about another one after that (recordings 10, 16
    /// and 17).
    Hung,
}

/// A process that was put on the list of those who wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pending {
    /// Its user, by the log.
    pub uid: u32,
    /// When, by the host's local clock.
    pub since: DateTime,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Session {
    /// None is open, or its first command has not come.
    #[default]
    Unknown,
    Ours,
    Others,
}

impl Told {
    /// Takes a message of control.log; says whether a look should follow.
    pub(super) fn control(&mut self, record: &Record) -> bool {
        match &record.event {
            Event::UiOpened | Event::UiClosed => self.session = Session::Unknown,
            Event::Command(line) => return self.command(line),
            Event::PushedToPending { pid, user } => {
                if self.pending.len() < KEPT {
                    let pending = Pending { uid: *user, since: record.at };
                    self.pending.entry(*pid).or_insert(pending);
                }
                return true;
            }
            Event::ClientAccepted { pid, .. } => {
                self.pending.remove(pid);
                return true;
            }
            Event::StartingServer { pid, uid } => {
                self.limits.retain(|(server, _), _| server != pid);
                self.doors.remove(pid);
                self.followed.remove(pid);
                if self.servers.len() < KEPT {
                    self.servers.insert(*pid, *uid);
                }
                return true;
            }
            Event::DaemonStarting { .. } => {
                // Another control process: nobody waits for it yet.
                self.pending.clear();
                self.session = Session::Unknown;
                return true;
            }
            // That a server is asked to make way, again and again, is no news; that it goes is.
            Event::ServerReady { .. } | Event::ServerExited { .. } | Event::DaemonExited { .. } => {
                return true;
            }
            _ => {}
        }
        false
    }

    /// A command, as the daemon writes it before it answers.
    ///
    /// The first line of each session of ours is a delimiter, which tells it from everybody else's. Who forges that
    /// hides from the log, and not from the next look.
    fn command(&mut self, line: &str) -> bool {
        if self.session == Session::Unknown {
            self.session = if is_delimiter(line) { Session::Ours } else { Session::Others };
        }
        let matters = self.session == Session::Others && changes_something(line);
        if matters {
            self.foreign = Some(line.chars().take(120).collect());
        }
        matters
    }

    /// Takes a message of server.log; says whether a look should follow. `gpus` are the daemon's, by ordinal.
    pub(super) fn server(&mut self, record: &Record, gpus: &[GpuUuid]) -> bool {
        match &record.event {
            Event::MemoryLimitSet { device, bytes } => {
                // A server names the device as the command that set the limit did: by ordinal or by UUID.
                let by_uuid = || gpus.iter().position(|gpu| gpu.as_str() == device);
                if let Some(ordinal) =
                    device.parse().ok().or_else(by_uuid).filter(|ordinal| *ordinal < gpus.len())
                    && (self.limits.len() < KEPT || self.limits.contains_key(&(record.pid, ordinal)))
                {
                    self.limits.insert((record.pid, ordinal), *bytes);
                }
                false
            }
            Event::ServerStep(step) if step == "Startup" => {
                if self.followed.len() < KEPT {
                    self.followed.insert(record.pid);
                }
                false
            }
            Event::ClientKnocking => {
                if self.doors.len() < KEPT {
                    self.doors.insert(record.pid, Door::Taking);
                }
                false
            }
            Event::InvalidCredentials => {
                let taking = self.doors.get_mut(&record.pid).filter(|door| **door == Door::Taking);
                taking.map(|door| *door = Door::Hung).is_some()
            }
            Event::ClientConnected(client) => {
                self.doors.remove(&record.pid);
                self.left.remove(&client.pid);
                if self.let_in.len() < KEPT {
                    self.let_in.insert(client.pid);
                } else {
                    self.missed();
                }
                true
            }
            Event::ClientRefused { .. } => {
                self.doors.remove(&record.pid);
                true
            }
            Event::ClientDisconnected { pid } => {
                self.let_in.remove(pid);
                if self.left.len() < KEPT {
                    self.left.insert(*pid);
                }
                true
            }
            Event::ClientStatus { .. }
            | Event::ContextExited { .. }
            | Event::TerminationSucceeded
            | Event::FatalError(_)
            | Event::HandlingFault
            | Event::TornDownOnDevice { .. }
            | Event::ProcessTornDown { .. }
            | Event::TornDownWithProcess { .. }
            | Event::DeviceReset { .. }
            | Event::StickyError { .. } => true,
            _ => false,
        }
    }

    /// Forgets the dead.
    pub(super) fn prune(&mut self, alive: impl Fn(u32) -> bool) {
        self.servers.retain(|pid, _| alive(*pid));
        self.limits.retain(|(pid, _), _| alive(*pid));
        self.pending.retain(|pid, _| alive(*pid));
        self.doors.retain(|pid, _| alive(*pid));
        for pids in [&mut self.let_in, &mut self.left, &mut self.followed] {
            pids.retain(|pid| alive(*pid));
        }
    }

    /// Lines may have been missed: who is connected is not known any more, before the next look.
    pub(super) fn missed(&mut self) {
        self.followed.clear();
    }

    /// A look has listed all clients of these servers.
    pub(super) fn looked(&mut self, servers: impl Iterator<Item = u32>) {
        self.followed = servers.collect();
    }

    /// Servers of which every client is known, together with those of the last look.
    pub(super) fn followed(&self) -> impl Iterator<Item = u32> {
        self.followed.iter().copied()
    }

    /// Processes that a server has said to be gone, and not let in again.
    pub(super) fn left(&self) -> impl Iterator<Item = u32> {
        self.left.iter().copied()
    }

    /// Servers that hang over a client that died at their door.
    pub(super) fn hung(&self) -> impl Iterator<Item = u32> {
        self.doors.iter().filter(|(_, door)| **door == Door::Hung).map(|(pid, _)| *pid)
    }

    /// Processes that a server let in and that it has not said to be gone; some may be dead.
    pub(super) fn let_in(&self) -> impl Iterator<Item = u32> {
        self.let_in.iter().copied()
    }

    /// For whom a server was started.
    pub(super) fn user_of(&self, server: u32) -> Option<u32> {
        self.servers.get(&server).copied()
    }

    /// The exact limits that servers wrote.
    pub(super) fn limits(&self) -> &Logged {
        &self.limits
    }

    /// Those who wait, by the log.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u32, Pending)> {
        self.pending.iter().map(|(pid, pending)| (*pid, *pending))
    }

    /// The last command of somebody else that changes something: a hint at who changed a setting.
    pub(super) fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }
}

/// Whether a control daemon ended while somebody else's session was open, in words; by its last messages.
///
/// A session of more than 4096 bytes in one line kills it before that line is written to the log (recording 09).
pub(super) fn died_in_session(records: &[Record]) -> Option<String> {
    let opened = records.iter().rposition(|record| record.event == Event::UiOpened)?;
    let mut commands = Vec::new();
    for record in &records[opened..] {
        match &record.event {
            Event::UiClosed | Event::DaemonExited { .. } | Event::DaemonStarting { .. } => return None,
            Event::Command(line) => commands.push(line.as_str()),
            _ => {}
        }
    }
    if commands.first().is_some_and(|line| is_delimiter(line)) {
        return None;
    }
    let said = match commands.last() {
        None => "before its first command was logged".to_owned(),
        Some(line) => format!("after the command {:?}", line.chars().take(120).collect::<String>()),
    };
    Some(format!(
        "it died while a session of somebody else was open, {said}: a line of 4100 bytes kills it, whoever sends it, so look \
         for who reaches its socket"
    ))
}

/// Whether a line is one of the manager's delimiters: `zz-`, 16 hexadecimal digits, a dash and a number.
fn is_delimiter(line: &str) -> bool {
    let Some((nonce, number)) = line.strip_prefix("zz-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    nonce.len() == 16
        && nonce.bytes().all(hex)
        && !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a command may change something; words that the daemon does not know change nothing.
fn changes_something(line: &str) -> bool {
    let word = line.split_ascii_whitespace().next().unwrap_or_default();
    word.starts_with("set_")
        || matches!(word, "start_server" | "shutdown_server" | "terminate_client" | "sm_partition" | "quit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::log;

    fn told(told: &mut Told, log: &str) -> usize {
        let records = log::read(log.as_bytes());
        records.iter().filter(|record| told.control(record)).count()
    }

    fn lines(texts: &[&str]) -> String {
        texts.iter().flat_map(|text| ["[2026-11-21 02:53:15.169 Control  1308] ", text, "\n"]).collect()
    }

    #[test]
    fn our_own_sessions_wake_nobody_and_those_of_others_by_what_they_change() {
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
        let mut state = Told::default();
        assert_eq!(told(&mut state, &ours), 0);
        assert_eq!(
            told(&mut state, &lines(&["NEW UI", "Cmd:get_server_list", "511", "Cmd:ps", "UI closed"])),
            0
        );
        assert_eq!(state.foreign(), None);
        assert_eq!(
            told(&mut state, &lines(&["NEW UI", "Cmd:set_default_client_priority 1", "1", "UI closed"])),
            1
        );
        assert_eq!(state.foreign(), Some("set_default_client_priority 1"));
        // A delimiter in the middle of somebody's session makes it no session of ours.
        let late = lines(&["NEW UI", "Cmd:ps", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:quit", "UI closed"]);
        assert_eq!(told(&mut state, &late), 1);
        for not in ["zz-1", "zz-00c0ffee00c0ffee-", "zz-00c0ffee00c0ffeg-1", "zz-00c0ffee00c0ffee-x"] {
            assert!(!is_delimiter(not), "{not}");
        }
    }

    #[test]
    fn who_waits_is_known_until_it_is_let_in_or_gone() {
        let mut state = Told::default();
        let waits = "NEW CLIENT 1323 from user 1000: Server is not ready, push client to pending list";
        let other = "NEW CLIENT 1400 from user 1000: Server is not ready, push client to pending list";
        assert_eq!(told(&mut state, &lines(&["Starting new server 1310 for user 0", waits, other])), 3);
        assert_eq!(state.user_of(1310), Some(0));
        assert_eq!(
            state.pending().map(|(pid, pending)| (pid, pending.uid)).collect::<Vec<_>>(),
            [(1323, 1000), (1400, 1000)]
        );
        told(&mut state, &lines(&["NEW CLIENT 1323 from user 1000: Server already exists"]));
        assert_eq!(state.pending().count(), 1);
        state.prune(|pid| pid != 1400);
        assert_eq!(state.pending().count(), 0);
        assert_eq!(state.user_of(1310), Some(0));
    }

    #[test]
    fn a_death_in_somebody_elses_session_is_told_from_others() {
        let died = |texts: &[&str]| died_in_session(&log::read(lines(texts).as_bytes()));
        let said = died(&["NEW UI", "Cmd:ps", "UI closed", "Accepting connection...", "NEW UI"])
            .expect("in a session");
        assert!(said.contains("before its first command") && said.contains("4100"), "{said}");
        let said = died(&["NEW UI", "Cmd:get_server_list", "511"]).expect("in a session");
        assert!(said.contains("after the command \"get_server_list\""), "{said}");
        assert_eq!(died(&["NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:ps"]), None, "ours");
        assert_eq!(died(&["NEW UI", "Cmd:ps", "UI closed"]), None);
        assert_eq!(died(&["NEW UI", "Cmd:quit", "Exit with status 0"]), None);
        assert_eq!(died(&[]), None);
    }

    #[test]
    fn a_server_hangs_from_when_it_finds_its_next_client_dead() {
        let hung = |lines: &[&str]| {
            let mut state = Told::default();
            for line in lines {
                let line = format!("[2026-11-21 10:37:17.446 Server  1115] {line}\n");
                for record in log::read(line.as_bytes()) {
                    state.server(&record, &[]);
                }
            }
            (state.hung().collect::<Vec<_>>(), state.let_in().collect::<Vec<_>>())
        };
        let (knocks, denied) = (
            "Received new client request for {PID: 1146, Context ID: 0}",
            "User did not send valid credentials",
        );
        let enters = "Client {PID: 1149, Context ID: 0} connected";
        assert_eq!(hung(&[denied]).0, [0; 0]);
        assert_eq!(hung(&[knocks]).0, [0; 0], "it may be taking it");
        assert_eq!(hung(&[knocks, enters, denied]), (vec![], vec![1149]));
        assert_eq!(
            hung(&[knocks, "Failed to accept client {PID: 1149, Context ID: 0} with status 807", denied]).0,
            [0; 0]
        );
        // As recorded: the end of a client comes between the two lines.
        let left = "Server failed to recevie command with status 806, assuming client {PID: 1149, Context ID: 0} exit";
        assert_eq!(hung(&[knocks, enters, knocks, left, denied]), (vec![1115], vec![1149]));
        assert_eq!(hung(&[knocks, denied, "Client process 1149 disconnected"]).0, [1115]);
    }

    #[test]
    fn who_is_connected_is_known_from_a_servers_first_line_or_a_look_until_lines_are_missed() {
        let mut state = Told::default();
        let read = |state: &mut Told, line: &str| {
            for record in log::read(format!("[2026-11-21 10:37:17.446 Server  1115] {line}\n").as_bytes()) {
                state.server(&record, &[]);
            }
        };
        let followed = |state: &Told| state.followed().collect::<Vec<_>>();
        read(&mut state, "Client {PID: 7, Context ID: 0} connected");
        assert_eq!(followed(&state), [0; 0], "others may have come before");
        read(&mut state, "Startup");
        assert_eq!(followed(&state), [1115]);
        state.missed();
        assert_eq!(followed(&state), [0; 0]);
        state.looked([1115].into_iter());
        assert_eq!(followed(&state), [1115]);
        read(&mut state, "Client process 7 disconnected");
        assert_eq!((state.let_in().count(), state.left().collect::<Vec<_>>()), (0, vec![7]));
        read(&mut state, "Client {PID: 7, Context ID: 0} connected");
        assert_eq!((state.let_in().collect::<Vec<_>>(), state.left().count()), (vec![7], 0));
        // Too many to be kept are as good as missed.
        for pid in 10_000..12_000 {
            read(&mut state, &format!("Client {{PID: {pid}, Context ID: 0}} connected"));
        }
        assert_eq!(followed(&state), [0; 0]);
    }

    #[test]
    fn a_log_that_anybody_fills_takes_no_memory_without_end() {
        let mut state = Told::default();
        let forged: Vec<String> = (1..5000)
            .flat_map(|pid| {
                [
                    format!("NEW CLIENT {pid} from user 1: Server is not ready, push client to pending list"),
                    format!("Starting new server {pid} for user 1"),
                ]
            })
            .collect();
        told(&mut state, &lines(&forged.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!((state.pending.len(), state.servers.len()), (KEPT, KEPT));
    }

    #[test]
    fn clients_and_faults_in_server_log_wake_and_limits_are_kept() {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let log = "[2026-11-21 02:36:32.974 Server   511] Received new client request for {PID: 0, Context ID: 0}\n\
            [2026-11-21 02:36:32.974 Server   511] Client {PID: 647, Context ID: 0} connected\n\
            [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device 0 set to 0x100000000 bytes\n\
            [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device GPU-514466a0-8e68-f857-9f73-e438010e48cb set to 0x200000000 bytes\n\
            [2026-11-21 02:36:32.974 Server   511] Device pinned memory limit for device 7 set to 0x200000000 bytes\n\
            [2026-11-21 02:36:32.974 Server   511] Client {PID: 668, Context: 1} encountered a fatal GPU error.\n";
        let mut state = Told::default();
        let records = log::read(log.as_bytes());
        let woke = records.iter().filter(|record| state.server(record, std::slice::from_ref(&gpu))).count();
        assert_eq!(woke, 2);
        assert_eq!(state.limits().iter().collect::<Vec<_>>(), [(&(511, 0), &0x2_0000_0000)]);
    }
}
