//! Replays and what came of them.

use uuid::Uuid;

use super::rows::execute;
use super::values::AsJson;
use super::{Db, Result, to_json};
use crate::domain::DaemonName;
use crate::domain::daemon::{DaemonSpec, DesiredState};
use crate::domain::layout::replay::{ANOTHER_LAYOUT, Replay};
use crate::domain::layout::status::LayoutStatus;

/// Reads replays, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query!(r#"SELECT content AS "content: AsJson<Replay>" FROM replays "# + $rest $(, $value)*)
            .map(|row| row.content.0)
    };
}

/// Writes a replay, in place of what was written of it before.
pub async fn put(db: &mut Db, replay: &Replay) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO replays (id, daemon, operation, verdict, content, created_at, finished_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        replay.id.to_string(),
        replay.daemon.as_str(),
        replay.operation.map(|id| id.to_string()),
        replay.verdict.as_str(),
        to_json(replay),
        replay.created_at,
        replay.finished_at
    )
}

/// The replay with that ID.
pub async fn get(db: &mut Db, id: Uuid) -> Result<Option<Replay>> {
    Ok(select!("WHERE id = ?", id.to_string()).fetch_optional(db).await?)
}

/// Up to `limit` replays, the newest first, from the one before `before`.
pub async fn page(db: &mut Db, before: Option<&str>, limit: i64) -> Result<Vec<Replay>> {
    Ok(select!("WHERE ?1 IS NULL OR id < ?1 ORDER BY id DESC LIMIT ?2", before, limit).fetch_all(db).await?)
}

/// Forgets replays that ended before then.
pub async fn forget(db: &mut Db, before: i64) -> Result<()> {
    execute!(db, "DELETE FROM replays WHERE finished_at < ?", before)
}

/// Ends the record of a restart with the state of the layout in the control process; does nothing if no record is open.
pub async fn end_restart(db: &mut Db, name: &DaemonName, status: &LayoutStatus, now: i64) -> Result<()> {
    let Some(pending) = pending_restart(&mut *db, name).await? else { return Ok(()) };
    put(db, &Replay { finished_at: Some(now), ..pending.judged(status) }).await
}

/// Ends the record of a restart whose layout is no longer desired, so that no driver will: `desired` is what the daemon is to
/// hold from now on, and `None` where it is forgotten.
pub async fn call_off_restart(
    db: &mut Db,
    name: &DaemonName,
    desired: Option<&DaemonSpec>,
    now: i64,
) -> Result<()> {
    let Some(pending) = pending_restart(&mut *db, name).await? else { return Ok(()) };
    let why = match desired.map(|spec| (&spec.layout, spec.desired_state)) {
        None => "the daemon was forgotten before its layout was applied",
        Some((None, _)) => "the layout was taken out of the daemon's spec before it was applied",
        Some((Some(layout), _)) if !pending.is_of(layout) => ANOTHER_LAYOUT,
        Some((Some(_), DesiredState::Stopped)) => {
            "the daemon was asked to stop before its layout was applied"
        }
        Some((Some(_), DesiredState::Running)) => return Ok(()),
    };
    let ended = Replay { finished_at: Some(now), ..pending.given_up(why.to_owned(), None, Vec::new(), None) };
    put(db, &ended).await
}

/// Gives up all replays that have not completed.
pub async fn give_up(db: &mut Db, why: &str, now: i64) -> Result<()> {
    for pending in select!("WHERE verdict = 'pending'").fetch_all(&mut *db).await? {
        let given_up = pending.given_up(why.to_owned(), None, Vec::new(), None);
        put(&mut *db, &Replay { finished_at: Some(now), ..given_up }).await?;
    }
    Ok(())
}

/// The record of a restart that has not completed.
pub(super) async fn pending_restart(db: &mut Db, name: &DaemonName) -> Result<Option<Replay>> {
    let query = select!(
        "WHERE daemon = ? AND verdict = 'pending' AND json_extract(content, '$.cause') = 'restart'
         ORDER BY id DESC LIMIT 1",
        name.as_str()
    );
    Ok(query.fetch_optional(db).await?)
}
