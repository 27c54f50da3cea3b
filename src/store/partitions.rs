//! The partitions that were made in the control process of each daemon.

use super::rows::execute;
use super::values::AsJson;
use super::{Db, Result, daemons, layouts, parsed, to_json};
use crate::domain::DaemonName;
use crate::domain::layout::active::AppliedLayout;
use crate::domain::layout::record::PartitionRun;

/// Returns the last record of a daemon's partitions.
pub async fn run(db: &mut Db, daemon: &DaemonName) -> Result<Option<PartitionRun>> {
    let run = sqlx::query_scalar!(
        r#"SELECT run AS "run: AsJson<PartitionRun>" FROM partition_runs WHERE daemon = ?"#,
        daemon.as_str()
    );
    Ok(run.fetch_optional(db).await?.map(|run| run.0))
}

/// Writes the record of a daemon's partitions; nothing for a deleted daemon.
///
/// The first complete run of a layout records the IDs that its steps give here.
pub async fn put_run(db: &mut Db, name: &DaemonName, run: &PartitionRun, now: i64) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO partition_runs (daemon, run, written_at) SELECT name, ?2, ?3 FROM daemons WHERE name = ?1",
        name.as_str(),
        to_json(run),
        now
    )?;
    let Some(active) = daemons::get(&mut *db, name).await?.and_then(|daemon| daemon.spec.layout) else {
        return Ok(());
    };
    let layout = layouts::content(&mut *db, &active).await?;
    let applied = layouts::applied(&mut *db, name).await?;
    let news = AppliedLayout::after(run, &active, &layout, applied.as_ref());
    if let Some(news) = parsed("the layout of a daemon", news)? {
        layouts::put_applied(db, name, Some(&news), now).await?;
    }
    Ok(())
}
