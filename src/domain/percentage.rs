//! Active thread percentages, and the number of SMs that each gives.
//!
//! MPS prints a percentage with one decimal and keeps the old value for anything it dislikes (recording 01), so
//! a percentage is a whole number of tenths here, above 0 and up to 100.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::InvalidValue;
use super::gpu::Gpu;

const REMEDY: &str = "give a number above 0 and up to 100 with at most one decimal, as in 25 or 33.3";

/// An active thread percentage: above 0, up to 100, at most one decimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadPercentage {
    tenths: u16,
}

impl ThreadPercentage {
    /// The whole GPU.
    pub const FULL: Self = Self { tenths: 1000 };

    /// Builds a percentage from tenths of a percent, 1 to 1000.
    pub fn from_tenths(tenths: u16) -> Result<Self, InvalidValue> {
        if (1..=1000).contains(&tenths) {
            return Ok(Self { tenths });
        }
        Err(InvalidValue(format!("{}.{} is not a thread percentage: {REMEDY}", tenths / 10, tenths % 10)))
    }

    /// Parses `25` or `33.3`; refuses signs, exponents, `%`, words and a second decimal.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let refused = || {
            let shown: String = text.chars().take(40).collect();
            InvalidValue(format!("{shown:?} is not a thread percentage: {REMEDY}"))
        };
        let (whole, decimal) = text.split_once('.').unwrap_or((text, "0"));
        let digits =
            |part: &str| !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimal) || decimal.len() != 1 {
            return Err(refused());
        }
        let whole: u16 = whole.parse().map_err(|_| refused())?;
        let decimal: u16 = decimal.parse().map_err(|_| refused())?;
        whole
            .checked_mul(10)
            .and_then(|tenths| tenths.checked_add(decimal))
            .and_then(|tenths| Self::from_tenths(tenths).ok())
            .ok_or_else(refused)
    }

    /// Builds a percentage from a number, which must have at most one decimal.
    pub fn from_f64(value: f64) -> Result<Self, InvalidValue> {
        let tenths = (value * 10.0).round();
        if (1.0..=1000.0).contains(&tenths) && (value * 10.0 - tenths).abs() < 1e-6 {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1 to 1000")]
            return Ok(Self { tenths: tenths as u16 });
        }
        Err(InvalidValue(format!("{value} is not a thread percentage: {REMEDY}")))
    }

    /// The percentage in tenths of a percent.
    pub fn tenths(self) -> u16 {
        self.tenths
    }
}

/// Writes it as MPS prints and accepts it: `25.0`.
impl fmt::Display for ThreadPercentage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tenths / 10, self.tenths % 10)
    }
}

impl Serialize for ThreadPercentage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.tenths) / 10.0)
    }
}

impl<'de> Deserialize<'de> for ThreadPercentage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = ThreadPercentage;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number above 0 and up to 100")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<ThreadPercentage, E> {
                ThreadPercentage::from_f64(value).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<ThreadPercentage, E> {
                let tenths = u16::try_from(value.saturating_mul(10)).unwrap_or(u16::MAX);
                ThreadPercentage::from_tenths(tenths)
                    .map_err(|_| E::custom(format!("{value} is not a thread percentage: {REMEDY}")))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<ThreadPercentage, E> {
                Err(E::custom(format!("{value} is not a thread percentage: {REMEDY}")))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ThreadPercentage, E> {
                Err(E::custom(format!(
                    "the text {text:?} is not a thread percentage: {REMEDY}, without quotes"
                )))
            }
        }

        deserializer.deserialize_any(Number)
    }
}

impl utoipa::PartialSchema for ThreadPercentage {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
        Schema::Object(
            ObjectBuilder::new()
                .schema_type(Type::Number)
                .description(Some("An active thread percentage: above 0, up to 100, at most one decimal."))
                .minimum(Some(utoipa::Number::Float(0.1)))
                .maximum(Some(utoipa::Number::Float(100.0)))
                .build(),
        )
        .into()
    }
}

impl utoipa::ToSchema for ThreadPercentage {
    fn name() -> std::borrow::Cow<'static, str> {
        "ThreadPercentage".into()
    }
}

/// Returns true if the formula of [`sms_for`] was measured on GPUs of this kind (recording 05).
pub fn is_measured(gpu: &Gpu) -> bool {
    gpu.name == "NVIDIA H200" && gpu.sms == Some(132)
}

/// Fewest SMs that MPS gives any client, seen for every percentage from 0.5 to 7.
pub const FEWEST_SMS: u32 = 8;

/// Returns the SMs that a client sees under `percentage` on a GPU of `total` SMs.
///
/// `max(8, floor(percentage × total) rounded down to even)`, checked against recording 05 at 23 percentages on a
/// 132-SM H200. On another SKU it is a prediction.
pub fn sms_for(percentage: ThreadPercentage, total: u32) -> u32 {
    sms_unbounded(percentage, total).max(FEWEST_SMS).min(total)
}

/// Returns the SMs of a percentage before the minimum that MPS gives every client.
pub fn sms_unbounded(percentage: ThreadPercentage, total: u32) -> u32 {
    if percentage == ThreadPercentage::FULL {
        return total;
    }
    (u32::from(percentage.tenths()) * total / 1000) & !1
}

/// Returns the smallest percentage under which a client sees exactly `sms` of `total` SMs, if there is one.
pub fn percentage_for(sms: u32, total: u32) -> Option<ThreadPercentage> {
    (1..=1000)
        .filter_map(|tenths| ThreadPercentage::from_tenths(tenths).ok())
        .find(|percentage| sms_for(*percentage, total) == sms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_whole_numbers_and_one_decimal() {
        for (text, tenths) in [("25", 250), ("33.3", 333), ("0.5", 5), ("100", 1000), ("100.0", 1000)] {
            assert_eq!(ThreadPercentage::parse(text).expect(text).tenths(), tenths);
        }
    }

    #[test]
    fn refuses_what_mps_would_misread() {
        for text in [
            "0", "0.0", "101", "100.1", "-5", "nan", "inf", "50%", "1e1", "33.33", "", "abc", "5.", ".5",
            "99999",
        ] {
            assert!(ThreadPercentage::parse(text).is_err(), "{text}");
        }
        for json in ["0", "101", "-5", "33.33", "\"50%\"", "1e9", "null", "100.1"] {
            assert!(serde_json::from_str::<ThreadPercentage>(json).is_err(), "{json}");
        }
        for json in ["25", "25.0", "33.3", "0.1"] {
            assert!(serde_json::from_str::<ThreadPercentage>(json).is_ok(), "{json}");
        }
    }

    #[test]
    fn predicts_the_sms_of_recording_05() {
        let recorded = [
            (30, 8),
            (50, 8),
            (70, 8),
            (100, 12),
            (120, 14),
            (125, 16),
            (150, 18),
            (200, 26),
            (250, 32),
            (300, 38),
            (333, 42),
            (400, 52),
            (500, 66),
            (600, 78),
            (667, 88),
            (700, 92),
            (750, 98),
            (800, 104),
            (900, 118),
            (950, 124),
            (990, 130),
            (10, 8),
            (20, 8),
            (334, 44),
            (1000, 132),
        ];
        for (tenths, sms) in recorded {
            let percentage = ThreadPercentage::from_tenths(tenths).expect("in range");
            assert_eq!(sms_for(percentage, 132), sms, "{percentage} %");
        }
    }

    #[test]
    fn each_predicts_the_other() {
        for sms in (8..=132).step_by(2) {
            let percentage = percentage_for(sms, 132).expect("every even count from 8 up has a percentage");
            assert_eq!(sms_for(percentage, 132), sms);
        }
        assert_eq!(percentage_for(7, 132), None);
        assert_eq!(percentage_for(33, 132), None);
        assert_eq!(percentage_for(134, 132), None);
    }
}
