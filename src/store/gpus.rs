//! Last known state of GPUs, so that a daemon can be planned whose GPU is missing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::gpu::{Gpu, GpuFacts, known};
use crate::domain::{DaemonName, GpuUuid};

/// Returns the present GPUs, and the missing ones that a daemon holds, as they were last seen.
pub async fn all(db: &mut Db, present: Vec<Gpu>) -> Result<Vec<Gpu>> {
    Ok(known(present, &held(db).await?))
}

/// Returns the GPUs that daemons hold, with the last known state of each; `None` for one that was never seen.
pub async fn held(db: &mut Db) -> Result<BTreeMap<GpuUuid, Option<GpuFacts>>> {
    Ok(holders(db).await?.into_iter().map(|(gpu, (_, facts))| (gpu, facts)).collect())
}

/// Returns the GPUs that daemons hold, with the daemon that holds each and its last known state.
pub async fn holders(db: &mut Db) -> Result<BTreeMap<GpuUuid, (DaemonName, Option<GpuFacts>)>> {
    let query = sqlx::query!(
        r#"SELECT daemon_gpus.gpu AS "gpu!: AsText<GpuUuid>", daemon_gpus.daemon AS "daemon: AsText<DaemonName>",
                  gpus.facts AS "facts?: AsJson<GpuFacts>"
           FROM daemon_gpus LEFT JOIN gpus ON gpus.uuid = daemon_gpus.gpu"#
    );
    let held = query.map(|row| (row.gpu.0, (row.daemon.0, row.facts.map(|facts| facts.0))));
    Ok(held.fetch_all(db).await?.into_iter().collect())
}

/// Returns the device files of the GPUs that daemons hold, as far as they are known.
pub async fn device_files(db: &mut Db) -> Result<BTreeMap<GpuUuid, PathBuf>> {
    let gpus = held(db).await?.into_iter();
    Ok(gpus.filter_map(|(uuid, facts)| Some((uuid, facts?.device_file?))).collect())
}

/// Stores the present state of the GPUs that daemons hold; returns true if the state of one was unknown or has changed.
pub async fn remember(db: &mut Db, present: &[Gpu], now: i64) -> Result<bool> {
    let held = held(&mut *db).await?;
    let mut changed = false;
    for gpu in present.iter().filter(|gpu| gpu.present) {
        let facts = GpuFacts::of(gpu);
        if held.get(&gpu.uuid).is_none_or(|remembered| remembered.as_ref() == Some(&facts)) {
            continue;
        }
        changed = true;
        execute!(
            db,
            "INSERT OR REPLACE INTO gpus (uuid, facts, seen_at) VALUES (?, ?, ?)",
            gpu.uuid.as_str(),
            to_json(&facts),
            now
        )?;
    }
    Ok(changed)
}
