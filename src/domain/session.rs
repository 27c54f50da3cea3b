//! Sessions of browsers: each stands for a token or a user of this host, and grants no more than the present grant of that.

use super::token::{Digest, TokenId};

/// Holder of a session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionHolder {
    /// The holder of the admin token.
    AdminToken,
    /// The holder of this token.
    Token(TokenId),
    /// A user of this host, with the grant that the configuration gives it at the time of each request.
    User(u32),
}

/// A session as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSession {
    /// The digest of the secret in its cookie.
    pub digest: Digest,
    /// Its holder.
    pub holder: SessionHolder,
    /// When it was opened, in unix milliseconds.
    pub created_at: i64,
    /// When it was last used, in unix milliseconds, to the minute.
    pub last_used_at: i64,
}

/// Lifetime of sessions, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Time from its last use to its end.
    pub idle_ms: i64,
    /// Time from its beginning to its end, however much it is used.
    pub max_ms: i64,
}

impl SessionLimits {
    /// Returns the time at which a session ends if it is not used again.
    pub fn end(self, created_at: i64, last_used_at: i64) -> i64 {
        self.last_end(created_at).min(last_used_at.saturating_add(self.idle_ms))
    }

    /// Returns the time at which a session ends however much it is used.
    pub fn last_end(self, created_at: i64) -> i64 {
        created_at.saturating_add(self.max_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_ends_when_idle_or_too_old() {
        let limits = SessionLimits { idle_ms: 30, max_ms: 100 };
        assert_eq!(limits.end(0, 0), 30);
        assert_eq!(limits.end(0, 50), 80);
        assert_eq!(limits.end(0, 99), 100);
        assert_eq!(limits.end(0, i64::MAX), 100);
    }
}
