//! The drivers of all daemons, and the desired states published to them.

mod reachability;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::context::SupervisorContext;
use super::driver::Driver;
use super::durable::RememberedDaemon;
use super::handle::{DriverLink, Handle};
use super::handout::DaemonTenants;
use super::observed::Observed;
use crate::domain::daemon::Phase;
use crate::domain::plan::Desired;
use crate::domain::plan::DirectoryTenant;
use crate::domain::{DaemonName, TenantDirectory};

/// Most jobs that may wait for one daemon.
const JOBS: usize = 16;

/// All drivers, by daemon.
#[derive(Clone)]
pub struct Fleet {
    inner: Arc<FleetState>,
}

struct FleetState {
    context: Arc<SupervisorContext>,
    drivers: Mutex<Drivers>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

#[derive(Default)]
struct Drivers {
    handles: BTreeMap<DaemonName, Handle>,
    /// Last revision of each daemon that was forgotten.
    forgotten: BTreeMap<DaemonName, i64>,
}

impl Fleet {
    /// Creates an empty fleet, which from now on watches for foreign control daemons on this host.
    pub fn new(context: SupervisorContext) -> Self {
        let (context, tasks, shutdown) = (Arc::new(context), TaskTracker::new(), CancellationToken::new());
        let (watching, stop) = (Arc::clone(&context), shutdown.clone());
        tasks.spawn(async move { watching.foreign_daemons.watch(watching.check_interval, stop).await });
        Self { inner: Arc::new(FleetState { context, drivers: Mutex::default(), tasks, shutdown }) }
    }

    /// Returns the state that all drivers share.
    pub fn context(&self) -> &SupervisorContext {
        &self.inner.context
    }

    /// Publishes the desired state of a daemon, and starts its driver if it has none.
    ///
    /// `earlier` holds the records of the daemon in the store.
    ///
    /// On return no tenant's directory leads to a daemon that the tenant may not use, whatever the driver is doing.
    pub fn publish(&self, desired: Desired, earlier: Option<RememberedDaemon>) {
        let _published = self.inner.context.publishing();
        let mut drivers = self.drivers();
        let Drivers { handles, forgotten } = &mut *drivers;
        if forgotten.get(&desired.name).is_some_and(|revision| desired.revision <= *revision) {
            // This state was committed before its daemon was deleted, and is published after that.
            return;
        }
        if let Some(handle) = handles.get(&desired.name) {
            self.inner.context.handouts.announce(&(&desired).into());
            handle.publish(desired);
            return;
        }
        if self.inner.shutdown.is_cancelled() {
            return;
        }
        let name = desired.name.clone();
        let (jobs, queue) = mpsc::channel(JOBS);
        let (desired, desired_changes) = watch::channel(desired);
        let (fresh, fresh_requests) = watch::channel(0);
        let stop_driver = self.inner.shutdown.child_token();
        let context = Arc::clone(&self.inner.context);
        let (driver, observed) =
            Driver::new(context, desired_changes, fresh_requests, queue, stop_driver.clone(), earlier);
        let grace_s = AtomicU32::new(self.inner.context.grace_s);
        let commands = driver.commands();
        let link = Arc::new(DriverLink { desired, observed, fresh, jobs, grace_s, stop_driver, commands });
        let handle = Handle { link };
        self.inner.tasks.spawn(driver.run(Arc::clone(&handle.link)));
        handles.insert(name, handle);
    }

    /// Refuses clients in the directories of a daemon's tenants if the daemon has no driver, since it cannot be planned.
    pub fn refuse_clients(
        &self,
        name: &DaemonName,
        directories: &BTreeMap<TenantDirectory, DirectoryTenant>,
    ) {
        let drivers = self.drivers();
        if !drivers.handles.contains_key(name) {
            self.inner.context.handouts.announce(&DaemonTenants::refused(name, directories));
        }
    }

    /// Ends the driver of a daemon that was stopped and forgotten.
    ///
    /// Desired states up to `revision`, the last one of the daemon, are no longer applied.
    pub fn forget(&self, name: &DaemonName, revision: Option<i64>) {
        let _published = self.inner.context.publishing();
        // Held to the end, so that the claim of a new driver of that name is not taken for the old one's.
        let mut drivers = self.drivers();
        if let Some(revision) = revision {
            let last = drivers.forgotten.entry(name.clone()).or_default();
            *last = revision.max(*last);
        }
        if let Some(handle) = drivers.handles.remove(name) {
            handle.link.stop_driver.cancel();
        }
        self.inner.context.handouts.forget(name);
        self.inner.context.foreign_daemons.disclaim(name);
    }

    /// Returns the directory of a daemon's sockets: where it runs, or where it would be started.
    pub fn pipe_directory(&self, name: &DaemonName) -> PathBuf {
        match self.get(name) {
            Some(handle) => handle.observed().status.pipe_directory.clone().into(),
            None => self.inner.context.pipe_directory(name),
        }
    }

    /// Returns the handle of a daemon's driver.
    pub fn get(&self, name: &DaemonName) -> Option<Handle> {
        self.drivers().handles.get(name).cloned()
    }

    /// Returns all daemons with a part of their observations, since the whole has hundreds of clients.
    pub fn of_each<T>(&self, part: impl Fn(&Observed) -> T) -> Vec<(DaemonName, T)> {
        let drivers = self.drivers();
        drivers.handles.iter().map(|(name, handle)| (name.clone(), handle.of_observed(&part))).collect()
    }

    /// Returns all daemons with their handles.
    pub fn all(&self) -> Vec<(DaemonName, Handle)> {
        self.drivers().handles.iter().map(|(name, handle)| (name.clone(), handle.clone())).collect()
    }

    /// Returns the daemons that are not in their desired state, with their phases.
    pub fn not_ready(&self) -> Vec<(DaemonName, Phase)> {
        let drivers = self.drivers();
        drivers
            .handles
            .iter()
            .filter_map(|(name, handle)| Some((name.clone(), handle.not_ready()?)))
            .collect()
    }

    /// Ends all drivers and leaves the daemons as they are.
    pub async fn shutdown(&self) {
        self.inner.shutdown.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    fn drivers(&self) -> MutexGuard<'_, Drivers> {
        // A panic elsewhere leaves the maps as they were before or after one insert: both are consistent.
        self.inner.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
