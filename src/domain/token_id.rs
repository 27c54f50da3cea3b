//! IDs of tokens.

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Letters of an ID.
const ID_LETTERS: usize = 16;

/// ID of a token, which does not reveal its secret: 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, pattern = "^[0-9a-f]{16}$", example = "0123456789abcdef")]
pub struct TokenId(String);

impl TokenId {
    /// Builds an ID from random bytes.
    pub fn new(random: [u8; ID_LETTERS / 2]) -> Self {
        Self(hex::encode(random))
    }

    /// Parses an ID.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if is_hex(text, ID_LETTERS) {
            return Ok(Self(text.to_owned()));
        }
        Err(InvalidValue(format!(
            "this is not the ID of a token: give the {ID_LETTERS} hexadecimal digits that the list shows, and never the token itself"
        )))
    }

    /// Returns the ID as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for TokenId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for TokenId {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl std::str::FromStr for TokenId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

impl From<TokenId> for String {
    fn from(id: TokenId) -> Self {
        id.0
    }
}

/// Returns true if a text consists of this many lower-case hexadecimal digits.
pub(super) fn is_hex(text: &str, letters: usize) -> bool {
    text.len() == letters && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
