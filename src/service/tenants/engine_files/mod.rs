//! Files about tenants for container engines and systemd: one CDI specification for the host, and for each tenant a file with its
//! environment. Both are kept up to date for as long as the manager runs.
//!
//! Invariants: a tenant that takes no new processes is in neither, whether its daemon died, is blocked, stopped or cordoned, or the tenant
//! was deleted. The files contain nothing that no manager keeps up to date, so they are removed at its start and at its end. A file that is
//! read a moment too late leads to a placeholder (`supervisor/handout`).

mod files;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

pub(in crate::service) use self::files::EngineFileWriter;

use self::files::EngineFiles;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::Daemon;
use crate::domain::environment::cdi::{self, CdiDevice};
use crate::domain::environment::container::defaults;
use crate::domain::environment::service_file::as_environment_file;
use crate::domain::health::{FaultReport, HostFault};
use crate::domain::layout::status::LayoutStatus;
use crate::domain::resolution::Resolved;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, TenantDirectory, TenantName};
use crate::service::tenants::EnvironmentView;
use crate::service::tenants::provisioning::share_basis;
use crate::service::{Backend, Result};
use crate::store::StoreError;
use crate::supervisor::ClientDirectory;

/// Time for which commits are gathered: most change no tenant, and many come at once.
const GATHERED: Duration = Duration::from_millis(20);
/// Longest time for which a caller waits for a tenant's files, which take some milliseconds to write.
const WRITTEN: Duration = Duration::from_millis(500);

/// Inputs of the files whose changes are reported; the other inputs are read again at intervals.
#[derive(PartialEq)]
struct EngineFileSources {
    daemons: Arc<Vec<Daemon>>,
    tenants: Arc<Vec<Tenant>>,
    open: BTreeMap<TenantDirectory, ClientDirectory>,
    layouts: BTreeMap<DaemonName, LayoutStatus>,
}

impl Backend {
    /// Keeps the files up to date: at each commit, whenever a tenant's socket is handed out or closed, when a caller waits for a device,
    /// and at intervals, for changes that are not reported, such as the removal of a file.
    pub async fn keep_engine_files(self: Arc<Self>, every: Duration) {
        let mut commits = self.parts.store.committed();
        let mut handouts = self.parts.fleet.context().handouts.changes();
        let (mut last, mut due) = (None, Instant::now());
        let mut is_requested = false;
        loop {
            let is_due = is_requested || Instant::now() >= due;
            self.engine_files.pass(false);
            if let Err(error) = self.refresh_engine_files(&mut last, is_due).await {
                tracing::warn!(%error, "the files for container engines and systemd could not be brought up to date");
            }
            self.engine_files.pass(true);
            if is_due {
                due = Instant::now() + every;
            }
            due = due.min(self.next_expiry(last.as_ref()).unwrap_or(due));
            is_requested = false;
            let mut requested = pin!(self.engine_files.requested());
            let woken = tokio::select! {
                changed = commits.changed() => {
                    is_requested = timeout(GATHERED, requested.as_mut()).await.is_ok();
                    changed
                }
                changed = handouts.changed() => changed,
                () = requested.as_mut() => {
                    is_requested = true;
                    Ok(())
                }
                () = sleep_until(due) => Ok(()),
            };
            if woken.is_err() {
                // The store is closed.
                return;
            }
        }
    }

    /// Updates the files, unless their inputs are equal to the `last` ones.
    async fn refresh_engine_files(&self, last: &mut Option<EngineFileSources>, is_due: bool) -> Result<()> {
        let sources = self.engine_file_sources().await?;
        if !is_due && last.as_ref() == Some(&sources) {
            return Ok(());
        }
        let files = self.engine_files(&sources).await?;
        let problems = self.blocking_write(move |writer| writer.keep(&files)).await;
        self.report_engine_files(&problems);
        *last = Some(sources);
        Ok(())
    }

    /// Removes the files that an earlier manager left: nothing in them is known to be true yet.
    pub async fn withdraw_engine_files(&self) {
        let problems = self.blocking_write(|writer| writer.keep(&EngineFiles::default())).await;
        self.report_engine_files(&problems);
    }

    /// Removes the files for good: nothing keeps them up to date any longer.
    pub async fn close_engine_files(&self) {
        for problem in self.blocking_write(EngineFileWriter::close).await {
            tracing::error!("{problem}");
        }
    }

    /// Waits until the files have this generation of a tenant that may be handed out, unless none can be written.
    pub(in crate::service) async fn await_engine_files(&self, tenant: &TenantName, generation: i64) {
        if !self.parts.health.has(HostFault::EngineFilesNotWritten) {
            self.engine_files.await_tenant(tenant, generation, WRITTEN).await;
        }
    }

    /// Waits until the files reflect the present state, as after a daemon's restart, unless none can be written.
    pub(in crate::service) async fn await_present_engine_files(&self) {
        if !self.parts.health.has(HostFault::EngineFilesNotWritten) {
            self.engine_files.await_pass(WRITTEN).await;
        }
    }

    /// Returns the qualified name of a tenant's CDI device, once it is in the specification; `None` if no specification is kept.
    pub(super) fn cdi_device(&self, tenant: &TenantName) -> Option<String> {
        self.engine_files.lists(tenant).then(|| cdi::qualified(tenant.as_str()))
    }

    /// Returns the next time at which a tenant of the files expires, since no commit or handout reports that.
    fn next_expiry(&self, last: Option<&EngineFileSources>) -> Option<Instant> {
        let now = self.parts.clock.unix_ms();
        let later = last?.tenants.iter().filter_map(|tenant| tenant.spec.expires_at).filter(|at| *at > now);
        let wait = u64::try_from(later.min()? - now).unwrap_or_default();
        Some(Instant::now() + Duration::from_millis(wait))
    }

    async fn blocking_write(
        &self,
        work: impl FnOnce(&EngineFileWriter) -> Vec<String> + Send + 'static,
    ) -> Vec<String> {
        let writer = self.engine_files.clone();
        let written = tokio::task::spawn_blocking(move || work(&writer)).await;
        written.unwrap_or_else(|error| vec![error.to_string()])
    }

    /// Reports the problems as a condition of the host, and logs them once.
    fn report_engine_files(&self, problems: &[String]) {
        let message = problems.join("; ");
        let report = (!problems.is_empty())
            .then(|| FaultReport { reason: ConditionReason::WriteFailed, message: message.clone() });
        if !self.parts.health.set(HostFault::EngineFilesNotWritten, report) {
            return;
        }
        if problems.is_empty() {
            tracing::info!("the files for container engines and systemd are written again");
        } else {
            tracing::error!("{message}");
        }
    }

    async fn engine_file_sources(&self) -> Result<EngineFileSources, StoreError> {
        let (daemons, tenants) = (self.stored_daemons().await?, self.stored_tenants().await?);
        let layouts = self.parts.fleet.of_each(|observed| observed.status.layout.clone()).into_iter();
        Ok(EngineFileSources {
            daemons,
            tenants,
            open: self.parts.fleet.context().handouts.open_directories(),
            layouts: layouts.filter_map(|(name, layout)| Some((name, layout?))).collect(),
        })
    }

    /// Computes the contents of the files; tenants that `run` and `env` would refuse are left out.
    async fn engine_files(&self, sources: &EngineFileSources) -> Result<EngineFiles> {
        let EngineFileSources { daemons, tenants, open, .. } = sources;
        let daemon_of = |tenant: &Tenant| daemons.iter().find(|daemon| daemon.name == tenant.spec.daemon);
        let handed_out: Vec<(&Tenant, &Daemon, &ClientDirectory)> = tenants
            .iter()
            .filter_map(|tenant| Some((tenant, daemon_of(tenant)?, open.get(&tenant.directory)?)))
            .collect();
        if handed_out.is_empty() {
            return Ok(EngineFiles::default());
        }
        let gpus = self.held_gpus().await?;
        let shown: Vec<&Tenant> = handed_out.iter().map(|(tenant, ..)| *tenant).collect();
        let of_daemons: Vec<&Daemon> = daemons.iter().collect();
        let blockers = self.tenant_blockers(&shown, &of_daemons).await?;
        let of_daemon: BTreeMap<&DaemonName, _> =
            daemons.iter().map(|daemon| (&daemon.name, share_basis(daemon, tenants, &gpus))).collect();
        // A tenant's own name is its device, whether or not it is handed out now.
        let mut names: BTreeSet<String> = tenants.iter().map(|tenant| tenant.name.to_string()).collect();
        let (mut devices, mut environments, mut generations) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let (mut listed, now) = (BTreeSet::new(), self.parts.clock.unix_ms());
        for (tenant, daemon, directory) in handed_out {
            let Some(Ok(basis)) = of_daemon.get(&daemon.name) else { continue };
            let Ok(resolved) = self.resolved(tenant, daemon, basis.as_ref(), &gpus) else { continue };
            let Ok(placement) = self.placement(tenant, &resolved, daemon.generation) else { continue };
            if tenant.is_closed(now) || blockers.refusal(tenant, daemon, &placement).is_some() {
                continue;
            }
            let view = self.environment_in(directory.clone(), tenant, &resolved, &placement, &gpus);
            let set: Vec<(String, String)> = view.variables.clone().into_iter().collect();
            let text = as_environment_file(&view.variables, &defaults(&resolved, &gpus, &set));
            environments.insert(tenant.name.clone(), (tenant.spec.uid, text));
            generations.insert(tenant.name.clone(), tenant.generation);
            if let Some(device) = device(tenant.name.to_string(), view) {
                devices.push(device);
                listed.insert(tenant.name.clone());
            }
            if resolved.gpus.len() < 2 {
                continue;
            }
            for gpu in gpus.iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)) {
                let name = cdi::of_gpu(&tenant.name, gpu.index);
                if !names.insert(name.clone()) {
                    continue;
                }
                let only = Resolved { gpus: vec![gpu.uuid.clone()], ..resolved.clone() };
                let placement = placement.on_gpu(&gpu.uuid);
                let view = self.environment_in(directory.clone(), tenant, &only, &placement, &gpus);
                devices.extend(device(name, view));
            }
        }
        let specification = cdi::specification(&devices);
        Ok(EngineFiles { specification, devices: listed, environments, generations })
    }
}

/// Builds a CDI device; `None` if no container may get the directory.
fn device(name: String, view: EnvironmentView) -> Option<CdiDevice> {
    let EnvironmentView { variables, container, .. } = view;
    Some(CdiDevice { name, variables, container: container? })
}
