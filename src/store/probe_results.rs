//! The chunks of GPUs, as CUDA probes have counted them.

use std::collections::BTreeMap;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::GpuUuid;
use crate::domain::gpu::ChunkCensus;

/// Returns the chunks of each GPU on which they were counted.
pub async fn chunks(db: &mut Db) -> Result<BTreeMap<GpuUuid, ChunkCensus>> {
    let query = sqlx::query!(
        r#"SELECT gpu AS "gpu: AsText<GpuUuid>", chunk_count AS "count: AsJson<ChunkCensus>" FROM gpu_chunks"#
    );
    Ok(query.map(|row| (row.gpu.0, row.count.0)).fetch_all(db).await?.into_iter().collect())
}

/// Writes the chunks of a GPU.
pub async fn put_chunks(db: &mut Db, gpu: &GpuUuid, count: &ChunkCensus, now: i64) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO gpu_chunks (gpu, chunk_count, counted_at) VALUES (?, ?, ?)",
        gpu.as_str(),
        to_json(count),
        now
    )
}

#[cfg(test)]
mod tests {
    use super::super::{Store, TransactionEnd};
    use super::*;
    use crate::testing::h200;

    #[tokio::test]
    async fn probe_results_are_stored_and_replaced() {
        let directory = tempfile::tempdir().expect("directory");
        let store = Store::open(&directory.path().join("db.sqlite"), 0).await.expect("store");
        let gpu = h200(0).uuid;
        let counted = ChunkCensus { sms: 132, chunk_sms: 8, chunks: 15, left_over_sms: 12 };
        let expected = BTreeMap::from([(gpu.clone(), counted)]);
        let read = store
            .write(move |db| {
                Box::pin(async move {
                    put_chunks(&mut *db, &gpu, &ChunkCensus { chunks: 14, ..counted }, 1).await?;
                    put_chunks(&mut *db, &gpu, &counted, 2).await?;
                    Ok::<_, super::super::StoreError>((chunks(&mut *db).await?, TransactionEnd::RollBack))
                })
            })
            .await
            .expect("written");
        assert_eq!(read, expected);
    }
}
