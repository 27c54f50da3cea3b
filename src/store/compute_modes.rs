//! Compute modes of ours, and what was before them.

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::gpu::ComputeMode;
use crate::domain::{DaemonName, GpuUuid};

/// All of them, by GPU.
pub async fn all(db: &mut Db) -> Result<Vec<(GpuUuid, OwnedComputeMode)>> {
    let query = sqlx::query!(
        r#"SELECT gpu AS "gpu: AsText<GpuUuid>", daemon AS "daemon: AsText<DaemonName>", previous AS "previous: AsJson<ComputeMode>",
               desired AS "desired: AsJson<ComputeMode>", boot_id FROM compute_modes ORDER BY gpu"#
    );
    let held = query.map(|row| {
        let (AsText(daemon), AsJson(previous), AsJson(desired)) = (row.daemon, row.previous, row.desired);
        (row.gpu.0, OwnedComputeMode { daemon, previous, desired, boot_id: row.boot_id })
    });
    Ok(held.fetch_all(db).await?)
}

/// Writes what is held of a GPU in place of what was, or that nothing is any more.
pub async fn put(db: &mut Db, gpu: &GpuUuid, held: Option<&OwnedComputeMode>, now: i64) -> Result<()> {
    let Some(held) = held else {
        return execute!(db, "DELETE FROM compute_modes WHERE gpu = ?", gpu.as_str());
    };
    execute!(
        db,
        "INSERT OR REPLACE INTO compute_modes (gpu, daemon, previous, desired, boot_id, written_at) VALUES (?, ?, ?, ?, ?, ?)",
        gpu.as_str(),
        held.daemon.as_str(),
        to_json(&held.previous),
        to_json(&held.desired),
        held.boot_id,
        now
    )
}
