//! The ID of a static SM partition.
//!
//! It names SMs of one GPU and not a tenancy: the same steps from an empty GPU give the same IDs again, to every
//! process that takes them (FACTS.md, "Static SM partitions"). It is kept byte for byte as the daemon gave it; nothing here reads
//! anything out of it.

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Longest ID that is taken, in bytes. Documented IDs and those that users reported have 36.
pub const MAX_LEN: usize = 128;

/// The ID of a partition within its GPU, as `Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA`.
///
/// Base64 characters, so it may hold `/` and `+`: encode it in a URL, and split `<uuid>/<id>` at the first `/` only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String,
    pattern = "^[A-Za-z0-9+/=]{1,128}$",
    example = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)]
pub struct PartitionId(String);

impl PartitionId {
    /// Parses an ID; refuses whatever is not 1 to [`MAX_LEN`] base64 characters.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let well_formed = (1..=MAX_LEN).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'+' | b'='));
        if well_formed {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(80).collect();
        Err(InvalidValue(format!(
            "{shown:?} is not a partition ID: it is 1 to {MAX_LEN} base64 characters, as the daemon gave it, without \
             its GPU"
        )))
    }

    /// The ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for PartitionId {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<PartitionId> for String {
    fn from(id: PartitionId) -> Self {
        id.0
    }
}

impl std::fmt::Display for PartitionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for PartitionId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_kept_as_it_is() {
        for good in ["D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA", "a+b=", "x", &"A".repeat(MAX_LEN)] {
            let id = PartitionId::parse(good).expect("good");
            assert_eq!(id.as_str(), good);
            let text = serde_json::to_string(&id).expect("text");
            assert_eq!(text, format!("\"{good}\""));
            assert_eq!(serde_json::from_str::<PartitionId>(&text).expect("read"), id);
        }
    }

    #[test]
    fn unsafe_partition_ids_are_refused() {
        let gpu = "GPU-514466a0-8e68-f857-9f73-e438010e48cb/Dx4A";
        for bad in ["", "a b", "a\nquit", "a,b", "-", "ä", gpu, &"A".repeat(MAX_LEN + 1)] {
            let error = PartitionId::parse(bad).expect_err("bad").to_string();
            assert!(error.contains("is not a partition ID"), "{error}");
        }
    }
}
