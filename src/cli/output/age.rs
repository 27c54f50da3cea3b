//! Age of a time in the past, written as kubectl does.

use crate::clock::Clock;

/// Returns the age in at most two units, the second only while the first is small: `42s`, `3m`, `5h12m`, `8d`.
pub(in crate::cli) fn age(since: i64) -> String {
    age_at(since, Clock::system().unix_ms())
}

fn age_at(since: i64, now: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let seconds = ((now - since) / 1000).max(0);
    let two = |first: i64, first_unit: &str, second: i64, second_unit: &str| {
        if second == 0 {
            format!("{first}{first_unit}")
        } else {
            format!("{first}{first_unit}{second}{second_unit}")
        }
    };
    if seconds < 2 * MINUTE {
        format!("{seconds}s")
    } else if seconds < 10 * MINUTE {
        two(seconds / MINUTE, "m", seconds % MINUTE, "s")
    } else if seconds < 3 * HOUR {
        format!("{}m", seconds / MINUTE)
    } else if seconds < 8 * HOUR {
        two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m")
    } else if seconds < 2 * DAY {
        format!("{}h", seconds / HOUR)
    } else if seconds < 8 * DAY {
        two(seconds / DAY, "d", seconds % DAY / HOUR, "h")
    } else {
        format!("{}d", seconds / DAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_at_most_two_units() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (3_600, "60m"),
            (10_800, "3h"),
            (11_520, "3h12m"),
            (90_000, "25h"),
            (259_200, "3d"),
            (270_000, "3d3h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age_at(1_000_000, 1_000_000 + seconds * 1000), text, "{seconds}");
        }
    }
}
