//! Cleanup of directories of deleted tenants.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::service::{Backend, Result, ServiceError};
use crate::store;

impl Backend {
    /// Periodically closes the directories of deleted tenants, and removes those without processes.
    pub async fn collect_tenant_directories(self: Arc<Self>, every: Duration) {
        loop {
            if let Err(error) = self.collect_once().await {
                tracing::warn!(%error, "directories of deleted tenants could not be cleaned up");
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn collect_once(&self) -> Result<()> {
        // Before startup is complete, it is unknown whose they are.
        let directories: Option<BTreeSet<_>> = if self.is_read_only() {
            None
        } else {
            let stored = store::tenants::directories(&mut *self.parts.store.read().await?).await?;
            Some(stored.into_iter().collect())
        };
        let context = self.parts.fleet.context();
        let (handouts, daemons) = (Arc::clone(&context.handouts), context.daemons_directory());
        // This reads all of /proc if there are any.
        let runtime = tokio::runtime::Handle::current();
        let collected = tokio::task::spawn_blocking(move || {
            let _entered = runtime.enter();
            match directories {
                Some(directories) => handouts.collect(&directories),
                None => handouts.close_dead(&daemons),
            }
        });
        collected.await.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}
