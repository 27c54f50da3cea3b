//! Sessions of browsers.

use super::rows::{changes, execute};
use super::values::{AsText, StoredDigest};
use super::{Db, Result};
use crate::domain::session::{LoginSession, SessionHolder};
use crate::domain::token::{Digest, TokenId};

/// Opens a session; `admin` is the digest of the admin token that there is now.
pub async fn insert(db: &mut Db, session: &LoginSession, admin: &Digest) -> Result<()> {
    let (token, admin, uid) = match &session.holder {
        SessionHolder::AdminToken => (None, Some(admin.bytes()), None),
        SessionHolder::Token(id) => (Some(id.as_str()), None, None),
        SessionHolder::User(uid) => (None, None, Some(*uid)),
    };
    execute!(
        db,
        "INSERT INTO sessions (digest, token, admin, uid, created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?)",
        session.digest.bytes(),
        token,
        admin,
        uid,
        session.created_at,
        session.last_used_at
    )
}

/// Every session, once those are forgotten that were opened with another admin token.
pub async fn all(db: &mut Db, admin: &Digest) -> Result<Vec<LoginSession>> {
    let query = sqlx::query!(
        r#"SELECT digest AS "digest!: StoredDigest", token AS "token: AsText<TokenId>", admin AS "admin: StoredDigest",
               uid AS "uid: u32", created_at, last_used_at FROM sessions"#
    );
    let sessions = query.fetch_all(db).await?.into_iter().filter_map(|row| {
        let holder = match (row.token, row.admin, row.uid) {
            (Some(AsText(id)), _, _) => SessionHolder::Token(id),
            (_, _, Some(uid)) => SessionHolder::User(uid),
            (_, Some(StoredDigest(of)), _) if of == *admin => SessionHolder::AdminToken,
            _ => return None,
        };
        let (digest, created_at, last_used_at) = (row.digest.0, row.created_at, row.last_used_at);
        Some(LoginSession { digest, holder, created_at, last_used_at })
    });
    Ok(sessions.collect())
}

/// Forgets every session.
pub async fn forget_all(db: &mut Db) -> Result<()> {
    execute!(db, "DELETE FROM sessions")
}

/// Deletes a session; returns true if it existed.
pub async fn delete(db: &mut Db, digest: &Digest) -> Result<bool> {
    changes!(db, "DELETE FROM sessions WHERE digest = ?", digest.bytes())
}

/// Forgets the sessions that were last used before one time or opened before another, and those of a former admin token.
pub async fn delete_old(db: &mut Db, used_before: i64, opened_before: i64, admin: &Digest) -> Result<()> {
    execute!(
        db,
        "DELETE FROM sessions WHERE last_used_at <= ? OR created_at <= ? OR (admin IS NOT NULL AND admin != ?)",
        used_before,
        opened_before,
        admin.bytes()
    )
}

/// Writes when a session was last used.
pub async fn used(db: &mut Db, digest: &Digest, at: i64) -> Result<()> {
    execute!(db, "UPDATE sessions SET last_used_at = ? WHERE digest = ?", at, digest.bytes())
}
