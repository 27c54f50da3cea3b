//! Looks for control daemons of others that serve GPUs of this manager's daemons, and writes events where one does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::DaemonName;
use crate::domain::daemon::{Daemon, DesiredState};
use crate::domain::foreign_owner::SharingDaemon;
use crate::domain::incident::IncidentKind;
use crate::service::Backend;
use crate::store::{self, StoreError};

impl Backend {
    /// Compares after each scan that finds something else, and at intervals, for as long as the store is open.
    pub async fn watch_sharing(self: Arc<Self>, every: Duration) {
        let mut tracker = self.reported_intruders(IncidentKind::GpuShared).await;
        let mut scans = self.parts.fleet.context().foreign_daemons.subscribe();
        loop {
            // A daemon may have another GPU meanwhile. Without a scanner there is nothing to see.
            if tokio::time::timeout(every, scans.changed()).await.is_ok_and(|scanned| scanned.is_err()) {
                return;
            }
            if self.is_read_only() || self.parts.store.is_sealed() {
                continue;
            }
            let written = async {
                let mut next = tracker.clone();
                self.append_events(next.observe(&self.sharing().await?, true)).await?;
                Ok(next)
            };
            match written.await {
                Ok(next) => tracker = next,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "a control daemon of others could not be recorded"),
            }
        }
    }

    /// The control daemons that serve GPUs of each daemon that is to run, and not to share them.
    async fn sharing(&self) -> Result<BTreeMap<DaemonName, Vec<SharingDaemon>>, StoreError> {
        let daemons = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        let scanner = &self.parts.fleet.context().foreign_daemons;
        let is_wanted = |daemon: &Daemon| daemon.spec.desired_state == DesiredState::Running;
        let alone = daemons.into_iter().filter(|daemon| !daemon.spec.share_gpus && is_wanted(daemon));
        let shared = alone.map(|daemon| {
            let found = scanner.sharing(&daemon.name, &daemon.spec.gpus);
            let known = found.into_iter().filter(|one| one.gpus.is_ok());
            (daemon.name, known.map(|one| one.sharing).collect())
        });
        Ok(shared.collect())
    }
}
