//! An in-memory cache of committed daemons and tenants.
//!
//! Invariant: a read that begins after a write was answered shows that write. Each commit invalidates the cache; the first
//! read after it queries the database, and later reads do not.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::domain::DaemonName;
use crate::domain::access::{Actor, Right};
use crate::domain::daemon::Daemon;
use crate::domain::tenant::Tenant;
use crate::service::{Service, ServiceError};
use crate::store::{self, StoreError};

/// The values cached between commits.
#[derive(Debug, Default)]
pub(in crate::service) struct Cache {
    daemons: Cached<Vec<Daemon>>,
    tenants: Cached<TenantsOfDaemons>,
}

/// All tenants, and the daemons whose generations show that no tenant has changed.
#[derive(Debug)]
struct TenantsOfDaemons {
    daemons: Vec<Daemon>,
    tenants: Arc<Vec<Tenant>>,
}

/// A value with the number of the commit it was read at.
#[derive(Debug)]
struct Cached<T>(RwLock<Option<(u64, Arc<T>)>>);

impl<T> Default for Cached<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Cached<T> {
    /// The cached value, of whichever commit.
    fn last(&self) -> Option<(u64, Arc<T>)> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn at(&self, commit: u64) -> Option<Arc<T>> {
        self.last().filter(|(kept_at, _)| *kept_at == commit).map(|(_, value)| value)
    }

    /// Caches what was read at this commit, unless a newer value is cached.
    fn keep(&self, commit: u64, value: T) -> Arc<T> {
        let value = Arc::new(value);
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(kept_at, _)| *kept_at <= commit) {
            *kept = Some((commit, Arc::clone(&value)));
        }
        value
    }
}

impl Service {
    /// All daemons by name.
    pub(in crate::service) async fn stored_daemons(&self) -> Result<Arc<Vec<Daemon>>, StoreError> {
        // Before the read: a commit in between makes the value newer than its number, and never older.
        let commit = self.parts.store.last_commit();
        if let Some(kept) = self.cache.daemons.at(commit) {
            return Ok(kept);
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
    /// daemon in the same transaction.
    pub(in crate::service) async fn stored_tenants(&self) -> Result<Arc<Vec<Tenant>>, StoreError> {
        let commit = self.parts.store.last_commit();
        let before = self.cache.tenants.last();
        if let Some((kept_at, kept)) = &before
            && *kept_at == commit
        {
            return Ok(Arc::clone(&kept.tenants));
        }
        let mut reader = self.parts.store.read().await?;
        // Before the tenants: a write in between makes them newer than their daemons, and never older.
        let daemons = store::daemons::all(&mut reader).await?;
        let tenants = match before {
            Some((_, kept)) if kept.daemons == daemons => Arc::clone(&kept.tenants),
            _ => Arc::new(store::tenants::all(&mut reader).await?),
        };
        let kept = self.cache.tenants.keep(commit, TenantsOfDaemons { daemons, tenants });
        Ok(Arc::clone(&kept.tenants))
    }

    /// How many tenants each daemon has.
    pub async fn tenant_counts(&self, actor: &Actor) -> Result<BTreeMap<DaemonName, u64>, ServiceError> {
        actor.may(Right::View)?;
        let mut counts = BTreeMap::new();
        for tenant in self.stored_tenants().await?.iter() {
            *counts.entry(tenant.spec.daemon.clone()).or_default() += 1;
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_outdates_what_is_cached() {
        let cached = Cached::default();
        assert_eq!(cached.at(0), None);
        cached.keep(1, "first");
        assert_eq!(cached.at(1).as_deref(), Some(&"first"));
        assert_eq!(cached.at(2), None);
    }

    #[test]
    fn a_slower_reader_replaces_nothing_newer() {
        let cached = Cached::default();
        cached.keep(2, "newer");
        assert_eq!(*cached.keep(1, "older"), "older");
        assert_eq!(cached.at(2).as_deref(), Some(&"newer"));
    }
}
