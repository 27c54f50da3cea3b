//! Events that only server.log shows: clients that came and went between polls, refusals, faults. Pure.
//!
//! Anyone who reaches the pipe directory can write into the log (FACTS.md, "Logs"). Each event that only the log supports is
//! therefore marked as such, and facts that a poll can find out are left to the poll.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::domain::attribution::Signs;
use crate::mps::log::{LogEvent, LogRecord};

/// Most entries that are kept of each kind: anybody can write to the log, and memory is limited.
const KEPT: usize = 256;
/// Most disconnects that are kept: as many as fit into a log before it is emptied.
const DISCONNECTS: usize = 1 << 16;
/// Largest distance from a fault at which the end of a context counts as simultaneous, in milliseconds. The culprits'
/// contexts ended up to 1 ms from misaligned accesses, and those of innocent clients at least 24.
const SAME_MOMENT_MS: i64 = 5;
/// Number of polls without a client of the log, after which it is dropped.
const POLLS: u8 = 2;

/// Client that only server.log reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnobservedClient {
    /// PID of the client.
    pub pid: u32,
    /// Server to which it connected.
    pub server: u32,
    /// Time at which it came, in unix milliseconds, according to the log.
    pub came: Option<i64>,
    /// Time at which it left, in unix milliseconds.
    pub left: Option<i64>,
}

/// Events of the log that no caller has taken yet.
#[derive(Debug, Default)]
pub(crate) struct ServerLogEvents {
    /// Time before which lines are history and make no events, in unix milliseconds.
    since: Option<i64>,
    /// Clients that the log reports and no poll has listed yet, by PID.
    came: BTreeMap<u32, ArrivedClient>,
    /// Time at which clients connected, by PID, until a poll has listed them.
    connected_at: BTreeMap<u32, i64>,
    /// Contexts that ended last, by PID, with their server and the time.
    ended: BTreeMap<u32, (u32, i64)>,
    /// Servers with processes whose worker was in reset as they exited.
    in_reset: BTreeSet<(u32, u32)>,
    /// Processes that their server has logged as gone: they left while it lived.
    disconnected: BTreeSet<u32>,
    /// True if disconnects may have been missed since the last poll that listed all clients.
    missed_disconnects: bool,
    visits: Vec<UnobservedClient>,
    refused: Vec<LoggedRefusal>,
    /// Faults by server.
    faults: BTreeMap<u32, LoggedFault>,
    /// True if lines may have been missed, or there were too many.
    missed: bool,
}

#[derive(Debug, Clone, Copy)]
struct ArrivedClient {
    server: u32,
    at: Option<i64>,
    polls: u8,
    /// True if it has a context, without which it can do nothing.
    works: bool,
}

/// Client that was not admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedRefusal {
    pub(crate) server: u32,
    pub(crate) reason: String,
    /// PID of the process, if the log leaves no doubt.
    pub(crate) pid: Option<u32>,
    pub(crate) at: Option<i64>,
    /// Signs that were read of the process while it lived: most end within milliseconds.
    pub(crate) process: Option<Signs>,
}

/// Fatal GPU error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LoggedFault {
    /// Processes that MPS names, which is no evidence.
    pub(crate) named: BTreeSet<u32>,
    /// Processes whose work is lost.
    pub(crate) affected: BTreeSet<u32>,
    /// Processes whose context ended at that moment. For a misaligned access it was the culprit's context, 20 of 20 times on
    /// H200s, and no other.
    pub(crate) ended_with_it: BTreeSet<u32>,
    /// True if the list of affected processes has come to its last part, which names each of them.
    pub(crate) is_complete: bool,
    /// Time at which it began, in unix milliseconds.
    pub(crate) at: Option<i64>,
}

impl LoggedFault {
    /// Returns true if it affects or names this process.
    pub(crate) fn names(&self, pid: u32) -> bool {
        self.affected.contains(&pid) || self.named.contains(&pid)
    }
}

/// Returns the time at which a message was written, in unix milliseconds.
pub(crate) fn logged_at(at: DateTime) -> Option<i64> {
    Some(at.to_zoned(TimeZone::system()).ok()?.timestamp().as_millisecond())
}

impl ServerLogEvents {
    /// Skips lines that were written before this time.
    pub(crate) fn since(now: i64) -> Self {
        Self { since: Some(now), ..Self::default() }
    }

    /// Reads a message of server.log, and returns the refusal that it reports.
    pub(crate) fn read_record(&mut self, record: &LogRecord) -> Option<&mut LoggedRefusal> {
        let at = logged_at(record.at);
        if self.since.is_some_and(|since| at.is_none_or(|at| at < since)) {
            return None;
        }
        let server = record.pid;
        match &record.event {
            LogEvent::ClientConnected(client) => {
                self.disconnected.remove(&client.pid);
                if let Some(at) = at.filter(|_| self.connected_at.len() < DISCONNECTS) {
                    self.connected_at.entry(client.pid).or_insert(at);
                }
                if self.came.len() < KEPT {
                    let new = ArrivedClient { server, at, polls: 0, works: false };
                    self.came.entry(client.pid).or_insert(new).works |= client.context > 0;
                } else {
                    self.missed = true;
                }
            }
            LogEvent::ClientDisconnected { pid } => {
                if self.disconnected.len() < DISCONNECTS {
                    self.disconnected.insert(*pid);
                } else {
                    (self.missed, self.missed_disconnects) = (true, true);
                }
                if let Some(came) = self.came.remove(pid).filter(|came| came.server == server) {
                    let visit = UnobservedClient { pid: *pid, server, came: came.at, left: at };
                    push(&mut self.visits, visit, &mut self.missed);
                }
            }
            LogEvent::ClientRefused { reason } => {
                let (reason, pid) =
                    (reason.chars().take(300).collect(), self.refused_process(server, reason));
                if self.refused.len() < KEPT {
                    self.refused.push(LoggedRefusal { server, reason, pid, at, process: None });
                    return self.refused.last_mut();
                }
                self.missed = true;
            }
            LogEvent::FatalError(client) => {
                if let Some(fault) = self.fault(server) {
                    fault.named.insert(client.pid);
                    fault.at = fault.at.or(at);
                }
            }
            LogEvent::HandlingFault => {
                let ended = std::mem::take(&mut self.ended);
                let with_it = |of: u32, ended_at: i64| {
                    of == server && at.is_some_and(|at| (at - SAME_MOMENT_MS..=at).contains(&ended_at))
                };
                if let Some(fault) = self.fault(server) {
                    fault.at = fault.at.or(at);
                    let pids = ended.into_iter().filter(|(_, (of, ended_at))| with_it(*of, *ended_at));
                    fault.ended_with_it.extend(pids.map(|(pid, _)| pid));
                }
            }
            LogEvent::ContextExited { client, in_reset, .. } => {
                if *in_reset && self.in_reset.len() < KEPT {
                    self.in_reset.insert((server, client.pid));
                }
                let at = at?;
                self.ended.retain(|_, (_, ended_at)| *ended_at >= at - SAME_MOMENT_MS);
                if self.ended.len() < KEPT {
                    self.ended.insert(client.pid, (server, at));
                }
                if let Some(fault) = self.faults.get_mut(&server)
                    && fault.at.is_some_and(|began| (began..=began + SAME_MOMENT_MS).contains(&at))
                {
                    fault.ended_with_it.insert(client.pid);
                }
            }
            LogEvent::TornDownOnDevice { client, .. } | LogEvent::TornDownWithProcess { client, .. } => {
                self.lost(server, client.pid);
            }
            LogEvent::ProcessTornDown { pid } => self.lost(server, *pid),
            LogEvent::StickyError { pid } => {
                self.lost(server, *pid);
                if let Some(fault) = self.faults.get_mut(&server) {
                    fault.is_complete = true;
                }
            }
            _ => {}
        }
        None
    }

    /// Returns the process that a server refused: the one that it names, or the only one that has connected and has no context yet.
    fn refused_process(&self, server: u32, reason: &str) -> Option<u32> {
        let named = reason.split_once("{PID: ").and_then(|(_, rest)| rest.split_once(',')?.0.parse().ok());
        let mut waiting = self.came.iter().filter(|(_, came)| came.server == server && !came.works);
        named.or_else(|| match (waiting.next(), waiting.next()) {
            (Some((pid, _)), None) => Some(*pid),
            _ => None,
        })
    }

    fn fault(&mut self, server: u32) -> Option<&mut LoggedFault> {
        if self.faults.len() >= KEPT && !self.faults.contains_key(&server) {
            self.missed = true;
            return None;
        }
        Some(self.faults.entry(server).or_default())
    }

    /// Adds a process whose work is lost. MPS reports it after the fault itself; without a fault it is ignored.
    fn lost(&mut self, server: u32, pid: u32) {
        if let Some(fault) = self.faults.get_mut(&server).filter(|fault| fault.affected.len() < KEPT) {
            fault.affected.insert(pid);
        }
    }

    /// Notes that lines may have been missed.
    pub(crate) fn missed(&mut self) {
        self.missed |= self.since.is_none();
        self.missed_disconnects = true;
        self.came.clear();
    }

    /// Takes the processes that a poll listed: the poll reports their arrival, not the log.
    pub(crate) fn polled(&mut self, listed: &BTreeSet<u32>) {
        self.missed_disconnects = false;
        self.came.retain(|pid, came| {
            came.polls += 1;
            !listed.contains(pid) && came.polls <= POLLS
        });
    }

    /// Returns true if no arrival is pending, so that all events of the log so far are published.
    pub(crate) fn is_complete(&self) -> bool {
        self.came.is_empty()
    }

    /// Takes the clients that came and went, except those that polls know.
    pub(crate) fn take_visits(&mut self, is_known: impl Fn(u32) -> bool) -> Vec<UnobservedClient> {
        std::mem::take(&mut self.visits).into_iter().filter(|visit| !is_known(visit.pid)).collect()
    }

    /// Takes the clients that were refused.
    pub(crate) fn take_refused(&mut self) -> Vec<LoggedRefusal> {
        std::mem::take(&mut self.refused)
    }

    /// Returns true if a server has logged this process as gone.
    pub(crate) fn has_disconnected(&self, pid: u32) -> bool {
        self.disconnected.contains(&pid)
    }

    /// Returns true if some clients that are taken to be connected may have left, since lines were missed.
    pub(crate) fn has_missed_disconnects(&self) -> bool {
        self.missed_disconnects
    }

    /// Forgets the disconnects of processes for which `is_known` is false, and the connection times of clients that polls have listed.
    pub(crate) fn forget_disconnected(&mut self, is_known: impl Fn(u32) -> bool) {
        self.disconnected.retain(|pid| is_known(*pid));
        let came = &self.came;
        self.connected_at.retain(|pid, _| came.contains_key(pid));
    }

    /// Returns the time at which a process connected that polls have not listed before.
    pub(crate) fn connected_at(&self, pid: u32) -> Option<i64> {
        self.connected_at.get(&pid).copied()
    }

    /// Takes the servers and processes whose worker was in reset, once the fault before it is reported.
    pub(crate) fn take_in_reset(&mut self, is_reported: impl Fn(u32) -> bool) -> BTreeSet<(u32, u32)> {
        let faults = &self.faults;
        self.in_reset
            .extract_if(.., |(server, _)| !faults.contains_key(server) && is_reported(*server))
            .collect()
    }

    /// Returns the processes at work in this server that no poll has listed yet.
    pub(crate) fn unlisted(&self, server: u32) -> impl Iterator<Item = u32> {
        let is_here = move |came: &ArrivedClient| came.server == server && came.works;
        self.came.iter().filter(move |(_, came)| is_here(came)).map(|(pid, _)| *pid)
    }

    /// Returns the facts known so far about a fault of this server.
    pub(crate) fn fault_so_far(&self, server: u32) -> Option<&LoggedFault> {
        self.faults.get(&server)
    }

    /// Takes the facts known about a fault of this server.
    pub(crate) fn take_fault(&mut self, server: u32) -> Option<LoggedFault> {
        self.faults.remove(&server)
    }

    /// Returns the servers for which the log reports a fault.
    pub(crate) fn faulty_servers(&self) -> Vec<u32> {
        self.faults.keys().copied().collect()
    }

    /// Returns true if events are missing, once for each loss.
    pub(crate) fn take_missed(&mut self) -> bool {
        std::mem::take(&mut self.missed)
    }
}

fn push<T>(list: &mut Vec<T>, item: T, missed: &mut bool) {
    if list.len() < KEPT {
        list.push(item);
    } else {
        *missed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::log;

    fn read_record(server_log: &mut ServerLogEvents, texts: &[&str]) {
        for text in texts {
            let line = format!("[2026-11-21 10:37:17.446 Server  1115] {text}\n");
            for record in log::read(line.as_bytes()) {
                server_log.read_record(&record);
            }
        }
    }

    #[test]
    fn client_missed_by_polls_is_reported_from_log() {
        let mut server_log = ServerLogEvents::default();
        read_record(
            &mut server_log,
            &["Client {PID: 7, Context ID: 0} connected", "Client {PID: 8, Context ID: 0} connected"],
        );
        assert!(!server_log.is_complete());
        server_log.polled(&BTreeSet::from([8]));
        read_record(&mut server_log, &["Client process 7 disconnected", "Client process 8 disconnected"]);
        let visits = server_log.take_visits(|_| false);
        assert_eq!(visits.iter().map(|visit| (visit.pid, visit.server)).collect::<Vec<_>>(), [(7, 1115)]);
        assert!(server_log.is_complete() && server_log.take_visits(|_| false).is_empty(), "once");
        // A client whose arrival is missing was known before, or the line is forged.
        read_record(&mut server_log, &["Client process 9 disconnected"]);
        assert!(server_log.take_visits(|_| false).is_empty());
    }

    #[test]
    fn client_never_listed_by_polls_is_dropped() {
        let mut server_log = ServerLogEvents::default();
        read_record(&mut server_log, &["Client {PID: 1, Context ID: 0} connected"]);
        for _ in 0..=POLLS {
            assert!(!server_log.is_complete());
            server_log.polled(&BTreeSet::new());
        }
        assert!(server_log.is_complete());
        read_record(&mut server_log, &["Client process 1 disconnected"]);
        assert!(server_log.take_visits(|_| false).is_empty());
    }

    #[test]
    fn log_history_is_skipped_and_memory_bounded() {
        let mut server_log = ServerLogEvents::since(i64::MAX);
        read_record(
            &mut server_log,
            &["Client {PID: 7, Context ID: 0} connected", "Failed to accept new client. Full."],
        );
        server_log.missed();
        assert!(
            server_log.is_complete() && server_log.take_refused().is_empty() && !server_log.take_missed()
        );
        let mut server_log = ServerLogEvents::default();
        for pid in 0..2 * u32::try_from(KEPT).expect("small") {
            let (came, went) = (
                format!("Client {{PID: {pid}, Context ID: 0}} connected"),
                format!("Client process {pid} disconnected"),
            );
            read_record(&mut server_log, &[&came, &went]);
        }
        assert_eq!(server_log.take_visits(|_| false).len(), KEPT);
        assert!(server_log.take_missed() && !server_log.take_missed());
    }

    #[test]
    fn fault_event_names_reporting_and_affected_clients() {
        let mut server_log = ServerLogEvents::default();
        read_record(
            &mut server_log,
            &[
                "Client {PID: 5, Context ID: 1} on device 0 to be torn down",
                "Client {PID: 668, Context: 1} encountered a fatal GPU error.",
                "Client {PID: 669, Context ID: 1} on device 0 to be torn down",
                "All clients belonging to error trigging process 670 will be torn down",
            ],
        );
        let fault = server_log.take_fault(1115).expect("a fault");
        assert_eq!((fault.named, fault.affected), (BTreeSet::from([668]), BTreeSet::from([669, 670])));
        assert!(!fault.is_complete && fault.at.is_some() && server_log.faulty_servers().is_empty());
    }
}
