//! Results of CUDA probes of GPUs: their chunks, and the SMs under the thread percentages of layouts.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{StoreError, to_json};
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::VersionRef;
use crate::domain::layout::active::ProvenLayout;
use crate::domain::layout::percentage::proof::ProvenShare;
use crate::domain::{DaemonName, GpuUuid, LayoutName};

/// Returns the chunks of each GPU on which they were counted.
pub async fn chunks(db: &mut SqliteConnection) -> Result<BTreeMap<GpuUuid, ChunkCensus>, StoreError> {
    let query = sqlx::query!(
        r#"SELECT gpu AS "gpu: AsText<GpuUuid>", chunk_count AS "count: AsJson<ChunkCensus>" FROM gpu_chunks"#
    );
    Ok(query.map(|row| (row.gpu.0, row.count.0)).fetch_all(db).await?.into_iter().collect())
}

/// Writes the chunks of a GPU.
pub async fn put_chunks(
    db: &mut SqliteConnection,
    gpu: &GpuUuid,
    count: &ChunkCensus,
    now: i64,
) -> Result<(), StoreError> {
    execute!(
        db,
        "INSERT OR REPLACE INTO gpu_chunks (gpu, chunk_count, counted_at) VALUES (?, ?, ?)",
        gpu.as_str(),
        to_json(count),
        now
    )
}

/// Returns the last verified percentages of a daemon's layout.
pub async fn percentages(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
) -> Result<Option<ProvenLayout>, StoreError> {
    let query = sqlx::query!(
        r#"SELECT layout AS "name: AsText<LayoutName>", version AS "version: u32", percentages AS "shares: AsJson<Vec<ProvenShare>>"
           FROM verified_percentages WHERE daemon = ?"#,
        daemon.as_str()
    );
    let verified = query.map(|row| ProvenLayout {
        version: VersionRef { name: row.name.0, version: row.version },
        shares: row.shares.0,
    });
    Ok(verified.fetch_optional(db).await?)
}

/// Writes the verified percentages of a daemon's layout.
pub async fn put_percentages(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    verified: &ProvenLayout,
    now: i64,
) -> Result<(), StoreError> {
    execute!(
        db,
        "INSERT OR REPLACE INTO verified_percentages (daemon, layout, version, percentages, verified_at) VALUES (?, ?, ?, ?, ?)",
        daemon.as_str(),
        verified.version.name.as_str(),
        verified.version.version,
        to_json(&verified.shares),
        now
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Store, TransactionEnd, daemons};
    use super::*;
    use crate::domain::ThreadPercentage;
    use crate::domain::daemon::DaemonSpec;
    use crate::testing::h200;

    #[tokio::test]
    async fn probe_results_are_stored_and_replaced() {
        let directory = tempfile::tempdir().expect("directory");
        let store = Store::open(&directory.path().join("db.sqlite"), 0).await.expect("store");
        let (daemon, gpu) = (DaemonName::parse("gpu0").expect("name"), h200(0).uuid);
        let counted = ChunkCensus { sms: 132, chunk_sms: 8, chunks: 15, left_over_sms: 12 };
        let share = |tenths, sms| ProvenShare {
            chunks: 7,
            percentage: ThreadPercentage::from_tenths(tenths).expect("in range"),
            seen: BTreeMap::from([(h200(0).uuid, sms)]),
        };
        let of = |version, share| ProvenLayout {
            version: VersionRef { name: LayoutName::parse("web").expect("name"), version },
            shares: vec![share],
        };
        let (first, second) = (of(1, share(425, 56)), of(2, share(304, 40)));
        let expected = (BTreeMap::from([(gpu.clone(), counted)]), Some(second.clone()));
        let read = store
            .write(move |db| {
                Box::pin(async move {
                    assert_eq!(percentages(&mut *db, &daemon).await?, None);
                    daemons::put(&mut *db, &daemon, &DaemonSpec::of(vec![gpu.clone()]), 0).await?;
                    put_chunks(&mut *db, &gpu, &ChunkCensus { chunks: 14, ..counted }, 1).await?;
                    put_chunks(&mut *db, &gpu, &counted, 2).await?;
                    put_percentages(&mut *db, &daemon, &first, 3).await?;
                    put_percentages(&mut *db, &daemon, &second, 4).await?;
                    let read = (chunks(&mut *db).await?, percentages(&mut *db, &daemon).await?);
                    daemons::delete(&mut *db, &daemon, 0).await?;
                    assert_eq!(percentages(&mut *db, &daemon).await?, None, "it goes with the daemon");
                    Ok::<_, StoreError>((read, TransactionEnd::RollBack))
                })
            })
            .await
            .expect("written");
        assert_eq!(read, expected);
    }
}
