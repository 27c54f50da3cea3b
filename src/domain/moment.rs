//! Times in the past as people write them.

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};

use super::duration::parse_duration;
use super::{InvalidValue, rfc3339};

/// Reads a time into unix milliseconds: a duration before now as `2h` or `2 h ago`, `today`, `yesterday`, a day or a time of the given
/// zone as `2026-11-25` or `2026-11-25 14:00`, or RFC 3339.
pub fn parse_moment(text: &str, now: i64, zone: &TimeZone) -> Result<i64, InvalidValue> {
    let text = text.trim();
    let word = text.to_ascii_lowercase();
    if let Ok(ago) = parse_duration(word.strip_suffix("ago").unwrap_or(&word).trim_end()) {
        return Ok(now.saturating_sub(i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)).max(0));
    }
    if let Ok(at) = rfc3339::parse(text) {
        return Ok(at);
    }
    let midnight_before = |days: i64| {
        let now = Timestamp::from_millisecond(now).ok()?.to_zoned(zone.clone());
        Some(now.date().checked_sub(days.days()).ok()?.at(0, 0, 0, 0))
    };
    let civil = match word.as_str() {
        "now" => return Ok(now),
        "today" => midnight_before(0),
        "yesterday" => midnight_before(1),
        _ => text
            .parse::<Date>()
            .ok()
            .filter(|_| text.len() <= 10)
            .map(|day| day.at(0, 0, 0, 0))
            .or_else(|| text.parse::<DateTime>().ok()),
    };
    let at = civil.and_then(|civil| civil.to_zoned(zone.clone()).ok());
    at.map(|at| at.timestamp().as_millisecond()).ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        InvalidValue(format!(
            "{shown:?} is not a time: give for example \"2h\", \"yesterday\", \"2026-11-25 14:00\" or an RFC 3339 time"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let zone = TimeZone::fixed(jiff::tz::offset(1));
        let now = rfc3339::parse("2026-11-25T00:30:00+01:00").expect("a time");
        for (text, at) in [
            ("2h", "2026-11-24T21:30:00Z"),
            ("2 h ago", "2026-11-24T21:30:00Z"),
            ("90", "2026-11-24T23:28:30Z"),
            ("now", "2026-11-24T23:30:00Z"),
            ("today", "2026-11-24T23:00:00Z"),
            (" Yesterday ", "2026-11-23T23:00:00Z"),
            ("2026-11-20", "2026-11-19T23:00:00Z"),
            ("2026-11-20 14:00", "2026-11-20T13:00:00Z"),
            ("2026-11-20T14:00:05Z", "2026-11-20T14:00:05Z"),
        ] {
            assert_eq!(parse_moment(text, now, &zone), rfc3339::parse(at), "{text}");
        }
        for text in ["", "tomorrow", "-2h", "25.11.2026", "2026-13-01"] {
            let refused = parse_moment(text, now, &zone).expect_err(text).to_string();
            assert!(refused.contains("yesterday"), "{refused}");
        }
    }
}
