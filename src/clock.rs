//! The wall clock, read at the edges only: everything below takes the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

/// Unix time in milliseconds; 0 while the clock is before 1970, as on a host whose battery is empty.
pub fn unix_ms() -> i64 {
    ms_of(SystemTime::now())
}

fn ms_of(time: SystemTime) -> i64 {
    let elapsed = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX)
}

/// Whether the clock is before 1970, where libraries have no date to give and panic.
pub fn is_before_1970() -> bool {
    SystemTime::now() < UNIX_EPOCH
}

/// A new ID of version 7, which begins with the time: in the order in which they are made, as long as the clock goes forward.
pub fn new_id() -> Uuid {
    id_at(SystemTime::now())
}

/// IDs of one time before 1970 are in no order, and the library panics at such a time.
#[allow(clippy::disallowed_methods, reason = "the one place that reads the clock")]
fn id_at(time: SystemTime) -> Uuid {
    if time >= UNIX_EPOCH {
        return Uuid::now_v7();
    }
    let mut random = [0; 10];
    // Without randomness these IDs are alike: the second of an operation is refused by the database.
    if let Err(error) = getrandom::fill(&mut random) {
        tracing::warn!(%error, "no randomness for an ID");
    }
    uuid::Builder::from_unix_timestamp_millis(0, &random).into_uuid()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        assert!(new_id() < new_id());
    }
}
