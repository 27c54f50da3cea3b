//! Pagination.

use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;

use super::ServiceError;
use crate::service::Result;
use crate::service::error::field;

/// Items per page by default.
pub const DEFAULT_LIMIT: u32 = 100;
/// Most items of a page.
pub const MAX_LIMIT: u32 = 1000;

/// The requested page.
#[derive(Debug, Clone)]
pub struct Page {
    /// The last key of the page before.
    pub after: String,
    /// Maximum number of items.
    pub limit: u32,
}

/// A page, and the cursor of the next one.
#[derive(Debug, Clone)]
pub struct Paged<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` at the end.
    pub next_cursor: Option<String>,
}

fn refused() -> ServiceError {
    ServiceError::field("/cursor", "the cursor is not one that this list gave: begin again without it")
}

impl Page {
    /// The first items of a list.
    pub fn first(limit: u32) -> Self {
        Self { after: String::new(), limit }
    }

    /// A whole list, to be sorted or counted.
    pub fn whole() -> Self {
        Self::first(u32::MAX)
    }

    /// Reads a cursor and a limit as a caller gives them.
    pub fn parse(cursor: Option<&str>, limit: Option<u32>) -> Result<Self> {
        let limit = limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(field!("/limit", "limit is {limit}: give 1 to {MAX_LIMIT}"));
        }
        let after = match cursor {
            None => String::new(),
            Some(cursor) => {
                let bytes = BASE64.decode(cursor).map_err(|_| refused())?;
                String::from_utf8(bytes).map_err(|_| refused())?
            }
        };
        Ok(Self { after, limit })
    }

    /// The key that the page begins after; refused unless this list could have given it as a cursor.
    pub fn key<K: FromStr + ToString>(&self) -> Result<Option<K>> {
        if self.after.is_empty() {
            return Ok(None);
        }
        let key: Option<K> = self.after.parse().ok();
        key.filter(|key| key.to_string() == self.after).map(Some).ok_or_else(refused)
    }

    /// Returns the number of rows to read: one more than the page holds, which shows if there is a next page.
    pub fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// Cuts the rows to the page; `key` gives the key that the next page begins after.
    pub fn cut<T>(&self, mut items: Vec<T>, key: impl Fn(&T) -> String) -> Paged<T> {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| more).map(|last| BASE64.encode(key(last)));
        Paged { items, next_cursor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_to_the_end() {
        let all = ["a", "b", "c", "d", "e"];
        let (mut cursor, mut seen): (Option<String>, Vec<&str>) = (None, Vec::new());
        loop {
            let page = Page::parse(cursor.as_deref(), Some(2)).expect("page");
            let rows: Vec<&str> =
                all.into_iter().filter(|item| *item > page.after.as_str()).take(3).collect();
            let paged = page.cut(rows, ToString::to_string);
            seen.extend(paged.items);
            match paged.next_cursor {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, all);
    }

    #[test]
    fn cursor_must_be_a_canonical_key() {
        let page = |after: &str| Page { after: after.to_owned(), limit: 10 };
        assert_eq!(page("7").key::<u64>().expect("a key"), Some(7));
        assert_eq!(page("").key::<u64>().expect("none"), None);
        for bad in ["-5", "+7", "007", "7 ", "~~💥"] {
            assert!(page(bad).key::<u64>().is_err(), "{bad}");
        }
        assert!(page("~~💥").key::<crate::domain::DaemonName>().is_err());
        let id = crate::clock::Clock::system().new_id();
        assert_eq!(page(&id.to_string()).key().expect("a key"), Some(id));
        assert!(page(&id.to_string().to_uppercase()).key::<uuid::Uuid>().is_err());
    }

    #[test]
    fn invalid_cursors_and_limits_are_refused() {
        assert!(Page::parse(Some("§"), None).is_err());
        assert!(Page::parse(None, Some(0)).is_err());
        assert!(Page::parse(None, Some(1001)).is_err());
    }
}
