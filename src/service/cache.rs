//! An in-memory cache of what was committed, and of what follows from it.
//!
//! Invariant: a read that begins after a write was answered shows that write. Each commit invalidates the cache; the first
//! read after it queries the database, and later reads do not.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use futures_util::future::BoxFuture;

use crate::domain::GpuUuid;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::GpuFacts;
use crate::domain::maintenance::Maintenance;
use crate::domain::sharing::SharedGpus;
use crate::domain::tenant::Tenant;
use crate::service::tenants::client_view::ClientView;
use crate::store::tenants::TenantMark;
use crate::store::{Db, Store, StoreError};

/// The sum of the memory limits of tenants on a GPU, in bytes, and the number of tenants without one.
pub(super) type LimitSum = (u64, usize);

/// The values cached between commits.
#[derive(Debug, Default)]
pub(super) struct Cache {
    pub(super) daemons: Cached<Vec<Daemon>>,
    pub(super) tenants: Cached<TenantsOfDaemons>,
    /// The GPUs that daemons hold, as they were last seen.
    pub(super) held_gpus: Cached<BTreeMap<GpuUuid, Option<GpuFacts>>>,
    pub(super) maintenance: Cached<Option<Maintenance>>,
    pub(super) open_incidents: Cached<u64>,
    /// The memory limits of the tenants on each GPU.
    pub(super) limit_sums: Cached<BTreeMap<GpuUuid, LimitSum>>,
    /// The clients of all daemons, of a commit and a publication of the daemons: a page needs them several times.
    pub(super) clients: Cached<Vec<ClientView>, (u64, u64)>,
    /// The sharing of all GPUs, likewise.
    pub(super) sharing: Cached<SharedGpus, (u64, u64)>,
}

/// All tenants, with what shows that none has changed: the generations of the daemons, and the marks of the tenants.
#[derive(Debug)]
pub(super) struct TenantsOfDaemons {
    pub(super) daemons: Vec<Daemon>,
    pub(super) marks: Vec<TenantMark>,
    pub(super) tenants: Arc<Vec<Tenant>>,
}

/// A value with what it was read at: by default the number of a commit.
#[derive(Debug)]
pub(super) struct Cached<T, V = u64>(RwLock<Option<(V, Arc<T>)>>);

impl<T, V> Default for Cached<T, V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T, V: Copy + Ord> Cached<T, V> {
    /// The cached value, of whichever version.
    pub(super) fn last(&self) -> Option<(V, Arc<T>)> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn at(&self, version: V) -> Option<Arc<T>> {
        self.last().filter(|(kept_at, _)| *kept_at == version).map(|(_, value)| value)
    }

    /// Caches what was read at this version, unless a newer value is cached.
    pub(super) fn keep(&self, version: V, value: T) -> Arc<T> {
        let value = Arc::new(value);
        let mut cached = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if cached.as_ref().is_none_or(|(kept_at, _)| *kept_at <= version) {
            *cached = Some((version, Arc::clone(&value)));
        }
        value
    }
}

impl<T> Cached<T> {
    /// The value as of the last commit, read from the database if it is not cached.
    pub(super) async fn committed(
        &self,
        store: &Store,
        read: impl for<'d> FnOnce(&'d mut Db) -> BoxFuture<'d, Result<T, StoreError>>,
    ) -> Result<Arc<T>, StoreError> {
        // Before the read: a commit in between makes the value newer than its number, and never older.
        let commit = store.last_commit();
        if let Some(cached) = self.at(commit) {
            return Ok(cached);
        }
        let value = read(&mut *store.read().await?).await?;
        Ok(self.keep(commit, value))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

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

    #[tokio::test]
    async fn committed_value_is_read_once_per_commit() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let (cached, reads) = (Cached::default(), Arc::new(AtomicU32::new(0)));
        let read = async || {
            let reads = Arc::clone(&reads);
            let count = cached.committed(&store, |_| {
                Box::pin(async move { Ok(reads.fetch_add(1, Ordering::Relaxed) + 1) })
            });
            *count.await.expect("read")
        };
        assert_eq!((read().await, read().await), (1, 1));
        store.check_writes().await.expect("written");
        assert_eq!((read().await, read().await), (2, 2));
        let failed = Cached::<u32>::default();
        let error = failed.committed(&store, |_| Box::pin(async { Err(StoreError::Sealed) })).await;
        assert!(error.is_err() && failed.last().is_none(), "an error is not kept");
    }

    #[tokio::test]
    async fn commit_during_a_read_outdates_its_value() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let (cached, writer) = (Cached::default(), store.clone());
        let before = cached.committed(&store, |_| {
            Box::pin(async move {
                writer.check_writes().await?;
                Ok("before")
            })
        });
        assert_eq!(*before.await.expect("read"), "before");
        let after = cached.committed(&store, |_| Box::pin(async { Ok("after") }));
        assert_eq!(*after.await.expect("read"), "after");
    }
}
