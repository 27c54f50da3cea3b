//! Startup: loads the stored state and hands it to the supervisors, at the start or once an operator confirmed that the
//! database belongs to this machine.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::audit::AttemptedAction;
use crate::domain::condition::ConditionReason;
use crate::domain::event::{DomainEvent, EventCause, HostConfirmation};
use crate::domain::gpu::Gpu;
use crate::domain::health::{FaultReport, HostFault};
use crate::domain::incident::{IncidentKind, IncidentTopic};
use crate::service::access::context::{Permit, RequestContext};
use crate::service::error::field;
use crate::service::events::writer;
use crate::service::host::vitals::XidCounter;
use crate::service::host::{HostView, ReadOnly};
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::audit::AuditResult;
use crate::store::{self, StoreError, TransactionEnd, transact};
use crate::supervisor::{GpuPresence, OpenReports, RememberedDaemon};

/// The machine ID of a host without one.
pub const NO_MACHINE_ID: &str = "none";

/// An operator's confirmation that the database belongs to this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRequest {
    /// The ID of this machine, as `GET /host` shows it, which makes sure that the right manager is addressed.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub machine_id: String,
}

pub(in crate::service) fn waiting_words(missing: &str) -> String {
    format!(
        "the NVIDIA driver is waited for, and nothing is adopted, started, stopped or changed until it is here: {}",
        missing.replace('\n', "; ")
    )
}

impl Service {
    /// Moves the database to this machine, and completes startup.
    pub async fn confirm_host(
        &self,
        ctx: &RequestContext,
        request: ConfirmRequest,
        dry_run: bool,
    ) -> Result<HostView> {
        let permit = ctx.require(Right::Administer)?;
        let backend = self.with(&permit);
        if backend.parts.waiting_for_driver.is_some() {
            return Err(ServiceError::ReadOnly(
                "the NVIDIA driver is not here yet: confirm the host once it is, so that its daemons can be taken over".to_owned(),
            ));
        }
        let here = &backend.parts.machine_id;
        if request.machine_id != *here {
            return Err(field!(
                "/machine_id",
                "{:?} is not the ID of this machine, which is {here}: check that this is the intended manager",
                request.machine_id.chars().take(80).collect::<String>()
            ));
        }
        if dry_run {
            return Ok(HostView { read_only: None, ..self.host(ctx).await? });
        }
        let confirming = backend.initialized.confirming.lock().await;
        if !backend.initialized.is_done() {
            if backend.parts.store.is_sealed() {
                backend.move_here(&permit).await?;
                backend.parts.store.unseal();
                tracing::info!("the database was confirmed to belong to this machine");
            }
            let taken = backend.initialize().await;
            taken.inspect_err(|error| tracing::error!(%error, "the stored state could not be loaded"))?;
        }
        backend.accept_loss(&permit).await?;
        drop(confirming);
        self.host(ctx).await
    }
}

impl Backend {
    /// Loads the stored state, or seals the store if it belongs to another machine; returns whether there are no daemons yet.
    ///
    /// While the driver is waited for, the stored state is shown and not loaded: nothing is known of the daemons that may run.
    pub async fn start(&self) -> Result<bool, StoreError> {
        if let Some(missing) = &self.parts.waiting_for_driver {
            let message = waiting_words(missing);
            let report = FaultReport { reason: ConditionReason::DriverMissing, message };
            self.parts.health.set(HostFault::WaitingForDriver, Some(report));
        }
        let stored = store::host::machine_id(&mut *self.parts.store.read().await?).await?;
        let (here, clock) = (self.parts.machine_id.clone(), self.parts.clock);
        match stored {
            Some(stored) if stored != here => {
                tracing::error!(%stored, %here, "the database belongs to another machine: read-only until it is confirmed");
                self.parts.store.seal();
                self.load_tokens().await?;
                self.load_sessions().await?;
                return Ok(false);
            }
            Some(_) => {}
            None => {
                let put = transact!(self.parts.store, |db| {
                    store::host::put_machine_id(db, &here, clock.unix_ms()).await
                });
                put?;
            }
        }
        self.load_tokens().await?;
        self.load_sessions().await?;
        if self.parts.waiting_for_driver.is_some() {
            return Ok(false);
        }
        self.initialize().await?;
        Ok(store::daemons::all(&mut *self.parts.store.read().await?).await?.is_empty())
    }

    /// Returns true if the host is read-only, for callers that may not see the reason.
    pub fn is_read_only(&self) -> bool {
        !self.initialized.is_done()
    }

    /// Returns the reason why the host is read-only; `None` if it is not.
    pub async fn read_only(&self) -> Result<Option<ReadOnly>> {
        if self.initialized.is_done() {
            return Ok(None);
        }
        let stored = store::host::machine_id(&mut *self.parts.store.read().await?).await?;
        let stored_machine_id = stored.unwrap_or_else(|| NO_MACHINE_ID.to_owned());
        let machine_id = self.parts.machine_id.clone();
        if let Some(missing) = &self.parts.waiting_for_driver
            && !self.parts.store.is_sealed()
        {
            let (reason, waiting_for_driver) = (waiting_words(missing), true);
            return Ok(Some(ReadOnly { reason, waiting_for_driver, stored_machine_id, machine_id }));
        }
        let confirm = format!(
            "run `mps-manager host confirm` (POST {{\"machine_id\": \"{machine_id}\"}} to /api/v1/host/confirm)"
        );
        let reason = if stored_machine_id == machine_id {
            format!(
                "the database was confirmed to belong to this machine, but loading it is not complete, so nothing may be changed. \
                 If that persists, find the failure in the manager's log, fix it, and {confirm} again"
            )
        } else {
            format!(
                "the database belongs to machine {stored_machine_id} and this is machine {machine_id}: nothing is adopted, \
                 started, stopped or changed. If it was moved here for good, {confirm}; if not, stop this manager, and give it a \
                 state directory of its own"
            )
        };
        Ok(Some(ReadOnly { reason, waiting_for_driver: false, stored_machine_id, machine_id }))
    }

    /// Refuses while the database belongs to another machine, or the driver is waited for.
    pub(in crate::service) async fn refuse_read_only(&self) -> Result<()> {
        match self.read_only().await? {
            None => Ok(()),
            Some(ReadOnly { reason, .. }) => Err(ServiceError::ReadOnly(reason)),
        }
    }

    /// Refuses while the database belongs to another machine. Who may use the manager can be changed before the driver is here.
    pub(in crate::service) async fn refuse_sealed(&self) -> Result<()> {
        if self.parts.store.is_sealed() { self.refuse_read_only().await } else { Ok(()) }
    }

    /// Accepts the database as it is although rows are missing from its audit log.
    async fn accept_loss(&self, permit: &Permit) -> Result<()> {
        if !self.parts.health.has(HostFault::AuditTruncated) {
            return Ok(());
        }
        let (attempt, by, clock) = (permit.attempt(), permit.ctx().cause(), self.parts.clock);
        transact!(self.parts.store, |db| {
            let now = clock.unix_ms();
            let confirmed = HostConfirmation::LossAccepted;
            put_confirmation_on_record(db, confirmed, by, attempt, now).await?;
            Ok(())
        })?;
        self.parts.health.set(HostFault::AuditTruncated, None);
        tracing::info!("the database was accepted as it is, without the lost rows of its audit log");
        Ok(())
    }

    /// Writes that the database belongs to this machine.
    async fn move_here(&self, permit: &Permit) -> Result<(), StoreError> {
        let (here, boot_id) = (self.parts.machine_id.clone(), self.parts.fleet.context().boot_id.clone());
        let (attempt, by, clock) = (permit.attempt(), permit.ctx().cause(), self.parts.clock);
        transact!(self.parts.store, write_sealed(), |db| {
            let now = clock.unix_ms();
            store::host::move_to(&mut *db, &here, &boot_id, now).await?;
            let confirmed = HostConfirmation::Machine(here);
            put_confirmation_on_record(db, confirmed, by, attempt, now).await?;
            Ok(((), TransactionEnd::Commit))
        })
    }

    /// Hands every stored daemon to the fleet, and starts the operations engine.
    async fn initialize(&self) -> Result<(), StoreError> {
        let boot_id = self.parts.fleet.context().boot_id.clone();
        let present = self.present_gpus().await.unwrap_or_default();
        let gpus = present.clone();
        let clock = self.parts.clock;
        transact!(self.parts.store, |db| {
            let now = clock.unix_ms();
            for event in store::connected_clients::remove_other_boots(&mut *db, &boot_id).await? {
                store::events::append(&mut *db, &event, now).await?;
            }
            store::host::forget_other_boots(&mut *db, &boot_id).await?;
            store::gpus::remember(db, &gpus, now).await
        })?;
        self.end_interrupted_verifications().await?;
        self.record_start().await?;
        self.load_compute_modes().await?;
        self.publish_all(&present).await?;
        self.parts.engine.begin().await?;
        self.initialized.done.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes the event of the start once. If that fails, as on a full disk, it is queued.
    async fn record_start(&self) -> Result<(), StoreError> {
        if self.initialized.start_recorded.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let before = store::events::last_of_manager(&mut *self.parts.store.read().await?).await?;
        let (event, now) = (writer::start_event(before), self.parts.clock.unix_ms());
        let again = event.clone().into();
        let written = transact!(self.parts.store, |db| {
            store::events::append(db, &event.into(), now).await?;
            Ok(())
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the event that the manager started could not be written yet");
            self.parts.fleet.context().events.record_event(again, now);
        }
        Ok(())
    }

    /// Loads the compute modes set by this manager, and restores those of deleted daemons; drivers handle the rest.
    async fn load_compute_modes(&self) -> Result<(), StoreError> {
        let mut reader = self.parts.store.read().await?;
        let held = store::compute_modes::all(&mut reader).await?;
        drop(reader);
        self.parts.fleet.context().modes.load(held);
        self.restore_orphaned_modes().await
    }

    /// Restores the compute modes of deleted daemons, whose drivers may have had no chance to, as while the GPU was missing.
    async fn restore_orphaned_modes(&self) -> Result<(), StoreError> {
        let context = self.parts.fleet.context();
        let mut gone = context.modes.holders();
        if gone.is_empty() || !self.parts.inventory.live() || self.parts.store.is_sealed() {
            return Ok(());
        }
        let daemons = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        gone.retain(|name| daemons.iter().all(|daemon| daemon.name != *name));
        for name in gone {
            // A daemon of that name may be created meanwhile; if the store cannot be read, the mode is restored later.
            let is_gone = || async {
                let Ok(mut reader) = self.parts.store.read().await else { return false };
                matches!(store::daemons::get(&mut reader, &name).await, Ok(None))
            };
            if let Err(why) = context.put_back_modes(&name, is_gone).await {
                tracing::error!(daemon = %name, %why, "a compute mode of a daemon that is gone could not be restored");
            }
        }
        Ok(())
    }

    /// The stored state of a daemon's control process.
    pub(in crate::service) async fn remembered_daemon(
        &self,
        db: &mut sqlx::SqliteConnection,
        name: &DaemonName,
    ) -> Result<Option<RememberedDaemon>, StoreError> {
        let Some(incarnation) = store::daemons::incarnation(&mut *db, name).await? else { return Ok(None) };
        let partitions = store::partitions::run(&mut *db, name).await?;
        let boot_id = &self.parts.fleet.context().boot_id;
        let connected = store::connected_clients::of_daemon(&mut *db, name, boot_id).await?;
        let clients = connected.into_iter().map(|client| client.id).collect();
        let read_to = store::log_offsets::get(&mut *db, name).await?;
        let open = store::incidents::open(db).await?;
        let open: Vec<_> = open.into_iter().filter(|stored| stored.incident.daemon == *name).collect();
        let open = OpenReports {
            bypass: open.iter().any(|stored| stored.incident.kind == IncidentKind::Bypass),
            layout: open.iter().any(|stored| stored.incident.topic == IncidentTopic::Layout),
        };
        Ok(Some(RememberedDaemon { incarnation, partitions, clients, read_to, open }))
    }

    /// Publishes the desired state of every daemon, with its stored control process.
    async fn publish_all(&self, present: &[Gpu]) -> Result<(), StoreError> {
        let mut reader = self.parts.store.read().await?;
        let mut planned = Vec::new();
        for daemon in store::daemons::all(&mut reader).await? {
            let earlier = self.remembered_daemon(&mut reader, &daemon.name).await?;
            match store::plans::desired(&mut reader, &daemon.name, present, self.parts.manager_uid).await {
                Ok(Some(desired)) => planned.push((desired, earlier)),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(daemon = %daemon.name, %error, "the desired state of the daemon could not be computed");
                    let tenants = store::tenants::of_daemon(&mut reader, &daemon.name).await?;
                    let directories = tenants.iter().map(store::plans::directory_tenant).collect();
                    self.parts.fleet.refuse_clients(&daemon.name, &directories);
                }
            }
        }
        // All at once: each claims its control process, which another one would take for a foreign daemon.
        for (desired, earlier) in planned {
            self.parts.fleet.publish(desired, earlier);
        }
        Ok(())
    }

    /// Periodically lists the GPUs, and notifies all drivers of changes.
    pub async fn watch_gpus(self: Arc<Self>, every: Duration) {
        let (mut remembered, mut xids) = (None, XidCounter::new());
        let mut before = self.parts.clock.unix_ms();
        loop {
            let begun = self.parts.clock.unix_ms();
            // While the driver does not answer, its last answer stays valid.
            if let Ok(present) = self.poll_gpus(&mut xids).await {
                let now = GpuPresence::of(&present);
                now.clone().publish_to(&self.parts.fleet.context().gpu_presence);
                let changed = remembered.replace(now.clone()) != Some(now);
                if changed && let Err(error) = self.remember(present, before).await {
                    tracing::warn!(%error, "the GPUs of this host could not be stored");
                }
                before = begun;
            }
            if let Err(error) = self.restore_orphaned_modes().await {
                tracing::warn!(%error, "the compute modes of daemons that are gone could not be checked");
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Stores the GPUs, which were read before at this time; a daemon whose GPU is new can be planned from then on.
    async fn remember(&self, present: Vec<Gpu>, before: i64) -> Result<(), StoreError> {
        if self.parts.store.is_sealed() || self.parts.waiting_for_driver.is_some() {
            return Ok(());
        }
        let gpus = present.clone();
        let clock = self.parts.clock;
        let news = transact!(self.parts.store, |db| {
            let now = clock.unix_ms();
            writer::record_gpu_presence(&mut *db, &gpus, before, now).await?;
            store::gpus::remember(db, &gpus, now).await
        });
        if news? { self.publish_all(&present).await } else { Ok(()) }
    }
}

/// Records a confirmation as an event and, if a caller did it, in the audit log.
async fn put_confirmation_on_record(
    db: store::Transaction<'_>,
    confirmed: HostConfirmation,
    by: EventCause,
    attempt: Option<AttemptedAction>,
    now: i64,
) -> Result<(), StoreError> {
    let event = DomainEvent::HostConfirmed(confirmed).because(by);
    store::events::append(&mut *db, &event, now).await?;
    if let Some(attempt) = attempt {
        store::audit::append(db, &attempt, AuditResult::default(), now).await?;
    }
    Ok(())
}
