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
//!   the process died ──► start at once, or back-off from the second death in a minute
//! ```

use crate::domain::daemon::{Effective, Phase, Server};
use crate::domain::gpu::GpuUuid;
use crate::domain::plan::{Desired, Difference, differences};
use crate::host::Identity;

/// A second death or failed start within this many milliseconds begins the back-off.
const FAILURE_WINDOW_MS: i64 = 60_000;
/// First and longest pause before another start.
const BACK_OFF_MS: (i64, i64) = (1_000, 60_000);
/// Failures in the window from which the state is called a crash loop.
const CRASH_LOOP: usize = 5;
/// Pause before a blocked daemon is looked at again.
const BLOCKED_RETRY_MS: i64 = 5_000;
/// Pause between looks at a daemon that does not answer.
const WEDGED_RETRY_MS: i64 = 1_000;
/// Longest time for a server to become active before it is asked for again.
const SERVER_START_MS: i64 = 30_000;
/// Longest time for a server that was asked for to be listed; a `start_server` sent while the daemon has not
/// noticed the death of the server before is ignored in silence (seen on 13.0).
const SERVER_LISTED_MS: i64 = 250;
/// Pause between looks while a server starts.
const SERVER_POLL_MS: i64 = 20;
/// Writes of the same settings in a row before the pause of an idle daemon is kept between them.
const EAGER_WRITES: u32 = 3;

/// A control process of ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// Which process.
    pub identity: Identity,
    /// The GPUs it was started with.
    pub gpus: Vec<GpuUuid>,
    /// Whether it was started with `-M`.
    pub multi_user: bool,
}

/// Something that stands in the way and that the manager does not touch by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// One word, as `ForeignDaemon`.
    pub reason: &'static str,
    /// A sentence with the remedy.
    pub message: String,
}

/// Everything known about one daemon between two actions.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Whether a process of an earlier manager was looked for.
    pub searched: bool,
    /// The control process.
    pub process: Option<Process>,
    /// What was read last from this process.
    pub seen: Option<Effective>,
    /// The generation last read to be in force in this process.
    pub applied: i64,
    /// What stands in the way.
    pub obstacle: Option<Obstacle>,
    /// The command that did not answer, and why.
    pub wedged: Option<String>,
    /// Why the last look failed, while the daemon is not called wedged.
    pub trouble: Option<String>,
    /// The tail of the log of the last death or failed start.
    pub last_words: Option<String>,
    /// Whether a restart was asked for.
    pub restart: bool,
    /// When the last look began that somebody waits for, or that a death of a server made necessary.
    look_now: bool,
    next_look: i64,
    retry_at: i64,
    /// When one that is only looked at and does not run is looked for again.
    search_at: i64,
    failures: Vec<i64>,
    server_asked_at: Option<i64>,
    writes: u32,
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Look for a process of an earlier manager.
    Search,
    /// Start a control process.
    Start,
    /// Stop the control process.
    Stop,
    /// Write these settings, if any, and read everything.
    Sync(Vec<Difference>),
    /// Ask for a server of this user.
    StartServer(u32),
    /// Nothing to do before this time, in unix milliseconds.
    Wait(i64),
}

/// How a look at the daemon, with or without writing, ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Look {
    /// Everything was read.
    Seen(Effective),
    /// Others kept the daemon busy to the deadline; nothing is known to have changed.
    Busy(String),
    /// A command did not answer and may still take effect.
    Unanswered(String),
    /// The answer was not one that can be read.
    Unreadable(String),
}

/// A pause of an idle daemon between two looks, in milliseconds.
#[derive(Debug, Clone, Copy)]
pub struct Rhythm(pub i64);

impl State {
    /// A look is wanted as soon as may be.
    pub fn look_soon(&mut self) {
        self.look_now = true;
    }

    /// A server died: it is no longer seen, which ends readiness before the next look.
    pub fn server_died(&mut self, alive: impl Fn(Identity) -> bool) {
        if let Some(seen) = &mut self.seen {
            seen.servers.retain(|server| alive(Identity { pid: server.pid, start_time: server.start_time }));
        }
        self.look_now = true;
    }

    /// The search for an earlier process ended.
    pub fn searched(&mut self, found: Result<Option<Process>, Obstacle>, now: i64) {
        match found {
            Ok(process) => {
                self.searched = true;
                self.obstacle = None;
                self.process = process;
                self.search_at = now + BLOCKED_RETRY_MS;
            }
            Err(obstacle) => self.blocked(obstacle, now),
        }
    }

    /// Something stands in the way.
    pub fn blocked(&mut self, obstacle: Obstacle, now: i64) {
        self.obstacle = Some(obstacle);
        self.retry_at = now + BLOCKED_RETRY_MS;
    }

    /// A control process was started.
    pub fn started(&mut self, process: Process) {
        *self = Self {
            searched: true,
            process: Some(process),
            failures: std::mem::take(&mut self.failures),
            last_words: self.last_words.take(),
            ..Self::default()
        };
    }

    /// The control process died, or could not be started, with the tail of its log.
    pub fn failed(&mut self, last_words: String, now: i64) {
        self.forget_process();
        self.last_words = Some(last_words);
        self.failures.retain(|at| now - at < FAILURE_WINDOW_MS);
        self.failures.push(now);
        let pause = match self.failures.len() {
            0 | 1 => 0,
            several => (BACK_OFF_MS.0 << (several - 2).min(6)).min(BACK_OFF_MS.1),
        };
        self.retry_at = now + pause;
    }

    /// The control process of somebody else's daemon, which is only looked at, is gone, with the tail of its log.
    pub fn lost(&mut self, last_words: String, now: i64) {
        self.forget_process();
        self.last_words = Some(last_words);
        self.search_at = now;
    }

    /// The control process was stopped as asked.
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
        self.trouble = None;
        self.server_asked_at = None;
        self.writes = 0;
        self.next_look = 0;
        self.obstacle = None;
    }

    /// A server was asked for.
    pub fn server_asked(&mut self, now: i64) {
        self.server_asked_at = Some(now);
        self.next_look = now + SERVER_POLL_MS;
    }

    /// A look ended; `began` is when it began and `wrote` whether it wrote settings first.
    pub fn looked(&mut self, look: Look, wrote: bool, desired: &Desired, now: i64, rhythm: Rhythm) {
        self.look_now = false;
        self.writes = if wrote { self.writes + 1 } else { self.writes };
        match look {
            Look::Seen(mut seen) => {
                self.wedged = None;
                self.trouble = None;
                self.keep_users(&mut seen);
                let serving = seen.servers.iter().any(|server| server.status == "ACTIVE");
                if serving && !serves_another_user(desired, &seen) {
                    self.server_asked_at = None;
                }
                if desired.is_observed() || (serving && differences(desired, &seen).is_empty()) {
                    self.applied = desired.generation;
                    self.writes = 0;
                }
                self.seen = Some(seen);
                let starting = self.server_asked_at.is_some() && !serving;
                self.next_look = now + if starting { SERVER_POLL_MS } else { rhythm.0 };
            }
            Look::Busy(why) | Look::Unreadable(why) => {
                self.trouble = Some(why);
                self.next_look = now + WEDGED_RETRY_MS;
            }
            Look::Unanswered(command) => {
                self.wedged = Some(command);
                self.next_look = now + WEDGED_RETRY_MS;
            }
        }
    }

    /// A server's user stays known when the log no longer tells it.
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

    /// Whether the running process was started for other GPUs or users than are wanted now.
    pub fn needs_restart(&self, desired: &Desired) -> bool {
        !desired.is_observed()
            && self.process.as_ref().is_some_and(|process| {
                process.gpus != desired.gpus || process.multi_user != desired.multi_user
            })
    }

    /// What to do next, given what is wanted; `clients` is how many are connected.
    pub fn decide(&self, desired: &Desired, clients: usize, now: i64) -> Action {
        if !self.searched {
            return if now < self.retry_at { Action::Wait(self.retry_at) } else { Action::Search };
        }
        if desired.is_observed() {
            return self.decide_observed(now);
        }
        if self.process.is_none() {
            if !desired.running {
                return Action::Wait(i64::MAX);
            }
            return if now < self.retry_at { Action::Wait(self.retry_at) } else { Action::Start };
        }
        // A daemon that is only for other GPUs than wanted is replaced once it serves nobody.
        if !desired.running
            || self.restart
            || (self.needs_restart(desired) && clients == 0 && self.seen.is_some())
        {
            return Action::Stop;
        }
        let due = now >= self.next_look || self.look_now;
        let Some(seen) = self.seen.as_ref().filter(|_| self.wedged.is_none() && self.trouble.is_none())
        else {
            // Not read yet, or not answering: nothing but reads.
            return if due { Action::Sync(Vec::new()) } else { Action::Wait(self.next_look) };
        };
        if self.needs_restart(desired) {
            return if due { Action::Sync(Vec::new()) } else { Action::Wait(self.next_look) };
        }
        self.decide_settings(desired, seen, clients, due, now)
    }

    /// Nothing but looking for it and looking at it.
    fn decide_observed(&self, now: i64) -> Action {
        if self.process.is_none() {
            return if now < self.search_at { Action::Wait(self.search_at) } else { Action::Search };
        }
        let due = now >= self.next_look || self.look_now;
        if due { Action::Sync(Vec::new()) } else { Action::Wait(self.next_look) }
    }

    fn decide_settings(
        &self,
        desired: &Desired,
        seen: &Effective,
        clients: usize,
        due: bool,
        now: i64,
    ) -> Action {
        let wrong = differences(desired, seen);
        let patience = if seen.servers.is_empty() { SERVER_LISTED_MS } else { SERVER_START_MS };
        let starting = self.server_asked_at.is_some_and(|asked| now - asked < patience);
        if !wrong.is_empty() && (self.writes < EAGER_WRITES || due) {
            return Action::Sync(wrong);
        }
        if self.look_now {
            // A server that died may have been replaced by MPS itself: nothing is started before it was looked for.
            return Action::Sync(wrong);
        }
        let serving = seen.servers.iter().any(|server| server.status == "ACTIVE");
        if wrong.is_empty() && serving && self.applied != desired.generation {
            // The same settings under a new generation: ready only once they were read under it.
            return Action::Sync(wrong);
        }
        let wanted = seen.servers.is_empty() || (serves_another_user(desired, seen) && clients == 0);
        if wanted && !starting {
            return Action::StartServer(desired.server_uid);
        }
        if due { Action::Sync(Vec::new()) } else { Action::Wait(self.next_look) }
    }

    /// The word for where the daemon stands.
    pub fn phase(&self, desired: &Desired, now: i64) -> Phase {
        let window = self.failures.iter().filter(|at| now - **at < FAILURE_WINDOW_MS).count();
        match (&self.process, &self.obstacle) {
            (_, Some(_)) => Phase::Blocked,
            _ if !self.searched => Phase::Unknown,
            (None, _) if desired.is_observed() => Phase::Absent,
            (Some(_), _) if desired.is_observed() && self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if desired.is_observed() => Phase::Observed,
            (None, _) if !desired.running => Phase::Stopped,
            (None, _) if window >= CRASH_LOOP => Phase::CrashLoop,
            (None, _) if now < self.retry_at => Phase::BackOff,
            (None, _) => Phase::Starting,
            (Some(_), _) if !desired.running || self.restart => Phase::Stopping,
            (Some(_), _) if self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if self.is_ready(desired) => Phase::Ready,
            (Some(_), _) => Phase::Applying,
        }
    }

    /// Whether this generation was read back from this process with a server that takes clients.
    pub fn is_ready(&self, desired: &Desired) -> bool {
        self.applied == desired.generation
            && self.wedged.is_none()
            && self.trouble.is_none()
            && !self.needs_restart(desired)
            && self.seen.as_ref().is_some_and(|seen| {
                seen.servers.iter().any(|server| server.status == "ACTIVE")
                    && !serves_another_user(desired, seen)
                    && differences(desired, seen).is_empty()
            })
    }
}

/// Whether a server of another user is in the way: clients of the wanted user would wait until all of its own are
/// gone (FACTS.md, "Starting, stopping, dying").
pub fn serves_another_user(desired: &Desired, seen: &Effective) -> bool {
    let another = |uid: u32| uid != desired.server_uid;
    !desired.multi_user && seen.servers.iter().any(|server| server.uid.is_some_and(another))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::daemon::{Management, MemoryReading};
    use crate::domain::{DaemonName, MemoryLimit, Priority, ThreadPercentage};

    const RHYTHM: Rhythm = Rhythm(8_000);

    fn uuid() -> GpuUuid {
        GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
    }

    fn desired() -> Desired {
        Desired {
            name: DaemonName::parse("gpu0").expect("name"),
            generation: 3,
            management: Management::Managed,
            running: true,
            share_gpus: false,
            gpus: vec![uuid()],
            multi_user: false,
            server_uid: 0,
            memory_limits: vec![Some(MemoryLimit::parse("4G").expect("4G"))],
            percentage: ThreadPercentage::FULL,
            priority: Priority::Normal,
        }
    }

    fn process() -> Process {
        Process { identity: Identity { pid: 10, start_time: 1 }, gpus: vec![uuid()], multi_user: false }
    }

    fn seen(limit: Option<u64>, servers: &[(u32, &str)]) -> Effective {
        let reading = || {
            vec![MemoryReading {
                gpu: uuid(),
                bytes: limit,
                exact: true,
                unreadable: None,
                in_server_log: None,
            }]
        };
        Effective {
            observed_at: 0,
            control_processes: 1,
            default_active_thread_percentage: Some(ThreadPercentage::FULL),
            default_priority: Some(Priority::Normal),
            default_memory_limits: reading(),
            servers: servers
                .iter()
                .map(|(pid, status)| Server {
                    pid: *pid,
                    start_time: 1,
                    uid: Some(0),
                    status: (*status).into(),
                    active_thread_percentage: Some(ThreadPercentage::FULL),
                    memory_limits: reading(),
                })
                .collect(),
        }
    }

    fn running() -> State {
        let mut state = State::default();
        state.searched(Ok(Some(process())), 0);
        state
    }

    #[test]
    fn an_earlier_process_is_looked_for_before_anything_is_started() {
        assert_eq!(State::default().decide(&desired(), 0, 0), Action::Search);
        let mut state = State::default();
        state.searched(Ok(None), 0);
        assert_eq!(state.decide(&desired(), 0, 0), Action::Start);
    }

    #[test]
    fn defaults_are_written_before_the_first_server_and_checked_after_it() {
        let (desired, mut state) = (desired(), running());
        assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![]));
        state.looked(Look::Seen(seen(None, &[])), false, &desired, 0, RHYTHM);
        assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![Difference::DefaultMemory(0)]));
        state.looked(Look::Seen(seen(Some(4 << 30), &[])), true, &desired, 0, RHYTHM);
        assert_eq!(state.phase(&desired, 0), Phase::Applying);
        assert_eq!(state.decide(&desired, 0, 0), Action::StartServer(0));
        state.server_asked(0);
        assert_eq!(state.decide(&desired, 0, 0), Action::Wait(20));
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 20, RHYTHM);
        assert_eq!(state.phase(&desired, 20), Phase::Ready);
        assert_eq!(state.decide(&desired, 0, 20), Action::Wait(8_020));
    }

    #[test]
    fn a_server_that_does_not_come_is_asked_for_again() {
        let (desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, 0, RHYTHM);
        state.server_asked(0);
        state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, SERVER_LISTED_MS, RHYTHM);
        assert_eq!(state.decide(&desired, 0, SERVER_LISTED_MS), Action::StartServer(0));
        state.server_asked(SERVER_LISTED_MS);
        let listed = Look::Seen(seen(Some(4 << 30), &[(20, "INITIALIZING")]));
        state.looked(listed, false, &desired, 2 * SERVER_LISTED_MS, RHYTHM);
        assert_eq!(
            state.decide(&desired, 0, 2 * SERVER_LISTED_MS),
            Action::Wait(2 * SERVER_LISTED_MS + SERVER_POLL_MS)
        );
    }

    #[test]
    fn a_new_generation_is_not_ready_before_it_was_read_back() {
        let (mut desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
        assert!(state.is_ready(&desired));
        desired.generation += 1;
        assert!(!state.is_ready(&desired), "the same settings, but not read under this generation");
    }

    #[test]
    fn drift_is_written_again_and_not_for_ever_at_full_speed() {
        let (desired, mut state) = (desired(), running());
        let drifted = || Look::Seen(seen(Some(1 << 30), &[(20, "ACTIVE")]));
        state.looked(drifted(), false, &desired, 0, RHYTHM);
        for _ in 0..EAGER_WRITES {
            assert!(matches!(state.decide(&desired, 0, 1), Action::Sync(wrong) if wrong.len() == 2));
            state.looked(drifted(), true, &desired, 1, RHYTHM);
        }
        assert_eq!(state.decide(&desired, 0, 2), Action::Wait(8_001));
        assert_eq!(state.phase(&desired, 2), Phase::Applying);
    }

    #[test]
    fn nothing_but_reads_goes_to_a_wedged_daemon() {
        let (desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(1 << 30), &[])), false, &desired, 0, RHYTHM);
        state.looked(Look::Unanswered("terminate_client 1 2".into()), false, &desired, 0, RHYTHM);
        assert_eq!(state.phase(&desired, 0), Phase::Wedged);
        assert_eq!(state.decide(&desired, 0, 0), Action::Wait(1_000));
        assert_eq!(state.decide(&desired, 0, 1_000), Action::Sync(vec![]));
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 1_000, RHYTHM);
        assert_eq!(state.phase(&desired, 1_000), Phase::Ready);
    }

    #[test]
    fn the_first_death_costs_no_pause_and_the_next_ones_more_and_more() {
        let (desired, mut state) = (desired(), running());
        let mut now = 0;
        for pause in [0, 1_000, 2_000, 4_000, 8_000] {
            state.failed("gone".into(), now);
            let expected = if pause == 0 { Action::Start } else { Action::Wait(now + pause) };
            assert_eq!(state.decide(&desired, 0, now), expected);
            now += pause;
            state.started(process());
        }
        state.failed("gone".into(), now);
        assert_eq!(state.phase(&desired, now), Phase::CrashLoop);
        assert_eq!(state.last_words.as_deref(), Some("gone"));
        now += FAILURE_WINDOW_MS;
        state.failed("gone".into(), now);
        assert_eq!(state.decide(&desired, 0, now), Action::Start, "a minute later all is forgiven");
    }

    #[test]
    fn a_daemon_for_other_gpus_is_replaced_only_when_it_serves_nobody() {
        let (mut desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
        desired.multi_user = true;
        assert!(state.needs_restart(&desired));
        assert_eq!(state.decide(&desired, 1, 1), Action::Wait(8_000));
        assert_eq!(state.decide(&desired, 0, 1), Action::Stop);
    }

    #[test]
    fn a_dead_server_ends_readiness_and_is_looked_for_before_another_is_started() {
        let (desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
        state.server_died(|_| false);
        assert_eq!(state.phase(&desired, 1), Phase::Applying);
        assert_eq!(state.decide(&desired, 0, 1), Action::Sync(vec![]));
        state.looked(Look::Seen(seen(Some(4 << 30), &[])), false, &desired, 1, RHYTHM);
        assert_eq!(state.decide(&desired, 0, 1), Action::StartServer(0));
    }

    #[test]
    fn nothing_but_looks_comes_of_a_daemon_that_is_only_observed() {
        let (desired, mut state) = (Desired { management: Management::Observed, ..desired() }, running());
        assert_eq!(state.decide(&desired, 0, 0), Action::Sync(vec![]));
        let differs = Look::Seen(seen(Some(1 << 30), &[]));
        state.looked(differs, false, &desired, 0, RHYTHM);
        state.restart = true;
        for now in [1, 8_000] {
            let expected = if now < 8_000 { Action::Wait(8_000) } else { Action::Sync(vec![]) };
            assert_eq!(state.decide(&desired, 0, now), expected);
            let stopped = Desired { running: false, multi_user: true, ..desired.clone() };
            assert_eq!(state.decide(&stopped, 0, now), expected, "whatever the rest of its spec says");
        }
        assert_eq!(state.phase(&desired, 1), Phase::Observed);
        state.lost("gone".into(), 9_000);
        assert_eq!(state.phase(&desired, 9_000), Phase::Absent);
        assert_eq!(state.decide(&desired, 0, 9_000), Action::Search);
        state.searched(Ok(None), 9_000);
        assert_eq!(state.decide(&desired, 0, 9_001), Action::Wait(14_000), "looked for again, never started");
    }

    #[test]
    fn what_cannot_be_read_is_not_ready() {
        let (desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
        state.looked(Look::Busy("others use it".into()), false, &desired, 1, RHYTHM);
        assert_eq!(state.phase(&desired, 1), Phase::Applying);
    }

    #[test]
    fn a_server_of_another_user_is_replaced_only_when_it_serves_nobody() {
        let (mut desired, mut state) = (desired(), running());
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 0, RHYTHM);
        desired.server_uid = 1000;
        assert!(!state.is_ready(&desired), "clients of uid 1000 would wait");
        assert_eq!(state.decide(&desired, 1, 1), Action::Wait(8_000));
        assert_eq!(state.decide(&desired, 0, 1), Action::StartServer(1000));
        // Asked once: a daemon that keeps the old server is not asked again and again.
        state.server_asked(1);
        state.looked(Look::Seen(seen(Some(4 << 30), &[(20, "ACTIVE")])), false, &desired, 2, RHYTHM);
        assert_eq!(state.decide(&desired, 0, 2), Action::Wait(8_002));
    }
}
