//! Leases: which processes were started for which tenant.

use sqlx::SqliteConnection;

use super::{StoreError, parsed};
use crate::domain::TenantName;
use crate::domain::client::{ClientId, Lease, LeaseKind, LeaseRecord};

/// All leases of this boot.
pub async fn all(db: &mut SqliteConnection, boot_id: &str) -> Result<Vec<Lease>, StoreError> {
    sqlx::query!("SELECT pid, start_time, tenant FROM leases WHERE boot_id = ? ORDER BY pid", boot_id)
        .fetch_all(db)
        .await?
        .into_iter()
        .map(|row| {
            Ok(Lease {
                holder: holder(row.pid, row.start_time)?,
                tenant: parsed("a tenant's name", TenantName::parse(&row.tenant))?,
            })
        })
        .collect()
}

/// All leases of this boot, with what else is kept of them.
pub async fn records(db: &mut SqliteConnection, boot_id: &str) -> Result<Vec<LeaseRecord>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT pid, start_time, tenant, kind, by_operator AS "by_operator: bool", command, created_at FROM leases WHERE boot_id = ? ORDER BY pid, start_time"#,
        boot_id
    );
    let read = rows.fetch_all(db).await?.into_iter().map(|row| {
        Ok(LeaseRecord {
            lease: Lease {
                holder: holder(row.pid, row.start_time)?,
                tenant: parsed("a tenant's name", TenantName::parse(&row.tenant))?,
            },
            kind: parsed("a kind of lease", LeaseKind::parse(&row.kind))?,
            by_operator: row.by_operator,
            command: row.command,
            created_at: row.created_at,
        })
    });
    read.collect()
}

/// The lease of a process for a tenant, whichever boot it is of: a start time of another boot is another process, or gone.
pub async fn of(
    db: &mut SqliteConnection,
    tenant: &TenantName,
    process: ClientId,
) -> Result<Option<LeaseRecord>, StoreError> {
    let ((pid, start_time), name) = (columns(process), tenant.as_str());
    let row = sqlx::query!(
        r#"SELECT kind, by_operator AS "by_operator: bool", command, created_at FROM leases WHERE pid = ? AND start_time = ? AND tenant = ? LIMIT 1"#,
        pid,
        start_time,
        name
    );
    let Some(row) = row.fetch_optional(db).await? else { return Ok(None) };
    Ok(Some(LeaseRecord {
        lease: Lease { holder: process, tenant: tenant.clone() },
        kind: parsed("a kind of lease", LeaseKind::parse(&row.kind))?,
        by_operator: row.by_operator,
        command: row.command,
        created_at: row.created_at,
    }))
}

/// Writes a lease; the same process asking again for its tenant replaces its own.
pub async fn put(db: &mut SqliteConnection, record: &LeaseRecord, boot_id: &str) -> Result<(), StoreError> {
    let (pid, start_time) = columns(record.lease.holder);
    let tenant = record.lease.tenant.as_str();
    let kind = record.kind.as_str();
    sqlx::query!(
        "INSERT OR REPLACE INTO leases (pid, start_time, boot_id, tenant, kind, by_operator, command, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        pid,
        start_time,
        boot_id,
        tenant,
        kind,
        record.by_operator,
        record.command,
        record.created_at
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets the lease of a process that is gone.
pub async fn delete(db: &mut SqliteConnection, holder: ClientId) -> Result<(), StoreError> {
    let (pid, start_time) = columns(holder);
    sqlx::query!("DELETE FROM leases WHERE pid = ? AND start_time = ?", pid, start_time).execute(db).await?;
    Ok(())
}

/// Reads the holder of a lease from its columns.
pub(super) fn holder(pid: i64, start_time: i64) -> Result<ClientId, StoreError> {
    Ok(ClientId {
        pid: parsed("a process ID", u32::try_from(pid))?,
        start_time: parsed("a start time", u64::try_from(start_time))?,
    })
}

/// Returns the holder of a lease as columns.
pub(super) fn columns(holder: ClientId) -> (i64, i64) {
    (i64::from(holder.pid), holder.start_time.cast_signed())
}
