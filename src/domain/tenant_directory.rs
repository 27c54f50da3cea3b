//! The name of a tenant's directory.

use super::InvalidValue;

/// Number of the colours of tenants.
pub const COLOURS: u8 = 8;

/// The short ID that names a tenant's directory: ten hexadecimal digits, made at random once for each tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
#[serde(try_from = "String")]
pub struct TenantDirectory(String);

impl TenantDirectory {
    /// Number of characters of each name.
    pub const LENGTH: usize = 10;

    /// Builds a name from random bytes.
    pub fn new(random: [u8; Self::LENGTH / 2]) -> Self {
        Self(hex::encode(random))
    }

    /// Parses ten lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == Self::LENGTH && text.bytes().all(digit) {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(40).collect();
        Err(InvalidValue(format!(
            "{shown:?} does not name a tenant's directory: it has ten hexadecimal digits"
        )))
    }

    /// Returns a name whose tenant has this colour.
    #[must_use]
    pub fn coloured(mut self, colour: u8) -> Self {
        self.0.truncate(Self::LENGTH - 1);
        self.0.push(char::from(b'0' + colour % COLOURS));
        self
    }

    /// Returns the number of the tenant's colour in pictures, which it keeps as long as its directory.
    pub fn colour(&self) -> u8 {
        let digit =
            self.0.bytes().last().and_then(|digit| char::from(digit).to_digit(16)).unwrap_or_default();
        u8::try_from(digit).unwrap_or_default() % COLOURS
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for TenantDirectory {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl std::fmt::Display for TenantDirectory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_digit_is_the_colour() {
        for colour in 0..COLOURS {
            let directory = TenantDirectory::new([0xab; 5]).coloured(colour);
            assert_eq!((directory.colour(), directory.as_str().len()), (colour, TenantDirectory::LENGTH));
        }
    }

    #[test]
    fn only_ten_hexadecimal_digits_name_a_directory() {
        assert_eq!(TenantDirectory::parse("0123456789").expect("digits").as_str(), "0123456789");
        for name in ["", "012345678", "01234567890", "012345678A", "../../../..", ".link-0123"] {
            assert!(TenantDirectory::parse(name).is_err(), "{name}");
        }
    }
}
