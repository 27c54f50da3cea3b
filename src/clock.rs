//! The wall clock, read at the edges only: everything below takes the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_before_1970_reads_zero() {
        assert_eq!(ms_of(UNIX_EPOCH - Duration::from_secs(86_400)), 0);
        assert_eq!(ms_of(UNIX_EPOCH + Duration::from_millis(7)), 7);
    }
}
