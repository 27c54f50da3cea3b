//! Sessions of browsers: each stands for a token or a user of this host, and never grants more than that has now.

use super::token::{Digest, TokenId};

/// Whom a session belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SessionHolder {
    /// Of the holder of the admin token.
    AdminToken,
    /// Of the holder of this token.
    Token(TokenId),
    /// Of a user of this host, with what the configuration grants it at the time.
    User(u32),
}

/// A session as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoginSession {
    /// The digest of the secret in its cookie.
    pub digest: Digest,
    /// Whom it belongs to.
    pub holder: SessionHolder,
    /// When it was opened, in unix milliseconds.
    pub created_at: i64,
    /// When it was last used, in unix milliseconds, to the minute.
    pub last_used_at: i64,
}

/// How long sessions last, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// From its last use.
    pub idle_ms: i64,
    /// From its beginning, however much it is used.
    pub max_ms: i64,
}

impl SessionLimits {
    /// When a session ends that is not used again.
    pub fn end(self, created_at: i64, last_used_at: i64) -> i64 {
        self.last_end(created_at).min(last_used_at.saturating_add(self.idle_ms))
    }

    /// When it ends however much it is used.
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
