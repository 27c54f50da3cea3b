//! Operations and replays by the first characters of their IDs, which are too long to type.

use std::str::FromStr;

use uuid::Uuid;

/// The fewest characters: fewer would nearly always mean several.
const FEWEST: usize = 6;
/// Characters of a whole ID.
const WHOLE: usize = 36;

/// An ID, or its first characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShortId(String);

impl FromStr for ShortId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_id = (FEWEST..=WHOLE).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if is_id {
            Ok(Self(text.to_ascii_lowercase()))
        } else {
            Err(format!(
                "this is not an ID: give one that `list` prints, or at least its first {FEWEST} characters"
            ))
        }
    }
}

impl ShortId {
    /// Returns the ID if all its characters were given.
    pub(super) fn whole(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.0).ok()
    }

    /// Returns the only ID that begins so; an error if none does, or several do.
    pub(super) fn only_one(&self, ids: &[Uuid], noun: &str) -> Result<Uuid, String> {
        let begins: Vec<&Uuid> = ids.iter().filter(|id| id.to_string().starts_with(&self.0)).collect();
        match begins[..] {
            [id] => Ok(*id),
            [] => Err(format!("there is no {noun} {}: `mps-manager {noun} list` shows them", self.0)),
            _ => {
                let candidates: Vec<String> = begins.iter().map(ToString::to_string).collect();
                Err(format!(
                    "{} {noun}s begin with {}, give more of the ID:\n  {}",
                    begins.len(),
                    self.0,
                    candidates.join("\n  ")
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unambiguous_prefix_names_one() {
        let ids = ["019a5b21-0000-7000-8000-000000000001", "019a5b22-0000-7000-8000-000000000002"];
        let ids = ids.map(|id| Uuid::parse_str(id).expect("an ID"));
        let of = |text: &str| text.parse::<ShortId>().expect("a prefix").only_one(&ids, "operation");
        assert_eq!(of("019A5B22"), Ok(ids[1]));
        assert!(of("019a5b").expect_err("two").starts_with("2 operations begin with 019a5b"));
        assert!(of("119a5b").expect_err("none").contains("`mps-manager operation list` shows them"));
    }

    #[test]
    fn other_words_are_no_ids() {
        for text in ["nope", "019a5", "", "019a5b2g", "019a5b21-0000-7000-8000-0000000000012"] {
            assert!(text.parse::<ShortId>().is_err(), "{text}");
        }
    }
}
