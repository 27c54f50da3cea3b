//! Sessions of browsers.

use sqlx::SqliteConnection;

use super::{StoreError, parsed};
use crate::domain::session::{LoginSession, SessionHolder};
use crate::domain::token::{Digest, TokenId};

/// Opens a session; `admin` is the digest of the admin token that there is now.
pub async fn insert(
    db: &mut SqliteConnection,
    session: &LoginSession,
    admin: &Digest,
) -> Result<(), StoreError> {
    let digest = session.digest.bytes();
    let (token, admin, uid) = match &session.holder {
        SessionHolder::AdminToken => (None, Some(admin.bytes()), None),
        SessionHolder::Token(id) => (Some(id.as_str()), None, None),
        SessionHolder::User(uid) => (None, None, Some(*uid)),
    };
    sqlx::query!(
        "INSERT INTO sessions (digest, token, admin, uid, created_at, last_used_at) VALUES (?, ?, ?, ?, ?, ?)",
        digest,
        token,
        admin,
        uid,
        session.created_at,
        session.last_used_at
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Every session, once those are forgotten that were opened with another admin token.
pub async fn all(db: &mut SqliteConnection, admin: &Digest) -> Result<Vec<LoginSession>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT digest AS "digest!", token, admin, uid, created_at, last_used_at FROM sessions"#
    )
    .fetch_all(db)
    .await?;
    let mut sessions = Vec::with_capacity(rows.len());
    for row in rows {
        let holder = match (row.token, row.admin, row.uid) {
            (Some(id), _, _) => SessionHolder::Token(parsed("a session's token", TokenId::parse(&id))?),
            (_, _, Some(uid)) => SessionHolder::User(parsed("a session's user", uid.try_into())?),
            (_, Some(of), _) if parsed("a session's token", Digest::stored(&of))? == *admin => {
                SessionHolder::AdminToken
            }
            _ => continue,
        };
        let digest = parsed("a session's digest", Digest::stored(&row.digest))?;
        sessions.push(LoginSession {
            digest,
            holder,
            created_at: row.created_at,
            last_used_at: row.last_used_at,
        });
    }
    Ok(sessions)
}

/// Forgets every session.
pub async fn forget_all(db: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM sessions").execute(db).await?;
    Ok(())
}

/// Deletes a session; returns true if it existed.
pub async fn delete(db: &mut SqliteConnection, digest: &Digest) -> Result<bool, StoreError> {
    let digest = digest.bytes();
    let done = sqlx::query!("DELETE FROM sessions WHERE digest = ?", digest).execute(db).await?;
    Ok(done.rows_affected() > 0)
}

/// Forgets the sessions that were last used before one time or opened before another, and those of a former admin token.
pub async fn delete_old(
    db: &mut SqliteConnection,
    used_before: i64,
    opened_before: i64,
    admin: &Digest,
) -> Result<(), StoreError> {
    let admin = admin.bytes();
    sqlx::query!(
        "DELETE FROM sessions WHERE last_used_at <= ? OR created_at <= ? OR (admin IS NOT NULL AND admin != ?)",
        used_before,
        opened_before,
        admin
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Writes when a session was last used.
pub async fn used(db: &mut SqliteConnection, digest: &Digest, at: i64) -> Result<(), StoreError> {
    let digest = digest.bytes();
    sqlx::query!("UPDATE sessions SET last_used_at = ? WHERE digest = ?", at, digest).execute(db).await?;
    Ok(())
}
