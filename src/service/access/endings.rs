//! How sessions ended: kept in memory for a while, and shown only to whoever has the cookie of the session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use super::{Access, SessionKey};
use crate::domain::session::SessionHolder;
use crate::domain::token::{Digest, Secret};

/// Most endings that are kept.
const KEPT: usize = 256;

/// The reason for which a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// Somebody signed it out.
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

    fn of(&self, digest: &Digest) -> Option<SessionEnding> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(known, _)| known == digest).map(|(_, ending)| ending.clone())
    }
}

impl Access {
    /// Returns how the session of a cookie ended, if that is known.
    pub fn ending(&self, cookie: &Secret, now: i64) -> Option<SessionEnding> {
        let digest = cookie.digest();
        let of_live = || {
            let live = self.live_session(&SessionKey(digest))?;
            let ended = live.end(self.limits, now);
            let of_token = match &live.session.holder {
                SessionHolder::Token(id) => self.live(id).and_then(|token| token.token.expires_at),
                SessionHolder::AdminToken | SessionHolder::User(_) => None,
            };
            let expired = |at: i64, end| (at <= now).then_some(SessionEnding { at, end });
            expired(ended, SessionEnd::Expired)
                .or_else(|| of_token.and_then(|at| expired(at, SessionEnd::TokenExpired)))
        };
        self.endings.of(&digest).or_else(of_live)
    }
}
