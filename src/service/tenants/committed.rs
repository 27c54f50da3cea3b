//! Committed daemons and tenants, from memory if nothing was committed since the last read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::domain::access::Right;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::GpuFacts;
use crate::domain::maintenance::Maintenance;
use crate::domain::tenant::{Tenant, named};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::cache::TenantsOfDaemons;
use crate::service::{Backend, Result, Service};
use crate::store::{self, StoreError};

/// Colours of tenants in pictures, by their numbers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TenantColours {
    tenants: Arc<Vec<Tenant>>,
    /// The only tenant that the reader may see, if there is one.
    scope: Option<TenantName>,
}

impl TenantColours {
    /// The colour of a tenant; `None` for one that is not there any more, or that the reader may not see.
    pub fn get(&self, tenant: &TenantName) -> Option<u8> {
        let is_seen = self.scope.as_ref().is_none_or(|own| own == tenant);
        named(&self.tenants, tenant).filter(|_| is_seen).map(|tenant| tenant.directory.colour())
    }

    #[cfg(test)]
    pub(crate) fn of(tenant: Tenant) -> Self {
        Self { tenants: Arc::new(vec![tenant]), scope: None }
    }
}

impl Service {
    /// The colours of all tenants.
    pub async fn tenant_colours(&self, ctx: &RequestContext) -> Result<TenantColours> {
        let tenants = self.with(&ctx.require(Right::ViewOwn)?).stored_tenants().await?;
        Ok(TenantColours { tenants, scope: ctx.actor.scope().cloned() })
    }

    /// Counts the tenants of each daemon; daemons without a tenant are left out.
    pub async fn tenant_counts(&self, ctx: &RequestContext) -> Result<BTreeMap<DaemonName, u64>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut counts = BTreeMap::new();
        for tenant in backend.stored_tenants().await?.iter() {
            *counts.entry(tenant.spec.daemon.clone()).or_default() += 1;
        }
        Ok(counts)
    }

    /// The users of a daemon's tenants.
    pub async fn users_of(&self, ctx: &RequestContext, daemon: &DaemonName) -> Result<BTreeSet<u32>> {
        let tenants = self.with(&ctx.require(Right::View)?).stored_tenants().await?;
        Ok(tenants.iter().filter(|one| one.spec.daemon == *daemon).map(|one| one.spec.uid).collect())
    }
}

impl Backend {
    /// All daemons by name.
    pub(in crate::service) async fn stored_daemons(&self) -> Result<Arc<Vec<Daemon>>, StoreError> {
        self.cache.daemons.committed(&self.parts.store, |db| Box::pin(store::daemons::all(db))).await
    }

    /// The maintenance of the host, if there is one.
    pub(in crate::service) async fn stored_maintenance(
        &self,
    ) -> Result<Arc<Option<Maintenance>>, StoreError> {
        let Self { cache, parts, .. } = self;
        cache.maintenance.committed(&parts.store, |db| Box::pin(store::maintenance::get(db))).await
    }

    /// The GPUs that daemons hold, as they were last seen.
    pub(in crate::service) async fn stored_gpus(
        &self,
    ) -> Result<Arc<BTreeMap<GpuUuid, Option<GpuFacts>>>, StoreError> {
        self.cache.held_gpus.committed(&self.parts.store, |db| Box::pin(store::gpus::held(db))).await
    }

    /// One daemon.
    pub(in crate::service) async fn stored_daemon(
        &self,
        name: &DaemonName,
    ) -> Result<Option<Daemon>, StoreError> {
        let daemons = self.stored_daemons().await?;
        Ok(daemons.iter().find(|daemon| daemon.name == *name).cloned())
    }

    /// All tenants by name.
    ///
    /// Thousands of them are read again only if a daemon has changed: every change of a tenant raises the generation of its
    /// daemon in the same transaction, except for its [marks](store::tenants::marks).
    pub(in crate::service) async fn stored_tenants(&self) -> Result<Arc<Vec<Tenant>>, StoreError> {
        let commit = self.parts.store.last_commit();
        let before = self.cache.tenants.last();
        if let Some((kept_at, cached)) = &before
            && *kept_at == commit
        {
            return Ok(Arc::clone(&cached.tenants));
        }
        let mut reader = self.parts.store.read().await?;
        // Before the tenants: a write in between makes them newer than their daemons, and never older.
        let daemons = store::daemons::all(&mut reader).await?;
        let marks = store::tenants::marks(&mut reader).await?;
        let tenants = match before {
            Some((_, cached)) if (&cached.daemons, &cached.marks) == (&daemons, &marks) => {
                Arc::clone(&cached.tenants)
            }
            _ => Arc::new(store::tenants::all(&mut reader).await?),
        };
        // Those of the tenants as they were read: a mark may have come or gone since.
        let marked = tenants.iter().filter(|tenant| tenant.held || tenant.finished);
        let marks = marked.map(|tenant| (tenant.name.clone(), tenant.held, tenant.finished)).collect();
        let cached = self.cache.tenants.keep(commit, TenantsOfDaemons { daemons, marks, tenants });
        Ok(Arc::clone(&cached.tenants))
    }
}
