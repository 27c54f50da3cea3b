//! Taking up what is remembered: at the start, or once somebody has said that it belongs to this machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::acting::{attempt, carried, cause};
use super::host::HostView;
use super::{Service, ServiceError, recording};
use crate::clock::unix_ms;
use crate::domain::DaemonName;
use crate::domain::access::{Actor, Right};
use crate::domain::audit::Attempt;
use crate::domain::event::{Cause, EventType, NewEvent, Subject};
use crate::domain::gpu::Gpu;
use crate::domain::health::HostFault;
use crate::store::audit::Came;
use crate::store::{self, Fate, StoreError};
use crate::supervisor::{Census, Earlier};

/// What stands for the machine ID of a host that has none.
pub const NO_MACHINE_ID: &str = "none";

/// Why nothing is changed on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReadOnly {
    /// The reason, and what to do.
    pub reason: String,
    /// The machine that the database belongs to; `none` for one without an ID.
    pub stored_machine_id: String,
    /// This machine.
    pub machine_id: String,
}

/// The word of an operator that the database belongs to this machine now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfirmRequest {
    /// The ID of this machine, as `GET /host` shows it: naming it makes sure that the right manager was asked.
    #[schema(pattern = "^[0-9a-f]{32}$")]
    pub machine_id: String,
}

/// Whether what is remembered was taken up, which a seal alone does not tell: it may have been broken, and the rest failed.
#[derive(Debug, Default)]
pub(super) struct TakenUp {
    done: AtomicBool,
    /// Whether it was said that the manager started.
    said: AtomicBool,
    /// Held by whoever confirms: a second one comes after the first.
    confirming: Mutex<()>,
}

impl TakenUp {
    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

impl Service {
    /// Takes up what is remembered, or seals it when it belongs to another machine; true when there is nothing yet.
    pub async fn begin(&self) -> Result<bool, StoreError> {
        let stored = store::host::machine_id(&mut *self.parts.store.read().await?).await?;
        let here = self.parts.machine_id.clone();
        match stored {
            Some(stored) if stored != here => {
                tracing::error!(%stored, %here, "the database belongs to another machine: read-only until it is confirmed");
                self.parts.store.seal();
                self.take_up_tokens().await?;
                self.take_up_sessions().await?;
                return Ok(false);
            }
            Some(_) => {}
            None => {
                let written: Result<(), StoreError> = self
                    .parts
                    .store
                    .write(move |db| {
                        Box::pin(async move {
                            store::host::put_machine_id(db, &here, unix_ms()).await?;
                            Ok(((), Fate::Commit))
                        })
                    })
                    .await;
                written?;
            }
        }
        self.take_up_tokens().await?;
        self.take_up_sessions().await?;
        self.take_up().await?;
        Ok(store::daemons::all(&mut *self.parts.store.read().await?).await?.is_empty())
    }

    /// Whether nothing is changed, for those who may not know why.
    pub fn is_read_only(&self) -> bool {
        !self.taken_up.is_done()
    }

    /// Why nothing is changed, if that is so.
    pub async fn read_only(&self) -> Result<Option<ReadOnly>, ServiceError> {
        if self.taken_up.is_done() {
            return Ok(None);
        }
        let stored = store::host::machine_id(&mut *self.parts.store.read().await?).await?;
        let stored_machine_id = stored.unwrap_or_else(|| NO_MACHINE_ID.to_owned());
        let machine_id = self.parts.machine_id.clone();
        let confirm = format!("POST {{\"machine_id\": \"{machine_id}\"}} to /api/v1/host/confirm");
        let reason = if stored_machine_id == machine_id {
            format!(
                "the database was confirmed to belong to this machine, and what it remembers is not taken up yet, so nothing is \
                 changed. If that stays so, see the manager's log for what failed, mend it, and {confirm} again"
            )
        } else {
            format!(
                "the database belongs to machine {stored_machine_id} and this is machine {machine_id}: nothing is adopted, \
                 started, stopped or changed. If it was moved here for good, {confirm}; if not, stop this manager, and give it a \
                 state directory of its own"
            )
        };
        Ok(Some(ReadOnly { reason, stored_machine_id, machine_id }))
    }

    /// Refuses while the database belongs to another machine.
    pub(super) async fn refuse_read_only(&self) -> Result<(), ServiceError> {
        match self.read_only().await? {
            None => Ok(()),
            Some(ReadOnly { reason, .. }) => Err(ServiceError::ReadOnly(reason)),
        }
    }

    /// Makes the database this machine's, and takes everything up.
    pub async fn confirm_host(
        &self,
        actor: &Actor,
        request: ConfirmRequest,
        dry_run: bool,
    ) -> Result<HostView, ServiceError> {
        actor.may(Right::Administer)?;
        let here = &self.parts.machine_id;
        if request.machine_id != *here {
            return Err(ServiceError::field(
                "/machine_id",
                format!(
                    "{:?} is not the ID of this machine, which is {here}: see that this is the manager you mean",
                    request.machine_id.chars().take(80).collect::<String>()
                ),
            ));
        }
        if dry_run {
            return Ok(HostView { read_only: None, ..self.host(actor).await? });
        }
        let service = self.clone();
        // Not `to_the_end`, which refuses what is read-only; but to the end all the same.
        let confirmed = self.parts.tasks.spawn(carried(async move {
            let _one = service.taken_up.confirming.lock().await;
            if service.taken_up.is_done() {
                return service.accept_loss().await;
            }
            if service.parts.store.is_sealed() {
                service.move_here().await?;
                service.parts.store.unseal();
                tracing::info!("the database was confirmed to belong to this machine");
            }
            let taken = service.take_up().await;
            taken.inspect_err(
                |error| tracing::error!(%error, "what the database remembers was not taken up"),
            )?;
            service.accept_loss().await
        }));
        confirmed.await.map_err(|error| ServiceError::Internal(error.to_string()))??;
        self.host(actor).await
    }

    /// Takes the database as it is, where it lacks rows that are known to have been written.
    async fn accept_loss(&self) -> Result<(), ServiceError> {
        if !self.parts.health.has(HostFault::AuditTruncated) {
            return Ok(());
        }
        let (attempt, by) = (attempt(), cause());
        let message = "the database was accepted as it is, without the rows of the audit that it lost";
        let written: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    put_confirmation_on_record(db, message, by, attempt, now).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        written?;
        self.parts.health.set(HostFault::AuditTruncated, None);
        tracing::info!("{message}");
        Ok(())
    }

    /// Makes the database this machine's.
    async fn move_here(&self) -> Result<(), StoreError> {
        let (here, boot_id) = (self.parts.machine_id.clone(), self.parts.fleet.context().boot_id.clone());
        let (attempt, by) = (attempt(), cause());
        self.parts
            .store
            .write_sealed(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    store::host::move_to(&mut *db, &here, &boot_id, now).await?;
                    let message = format!("the database was confirmed to belong to machine {here}");
                    put_confirmation_on_record(db, message, by, attempt, now).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await
    }

    /// Hands every remembered daemon to the fleet, and begins with operations.
    async fn take_up(&self) -> Result<(), StoreError> {
        let boot_id = self.parts.fleet.context().boot_id.clone();
        let present = self.present_gpus().await.unwrap_or_default();
        let known = present.clone();
        let forgotten: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    store::told::clients_of_other_boots_left(&mut *db, &boot_id, now).await?;
                    store::host::forget_other_boots(&mut *db, &boot_id).await?;
                    store::gpus::remember(db, &known, now).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        forgotten?;
        self.end_interrupted_verifications().await?;
        self.say_started().await?;
        self.take_up_modes().await?;
        self.publish_all(&present).await?;
        self.parts.engine.begin().await?;
        self.taken_up.done.store(true, Ordering::Release);
        Ok(())
    }

    /// Tells that the manager started, once; where that cannot be written, as on a full disk, it is when it can.
    async fn say_started(&self) -> Result<(), StoreError> {
        if self.taken_up.said.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let before = store::events::last_of_manager(&mut *self.parts.store.read().await?).await?;
        let (event, now) = (recording::started(before), unix_ms());
        let again = event.clone();
        let written: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::events::append(db, &event, now).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        if let Err(error) = written {
            tracing::warn!(%error, "that the manager started could not be written yet");
            self.parts.fleet.context().journal.say(again, now);
        }
        Ok(())
    }

    /// Takes up the compute modes that are ours, and puts back those of daemons that are gone; drivers see to the rest.
    async fn take_up_modes(&self) -> Result<(), StoreError> {
        let mut reader = self.parts.store.read().await?;
        let held = store::compute_modes::all(&mut reader).await?;
        drop(reader);
        self.parts.fleet.context().modes.load(held);
        self.put_back_orphaned_modes().await
    }

    /// Puts back the compute modes of daemons that are gone: a driver may have had no chance to, as while its GPU was
    /// missing or the driver was let go.
    async fn put_back_orphaned_modes(&self) -> Result<(), StoreError> {
        let context = self.parts.fleet.context();
        let mut gone = context.modes.holders();
        if gone.is_empty() || !self.parts.inventory.live() || self.parts.store.is_sealed() {
            return Ok(());
        }
        let known = store::daemons::all(&mut *self.parts.store.read().await?).await?;
        gone.retain(|name| known.iter().all(|daemon| daemon.name != *name));
        for name in gone {
            // Somebody may create one of that name meanwhile; what cannot be read is put back another time.
            let is_gone = || async {
                let Ok(mut reader) = self.parts.store.read().await else { return false };
                matches!(store::daemons::get(&mut reader, &name).await, Ok(None))
            };
            if let Err(why) = context.put_back_modes(&name, is_gone).await {
                tracing::error!(daemon = %name, %why, "a compute mode of a daemon that is gone could not be put back");
            }
        }
        Ok(())
    }

    /// What is remembered of the control process of a daemon.
    pub(super) async fn earlier(
        &self,
        db: &mut sqlx::SqliteConnection,
        name: &DaemonName,
    ) -> Result<Option<Earlier>, StoreError> {
        let Some(incarnation) = store::daemons::incarnation(&mut *db, name).await? else { return Ok(None) };
        let partitions = store::partitions::run(&mut *db, name).await?;
        let boot_id = &self.parts.fleet.context().boot_id;
        let told = store::told::clients(&mut *db, name, boot_id).await?;
        let clients = told.into_iter().map(|client| client.id).collect();
        let read_to = store::told::place(db, name).await?;
        Ok(Some(Earlier { incarnation, partitions, clients, read_to }))
    }

    /// Publishes what every daemon should hold, with the control process that is remembered of it.
    async fn publish_all(&self, present: &[Gpu]) -> Result<(), StoreError> {
        let mut reader = self.parts.store.read().await?;
        for daemon in store::daemons::all(&mut reader).await? {
            let earlier = self.earlier(&mut reader, &daemon.name).await?;
            match store::plans::desired(&mut reader, &daemon.name, present, self.parts.manager_uid).await {
                Ok(Some(desired)) => self.parts.fleet.publish(desired, earlier),
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(daemon = %daemon.name, %error, "the daemon cannot be brought about");
                    let tenants = store::tenants::of_daemon(&mut reader, &daemon.name).await?;
                    let directories = tenants.into_iter().map(|tenant| (tenant.directory, tenant.name));
                    self.parts.fleet.refuse_clients(&daemon.name, &directories.collect());
                }
            }
        }
        Ok(())
    }

    /// Looks again and again which GPUs are here, and tells all drivers when that changes.
    pub async fn watch_gpus(self, every: Duration) {
        let mut remembered = None;
        loop {
            // While the driver does not answer, what it said last goes on to hold.
            if let Ok(present) = self.present_gpus().await {
                let now = Census::of(&present);
                now.clone().tell(&self.parts.fleet.context().census);
                let changed = remembered.replace(now.clone()) != Some(now);
                if changed && let Err(error) = self.remember(present).await {
                    tracing::warn!(%error, "the GPUs of this host could not be remembered");
                }
            }
            if let Err(error) = self.put_back_orphaned_modes().await {
                tracing::warn!(%error, "the compute modes of daemons that are gone could not be looked at");
            }
            tokio::time::sleep(every).await;
        }
    }

    /// Remembers what the GPUs are; a daemon whose GPU is seen for the first time can be planned from then on.
    async fn remember(&self, present: Vec<Gpu>) -> Result<(), StoreError> {
        if self.parts.store.is_sealed() {
            return Ok(());
        }
        let known = present.clone();
        let news: Result<bool, StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    let now = unix_ms();
                    recording::tell_of_gpus(&mut *db, &known, now).await?;
                    Ok((store::gpus::remember(db, &known, now).await?, Fate::Commit))
                })
            })
            .await;
        if news? { self.publish_all(&present).await } else { Ok(()) }
    }
}

/// Writes that a database was confirmed, as an event and, where a caller did it, in the audit log.
async fn put_confirmation_on_record(
    db: store::Transaction<'_>,
    message: impl Into<String>,
    by: Cause,
    attempt: Option<Attempt>,
    now: i64,
) -> Result<(), StoreError> {
    let event = NewEvent::new(EventType::HostConfirmed, Subject::default(), message).because(by);
    store::events::append(&mut *db, &event, now).await?;
    if let Some(attempt) = attempt {
        store::audit::append(db, &attempt, Came::default(), 1, now).await?;
    }
    Ok(())
}
