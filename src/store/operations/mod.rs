//! Operations and their journals.

mod events;
mod reading;

use uuid::Uuid;

pub use events::{daemon_changed, daemon_deleted, put_spec, record_cancelled, requested, stop_requested};
pub use reading::{
    changing_layout, get, page, running, tenant, unfinished, unfinished_by_state, unfinished_maintenance,
    unfinished_of_kind, with_layout,
};

use super::rows::{changes, execute};
use super::values::AsText;
use super::{Db, Result, to_json};
use crate::domain::operation::{Operation, OperationEnd, OperationRequest};
use crate::domain::{DaemonName, TenantName};

/// Writes a new operation, which waits for its turn on each of its daemons; `tenant` is the tenant whose token requested it.
pub async fn insert(
    db: &mut Db,
    id: Uuid,
    daemons: &[DaemonName],
    request: &OperationRequest,
    tenant: Option<&TenantName>,
    now: i64,
) -> Result<()> {
    execute!(
        db,
        "INSERT INTO operations (id, request, tenant, state, created_at) VALUES (?, ?, ?, 'pending', ?)",
        id.to_string(),
        to_json(request),
        tenant.map(TenantName::as_str),
        now
    )?;
    for daemon in daemons {
        execute!(
            db,
            "INSERT INTO operation_daemons (operation, daemon) VALUES (?, ?)",
            id.to_string(),
            daemon.as_str()
        )?;
    }
    Ok(())
}

/// Takes the oldest operation whose turn it is on each of its daemons, locks them and marks it running.
///
/// All locks are taken at once, so none is held while another is waited for. Its turn comes when no operation that
/// shares a daemon with it runs or has waited longer, so one for several daemons is not passed by forever.
///
/// A client may be ended while a drain or maintenance waits for it, which is what these ask for: that runs beside them,
/// without a lock, as long as they can still be cancelled.
pub async fn claim(db: &mut Db, now: i64) -> Result<Option<Operation>> {
    let claimed = sqlx::query_scalar!(
        r#"UPDATE operations SET state = 'running', started_at = ?
           WHERE id = (
               SELECT id FROM operations AS next
               WHERE state = 'pending'
                 AND NOT EXISTS (
                     SELECT 1 FROM operation_daemons AS mine
                     JOIN operation_daemons AS theirs ON theirs.daemon = mine.daemon AND theirs.operation <> mine.operation
                     JOIN operations AS other ON other.id = theirs.operation
                     WHERE mine.operation = next.id
                       AND (other.state = 'running' OR (other.state = 'pending' AND other.id < next.id))
                       AND NOT (
                           next.request ->> 'kind' = 'terminate_client'
                           AND other.request ->> 'kind' IN ('drain_daemon', 'begin_maintenance')
                           AND (other.state = 'pending' OR other.cancellable = 1)
                       )
                 )
               ORDER BY id LIMIT 1
           )
           RETURNING id AS "id!: AsText<Uuid>""#,
        now
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(AsText(id)) = claimed else { return Ok(None) };
    execute!(
        db,
        "INSERT INTO operation_locks (daemon, operation)
         SELECT daemon, operation FROM operation_daemons WHERE operation = ?
           AND NOT EXISTS (
               SELECT 1 FROM operation_locks AS held
               JOIN operations AS mine ON mine.id = operation_daemons.operation
               WHERE held.daemon = operation_daemons.daemon AND mine.request ->> 'kind' = 'terminate_client'
           )",
        id.to_string()
    )?;
    events::started(&mut *db, id, now).await?;
    get(db, id).await
}

/// Ends an operation, frees its daemons, and deletes what it would have returned to.
pub async fn finish(db: &mut Db, id: Uuid, end: OperationEnd, now: i64) -> Result<()> {
    let key = id.to_string();
    execute!(
        db,
        "UPDATE operations SET state = ?, error = ?, finished_at = ?, cancellable = 0 WHERE id = ?",
        end.state().as_str(),
        end.error(),
        now,
        key
    )?;
    execute!(db, "DELETE FROM layout_changes WHERE operation = ?", key)?;
    execute!(db, "DELETE FROM operation_locks WHERE operation = ?", key)?;
    events::ended(db, id, end, now).await
}

/// Cancels an operation that has not begun; false when it has.
pub async fn cancel(db: &mut Db, id: Uuid, now: i64) -> Result<bool> {
    changes!(
        db,
        "UPDATE operations SET state = 'cancelled', finished_at = ? WHERE id = ? AND state = 'pending'",
        now,
        id.to_string()
    )
}

/// Requests that a running operation is cancelled; false when it cannot be cancelled at its present step.
pub async fn request_cancel(db: &mut Db, id: Uuid, now: i64) -> Result<bool> {
    changes!(
        db,
        "UPDATE operations SET cancel_requested_at = coalesce(cancel_requested_at, ?)
         WHERE id = ? AND state = 'running' AND cancellable = 1",
        now,
        id.to_string()
    )
}

/// From now on the operation can be cancelled.
pub async fn open_to_cancel(db: &mut Db, id: Uuid) -> Result<()> {
    execute!(db, "UPDATE operations SET cancellable = 1 WHERE id = ?", id.to_string())
}

/// From now on the operation cannot be cancelled; false when that was requested before.
pub async fn close_to_cancel(db: &mut Db, id: Uuid) -> Result<bool> {
    changes!(
        db,
        "UPDATE operations SET cancellable = 0 WHERE id = ? AND cancel_requested_at IS NULL",
        id.to_string()
    )
}

/// Writes a step that is about to be taken; returns its number.
pub async fn begin_step(db: &mut Db, id: Uuid, name: &str, now: i64) -> Result<i64> {
    Ok(sqlx::query_scalar!(
        r#"INSERT INTO operation_steps (operation, ordinal, name, started_at)
           SELECT ?1, coalesce(max(ordinal), 0) + 1, ?2, ?3 FROM operation_steps WHERE operation = ?1
           RETURNING ordinal AS "ordinal!: i64""#,
        id.to_string(),
        name,
        now
    )
    .fetch_one(db)
    .await?)
}

/// Writes the outcome of a step.
pub async fn end_step(db: &mut Db, id: Uuid, ordinal: i64, outcome: &str, now: i64) -> Result<()> {
    execute!(
        db,
        "UPDATE operation_steps SET finished_at = ?, outcome = ? WHERE operation = ? AND ordinal = ?",
        now,
        outcome,
        id.to_string(),
        ordinal
    )?;
    events::step(db, id, ordinal, now).await
}

/// A step that was observed only after it had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompletedStep {
    /// Name of the step.
    pub name: String,
    /// Its outcome.
    pub outcome: String,
}

/// Writes steps that were observed only after they had ended.
pub async fn note_steps(db: &mut Db, id: Uuid, steps: &[CompletedStep], now: i64) -> Result<()> {
    for CompletedStep { name, outcome } in steps {
        let ordinal = begin_step(&mut *db, id, name, now).await?;
        end_step(&mut *db, id, ordinal, outcome, now).await?;
    }
    Ok(())
}

/// Writes what the step that runs waits for.
pub async fn note_wait(db: &mut Db, id: Uuid, awaited: &str) -> Result<()> {
    execute!(
        db,
        "UPDATE operation_steps SET outcome = ?2
         WHERE operation = ?1 AND finished_at IS NULL
           AND ordinal = (SELECT max(ordinal) FROM operation_steps WHERE operation = ?1)",
        id.to_string(),
        awaited
    )
}

/// Forgets ended operations older than `before`.
pub async fn forget(db: &mut Db, before: i64) -> Result<()> {
    execute!(db, "DELETE FROM operations WHERE finished_at < ?", before)
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    fn daemons(names: &[&str]) -> Vec<DaemonName> {
        names.iter().map(|name| DaemonName::parse(name).expect("a name")).collect()
    }

    async fn write<T: Send + 'static>(
        store: &Store,
        job: impl for<'c> FnOnce(&'c mut Db) -> futures_util::future::BoxFuture<'c, Result<T>> + Send + 'static,
    ) -> T {
        let done: Result<T> = store.commit(job).await;
        done.expect("written")
    }

    async fn ask(store: &Store, id: u128, names: &[&str]) {
        let daemons = daemons(names);
        write(store, move |db| {
            Box::pin(async move {
                insert(db, Uuid::from_u128(id), &daemons, &OperationRequest::StartDaemon, None, 0).await
            })
        })
        .await;
    }

    async fn next(store: &Store) -> Option<u128> {
        write(store, |db| Box::pin(claim(db, 1))).await.map(|operation| operation.id.as_u128())
    }

    async fn end(store: &Store, id: u128) {
        write(store, move |db| Box::pin(finish(db, Uuid::from_u128(id), OperationEnd::Succeeded, 2))).await;
    }

    #[tokio::test]
    async fn operation_claims_all_its_daemons_in_order() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        ask(&store, 1, &["a"]).await;
        ask(&store, 2, &["a", "b"]).await;
        ask(&store, 3, &["b"]).await;
        ask(&store, 4, &["c"]).await;
        ask(&store, 5, &[]).await;
        assert_eq!(next(&store).await, Some(1));
        assert_eq!(next(&store).await, Some(4), "3 waits behind 2, though b is free");
        assert_eq!(next(&store).await, Some(5), "one that works on no daemon waits for nobody");
        assert_eq!(next(&store).await, None);
        end(&store, 1).await;
        assert_eq!(next(&store).await, Some(2));
        assert_eq!(next(&store).await, None);
        end(&store, 2).await;
        assert_eq!(next(&store).await, Some(3));
        assert_eq!(next(&store).await, None);
    }

    #[tokio::test]
    async fn running_operation_is_cancelled_only_while_cancellable() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let id = Uuid::from_u128(1);
        ask(&store, 1, &["a"]).await;
        assert_eq!(next(&store).await, Some(1));
        assert!(!write(&store, move |db| Box::pin(request_cancel(db, id, 5))).await);
        write(&store, move |db| Box::pin(open_to_cancel(db, id))).await;
        assert!(write(&store, move |db| Box::pin(request_cancel(db, id, 6))).await);
        assert!(!write(&store, move |db| Box::pin(close_to_cancel(db, id))).await, "requested before");
        assert!(write(&store, move |db| Box::pin(request_cancel(db, id, 7))).await);
        let cancelled = write(&store, move |db| Box::pin(get(db, id))).await.expect("there");
        assert_eq!(cancelled.cancel_requested_at, Some(6));

        ask(&store, 2, &["b"]).await;
        let id = Uuid::from_u128(2);
        assert_eq!(next(&store).await, Some(2));
        write(&store, move |db| Box::pin(open_to_cancel(db, id))).await;
        assert!(write(&store, move |db| Box::pin(close_to_cancel(db, id))).await);
        assert!(!write(&store, move |db| Box::pin(request_cancel(db, id, 8))).await, "too late");
    }
}
