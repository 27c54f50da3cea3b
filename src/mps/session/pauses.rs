//! The pauses of a session whose control processes are turned away for other callers.

use std::time::Duration;

use tokio::time::Instant;

use super::error::SessionError;

/// The first pause after being turned away; each later one is up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause beside callers who come and go.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Attempts from which a session that another program holds open is more likely than many short ones; pauses grow again.
const HELD_OPEN: u32 = 16;
/// The longest pause from then on.
const LONGEST_PAUSE_HELD: Duration = Duration::from_millis(256);

/// Pauses between attempts, random so that callers do not meet again.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Attempts that were turned away.
    pub(super) attempts: u32,
    /// Description of how the last attempt ended.
    last: String,
    /// True if any attempt reported that it was turned away.
    said_so: bool,
}

impl Pauses {
    /// Waits before the next attempt; gives up where that would be past the deadline.
    pub(super) async fn pause(
        &mut self,
        deadline: Instant,
        last: String,
        said_so: bool,
    ) -> Result<(), SessionError> {
        self.attempts += 1;
        self.last = last;
        self.said_so |= said_so;
        let ceiling = match self.attempts.checked_sub(HELD_OPEN) {
            None => (FIRST_PAUSE * 2u32.saturating_pow(self.attempts)).min(LONGEST_PAUSE),
            Some(more) => (LONGEST_PAUSE * 2u32.saturating_pow(more.min(8))).min(LONGEST_PAUSE_HELD),
        };
        // A pause without jitter is still a pause, should the system have no randomness to give.
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        let pause = ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX)).max(FIRST_PAUSE / 2);
        if Instant::now() + pause >= deadline {
            return Err(self.given_up());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Returns the error for a deadline that comes in a pause: a daemon that turns callers away is well.
    pub(super) fn given_up(&mut self) -> SessionError {
        let last = std::mem::take(&mut self.last);
        SessionError::Busy { attempts: self.attempts, last, said_so: self.said_so }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(5);

    /// The pauses of a caller who is turned away up to the deadline, and the error that it ends with.
    async fn turned_away() -> (Vec<Duration>, SessionError) {
        let (mut pauses, began) = (Pauses::default(), Instant::now());
        let mut made = Vec::new();
        loop {
            let before = Instant::now();
            match pauses.pause(began + DEADLINE, "exit status: 0".to_owned(), made.len() == 3).await {
                Ok(()) => made.push(before.elapsed()),
                Err(error) => return (made, error),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_callers_pause_with_growing_jitter() {
        let began = Instant::now();
        let (pauses, error) = turned_away().await;
        // The timer rounds up to the next millisecond, also the last pause before the deadline.
        assert!(began.elapsed() <= DEADLINE + Duration::from_millis(2), "it gives up before its deadline");
        let SessionError::Busy { attempts, last, said_so: true } = error else { panic!("{error}") };
        assert_eq!((usize::try_from(attempts), last.as_str()), (Ok(pauses.len() + 1), "exit status: 0"));
        for (attempt, pause) in (1u32..).zip(&pauses) {
            let ceiling = match attempt.checked_sub(HELD_OPEN) {
                None => LONGEST_PAUSE.min(FIRST_PAUSE * (1 << attempt.min(10))),
                Some(_) => LONGEST_PAUSE_HELD,
            };
            // The timer rounds up to the next millisecond.
            let ceiling = ceiling + Duration::from_millis(2);
            assert!(*pause >= FIRST_PAUSE / 2 && *pause <= ceiling, "{pause:?} in attempt {attempt}");
        }
        let held_open = pauses.get(usize::try_from(HELD_OPEN).expect("small")..).expect("a long session");
        assert!(held_open.iter().any(|pause| *pause > LONGEST_PAUSE), "{held_open:?}");
        let (others, _) = turned_away().await;
        assert_ne!(pauses, others, "two callers do not meet again and again");
    }
}
