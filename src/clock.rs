//! The time, passed to whatever needs it: only this file reads the wall clock.

#![allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;
use uuid::Uuid;

/// A source of the time; cheap to copy.
#[derive(Debug, Clone, Copy)]
pub struct Clock(ClockSource);

#[derive(Debug, Clone, Copy)]
enum ClockSource {
    System,
    Tokio { epoch: SystemTime, began: Instant },
}

impl Clock {
    /// The wall clock.
    pub fn system() -> Self {
        Self(ClockSource::System)
    }

    /// A clock that starts at this Unix time and advances with tokio's, which tests can pause.
    pub fn on_tokio_time(epoch_ms: u64) -> Self {
        Self(ClockSource::Tokio {
            epoch: UNIX_EPOCH + Duration::from_millis(epoch_ms),
            began: Instant::now(),
        })
    }

    /// Unix time in milliseconds; 0 while the clock is before 1970, as on a host whose battery is empty.
    pub fn unix_ms(self) -> i64 {
        ms_of(self.now())
    }

    /// Returns true if the clock is before 1970, where libraries have no date to give and panic.
    pub fn is_before_1970(self) -> bool {
        self.now() < UNIX_EPOCH
    }

    /// Makes an ID of version 7, which begins with the time: IDs sort in the order of their creation, as long as the clock goes forward.
    pub fn new_id(self) -> Uuid {
        match self.0 {
            ClockSource::System => id_at(SystemTime::now()),
            ClockSource::Tokio { .. } => id_of_ms(self.unix_ms()),
        }
    }

    fn now(self) -> SystemTime {
        match self.0 {
            ClockSource::System => SystemTime::now(),
            ClockSource::Tokio { epoch, began } => epoch + began.elapsed(),
        }
    }
}

fn ms_of(time: SystemTime) -> i64 {
    let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

/// Makes an ID from a time. IDs of one time before 1970 are in no order, since the library panics at such a time.
fn id_at(time: SystemTime) -> Uuid {
    if time >= UNIX_EPOCH { Uuid::now_v7() } else { id_of_ms(0) }
}

/// Makes an ID from a time in milliseconds. IDs of one millisecond are in no order.
fn id_of_ms(ms: i64) -> Uuid {
    let mut random = [0; 10];
    // Without randomness, two IDs of one millisecond are equal: the database refuses the second operation.
    if let Err(error) = getrandom::fill(&mut random) {
        tracing::warn!(%error, "no randomness for an ID");
    }
    uuid::Builder::from_unix_timestamp_millis(ms.unsigned_abs(), &random).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_before_1970_reads_zero() {
        assert_eq!(ms_of(UNIX_EPOCH - Duration::from_secs(86_400)), 0);
        assert_eq!(ms_of(UNIX_EPOCH + Duration::from_millis(7)), 7);
    }

    #[test]
    fn ids_are_made_before_1970_too() {
        let early = UNIX_EPOCH - Duration::from_secs(86_400);
        let ids = [id_at(early), id_at(early), id_at(SystemTime::now())];
        assert!(ids[0] != ids[1] && ids[2] > ids[0] && ids[2] > ids[1], "{ids:?}");
        assert!(ids.iter().all(|id| id.get_version_num() == 7), "{ids:?}");
        let clock = Clock::system();
        assert!(clock.new_id() < clock.new_id());
    }

    #[tokio::test]
    async fn virtual_clock_advances_with_tokio() {
        let clock = Clock::on_tokio_time(1_000);
        let (time, id) = (clock.unix_ms(), clock.new_id());
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert!(time >= 1_000 && clock.unix_ms() >= time + 5);
        assert!(id < clock.new_id());
    }
}
