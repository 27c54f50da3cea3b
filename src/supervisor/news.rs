//! What server.log tells of that no look may ever see: who came and went in between, who was refused, what failed. Pure.
//!
//! Whoever reaches the pipe directory can write into the log (FACTS.md, "Logs"), so whatever is told by it alone says so, and
//! what a look can settle is left to the look.

use std::collections::{BTreeMap, BTreeSet};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::journal::Visit;
use crate::mps::log::{Event, Record};

/// The most that is kept of each kind: the log is anybody's to write, and memory is not.
const KEPT: usize = 256;
/// The most goodbyes that are kept: all that fit into a log before it is emptied.
const GOODBYES: usize = 1 << 16;
/// Looks that do not list a process that was let in by the log, after which nothing is made of that.
const LOOKS: u8 = 2;

/// What the log has told and nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct News {
    /// What was written before this time, in unix milliseconds, is history that nobody asked for.
    since: Option<i64>,
    /// Who was let in and not listed yet, by process ID.
    came: BTreeMap<u32, Came>,
    /// Processes that their server has said to be gone: they left while it lived.
    goodbyes: BTreeSet<u32>,
    /// Whether goodbyes may have been missed since the last look that listed all clients.
    missed_goodbyes: bool,
    visits: Vec<Visit>,
    refused: Vec<Refusal>,
    /// By server.
    faults: BTreeMap<u32, Fault>,
    /// Whether lines may have been missed, or there were too many.
    missed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Came {
    server: u32,
    at: Option<i64>,
    looks: u8,
    /// Whether it has a context, without which it can do nothing.
    works: bool,
}

/// A client that was not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) server: u32,
    pub(super) reason: String,
    pub(super) at: Option<i64>,
}

/// A fatal GPU error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Fault {
    /// Whom MPS blames.
    pub(super) reported: BTreeSet<u32>,
    /// Whose work is lost.
    pub(super) affected: BTreeSet<u32>,
    /// Whether the list of those has come to its last part, which names each of them.
    pub(super) is_complete: bool,
}

/// When a message was written, in unix milliseconds.
pub(super) fn logged_at(at: DateTime) -> Option<i64> {
    Some(at.to_zoned(TimeZone::system()).ok()?.timestamp().as_millisecond())
}

impl News {
    /// Passes over what was written before this time.
    pub(super) fn since(now: i64) -> Self {
        Self { since: Some(now), ..Self::default() }
    }

    /// Takes a message of server.log.
    pub(super) fn hear(&mut self, record: &Record) {
        let at = logged_at(record.at);
        if self.since.is_some_and(|since| at.is_none_or(|at| at < since)) {
            return;
        }
        let server = record.pid;
        match &record.event {
            Event::ClientConnected(client) => {
                self.goodbyes.remove(&client.pid);
                if self.came.len() < KEPT {
                    let new = Came { server, at, looks: 0, works: false };
                    self.came.entry(client.pid).or_insert(new).works |= client.context > 0;
                } else {
                    self.missed = true;
                }
            }
            Event::ClientDisconnected { pid } => {
                if self.goodbyes.len() < GOODBYES {
                    self.goodbyes.insert(*pid);
                } else {
                    (self.missed, self.missed_goodbyes) = (true, true);
                }
                if let Some(came) = self.came.remove(pid).filter(|came| came.server == server) {
                    let visit = Visit { pid: *pid, server, came: came.at, left: at };
                    push(&mut self.visits, visit, &mut self.missed);
                }
            }
            Event::ClientRefused { reason } => {
                let refusal = Refusal { server, reason: reason.chars().take(300).collect(), at };
                push(&mut self.refused, refusal, &mut self.missed);
            }
            Event::FatalError(client) => {
                if let Some(fault) = self.fault(server) {
                    fault.reported.insert(client.pid);
                }
            }
            Event::TornDownOnDevice { client, .. } | Event::TornDownWithProcess { client, .. } => {
                self.lost(server, client.pid);
            }
            Event::ProcessTornDown { pid } => self.lost(server, *pid),
            Event::StickyError { pid } => {
                self.lost(server, *pid);
                if let Some(fault) = self.faults.get_mut(&server) {
                    fault.is_complete = true;
                }
            }
            _ => {}
        }
    }

    fn fault(&mut self, server: u32) -> Option<&mut Fault> {
        if self.faults.len() >= KEPT && !self.faults.contains_key(&server) {
            self.missed = true;
            return None;
        }
        Some(self.faults.entry(server).or_default())
    }

    /// Whose work is lost is told after the fault itself; alone it says nothing.
    fn lost(&mut self, server: u32, pid: u32) {
        if let Some(fault) = self.faults.get_mut(&server).filter(|fault| fault.affected.len() < KEPT) {
            fault.affected.insert(pid);
        }
    }

    /// Lines may have been missed.
    pub(super) fn missed(&mut self) {
        self.missed |= self.since.is_none();
        self.missed_goodbyes = true;
        self.came.clear();
    }

    /// A look listed these processes: whoever came and is listed is the look's to tell of.
    pub(super) fn looked(&mut self, listed: &BTreeSet<u32>) {
        self.missed_goodbyes = false;
        self.came.retain(|pid, came| {
            came.looks += 1;
            !listed.contains(pid) && came.looks <= LOOKS
        });
    }

    /// Whether nobody is waited for, so that all that the log told of so far was told on.
    pub(super) fn is_settled(&self) -> bool {
        self.came.is_empty()
    }

    /// Those who came and went, but for those of whom the looks know.
    pub(super) fn take_visits(&mut self, known: impl Fn(u32) -> bool) -> Vec<Visit> {
        std::mem::take(&mut self.visits).into_iter().filter(|visit| !known(visit.pid)).collect()
    }

    /// Those who were not let in.
    pub(super) fn take_refused(&mut self) -> Vec<Refusal> {
        std::mem::take(&mut self.refused)
    }

    /// Whether a server has said of this process that it is gone.
    pub(super) fn said_goodbye(&self, pid: u32) -> bool {
        self.goodbyes.contains(&pid)
    }

    /// What a list of clients that lost work has to say, where some of them may have left before.
    pub(super) fn doubt_of_lost_work(&self) -> &'static str {
        if self.missed_goodbyes {
            "; lines of server.log were missed, so some of the clients listed here may have left before and lost nothing"
        } else {
            ""
        }
    }

    /// Forgets goodbyes but those of processes of which more is to be told.
    pub(super) fn forget_goodbyes(&mut self, known: impl Fn(u32) -> bool) {
        self.goodbyes.retain(|pid| known(*pid));
    }

    /// Processes at work in this server that no look has listed yet.
    pub(super) fn unlisted(&self, server: u32) -> impl Iterator<Item = u32> {
        let here = move |came: &Came| came.server == server && came.works;
        self.came.iter().filter(move |(_, came)| here(came)).map(|(pid, _)| *pid)
    }

    /// What is known so far of a fault of this server.
    pub(super) fn fault_so_far(&self, server: u32) -> Option<&Fault> {
        self.faults.get(&server)
    }

    /// What is told of a fault of this server.
    pub(super) fn take_fault(&mut self, server: u32) -> Option<Fault> {
        self.faults.remove(&server)
    }

    /// All faults that the log reports, but those of servers that are handled in another way.
    pub(super) fn take_faults_but(&mut self, other: impl Fn(u32) -> bool) -> BTreeMap<u32, Fault> {
        let (kept, taken) = std::mem::take(&mut self.faults).into_iter().partition(|(pid, _)| other(*pid));
        self.faults = kept;
        taken
    }

    /// Whether something is missing; it is said once.
    pub(super) fn take_missed(&mut self) -> bool {
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

    fn hear(news: &mut News, texts: &[&str]) {
        for text in texts {
            let line = format!("[2026-11-21 10:37:17.446 Server  1115] {text}\n");
            for record in log::read(line.as_bytes()) {
                news.hear(&record);
            }
        }
    }

    #[test]
    fn who_came_and_went_is_told_unless_a_look_has_seen_them() {
        let mut news = News::default();
        hear(
            &mut news,
            &["Client {PID: 7, Context ID: 0} connected", "Client {PID: 8, Context ID: 0} connected"],
        );
        assert!(!news.is_settled());
        news.looked(&BTreeSet::from([8]));
        hear(&mut news, &["Client process 7 disconnected", "Client process 8 disconnected"]);
        let visits = news.take_visits(|_| false);
        assert_eq!(visits.iter().map(|visit| (visit.pid, visit.server)).collect::<Vec<_>>(), [(7, 1115)]);
        assert!(news.is_settled() && news.take_visits(|_| false).is_empty(), "once");
        // Whose coming nobody has heard of was known before, or is a forger's.
        hear(&mut news, &["Client process 9 disconnected"]);
        assert!(news.take_visits(|_| false).is_empty());
    }

    #[test]
    fn one_that_no_look_ever_lists_is_dropped() {
        let mut news = News::default();
        hear(&mut news, &["Client {PID: 1, Context ID: 0} connected"]);
        for _ in 0..=LOOKS {
            assert!(!news.is_settled());
            news.looked(&BTreeSet::new());
        }
        assert!(news.is_settled());
        hear(&mut news, &["Client process 1 disconnected"]);
        assert!(news.take_visits(|_| false).is_empty());
    }

    #[test]
    fn history_is_passed_over_and_no_flood_takes_memory() {
        let mut news = News::since(i64::MAX);
        hear(&mut news, &["Client {PID: 7, Context ID: 0} connected", "Failed to accept new client. Full."]);
        news.missed();
        assert!(news.is_settled() && news.take_refused().is_empty() && !news.take_missed());
        let mut news = News::default();
        for pid in 0..2 * u32::try_from(KEPT).expect("small") {
            let (came, went) = (
                format!("Client {{PID: {pid}, Context ID: 0}} connected"),
                format!("Client process {pid} disconnected"),
            );
            hear(&mut news, &[&came, &went]);
        }
        assert_eq!(news.take_visits(|_| false).len(), KEPT);
        assert!(news.take_missed() && !news.take_missed());
    }

    #[test]
    fn a_fault_is_told_with_those_whose_work_is_lost() {
        let mut news = News::default();
        hear(
            &mut news,
            &[
                "Client {PID: 5, Context ID: 1} on device 0 to be torn down",
                "Client {PID: 668, Context: 1} encountered a fatal GPU error.",
                "Client {PID: 669, Context ID: 1} on device 0 to be torn down",
                "All clients belonging to error trigging process 670 will be torn down",
            ],
        );
        let fault = news.take_fault(1115).expect("a fault");
        assert_eq!((fault.reported, fault.affected), (BTreeSet::from([668]), BTreeSet::from([669, 670])));
        assert!(!fault.is_complete && news.take_faults_but(|_| false).is_empty());
    }
}
