//! What the two logs of a daemon tell: whether something happened that is worth a look, and some hints. Pure.
//!
//! Whoever reaches the pipe directory can write into the logs (FACTS.md, "Logs"). So a line may cost a look, and what
//! is kept here is shown only where /proc or the daemon's own answer agrees.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;

use super::limits::Logged;
use super::overwrites::Overwrites;
use crate::domain::gpu::GpuUuid;
use crate::mps::log::own::is_own_delimiter;
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
    /// Processes on their way in, and since when: handed to a server, or known to it by their process alone (context 0).
    arriving: BTreeMap<u32, DateTime>,
    /// Processes that have a context and that their server, which is the value, has not said to be gone.
    let_in: BTreeMap<u32, u32>,
    /// Processes that a server has said to be gone.
    left: BTreeSet<u32>,
    /// The processes that a fatal GPU error affects, by server, until that takes clients again.
    affected: BTreeMap<u32, BTreeSet<u32>>,
    /// Servers of which every client is known: from their first line on, or from a look on.
    followed: BTreeSet<u32>,
    /// The last command of somebody else that changes something.
    foreign: Option<String>,
    /// The last `quit` that the present control process was sent by another program.
    quit: Option<String>,
    /// What somebody else wrote last, where a getter does not tell all of it.
    overwrites: Overwrites,
    /// Sessions of ours that control.log has.
    own_sessions: u64,
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
            Event::Reply(text)
                if self.session == Session::Others && text.starts_with("Insufficient privileges") =>
            {
                self.overwrites.refused();
            }
            Event::PushedToPending { pid, user } => {
                if self.pending.len() < KEPT {
                    let pending = Pending { uid: *user, since: record.at };
                    self.pending.entry(*pid).or_insert(pending);
                }
                return true;
            }
            Event::ClientAccepted { pid, .. } => {
                self.pending.remove(pid);
                if !self.let_in.contains_key(pid) && self.arriving.len() < KEPT {
                    self.arriving.entry(*pid).or_insert(record.at);
                }
                return true;
            }
            Event::StartingServer { pid, uid } => {
                // A process on its way into the server before has to connect again.
                self.arriving.clear();
                self.let_in.retain(|_, server| server != pid);
                self.affected.remove(pid);
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
                self.arriving.clear();
                self.quit = None;
                self.overwrites.clear();
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
            let ours = is_own_delimiter(line);
            self.session = if ours { Session::Ours } else { Session::Others };
            self.own_sessions += u64::from(ours);
        }
        match self.session {
            Session::Ours => self.overwrites.by_manager(line),
            Session::Others => self.overwrites.by_others(line),
            Session::Unknown => {}
        }
        let matters = self.session == Session::Others && changes_something(line);
        if matters {
            let shown: String = line.chars().take(120).collect();
            if line.split_ascii_whitespace().next() == Some("quit") {
                self.quit = Some(shown.clone());
            }
            self.foreign = Some(shown);
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
                if client.context == 0 {
                    // A new process; it can do nothing before it has a context.
                    self.let_in.remove(&client.pid);
                    if self.arriving.len() < KEPT {
                        self.arriving.insert(client.pid, record.at);
                    }
                } else {
                    self.arriving.remove(&client.pid);
                    if self.let_in.len() < KEPT {
                        self.let_in.insert(client.pid, record.pid);
                    } else {
                        self.missed();
                    }
                }
                true
            }
            Event::ClientRefused { .. } => {
                self.doors.remove(&record.pid);
                true
            }
            Event::ClientDisconnected { pid } => {
                self.let_in.remove(pid);
                self.arriving.remove(pid);
                if self.left.len() < KEPT {
                    self.left.insert(*pid);
                }
                true
            }
            Event::FatalError(_) => {
                if self.affected.len() < KEPT {
                    self.affected.entry(record.pid).or_default();
                }
                true
            }
            Event::TornDownOnDevice { client, .. } | Event::TornDownWithProcess { client, .. } => {
                self.affects(record.pid, client.pid)
            }
            Event::ProcessTornDown { pid } | Event::StickyError { pid } => self.affects(record.pid, *pid),
            Event::ClientStatus { .. }
            | Event::ContextExited { .. }
            | Event::TerminationSucceeded
            | Event::HandlingFault
            | Event::DeviceReset { .. } => true,
            _ => false,
        }
    }

    /// A fatal GPU error of a server affects this process.
    fn affects(&mut self, server: u32, pid: u32) -> bool {
        if let Some(affected) = self.affected.get_mut(&server).filter(|affected| affected.len() < KEPT) {
            affected.insert(pid);
        }
        true
    }

    /// A look found these servers to take clients: whatever fault they had is over.
    pub(super) fn recovered(&mut self, servers: impl Iterator<Item = u32>) {
        for server in servers {
            self.affected.remove(&server);
        }
    }

    /// The processes that the fatal GPU error of a server affects; empty where the log does not tell.
    pub(super) fn affected(&self, server: u32) -> BTreeSet<u32> {
        self.affected.get(&server).cloned().unwrap_or_default()
    }

    /// Forgets the dead.
    pub(super) fn prune(&mut self, alive: impl Fn(u32) -> bool) {
        self.servers.retain(|pid, _| alive(*pid));
        self.limits.retain(|(pid, _), _| alive(*pid));
        self.pending.retain(|pid, _| alive(*pid));
        self.doors.retain(|pid, _| alive(*pid));
        self.let_in.retain(|pid, server| alive(*pid) && alive(*server));
        self.arriving.retain(|pid, _| alive(*pid));
        self.affected.retain(|server, _| alive(*server));
        self.overwrites.prune(&alive);
        for pids in [&mut self.left, &mut self.followed] {
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

    /// Processes with a context that their server, which stands beside each, has not said to be gone; some may be dead.
    pub(super) fn let_in(&self) -> impl Iterator<Item = (u32, u32)> {
        self.let_in.iter().map(|(pid, server)| (*pid, *server))
    }

    /// Processes that wait to get a context, and since when: on their way into a server, or for a server; some may be dead.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (u32, DateTime)> {
        let arriving = self.arriving.iter().map(|(pid, since)| (*pid, *since));
        arriving.chain(self.pending.iter().map(|(pid, pending)| (*pid, pending.since)))
    }

    /// For whom a server was started.
    pub(super) fn user_of(&self, server: u32) -> Option<u32> {
        self.servers.get(&server).copied()
    }

    /// The exact limits that servers wrote.
    pub(super) fn limits(&self) -> &Logged {
        &self.limits
    }

    /// What somebody else wrote last, where a getter does not tell all of it.
    pub(super) fn overwrites(&self) -> &Overwrites {
        &self.overwrites
    }

    /// What others wrote so far is what is desired.
    pub(super) fn accept_overwrites(&mut self) {
        self.overwrites.clear();
    }

    /// Sessions of ours that control.log had so far.
    pub(super) fn own_sessions(&self) -> u64 {
        self.own_sessions
    }

    /// Those who wait, by the log.
    pub(super) fn pending(&self) -> impl Iterator<Item = (u32, Pending)> {
        self.pending.iter().map(|(pid, pending)| (*pid, *pending))
    }

    /// The last command of somebody else that changes something: a hint at who changed a setting.
    pub(super) fn foreign(&self) -> Option<&str> {
        self.foreign.as_deref()
    }

    /// The `quit` that the present control process was sent by another program, if the log shows one.
    ///
    /// The manager's own goes without a delimiter, so the caller has to know whether the manager has sent one.
    pub(super) fn quit(&self) -> Option<&str> {
        self.quit.as_deref()
    }

    /// Forgets it.
    pub(super) fn forget_quit(&mut self) {
        self.quit = None;
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
    if commands.first().is_some_and(|line| is_own_delimiter(line)) {
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

/// Whether a command may change something; words that the daemon does not know change nothing.
fn changes_something(line: &str) -> bool {
    let word = line.split_ascii_whitespace().next().unwrap_or_default();
    word.starts_with("set_")
        || matches!(word, "start_server" | "shutdown_server" | "terminate_client" | "sm_partition" | "quit")
}

#[cfg(test)]
mod tests;
