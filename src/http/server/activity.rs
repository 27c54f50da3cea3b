//! Activity of a connection and the timeout that applies to it: derived from its bytes and requests, with all times passed in.
//!
//! ```text
//!   accepted ──▶ Head ──── request ────▶ Serving ── last answer sent ──▶ Idle ── first byte (HTTP/1) ──▶ Head
//!                 │ header_timeout         │ nothing taken of an            │ idle_timeout
//!                 ▼                        ▼ answer for write_timeout       ▼
//!               Slow                     Stalled                          Idle
//! ```
//!
//! A request in progress is not limited here: its body and its handler have their own timeouts, and an event stream has none.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Limits;

/// Reason for which the server closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Overdue {
    /// The head of a request, or the handshake before it, did not come in time.
    Slow,
    /// It was idle for too long.
    Idle,
    /// The caller does not read what it was sent.
    Stalled,
    /// The caller resets most of its requests, as in the "rapid reset" attack.
    TakesBack,
}

/// Requests that a caller may reset before they are answered, in addition to as many as it lets be answered.
const MAX_RESETS: u64 = 100;

/// The timeouts of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timeouts {
    pub(super) head: Duration,
    pub(super) idle: Duration,
    pub(super) write: Duration,
}

impl Timeouts {
    pub(super) fn of(limits: &Limits) -> Self {
        let seconds = |value: u32| Duration::from_secs(value.into());
        Self {
            head: seconds(limits.header_timeout_s),
            idle: seconds(limits.idle_timeout_s),
            write: seconds(limits.write_timeout_s),
        }
    }

    /// Returns the interval at which a connection is checked: a timeout is kept to within a quarter of the shortest.
    pub(super) fn check_interval(&self) -> Duration {
        self.head.min(self.idle).min(self.write) / 4
    }
}

/// Activity of a connection.
#[derive(Debug)]
pub(super) struct Activity {
    state: Mutex<ConnectionState>,
}

#[derive(Debug)]
struct ConnectionState {
    doing: ConnectionPhase,
    /// True if requests share the connection (HTTP/2), so that a byte does not start a request.
    multiplexed: bool,
    /// Since when nothing of a response could be sent.
    blocked: Option<Instant>,
    /// Responses with more to send, and since when the caller reads nothing of them: with flow control per request, a caller
    /// can stop reading one response while the connection continues.
    untaken: Vec<(u64, Instant)>,
    /// Requests that were answered, and those reset before.
    answered: u64,
    taken_back: u64,
}

#[derive(Debug)]
enum ConnectionPhase {
    Head { since: Instant },
    Serving { requests: usize },
    Idle { since: Instant },
}

impl Activity {
    pub(super) fn new(now: Instant) -> Self {
        let doing = ConnectionPhase::Head { since: now };
        let state = ConnectionState {
            doing,
            multiplexed: false,
            blocked: None,
            untaken: Vec::new(),
            answered: 0,
            taken_back: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// Notes that bytes arrived.
    pub(super) fn read(&self, now: Instant) {
        let mut state = self.state();
        if !state.multiplexed && matches!(state.doing, ConnectionPhase::Idle { .. }) {
            state.doing = ConnectionPhase::Head { since: now };
        }
    }

    /// Notes that the head of a request is complete.
    pub(super) fn begun(&self, multiplexed: bool) {
        let mut state = self.state();
        state.multiplexed = multiplexed;
        state.doing = match state.doing {
            ConnectionPhase::Serving { requests } => ConnectionPhase::Serving { requests: requests + 1 },
            ConnectionPhase::Head { .. } | ConnectionPhase::Idle { .. } => {
                ConnectionPhase::Serving { requests: 1 }
            }
        };
    }

    /// Notes that a request ended: fully answered, reset, or aborted.
    pub(super) fn ended(&self, answered: bool, now: Instant) {
        let mut state = self.state();
        *(if answered { &mut state.answered } else { &mut state.taken_back }) += 1;
        state.doing = match state.doing {
            ConnectionPhase::Serving { requests } if requests > 1 => {
                ConnectionPhase::Serving { requests: requests - 1 }
            }
            _ => ConnectionPhase::Idle { since: now },
        };
    }

    /// Notes if pending data could be sent.
    pub(super) fn wrote(&self, taken: bool, now: Instant) {
        let mut state = self.state();
        state.blocked = if taken { None } else { state.blocked.or(Some(now)) };
    }

    /// Notes that more of this response can be read by the caller.
    pub(super) fn offered(&self, answer: u64, now: Instant) {
        let mut state = self.state();
        if state.untaken.iter().all(|(other, _)| *other != answer) {
            state.untaken.push((answer, now));
        }
    }

    /// Notes that the caller read more of this response, or that it is complete.
    pub(super) fn taken(&self, answer: u64) {
        self.state().untaken.retain(|(other, _)| *other != answer);
    }

    /// Returns the reason for which the connection must be closed now, if there is one.
    pub(super) fn overdue(&self, timeouts: &Timeouts, now: Instant) -> Option<Overdue> {
        let state = self.state();
        let past = |since: Instant, longest: Duration| now.saturating_duration_since(since) >= longest;
        let untaken = state.untaken.iter().map(|(_, since)| *since);
        if state.blocked.into_iter().chain(untaken).any(|since| past(since, timeouts.write)) {
            return Some(Overdue::Stalled);
        }
        if state.taken_back > state.answered.saturating_add(MAX_RESETS) {
            return Some(Overdue::TakesBack);
        }
        match state.doing {
            ConnectionPhase::Head { since } if past(since, timeouts.head) => Some(Overdue::Slow),
            ConnectionPhase::Idle { since } if past(since, timeouts.idle) => Some(Overdue::Idle),
            _ => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        // Each change is one assignment, so a panic leaves a consistent state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Duration::from_secs(10),
        idle: Duration::from_secs(75),
        write: Duration::from_secs(30),
    };

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn head_timeout_ignores_progress() {
        let start = Instant::now();
        let activity = Activity::new(start);
        for second in 0..10 {
            activity.read(at(start, second));
            assert_eq!(activity.overdue(&TIMEOUTS, at(start, second)), None);
        }
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 10)), Some(Overdue::Slow));
    }

    #[test]
    fn idle_timeout_starts_after_the_last_request() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(true);
        activity.begun(true);
        activity.ended(true, at(start, 5));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 3600)), None, "an event stream");
        activity.ended(true, at(start, 3600));
        // Pings and window updates are not requests.
        activity.read(at(start, 3610));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 3674)), None);
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 3675)), Some(Overdue::Idle));
    }

    #[test]
    fn next_head_starts_with_its_first_byte() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(false);
        activity.ended(true, at(start, 1));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 40)), None);
        activity.read(at(start, 40));
        activity.read(at(start, 49));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 49)), None);
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 50)), Some(Overdue::Slow));
    }

    #[test]
    fn occasional_resets_are_allowed() {
        let start = Instant::now();
        let activity = Activity::new(start);
        for _ in 0..2 * MAX_RESETS {
            for answered in [true, false] {
                activity.begun(true);
                activity.ended(answered, start);
            }
        }
        assert_eq!(activity.overdue(&TIMEOUTS, start), None);
        for _ in 0..=MAX_RESETS {
            activity.begun(true);
            activity.ended(false, start);
        }
        assert_eq!(activity.overdue(&TIMEOUTS, start), Some(Overdue::TakesBack));
    }

    #[test]
    fn unread_response_is_closed_despite_others() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(true);
        activity.begun(true);
        activity.offered(1, at(start, 1));
        activity.offered(2, at(start, 1));
        activity.offered(2, at(start, 20));
        activity.taken(1);
        activity.wrote(true, at(start, 25));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 30)), None);
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 31)), Some(Overdue::Stalled));
        activity.taken(2);
        activity.offered(2, at(start, 31));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 60)), None, "some of it was read");
    }

    #[test]
    fn unread_connection_is_closed() {
        let start = Instant::now();
        let activity = Activity::new(start);
        activity.begun(false);
        activity.wrote(false, at(start, 1));
        activity.wrote(false, at(start, 20));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 30)), None);
        activity.wrote(true, at(start, 30));
        activity.wrote(false, at(start, 31));
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 60)), None, "it read some meanwhile");
        assert_eq!(activity.overdue(&TIMEOUTS, at(start, 61)), Some(Overdue::Stalled));
    }
}
