//! Host maintenance.

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::full_name;
use crate::domain::maintenance::{
    DeviceHolder, DriverModule, LONGEST_DRAIN_S, Maintenance, MaintenanceRequest, MaintenanceState,
    driver_modules,
};
use crate::domain::operation::{Operation, OperationRequest};
use crate::domain::{DaemonName, GpuUuid};
use crate::service::access::context::RequestContext;
use crate::service::change::refuse_covered;
use crate::service::error::{conflict, field};
use crate::service::{Result, Service, ServiceError, WriteOptions};
use crate::store::{self, Transaction, transact};

/// The maintenance of the host, and which processes have its GPUs open.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MaintenanceView {
    /// Its phase; `null` when there is none.
    pub state: Option<MaintenanceState>,
    /// When it began.
    #[serde(with = "crate::domain::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<i64>,
    /// The operation that began it; its journal has the details.
    pub operation: Option<uuid::Uuid>,
    /// The GPUs in maintenance.
    pub gpus: Vec<GpuUuid>,
    /// The daemons with one of these GPUs.
    pub daemons: Vec<DaemonName>,
    /// True if the driver is queried; otherwise GPUs are shown as last seen.
    pub live: bool,
    /// Processes that have the device files of these GPUs open, or, where these are all GPUs, as without maintenance, any file of the
    /// driver; `null` when that is unknown.
    pub holders: Option<Vec<DeviceHolder>>,
    /// Reason why the holders are unknown.
    pub holders_unknown: Option<String>,
    /// Processes that the manager may not inspect and that may be holders too: other users', unless it runs as root.
    pub unexamined: u32,
    /// GPUs whose holders are unknown because the device file is unknown or missing.
    pub unproven: Vec<GpuUuid>,
    /// The driver's modules that are loaded; `null` where that cannot be read, and on a simulated host.
    #[serde(default)]
    pub modules: Option<Vec<DriverModule>>,
}

impl Service {
    /// The current maintenance; without one, who has the GPUs open is looked for only if `looks_ahead`, since that reads all of /proc.
    pub async fn maintenance(&self, ctx: &RequestContext, looks_ahead: bool) -> Result<MaintenanceView> {
        let backend = self.with(&ctx.require(Right::View)?);
        let (store, timeout) = (&backend.parts.store, backend.parts.timeout);
        let live = backend.parts.inventory.live();
        let mut view = MaintenanceView { live, holders: Some(Vec::new()), ..MaintenanceView::default() };
        let gpus = match store::maintenance::get(&mut *store.read().await?).await? {
            Some(Maintenance { operation, state, gpus, since }) => {
                (view.operation, view.state, view.since) = (Some(operation), Some(state), Some(since));
                view.daemons = store::daemons::managed_on(&mut *store.read().await?, &gpus).await?;
                view.gpus.clone_from(&gpus);
                gpus
            }
            // An MLOPart device has no device file of its own.
            None if looks_ahead => {
                let devices = backend.gpus().await?.into_iter().filter(|gpu| gpu.mlopart.is_none());
                devices.map(|gpu| gpu.uuid).collect()
            }
            None => return Ok(view),
        };
        // The phase must be readable even when the driver is faulty or hangs.
        let holders = tokio::time::timeout(timeout, backend.parts.engine.holders(&gpus)).await;
        let holders = holders.unwrap_or_else(|_| {
            let within = timeout.as_secs_f64();
            Err(format!("the processes that have the GPUs open were not found within {within} s").into())
        });
        match holders {
            Ok(holders) => {
                view.holders = Some(holders.processes);
                (view.unexamined, view.unproven) = (holders.unexamined, holders.unproven);
            }
            Err(why) => {
                (view.holders, view.holders_unknown, view.unproven) = (None, Some(why.to_string()), gpus);
            }
        }
        if backend.simulated().await.is_none() {
            view.modules = std::fs::read_to_string("/proc/modules").ok().map(|text| driver_modules(&text));
        }
        Ok(view)
    }

    /// Requests maintenance of some GPUs, or of all.
    pub async fn begin_maintenance(
        &self,
        ctx: &RequestContext,
        request: MaintenanceRequest,
        options: WriteOptions,
    ) -> Result<Operation> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let timeout_s = checked_drain("/timeout_s", request.timeout_s)?;
        let present = backend.gpus().await?;
        let named = request.gpus.map(|named| {
            named
                .iter()
                .enumerate()
                .map(|(position, gpu)| {
                    let refused = |error: String| ServiceError::field(&format!("/gpus/{position}"), error);
                    let gpu = gpu.resolve(&present).map_err(|error| refused(error.to_string()))?;
                    let (kind, whole) = match (&gpu.mig, gpu.uuid.mlo()) {
                        (Some(instance), _) => ("a MIG instance", instance.parent.clone()),
                        (None, Some(_)) => ("an MLOPart device", gpu.uuid.whole()),
                        (None, None) => return Ok(gpu.uuid.clone()),
                    };
                    Err(refused(format!(
                        "GPU {} is {kind}, and all parts of a GPU have one device file: name their GPU, {}",
                        gpu.index,
                        full_name(&whole, &present)
                    )))
                })
                .collect::<Result<Vec<GpuUuid>>>()
        });
        // Of a GPU in MIG mode its instances are covered.
        let instances_of = |gpu: &GpuUuid| -> Vec<GpuUuid> {
            let of_gpu =
                present.iter().filter(|listed| listed.mig.as_ref().is_some_and(|mig| mig.parent == *gpu));
            of_gpu.map(|instance| instance.uuid.clone()).collect()
        };
        let covered = |gpus: Vec<GpuUuid>| -> Vec<GpuUuid> {
            let instances: Vec<GpuUuid> = gpus.iter().flat_map(instances_of).collect();
            [gpus, instances].concat()
        };
        let named = named.transpose()?.map(covered);
        if named.as_ref().is_some_and(Vec::is_empty) {
            return Err(ServiceError::field("/gpus", "gpus is empty: name one, or leave it out for all"));
        }
        let on_timeout = request.on_timeout;
        transact!(backend, request_operation(&permit, options), |db, _| {
            refuse_another(&mut *db).await?;
            if let Some(now) = store::maintenance::get(&mut *db).await? {
                return Err(conflict!(
                    "the host is in maintenance already ({}): end that first (`mps-manager maintenance end`)",
                    now.state.as_str()
                ));
            }
            let mut gpus = match named {
                Some(named) => named,
                None => {
                    // Includes GPUs that a daemon has and that are missing on the host.
                    let daemons = store::daemons::all(&mut *db).await?;
                    let held = daemons.into_iter().flat_map(|daemon| daemon.spec.gpus);
                    present.into_iter().map(|gpu| gpu.uuid.whole()).chain(held).collect()
                }
            };
            let daemons = store::daemons::managed_on(&mut *db, &gpus).await?;
            gpus.sort();
            gpus.dedup();
            Ok((OperationRequest::BeginMaintenance { gpus, timeout_s, on_timeout }, daemons))
        })
    }

    /// Requests the end of maintenance.
    pub async fn end_maintenance(&self, ctx: &RequestContext, options: WriteOptions) -> Result<Operation> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        transact!(backend, request_operation(&permit, options), |db, _| {
            refuse_another(&mut *db).await?;
            let Some(maintenance) = store::maintenance::get(&mut *db).await? else {
                return Err(conflict!("the host is not in maintenance: there is nothing to end"));
            };
            let daemons = store::daemons::managed_on(&mut *db, &maintenance.gpus).await?;
            Ok((OperationRequest::EndMaintenance, daemons))
        })
    }
}

/// Refuses an implausibly long drain timeout.
pub(in crate::service) fn checked_drain(pointer: &str, timeout_s: u32) -> Result<u32> {
    if timeout_s <= LONGEST_DRAIN_S {
        return Ok(timeout_s);
    }
    Err(field!(pointer, "timeout_s is {timeout_s}: give at most {LONGEST_DRAIN_S} seconds"))
}

/// Refuses a second operation on maintenance while one is running.
async fn refuse_another(db: Transaction<'_>) -> Result<()> {
    match store::operations::unfinished_maintenance(db).await? {
        None => Ok(()),
        Some(operation) => Err(conflict!(
            "operation {} ({}) is still running: wait for it, or cancel it",
            operation.id,
            operation.request.kind()
        )),
    }
}

/// Refuses new clients of a daemon that takes none.
pub(in crate::service) async fn refuse_cordoned(
    db: Transaction<'_>,
    name: &DaemonName,
    spec: &DaemonSpec,
) -> Result<()> {
    let maintenance = store::maintenance::get(db).await?;
    cordoned(name, spec, maintenance.as_ref())
}

/// Refuses new clients of a daemon that takes none, for callers that have read the maintenance already.
pub(in crate::service) fn cordoned(
    name: &DaemonName,
    spec: &DaemonSpec,
    maintenance: Option<&Maintenance>,
) -> Result<()> {
    refuse_covered(name, spec, maintenance)?;
    if spec.schedulable {
        return Ok(());
    }
    Err(conflict!(
        "daemon {name} is cordoned and takes no new clients: uncordon it (`mps-manager daemon uncordon {name}`), or use another"
    ).visible_to_tenants())
}

/// Refuses changes that a daemon in maintenance cannot take.
pub(in crate::service) async fn refuse_in_maintenance(
    db: Transaction<'_>,
    name: &DaemonName,
    spec: &DaemonSpec,
) -> Result<()> {
    let maintenance = store::maintenance::get(db).await?;
    refuse_covered(name, spec, maintenance.as_ref())
}
