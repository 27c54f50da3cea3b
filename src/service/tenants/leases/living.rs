//! The leases whose processes still run.

use crate::domain::TenantName;
use crate::domain::client::ClientId;
use crate::host;
use crate::service::Result;
use crate::service::error::conflict;
use crate::store;

/// Returns true if the process to which a lease was granted still runs.
pub(super) fn is_alive(holder: ClientId) -> bool {
    host::process::is_alive(holder.into())
}

/// The processes that hold a lease of the tenant and still run.
pub(super) async fn living_holders(
    db: store::Transaction<'_>,
    name: &TenantName,
    boot_id: &str,
) -> Result<Vec<ClientId>> {
    let leases = store::leases::all(db, boot_id).await?;
    let mine = leases.into_iter().filter(|lease| lease.tenant == *name).map(|lease| lease.holder);
    Ok(mine.filter(|holder| is_alive(*holder)).collect())
}

/// Refuses to delete a tenant with processes that were admitted after its processes were counted.
pub(in crate::service::tenants) async fn refuse_while_leased(
    db: store::Transaction<'_>,
    name: &TenantName,
    boot_id: &str,
) -> Result<()> {
    match living_holders(db, name, boot_id).await?.first() {
        None => Ok(()),
        Some(holder) => Err(conflict!(
            "process {holder} holds a lease of tenant {name}: end it first, or revoke the lease"
        )),
    }
}
