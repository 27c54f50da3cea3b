//! Values of options, refused in words that say what to give.

use std::time::Duration;

use clap::ValueEnum;
use jiff::tz::TimeZone;

use crate::clock::Clock;
use crate::domain::InvalidValue;
use crate::domain::daemon::OvercommitRatio;
use crate::domain::device_index::{DeviceIndex, PART_SPELLING};
use crate::domain::duration::parse_duration;
use crate::domain::moment::parse_moment;
use crate::domain::percentage::ThreadPercentage;
use crate::domain::rfc3339;
use crate::host::user::number_of_user;

/// The number of an incident.
pub(super) fn incident_id(text: &str) -> Result<i64, InvalidValue> {
    text.parse().map_err(|_| {
        InvalidValue(format!(
            "{text:?} is not an incident's ID: give its number, as `mps-manager incident list` shows it"
        ))
    })
}

/// A whole number, which the server judges.
pub(super) fn whole_number(text: &str) -> Result<u32, InvalidValue> {
    text.parse().map_err(|_| {
        InvalidValue(format!("{text:?} is not accepted here: give a whole number from 1, as in 8"))
    })
}

/// A thread percentage, with or without a percent sign.
pub(super) fn thread_percentage(text: &str) -> Result<f64, InvalidValue> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let percentage = match number.parse() {
        Ok(number) => ThreadPercentage::from_f64(number)?,
        Err(_) => ThreadPercentage::parse(number)?,
    };
    Ok(f64::from(percentage.tenths()) / 10.0)
}

/// Parses an over-commit ratio: a number from 1.
pub(super) fn overcommit_ratio(text: &str) -> Result<f64, InvalidValue> {
    let ratio: f64 = text.parse().map_err(|_| {
        InvalidValue(format!("{text:?} is not an over-commit ratio: give a number from 1, as in 1.5"))
    })?;
    OvercommitRatio::try_from(ratio).map(f64::from)
}

/// Parses a time to live: at least one second.
pub(super) fn time_to_live(text: &str) -> Result<Duration, InvalidValue> {
    let ttl = parse_duration(text)?;
    if ttl < Duration::from_secs(1) {
        return Err(InvalidValue(format!(
            "{text:?} is not a time to live: give at least 1s, for example 48h"
        )));
    }
    Ok(ttl)
}

/// A user by name or number.
pub(super) fn user(text: &str) -> Result<u32, String> {
    text.parse().or_else(|_| number_of_user(text))
}

/// Returns the word of a choice, which the API uses too.
pub(super) fn choice(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A time in the past, in the format of the API.
pub(super) fn moment(text: &str) -> Result<String, InvalidValue> {
    parse_moment(text, Clock::system().unix_ms(), &TimeZone::system()).map(rfc3339::format)
}

/// Returns the time that is this long ago, in the format of the API.
pub(super) fn time_ago(ago: Duration) -> String {
    let ago = i64::try_from(ago.as_millis()).unwrap_or(i64::MAX);
    rfc3339::format(Clock::system().unix_ms().saturating_sub(ago).max(0))
}

/// Parses a GPU or a part of it by its place, as `0` or `0/mig1`.
pub(super) fn device_index(text: &str) -> Result<DeviceIndex, String> {
    DeviceIndex::parse(text)
        .ok_or_else(|| format!("{text:?} is no GPU: an index is written as 0, and {PART_SPELLING}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_values_are_named_with_a_remedy() {
        let refusals = [
            ("abc", "incident list", incident_id("abc").map(drop)),
            ("1.5", "a whole number from 1", whole_number("1.5").map(drop)),
            ("-1", "a whole number from 1", whole_number("-1").map(drop)),
            ("a quarter", "up to 100", thread_percentage("a quarter").map(drop)),
            ("-5", "up to 100", thread_percentage("-5").map(drop)),
            ("NaN", "up to 100", thread_percentage("nan").map(drop)),
            ("NaN", "a number from 1", overcommit_ratio("nan").map(drop)),
            ("twice", "a number from 1", overcommit_ratio("twice").map(drop)),
            ("0", "at least 1s", time_to_live("0").map(drop)),
            ("0.5s", "at least 1s", time_to_live("0.5s").map(drop)),
            ("-5s", "is not a duration", time_to_live("-5s").map(drop)),
            ("1y", "is not a duration", time_to_live("1y").map(drop)),
        ];
        for (value, remedy, refused) in refusals {
            let words = refused.expect_err(value).to_string();
            assert!(words.contains(value) && words.contains(remedy), "{words}");
        }
    }

    #[test]
    fn percent_sign_may_be_given() {
        assert_eq!(thread_percentage("25%"), thread_percentage("25"));
        assert_eq!(thread_percentage("33.3"), Ok(33.3));
        assert!(thread_percentage("25%%").is_err() && thread_percentage("%").is_err());
    }
}
