//! Time limit of the first echo of a control process: as long as the program is known to take.
//!
//! A control program on a network file system, under a tracer or behind a scanner takes the same long time at each start. Closing its
//! input early throws its answer away and starts a process that is as slow, so the wait follows the times of earlier sessions.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The wait while nothing is known. Alone the first echo takes about 1 ms (recording 15); too short costs a control
/// process, too long delays a poll.
pub(super) const SHORTEST: Duration = Duration::from_millis(150);
/// Part of the session's time that is left for a control process to end after its input was closed.
const RESERVE: Duration = Duration::from_millis(300);

/// Time until the first echo, over all sessions with a daemon.
#[derive(Debug, Default)]
pub(super) struct EchoTime(AtomicU64);

impl EchoTime {
    /// Returns the longest wait for the first echo when the session has this much time left.
    pub(super) fn timeout(&self, left: Duration) -> Duration {
        let usual = SHORTEST.max(self.last() * 2);
        usual.min(left.saturating_sub(RESERVE).max(left / 2))
    }

    /// A first echo came after this time. One fast session does not make a slow program fast.
    pub(super) fn record(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.0.store(took.max(self.0.load(Ordering::Relaxed) / 2), Ordering::Relaxed);
    }

    /// Returns the time of the last first echo, or half of that before if it is longer.
    pub(super) fn last(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn timeout_follows_the_echo_time() {
        let echo = EchoTime::default();
        assert_eq!(echo.timeout(ms(5_000)), SHORTEST);
        echo.record(ms(600));
        assert_eq!(echo.timeout(ms(5_000)), ms(1_200));
        for expected in [600, 300, 150, 150] {
            echo.record(ms(1));
            assert_eq!(echo.timeout(ms(5_000)), ms(expected));
        }
    }

    #[test]
    fn timeout_leaves_time_before_the_deadline() {
        let echo = EchoTime::default();
        assert_eq!(echo.timeout(ms(100)), ms(50));
        echo.record(ms(2_000));
        assert_eq!(echo.timeout(ms(3_000)), ms(2_700));
        assert_eq!(echo.timeout(ms(60_000)), ms(4_000));
        assert_eq!(echo.timeout(ms(0)), ms(0));
    }
}
