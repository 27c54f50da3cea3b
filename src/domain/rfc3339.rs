//! Instants on the wire: RFC 3339 in UTC with milliseconds, as in `2026-11-25T05:03:49.123Z`.
//!
//! In memory and in SQLite an instant is an `i64` of unix milliseconds; serde writes it as text with
//! `#[serde(with = "rfc3339")]`, or `#[serde(with = "rfc3339::option")]`. Any RFC 3339 text with an offset can be read.

use jiff::Timestamp;
use serde::de::{Deserializer, Error, Visitor};
use serde::ser::Serializer;

use super::InvalidValue;

/// Returns the text of an instant that is given in unix milliseconds.
pub fn format(unix_ms: i64) -> String {
    // An instant beyond the year 9999 has no text: the nearest instant that has one is shown.
    let instant = Timestamp::from_millisecond(unix_ms).unwrap_or(if unix_ms < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    });
    format!("{instant:.3}")
}

/// Reads an instant into unix milliseconds, rounding down.
pub fn parse(text: &str) -> Result<i64, InvalidValue> {
    text.parse::<Timestamp>().map(Timestamp::as_millisecond).map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        InvalidValue(format!(
            "{shown:?} is not an RFC 3339 time before 9999-12-30: write it as YYYY-MM-DDThh:mm:ssZ"
        ))
    })
}

/// Writes unix milliseconds as RFC 3339.
pub fn serialize<S: Serializer>(unix_ms: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*unix_ms))
}

/// Reads RFC 3339 into unix milliseconds.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    struct Rfc3339Visitor;
    impl Visitor<'_> for Rfc3339Visitor {
        type Value = i64;
        fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.write_str("an RFC 3339 time")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<i64, E> {
            parse(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Rfc3339Visitor)
}

/// Instants that may be missing, which are `null` on the wire.
pub mod option {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes unix milliseconds as RFC 3339, or `null`.
    pub fn serialize<S: Serializer>(unix_ms: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
        match unix_ms {
            Some(time) => serializer.serialize_str(&super::format(*time)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads RFC 3339 or `null`.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
        let text = Option::<std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.map(|text| super::parse(&text).map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Both {
        #[serde(with = "super")]
        at: i64,
        #[serde(with = "super::option", default)]
        until: Option<i64>,
    }

    #[test]
    fn times_are_written_in_utc_with_milliseconds() {
        let both = Both { at: 1_764_047_029_120, until: None };
        let text = r#"{"at":"2025-11-25T05:03:49.120Z","until":null}"#;
        assert_eq!(serde_json::to_string(&both).expect("JSON"), text);
        assert_eq!(serde_json::from_str::<Both>(text).expect("read"), both);
        assert_eq!(format(-1), "1969-12-31T23:59:59.999Z");
        assert_eq!(format(i64::MAX), "9999-12-30T22:00:00.999Z");
    }

    #[test]
    fn offsets_are_read_and_other_texts_refused() {
        assert_eq!(parse("2025-11-25T06:03:49.12+01:00"), Ok(1_764_047_029_120));
        for text in ["1764047029120", "2025-11-25", "2025-11-25T05:03:49", "yesterday", ""] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(serde_json::from_str::<Both>(r#"{"at":1764047029120}"#).is_err());
    }
}
