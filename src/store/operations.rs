//! Operations and their journals.

use sqlx::SqliteConnection;
use uuid::Uuid;

use super::{StoreError, from_json, parsed, to_json};
use crate::domain::DaemonName;
use crate::domain::operation::{Operation, OperationRequest, OperationState, Step};

struct OperationRow {
    id: String,
    request: String,
    daemon: String,
    state: String,
    error: Option<String>,
    created_at: i64,
    started_at: Option<i64>,
    finished_at: Option<i64>,
}

async fn complete(db: &mut SqliteConnection, row: OperationRow) -> Result<Operation, StoreError> {
    let steps = sqlx::query_as!(
        Step,
        "SELECT name, started_at, finished_at, outcome FROM operation_steps WHERE operation = ? ORDER BY ordinal",
        row.id
    )
    .fetch_all(db)
    .await?;
    Ok(Operation {
        id: parsed("an operation's ID", row.id.parse())?,
        request: from_json("an operation's request", &row.request)?,
        daemon: parsed("a daemon's name", DaemonName::parse(&row.daemon))?,
        state: from_json("an operation's state", &format!("\"{}\"", row.state))?,
        error: row.error,
        created_at: row.created_at,
        started_at: row.started_at,
        finished_at: row.finished_at,
        steps,
    })
}

async fn complete_all(
    db: &mut SqliteConnection,
    rows: Vec<OperationRow>,
) -> Result<Vec<Operation>, StoreError> {
    let mut operations = Vec::with_capacity(rows.len());
    for row in rows {
        operations.push(complete(&mut *db, row).await?);
    }
    Ok(operations)
}

/// Writes a new operation, waiting for its daemon's turn.
pub async fn insert(
    db: &mut SqliteConnection,
    id: Uuid,
    daemon: &DaemonName,
    request: &OperationRequest,
    now: i64,
) -> Result<(), StoreError> {
    let (id, daemon, request) = (id.to_string(), daemon.as_str(), to_json(request));
    sqlx::query!(
        "INSERT INTO operations (id, request, daemon, state, created_at) VALUES (?, ?, ?, 'pending', ?)",
        id,
        request,
        daemon,
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The operation with that ID.
pub async fn get(db: &mut SqliteConnection, id: Uuid) -> Result<Option<Operation>, StoreError> {
    let id = id.to_string();
    let row = sqlx::query_as!(
        OperationRow,
        r#"SELECT id AS "id!", request, daemon, state, error, created_at, started_at, finished_at
           FROM operations WHERE id = ?"#,
        id
    )
    .fetch_optional(&mut *db)
    .await?;
    match row {
        Some(row) => Ok(Some(complete(db, row).await?)),
        None => Ok(None),
    }
}

/// Up to `limit` operations, the newest first, from the one before `before`.
pub async fn page(
    db: &mut SqliteConnection,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<Operation>, StoreError> {
    let rows = sqlx::query_as!(
        OperationRow,
        r#"SELECT id AS "id!", request, daemon, state, error, created_at, started_at, finished_at
           FROM operations WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2"#,
        before,
        limit
    )
    .fetch_all(&mut *db)
    .await?;
    complete_all(db, rows).await
}

/// An operation of a daemon that waits or runs.
pub async fn unfinished(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
) -> Result<Option<String>, StoreError> {
    let daemon = daemon.as_str();
    Ok(sqlx::query_scalar!(
        r#"SELECT id AS "id!" FROM operations
           WHERE daemon = ? AND state IN ('pending', 'running') ORDER BY id LIMIT 1"#,
        daemon
    )
    .fetch_optional(db)
    .await?)
}

/// Those that were under way when the manager died.
pub async fn running(db: &mut SqliteConnection) -> Result<Vec<Operation>, StoreError> {
    let rows = sqlx::query_as!(
        OperationRow,
        r#"SELECT id AS "id!", request, daemon, state, error, created_at, started_at, finished_at
           FROM operations WHERE state = 'running' ORDER BY id"#
    )
    .fetch_all(&mut *db)
    .await?;
    complete_all(db, rows).await
}

/// Takes the oldest operation that waits for a daemon with none running, and marks it running.
pub async fn claim(db: &mut SqliteConnection, now: i64) -> Result<Option<Operation>, StoreError> {
    let row = sqlx::query_as!(
        OperationRow,
        r#"UPDATE operations SET state = 'running', started_at = ?
           WHERE id = (
               SELECT id FROM operations AS next
               WHERE state = 'pending'
                 AND NOT EXISTS (SELECT 1 FROM operations WHERE daemon = next.daemon AND state = 'running')
               ORDER BY id LIMIT 1
           )
           RETURNING id AS "id!", request, daemon, state, error, created_at, started_at, finished_at"#,
        now
    )
    .fetch_optional(&mut *db)
    .await?;
    match row {
        Some(row) => Ok(Some(complete(db, row).await?)),
        None => Ok(None),
    }
}

/// Marks an operation ended.
pub async fn finish(
    db: &mut SqliteConnection,
    id: Uuid,
    state: OperationState,
    error: Option<&str>,
    now: i64,
) -> Result<(), StoreError> {
    let (id, state) = (id.to_string(), state.as_str());
    sqlx::query!(
        "UPDATE operations SET state = ?, error = ?, finished_at = ? WHERE id = ?",
        state,
        error,
        now,
        id
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Calls off an operation that has not begun; false when it has.
pub async fn cancel(db: &mut SqliteConnection, id: Uuid, now: i64) -> Result<bool, StoreError> {
    let id = id.to_string();
    let done = sqlx::query!(
        "UPDATE operations SET state = 'cancelled', finished_at = ? WHERE id = ? AND state = 'pending'",
        now,
        id
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected() == 1)
}

/// Writes what is about to be done, and gives the number of the step.
pub async fn begin_step(
    db: &mut SqliteConnection,
    id: Uuid,
    name: &str,
    now: i64,
) -> Result<i64, StoreError> {
    let id = id.to_string();
    Ok(sqlx::query_scalar!(
        r#"INSERT INTO operation_steps (operation, ordinal, name, started_at)
           SELECT ?1, coalesce(max(ordinal), 0) + 1, ?2, ?3 FROM operation_steps WHERE operation = ?1
           RETURNING ordinal AS "ordinal!: i64""#,
        id,
        name,
        now
    )
    .fetch_one(db)
    .await?)
}

/// Writes what came of a step.
pub async fn end_step(
    db: &mut SqliteConnection,
    id: Uuid,
    ordinal: i64,
    outcome: &str,
    now: i64,
) -> Result<(), StoreError> {
    let id = id.to_string();
    sqlx::query!(
        "UPDATE operation_steps SET finished_at = ?, outcome = ? WHERE operation = ? AND ordinal = ?",
        now,
        outcome,
        id,
        ordinal
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets ended operations older than `before`.
pub async fn forget(db: &mut SqliteConnection, before: i64) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM operations WHERE finished_at < ?", before).execute(db).await?;
    Ok(())
}
