//! Results of CUDA probes of GPUs: their chunks, and the SMs under the thread percentages of layouts.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::{StoreError, from_json, parsed, to_json};
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::VersionRef;
use crate::domain::layout::active::ProvenLayout;
use crate::domain::{DaemonName, GpuUuid, LayoutName};

/// Returns the chunks of each GPU on which they were counted.
pub async fn chunks(db: &mut SqliteConnection) -> Result<BTreeMap<GpuUuid, ChunkCensus>, StoreError> {
    let rows = sqlx::query!("SELECT gpu, chunk_count FROM gpu_chunks").fetch_all(db).await?;
    let read = |gpu: String, count: String| {
        Ok((parsed("a GPU's UUID", GpuUuid::parse(&gpu))?, from_json("the chunks of a GPU", &count)?))
    };
    rows.into_iter().map(|row| read(row.gpu, row.chunk_count)).collect()
}

/// Writes the chunks of a GPU.
pub async fn put_chunks(
    db: &mut SqliteConnection,
    gpu: &GpuUuid,
    count: &ChunkCensus,
    now: i64,
) -> Result<(), StoreError> {
    let (gpu, count) = (gpu.as_str(), to_json(count));
    sqlx::query!(
        "INSERT OR REPLACE INTO gpu_chunks (gpu, chunk_count, counted_at) VALUES (?, ?, ?)",
        gpu,
        count,
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Returns the last verified percentages of a daemon's layout.
pub async fn percentages(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
) -> Result<Option<ProvenLayout>, StoreError> {
    let daemon = daemon.as_str();
    let row = sqlx::query!(
        "SELECT layout, version, percentages FROM verified_percentages WHERE daemon = ?",
        daemon
    );
    let row = row.fetch_optional(db).await?;
    row.map(|row| {
        Ok(ProvenLayout {
            version: VersionRef {
                name: parsed("a layout's name", LayoutName::parse(&row.layout))?,
                version: parsed("a layout's version", u32::try_from(row.version))?,
            },
            shares: from_json("the percentages of a layout", &row.percentages)?,
        })
    })
    .transpose()
}

/// Writes the verified percentages of a daemon's layout.
pub async fn put_percentages(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    verified: &ProvenLayout,
    now: i64,
) -> Result<(), StoreError> {
    let (daemon, layout) = (daemon.as_str(), verified.version.name.as_str());
    let (version, shares) = (i64::from(verified.version.version), to_json(&verified.shares));
    sqlx::query!(
        "INSERT OR REPLACE INTO verified_percentages (daemon, layout, version, percentages, verified_at) VALUES (?, ?, ?, ?, ?)",
        daemon,
        layout,
        version,
        shares,
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Store, TransactionEnd, daemons};
    use super::*;
    use crate::domain::ThreadPercentage;
    use crate::domain::daemon::DaemonSpec;
    use crate::domain::layout::percentage::proof::ProvenShare;
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
