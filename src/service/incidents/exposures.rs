//! Looks for containers that have a daemon's own directory mounted, and writes events where one has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::DaemonName;
use crate::domain::exposure::SocketExposure;
use crate::domain::incident::intruders::EXPOSURES;
use crate::host;
use crate::service::{Backend, ServiceError};
use crate::store;
use crate::supervisor::{ExposedDirectory, exposed_directories};

/// The longest program or path that is kept, in characters: they are other people's to choose.
const LONGEST: usize = 120;

/// Processes that have a daemon's own directory mounted, by daemon.
struct SocketSearch {
    found: BTreeMap<DaemonName, Vec<SocketExposure>>,
    /// True if all processes and all pipe directories could be searched.
    is_complete: bool,
    /// The pipe directories that could not be searched for, each with the error.
    unresolved: Vec<(PathBuf, String)>,
}

impl Backend {
    /// Looks for them at intervals, for as long as the store is open.
    pub async fn watch_exposures(self: Arc<Self>, every: Duration) {
        let mut tracker = self.reported_intruders(&EXPOSURES).await;
        // Each is logged once.
        let mut unresolved = BTreeSet::new();
        loop {
            tokio::time::sleep(every).await;
            let mut next = tracker.clone();
            let search = async {
                let search = self.exposures().await?;
                for (pipe, error) in &search.unresolved {
                    if unresolved.insert(pipe.clone()) {
                        tracing::warn!(pipe = %pipe.display(), %error, "this pipe directory cannot be searched for in containers");
                    }
                }
                unresolved.retain(|pipe| search.unresolved.iter().any(|(still, _)| still == pipe));
                Ok((next.observe(&search.found, search.is_complete), next))
            };
            if !self.record_changes(&mut tracker, "an exposed socket", search).await {
                return;
            }
        }
    }

    async fn exposures(&self) -> Result<SocketSearch, ServiceError> {
        let daemons = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        let fleet = &self.parts.fleet;
        let pipes: Vec<(DaemonName, PathBuf)> = daemons
            .into_iter()
            .map(|daemon| {
                let pipe = fleet.pipe_directory(&daemon.name);
                (daemon.name, pipe)
            })
            .collect();
        let wanted: Vec<PathBuf> = pipes.iter().map(|(_, pipe)| pipe.clone()).collect();
        let controls = fleet.context().foreign_daemons.control_processes();
        // This reads all of /proc.
        let search = tokio::task::spawn_blocking(move || {
            let controls = controls.into_iter().filter(|control| host::process::is_alive(*control));
            let controls: Vec<u32> = controls.map(|control| control.pid).collect();
            let search = exposed_directories(&wanted, &controls)?;
            let exposed = search.found.into_iter().map(|directory| (exposure(&directory), directory.pipe));
            Ok::<_, io::Error>((exposed.collect::<Vec<_>>(), search.unseen == 0, search.unresolved))
        });
        let search = search.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
        let (exposed, sees_all, unresolved) =
            search.map_err(|error| ServiceError::Internal(error.to_string()))?;
        let mut by_daemon = BTreeMap::new();
        for (name, pipe) in pipes {
            let exposures: &mut Vec<SocketExposure> = by_daemon.entry(name).or_default();
            for (exposure, _) in exposed.iter().filter(|(_, reached)| *reached == pipe) {
                // It may have the daemon's directory in several places.
                if exposures.iter().all(|listed| listed.process != exposure.process) {
                    exposures.push(exposure.clone());
                }
            }
        }
        Ok(SocketSearch { found: by_daemon, is_complete: sees_all && unresolved.is_empty(), unresolved })
    }
}

/// Collects the known facts about a process that has a daemon's directory mounted.
fn exposure(exposed: &ExposedDirectory) -> SocketExposure {
    let pid = exposed.process.pid;
    let short = |text: String| text.chars().take(LONGEST).collect::<String>();
    SocketExposure {
        process: exposed.process.into(),
        uid: host::process::uid(pid),
        program: host::process::program(pid),
        container: host::container::container_of(pid),
        point: short(exposed.point.display().to_string()),
    }
}
