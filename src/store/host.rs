//! The host to which the database belongs.

use super::rows::execute;
use super::{Db, Result, replays};

/// The machine ID of the host that the database belongs to; `None` before the first start that knew of it.
pub async fn machine_id(db: &mut Db) -> Result<Option<String>> {
    Ok(sqlx::query_scalar!("SELECT machine_id FROM host").fetch_optional(db).await?)
}

/// Writes the host that the database belongs to from now on.
pub async fn put_machine_id(db: &mut Db, machine_id: &str, now: i64) -> Result<()> {
    execute!(db, "INSERT OR REPLACE INTO host (id, machine_id, written_at) VALUES (1, ?, ?)", machine_id, now)
}

/// Gives the database to another host: deletes the processes, the maintenance and the compute modes of the one before, and fails
/// its unfinished operations.
///
/// A boot ID names a machine, too: rows of this boot are this machine's, which got a new ID, and stay.
pub async fn move_to(db: &mut Db, machine_id: &str, boot_id: &str, now: i64) -> Result<()> {
    put_machine_id(&mut *db, machine_id, now).await?;
    forget_other_boots(&mut *db, boot_id).await?;
    execute!(db, "DELETE FROM compute_modes WHERE boot_id <> ?", boot_id)?;
    execute!(db, "DELETE FROM maintenance")?;
    fail_unfinished(db, "requested on another machine, from which this database was copied", now).await
}

/// Fails every unfinished operation for this reason, and deletes all that would have continued it.
pub async fn fail_unfinished(db: &mut Db, error: &str, now: i64) -> Result<()> {
    execute!(
        db,
        "UPDATE operations SET state = 'failed', error = ?, finished_at = ? WHERE state IN ('pending', 'running')",
        error,
        now
    )?;
    execute!(db, "DELETE FROM layout_changes")?;
    replays::give_up(&mut *db, error, now).await?;
    execute!(db, "DELETE FROM operation_locks")
}

/// Deletes the control processes and the leases of earlier boots, whose processes cannot live.
///
/// The directories of an adopted or observed daemon stay known: its owner, or this manager, starts it there again.
pub async fn forget_other_boots(db: &mut Db, boot_id: &str) -> Result<()> {
    execute!(db, "DELETE FROM incarnations WHERE boot_id <> ? AND pipe_directory IS NULL", boot_id)?;
    execute!(db, "UPDATE incarnations SET pid = NULL, start_time = NULL, pipe_inode = NULL, pipe_birth_ns = NULL, applied_generation = 0
         WHERE boot_id <> ?",
        boot_id)?;
    execute!(db, "DELETE FROM partition_leases WHERE boot_id <> ?", boot_id)?;
    execute!(db, "DELETE FROM leases WHERE boot_id <> ?", boot_id)
}
