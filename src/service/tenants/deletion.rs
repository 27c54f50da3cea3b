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

impl Service {
    /// Deletes a tenant; refused while its processes are connected.
    ///
    /// With `is_finished`, no process will be started with its environment any more, so its directory is removed at once.
    pub async fn delete_tenant(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        is_finished: bool,
        options: WriteOptions,
    ) -> Result<()> {
        let permit = ctx.require(Right::Administer)?;
        self.with(&permit).delete_unused(&permit, name, is_finished, options).await
    }

    /// Drains a tenant: it expires now, so that it admits no further process and is deleted once it has none.
    pub async fn drain_tenant(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        is_finished: bool,
        options: WriteOptions,
    ) -> Result<()> {
        let permit = ctx.require(Right::Administer)?;
        self.with(&permit).drain(&permit, name, is_finished, options).await
    }
}

impl Backend {
    /// Lets a tenant expire now, so that it admits no further process, unless it is being drained already.
    async fn drain(
        self: &Arc<Self>,
        permit: &Permit,
        name: TenantName,
        is_finished: bool,
        options: WriteOptions,
    ) -> Result<()> {
        self.refuse_read_only().await?;
        let dry_run = options.dry_run;
        let scope = ChangeScope::Tenant(name.clone(), None);
        let drained = transact!(self, change(permit, scope, dry_run), |change| {
            check_precondition(&options, Some(change.tenant(&name)?.generation))?;
            let now = change.now;
            let tenant = change.objects.tenants.get_mut(&name).found("tenant", &name)?;
            if !tenant.draining {
                let expires_at = tenant.spec.expires_at.filter(|at| *at <= now).or(Some(now));
                tenant.change(TenantSpec { expires_at, ..tenant.spec.clone() }, now);
            }
            (tenant.draining, tenant.finished) = (true, tenant.finished || is_finished);
            Ok(tenant.directory.clone())
        })?;
        if is_finished && !dry_run {
            self.parts.fleet.context().handouts.finish(&drained.value);
        }
        Ok(())
    }

    /// Deletes a tenant that has no processes.
    async fn delete_unused(
        self: &Arc<Self>,
        permit: &Permit,
        name: TenantName,
        is_finished: bool,
        options: WriteOptions,
    ) -> Result<()> {
        self.refuse_read_only().await?;
        self.refuse_with_processes(&name).await?;
        let service = Arc::clone(self);
        let (scope, dry_run) = (ChangeScope::Tenant(name.clone(), None), options.dry_run);
        let deleted = transact!(self, change(permit, scope, dry_run), |change| {
            let tenant = change.tenant(&name)?.clone();
            check_precondition(&options, Some(tenant.generation))?;
            service.remove_tenant(change, &name).await?;
            // A drain may have said so to an earlier manager.
            Ok((tenant.directory, is_finished || tenant.finished))
        })?;
        if let (directory, true) = &deleted.value
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
        self.delete_unused(&permit, tenant.name.clone(), false, options).await?;
        Ok(true)
    }

    /// Returns true if a tenant has no process: neither a client nor one with a lease, nor one that waits for its daemon or a slot.
    async fn is_unused(&self, tenant: &Tenant) -> Result<bool> {
        let handed = self.parts.fleet.context().handouts.status(&tenant.directory);
        let waits = !handed.waiting.is_empty() || self.launches.count(&tenant.name) > 0;
        Ok(!waits && self.processes_of(&tenant.name).await? == 0)
    }
}
