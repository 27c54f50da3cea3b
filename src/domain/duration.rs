//! Durations as people write them.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

use super::InvalidValue;

/// Reads `90`, `90s`, `15m`, `24h`, `7d`, `2w`, `1h 30m`: a bare number is seconds, a day has 24 hours.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    let refused = || {
        let shown: String = text.chars().take(40).collect();
        InvalidValue(format!(
            "{shown:?} is not a duration: give seconds, or a time as in \"90s\", \"15m\", \"24h\" or \"7d\""
        ))
    };
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(Duration::from_secs).map_err(|_| refused());
    }
    // ISO 8601 and signs are read by the crate, and nobody types them here.
    if !text.starts_with(|c: char| c.is_ascii_digit()) || text.contains([',', ':']) {
        return Err(refused());
    }
    let span: Span = text.parse().map_err(|_| refused())?;
    if span.get_months() != 0 || span.get_years() != 0 {
        return Err(refused());
    }
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| refused())?;
    Duration::try_from(duration).map_err(|_| refused())
}

/// Reads a duration in whole seconds.
pub fn parse_seconds<T: TryFrom<u64>>(text: &str) -> Result<T, InvalidValue> {
    let duration = parse_duration(text)?;
    let refused = |why: &str| InvalidValue(format!("{text:?} is {why}"));
    if duration.subsec_nanos() != 0 {
        return Err(refused("not a whole number of seconds"));
    }
    T::try_from(duration.as_secs()).map_err(|_| refused("too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_durations_are_read() {
        for (texts, seconds) in [
            (&["90", "90s", "90 s", "1m 30s", "1m30s", "1.5m"][..], 90),
            (&["24h", "1d", "86400", "1440m", "24 hours"], 86_400),
            (&["7d", "1w", "7 days"], 604_800),
            (&["0", "0s"], 0),
        ] {
            for text in texts {
                assert_eq!(parse_seconds::<u64>(text), Ok(seconds), "{text}");
            }
        }
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
    }

    #[test]
    fn other_durations_are_refused() {
        for text in [
            "",
            "s",
            "-5s",
            "+5s",
            "5x",
            "h1",
            "P1D",
            "1mo",
            "1y",
            "nan",
            "1,5h",
            "99999999999999999999",
            "5s ago",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert!(parse_seconds::<u32>("250ms").is_err());
        assert!(parse_seconds::<u32>("200y").is_err());
        assert!(parse_seconds::<u32>("60000d").is_err());
    }
}
