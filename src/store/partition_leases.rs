//! Processes that were started in a partition.
//!
//! An ID names SMs: after a removal it may be given to another tenant while a process that was started in it lives.

use std::collections::BTreeMap;

use super::leases::columns;
use super::rows::execute;
use super::values::AsText;
use super::{Db, Result};
use crate::domain::client::ClientId;
use crate::domain::partitions::PartitionRef;
use crate::domain::{GpuUuid, PartitionId, TenantName};

/// A process that was started in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionLease {
    /// The process.
    pub holder: ClientId,
    /// The partition.
    pub partition: PartitionRef,
    /// For which tenant; `None` once that tenant is deleted, also if another one has its name.
    pub tenant: Option<TenantName>,
}

/// Stands for a deleted tenant: no tenant can have this name.
const NO_TENANT: &str = "";

/// All of this boot.
pub async fn all(db: &mut Db, boot_id: &str) -> Result<Vec<PartitionLease>> {
    let query = sqlx::query!(
        r#"SELECT pid AS "pid: u32", start_time AS "start_time: u64", gpu AS "gpu: AsText<GpuUuid>",
               partition_id AS "id: AsText<PartitionId>", nullif(tenant, ?) AS "tenant: AsText<TenantName>"
           FROM partition_leases WHERE boot_id = ? ORDER BY pid"#,
        NO_TENANT,
        boot_id
    );
    let lease = query.map(|row| PartitionLease {
        holder: ClientId { pid: row.pid, start_time: row.start_time },
        partition: PartitionRef { gpu: row.gpu.0, id: row.id.0 },
        tenant: row.tenant.map(|tenant| tenant.0),
    });
    Ok(lease.fetch_all(db).await?)
}

/// The processes of this boot that were started in each partition, whether they live or not.
pub async fn holders(db: &mut Db, boot_id: &str) -> Result<BTreeMap<PartitionRef, Vec<ClientId>>> {
    let mut holders: BTreeMap<PartitionRef, Vec<ClientId>> = BTreeMap::new();
    for lease in all(db, boot_id).await? {
        holders.entry(lease.partition).or_default().push(lease.holder);
    }
    Ok(holders)
}

/// Writes that a process is started in a partition; the caller has made sure that it is in no other one of that GPU.
pub async fn put(db: &mut Db, lease: &PartitionLease, boot_id: &str, now: i64) -> Result<()> {
    let (pid, start_time) = columns(lease.holder);
    execute!(db, "INSERT OR REPLACE INTO partition_leases (pid, start_time, boot_id, gpu, partition_id, tenant, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        pid,
        start_time,
        boot_id,
        lease.partition.gpu.as_str(),
        lease.partition.id.as_str(),
        lease.tenant.as_ref().map_or(NO_TENANT, TenantName::as_str),
        now)
}

/// Deletes the leases of a process that is gone.
pub async fn delete(db: &mut Db, holder: ClientId) -> Result<()> {
    let (pid, start_time) = columns(holder);
    execute!(db, "DELETE FROM partition_leases WHERE pid = ? AND start_time = ?", pid, start_time)
}

/// Takes the tenant from the leases of a process: it lives, and is no longer its tenant's.
pub async fn disown_holder(db: &mut Db, holder: ClientId) -> Result<()> {
    let (pid, start_time) = columns(holder);
    execute!(
        db,
        "UPDATE partition_leases SET tenant = ? WHERE pid = ? AND start_time = ?",
        NO_TENANT,
        pid,
        start_time
    )
}

/// Takes a tenant from its leases: it is deleted, and another may get its name.
pub async fn disown(db: &mut Db, tenant: &TenantName) -> Result<()> {
    execute!(db, "UPDATE partition_leases SET tenant = ? WHERE tenant = ?", NO_TENANT, tenant.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    #[tokio::test]
    async fn leases_of_deleted_tenant_stay_without_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = Store::open(&dir.path().join("test.db"), 0).await.expect("a store");
        let of = |pid: u32, tenant: &str| PartitionLease {
            holder: ClientId { pid, start_time: 1 },
            partition: PartitionRef {
                gpu: GpuUuid::parse("GPU-00000000-0000-0000-0000-000000000001").expect("a UUID"),
                id: PartitionId::parse("jAAAAAAAAAAAAAAAAAAAAA").expect("an ID"),
            },
            tenant: Some(TenantName::parse(tenant).expect("a name")),
        };
        let leases = [of(1, "web"), of(2, "batch"), of(3, "batch")];
        let left: Result<Vec<PartitionLease>> = store
            .commit(move |db| {
                Box::pin(async move {
                    for lease in &leases {
                        put(&mut *db, lease, "boot", 0).await?;
                    }
                    disown(&mut *db, leases[0].tenant.as_ref().expect("a tenant")).await?;
                    disown_holder(&mut *db, leases[2].holder).await?;
                    all(db, "boot").await
                })
            })
            .await;
        let left = left.expect("written");
        let tenants: Vec<Option<&str>> =
            left.iter().map(|lease| lease.tenant.as_ref().map(TenantName::as_str)).collect();
        assert_eq!(tenants, [None, Some("batch"), None]);
    }
}
