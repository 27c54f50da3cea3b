//! Answers to requests, so that a repeated request gets the same answer.

use super::rows::execute;
use super::{Db, Result};

/// Time for which a key is kept: a day, in milliseconds.
pub const REMEMBERED_MS: i64 = 24 * 60 * 60 * 1000;
/// Maximum number of old answers deleted with a new one, so that no change waits for many.
const FORGOTTEN: i64 = 100;

/// An answer that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// Digest of method, path and body.
    pub request_hash: String,
    /// The answer, as JSON.
    pub response: String,
}

/// The answer given to a caller under a key.
pub async fn get(db: &mut Db, owner: &str, key: &str) -> Result<Option<Remembered>> {
    let key = row_key(owner, key);
    Ok(sqlx::query_as!(Remembered, "SELECT request_hash, response FROM idempotency_keys WHERE key = ?", key)
        .fetch_optional(db)
        .await?)
}

/// Stores an answer in the transaction of its effect, and deletes old ones.
pub async fn put(db: &mut Db, owner: &str, key: &str, answer: &Remembered, now: i64) -> Result<()> {
    let forget = "DELETE FROM idempotency_keys WHERE key IN (SELECT key FROM idempotency_keys WHERE created_at < ? LIMIT ?)";
    sqlx::query(forget).bind(now - REMEMBERED_MS).bind(FORGOTTEN).execute(&mut *db).await?;
    execute!(
        db,
        "INSERT INTO idempotency_keys (key, request_hash, response, created_at) VALUES (?, ?, ?, ?)",
        row_key(owner, key),
        answer.request_hash,
        answer.response,
        now
    )
}

/// Combines a key with its owner; neither contains a line break, so different pairs give different names.
fn row_key(owner: &str, key: &str) -> String {
    format!("{owner}\n{key}")
}
