//! The state kept from a daemon's two logs: whether a poll is worthwhile, and some hints. Pure.
//!
//! Anyone who reaches the pipe directory can write into the logs (FACTS.md, "Logs"). A line may therefore cost a poll, and
//! the state kept here is shown only where /proc or the daemon's own answer agrees.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use super::exact_limits::LoggedLimits;
use super::external_writes::ExternalWrites;
use crate::domain::GpuUuid;
use crate::domain::daemon::ServerStatus;
use crate::mps::log::own::is_own_delimiter;
use crate::mps::log::{self, LogEvent, LogRecord};

/// Most entries that are kept of each kind: anybody can write to the logs, and memory is limited.
const KEPT: usize = 1024;

/// State as the logs have reported it so far.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    /// Owner of the session to which lines belong at the moment.
    session: LoggedSessionOwner,
    /// Servers, each with the user for whom it was started.
    servers: BTreeMap<u32, u32>,
    /// Servers that were started and have not reported that they are ready.
    starting: BTreeSet<u32>,
    /// Last server that ended before it was ready, until it is taken.
    failed: Option<FailedServer>,
    /// Exact limits that servers wrote.
    limits: LoggedLimits,
    /// Processes that wait for a server, with their user and the time since when.
    pending: BTreeMap<u32, PendingClient>,
    /// State of each server's connecting client.
    intake: BTreeMap<u32, ClientIntake>,
    /// Processes that are connecting, and since when: handed to a server, or known to it by their process alone (context 0).
    arriving: BTreeMap<u32, DateTime>,
    /// Processes that have a context, each with its server, which has not logged them as gone.
    connected: BTreeMap<u32, u32>,
    /// Processes that a server has logged as gone.
    left: BTreeSet<u32>,
    /// Processes that a fatal GPU error affects, by server, until the server takes clients again.
    affected: BTreeMap<u32, BTreeSet<u32>>,
    /// Servers whose clients are all known: since their first line, or since a poll.
    followed: BTreeSet<u32>,
    /// Last command of another program that changes something.
    foreign: Option<String>,
    /// Last `quit` that another program sent to the present control process.
    quit: Option<String>,
    /// Last writes of another program to settings whose getter does not show them exactly.
    overwrites: ExternalWrites,
    /// Number of this manager's sessions in control.log.
    own_sessions: u64,
}

/// Server that ended before it took a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedServer {
    /// PID of the server.
    pub pid: u32,
    /// Exit status.
    pub status: i32,
}

impl std::fmt::Display for FailedServer {
    /// Writes the message as in the daemon's log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server {} exited with status {}", self.pid, self.status)
    }
}

/// State of a server's connecting client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientIntake {
    /// The server is taking the client.
    Taking,
    /// The server found the client dead, and hangs: it has never written anything about another client after that (recordings
    /// 10, 16 and 17).
    Hung,
}

/// Process on the list of those that wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingClient {
    /// User of the process, according to the log.
    pub uid: u32,
    /// Time at which it was listed, by the host's local clock.
    pub since: DateTime,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LoggedSessionOwner {
    /// No session is open, or its first command has not come.
    #[default]
    Unknown,
    Ours,
    Others,
}

impl LogState {
    /// Takes a message of control.log; returns true if a poll should follow.
    pub(crate) fn control(&mut self, record: &LogRecord) -> bool {
        match &record.event {
            LogEvent::UiOpened | LogEvent::UiClosed => self.session = LoggedSessionOwner::Unknown,
            LogEvent::Command(line) => return self.command(line),
            LogEvent::Reply(text)
                if self.session == LoggedSessionOwner::Others
                    && text.starts_with("Insufficient privileges") =>
            {
                self.overwrites.refused();
            }
            LogEvent::PushedToPending { pid, user } => {
                if self.pending.len() < KEPT {
                    let pending = PendingClient { uid: *user, since: record.at };
                    self.pending.entry(*pid).or_insert(pending);
                }
                return true;
            }
            LogEvent::ClientAccepted { pid, .. } => {
                self.pending.remove(pid);
                if !self.connected.contains_key(pid) && self.arriving.len() < KEPT {
                    self.arriving.entry(*pid).or_insert(record.at);
                }
                return true;
            }
            LogEvent::StartingServer { pid, uid } => {
                // A process that was connecting to the previous server has to connect again.
                self.arriving.clear();
                self.connected.retain(|_, server| server != pid);
                self.affected.remove(pid);
                self.limits.retain(|(server, _), _| server != pid);
                self.intake.remove(pid);
                self.followed.remove(pid);
                if self.servers.len() < KEPT {
                    self.servers.insert(*pid, *uid);
                    self.starting.insert(*pid);
                }
                return true;
            }
            LogEvent::DaemonStarting { .. } => {
                // No client waits for the new control process yet.
                self.pending.clear();
                self.arriving.clear();
                self.starting.clear();
                self.failed = None;
                self.quit = None;
                self.overwrites.clear();
                self.session = LoggedSessionOwner::Unknown;
                return true;
            }
            LogEvent::ServerReady { server } => {
                self.starting.remove(server);
                return true;
            }
            // A repeated request to make way needs no poll; the exit of the server does.
            LogEvent::ServerExited { server, status } => {
                if self.starting.remove(server) {
                    self.failed = Some(FailedServer { pid: *server, status: *status });
                }
                return true;
            }
            LogEvent::DaemonExited { .. } => return true,
            _ => {}
        }
        false
    }

    /// Takes a command, which the daemon writes before it answers; returns true if a poll should follow.
    ///
    /// The first line of each session of this manager is a delimiter, which distinguishes it from other sessions. A program
    /// that forges the delimiter hides from the log, but not from the next poll.
    fn command(&mut self, line: &str) -> bool {
        if self.session == LoggedSessionOwner::Unknown {
            let ours = is_own_delimiter(line);
            self.session = if ours { LoggedSessionOwner::Ours } else { LoggedSessionOwner::Others };
            if ours {
                self.own_sessions += 1;
                self.overwrites.newer = false;
            }
        }
        match self.session {
            LoggedSessionOwner::Ours => self.overwrites.by_manager(line),
            LoggedSessionOwner::Others => self.overwrites.by_others(line),
            LoggedSessionOwner::Unknown => {}
        }
        let matters = self.session == LoggedSessionOwner::Others && changes_something(line);
        if matters {
            let short: String = line.chars().take(120).collect();
            if line.split_ascii_whitespace().next() == Some("quit") {
                self.quit = Some(short.clone());
            }
            self.foreign = Some(short);
        }
        matters
    }

    /// Takes a message of server.log; returns true if a poll should follow. `gpus` are the daemon's, by ordinal.
    pub(crate) fn server(&mut self, record: &LogRecord, gpus: &[GpuUuid]) -> bool {
        match &record.event {
            LogEvent::MemoryLimitSet { device, bytes } => {
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
            LogEvent::ServerStep(step) if step == "Startup" => {
                if self.followed.len() < KEPT {
                    self.followed.insert(record.pid);
                }
                false
            }
            LogEvent::ClientConnecting => {
                if self.intake.len() < KEPT {
                    self.intake.insert(record.pid, ClientIntake::Taking);
                }
                false
            }
            LogEvent::InvalidCredentials => {
                let taking =
                    self.intake.get_mut(&record.pid).filter(|intake| **intake == ClientIntake::Taking);
                taking.map(|intake| *intake = ClientIntake::Hung).is_some()
            }
            LogEvent::ClientConnected(client) => {
                self.intake.remove(&record.pid);
                self.starting.remove(&record.pid);
                self.left.remove(&client.pid);
                if client.context == 0 {
                    // The client is a new process, which can do nothing before it has a context.
                    self.connected.remove(&client.pid);
                    if self.arriving.len() < KEPT {
                        self.arriving.insert(client.pid, record.at);
                    }
                } else {
                    self.arriving.remove(&client.pid);
                    if self.connected.len() < KEPT {
                        self.connected.insert(client.pid, record.pid);
                    } else {
                        self.missed();
                    }
                }
                true
            }
            LogEvent::ClientRefused { .. } => {
                self.intake.remove(&record.pid);
                true
            }
            LogEvent::ClientDisconnected { pid } => {
                self.connected.remove(pid);
                self.arriving.remove(pid);
                if self.left.len() < KEPT {
                    self.left.insert(*pid);
                }
                true
            }
            LogEvent::FatalError(_) => {
                if self.affected.len() < KEPT {
                    self.affected.entry(record.pid).or_default();
                }
                true
            }
            LogEvent::TornDownOnDevice { client, .. } | LogEvent::TornDownWithProcess { client, .. } => {
                self.affects(record.pid, client.pid)
            }
            LogEvent::ProcessTornDown { pid } | LogEvent::StickyError { pid } => {
                self.affects(record.pid, *pid)
            }
            LogEvent::ClientStatus { .. }
            | LogEvent::ContextExited { .. }
            | LogEvent::TerminationSucceeded
            | LogEvent::HandlingFault
            | LogEvent::DeviceReset { .. } => true,
            _ => false,
        }
    }

    /// Notes that the fatal GPU error of a server affects this process.
    fn affects(&mut self, server: u32, pid: u32) -> bool {
        if let Some(affected) = self.affected.get_mut(&server).filter(|affected| affected.len() < KEPT) {
            affected.insert(pid);
        }
        true
    }

    /// Clears the faults of servers that a poll found to take clients.
    pub(crate) fn recovered(&mut self, servers: impl Iterator<Item = u32>) {
        for server in servers {
            self.affected.remove(&server);
        }
    }

    /// Returns the processes that the fatal GPU error of a server affects; none where the log does not report them.
    pub(crate) fn affected(&self, server: u32) -> BTreeSet<u32> {
        self.affected.get(&server).cloned().unwrap_or_default()
    }

    /// Forgets processes that are dead.
    pub(crate) fn prune(&mut self, alive: impl Fn(u32) -> bool) {
        self.servers.retain(|pid, _| alive(*pid));
        self.limits.retain(|(pid, _), _| alive(*pid));
        self.pending.retain(|pid, _| alive(*pid));
        self.intake.retain(|pid, _| alive(*pid));
        self.connected.retain(|pid, server| alive(*pid) && alive(*server));
        self.arriving.retain(|pid, _| alive(*pid));
        self.affected.retain(|server, _| alive(*server));
        for pids in [&mut self.left, &mut self.followed] {
            pids.retain(|pid| alive(*pid));
        }
    }

    /// Notes that lines may have been missed: until the next poll it is not known which clients are connected.
    pub(crate) fn missed(&mut self) {
        self.followed.clear();
        self.starting.clear();
    }

    /// Notes that a poll has listed all clients of these servers.
    pub(crate) fn polled(&mut self, servers: impl Iterator<Item = u32>) {
        self.followed = servers.collect();
    }

    /// Returns the servers whose clients are all known, together with those of the last poll.
    pub(crate) fn followed(&self) -> impl Iterator<Item = u32> {
        self.followed.iter().copied()
    }

    /// Returns the processes that a server has logged as gone and has not admitted again.
    pub(crate) fn left(&self) -> impl Iterator<Item = u32> {
        self.left.iter().copied()
    }

    /// Returns the servers that hang because a client died while it connected.
    pub(crate) fn hung(&self) -> impl Iterator<Item = u32> {
        self.intake.iter().filter(|(_, intake)| **intake == ClientIntake::Hung).map(|(pid, _)| *pid)
    }

    /// Returns the processes with a context, each with its server, which has not logged them as gone; some may be dead.
    pub(crate) fn connected(&self) -> impl Iterator<Item = (u32, u32)> {
        self.connected.iter().map(|(pid, server)| (*pid, *server))
    }

    /// Returns the processes that wait for a context or a server, with the time since when; some may be dead.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u32, DateTime)> {
        let arriving = self.arriving.iter().map(|(pid, since)| (*pid, *since));
        arriving.chain(self.pending.iter().map(|(pid, pending)| (*pid, pending.since)))
    }

    /// Returns the user for whom a server was started.
    pub(crate) fn user_of(&self, server: u32) -> Option<u32> {
        self.servers.get(&server).copied()
    }

    /// Returns the status of a server by the logs alone, for a daemon that does not report it. A server whose start the logs
    /// no longer have is taken to be ready, and one with a fatal GPU error takes no clients until the processes that it
    /// affects have ended.
    pub(crate) fn status_of(&self, server: u32, alive: impl Fn(u32) -> bool) -> ServerStatus {
        let affected = self.affected.get(&server);
        if affected.is_some_and(|affected| affected.iter().any(|pid| alive(*pid))) {
            ServerStatus::Fault
        } else if self.starting.contains(&server) {
            ServerStatus::Initializing
        } else {
            ServerStatus::Active
        }
    }

    /// Takes the last server that ended before it was ready.
    pub(crate) fn take_failed(&mut self) -> Option<FailedServer> {
        self.failed.take()
    }

    /// Returns the exact limits that servers wrote.
    pub(crate) fn limits(&self) -> &LoggedLimits {
        &self.limits
    }

    /// Returns the last writes of another program to settings whose getter does not show them exactly.
    pub(crate) fn overwrites(&self) -> &ExternalWrites {
        &self.overwrites
    }

    /// Notes that this manager has sent a command, which was answered.
    pub(crate) fn wrote(&mut self, command: &str) {
        self.overwrites.by_manager(command);
    }

    /// Forgets all writes of other programs so far, which are the desired values from now on.
    pub(crate) fn accept_overwrites(&mut self) {
        self.overwrites.clear();
    }

    /// Returns the number of this manager's sessions in control.log so far.
    pub(crate) fn own_sessions(&self) -> u64 {
        self.own_sessions
    }

    /// Returns the processes that wait, according to the log.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (u32, PendingClient)> {
        self.pending.iter().map(|(pid, pending)| (*pid, *pending))
    }

    /// Returns the last command of another program that changes something: a hint at who changed a setting.
    pub(crate) fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// Returns the `quit` that another program sent to the present control process, if the log shows one.
    ///
    /// The manager's own quit has no delimiter, so the caller has to know whether the manager has sent one.
    pub(crate) fn quit(&self) -> Option<&str> {
        self.quit.as_deref()
    }

    /// Forgets the `quit`.
    pub(crate) fn forget_quit(&mut self) {
        self.quit = None;
    }
}

/// Returns true if the last session in the text of a control.log was opened before its last `since` bytes were written; false
/// if the text differs from the file in any byte.
pub(crate) fn opened_before(text: &str, since: usize) -> bool {
    let bytes = text.as_bytes();
    let earlier = &bytes[..bytes.len().saturating_sub(since)];
    let opened =
        |part: &[u8]| log::read(part).iter().filter(|record| record.event == LogEvent::UiOpened).count();
    !text.contains('\u{FFFD}') && opened(earlier) > 0 && opened(earlier) == opened(bytes)
}

/// Describes the end of a control daemon if it died while another program's session was open, by its last messages.
///
/// A session of more than 4096 bytes in one line kills it before that line is written to the log (recording 09). A session
/// without a command has no known owner: `may_be_ours` says that it may be the manager's own, and then nobody is accused.
pub(crate) fn died_in_session(records: &[LogRecord], may_be_ours: bool) -> Option<String> {
    let opened = records.iter().rposition(|record| record.event == LogEvent::UiOpened)?;
    let mut commands = Vec::new();
    for record in &records[opened..] {
        match &record.event {
            LogEvent::UiClosed | LogEvent::DaemonExited { .. } | LogEvent::DaemonStarting { .. } => {
                return None;
            }
            LogEvent::Command(line) => commands.push(line.as_str()),
            _ => {}
        }
    }
    if commands.first().is_some_and(|line| is_own_delimiter(line)) {
        return None;
    }
    let message = match commands.last() {
        None if may_be_ours => return None,
        None => "before its first command was logged".to_owned(),
        Some(line) => format!("after the command {:?}", line.chars().take(120).collect::<String>()),
    };
    Some(format!(
        "it died while a session of another program was open, {message}: a line of 4100 bytes kills it, no matter who sends it, so look \
         for who reaches its socket"
    ))
}

/// Returns true if a command may change something; words that the daemon does not know change nothing.
fn changes_something(line: &str) -> bool {
    let word = line.split_ascii_whitespace().next().unwrap_or_default();
    word.starts_with("set_")
        || matches!(word, "start_server" | "shutdown_server" | "terminate_client" | "sm_partition" | "quit")
}

#[cfg(test)]
mod tests;
