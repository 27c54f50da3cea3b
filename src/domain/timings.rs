//! Pauses and deadlines that no operator has to set, in one place so that tests can pass shorter ones.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Pauses and deadlines, in milliseconds.
///
/// `[timings]` in the configuration of a simulated host overrides them; on a real host they have the values here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timings {
    /// Longest pause between two readings of the GPUs and of the surroundings of the daemons, and between two polls of a daemon whose logs
    /// do not report every change.
    pub refresh_ms: u32,
    /// Longest pause between two readings of the processes on the GPUs: their memory, and those outside MPS.
    pub processes_ms: u32,
    /// Pause before something that is blocked is tried again: a start, a probe, a compute mode.
    pub blocked_retry_ms: u32,
    /// Pause between two polls of a daemon that does not answer.
    pub hung_poll_ms: u32,
    /// Pause after the second of several deaths of a daemon; it doubles with each further one.
    pub backoff_first_ms: u32,
    /// Longest pause after the death of a daemon.
    pub backoff_longest_ms: u32,
    /// Pause between two checks of a drain while no process of it ends.
    pub drain_poll_ms: u32,
    /// Longest time for one call of the GPU driver.
    pub driver_call_ms: u32,
    /// Pause between two attempts to find a driver that was missing at the start.
    pub driver_wait_ms: u32,
    /// Pause after which an idle stream sends a heartbeat.
    pub stream_heartbeat_ms: u32,
    /// Pause between two releases of freed memory to the system.
    pub release_memory_ms: u32,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            refresh_ms: 8_000,
            processes_ms: 1_500,
            blocked_retry_ms: 5_000,
            hung_poll_ms: 1_000,
            backoff_first_ms: 1_000,
            backoff_longest_ms: 60_000,
            drain_poll_ms: 2_000,
            driver_call_ms: 5_000,
            driver_wait_ms: 2_000,
            stream_heartbeat_ms: 15_000,
            release_memory_ms: 10_000,
        }
    }
}

impl Timings {
    /// Returns a number of milliseconds as a duration.
    pub fn duration(milliseconds: u32) -> Duration {
        Duration::from_millis(milliseconds.into())
    }

    /// Pause before a blocked start is retried, in milliseconds of unix time.
    pub fn blocked_retry(&self) -> i64 {
        self.blocked_retry_ms.into()
    }

    /// Pause after this many deaths in a row, in milliseconds.
    pub fn backoff(&self, deaths: usize) -> i64 {
        match deaths {
            0 | 1 => 0,
            several => {
                (i64::from(self.backoff_first_ms) << (several - 2).min(6)).min(self.backoff_longest_ms.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_its_longest() {
        let pauses: Vec<i64> = (0..10).map(|deaths| Timings::default().backoff(deaths)).collect();
        assert_eq!(pauses, [0, 0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
    }
}
