//! When a line of a log wakes a look: soon, and yet not ten times a second for ever. Pure.

/// Pause from a log line to the look that it asks for: lines come in bursts.
const SETTLE_MS: i64 = 30;
/// Pause from a look to the next one that a log line asks for.
const GAP_MS: i64 = 100;
/// What each such look costs, and what may be run up: nine in a second for some seconds, and some six a second for as long as
/// lines come, which is often enough for each change to be seen within 250 ms.
const COST_MS: i64 = 160;
const CREDIT_MS: i64 = 1_000;

/// What log lines ask for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wakes {
    looked_at: i64,
    at: Option<i64>,
    /// When everything that was run up is paid.
    paid_at: i64,
}

impl Wakes {
    /// A line tells that something has happened.
    pub(super) fn wake(&mut self, now: i64) {
        let at = (self.looked_at + GAP_MS).max(self.paid_at - CREDIT_MS).max(now + SETTLE_MS);
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    /// When a look is asked for; far away when none is.
    pub(super) fn at(&self) -> i64 {
        self.at.unwrap_or(i64::MAX)
    }

    /// A look ended.
    pub(super) fn looked(&mut self, now: i64) {
        if self.at.take().is_some() {
            self.paid_at = self.paid_at.max(now) + COST_MS;
        }
        self.looked_at = now;
    }

    /// Nothing is asked for any more.
    pub(super) fn forget(&mut self) {
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many looks are made in so long while lines come all the time, each look taking 10 ms.
    fn looks(wakes: &mut Wakes, from: i64, to: i64) -> usize {
        let (mut now, mut count) = (from, 0);
        loop {
            wakes.wake(now);
            now = now.max(wakes.at()) + 10;
            if now >= to {
                return count;
            }
            wakes.looked(now);
            count += 1;
        }
    }

    #[test]
    fn a_line_is_followed_up_at_once_and_a_flood_six_times_a_second() {
        let mut wakes = Wakes::default();
        wakes.wake(10_000);
        assert_eq!(wakes.at(), 10_030, "after a quiet time");
        wakes.wake(10_020);
        assert_eq!(wakes.at(), 10_030, "once for a burst");
        wakes.looked(10_040);
        assert_eq!(wakes.at(), i64::MAX);
        wakes.wake(10_041);
        assert_eq!(wakes.at(), 10_140);
        let mut wakes = Wakes::default();
        let first = looks(&mut wakes, 100_000, 101_000);
        assert!((7..=10).contains(&first), "{first} in the first second");
        let minute = looks(&mut wakes, 101_000, 161_000);
        assert!((365..=385).contains(&minute), "{minute} in the minute after it");
        wakes.forget();
        wakes.wake(500_000);
        assert_eq!(wakes.at(), 500_030, "it was quiet again");
    }
}
