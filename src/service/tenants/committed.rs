//! Committed daemons and tenants, from memory if nothing was committed since the last read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cache::TenantsOfDaemons;
use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::daemon::Daemon;
use crate::domain::tenant::Tenant;
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Result, Service};
use crate::store::{self, StoreError};

impl Service {
    /// Counts the tenants of each daemon; daemons without a tenant are left out.
    pub async fn tenant_counts(&self, ctx: &RequestContext) -> Result<BTreeMap<DaemonName, u64>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut counts = BTreeMap::new();
        for tenant in backend.stored_tenants().await?.iter() {
            *counts.entry(tenant.spec.daemon.clone()).or_default() += 1;
        }
        Ok(counts)
    }
}

impl Backend {
    /// All daemons by name.
    pub(in crate::service) async fn stored_daemons(&self) -> Result<Arc<Vec<Daemon>>, StoreError> {
        // Before the read: a commit in between makes the value newer than its number, and never older.
        let commit = self.parts.store.last_commit();
        if let Some(cached) = self.cache.daemons.at(commit) {
            return Ok(cached);
        }
        let read = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        Ok(self.cache.daemons.keep(commit, read))
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
