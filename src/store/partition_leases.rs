//! Who was let into which partition.
//!
//! An ID names SMs: after a removal it may come back for somebody else, while a process that was let into it lives.

use sqlx::SqliteConnection;

use super::{StoreError, parsed};
use crate::domain::client::ClientId;
use crate::domain::partitions::PartitionRef;
use crate::domain::{GpuUuid, PartitionId, TenantName};

/// A process that was let into a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLease {
    /// The process.
    pub holder: ClientId,
    /// The partition.
    pub partition: PartitionRef,
    /// For whom.
    pub tenant: TenantName,
}

/// All of this boot.
pub async fn all(db: &mut SqliteConnection, boot_id: &str) -> Result<Vec<PartitionLease>, StoreError> {
    let rows = sqlx::query!(
        "SELECT pid, start_time, gpu, partition_id, tenant FROM partition_leases WHERE boot_id = ? ORDER BY pid",
        boot_id
    );
    let read = rows.fetch_all(db).await?.into_iter().map(|row| {
        Ok(PartitionLease {
            holder: ClientId {
                pid: parsed("a process ID", u32::try_from(row.pid))?,
                start_time: parsed("a start time", u64::try_from(row.start_time))?,
            },
            partition: PartitionRef {
                gpu: parsed("a GPU's UUID", GpuUuid::parse(&row.gpu))?,
                id: parsed("a partition's ID", PartitionId::parse(&row.partition_id))?,
            },
            tenant: parsed("a tenant's name", TenantName::parse(&row.tenant))?,
        })
    });
    read.collect()
}

/// Writes that a process is let into a partition.
pub async fn put(
    db: &mut SqliteConnection,
    lease: &PartitionLease,
    boot_id: &str,
    now: i64,
) -> Result<(), StoreError> {
    let (pid, start_time) = (i64::from(lease.holder.pid), lease.holder.start_time.cast_signed());
    let (gpu, id) = (lease.partition.gpu.as_str(), lease.partition.id.as_str());
    let tenant = lease.tenant.as_str();
    sqlx::query!(
        "INSERT OR REPLACE INTO partition_leases (pid, start_time, boot_id, gpu, partition_id, tenant, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        pid,
        start_time,
        boot_id,
        gpu,
        id,
        tenant,
        now
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets what a process that is gone was let into.
pub async fn delete(db: &mut SqliteConnection, holder: ClientId) -> Result<(), StoreError> {
    let (pid, start_time) = (i64::from(holder.pid), holder.start_time.cast_signed());
    sqlx::query!("DELETE FROM partition_leases WHERE pid = ? AND start_time = ?", pid, start_time)
        .execute(db)
        .await?;
    Ok(())
}
