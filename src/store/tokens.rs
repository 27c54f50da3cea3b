//! Tokens.

use sqlx::SqliteConnection;

use super::{StoreError, parsed, rows};
use crate::domain::access::Grant;
use crate::domain::token::{Digest, Token, TokenId};
use crate::domain::{TenantName, TokenName};

/// Tokens that can no longer be used and are still shown.
const REMEMBERED: i64 = 1000;

/// Reads tokens, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            TokenRow,
            r#"SELECT id AS "id!", name, digest, granted, created_at, created_by, expires_at, last_used_at, revoked_at FROM
                tokens "# + $rest
            $(, $value)*
        )
    };
}

struct TokenRow {
    id: String,
    name: String,
    digest: Vec<u8>,
    granted: String,
    created_at: i64,
    created_by: String,
    expires_at: Option<i64>,
    last_used_at: Option<i64>,
    revoked_at: Option<i64>,
}

impl TryFrom<TokenRow> for Token {
    type Error = StoreError;

    fn try_from(row: TokenRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: parsed("a token's ID", TokenId::parse(&row.id))?,
            name: parsed("a token's name", TokenName::parse(&row.name))?,
            digest: parsed("a token's digest", Digest::stored(&row.digest))?,
            grant: parsed("what a token grants", Grant::parse(&row.granted))?,
            created_at: row.created_at,
            created_by: row.created_by,
            expires_at: row.expires_at,
            last_used_at: row.last_used_at,
            revoked_at: row.revoked_at,
        })
    }
}

/// Writes a new token, and deletes the oldest of those that can no longer be used.
pub async fn insert(db: &mut SqliteConnection, token: &Token) -> Result<(), StoreError> {
    let (id, name, digest) = (token.id.as_str(), token.name.as_str(), token.digest.bytes());
    let granted = token.grant.to_string();
    sqlx::query!(
        "INSERT INTO tokens (id, name, digest, granted, created_at, created_by, expires_at, last_used_at, revoked_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        id,
        name,
        digest,
        granted,
        token.created_at,
        token.created_by,
        token.expires_at,
        token.last_used_at,
        token.revoked_at
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM tokens WHERE id IN (
             SELECT id FROM tokens WHERE revoked_at IS NOT NULL OR expires_at <= ?1
             ORDER BY coalesce(revoked_at, expires_at) DESC, id LIMIT -1 OFFSET ?2)",
        token.created_at,
        REMEMBERED
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The token with that ID.
pub async fn get(db: &mut SqliteConnection, id: &TokenId) -> Result<Option<Token>, StoreError> {
    let id = id.as_str();
    rows::one(db, select!("WHERE id = ?", id)).await
}

/// Every token of a tenant, those that can no longer be used among them.
pub async fn of_tenant(db: &mut SqliteConnection, tenant: &TenantName) -> Result<Vec<Token>, StoreError> {
    let granted = Grant::Tenant(tenant.clone()).to_string();
    rows::all(db, select!("WHERE granted = ?", granted)).await
}

/// Every token that can be used at a time.
pub async fn living(db: &mut SqliteConnection, now: i64) -> Result<Vec<Token>, StoreError> {
    rows::all(db, select!("WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)", now)).await
}

/// Up to `limit` tokens by ID, from the one after `after`.
pub async fn page(db: &mut SqliteConnection, after: &str, limit: i64) -> Result<Vec<Token>, StoreError> {
    rows::all(db, select!("WHERE id > ?1 ORDER BY id LIMIT ?2", after, limit)).await
}

/// Revokes a token and ends its sessions; false where it was revoked before.
pub async fn revoke(db: &mut SqliteConnection, id: &TokenId, now: i64) -> Result<bool, StoreError> {
    let id = id.as_str();
    sqlx::query!("DELETE FROM sessions WHERE token = ?", id).execute(&mut *db).await?;
    let done = sqlx::query!("UPDATE tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", now, id)
        .execute(db)
        .await?;
    Ok(done.rows_affected() > 0)
}

/// Revokes every token of a tenant; returns the revoked tokens.
pub async fn revoke_of(
    db: &mut SqliteConnection,
    tenant: &TenantName,
    now: i64,
) -> Result<Vec<TokenId>, StoreError> {
    let granted = Grant::Tenant(tenant.clone()).to_string();
    let ids = sqlx::query_scalar!(
        r#"SELECT id AS "id!" FROM tokens WHERE granted = ? AND revoked_at IS NULL"#,
        granted
    )
    .fetch_all(&mut *db)
    .await?;
    let mut revoked = Vec::with_capacity(ids.len());
    for id in ids {
        let id = parsed("a token's ID", TokenId::parse(&id))?;
        revoke(&mut *db, &id, now).await?;
        revoked.push(id);
    }
    Ok(revoked)
}

/// Writes when a token was last used.
pub async fn used(db: &mut SqliteConnection, id: &TokenId, at: i64) -> Result<(), StoreError> {
    let id = id.as_str();
    sqlx::query!("UPDATE tokens SET last_used_at = ? WHERE id = ?", at, id).execute(db).await?;
    Ok(())
}
