//! Device memory limits, in whole MiB.
//!
//! MPS reads `512K` as 512 MiB, `1T` and `1.5G` as 1 MiB, a bare byte count as MiB, and drops the limit for `0`
//! and for words (recording 03). So a limit is one whole number of MiB here, and is written to MPS as `4096M`
//! and nothing else.

use std::fmt;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::InvalidValue;

/// Bytes in one MiB.
pub const MIB: u64 = 1 << 20;
/// The largest limit accepted: 1 TiB, far above any GPU and far below where MPS's own arithmetic wraps.
pub const MAX_MIB: u64 = 1 << 20;

const REMEDY: &str =
    "give whole MiB: an integer of bytes, or a number with M, Mi, G or Gi, as in \"4G\" or \"512Mi\"";

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

    /// Parses `4G`, `4Gi`, `512M`, `512Mi`, or a bare integer of bytes.
    ///
    /// `K` and `T`, fractions, signs, blanks and words are refused: each of them is something that MPS itself
    /// would misread in silence. `G` and `Gi` both mean 2³⁰ bytes, as they do for MPS.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let refused = || {
            let shown: String = text.chars().take(40).collect();
            InvalidValue(format!("{shown:?} is not a memory limit: {REMEDY}"))
        };
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().map_err(|_| refused())?;
        let mib = match unit {
            "" => return Self::from_bytes(number),
            "M" | "Mi" => number,
            "G" | "Gi" => number.checked_mul(1024).ok_or_else(refused)?,
            _ => return Err(refused()),
        };
        Self::from_mib(mib)
    }

    /// The limit in bytes.
    pub fn bytes(self) -> u64 {
        self.mib * MIB
    }

    /// The limit in MiB.
    pub fn mib(self) -> u64 {
        self.mib
    }

    /// The one spelling that goes to MPS: `4096M`.
    pub fn as_mps(self) -> String {
        format!("{}M", self.mib)
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_bytes(self.bytes(), f)
    }
}

/// Writes bytes for people: `4 GiB`, `3.5 GiB`, `512 MiB`, `12 bytes`.
fn display_bytes(bytes: u64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    #[allow(clippy::cast_precision_loss, reason = "rounded to one decimal for a reader")]
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) {
        write!(f, "{} GiB", bytes >> 30)
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

impl utoipa::PartialSchema for MemoryLimit {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Schema, Type};
        Schema::OneOf(
            OneOfBuilder::new()
                .description(Some(
                    "A device memory limit: whole MiB. Answers hold an integer of bytes; requests may hold that or a \
                     text such as \"4G\" or \"512Mi\".",
                ))
                .item(
                    ObjectBuilder::new()
                        .schema_type(Type::Integer)
                        .format(Some(utoipa::openapi::SchemaFormat::KnownFormat(
                            utoipa::openapi::KnownFormat::Int64,
                        )))
                        .minimum(Some(utoipa::Number::UInt(1 << 20)))
                        .maximum(Some(utoipa::Number::UInt(1 << 40)))
                        .multiple_of(Some(utoipa::Number::UInt(1 << 20))),
                )
                .item(ObjectBuilder::new().schema_type(Type::String).pattern(Some("^([1-9][0-9]{0,5}(M|Mi)|[1-9][0-9]{0,2}(G|Gi))$")))
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
    fn reads_the_documented_spellings() {
        for (text, mib) in
            [("4G", 4096), ("4Gi", 4096), ("512M", 512), ("512Mi", 512), ("1048576", 1), ("1M", 1)]
        {
            assert_eq!(MemoryLimit::parse(text).expect(text).mib(), mib, "{text}");
        }
    }

    #[test]
    fn refuses_what_mps_would_misread() {
        for text in [
            "512K",
            "1T",
            "0",
            "0M",
            "-1",
            "1.5G",
            "banana",
            "",
            "4 G",
            "4GB",
            "4g",
            "nan",
            "99999999999999999999",
            "1000",
        ] {
            assert!(MemoryLimit::parse(text).is_err(), "{text}");
        }
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
        for json in ["-1", "1.5", "\"512K\"", "0", "true", "1e9"] {
            assert!(serde_json::from_str::<MemoryLimit>(json).is_err(), "{json}");
        }
    }
}
