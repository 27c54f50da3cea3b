//! What to do next for one daemon: pure, so that every way it can die is a unit test.
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

use super::layout::LayoutReconciler;
use super::layout::progress::LayoutAction;
use super::wedge::WedgeDetector;
use crate::domain::daemon::{Effective, Mode, Phase, Server, Waiting};
use crate::domain::difference::{SettingDifference, differences, drifted};
use crate::domain::drift::{DriftPolicy, DriftStatus, Drifted};
use crate::domain::gpu::GpuUuid;
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::domain::wedge::ReplacedProcess;
use crate::host::Identity;
use crate::supervisor::observe::debounce::PollDebounce;
use crate::supervisor::observe::evidence::{DiagnosisEvidence, ResourceShortages};
use crate::supervisor::observe::poll_outcome::PollOutcome;
pub use crate::supervisor::report::blocker::Blocker;
use crate::supervisor::report::diagnosis::{self, Diagnosis};

/// A second death or failed start within this many milliseconds begins the back-off.
const FAILURE_WINDOW_MS: i64 = 60_000;
/// Failures in the window from which the state is called a crash loop.
const CRASH_LOOP: usize = 5;
/// Longest time for a server to become active before another is requested.
const SERVER_START_MS: i64 = 30_000;
/// Longest time for a server that was requested to be listed; a `start_server` sent while the daemon has not
/// noticed the death of the server before is ignored in silence (seen on 13.0).
const SERVER_LISTED_MS: i64 = 250;
/// Pause between polls while a server starts.
const SERVER_POLL_MS: i64 = 20;
/// Writes of the same settings in a row before the pause of an idle daemon is kept between them.
const EAGER_WRITES: u32 = 3;

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
    /// Whether it was started as this is wanted; nothing makes it so afterwards.
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
    server_requested_at: Option<i64>,
    writes: u32,
    timings: Timings,
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum ReconcileStep {
    /// Search for a process of an earlier manager.
    Search,
    /// Start a control process.
    Start,
    /// Stop the control process.
    Stop,
    /// Write these settings, if any, and read everything.
    Sync(Vec<SettingDifference>),
    /// Go on with the layout.
    Layout(LayoutAction),
    /// Ask for a server of this user.
    StartServer(u32),
    /// Nothing to do before this time, in unix milliseconds.
    Wait(i64),
}

/// A pause of an idle daemon between two polls, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct PollInterval(pub i64);

impl DaemonReconciler {
    /// What is known of a daemon before its process was searched for.
    pub fn remembering(layout: LayoutReconciler, timings: Timings) -> Self {
        Self { layout, timings, ..Self::default() }
    }

    /// A poll is wanted as soon as may be.
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

    /// Why it is not known whether there is a process, which is then not to be taken for none.
    pub fn doubt(&self) -> Option<Diagnosis> {
        let blocker = self.blocker.clone().filter(|_| !self.searched);
        blocker.map(|Blocker { reason, message }| Diagnosis { reason, message })
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

    /// What blocks the daemon now.
    pub fn current_blocker(&self, desired: &Desired, phase: Phase) -> Option<Blocker> {
        let known = self.blocker.clone().or_else(|| self.lost.clone());
        known.or_else(|| self.layout_failure(desired)).filter(|_| phase == Phase::Blocked)
    }

    /// The partitions that the last poll lists.
    pub fn listed(&self) -> Option<&[GpuPartitions]> {
        self.seen.as_ref().and_then(|seen| seen.partitions.as_deref())
    }

    /// Whether the layout needs nothing done.
    fn is_complete(&self, desired: &Desired) -> bool {
        self.layout.progress(desired, self.listed()).is_complete()
    }

    /// Applies what is wanted, and completes it by what is known only here.
    pub fn follow(&mut self, desired: &mut Desired, now: i64) {
        if !self.layout.follow(desired, now) {
            // What the server holds may have to be changed for it, which is no drift.
            self.applied = 0;
        }
    }

    /// Why the layout is not in force in a process that could hold it.
    fn layout_failure(&self, desired: &Desired) -> Option<Blocker> {
        if self.process.is_none() || self.needs_restart(desired) {
            return None;
        }
        let progress = self.layout.progress(desired, self.listed());
        let failure = self.layout.failure(desired, &progress)?;
        Some(Blocker { reason: failure.reason(), message: failure.message })
    }

    /// Retries what was blocked without waiting for the next attempt.
    pub fn try_again(&mut self) {
        self.layout.try_again();
        if self.blocker.is_some() {
            self.retry_at = 0;
            self.search_at = 0;
        }
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
        self.retry_at = 0;
    }

    fn forget_process(&mut self) {
        self.process = None;
        self.seen = None;
        self.applied = 0;
        self.wedged = None;
        self.poll_failure = None;
        self.silence = WedgeDetector::default();
        self.server_requested_at = None;
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
    pub fn server_requested(&mut self, now: i64) {
        self.server_requested_at = Some(now);
        self.next_poll = now + SERVER_POLL_MS;
    }

    /// A poll ended; `began` is when it began and `wrote` whether it wrote settings first.
    pub fn polled(
        &mut self,
        outcome: PollOutcome,
        wrote: bool,
        desired: &Desired,
        now: i64,
        interval: PollInterval,
    ) {
        self.poll_now = false;
        self.debounce.polled(now);
        self.writes = if wrote { self.writes + 1 } else { self.writes };
        match outcome {
            PollOutcome::Seen(mut seen) => {
                self.wedged = None;
                self.poll_failure = None;
                self.silence = WedgeDetector::default();
                self.keep_users(&mut seen);
                self.note_drift(desired, &seen, wrote, now);
                let serving = seen.servers.iter().any(|server| server.status == "ACTIVE");
                if serving && !serves_another_user(desired, &seen) {
                    self.server_requested_at = None;
                }
                let settings = desired.is_observed() || (serving && differences(desired, &seen).is_empty());
                self.seen = Some(seen);
                if settings {
                    self.writes = 0;
                }
                if settings && self.is_complete(desired) {
                    self.applied = desired.generation;
                }
                let present = self.seen.as_ref().and_then(|seen| seen.partitions.as_deref());
                self.layout.polled(desired, present, now);
                let starting = self.server_requested_at.is_some() && !serving;
                self.next_poll = now + if starting { SERVER_POLL_MS } else { interval.0 };
            }
            failed => {
                self.poll_failure = diagnosis::name(&failed, &DiagnosisEvidence::default());
                if let PollOutcome::Unanswered(command) = failed {
                    self.wedged = Some(command);
                }
                self.next_poll = now + i64::from(self.timings.hung_poll_ms);
            }
        }
    }

    /// What was found out about the poll that failed last.
    pub fn explain(&mut self, poll_failure: Diagnosis) {
        self.poll_failure = Some(poll_failure);
    }

    /// The next poll is not to be later than this.
    pub fn poll_by(&mut self, at: i64) {
        self.next_poll = self.next_poll.min(at);
    }

    /// Counts settings that had been read back in this generation and were changed since; a poll that finds the
    /// same as the one before finds nothing new, unless they had been put back in between.
    fn note_drift(&mut self, desired: &Desired, seen: &Effective, wrote: bool, now: i64) {
        // A daemon that is only observed has no desired value.
        let found: Vec<Drifted> = if self.applied == desired.generation && !desired.is_observed() {
            drifted(desired, seen, &differences(desired, seen))
                .into_iter()
                .map(|(_, drifted)| drifted)
                .collect()
        } else {
            Vec::new()
        };
        let known = self.drift.present && !wrote && self.drift.last == found;
        self.drift.present = !found.is_empty();
        if self.drift.present && !known {
            self.drift.count += 1;
            self.drift.last_at = Some(now);
            self.drift.last = found;
        }
    }

    /// The settings to write: all that differ, but what others changed only where the policy is to put it back.
    fn to_write(&self, desired: &Desired, seen: &Effective) -> Vec<SettingDifference> {
        let mut wrong = differences(desired, seen);
        if desired.drift_policy == DriftPolicy::Report && self.applied == desired.generation {
            let theirs = drifted(desired, seen, &wrong);
            wrong.retain(|difference| theirs.iter().all(|(changed, _)| changed != difference));
        }
        wrong
    }

    /// A server's user stays known when the log no longer shows it.
    fn keep_users(&self, seen: &mut Effective) {
        let earlier = self.seen.iter().flat_map(|earlier| &earlier.servers);
        for known in earlier.filter(|known| known.uid.is_some()) {
            let same =
                |server: &&mut Server| (server.pid, server.start_time) == (known.pid, known.start_time);
            if let Some(server) = seen.servers.iter_mut().find(same) {
                server.uid = server.uid.or(known.uid);
            }
        }
    }

    /// Whether the running process was started for other GPUs, users or another mode than are wanted now.
    pub fn needs_restart(&self, desired: &Desired) -> bool {
        !desired.is_observed() && self.process.as_ref().is_some_and(|process| !process.fits(desired))
    }

    /// What to do next, given what is wanted; `clients` is how many are connected.
    pub fn decide(&self, desired: &Desired, clients: usize, now: i64) -> ReconcileStep {
        if !self.searched {
            return if now < self.retry_at {
                ReconcileStep::Wait(self.retry_at)
            } else {
                ReconcileStep::Search
            };
        }
        if desired.is_observed() {
            return self.decide_observed(now);
        }
        if self.process.is_none() {
            if !desired.running {
                return ReconcileStep::Wait(i64::MAX);
            }
            return if now < self.retry_at {
                ReconcileStep::Wait(self.retry_at)
            } else {
                ReconcileStep::Start
            };
        }
        // A daemon that was started otherwise than wanted is replaced once it serves nobody.
        if !desired.running
            || self.restart
            || (self.needs_restart(desired) && clients == 0 && self.seen.is_some())
        {
            return ReconcileStep::Stop;
        }
        let due = now >= self.next_poll_at() || self.poll_now;
        let Some(seen) = self.seen.as_ref().filter(|_| self.wedged.is_none() && self.poll_failure.is_none())
        else {
            // Not read yet, or not answering: nothing but reads.
            return self.poll_or_wait(due);
        };
        // Without its GPUs no server comes up and no setting takes effect.
        if self.needs_restart(desired) || self.lost.is_some() {
            return self.poll_or_wait(due);
        }
        self.decide_settings(desired, seen, clients, due, now)
    }

    fn poll_or_wait(&self, due: bool) -> ReconcileStep {
        if due { ReconcileStep::Sync(Vec::new()) } else { ReconcileStep::Wait(self.next_poll_at()) }
    }

    /// An observed daemon is only searched for and polled.
    fn decide_observed(&self, now: i64) -> ReconcileStep {
        if self.process.is_none() {
            return if now < self.search_at {
                ReconcileStep::Wait(self.search_at)
            } else {
                ReconcileStep::Search
            };
        }
        let due = now >= self.next_poll_at() || self.poll_now;
        self.poll_or_wait(due)
    }

    fn decide_settings(
        &self,
        desired: &Desired,
        seen: &Effective,
        clients: usize,
        due: bool,
        now: i64,
    ) -> ReconcileStep {
        let wrong = self.to_write(desired, seen);
        let patience = if seen.servers.is_empty() { SERVER_LISTED_MS } else { SERVER_START_MS };
        let starting = self.server_requested_at.is_some_and(|requested| now - requested < patience);
        if !wrong.is_empty() && (self.writes < EAGER_WRITES || due) {
            return ReconcileStep::Sync(wrong);
        }
        if self.poll_now {
            // A server that died may have been replaced by MPS itself: nothing is started before it was searched for.
            return ReconcileStep::Sync(wrong);
        }
        let serving = seen.servers.iter().any(|server| server.status == "ACTIVE");
        if wrong.is_empty() && serving && self.applied != desired.generation && self.is_complete(desired) {
            // The same settings under a new generation: ready only once they were read under it.
            return ReconcileStep::Sync(wrong);
        }
        let wanted = seen.servers.is_empty() || (serves_another_user(desired, seen) && clients == 0);
        if wanted && !starting {
            return ReconcileStep::StartServer(desired.server_uid);
        }
        // Last, so that a client admitted to a partition finds its limits.
        let fits = wrong.is_empty() && serving;
        let left = fits.then(|| self.layout.next_step(desired, self.listed())).flatten();
        let at = left.as_ref().map_or(i64::MAX, |(at, _)| *at);
        match left {
            Some((at, step)) if now >= at => ReconcileStep::Layout(step),
            _ if due => ReconcileStep::Sync(Vec::new()),
            _ => ReconcileStep::Wait(at.min(self.next_poll_at())),
        }
    }

    /// The daemon's phase.
    pub fn phase(&self, desired: &Desired, now: i64) -> Phase {
        let window = self.failures.iter().filter(|at| now - **at < FAILURE_WINDOW_MS).count();
        match (&self.process, &self.blocker) {
            // A blocked start does not matter when no start is wanted.
            (None, _) if self.searched && !desired.running && !desired.is_observed() => Phase::Stopped,
            (_, Some(_)) => Phase::Blocked,
            _ if !self.searched => Phase::Unknown,
            (None, _) if desired.is_observed() => Phase::Absent,
            (Some(_), _) if desired.is_observed() && self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if desired.is_observed() => Phase::Observed,
            (None, _) if window >= CRASH_LOOP => Phase::CrashLoop,
            (None, _) if now < self.retry_at => Phase::BackOff,
            (None, _) => Phase::Starting,
            (Some(_), _) if !desired.running || self.restart => Phase::Stopping,
            (Some(_), _) if self.lost.is_some() => Phase::Blocked,
            (Some(_), _) if self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if self.layout_failure(desired).is_some() => Phase::Blocked,
            (Some(_), _) if self.is_ready(desired) => Phase::Ready,
            (Some(_), _) => Phase::Applying,
        }
    }

    /// Whether this generation was read back from this process with a server that takes clients.
    pub fn is_ready(&self, desired: &Desired) -> bool {
        self.applied == desired.generation
            && self.wedged.is_none()
            && self.poll_failure.is_none()
            && !self.needs_restart(desired)
            && self.lost.is_none()
            && self.is_complete(desired)
            && self.seen.as_ref().is_some_and(|seen| {
                seen.servers.iter().any(|server| server.status == "ACTIVE")
                    && !serves_another_user(desired, seen)
                    && differences(desired, seen).is_empty()
            })
    }
}

/// Whether a server of another user blocks the desired one: clients of the wanted user would wait until all of its own are
/// gone (FACTS.md, "Starting, stopping, dying"). Without tenants no user is wanted more than another.
pub fn serves_another_user(desired: &Desired, seen: &Effective) -> bool {
    let another = |uid: u32| uid != desired.server_uid;
    !desired.multi_user
        && !desired.uids.is_empty()
        && seen.servers.iter().any(|server| server.uid.is_some_and(another))
}

mod carry;
#[cfg(test)]
pub(crate) mod tests;
