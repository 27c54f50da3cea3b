//! All tenants as they are now, without reading thousands of specs for every page.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Service, ServiceError};
use crate::domain::DaemonName;
use crate::domain::access::{Actor, Right};
use crate::domain::tenant::Tenant;
use crate::store::{self, StoreError, Transaction};

impl Service {
    /// All tenants by name, as they are committed when this is called.
    ///
    /// The book has them in memory, a moment later than they are written. It is believed as long as it has the daemons as they
    /// are now, since whatever changes a tenant raises the generation of its daemon in the same transaction.
    pub(super) async fn tenants_now(&self, db: Transaction<'_>) -> Result<Arc<Vec<Tenant>>, StoreError> {
        // Before the tenants: what is written between the two makes them newer than their daemons, and never older.
        let daemons = store::daemons::all(&mut *db).await?;
        let book = Arc::clone(&self.book.borrow());
        if book.daemons == daemons {
            return Ok(Arc::clone(&book.tenants));
        }
        Ok(Arc::new(store::tenants::all(db).await?))
    }

    /// How many tenants each daemon has.
    pub async fn tenant_counts(&self, actor: &Actor) -> Result<BTreeMap<DaemonName, u64>, ServiceError> {
        actor.may(Right::View)?;
        let mut counts = BTreeMap::new();
        for tenant in self.tenants_now(&mut *self.parts.store.read().await?).await?.iter() {
            *counts.entry(tenant.spec.daemon.clone()).or_default() += 1;
        }
        Ok(counts)
    }
}
