//! Verification: starts a CUDA client in the environment of a tenant, and compares what it saw with the configuration.
//!
//! It is not an operation: it changes nothing on the daemon and needs no turn there. One client runs at a time per tenant;
//! concurrent requests wait for it. The last result of each tenant is stored, and so is that one is running: a restarted
//! manager reports those as interrupted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::domain::count::counted;
use crate::domain::daemon::{Daemon, DaemonStatus, Mode, Phase};
use crate::domain::event::{DomainEvent, EventCause, VerificationFailure};
use crate::domain::gpu::Gpu;
use crate::domain::percentage::is_measured;
use crate::domain::resolution::Resolved;
use crate::domain::tenant::Tenant;
use crate::domain::verification::{
    BlockerCode, ClientSight, Expectation, ExpectedGpu, SeenGpu, SettingComparison, Staleness, Verification,
    VerificationBlocker, VerificationOutcome, VerificationResult, VerifiedDevice, compare,
};
use crate::domain::{GpuUuid, MemoryLimit, TenantName};
use crate::gpu::probe::ProbeRequest;
use crate::gpu::report::Report;
use crate::service::access::context::RequestContext;
use crate::service::access::idempotency::once;
use crate::service::access::redaction::Redact as _;
use crate::service::daemons::maintenance::{refuse_cordoned, refuse_in_maintenance};
use crate::service::error::Found as _;
use crate::service::tenants::conditions::refuse_closed;
use crate::service::tenants::provisioning::share_basis;
use crate::service::{
    Backend, Result, Service, ServiceError, WriteOptions, check_precondition, transaction_end,
};
use crate::store::{self, StoreError, transact};

/// Longest wait of a client for admission.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a running client is given up: longer than all its timeouts together, in milliseconds.
const GIVEN_UP_MS: i64 = 180_000;
/// Pause before an operation asks again if the tenant's client has ended.
const TURN: Duration = Duration::from_millis(100);

/// Settings that a client saw, compared with the expected ones, the devices, and the variables it was started with.
#[derive(Default)]
struct ProbeResult {
    comparisons: Vec<SettingComparison>,
    devices: Vec<VerifiedDevice>,
    environment: BTreeMap<String, String>,
}

impl Service {
    /// Starts a CUDA client in the environment of a tenant, unless one is running; the result goes to the tenant's status.
    pub async fn verify_tenant(
        &self,
        ctx: &RequestContext,
        name: TenantName,
        options: WriteOptions,
    ) -> Result<Verification> {
        let permit = ctx.require(Right::UseTenant(&name))?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let (dry_run, verified, service) = (options.dry_run, name.clone(), backend.clone());
        let (clock, key) = (ctx.clock, ctx.idempotency.clone());
        let (verification, begun) = transact!(backend, write(&permit), |db| {
            let now = clock.unix_ms();
            let tenant = store::tenants::get(&mut *db, &name).await?.found("tenant", &name)?;
            check_precondition(&options, Some(tenant.generation))?;
            let daemon = store::daemons::get(&mut *db, &tenant.spec.daemon).await?;
            let mut begun = false;
            let verification = once(db, key.as_deref(), now, async |db| {
                begun = store::verifications::begin(&mut *db, &name, now - GIVEN_UP_MS, now).await?;
                let written = store::verifications::get(db, &name).await?.unwrap_or_default();
                Ok(service.dated(written, &tenant, daemon.as_ref()))
            })
            .await?;
            Ok(((verification, begun), transaction_end(&options)))
        })?;
        if let Some(requested_at) = verification.running_since.filter(|_| begun && !dry_run) {
            let (service, by) = (backend.clone(), ctx.cause());
            // Not awaited at shutdown: the next manager reports it as interrupted.
            tokio::spawn(async move { service.verify(&verified, requested_at, by).await });
        }
        Ok(verification.redacted_for(&ctx.actor))
    }
}

impl Backend {
    /// Verifies a tenant for an operation, once no other client of its verification runs.
    pub(in crate::service) async fn verify_now(&self, name: TenantName) -> Result<VerificationResult> {
        loop {
            let (tenant, now) = (name.clone(), self.parts.clock.unix_ms());
            let given_up = now - GIVEN_UP_MS;
            if transact!(self.parts.store, |db| {
                store::verifications::begin(db, &tenant, given_up, now).await
            })? {
                self.verify(&name, now, EventCause::Manager).await;
                break;
            }
            tokio::time::sleep(TURN).await;
        }
        let written = store::verifications::get(&mut *self.parts.store.read().await?, &name).await?;
        written.and_then(|written| written.last).found("tenant", &name)
    }

    /// Starts the client, and writes its result and event.
    async fn verify(&self, name: &TenantName, requested_at: i64, by: EventCause) {
        let ended = async {
            let result = match self.verified(name, requested_at).await {
                Ok(result) => result,
                // It has ended, whatever the error, and must be reported so.
                Err(error) => self.failed(name, requested_at, error).await?,
            };
            self.end_verification(name, requested_at, result, by).await
        };
        match ended.await {
            // The tenant was deleted meanwhile, and with it the row; or the manager stops.
            Ok(()) | Err(ServiceError::NotFound { .. }) => {}
            Err(error) => {
                tracing::error!(tenant = %name, %error, "the result of a verification could not be written");
            }
        }
    }

    async fn verified(&self, name: &TenantName, requested_at: i64) -> Result<VerificationResult> {
        let tenant = self.stored_tenant(name).await?;
        let daemon = self.followed_daemon(&tenant).await?;
        tracing::info!(tenant = %name, daemon = %daemon.name, "verifying a tenant with a CUDA client");
        let mut probed = self.probe_as(&tenant, &daemon).await;
        let mut reader = self.parts.store.read().await?;
        let now = store::tenants::get(&mut reader, name).await?.found("tenant", name)?;
        let revision = store::daemons::get(&mut reader, &daemon.name).await?.map(|daemon| daemon.revision);
        drop(reader);
        if probed.is_ok() && (now.generation != tenant.generation || revision != Some(daemon.revision)) {
            probed = Err(blocker(BlockerCode::Changed, BlockerCode::Changed.redacted_message()));
        }
        if let Some(handle) = self.parts.fleet.get(&daemon.name) {
            // The server may have started with this client; if the poll fails, the last one is used.
            let _ = handle.fresh(self.parts.timeout).await;
        }
        Ok(self.result(&tenant, &daemon, requested_at, probed))
    }

    async fn failed(
        &self,
        name: &TenantName,
        requested_at: i64,
        error: ServiceError,
    ) -> Result<VerificationResult> {
        let tenant = self.stored_tenant(name).await?;
        let daemon = self.followed_daemon(&tenant).await?;
        tracing::error!(tenant = %name, %error, "a verification failed because of an internal error");
        Ok(self.result(&tenant, &daemon, requested_at, Err(fault(error))))
    }

    fn result(
        &self,
        tenant: &Tenant,
        daemon: &Daemon,
        requested_at: i64,
        probed: Result<ProbeResult, VerificationBlocker>,
    ) -> VerificationResult {
        let (blocker, probed) = match probed {
            Ok(probed) => (None, probed),
            Err(blocker) => (Some(blocker), ProbeResult::default()),
        };
        let ProbeResult { comparisons, devices, environment } = probed;
        let mut result = VerificationResult {
            server: self.status_of(daemon).and_then(|status| server(&status)),
            blocker,
            comparisons,
            devices,
            environment,
            ..not_verified(tenant, daemon, requested_at, self.parts.clock.unix_ms())
        };
        if result.blocker.is_none() {
            let differs = !result.differing().is_empty();
            result.outcome =
                if differs { VerificationOutcome::Differs } else { VerificationOutcome::Verified };
        }
        result
    }

    fn status_of(&self, daemon: &Daemon) -> Option<Arc<DaemonStatus>> {
        self.parts.fleet.get(&daemon.name).map(|handle| handle.observed().status)
    }

    async fn end_verification(
        &self,
        name: &TenantName,
        requested_at: i64,
        result: VerificationResult,
        by: EventCause,
    ) -> Result<()> {
        let (name, clock) = (name.clone(), self.parts.clock);
        transact!(self.parts.store, ServiceError, |db| {
            if store::verifications::end(&mut *db, &name, requested_at, &result).await? {
                let event = verification_event(&name, &result).because(by);
                store::events::append(db, &event, clock.unix_ms()).await?;
            }
            Ok(())
        })
    }

    /// Reports verifications that were running when the previous manager ended as interrupted.
    pub(in crate::service) async fn end_interrupted_verifications(&self) -> Result<(), StoreError> {
        let clock = self.parts.clock;
        transact!(self.parts.store, |db| {
            let now = clock.unix_ms();
            for (name, requested_at) in store::verifications::running(&mut *db).await? {
                let Some(tenant) = store::tenants::get(&mut *db, &name).await? else { continue };
                let Some(daemon) = store::daemons::get(&mut *db, &tenant.spec.daemon).await? else {
                    continue;
                };
                let code = BlockerCode::Interrupted;
                let result = VerificationResult {
                    blocker: Some(blocker(code, code.redacted_message())),
                    ..not_verified(&tenant, &daemon, requested_at, now)
                };
                store::verifications::end(&mut *db, &name, requested_at, &result).await?;
                let event = verification_event(&name, &result);
                store::events::append(&mut *db, &event.into(), now).await?;
            }
            Ok(())
        })
    }

    /// Starts the client in exactly the tenant's environment, as its user.
    async fn probe_as(&self, tenant: &Tenant, daemon: &Daemon) -> Result<ProbeResult, VerificationBlocker> {
        self.check_blockers(tenant, daemon).await?;
        let no_environment =
            |error: ServiceError| blocker(BlockerCode::NoEnvironment, error.host_error().to_string());
        let gpus = self.held_gpus().await.map_err(fault)?;
        let tenants = self.stored_tenants().await.map_err(|error| fault(error.into()))?;
        let basis = share_basis(daemon, &tenants, &gpus).map_err(no_environment)?;
        let resolved = self.resolved(tenant, daemon, basis.as_ref(), &gpus).map_err(no_environment)?;
        let placement =
            self.proven_placement(tenant, &resolved, daemon.generation).await.map_err(no_environment)?;
        let environment =
            self.environment_of(tenant, &resolved, &placement, &gpus).map_err(no_environment)?;
        let before = self.free_memory().await;
        let request = ProbeRequest {
            variables: environment.variables.clone(),
            uid: tenant.spec.uid,
            allocate_up_to: self.may_allocate(tenant, &resolved, &before).await.map_err(fault)?,
            timeout: ADMISSION_TIMEOUT,
        };
        let report = self.parts.fleet.context().prober.see(&request).await;
        let sight = sight(report, &resolved)?;
        let after = self.free_memory().await;
        let free = |gpu: &GpuUuid| Some(*before.get(gpu)?.min(after.get(gpu)?));
        let expected = self.expected(tenant, daemon, &resolved, &gpus, free);
        let devices = sight.gpus.iter().map(|seen| VerifiedDevice {
            gpu: seen.uuid.clone(),
            sms: seen.sms,
            memory_total: seen.total,
        });
        Ok(ProbeResult {
            comparisons: compare(&expected, &sight),
            devices: devices.collect(),
            environment: environment.variables,
        })
    }

    /// Refuses what would make the client fail or harm others.
    async fn check_blockers(&self, tenant: &Tenant, daemon: &Daemon) -> Result<(), VerificationBlocker> {
        let mut reader = self.parts.store.read().await.map_err(|error| fault(error.into()))?;
        let because = |code| move |error: ServiceError| blocker(code, error.host_error().to_string());
        refuse_in_maintenance(&mut reader, &daemon.name, &daemon.spec)
            .await
            .map_err(because(BlockerCode::Maintenance))?;
        refuse_cordoned(&mut reader, &daemon.name, &daemon.spec)
            .await
            .map_err(because(BlockerCode::Cordoned))?;
        drop(reader);
        refuse_closed(tenant, self.parts.clock.unix_ms()).map_err(because(BlockerCode::NoEnvironment))?;
        let (uid, own) = (tenant.spec.uid, self.parts.manager_uid);
        if own != 0 && uid != own {
            let why = format!(
                "the manager runs as uid {own} and cannot start a process as uid {uid}, the tenant's: run it as root"
            );
            return Err(blocker(BlockerCode::NotRoot, why));
        }
        if let Err(error) = self.await_serving(tenant, daemon).await {
            // Drift that is left as it is should be verified by a client too.
            let drifted =
                self.status_of(daemon).is_some_and(|status| status.pid.is_some() && status.drift.present);
            if !drifted {
                let error = self.unplaced(tenant, daemon).unwrap_or(error);
                return Err(because(BlockerCode::DaemonNotReady)(error));
            }
        }
        let reachable = self.parts.fleet.check_reachable(&daemon.name, daemon.spec.multi_user, uid).await;
        reachable.map_err(|unreachable| blocker(BlockerCode::NoEnvironment, unreachable))?;
        let clients =
            self.parts.fleet.get(&daemon.name).map(|handle| handle.observed().clients).unwrap_or_default();
        let others = clients.iter().filter(|client| client.uid.is_some_and(|other| other != uid)).count();
        if others > 0 && !daemon.spec.multi_user {
            let why = format!(
                "{} of other users {} connected, and daemon {} serves one user at a time: a client of uid {uid} \
                 would wait until they are gone. Verify again then, or make the daemon multi_user",
                counted(others, "client"),
                if others == 1 { "is" } else { "are" },
                daemon.name
            );
            return Err(blocker(BlockerCode::OtherUser, why));
        }
        Ok(())
    }

    /// Returns the free memory of each GPU whose memory the driver reports.
    async fn free_memory(&self) -> BTreeMap<GpuUuid, u64> {
        let gpus = self.present_gpus().await.unwrap_or_default().into_iter();
        gpus.filter_map(|gpu| Some((gpu.uuid, gpu.memory_total?.saturating_sub(gpu.memory_used?)))).collect()
    }

    /// Returns the memory that the client may try to allocate on each GPU: the tenant's limit, or the largest one if they differ. `None`
    /// unless the tenant has a limit on each GPU, may have another process, and each GPU has that much free memory.
    async fn may_allocate(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        free: &BTreeMap<GpuUuid, u64>,
    ) -> Result<Option<MemoryLimit>> {
        let limits: Option<Vec<_>> =
            resolved.gpus.iter().map(|gpu| resolved.memory.get(gpu).copied()).collect();
        let Some(limit) = limits.and_then(|limits| limits.into_iter().max()) else { return Ok(None) };
        // MLOPart devices of a GPU share its memory.
        let sharing =
            |gpu: &GpuUuid| resolved.gpus.iter().filter(|other| other.whole() == gpu.whole()).count();
        let roomy = |gpu: &GpuUuid| {
            free.get(&gpu.whole()).is_some_and(|free| free / sharing(gpu) as u64 >= limit.bytes())
        };
        let running = self.processes_of(&tenant.name).await?;
        let max = tenant.spec.max_clients.unwrap_or(u32::MAX);
        let has_place = u32::try_from(running).is_ok_and(|running| running < max);
        Ok((has_place && resolved.gpus.iter().all(roomy)).then_some(limit))
    }

    fn expected(
        &self,
        tenant: &Tenant,
        daemon: &Daemon,
        resolved: &Resolved,
        gpus: &[Gpu],
        free: impl Fn(&GpuUuid) -> Option<u64>,
    ) -> Expectation {
        let layout = self.status_of(daemon).and_then(|status| status.layout.clone());
        let partitions = layout.map(|layout| layout.partitions).unwrap_or_default();
        let expected = |uuid: &GpuUuid| {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid);
            let mine = partitions.iter().find(|one| one.gpu == *uuid && one.tenants.contains(&tenant.name));
            let predicted = || resolved.predicted_sms(gpu?.sms?);
            ExpectedGpu {
                uuid: uuid.clone(),
                sms: mine.and_then(|partition| partition.sms).or_else(predicted),
                is_measured: gpu.is_some_and(is_measured),
                limit: resolved.memory.get(uuid).map(|limit| limit.bytes()),
                free: free(uuid),
                partition_of: gpu.and_then(|gpu| gpu.sms).filter(|_| resolved.mode == Mode::Static),
            }
        };
        Expectation { gpus: resolved.gpus.iter().map(expected).collect(), priority: resolved.priority }
    }

    /// A verification, marked as outdated or not.
    pub(super) fn dated(
        &self,
        verification: Verification,
        tenant: &Tenant,
        daemon: Option<&Daemon>,
    ) -> Verification {
        let stale = |last: &VerificationResult| {
            if last.generation != tenant.generation {
                return Some(Staleness::TenantChanged);
            }
            let same =
                |daemon: &&Daemon| daemon.name == last.daemon && daemon.revision == last.daemon_revision;
            let Some(daemon) = daemon.filter(same) else { return Some(Staleness::DaemonChanged) };
            let status = self.status_of(daemon)?;
            // After a restart of the manager, the daemon is found before it has a status.
            let is_known = status.effective.is_some() || status.phase != Phase::Unknown;
            (is_known && server(&status) != last.server).then_some(Staleness::ServerReplaced)
        };
        let last = verification.last.map(|last| VerificationResult { stale: stale(&last), ..last });
        Verification { last, ..verification }
    }
}

/// The server that takes clients.
fn server(status: &DaemonStatus) -> Option<ClientId> {
    let servers = &status.effective.as_ref()?.servers;
    let active = servers.iter().find(|server| server.is_active()).or(servers.first())?;
    Some(ClientId { pid: active.pid, start_time: active.start_time })
}

/// Returns the result of a verification without any findings: not verified.
fn not_verified(tenant: &Tenant, daemon: &Daemon, requested_at: i64, observed_at: i64) -> VerificationResult {
    VerificationResult {
        outcome: VerificationOutcome::NotVerified,
        requested_at,
        observed_at,
        generation: tenant.generation,
        daemon: daemon.name.clone(),
        daemon_revision: daemon.revision,
        server: None,
        stale: None,
        blocker: None,
        comparisons: Vec::new(),
        devices: Vec::new(),
        environment: BTreeMap::new(),
    }
}

fn blocker(code: BlockerCode, message: impl Into<String>) -> VerificationBlocker {
    VerificationBlocker { code, message: message.into() }
}

#[allow(clippy::needless_pass_by_value, reason = "as `map_err` wants it")]
fn fault(error: ServiceError) -> VerificationBlocker {
    blocker(BlockerCode::Fault, error.host_error().to_string())
}

/// Converts a probe's report to the limits that the client saw; an error if it saw no GPU.
fn sight(report: Report, resolved: &Resolved) -> Result<ClientSight, VerificationBlocker> {
    let failure =
        report.error.map(|failure| (failure.is_timeout(), format!("{}: {}", failure.name, failure.message)));
    if report.devices.is_empty() {
        return Err(match failure {
            Some((true, message)) => blocker(BlockerCode::ClientWaits, message),
            Some((false, message)) => blocker(BlockerCode::ClientFailed, message),
            None => blocker(BlockerCode::ClientFailed, "the client saw no GPU"),
        });
    }
    let named = |seen: &GpuUuid| {
        let is_it = |gpu: &&GpuUuid| match resolved.mlopart.get(*gpu) {
            // The server's list may have shortened it.
            Some(own) => seen.as_str().starts_with(own),
            None => gpu.is_reported_as(seen),
        };
        resolved.gpus.iter().find(is_it).unwrap_or(seen).clone()
    };
    let gpus = report.devices.into_iter().map(|device| SeenGpu {
        uuid: named(&device.uuid),
        total: device.memory_total,
        sms: device.sms,
        free: device.memory_free,
        largest: device.allocation.map(|allocation| allocation.largest),
    });
    Ok(ClientSight { mps: report.mps, gpus: gpus.collect(), failure: failure.map(|(_, message)| message) })
}

/// The event of a verification, which concerns only the tenant.
fn verification_event(name: &TenantName, result: &VerificationResult) -> DomainEvent {
    let (tenant, daemon) = (name.clone(), result.daemon.clone());
    let failure = match result.outcome {
        VerificationOutcome::Verified => return DomainEvent::TenantVerified { tenant, daemon },
        VerificationOutcome::Differs => VerificationFailure::Differs(result.differing()),
        VerificationOutcome::NotVerified => {
            VerificationFailure::NotVerified(result.blocker.as_ref().map(|blocker| blocker.code))
        }
    };
    DomainEvent::TenantVerificationFailed { tenant, daemon, failure }
}
