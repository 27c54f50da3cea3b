//! UUIDs of GPUs and of MIG instances.

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Beginning of the UUID of a MIG instance.
const MIG: &str = "MIG-";

/// The UUID of a GPU, as in `GPU-514466a0-8e68-f857-9f73-e438010e48cb`, or of a MIG instance, which begins with `MIG-`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String,
    pattern = "^(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
    example = "GPU-514466a0-8e68-f857-9f73-e438010e48cb"
)]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Parses a full UUID; upper-case letters are accepted and lowered.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let groups = [8, 4, 4, 4, 12];
        let is_digits = |digits: &str| {
            let parts: Vec<&str> = digits.split('-').collect();
            parts.len() == groups.len()
                && parts
                    .iter()
                    .zip(groups)
                    .all(|(part, length)| part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let well_formed = text
            .split_at_checked(4)
            .is_some_and(|(kind, digits)| matches!(kind, "GPU-" | MIG) && is_digits(digits));
        if !well_formed {
            let shown: String = text.chars().take(80).collect();
            return Err(InvalidValue(format!(
                "{shown:?} is not a GPU UUID: it looks like GPU-514466a0-8e68-f857-9f73-e438010e48cb"
            )));
        }
        Ok(Self(format!("{}{}", &text[..4], text[4..].to_ascii_lowercase())))
    }

    /// Returns the UUID as text, with its `GPU-` or `MIG-`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if CUDA means this device by a UUID: it reports sixteen bytes, which do not say if it is a MIG instance.
    pub fn is_reported_as(&self, seen: &Self) -> bool {
        self.0[4..] == seen.0[4..]
    }

    /// Returns true for the UUID of a MIG instance.
    pub fn is_mig(&self) -> bool {
        self.0.starts_with(MIG)
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.0
    }
}

impl std::fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed_strictly() {
        let text = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
        assert_eq!(GpuUuid::parse(text).expect("good").as_str(), text);
        assert_eq!(GpuUuid::parse("GPU-514466A0-8E68-F857-9F73-E438010E48CB").expect("good").as_str(), text);
        let instance = GpuUuid::parse("MIG-514466A0-8e68-f857-9f73-e438010e48cb").expect("good");
        assert_eq!((instance.as_str(), instance.is_mig()), (&*text.replace("GPU", "MIG"), true));
        for bad in [
            "",
            "GPU-",
            "0",
            "514466a0-8e68-f857-9f73-e438010e48cb",
            "GPU-514466a0-8e68",
            "MIG-GPU-514466a0-8e68-f857-9f73-e438010e48cb/1/0",
            "mig-514466a0-8e68-f857-9f73-e438010e48cb",
            "\u{e9}\u{e9}514466a0-8e68-f857-9f73-e438010e48cb",
        ] {
            assert!(GpuUuid::parse(bad).is_err(), "{bad}");
        }
    }
}
