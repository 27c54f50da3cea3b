//! The host file that a manager applies when it starts.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{App, StartupError, refused};
use crate::domain::audit::Target;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::Phase;
use crate::domain::gpu::GpuRef;
use crate::domain::health::{FaultReport, HostFault, HostHealth};
use crate::domain::host_file::HostFile;
use crate::service::access::context::RequestContext;
use crate::service::host_file::{AppliedHostFile, HostFileOptions};
use crate::service::{FieldError, Service, ServiceError, WriteOptions};
use crate::supervisor::Fleet;

/// Pause between two looks for MIG instances that are not here yet.
const INSTANCES_POLL: Duration = Duration::from_secs(2);
/// Longest wait for the first poll of a daemon: one that does not answer is judged as it is.
const FIRST_POLL: Duration = Duration::from_secs(30);

/// Parts of the manager that apply a host file, perhaps long after its start.
#[derive(Clone)]
struct HostFileApplier {
    service: Service,
    fleet: Fleet,
    health: HostHealth,
}

impl App {
    /// Applies a host file. If it names MIG instances that are not here yet, it is applied once they are, until `stop`: another program
    /// may make them after this start (mig-parted, say).
    pub(super) async fn apply_host_file(
        &self,
        file: HostFile,
        stop: CancellationToken,
    ) -> Result<(), StartupError> {
        let (service, fleet, health) = (self.service().clone(), self.fleet().clone(), self.health().clone());
        let applier = HostFileApplier { service, fleet, health };
        let Some(missing) = applier.missing_instances(&file).await else { return applier.apply(file).await };
        let message = format!(
            "the host file given to `serve --apply` is not applied yet: it names the MIG instances {missing}, which this host does not \
             have. Make them (mig-parted apply, or nvidia-smi mig -cgi)"
        );
        tracing::warn!("{message}");
        applier.report(Some((ConditionReason::GpuMissing, message)));
        tokio::spawn(async move {
            let waiting = async {
                while applier.missing_instances(&file).await.is_some() {
                    tokio::time::sleep(INSTANCES_POLL).await;
                }
            };
            if stop.run_until_cancelled(waiting).await.is_some() {
                let refused = applier.apply(file).await.err();
                if let Some(error) = &refused {
                    tracing::error!(%error, "the host file was not applied");
                }
                applier.report(refused.map(|error| (ConditionReason::WriteFailed, error.to_string())));
            }
        });
        Ok(())
    }
}

impl HostFileApplier {
    /// Returns the MIG instances that a host file names and the driver does not list; `None` if there are none, or if the driver does not
    /// answer.
    async fn missing_instances(&self, file: &HostFile) -> Option<String> {
        let inventory = Arc::clone(&self.fleet.context().inventory);
        let listed = tokio::task::spawn_blocking(move || inventory.known_gpus());
        let gpus = listed.await.ok()?.ok()?;
        // What the daemons' drivers know of the GPUs may be older.
        let polled = self.fleet.context().gpu_presence.borrow().present();
        let is_here = |gpu: &GpuRef| {
            let found = gpu.resolve(&gpus).ok();
            found.is_some_and(|gpu| polled.as_ref().is_none_or(|polled| polled.contains(&gpu.uuid)))
        };
        let named = file.daemons.values().flat_map(|daemon| &daemon.gpus);
        let missing: Vec<&str> =
            named.filter(|gpu| gpu.is_mig() && !is_here(gpu)).map(|gpu| gpu.0.as_str()).collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }

    fn report(&self, why: Option<(ConditionReason, String)>) {
        let report = why.map(|(reason, message)| FaultReport { reason, message });
        self.health.set(HostFault::HostFileNotApplied, report);
    }

    /// Applies a host file once each daemon was polled, as a request would; what follows is done in the background.
    async fn apply(&self, file: HostFile) -> Result<(), StartupError> {
        let service = &self.service;
        for (_, handle) in self.fleet.all() {
            handle.wait_for(FIRST_POLL, |observed| observed.status.phase != Phase::Unknown).await;
        }
        let ctx = RequestContext::of_manager(
            service.clock(),
            "serve --apply",
            Target::Other("host/spec".to_owned()),
        );
        let file_options = HostFileOptions::default();
        let applied = service.put_host_spec(&ctx, file, file_options, WriteOptions::default()).await;
        let AppliedHostFile { changes, warnings, operation, .. } = applied.map_err(described)?;
        for FieldError { pointer, detail } in warnings {
            tracing::warn!("the host file may be wrong at {pointer}: {detail}");
        }
        match operation {
            Some(operation) => {
                tracing::info!(changes = changes.len(), operation = %operation.id, "the host file is being applied");
            }
            None => tracing::info!("the host is what the host file says"),
        }
        Ok(())
    }
}

/// A refusal with each of its faults.
fn described(error: ServiceError) -> StartupError {
    let errors = match &error {
        ServiceError::Invalid(errors) | ServiceError::HostFileRefused { errors, .. } => errors.clone(),
        _ => return refused(error),
    };
    let lines: Vec<String> =
        errors.into_iter().map(|error| format!("\n  {}: {}", error.pointer, error.detail)).collect();
    StartupError(format!("the host file is refused, and nothing of it was applied:{}", lines.concat()))
}
