//! Operations with their journals, as they are read.

use uuid::Uuid;

use super::super::values::{AsJson, AsText};
use super::super::{Db, Result, to_json};
use crate::domain::operation::{Operation, OperationFilter, OperationRequest, OperationState, Step};
use crate::domain::{DaemonName, LayoutName, TenantName};

/// Reads operations, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            Operation,
            r#"SELECT id AS "id!: AsText<Uuid>", request AS "request: AsJson<OperationRequest>", state AS "state: AsText<OperationState>",
                  error, created_at, started_at, finished_at, cancellable AS "cancellable: bool", cancel_requested_at,
                  (SELECT json_group_array(daemon ORDER BY daemon)
                   FROM operation_daemons WHERE operation = operations.id) AS "daemons!: AsJson<Vec<DaemonName>>",
                  (SELECT json_group_array(
                       json_object('name', name, 'started_at', started_at, 'finished_at', finished_at, 'outcome', outcome)
                       ORDER BY ordinal)
                   FROM operation_steps WHERE operation = operations.id) AS "steps!: AsJson<Vec<JournalRow>>"
               FROM operations "# + $rest
            $(, $value)*
        )
    };
}

/// A step as the query below puts it into JSON, with its times as they are stored.
#[derive(serde::Deserialize)]
struct JournalRow {
    name: String,
    started_at: i64,
    finished_at: Option<i64>,
    outcome: Option<String>,
}

impl From<AsJson<Vec<JournalRow>>> for Vec<Step> {
    fn from(AsJson(rows): AsJson<Vec<JournalRow>>) -> Self {
        let step = |JournalRow { name, started_at, finished_at, outcome }| Step {
            name,
            started_at,
            finished_at,
            outcome,
        };
        rows.into_iter().map(step).collect()
    }
}

/// The tenant whose token requested an operation.
pub async fn tenant(db: &mut Db, id: Uuid) -> Result<Option<TenantName>> {
    let tenant = sqlx::query_scalar!(
        r#"SELECT tenant AS "tenant: AsText<TenantName>" FROM operations WHERE id = ?"#,
        id.to_string()
    );
    Ok(tenant.fetch_optional(db).await?.flatten().map(|tenant| tenant.0))
}

/// The operation with that ID.
pub async fn get(db: &mut Db, id: Uuid) -> Result<Option<Operation>> {
    Ok(select!("WHERE id = ?", id.to_string()).fetch_optional(db).await?)
}

/// Up to `limit` operations, the newest first, from the one before `before`; those that a tenant requested, if one is named.
pub async fn page(
    db: &mut Db,
    tenant: Option<&TenantName>,
    filter: &OperationFilter,
    before: Option<&str>,
    limit: i64,
) -> Result<Vec<Operation>> {
    let states: Vec<&str> = filter.states.iter().copied().map(OperationState::as_str).collect();
    let query = select!(
        "WHERE (?1 IS NULL OR id < ?1) AND (?3 IS NULL OR tenant = ?3)
             AND (?4 IS NULL OR EXISTS (
                 SELECT 1 FROM operation_daemons WHERE operation = operations.id AND daemon = ?4
             ))
             AND (?5 IS NULL OR state IN (SELECT value FROM json_each(?5))) AND (?6 IS NULL OR created_at >= ?6)
           ORDER BY id DESC LIMIT ?2",
        before,
        limit,
        tenant.map(TenantName::as_str),
        filter.daemon.as_ref().map(DaemonName::as_str),
        (!states.is_empty()).then(|| to_json(&states)),
        filter.since
    );
    Ok(query.fetch_all(db).await?)
}

/// The first operation that waits or runs: on a daemon, and of some kinds, if these are given.
async fn first_unfinished(
    db: &mut Db,
    daemon: Option<&DaemonName>,
    kinds: Option<&[&str]>,
) -> Result<Option<Operation>> {
    let query = select!(
        "WHERE state IN ('pending', 'running')
           AND (?1 IS NULL OR id IN (SELECT operation FROM operation_daemons WHERE daemon = ?1))
           AND (?2 IS NULL OR request ->> 'kind' IN (SELECT value FROM json_each(?2)))
         ORDER BY id LIMIT 1",
        daemon.map(DaemonName::as_str),
        kinds.map(|kinds| to_json(&kinds))
    );
    Ok(query.fetch_optional(db).await?)
}

/// An operation of a daemon that waits or runs.
pub async fn unfinished(db: &mut Db, daemon: &DaemonName) -> Result<Option<Uuid>> {
    Ok(first_unfinished(db, Some(daemon), None).await?.map(|operation| operation.id))
}

/// An operation that puts a layout on a daemon, or is about to.
pub async fn changing_layout(db: &mut Db, daemon: &DaemonName) -> Result<Option<Uuid>> {
    let kinds = Some(&["apply_layout", "replay_layout"][..]);
    Ok(first_unfinished(db, Some(daemon), kinds).await?.map(|operation| operation.id))
}

/// An operation of this kind that waits or runs.
pub async fn unfinished_of_kind(db: &mut Db, kind: &str) -> Result<Option<Uuid>> {
    Ok(first_unfinished(db, None, Some(&[kind])).await?.map(|operation| operation.id))
}

/// The beginning or end of a maintenance that has not ended.
pub async fn unfinished_maintenance(db: &mut Db) -> Result<Option<Operation>> {
    first_unfinished(db, None, Some(&["begin_maintenance", "end_maintenance"])).await
}

/// Returns the operations that were running when the manager died.
pub async fn running(db: &mut Db) -> Result<Vec<Operation>> {
    Ok(select!("WHERE state = 'running' ORDER BY id").fetch_all(db).await?)
}

/// Counts the operations that have not ended, by state.
pub async fn unfinished_by_state(db: &mut Db) -> Result<Vec<(&'static str, u64)>> {
    let query = sqlx::query!(
        r#"SELECT count(*) FILTER (WHERE state = 'pending') AS "pending!: u64", count(*) FILTER (WHERE state = 'running') AS "running!: u64"
           FROM operations WHERE state IN ('pending', 'running')"#
    );
    let row = query.fetch_one(db).await?;
    let (pending, running) = (OperationState::Pending.as_str(), OperationState::Running.as_str());
    Ok(vec![(pending, row.pending), (running, row.running)])
}

/// An operation that waits for a layout, works with it, or may have to go back to it.
pub async fn with_layout(db: &mut Db, layout: &LayoutName) -> Result<Option<Uuid>> {
    let query = sqlx::query_scalar!(
        r#"SELECT id AS "id!: AsText<Uuid>" FROM operations LEFT JOIN layout_changes ON layout_changes.operation = operations.id
           WHERE state IN ('pending', 'running')
             AND (?1 IN (request ->> '$.layout', previous ->> '$.layout.name')
                  OR EXISTS (SELECT 1 FROM json_each(request, '$.layouts') AS applied WHERE applied.value ->> 'layout' = ?1))
           ORDER BY id LIMIT 1"#,
        layout.as_str()
    );
    Ok(query.fetch_optional(db).await?.map(|id| id.0))
}
