//! Tenants deleted: on request, and once they have expired. One that is drained expires at once, so that it is deleted like any other that
//! has, whatever becomes of who asked for it.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::audit::{EXPIRE, Target};
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::change::ChangeScope;
use crate::service::error::Found as _;
use crate::service::{Backend, Result, Service, WriteOptions, check_precondition, etag};
use crate::store::{self, transact};

/// Deletion of a tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct TenantDeletion {
    /// Lets it expire now, so that it admits no further process, and is deleted once it has none.
    pub drains: bool,
    /// No process will be started with its environment any more, so its directory is removed at once.
    pub is_finished: bool,
}

impl Service {
    /// Deletes a tenant; refused while its processes are connected, unless it is drained.
    pub async fn delete_tenant(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        deletion: TenantDeletion,
        options: WriteOptions,
    ) -> Result<()> {
        let permit = ctx.require(Right::Administer)?;
        self.with(&permit).delete(&permit, name, deletion, options).await
    }
}

impl Backend {
    async fn delete(
        self: &Arc<Self>,
        permit: &Permit,
        name: TenantName,
        TenantDeletion { drains, is_finished }: TenantDeletion,
        options: WriteOptions,
    ) -> Result<()> {
        self.refuse_read_only().await?;
        if !drains {
            self.refuse_with_processes(&name).await?;
        }
        let service = Arc::clone(self);
        let (scope, dry_run) = (ChangeScope::Tenant(name.clone(), None), options.dry_run);
        let ended = transact!(self, change(permit, scope, dry_run), |change| {
            let now = change.now;
            let tenant = change.objects.tenants.get_mut(&name).found("tenant", &name)?;
            check_precondition(&options, Some(tenant.generation))?;
            // A drain may have said so to an earlier manager.
            let finished = (tenant.directory.clone(), is_finished || tenant.finished);
            if !drains {
                service.remove_tenant(change, &name).await?;
                return Ok(finished);
            }
            if !tenant.draining {
                let expires_at = tenant.spec.expires_at.filter(|at| *at <= now).or(Some(now));
                tenant.change(TenantSpec { expires_at, ..tenant.spec.clone() }, now);
            }
            (tenant.draining, tenant.finished) = (true, finished.1);
            Ok(finished)
        })?;
        if let (directory, true) = &ended.value
            && !dry_run
        {
            self.parts.fleet.context().handouts.finish(directory);
        }
        Ok(())
    }

    /// Periodically deletes the tenants that have expired and have no process.
    pub async fn collect_expired_tenants(self: Arc<Self>, every: Duration) {
        loop {
            if let Err(error) = self.collect_expired().await {
                tracing::warn!(%error, "expired tenants could not be looked for");
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn collect_expired(self: &Arc<Self>) -> Result<()> {
        if self.is_read_only() || self.parts.store.is_sealed() {
            return Ok(());
        }
        let now = self.parts.clock.unix_ms();
        let expired = store::tenants::expired(&mut *self.parts.store.read().await?, now).await?;
        for tenant in expired {
            match self.collect_unused(&tenant).await {
                Ok(true) => tracing::info!(tenant = %tenant.name, "an expired tenant was deleted"),
                Ok(false) => {}
                // It is tried again: a process came, the tenant was renewed or deleted, or its daemon cannot be read.
                Err(error) => tracing::debug!(tenant = %tenant.name, %error, "an expired tenant stays"),
            }
        }
        Ok(())
    }

    /// Deletes an expired tenant as it was read, unless it has a process; false if it has.
    async fn collect_unused(self: &Arc<Self>, tenant: &Tenant) -> Result<bool> {
        if !self.is_unused(tenant).await? {
            return Ok(false);
        }
        // Before its first poll no client is known, as after a start of the manager, and one may have come since the last.
        let Some(handle) = self.parts.fleet.get(&tenant.spec.daemon) else { return Ok(false) };
        handle.fresh(self.parts.timeout).await?;
        if !self.is_unused(tenant).await? {
            return Ok(false);
        }
        let target = Target::Tenant(tenant.name.clone());
        let permit =
            RequestContext::of_manager(self.parts.clock, EXPIRE, target).require(Right::Administer)?;
        // One that was renewed meanwhile has another entity tag.
        let options = WriteOptions { if_match: Some(etag(tenant.generation)), ..WriteOptions::default() };
        self.delete(&permit, tenant.name.clone(), TenantDeletion::default(), options).await?;
        Ok(true)
    }

    /// Returns true if a tenant has no process: neither a client nor one with a lease, nor one that waits for its daemon or a slot.
    async fn is_unused(&self, tenant: &Tenant) -> Result<bool> {
        let handed = self.parts.fleet.context().handouts.status(&tenant.directory);
        let waits = !handed.waiting.is_empty() || self.launches.count(&tenant.name) > 0;
        Ok(!waits && self.processes_of(&tenant.name).await? == 0)
    }
}
