//! Who was let into which partition.
//!
//! An ID names SMs: after a removal it may come back for somebody else, while a process that was let into it lives.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::leases::{columns, holder};
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
    /// For whom; `None` where that tenant is forgotten, whoever has its name now.
    pub tenant: Option<TenantName>,
}

/// What stands in the place of a tenant's name where it is forgotten: no tenant can be called that.
const NOBODYS: &str = "";

/// All of this boot.
pub async fn all(db: &mut SqliteConnection, boot_id: &str) -> Result<Vec<PartitionLease>, StoreError> {
    let rows = sqlx::query!(
        "SELECT pid, start_time, gpu, partition_id, tenant FROM partition_leases WHERE boot_id = ? ORDER BY pid",
        boot_id
    );
    let read = rows.fetch_all(db).await?.into_iter().map(|row| {
        Ok(PartitionLease {
            holder: holder(row.pid, row.start_time)?,
            partition: PartitionRef {
                gpu: parsed("a GPU's UUID", GpuUuid::parse(&row.gpu))?,
                id: parsed("a partition's ID", PartitionId::parse(&row.partition_id))?,
            },
            tenant: match row.tenant.as_str() {
                NOBODYS => None,
                name => Some(parsed("a tenant's name", TenantName::parse(name))?),
            },
        })
    });
    read.collect()
}

/// The processes of this boot that were let into each partition, whether they live or not.
pub async fn let_in(
    db: &mut SqliteConnection,
    boot_id: &str,
) -> Result<BTreeMap<PartitionRef, Vec<ClientId>>, StoreError> {
    let mut let_in: BTreeMap<PartitionRef, Vec<ClientId>> = BTreeMap::new();
    for lease in all(db, boot_id).await? {
        let_in.entry(lease.partition).or_default().push(lease.holder);
    }
    Ok(let_in)
}

/// Writes that a process is let into a partition; what it was let into before on that GPU has to be the same.
pub async fn put(
    db: &mut SqliteConnection,
    lease: &PartitionLease,
    boot_id: &str,
    now: i64,
) -> Result<(), StoreError> {
    let (pid, start_time) = columns(lease.holder);
    let (gpu, id) = (lease.partition.gpu.as_str(), lease.partition.id.as_str());
    let tenant = lease.tenant.as_ref().map_or(NOBODYS, TenantName::as_str);
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
    let (pid, start_time) = columns(holder);
    sqlx::query!("DELETE FROM partition_leases WHERE pid = ? AND start_time = ?", pid, start_time)
        .execute(db)
        .await?;
    Ok(())
}
