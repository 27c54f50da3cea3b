//! Endings of sessions: kept in memory for a while, and shown only to the holder of the session's cookie.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::domain::token::Digest;

/// Most endings that are kept.
const KEPT: usize = 256;

/// The reason for which a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// A user signed it out.
    By(String),
    /// Newer sessions of the same holder.
    Replaced,
    /// The revocation of its token.
    Revoked(String),
    /// Its age, or the time in which it was not used.
    Expired,
    /// The expiry of its token.
    TokenExpired,
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::By(subject) => write!(f, " by {subject}"),
            Self::Replaced => f.write_str(": newer log-ins with the same token took its place"),
            Self::Revoked(subject) => write!(f, ": its token was revoked by {subject}"),
            Self::Expired => f.write_str(": the session expired"),
            Self::TokenExpired => f.write_str(": its token expired"),
        }
    }
}

/// When and why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEnding {
    /// The time, in unix milliseconds.
    pub at: i64,
    /// The reason.
    pub end: SessionEnd,
}

/// The last endings, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<VecDeque<(Digest, SessionEnding)>>);

impl Endings {
    /// Keeps the ending of sessions, unless an earlier one is known.
    pub(super) fn note(&self, digests: &[Digest], ending: &SessionEnding) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for digest in digests {
            if !kept.iter().any(|(known, _)| known == digest) {
                kept.push_back((*digest, ending.clone()));
            }
        }
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }

    pub(super) fn of(&self, digest: &Digest) -> Option<SessionEnding> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == digest).map(|(_, ending)| ending.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::token::Secret;

    #[test]
    fn first_ending_of_a_session_counts() {
        let endings = Endings::default();
        let digest = |text: &str| Secret::shown(text).digest();
        let ending = |at, end| SessionEnding { at, end };
        endings.note(&[digest("a")], &ending(1, SessionEnd::Revoked("admin token".into())));
        endings.note(&[digest("a"), digest("b")], &ending(2, SessionEnd::Expired));
        let first = endings.of(&digest("a")).expect("an ending");
        assert_eq!((first.at, first.end.to_string().as_str()), (1, ": its token was revoked by admin token"));
        assert_eq!(endings.of(&digest("b")), Some(ending(2, SessionEnd::Expired)));
        for number in 0..KEPT {
            endings.note(&[digest(&number.to_string())], &ending(3, SessionEnd::Expired));
        }
        assert_eq!(endings.of(&digest("a")), None, "the oldest are dropped");
    }
}
