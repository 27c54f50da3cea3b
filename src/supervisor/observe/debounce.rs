//! Debouncing of the polls that log lines request: soon, but not ten times a second forever. Pure.

/// Pause from a log line to the poll that it triggers: lines come in bursts.
const DEBOUNCE_MS: i64 = 30;
/// Shortest pause between a poll and the next one that a log line requests.
const GAP_MS: i64 = 100;
/// Cost of a poll that a log line requests. Costs may add up to [`CREDIT_MS`] in advance. This allows nine polls a second for
/// some seconds, and about six a second for as long as lines come, which is often enough for each change to be seen within
/// 250 ms.
const COST_MS: i64 = 160;
const CREDIT_MS: i64 = 1_000;

/// Schedule of the polls that log lines request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PollDebounce {
    polled_at: i64,
    at: Option<i64>,
    /// Time at which the cost of all past polls is paid.
    paid_at: i64,
}

impl PollDebounce {
    /// Requests a poll, since a log line shows that something has happened.
    pub(crate) fn wake(&mut self, now: i64) {
        let at = (self.polled_at + GAP_MS).max(self.paid_at - CREDIT_MS).max(now + DEBOUNCE_MS);
        self.at = Some(self.at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Returns the time of the requested poll, or the far future if none is requested.
    pub(crate) fn at(&self) -> i64 {
        self.at.unwrap_or(i64::MAX)
    }

    /// Notes that a poll has ended.
    pub(crate) fn polled(&mut self, now: i64) {
        if self.at.take().is_some() {
            self.paid_at = self.paid_at.max(now) + COST_MS;
        }
        self.polled_at = now;
    }

    /// Drops the request.
    pub(crate) fn forget(&mut self) {
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of polls between two times if lines come all the time and each poll takes 10 ms.
    fn polls(debounce: &mut PollDebounce, from: i64, to: i64) -> usize {
        let (mut now, mut count) = (from, 0);
        loop {
            debounce.wake(now);
            now = now.max(debounce.at()) + 10;
            if now >= to {
                return count;
            }
            debounce.polled(now);
            count += 1;
        }
    }

    #[test]
    fn wakes_are_debounced_to_six_per_second() {
        let mut debounce = PollDebounce::default();
        debounce.wake(10_000);
        assert_eq!(debounce.at(), 10_030, "after a quiet time");
        debounce.wake(10_020);
        assert_eq!(debounce.at(), 10_030, "once for a burst");
        debounce.polled(10_040);
        assert_eq!(debounce.at(), i64::MAX);
        debounce.wake(10_041);
        assert_eq!(debounce.at(), 10_140);
        let mut debounce = PollDebounce::default();
        let first = polls(&mut debounce, 100_000, 101_000);
        assert!((7..=10).contains(&first), "{first} in the first second");
        let minute = polls(&mut debounce, 101_000, 161_000);
        assert!((365..=385).contains(&minute), "{minute} in the minute after it");
        debounce.forget();
        debounce.wake(500_000);
        assert_eq!(debounce.at(), 500_030, "it was quiet again");
    }
}
