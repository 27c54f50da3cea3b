//! Leases: which processes were started for which tenant.

use super::rows::execute;
use super::values::AsText;
use super::{Db, Result};
use crate::domain::TenantName;
use crate::domain::client::{ClientId, Lease, LeaseKind, LeaseRecord};

/// Reads leases, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query!(
            r#"SELECT pid AS "pid: u32", start_time AS "start_time: u64", tenant AS "tenant: AsText<TenantName>",
                kind AS "kind: AsText<LeaseKind>", by_operator AS "by_operator: bool", command, created_at FROM leases "# + $rest
            $(, $value)*
        )
        .map(|row| LeaseRecord {
            lease: Lease {
                holder: ClientId { pid: row.pid, start_time: row.start_time },
                tenant: row.tenant.0,
            },
            kind: row.kind.0,
            by_operator: row.by_operator,
            command: row.command,
            created_at: row.created_at,
        })
    };
}

/// All leases of this boot.
pub async fn all(db: &mut Db, boot_id: &str) -> Result<Vec<Lease>> {
    Ok(records(db, boot_id).await?.into_iter().map(|record| record.lease).collect())
}

/// All leases of this boot, with what else is kept of them.
pub async fn records(db: &mut Db, boot_id: &str) -> Result<Vec<LeaseRecord>> {
    Ok(select!("WHERE boot_id = ? ORDER BY pid, start_time", boot_id).fetch_all(db).await?)
}

/// The lease of a process for a tenant, whichever boot it is of: a start time of another boot is another process, or gone.
pub async fn of(db: &mut Db, tenant: &TenantName, process: ClientId) -> Result<Option<LeaseRecord>> {
    let (pid, start_time) = columns(process);
    let query =
        select!("WHERE pid = ? AND start_time = ? AND tenant = ? LIMIT 1", pid, start_time, tenant.as_str());
    Ok(query.fetch_optional(db).await?)
}

/// Writes a lease; the same process asking again for its tenant replaces its own.
pub async fn put(db: &mut Db, record: &LeaseRecord, boot_id: &str) -> Result<()> {
    let (pid, start_time) = columns(record.lease.holder);
    execute!(db, "INSERT OR REPLACE INTO leases (pid, start_time, boot_id, tenant, kind, by_operator, command, created_at)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        pid,
        start_time,
        boot_id,
        record.lease.tenant.as_str(),
        record.kind.as_str(),
        record.by_operator,
        record.command,
        record.created_at)
}

/// Forgets the lease of a process that is gone.
pub async fn delete(db: &mut Db, holder: ClientId) -> Result<()> {
    let (pid, start_time) = columns(holder);
    execute!(db, "DELETE FROM leases WHERE pid = ? AND start_time = ?", pid, start_time)
}

/// Returns the holder of a lease as columns.
pub(super) fn columns(holder: ClientId) -> (i64, i64) {
    (i64::from(holder.pid), holder.start_time.cast_signed())
}
