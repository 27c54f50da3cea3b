//! What is known of one daemon and what to do next for it: pure, so that every way it can die is a unit test.
//!
//! This file has what is known and how it changes with the control process, [`poll`] what a poll changes, [`phase`] the phase that
//! follows, and [`decide`] the next step.
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
//!   what is left to do once the settings are right, for a layout, is the job of `layout`
//!   the process died ──► start at once, or back-off from the second death in a minute
//! ```

pub use self::decide::ReconcileStep;
pub use self::phase::serves_another_user;
use super::layout::LayoutReconciler;
use super::wedge::WedgeDetector;
use crate::domain::daemon::{Effective, Mode, Waiting};
use crate::domain::drift::DriftStatus;
use crate::domain::gpu::GpuUuid;
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::domain::wedge::ReplacedProcess;
use crate::host::Identity;
use crate::supervisor::observe::debounce::PollDebounce;
use crate::supervisor::observe::evidence::ResourceShortages;
use crate::supervisor::observe::log_state::FailedServer;
pub use crate::supervisor::report::blocker::Blocker;
use crate::supervisor::report::diagnosis::Diagnosis;

/// A second death or failed start within this many milliseconds begins the back-off.
const FAILURE_WINDOW_MS: i64 = 60_000;
/// Pause between polls while a server starts.
const SERVER_POLL_MS: i64 = 20;

/// A control process of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlProcess {
    /// Which process.
    pub identity: Identity,
    /// The GPUs it was started with.
    pub gpus: Vec<GpuUuid>,
    /// Whether it serves static partitions, by its command line.
    pub mode: Mode,
    /// Whether it was started with `-M`.
    pub multi_user: bool,
}

impl ControlProcess {
    /// Whether it was started as desired; only a new process can change that.
    pub fn fits(&self, desired: &Desired) -> bool {
        (&self.gpus, self.mode, self.multi_user) == (&desired.gpus, desired.mode, desired.multi_user)
    }

    /// The GPUs that it lists partitions of: none in shared mode.
    pub fn partitioned(&self) -> &[GpuUuid] {
        if self.mode == Mode::Static { &self.gpus } else { &[] }
    }
}

/// Everything known about one daemon between two actions.
#[derive(Debug, Clone, Default)]
pub struct DaemonReconciler {
    /// Whether a process of an earlier manager was searched for.
    pub searched: bool,
    /// The control process.
    pub process: Option<ControlProcess>,
    /// What was read last from this process.
    pub seen: Option<Effective>,
    /// The generation last read to be in force in this process.
    pub applied: i64,
    /// The generation whose defaults were last read to be in force, with a server or without.
    defaults_held: i64,
    /// What blocks it.
    pub blocker: Option<Blocker>,
    /// What has become of its GPUs while it runs.
    pub lost: Option<Blocker>,
    /// The command that did not answer, and why.
    pub wedged: Option<String>,
    /// Why the last poll failed.
    pub poll_failure: Option<Diagnosis>,
    /// How long it has not answered, and what was done about it.
    pub silence: WedgeDetector,
    /// What was replaced last since it did not answer.
    pub replaced: Option<ReplacedProcess>,
    /// The last death or failed start: one word for why, and the tail of the log.
    pub last_failure: Option<Diagnosis>,
    /// When that was.
    pub failed_at: i64,
    /// Settings that others changed.
    pub drift: DriftStatus,
    /// Clients that wait for another user's to be gone, by the last poll.
    pub queue: Vec<Waiting>,
    /// What runs out around it, by the last poll.
    pub shortages: ResourceShortages,
    /// Whether a restart was requested.
    pub restart: bool,
    /// Its layout.
    pub layout: LayoutReconciler,
    /// Whether a poll is due at once: a caller waits for it, or a server died.
    poll_now: bool,
    next_poll: i64,
    /// When a log line wants the next poll.
    debounce: PollDebounce,
    retry_at: i64,
    /// When one that is only observed and does not run is searched for again.
    search_at: i64,
    failures: Vec<i64>,
    server_requested: Option<ServerRequest>,
    /// The server that ended last before it was ready, and when others did, until one takes clients.
    pub failed_server: Option<FailedServer>,
    server_failures: Vec<i64>,
    /// When the next server is requested.
    pub server_retry_at: i64,
    writes: u32,
    timings: Timings,
}

/// A pause of an idle daemon between two polls, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct PollInterval(pub i64);

/// A server that was asked for.
#[derive(Debug, Clone, Copy)]
struct ServerRequest {
    uid: u32,
    at: i64,
}

impl DaemonReconciler {
    /// What is known of a daemon before its process was searched for.
    pub fn remembering(layout: LayoutReconciler, timings: Timings) -> Self {
        Self { layout, timings, ..Self::default() }
    }

    /// Requests a poll as soon as possible.
    pub fn request_poll(&mut self) {
        self.poll_now = true;
    }

    /// A log line is a hint: it triggers a poll and is never believed.
    pub fn wake(&mut self, now: i64) {
        self.debounce.wake(now);
    }

    /// When to poll next if nothing else happens.
    fn next_poll_at(&self) -> i64 {
        self.debounce.at().min(self.next_poll)
    }

    /// A server died: it is no longer seen, which ends readiness before the next poll.
    pub fn server_died(&mut self, alive: impl Fn(Identity) -> bool) {
        if let Some(seen) = &mut self.seen {
            seen.servers.retain(|server| alive(server.into()));
        }
        self.poll_now = true;
    }

    /// The search for an earlier process ended.
    pub fn searched(&mut self, found: Result<Option<ControlProcess>, Blocker>, now: i64) {
        match found {
            Ok(process) => {
                self.searched = true;
                self.blocker = None;
                self.process = process;
                self.search_at = now + self.timings.blocked_retry();
            }
            Err(blocker) => self.blocked(blocker, now),
        }
    }

    /// Its GPUs are gone or cannot be used, or are back: then a start that waited for them is due.
    pub fn gpus_lost(&mut self, lost: Option<Blocker>) {
        if self.lost.is_some() && lost.is_none() {
            self.retry_at = 0;
            self.poll_now = self.process.is_some();
        }
        self.lost = lost;
    }

    /// The daemon is blocked.
    pub fn blocked(&mut self, blocker: Blocker, now: i64) {
        self.blocker = Some(blocker);
        self.retry_at = now + self.timings.blocked_retry();
        self.search_at = self.retry_at;
    }

    /// The partitions that the last poll lists.
    pub fn listed(&self) -> Option<&[GpuPartitions]> {
        self.seen.as_ref().and_then(|seen| seen.partitions.as_deref())
    }

    /// Whether the layout needs nothing done.
    fn is_complete(&self, desired: &Desired) -> bool {
        self.layout.progress(desired, self.listed()).is_complete()
    }

    /// Applies the desired state, and completes it by what is known only here.
    pub fn follow(&mut self, desired: &mut Desired, now: i64) {
        if !self.layout.follow(desired, now) {
            // What the server holds may have to be changed for it, which is no drift.
            (self.applied, self.defaults_held) = (0, 0);
        }
    }

    /// Retries what was blocked or failed without waiting for the next attempt: who asks for it may have removed the cause, so that the
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

    /// A control process was started.
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

    /// The control process died, or could not be started, with one word for why and the tail of its log.
    pub fn failed(&mut self, failure: Diagnosis, now: i64) {
        self.forget_process();
        self.last_failure = Some(failure);
        self.failed_at = now;
        self.failures.retain(|at| now - at < FAILURE_WINDOW_MS);
        self.failures.push(now);
        self.retry_at = now + self.timings.backoff(self.failures.len());
    }

    /// The control process of another program's daemon, which is only observed, is gone.
    pub fn absent(&mut self, failure: Diagnosis, now: i64) {
        self.forget_process();
        self.last_failure = Some(failure);
        self.failed_at = now;
        self.search_at = now;
    }

    /// The control process was stopped as requested.
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
        self.layout.process_gone();
        self.drift.present = false;
    }

    /// A server was requested.
    pub fn server_requested(&mut self, uid: u32, now: i64) {
        self.server_requested = Some(ServerRequest { uid, at: now });
        self.next_poll = now + SERVER_POLL_MS;
    }

    /// A server ended before it was ready. The log is anybody's to write, so it counts only while one was requested.
    pub fn server_failed(&mut self, server: FailedServer, now: i64) {
        if self.server_requested.is_some() {
            self.server_ended(Some(server), now);
            self.next_poll = self.next_poll.max(self.server_retry_at);
        }
    }

    /// A server that was requested is not there, as the log says, or as it would be where nothing can be read of a log.
    fn server_ended(&mut self, as_logged: Option<FailedServer>, now: i64) {
        self.server_requested = None;
        self.failed_server = as_logged;
        self.server_failures.push(now);
        self.server_retry_at = now + self.timings.backoff(self.server_failures.len());
    }

    /// How many servers in a row ended before they were ready.
    pub fn failed_servers(&self) -> usize {
        self.server_failures.len()
    }

    /// A server takes clients, or none is needed, or somebody has seen to it.
    fn forget_failed_servers(&mut self) {
        self.failed_server = None;
        self.server_failures.clear();
        self.server_retry_at = 0;
    }

    /// What was found out about the poll that failed last.
    pub fn explain(&mut self, poll_failure: Diagnosis) {
        self.poll_failure = Some(poll_failure);
    }

    /// The next poll is not to be later than this.
    pub fn poll_by(&mut self, at: i64) {
        self.next_poll = self.next_poll.min(at);
    }

    /// Whether the running process was started for other GPUs, users or another mode than are desired now.
    pub fn needs_restart(&self, desired: &Desired) -> bool {
        !desired.is_observed() && self.process.as_ref().is_some_and(|process| !process.fits(desired))
    }
}

mod carry;
mod decide;
mod phase;
mod poll;
#[cfg(test)]
pub(crate) mod tests;
