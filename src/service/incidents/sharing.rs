//! Looks for control daemons of others that serve GPUs of this manager's daemons, and writes events where one does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::daemon::DesiredState;
use crate::domain::foreign_owner::SharingDaemon;
use crate::domain::incident::intruders::SHARING;
use crate::domain::{DaemonName, TenantName};
use crate::service::Backend;
use crate::store::{self, StoreError};

impl Backend {
    /// Compares after each scan that finds something else, and at intervals, for as long as the store is open.
    pub async fn watch_sharing(self: Arc<Self>, every: Duration) {
        let mut tracker = self.reported_intruders(&SHARING).await;
        let scanner = &self.parts.fleet.context().foreign_daemons;
        let mut scans = scanner.subscribe();
        // Before the first scan nothing is known.
        let mut outcome = scans.changed().await;
        while outcome.is_ok() {
            let mut next = tracker.clone();
            let compare = async {
                let is_complete = scanner.knows_all_gpus();
                Ok((next.observe(&self.sharing().await?, is_complete), next))
            };
            if !self.record_changes(&mut tracker, "a control daemon of others", compare).await {
                return;
            }
            // A daemon may have another GPU meanwhile, or another spec.
            outcome = tokio::time::timeout(every, scans.changed()).await.unwrap_or(Ok(()));
        }
    }

    /// The control daemons that serve GPUs of each daemon; none of one that is not to run, or may share them.
    async fn sharing(&self) -> Result<BTreeMap<DaemonName, Vec<SharingDaemon>>, StoreError> {
        let daemons = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        let tenants = self.stored_tenants().await?;
        // A name in an environment proves nothing; the user that goes with it, a little.
        let is_of = |sharing: &SharingDaemon, name: &TenantName| {
            tenants.iter().any(|tenant| tenant.name == *name && Some(tenant.spec.uid) == sharing.uid)
        };
        let scanner = &self.parts.fleet.context().foreign_daemons;
        let shared = daemons.into_iter().map(|daemon| {
            let is_wanted = daemon.spec.desired_state == DesiredState::Running && !daemon.spec.share_gpus;
            let gpus = if is_wanted { scanner.sharing(&daemon.name, &daemon.spec.gpus) } else { Vec::new() };
            let sharing = gpus.into_iter().filter(|gpu| gpu.gpus.is_ok()).map(|gpu| gpu.sharing);
            let sharing = sharing.map(|mut neighbour| {
                let tenant = neighbour.owner.tenant.take();
                neighbour.owner.tenant = tenant.filter(|name| is_of(&neighbour, name));
                neighbour
            });
            (daemon.name, sharing.collect())
        });
        Ok(shared.collect())
    }
}
