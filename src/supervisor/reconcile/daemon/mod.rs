//! The state of one daemon and the next step for it: pure, so that every way it can die is a unit test.
//!
//! This file has the state and its changes with the control process, [`poll`] the changes by a poll, [`phase`] the resulting
//! phase, and [`decide`] the next step.
//!
//! ```text
//!              found by its token
//!   unknown ────────────────────────┐
//!      │ nothing found              ▼
//!      ▼         start          applying ──read back as desired──► ready
//!   stopped ───────────────────►   ▲  ▲                              │
//!      ▲                           │  └──── server died, drift ──────┤
//!      │ stop                      │                                 │ a command did not answer
//!   any running state              └──────── a read answered ──── wedged
//!
//!   the steps that remain once the settings are right, for a layout, are the job of `layout`
//!   the process died ──► start at once, or back-off from the second death in a minute
//! ```

pub use self::decide::ReconcileStep;
pub use self::phase::serves_another_user;
use super::layout::LayoutReconciler;
use super::wedge::WedgeDetector;
use crate::domain::daemon::{Effective, Server, Waiting};
use crate::domain::drift::DriftStatus;
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::domain::wedge::ReplacedProcess;
use crate::host::Identity;
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::control_process::ControlProcess;
use crate::supervisor::observe::debounce::PollDebounce;
use crate::supervisor::observe::evidence::ResourceShortages;
use crate::supervisor::observe::log_state::FailedServer;

/// A second death or failed start within this many milliseconds begins the back-off.
const FAILURE_WINDOW_MS: i64 = 60_000;
/// Pause between polls while a server starts.
const SERVER_POLL_MS: i64 = 20;

/// State of one daemon between two actions.
#[derive(Debug, Clone, Default)]
pub struct DaemonReconciler {
    /// True once a process of an earlier manager was searched for.
    pub searched: bool,
    /// Control process, if it runs.
    pub process: Option<ControlProcess>,
    /// Settings and servers that were last read from this process.
    pub seen: Option<Effective>,
    /// Last generation that was read to be in force in this process.
    pub applied: i64,
    /// Last generation whose defaults were read to be in force, with a server or without.
    defaults_held: i64,
    /// Reason why the daemon is blocked.
    pub blocker: Option<Blocker>,
    /// Problem of its GPUs, while it runs.
    pub lost: Option<Blocker>,
    /// Command that was not answered, with the reason.
    pub wedged: Option<String>,
    /// Reason why the last poll failed.
    pub poll_failure: Option<Blocker>,
    /// Duration of the daemon's silence, and the measures taken against it.
    pub silence: WedgeDetector,
    /// Last process that was replaced because the daemon did not answer.
    pub replaced: Option<ReplacedProcess>,
    /// Reason for the last death or failed start: one word for it, and the tail of the log.
    pub last_failure: Option<Blocker>,
    /// Time of that death or failed start.
    pub failed_at: i64,
    /// Settings that others changed.
    pub drift: DriftStatus,
    /// Clients that wait for another user's clients to be gone, by the last poll.
    pub queue: Vec<Waiting>,
    /// Shortages of resources, by the last poll.
    pub shortages: ResourceShortages,
    /// True if a restart was requested.
    pub restart: bool,
    /// Layout of its GPUs.
    pub layout: LayoutReconciler,
    /// True if a poll is due at once: a caller waits for it, or a server died.
    poll_now: bool,
    next_poll: i64,
    /// Schedule of the polls that log lines request.
    debounce: PollDebounce,
    retry_at: i64,
    /// Time of the next search for an observed daemon that does not run.
    search_at: i64,
    failures: Vec<i64>,
    server_requested: Option<ServerRequest>,
    /// Last server that ended before it was ready. `server_failures` has the times of all such ends in a row, until one takes clients.
    pub failed_server: Option<FailedServer>,
    server_failures: Vec<i64>,
    /// Time from which the next server may be requested.
    pub server_retry_at: i64,
    writes: u32,
    timings: Timings,
}

/// Pause between two polls of an idle daemon, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct PollInterval(pub i64);

/// Request for a server.
#[derive(Debug, Clone, Copy)]
struct ServerRequest {
    uid: u32,
    at: i64,
}

impl DaemonReconciler {
    /// Creates the state of a daemon whose process was not searched for yet.
    pub fn remembering(layout: LayoutReconciler, timings: Timings) -> Self {
        Self { layout, timings, ..Self::default() }
    }

    /// Requests a poll as soon as possible.
    pub fn request_poll(&mut self) {
        self.poll_now = true;
    }

    /// Requests a poll because of a log line. The line is only a hint: it triggers a poll and is never believed.
    pub fn wake(&mut self, now: i64) {
        self.debounce.wake(now);
    }

    /// Returns the time of the next poll if nothing else happens.
    fn next_poll_at(&self) -> i64 {
        self.debounce.at().min(self.next_poll)
    }

    /// Removes servers that died, which ends readiness before the next poll.
    pub fn server_died(&mut self, alive: impl Fn(Identity) -> bool) {
        if let Some(effective) = &mut self.seen {
            effective.servers.retain(|server| alive(server.into()));
        }
        self.poll_now = true;
    }

    /// Takes the result of the search for an earlier process.
    pub fn searched(&mut self, search: Result<Option<ControlProcess>, Blocker>, now: i64) {
        match search {
            Ok(process) => {
                self.searched = true;
                self.blocker = None;
                self.process = process;
                self.search_at = now + self.timings.blocked_retry();
            }
            Err(blocker) => self.blocked(blocker, now),
        }
    }

    /// Notes that its GPUs are gone or cannot be used, or that they are back: a start that waited for them is then due.
    pub fn gpus_lost(&mut self, lost: Option<Blocker>) {
        if self.lost.is_some() && lost.is_none() {
            self.retry_at = 0;
            self.poll_now = self.process.is_some();
        }
        self.lost = lost;
    }

    /// Notes that the daemon is blocked.
    pub fn blocked(&mut self, blocker: Blocker, now: i64) {
        self.blocker = Some(blocker);
        self.retry_at = now + self.timings.blocked_retry();
        self.search_at = self.retry_at;
    }

    /// Returns the partitions that the last poll lists.
    pub fn listed(&self) -> Option<&[GpuPartitions]> {
        self.seen.as_ref().and_then(|effective| effective.partitions.as_deref())
    }

    /// Returns true if nothing is left to do for the layout.
    fn is_complete(&self, desired: &Desired) -> bool {
        self.layout.progress(desired, self.listed()).is_complete()
    }

    /// Retries what was blocked or failed without waiting for the next attempt. The caller may have removed the cause, so the
    /// back-off begins anew.
    pub fn try_again(&mut self) {
        self.layout.try_again();
        if self.blocker.is_some() {
            self.retry_at = 0;
            self.search_at = 0;
        }
        if self.process.is_none() {
            self.retry_at = 0;
            self.failures.clear();
        }
        self.forget_failed_servers();
    }

    /// Notes that a control process was started.
    pub fn started(&mut self, process: ControlProcess) {
        *self = Self {
            searched: true,
            process: Some(process),
            failures: std::mem::take(&mut self.failures),
            last_failure: self.last_failure.take(),
            failed_at: self.failed_at,
            replaced: self.replaced.take(),
            drift: DriftStatus { present: false, ..std::mem::take(&mut self.drift) },
            layout: std::mem::take(&mut self.layout),
            timings: self.timings,
            ..Self::default()
        };
    }

    /// Notes that the control process died or could not be started, with one word for the reason and the tail of its log.
    pub fn failed(&mut self, failure: Blocker, now: i64) {
        self.forget_process();
        self.last_failure = Some(failure);
        self.failed_at = now;
        self.failures.retain(|at| now - at < FAILURE_WINDOW_MS);
        self.failures.push(now);
        self.retry_at = now + self.timings.backoff(self.failures.len());
    }

    /// Notes that the control process of an observed daemon is gone.
    pub fn absent(&mut self, failure: Blocker, now: i64) {
        self.forget_process();
        self.last_failure = Some(failure);
        self.failed_at = now;
        self.search_at = now;
    }

    /// Notes that the control process was stopped as requested.
    pub fn stopped(&mut self) {
        self.forget_process();
        self.restart = false;
        self.failures.clear();
        self.last_failure = None;
        self.retry_at = 0;
    }

    fn forget_process(&mut self) {
        self.process = None;
        self.seen = None;
        (self.applied, self.defaults_held) = (0, 0);
        self.wedged = None;
        self.poll_failure = None;
        self.silence = WedgeDetector::default();
        self.server_requested = None;
        self.forget_failed_servers();
        self.writes = 0;
        self.next_poll = 0;
        self.debounce.forget();
        self.blocker = None;
        self.queue.clear();
        self.shortages = ResourceShortages::default();
        self.drift.present = false;
    }

    /// Notes that a server was requested.
    pub fn server_requested(&mut self, uid: u32, now: i64) {
        // The request before brought no server with MLOPart devices: it is repeated ever more seldom.
        if self.server_requested.is_some() && self.lacks_mlopart() {
            self.server_ended(None, now);
        }
        self.server_requested = Some(ServerRequest { uid, at: now });
        self.next_poll = now + SERVER_POLL_MS;
    }

    /// Notes that a server ended before it was ready. Anybody can write to the log, so this counts only while a server was requested.
    pub fn server_failed(&mut self, server: FailedServer, now: i64) {
        if self.server_requested.is_some() {
            self.server_ended(Some(server), now);
            self.next_poll = self.next_poll.max(self.server_retry_at);
        }
    }

    /// Notes that a requested server has ended, according to the log, or with `None` because it was not listed in time.
    fn server_ended(&mut self, as_logged: Option<FailedServer>, now: i64) {
        self.server_requested = None;
        self.failed_server = as_logged;
        self.server_failures.push(now);
        self.server_retry_at = now + self.timings.backoff(self.server_failures.len());
    }

    /// Returns the number of servers in a row that ended before they were ready.
    pub fn failed_servers(&self) -> usize {
        self.server_failures.len()
    }

    /// Clears the failures: a server takes clients, or somebody requested another attempt.
    fn forget_failed_servers(&mut self) {
        self.failed_server = None;
        self.server_failures.clear();
        self.server_retry_at = 0;
    }

    /// Takes the diagnosis of the last failed poll.
    pub fn explain(&mut self, poll_failure: Blocker) {
        self.poll_failure = Some(poll_failure);
    }

    /// Makes the next poll due at this time at the latest.
    pub fn poll_by(&mut self, at: i64) {
        self.next_poll = self.next_poll.min(at);
    }

    /// Returns true if the running process was started for other GPUs, users or another mode than are desired now.
    pub fn needs_restart(&self, desired: &Desired) -> bool {
        !desired.is_observed()
            && (self.process.as_ref().is_some_and(|process| !process.fits(desired))
                || !desired.mlopart && self.has_mlopart())
    }

    fn lacks_mlopart(&self) -> bool {
        self.seen.as_ref().is_some_and(|effective| effective.servers.iter().any(Server::lacks_mlopart))
    }

    /// Returns true if a server with MLOPart devices was read.
    pub fn has_mlopart(&self) -> bool {
        self.seen.as_ref().is_some_and(|effective| effective.mlopart_devices().next().is_some())
    }
}

mod carry;
mod decide;
mod phase;
mod poll;
#[cfg(test)]
pub(crate) mod tests;
