//! Looks for containers that have a daemon's own directory mounted, and writes events where one has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::DaemonName;
use crate::domain::client::ClientId;
use crate::domain::exposure::SocketExposure;
use crate::domain::incident::IncidentKind;
use crate::domain::incident::exposure::ExposureTracker;
use crate::host;
use crate::service::{Backend, ServiceError};
use crate::store::{self, StoreError};
use crate::supervisor::{ExposedDirectory, exposed_directories};

/// The longest program or path that is kept, in characters: they are other people's to choose.
const LONGEST: usize = 120;

impl Backend {
    /// Looks for them at intervals, for as long as the store is open.
    pub async fn watch_exposures(self: Arc<Self>, every: Duration) {
        let mut tracker = match self.reported_exposures().await {
            Ok(reported) => ExposureTracker::with(reported),
            Err(error) => {
                tracing::warn!(%error, "the exposed sockets that an earlier manager reported could not be read");
                ExposureTracker::default()
            }
        };
        loop {
            tokio::time::sleep(every).await;
            if self.is_read_only() || self.parts.store.is_sealed() {
                continue;
            }
            let now = match self.exposures().await {
                Ok(now) => now,
                Err(error) => {
                    tracing::debug!(%error, "containers could not be searched for daemons' own directories");
                    continue;
                }
            };
            let mut next = tracker.clone();
            let events = next.observe(&now);
            let written = if events.is_empty() { Ok(()) } else { self.append_events(events).await };
            match written {
                Ok(()) => tracker = next,
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "an exposed socket could not be recorded"),
            }
        }
    }

    /// The processes that are reported and not over, by daemon.
    async fn reported_exposures(&self) -> Result<BTreeMap<DaemonName, BTreeSet<ClientId>>, StoreError> {
        let open = store::incidents::open(&mut *self.parts.store.read().await?).await?;
        let exposed = open.into_iter().map(|stored| stored.incident);
        let exposed = exposed.filter(|incident| incident.kind == IncidentKind::SocketExposed);
        let reported = exposed.map(|incident| {
            let processes = incident.suspects.into_iter().filter_map(|suspect| suspect.client);
            (incident.daemon, processes.collect::<BTreeSet<ClientId>>())
        });
        Ok(reported.collect())
    }

    /// Who has the own directory of each daemon mounted.
    async fn exposures(&self) -> Result<BTreeMap<DaemonName, Vec<SocketExposure>>, ServiceError> {
        let daemons = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        let mut found: BTreeMap<DaemonName, Vec<SocketExposure>> =
            daemons.into_iter().map(|daemon| (daemon.name, Vec::new())).collect();
        let context = self.parts.fleet.context();
        let runtime_dir = context.runtime_dir.clone();
        let controls = context.foreign_daemons.control_processes();
        // This reads all of /proc.
        let exposed = tokio::task::spawn_blocking(move || {
            let controls = controls.into_iter().filter(|control| host::process::is_alive(*control));
            let controls: Vec<u32> = controls.map(|control| control.pid).collect();
            let exposed = exposed_directories(&runtime_dir, &controls).into_iter();
            exposed.map(|one| (one.daemon.clone(), exposure(&one))).collect::<Vec<_>>()
        });
        let exposed = exposed.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
        for (of, exposure) in exposed {
            let concerned = found.iter_mut().filter(|(name, _)| of.as_ref().is_none_or(|only| only == *name));
            for (_, known) in concerned {
                // It may have several of the daemon's directories.
                if known.iter().all(|one| one.process != exposure.process) {
                    known.push(exposure.clone());
                }
            }
        }
        Ok(found)
    }
}

/// What is known of the process.
fn exposure(exposed: &ExposedDirectory) -> SocketExposure {
    let pid = exposed.process.pid;
    let program = host::process::command(pid).and_then(|words| words.into_iter().next());
    let name = |program: String| Some(Path::new(&program).file_name()?.to_string_lossy().into_owned());
    let short = |text: String| text.chars().take(LONGEST).collect::<String>();
    SocketExposure {
        process: exposed.process.into(),
        uid: host::process::uid(pid),
        program: program.and_then(name).map(short),
        container: host::container::container_of(pid),
        point: short(exposed.point.display().to_string()),
    }
}
