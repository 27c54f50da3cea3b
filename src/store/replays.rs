//! Replays and what came of them.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::{StoreError, from_json, to_json};
use crate::domain::layout::replay::Replay;

/// Writes a replay, in place of what was written of it before.
pub async fn put(db: &mut SqliteConnection, replay: &Replay) -> Result<(), StoreError> {
    let (id, daemon, verdict) = (replay.id.to_string(), replay.daemon.as_str(), replay.verdict.as_str());
    let operation = replay.operation.map(|id| id.to_string());
    let content = to_json(replay);
    sqlx::query!(
        "INSERT OR REPLACE INTO replays (id, daemon, operation, verdict, content, created_at, finished_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        id,
        daemon,
        operation,
        verdict,
        content,
        replay.created_at,
        replay.finished_at
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The replay with that ID.
pub async fn get(db: &mut SqliteConnection, id: Uuid) -> Result<Option<Replay>, StoreError> {
    let id = id.to_string();
    let text = sqlx::query_scalar!("SELECT content FROM replays WHERE id = ?", id);
    text.fetch_optional(db).await?.map(|text| from_json("a replay", &text)).transpose()
}

/// Up to `limit` replays, the newest first, from the one before `before`.
pub async fn page(
    db: &mut SqliteConnection,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<Replay>, StoreError> {
    sqlx::query_scalar!(
        "SELECT content FROM replays WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2",
        before,
        limit
    )
    .fetch_all(db)
    .await?
    .iter()
    .map(|text| from_json("a replay", text))
    .collect()
}

/// Forgets replays that ended before then.
pub async fn forget(db: &mut SqliteConnection, before: i64) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM replays WHERE finished_at < ?", before).execute(db).await?;
    Ok(())
}
