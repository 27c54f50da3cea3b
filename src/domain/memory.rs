//! Device memory limits, in whole MiB.
//!
//! MPS reads `512K` as 512 MiB, `1T` and `1.5G` as 1 MiB, a bare byte count as MiB, and drops the limit for `0`
//! and for words (recording 03). So people may write a limit in every usual spelling here; it is one whole number of MiB, is
//! answered in bytes, and is written to MPS as `4096M` and nothing else.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::InvalidValue;

/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// The largest limit accepted: 1 TiB, far above any GPU and far below where MPS's own arithmetic wraps.
pub const MAX_MIB: u64 = 1 << 20;

const REMEDY: &str = "give whole MiB, as \"4G\", \"1.5 GiB\", \"512Mi\" or an integer of bytes";
/// Units, in lower case and without a closing `b`, and the bytes of each.
const UNITS: [(&str, u64); 8] = [
    ("k", 1 << 10),
    ("ki", 1 << 10),
    ("m", MIB),
    ("mi", MIB),
    ("g", 1 << 30),
    ("gi", 1 << 30),
    ("t", 1 << 40),
    ("ti", 1 << 40),
];
/// Pattern of the spellings of a size, for the API document: only those that everyone reads alike.
pub(super) const SPELLINGS: &str =
    "([1-9][0-9]{0,5} ?[Mm]i?[Bb]?|[1-9][0-9]{0,2}(\\.(0|25|50?|75))? ?[Gg]i?[Bb]?|1 ?[Tt]i?[Bb]?)";
/// Most digits of a number, so that its bytes fit into 128 bits.
const MAX_DIGITS: usize = 18;

/// A device memory limit: whole MiB, from 1 MiB to 1 TiB.
///
/// MPS calls it "pinned device memory"; it is memory on the GPU and not page-locked host memory. It counts for
/// one client process on one GPU, the context itself included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryLimit {
    mib: u64,
}

impl MemoryLimit {
    /// Builds a limit from MiB.
    pub fn from_mib(mib: u64) -> Result<Self, InvalidValue> {
        if mib == 0 {
            return Err(InvalidValue(format!(
                "a memory limit of 0 is refused, since MPS takes it for no limit at all: leave it out for none, or {REMEDY}"
            )));
        }
        if mib > MAX_MIB {
            return Err(InvalidValue(format!(
                "a memory limit of {mib} MiB is above 1 TiB, the largest accepted: {REMEDY}"
            )));
        }
        Ok(Self { mib })
    }

    /// Builds a limit from bytes, which must be whole MiB.
    pub fn from_bytes(bytes: u64) -> Result<Self, InvalidValue> {
        if !bytes.is_multiple_of(MIB) {
            return Err(InvalidValue(format!(
                "a memory limit of {bytes} bytes is not a whole number of MiB ({MIB} bytes): {REMEDY}"
            )));
        }
        Self::from_mib(bytes / MIB)
    }

    /// Parses a size as people write it: `4G`, `4Gi`, `4 GiB`, `4gb`, `1.5G`, `512M`, `1T`, or a bare integer of bytes.
    ///
    /// `G`, `GB`, `Gi` and `GiB` all mean 2³⁰ bytes, as `G` and `GB` do for MPS. Sizes that are not whole MiB, signs, exponents and words
    /// are refused: no two readers would agree on them.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let refused = || {
            let shown: String = text.chars().take(40).collect();
            InvalidValue(format!("{shown:?} is not a memory limit: {REMEDY}"))
        };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        if unit.is_empty() && !number.contains('.') {
            return Self::from_bytes(number.parse().map_err(|_| refused())?);
        }
        let unit = unit.strip_prefix(' ').unwrap_or(unit).to_ascii_lowercase();
        let unit = unit.strip_suffix('b').filter(|unit| !unit.is_empty()).unwrap_or(&unit);
        let (_, unit) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) || whole.len() + fraction.len() > MAX_DIGITS {
            return Err(refused());
        }
        // In the smallest part of the unit that the text names: no rounding.
        let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| refused())?;
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| refused())?);
        let (bytes, rest) = (digits * u128::from(unit) / scale, digits * u128::from(unit) % scale);
        let mib = bytes / u128::from(MIB);
        if rest != 0 || bytes % u128::from(MIB) != 0 {
            let nearest = match mib {
                0 => "the nearest is 1M".to_owned(),
                mib => format!("the nearest are {mib}M and {}M", mib + 1),
            };
            return Err(InvalidValue(format!(
                "a memory limit of {text} is not a whole number of MiB: {nearest}"
            )));
        }
        Self::from_mib(u64::try_from(mib).unwrap_or(u64::MAX))
    }

    /// Returns the limit in bytes.
    pub fn bytes(self) -> u64 {
        self.mib * MIB
    }

    /// Returns the limit in MiB.
    pub fn mib(self) -> u64 {
        self.mib
    }

    /// Returns the one spelling that is written to MPS: `4096M`.
    pub fn as_mps(self) -> String {
        format!("{}M", self.mib)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_bytes(self.bytes(), f)
    }
}

/// Writes bytes for people: `4 GiB`, `1.5 GiB`, `512 MiB`, `12 bytes`; whole MiB are never rounded.
fn display_bytes(bytes: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    #[allow(clippy::cast_precision_loss, reason = "rounded for a reader; quarters of a GiB are exact")]
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 28) {
        write!(f, "{gib} GiB")
    } else if bytes >= 1 << 30 && !bytes.is_multiple_of(MIB) {
        write!(f, "{gib:.1} GiB")
    } else if bytes >= MIB {
        write!(f, "{} MiB", bytes / MIB)
    } else {
        write!(f, "{bytes} bytes")
    }
}

/// A number of bytes that displays for people.
#[derive(Debug, Clone, Copy)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_bytes(self.0, f)
    }
}

impl Serialize for MemoryLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.bytes())
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl Visitor<'_> for Text {
            type Value = MemoryLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of bytes, or a text such as \"4G\" or \"512Mi\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MemoryLimit, E> {
                MemoryLimit::parse(text).map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<MemoryLimit, E> {
                MemoryLimit::from_bytes(bytes).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<MemoryLimit, E> {
                let bytes = u64::try_from(bytes).map_err(|_| {
                    E::custom(format!("a memory limit of {bytes} bytes is negative: {REMEDY}"))
                })?;
                MemoryLimit::from_bytes(bytes).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Text)
    }
}

/// The schema of a limit in bytes.
pub(super) fn bytes_schema() -> utoipa::openapi::schema::Object {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(utoipa::openapi::KnownFormat::Int64)))
        .minimum(Some(utoipa::Number::UInt(1 << 20)))
        .maximum(Some(utoipa::Number::UInt(1 << 40)))
        .multiple_of(Some(utoipa::Number::UInt(1 << 20)))
        .build()
}

impl utoipa::PartialSchema for MemoryLimit {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
        Schema::OneOf(
            OneOfBuilder::new()
                .description(Some(
                    "A device memory limit: whole MiB. Answers hold an integer of bytes; requests may hold that or a \
                     text such as \"4G\", \"1.5 GiB\" or \"512Mi\"; G and GB mean GiB, as they do for MPS.",
                ))
                .item(bytes_schema())
                .item(ObjectBuilder::new().schema_type(Type::String).pattern(Some(format!("^{SPELLINGS}$"))))
                .build(),
        )
        .into()
    }
}

impl utoipa::ToSchema for MemoryLimit {
    fn name() -> std::borrow::Cow<'static, str> {
        "MemoryLimit".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_spellings_are_read() {
        for (texts, mib) in [
            (
                &[
                    "4G",
                    "4g",
                    "4Gi",
                    "4gi",
                    "4GB",
                    "4GiB",
                    "4 GiB",
                    "4 gb",
                    "4.0G",
                    "4096M",
                    "4194304K",
                    "4294967296",
                ][..],
                4096,
            ),
            (&["512M", "512Mi", "0.5G", "0.50 GiB", "524288 KiB"], 512),
            (&["1.5G", "1.5 GB", "1536m"], 1536),
            (&["2.125G"], 2176),
            (&["1T", "1 TiB", "1024G"], 1 << 20),
            (&["1M", "1048576", "1024K"], 1),
        ] {
            for text in texts {
                assert_eq!(MemoryLimit::parse(text).map(MemoryLimit::mib), Ok(mib), "{text}");
            }
        }
    }

    #[test]
    fn ambiguous_sizes_are_refused() {
        for text in [
            "0",
            "0M",
            "0.0G",
            "-1",
            "+4G",
            "banana",
            "",
            "G",
            ".5G",
            "4.G",
            "4  G",
            " 4G",
            "4G ",
            "4b",
            "4 Gigs",
            "4Mb/s",
            "nan",
            "1e9",
            "1e3M",
            "4,5G",
            "1.2.3G",
            "99999999999999999999",
            "2T",
            "1000",
            "512K",
            "1.3G",
            "9999999999999999999G",
        ] {
            assert!(MemoryLimit::parse(text).is_err(), "{text}");
        }
        let refused = MemoryLimit::parse("1.3G").expect_err("it is 1331.2 MiB").to_string();
        assert!(refused.contains("the nearest are 1331M and 1332M"), "{refused}");
    }

    #[test]
    fn sizes_are_shown_as_people_write_them() {
        for (text, shown) in [
            ("4G", "4 GiB"),
            ("1.5G", "1.5 GiB"),
            ("38400M", "37.5 GiB"),
            ("1.25G", "1.25 GiB"),
            ("1T", "1024 GiB"),
            ("1025M", "1025 MiB"),
            ("512M", "512 MiB"),
        ] {
            assert_eq!(MemoryLimit::parse(text).expect(text).to_string(), shown);
        }
        assert_eq!(Bytes(4_142_000_000).to_string(), "3.9 GiB");
    }

    #[test]
    fn limit_is_sent_in_whole_mib() {
        assert_eq!(MemoryLimit::parse("4G").expect("4G").as_mps(), "4096M");
    }

    #[test]
    fn json_takes_bytes_and_text_and_gives_bytes() {
        for json in ["4294967296", "\"4G\""] {
            let limit: MemoryLimit = serde_json::from_str(json).expect(json);
            assert_eq!(serde_json::to_string(&limit).expect("json"), "4294967296");
        }
        for json in ["-1", "1.5", "\"512K\"", "0", "true", "1e9", "null"] {
            assert!(serde_json::from_str::<MemoryLimit>(json).is_err(), "{json}");
        }
    }
}
