//! The directories of tenants that are gone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Service, ServiceError};
use crate::store;

impl Service {
    /// Closes the directories of tenants that are gone and removes those that nobody holds, for as long as the manager serves.
    pub async fn collect_tenant_directories(self, every: Duration) {
        loop {
            if let Err(error) = self.collect_once().await {
                tracing::warn!(%error, "directories of tenants that are gone were not looked for");
            }
            tokio::time::sleep(every).await;
        }
    }

    async fn collect_once(&self) -> Result<(), ServiceError> {
        // Before everything is taken up, nothing tells whose they are.
        if self.is_read_only() {
            return Ok(());
        }
        let known = store::tenants::directories(&mut *self.parts.store.read().await?).await?;
        let known: BTreeSet<_> = known.into_iter().collect();
        let handouts = Arc::clone(&self.parts.fleet.context().handouts);
        // All of /proc is read where there is one.
        let runtime = tokio::runtime::Handle::current();
        let collected = tokio::task::spawn_blocking(move || {
            let _entered = runtime.enter();
            handouts.collect(&known);
        });
        collected.await.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}
