//! Compute modes of ours, and what was before them.

use sqlx::SqliteConnection;

use super::{StoreError, from_json, parsed, to_json};
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::{DaemonName, GpuUuid};

/// All of them, by GPU.
pub async fn all(db: &mut SqliteConnection) -> Result<Vec<(GpuUuid, OwnedComputeMode)>, StoreError> {
    sqlx::query!("SELECT gpu, daemon, previous, desired, boot_id FROM compute_modes ORDER BY gpu")
        .fetch_all(db)
        .await?
        .into_iter()
        .map(|row| {
            let held = OwnedComputeMode {
                daemon: parsed("a daemon's name", DaemonName::parse(&row.daemon))?,
                previous: from_json("a compute mode", &row.previous)?,
                desired: from_json("a compute mode", &row.desired)?,
                boot_id: row.boot_id,
            };
            Ok((parsed("a GPU's UUID", GpuUuid::parse(&row.gpu))?, held))
        })
        .collect()
}

/// Writes what is held of a GPU in place of what was, or that nothing is any more.
pub async fn put(
    db: &mut SqliteConnection,
    gpu: &GpuUuid,
    held: Option<&OwnedComputeMode>,
    now: i64,
) -> Result<(), StoreError> {
    let gpu = gpu.as_str();
    let Some(held) = held else {
        sqlx::query!("DELETE FROM compute_modes WHERE gpu = ?", gpu).execute(db).await?;
        return Ok(());
    };
    let (daemon, previous, desired) = (held.daemon.as_str(), to_json(&held.previous), to_json(&held.desired));
    sqlx::query!(
        "INSERT OR REPLACE INTO compute_modes (gpu, daemon, previous, desired, boot_id, written_at) VALUES (?, ?, ?, ?, ?, ?)",
        gpu,
        daemon,
        previous,
        desired,
        held.boot_id,
        now
    )
    .execute(db)
    .await?;
    Ok(())
}
