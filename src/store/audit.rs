//! The audit log: rows are appended in the transaction of the change that they record, and read.

use futures_util::TryStreamExt as _;
use sqlx::{Connection as _, QueryBuilder, Row as _, Sqlite};

use super::rows::condition;
use super::schema::{self, Schema};
use super::{Db, Result, StoreError, from_json};
use crate::domain::audit::{AttemptedAction, AuditOutcome, AuditRecord, Broken, Head};

/// Most rows of one statement: it may have 32 766 values.
const ROWS: usize = 1000;

/// The outcome of an attempt, as it is written.
#[derive(Debug, Clone, Default)]
pub struct AuditResult {
    /// Its outcome: done where no problem is given.
    pub problem: Option<(AuditOutcome, String)>,
    /// The spec before, where it changed.
    pub before: Option<String>,
    /// The spec after, where it changed.
    pub after: Option<String>,
}

/// Writes a row, chained to the last one.
pub async fn append(db: &mut Db, attempt: &AttemptedAction, result: AuditResult, now: i64) -> Result<()> {
    append_all(db, vec![(attempt.clone(), result)], now).await
}

/// Writes rows, chained to the last one and to each other.
pub async fn append_all(db: &mut Db, attempts: Vec<(AttemptedAction, AuditResult)>, now: i64) -> Result<()> {
    let mut head = head(&mut *db).await?;
    let rows: Vec<AuditRecord> =
        attempts.into_iter().map(|(attempt, result)| row(&mut head, attempt, result, now)).collect();
    for part in rows.chunks(ROWS) {
        let mut query = QueryBuilder::<Sqlite>::new(
            "INSERT INTO audit (id, at, actor, granted, origin, request, action, target, outcome, problem, before, after,
                                previous, hash) ",
        );
        query.push_values(part, |mut values, row| {
            values.push_bind(row.id).push_bind(row.at);
            values
                .push_bind(&row.actor)
                .push_bind(&row.granted)
                .push_bind(&row.origin)
                .push_bind(&row.request);
            values.push_bind(&row.action).push_bind(&row.target).push_bind(row.outcome.as_str());
            values.push_bind(&row.problem).push_bind(&row.before).push_bind(&row.after);
            values.push_bind(&row.previous).push_bind(&row.hash);
        });
        query.build().execute(&mut *db).await?;
    }
    Ok(())
}

/// The row of an attempt after the last row, which it becomes.
fn row(head: &mut Head, attempt: AttemptedAction, result: AuditResult, now: i64) -> AuditRecord {
    let (outcome, problem) = match result.problem {
        None => (AuditOutcome::Done, None),
        Some((outcome, problem)) => (outcome, Some(problem)),
    };
    let mut row = AuditRecord {
        id: head.id + 1,
        at: now,
        actor: attempt.actor,
        granted: attempt.granted,
        origin: attempt.origin,
        request: attempt.request,
        action: attempt.action,
        target: attempt.target.to_string(),
        outcome,
        problem,
        before: result.before,
        after: result.after,
        previous: std::mem::take(&mut head.hash),
        hash: String::new(),
    };
    row.hash = row.digest();
    *head = Head { id: row.id, hash: row.hash.clone() };
    row
}

/// The last row.
pub async fn head(db: &mut Db) -> Result<Head> {
    let row = sqlx::query!("SELECT id, hash FROM audit ORDER BY id DESC LIMIT 1").fetch_optional(db).await?;
    Ok(row.map_or_else(Head::genesis, |row| Head { id: row.id, hash: row.hash }))
}

/// Returns true if there is a row with this number and this hash.
pub async fn has(db: &mut Db, head: &Head) -> Result<bool> {
    let query = sqlx::query_scalar("SELECT count(*) FROM audit WHERE id = ? AND hash = ?");
    let rows: i64 = query.bind(head.id).bind(&head.hash).fetch_one(db).await?;
    Ok(rows > 0)
}

/// Returns the highest number that was ever given; its row may no longer exist.
pub async fn highest(db: &mut Db) -> Result<i64> {
    let given = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'audit'");
    Ok(given.fetch_optional(db).await?.unwrap_or(0))
}

/// Selects rows; a field that is not given selects all.
#[derive(Debug, Clone, Default)]
pub struct AuditFilter {
    /// Rows of this actor.
    pub actor: Option<String>,
    /// Rows about this target.
    pub target: Option<String>,
    /// Rows with this outcome.
    pub outcome: Option<AuditOutcome>,
    /// Rows written at this time or later, in unix milliseconds.
    pub since: Option<i64>,
    /// Rows written before this time.
    pub until: Option<i64>,
    /// True leaves out rows of leases, of log-ins and log-outs, and of callers without valid credentials.
    pub changes_only: bool,
}

/// Selects rows that are no routine: those of leases, of log-ins and log-outs, and of callers without valid credentials.
const NO_ROUTINE: &str = " AND instr(action, '/leases') = 0 AND action NOT IN ('authenticate', 'POST /login', 'POST /logout',
                               'POST /api/v1/session', 'DELETE /api/v1/session', 'POST /api/v1/login-urls', 'POST /settings/login-url')";

const COLUMNS: &str =
    "SELECT id, at, actor, granted, origin, request, action, target, outcome, problem, before, after,
                              previous, hash FROM audit WHERE id IS NOT NULL";

/// Up to `limit` selected rows, the last first, from the one before `before`.
pub async fn page(
    db: &mut Db,
    filter: &AuditFilter,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<AuditRecord>> {
    let mut query = QueryBuilder::<Sqlite>::new(COLUMNS);
    condition(&mut query, "id < ?", before);
    condition(&mut query, "actor = ?", filter.actor.as_deref());
    condition(&mut query, "target = ?", filter.target.as_deref());
    condition(&mut query, "outcome = ?", filter.outcome.map(AuditOutcome::as_str));
    condition(&mut query, "at >= ?", filter.since);
    condition(&mut query, "at < ?", filter.until);
    query.push(if filter.changes_only { NO_ROUTINE } else { "" });
    query.push(" ORDER BY id DESC LIMIT ").push_bind(limit);
    query.build().fetch_all(db).await?.iter().map(record).collect()
}

/// A row to be checked: one that cannot be read is broken, and those before it can still be read.
fn checked(row: &sqlx::sqlite::SqliteRow) -> Result<Result<AuditRecord, Broken>> {
    let id = row.try_get("id")?;
    Ok(record(row).map_err(|error| Broken { id, why: format!("it cannot be read: {error}") }))
}

fn record(row: &sqlx::sqlite::SqliteRow) -> Result<AuditRecord> {
    Ok(AuditRecord {
        id: row.try_get("id")?,
        at: row.try_get("at")?,
        actor: row.try_get("actor")?,
        granted: row.try_get("granted")?,
        origin: row.try_get("origin")?,
        request: row.try_get("request")?,
        action: row.try_get("action")?,
        target: row.try_get("target")?,
        outcome: from_json("an outcome", &format!("\"{}\"", row.try_get::<String, _>("outcome")?))?,
        problem: row.try_get("problem")?,
        before: row.try_get("before")?,
        after: row.try_get("after")?,
        previous: row.try_get("previous")?,
        hash: row.try_get("hash")?,
    })
}

/// Checks the whole chain of a database, whether a manager serves from it or not, without changing a byte of it.
///
/// The error of the inner result is the first row that does not fit.
pub async fn verify(path: &std::path::Path, anchor: Option<&Head>) -> Result<Result<Head, Broken>> {
    let mut db = schema::open_to_read(path).await?;
    // One state of the file, also while a manager writes.
    let mut snapshot = db.begin().await?;
    let schema = schema::read(&mut snapshot).await?;
    if schema == Schema::PreRelease {
        return Err(StoreError::PreRelease(path.to_owned()));
    }
    let ours = matches!(schema, Schema::Version(_));
    let mut head = Head::genesis();
    let checked = check(&mut snapshot, &mut head, anchor).await;
    let broken = match checked {
        Ok(broken) => broken,
        // A database of ours has the table, with all its columns.
        Err(StoreError::Database(error)) if ours && lacks_something(&error) => {
            Some(Broken { id: head.id + 1, why: format!("what rows are kept in is gone: {error}") })
        }
        Err(error) => return Err(error),
    };
    let highest = highest(&mut snapshot).await?;
    snapshot.rollback().await?;
    db.close().await?;
    let highest = highest.max(anchor.map_or(0, |anchor| anchor.id));
    let cut = (broken.is_none() && highest > head.id).then(|| Broken {
        id: head.id + 1,
        why: format!(
            "{highest} rows were written, and the last one there is {}: the end was cut off",
            head.id
        ),
    });
    Ok(match broken.or(cut) {
        Some(broken) => Err(broken),
        None => Ok(head),
    })
}

/// Follows the chain row by row; returns the first row that does not fit, and leaves `head` at the last one before it.
async fn check(db: &mut Db, head: &mut Head, anchor: Option<&Head>) -> Result<Option<Broken>> {
    // All of them: a row below the first one was put in, too.
    let mut query = QueryBuilder::<Sqlite>::new(COLUMNS);
    query.push(" ORDER BY id");
    let mut rows = query.build().fetch(db);
    while let Some(row) = rows.try_next().await? {
        let row = match checked(&row)? {
            Ok(row) => row,
            Err(broken) => return Ok(Some(broken)),
        };
        if let Err(broken) = head.advance(&row) {
            return Ok(Some(broken));
        }
        if anchor.is_some_and(|anchor| anchor.id == head.id && anchor.hash != head.hash) {
            let why = "it has another hash than the one that was kept elsewhere".to_owned();
            return Ok(Some(Broken { id: head.id, why }));
        }
    }
    Ok(None)
}

/// Returns true if a statement fails because a table or a column is missing.
fn lacks_something(error: &sqlx::Error) -> bool {
    // 1 is SQLITE_ERROR.
    error.as_database_error().is_some_and(|error| error.code().as_deref() == Some("1"))
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::domain::access::Actor;
    use crate::domain::audit::Target;

    #[tokio::test]
    async fn routine_rows_are_left_out_before_paging() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let lease = "POST /api/v1/tenants/{name}/leases";
        let routine = [
            lease,
            "DELETE /api/v1/tenants/{name}/leases/{id}",
            "POST /login",
            "DELETE /api/v1/session",
            "authenticate",
        ];
        let changes = ["PUT /api/v1/tenants/{name}", "POST /api/v1/tokens", "expire"];
        let actions = changes.into_iter().chain(routine).chain(std::iter::repeat_n(lease, 60));
        let rows = actions.map(|action| {
            let attempt =
                AttemptedAction::of(&Actor::manager(), None, action.to_owned(), Target::Other("a".into()));
            (attempt, AuditResult::default())
        });
        let rows: Vec<_> = rows.collect();
        let written: Result<()> = store.commit(move |db| Box::pin(append_all(db, rows, 7))).await;
        written.expect("written");
        let mut db = store.read().await.expect("a reader");
        let mut listed = async |changes_only: bool, before: Option<i64>| {
            let filter = AuditFilter { changes_only, ..AuditFilter::default() };
            let rows = page(&mut db, &filter, before, 2).await.expect("rows");
            rows.into_iter().map(|row| row.action).collect::<Vec<_>>()
        };
        assert_eq!(listed(false, None).await, [lease, lease]);
        assert_eq!(listed(true, None).await, ["expire", "POST /api/v1/tokens"]);
        assert_eq!(listed(true, Some(2)).await, ["PUT /api/v1/tenants/{name}"]);
    }
}
