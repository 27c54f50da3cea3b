//! Held leases: listed and revoked.

use serde::{Deserialize, Serialize};

use super::holder::command_of;
use super::is_alive;
use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::audit::Target;
use crate::domain::client::{ClientId, LeaseKind, LeaseRecord};
use crate::host;
use crate::service::access::context::RequestContext;
use crate::service::error::Found as _;
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::{self, TransactionEnd, transact};

/// A lease that a living process holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HeldLease {
    /// The process with its start time, which also identifies the lease.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// Evidence that the process is the tenant's: `own` if it requested the lease itself, `recorded` if an operator named it.
    pub kind: LeaseKind,
    /// Its uid; `null` if it cannot be read.
    pub uid: Option<u32>,
    /// Its present command line, shortened and without tokens.
    pub command: String,
    /// When the lease was granted.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub granted_at: i64,
    /// True if MPS lists the process as a client of the tenant's daemon.
    pub is_client: bool,
}

impl Service {
    /// The leases of a tenant with living processes, by process ID.
    pub async fn leases(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
        page: &Page,
    ) -> Result<Paged<HeldLease>> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        let after = page.key::<ClientId>()?;
        backend.stored_tenant(name).await?;
        let rows = usize::try_from(page.rows()).unwrap_or(usize::MAX);
        let held = backend.held_leases(name).await?.into_iter();
        let held = held.filter(|lease| after.is_none_or(|after| lease.id > after)).take(rows).collect();
        Ok(page.cut(held, |lease: &HeldLease| lease.id.to_string()))
    }

    /// One lease of a tenant.
    pub async fn held_lease(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
        id: ClientId,
    ) -> Result<HeldLease> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        backend.stored_tenant(name).await?;
        let lease = backend.held_leases(name).await?.into_iter().find(|lease| lease.id == id);
        lease.ok_or_else(|| no_lease(id))
    }

    /// Revokes the lease of a process, which keeps running.
    ///
    /// The process no longer counts for the tenant unless MPS lists it, and is neither awaited nor signalled because of the
    /// lease. Its partition stays taken until it ends.
    pub async fn revoke_lease(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        id: ClientId,
        dry_run: bool,
    ) -> Result<()> {
        let permit = ctx.require(Right::UseTenant(&name))?.on(Target::Lease(name.clone(), id));
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let boot_id = backend.parts.fleet.context().boot_id.clone();
        let ctx = ctx.clone();
        transact!(backend, write(&permit), |db| {
            store::tenants::get(&mut *db, &name).await?.found("tenant", &name)?;
            let records = store::leases::records(&mut *db, &boot_id).await?;
            let found = records
                .into_iter()
                .find(|record| record.lease.tenant == name && record.lease.holder == id)
                .ok_or_else(|| no_lease(id))?;
            // A process recorded by an operator counts against the tenant, which must not undo that itself.
            if found.by_operator {
                ctx.require(Right::Operate)?;
            }
            store::leases::delete(&mut *db, id).await?;
            // It can join the partition it was admitted to for as long as it lives; a recorded process was
            // admitted to none.
            if found.kind == LeaseKind::Own && is_alive(id) {
                store::partition_leases::disown_holder(db, id).await?;
            } else {
                store::partition_leases::delete(db, id).await?;
            }
            Ok(((), if dry_run { TransactionEnd::RollBack } else { TransactionEnd::Commit }))
        })
    }
}

impl Backend {
    async fn held_leases(&self, name: &TenantName) -> Result<Vec<HeldLease>> {
        let boot_id = &self.parts.fleet.context().boot_id;
        let records = store::leases::records(&mut *self.parts.store.read().await?, boot_id).await?;
        let clients = self.attributed().await?;
        let held = |record: LeaseRecord| {
            let id = record.lease.holder;
            HeldLease {
                id,
                pid: id.pid,
                start_time: id.start_time,
                kind: record.kind,
                uid: host::process::uid(id.pid),
                command: command_of(id.pid),
                granted_at: record.created_at,
                is_client: clients.iter().any(|client| client.id == id),
            }
        };
        let mine = records
            .into_iter()
            .filter(|record| record.lease.tenant == *name && is_alive(record.lease.holder));
        Ok(mine.map(held).collect())
    }
}

fn no_lease(id: ClientId) -> ServiceError {
    ServiceError::NotFound { kind: "lease", name: id.to_string() }
}
