//! Tokens.

use super::rows::{changes, execute};
use super::values::{AsText, StoredDigest};
use super::{Db, Result};
use crate::domain::access::Grant;
use crate::domain::token::{Token, TokenId};
use crate::domain::{TenantName, TokenName};

/// Tokens that can no longer be used and are still shown.
const REMEMBERED: i64 = 1000;

/// Reads tokens, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            Token,
            r#"SELECT id AS "id!: AsText<TokenId>", name AS "name: AsText<TokenName>", digest AS "digest: StoredDigest",
                granted AS "grant: AsText<Grant>", created_at, created_by, expires_at, last_used_at, revoked_at FROM tokens "# + $rest
            $(, $value)*
        )
    };
}

/// Writes a new token, and deletes the oldest of those that can no longer be used.
pub async fn insert(db: &mut Db, token: &Token) -> Result<()> {
    execute!(db, "INSERT INTO tokens (id, name, digest, granted, created_at, created_by, expires_at, last_used_at, revoked_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        token.id.as_str(),
        token.name.as_str(),
        token.digest.bytes(),
        token.grant.to_string(),
        token.created_at,
        token.created_by,
        token.expires_at,
        token.last_used_at,
        token.revoked_at)?;
    execute!(
        db,
        "DELETE FROM tokens WHERE id IN (
             SELECT id FROM tokens WHERE revoked_at IS NOT NULL OR expires_at <= ?1
             ORDER BY coalesce(revoked_at, expires_at) DESC, id LIMIT -1 OFFSET ?2)",
        token.created_at,
        REMEMBERED
    )
}

/// The token with that ID.
pub async fn get(db: &mut Db, id: &TokenId) -> Result<Option<Token>> {
    Ok(select!("WHERE id = ?", id.as_str()).fetch_optional(db).await?)
}

/// Every token of a tenant, those that can no longer be used among them.
pub async fn of_tenant(db: &mut Db, tenant: &TenantName) -> Result<Vec<Token>> {
    let granted = Grant::Tenant(tenant.clone()).to_string();
    Ok(select!("WHERE granted = ?", granted).fetch_all(db).await?)
}

/// Every token that can be used at a time.
pub async fn living(db: &mut Db, now: i64) -> Result<Vec<Token>> {
    let query = select!("WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)", now);
    Ok(query.fetch_all(db).await?)
}

/// Up to `limit` tokens by ID, from the one after `after`.
pub async fn page(db: &mut Db, after: &str, limit: i64) -> Result<Vec<Token>> {
    Ok(select!("WHERE id > ?1 ORDER BY id LIMIT ?2", after, limit).fetch_all(db).await?)
}

/// Revokes a token and ends its sessions; false where it was revoked before.
pub async fn revoke(db: &mut Db, id: &TokenId, now: i64) -> Result<bool> {
    execute!(db, "DELETE FROM sessions WHERE token = ?", id.as_str())?;
    changes!(db, "UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", now, id.as_str())
}

/// Revokes every token of a tenant; returns the revoked tokens.
pub async fn revoke_of(db: &mut Db, tenant: &TenantName, now: i64) -> Result<Vec<TokenId>> {
    let mut revoked = Vec::new();
    for token in of_tenant(&mut *db, tenant).await?.into_iter().filter(|token| token.revoked_at.is_none()) {
        revoke(&mut *db, &token.id, now).await?;
        revoked.push(token.id);
    }
    Ok(revoked)
}

/// Writes when a token was last used.
pub async fn used(db: &mut Db, id: &TokenId, at: i64) -> Result<()> {
    execute!(db, "UPDATE tokens SET last_used_at = ? WHERE id = ?", at, id.as_str())
}
