//! What a connection is doing, and for how long it may: decided without a clock, from what its bytes and requests tell.
//!
//! ```text
//!   accepted ──▶ Head ──── request ────▶ Serving ── last answer sent ──▶ Idle ── first byte (HTTP/1) ──▶ Head
//!                 │ header_timeout         │ nothing taken of an            │ idle_timeout
//!                 ▼                        ▼ answer for write_timeout       ▼
//!               Slow                     Stalled                          Idle
//! ```
//!
//! A request that is under way has no bound here: its body has one of its own, its handler another, and an event stream none.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Limits;

/// Why a connection is closed though nobody asked for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Overdue {
    /// The head of a request, or the handshake before it, did not come in time.
    Slow,
    /// Nothing was asked for a while.
    Idle,
    /// The caller takes nothing of what it was sent.
    Stalled,
    /// The caller takes back most of what it asks for, as only an attack does ("rapid reset").
    TakesBack,
}

/// Requests that a caller may take back before they are answered, beside as many as it lets be answered.
const TAKEN_BACK: u64 = 100;

/// The times that a connection is held to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) head: Duration,
    pub(super) idle: Duration,
    pub(super) write: Duration,
}

impl Patience {
    pub(super) fn of(limits: &Limits) -> Self {
        let seconds = |value: u32| Duration::from_secs(value.into());
        Self {
            head: seconds(limits.header_timeout_s),
            idle: seconds(limits.idle_timeout_s),
            write: seconds(limits.write_timeout_s),
        }
    }

    /// How often a connection is looked at: a bound is kept to within a quarter of the shortest.
    pub(super) fn rhythm(&self) -> Duration {
        self.head.min(self.idle).min(self.write) / 4
    }
}

/// What one connection does at the moment.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    doing: Doing,
    /// Whether requests share the connection, so that a byte does not mean that a request begins.
    multiplexed: bool,
    /// Since when nothing of an answer could be sent.
    blocked: Option<Instant>,
    /// Requests that were answered, and those that were given up before.
    answered: u64,
    taken_back: u64,
}

#[derive(Debug)]
enum Doing {
    Head { since: Instant },
    Serving { requests: usize },
    Idle { since: Instant },
}

impl Activity {
    pub(super) fn new(now: Instant) -> Self {
        let doing = Doing::Head { since: now };
        let state = State { doing, multiplexed: false, blocked: None, answered: 0, taken_back: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Bytes came.
    pub(super) fn read(&self, now: Instant) {
        let mut state = self.state();
        if !state.multiplexed && matches!(state.doing, Doing::Idle { .. }) {
            state.doing = Doing::Head { since: now };
        }
    }

    /// The head of a request is here.
    pub(super) fn begun(&self, multiplexed: bool) {
        let mut state = self.state();
        state.multiplexed = multiplexed;
        state.doing = match state.doing {
            Doing::Serving { requests } => Doing::Serving { requests: requests + 1 },
            Doing::Head { .. } | Doing::Idle { .. } => Doing::Serving { requests: 1 },
        };
    }

    /// A request is over: an answer was sent to its end, or given up, or there was none yet.
    pub(super) fn ended(&self, answered: bool, now: Instant) {
        let mut state = self.state();
        *(if answered { &mut state.answered } else { &mut state.taken_back }) += 1;
        state.doing = match state.doing {
            Doing::Serving { requests } if requests > 1 => Doing::Serving { requests: requests - 1 },
            _ => Doing::Idle { since: now },
        };
    }

    /// Whether what is to be sent could be sent.
    pub(super) fn wrote(&self, taken: bool, now: Instant) {
        let mut state = self.state();
        state.blocked = if taken { None } else { state.blocked.or(Some(now)) };
    }

    /// Whether the connection is to be closed, and why.
    pub(super) fn overdue(&self, patience: &Patience, now: Instant) -> Option<Overdue> {
        let state = self.state();
        let past = |since: Instant, longest: Duration| now.saturating_duration_since(since) >= longest;
        if state.blocked.is_some_and(|since| past(since, patience.write)) {
            return Some(Overdue::Stalled);
        }
        if state.taken_back > state.answered.saturating_add(TAKEN_BACK) {
            return Some(Overdue::TakesBack);
        }
        match state.doing {
            Doing::Head { since } if past(since, patience.head) => Some(Overdue::Slow),
            Doing::Idle { since } if past(since, patience.idle) => Some(Overdue::Idle),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is one assignment: what a panic leaves behind is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(30),
    };

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_head_has_its_time_however_many_bytes_come() {
        let start = Instant::now();
        let activity = Activity::new(start);
        for second in 0..10 {
            activity.read(at(start, second));
            assert_eq!(activity.overdue(&PATIENCE, at(start, second)), None);
        }
        assert_eq!(activity.overdue(&PATIENCE, at(start, 10)), Some(Overdue::Slow));
    }

    #[test]
    fn a_request_has_no_bound_and_after_the_last_one_the_connection_may_rest() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(true);
        activity.begun(true);
        activity.ended(true, at(start, 5));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 3600)), None, "an event stream");
        activity.ended(true, at(start, 3600));
        // Pings and window updates ask for nothing.
        activity.read(at(start, 3610));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 3674)), None);
        assert_eq!(activity.overdue(&PATIENCE, at(start, 3675)), Some(Overdue::Idle));
    }

    #[test]
    fn the_next_head_begins_with_its_first_byte() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(false);
        activity.ended(true, at(start, 1));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 40)), None);
        activity.read(at(start, 40));
        activity.read(at(start, 49));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 49)), None);
        assert_eq!(activity.overdue(&PATIENCE, at(start, 50)), Some(Overdue::Slow));
    }

    #[test]
    fn a_caller_may_take_requests_back_now_and_then() {
        let start = Instant::now();
        let activity = Activity::new(start);
        for _ in 0..2 * TAKEN_BACK {
            for answered in [true, false] {
                activity.begun(true);
                activity.ended(answered, start);
            }
        }
        assert_eq!(activity.overdue(&PATIENCE, start), None);
        for _ in 0..=TAKEN_BACK {
            activity.begun(true);
            activity.ended(false, start);
        }
        assert_eq!(activity.overdue(&PATIENCE, start), Some(Overdue::TakesBack));
    }

    #[test]
    fn a_caller_who_takes_nothing_is_not_waited_for() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(false);
        activity.wrote(false, at(start, 1));
        activity.wrote(false, at(start, 20));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 30)), None);
        activity.wrote(true, at(start, 30));
        activity.wrote(false, at(start, 31));
        assert_eq!(activity.overdue(&PATIENCE, at(start, 60)), None, "it took some meanwhile");
        assert_eq!(activity.overdue(&PATIENCE, at(start, 61)), Some(Overdue::Stalled));
    }
}
