//! Tokens and other secrets that are shown to the manager: made, read and compared.
//!
//! A secret is stored nowhere; only its SHA-256 is. That is right here and would be wrong for a password, which a person
//! chooses and others can guess, so that each guess has to be made expensive: a secret of 256 random bits cannot be guessed
//! at any price, and a slow hash would only let callers keep the manager busy.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

pub use super::token_id::TokenId;

use super::InvalidValue;
use super::access::Grant;
use super::name::TokenName;
use super::rfc3339;
use super::token_id::is_hex;

/// Prefix of a token's text, by which leak scanners recognize it.
pub const PREFIX: &str = "mpsm_";
/// Letters of a secret.
const SECRET_LETTERS: usize = 64;

/// The SHA-256 of a secret; compared in constant time.
#[derive(Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Returns the digest of a secret's text.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Reads a digest as it was stored.
    pub fn stored(bytes: &[u8]) -> Result<Self, InvalidValue> {
        let bytes = bytes.try_into();
        bytes.map(Self).map_err(|_| InvalidValue("a digest has 32 bytes".to_owned()))
    }

    /// Returns its bytes as a key for tables: whoever presents a secret cannot choose its digest.
    pub fn key(&self) -> [u8; 32] {
        self.0
    }

    /// Returns its bytes, to be stored.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Digest {}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// A secret in clear, on its way in or out; never stored, and never shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "mpsm_0123456789abcdef_…")]
pub struct Secret(String);

impl Secret {
    /// Builds a secret from random bytes.
    pub fn new(random: [u8; SECRET_LETTERS / 2]) -> Self {
        Self(hex::encode(random))
    }

    /// Takes a secret as a caller presents it.
    pub fn shown(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text, for its owner.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns its digest.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }

    /// Returns the token of this secret: `mpsm_<id>_<secret>`.
    #[must_use]
    pub fn token(&self, id: &TokenId) -> Self {
        Self(format!("{PREFIX}{id}_{}", self.0))
    }

    /// Returns the ID in a token and the secret after it; `None` if the text is not a token of this form.
    pub fn parts(&self) -> Option<(TokenId, Self)> {
        let (id, secret) = self.0.strip_prefix(PREFIX)?.split_once('_')?;
        let id = TokenId::parse(id).ok()?;
        is_hex(secret, SECRET_LETTERS).then(|| (id, Self(secret.to_owned())))
    }
}

/// Redacts secrets in a text in which a caller may have put one by mistake, for logs and records.
///
/// A token is recognized by its prefix. The admin token, a session and a code have none, so a run of hexadecimal digits that is
/// most of one of them is redacted, too; a shorter piece lacks too many digits to guess the rest.
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut shown = String::new();
    let mut whole = true;
    for piece in text.split_inclusive(|letter| !is_part(letter)) {
        let word = piece.trim_end_matches(|letter| !is_part(letter));
        let (kept, end) = match word.find(PREFIX) {
            Some(start) => (&word[..start + PREFIX.len()], "…"),
            None if has_secret_digits(word) => ("", "…"),
            None => (word, ""),
        };
        whole &= end.is_empty();
        shown.push_str(kept);
        shown.push_str(end);
        shown.push_str(&piece[word.len()..]);
    }
    if whole { Cow::Borrowed(text) } else { Cow::Owned(shown) }
}

fn has_secret_digits(word: &str) -> bool {
    word.split(|letter: char| !letter.is_ascii_hexdigit())
        .any(|digits| digits.len() >= SECRET_LETTERS * 3 / 4)
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its ID.
    pub id: TokenId,
    /// Its name, which says its purpose.
    pub name: TokenName,
    /// The digest of its secret.
    pub digest: Digest,
    /// Grant of its holder.
    pub grant: Grant,
    /// When it was made, in unix milliseconds.
    pub created_at: i64,
    /// Actor that made it.
    pub created_by: String,
    /// When it ends by itself, in unix milliseconds.
    pub expires_at: Option<i64>,
    /// When it was last used, in unix milliseconds, to the minute.
    pub last_used_at: Option<i64>,
    /// When it was revoked, in unix milliseconds.
    pub revoked_at: Option<i64>,
}

/// State of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TokenState {
    /// It can be used.
    Active,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

api_words!(TokenState: Active "active", Expired "expired", Revoked "revoked");

impl Token {
    /// Returns its state at a time.
    pub fn state(&self, now: i64) -> TokenState {
        match (self.revoked_at, self.expires_at) {
            (Some(_), _) => TokenState::Revoked,
            (None, Some(end)) if end <= now => TokenState::Expired,
            (None, _) => TokenState::Active,
        }
    }

    /// Returns the fields that the audit log records, without anything of its secret.
    pub fn on_record(&self) -> serde_json::Value {
        serde_json::json!({
            "name": self.name,
            "grant": self.grant,
            "expires_at": self.expires_at.map(rfc3339::format),
            "revoked_at": self.revoked_at.map(rfc3339::format),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> TokenId {
        TokenId::new([0xab; 8])
    }

    #[test]
    fn a_token_is_read_as_it_was_made() {
        let secret = Secret::new([7; 32]);
        let token = secret.token(&id());
        assert!(token.reveal().starts_with("mpsm_abababababababab_0707"));
        let (read, rest) = token.parts().expect("a token");
        assert_eq!((read, rest.digest()), (id(), secret.digest()));
    }

    #[test]
    fn misplaced_token_is_redacted() {
        let token = Secret::new([7; 32]).token(&id());
        let path = format!("/api/v1/tokens/{0}/x?{0}", token.reveal());
        assert_eq!(without_secrets(&path), "/api/v1/tokens/mpsm_…/x?mpsm_…");
        assert_eq!(without_secrets("mpsm_"), "mpsm_…");
        assert!(matches!(without_secrets("/api/v1/tokens/abababababababab"), Cow::Borrowed(_)));
        // The admin token has no prefix.
        let bare = Secret::new([0xab; 32]);
        assert_eq!(without_secrets(&format!("tokens/{}/x", bare.reveal())), "tokens/…/x");
        assert_eq!(without_secrets(&bare.reveal()[..60]), "…");
        for name in ["t_0123456789abcdef0123456789abcdef", &"x".repeat(64), "operations/{id}/cancel"] {
            assert!(matches!(without_secrets(name), Cow::Borrowed(_)), "{name}");
        }
    }

    #[test]
    fn malformed_token_is_not_parsed() {
        let token = Secret::new([7; 32]).token(&id());
        let whole = token.reveal();
        let bad = [
            "",
            "mpsm_",
            "mpsm__",
            &whole[..whole.len() - 1],
            &format!("{whole}0"),
            &whole.to_uppercase(),
            &whole.replace("mpsm", "mpsn"),
            &whole.replace('_', "-"),
            &format!(" {whole}"),
        ];
        for text in bad {
            assert_eq!(Secret::shown(text).parts(), None, "{text:?}");
        }
    }

    #[test]
    fn a_secret_is_not_shown_by_debug() {
        let secret = Secret::new([7; 32]);
        assert_eq!(format!("{secret:?} {:?}", secret.digest()), "Secret(..) Digest(..)");
    }

    #[test]
    fn token_ends_when_expired_or_revoked() {
        let mut token = Token {
            id: id(),
            name: TokenName::parse("ci").expect("name"),
            digest: Secret::new([1; 32]).digest(),
            grant: Grant::parse("viewer").expect("grant"),
            created_at: 0,
            created_by: "admin token".into(),
            expires_at: Some(10),
            last_used_at: None,
            revoked_at: None,
        };
        assert_eq!((token.state(9), token.state(10)), (TokenState::Active, TokenState::Expired));
        token.revoked_at = Some(5);
        assert_eq!(token.state(9), TokenState::Revoked);
    }
}
