//! The events of operations, written with them.

use sqlx::SqliteConnection;

use super::super::{StoreError, daemons, events, from_json, parsed, to_json};
use crate::domain::daemon::{Daemon, DaemonSpec};
use crate::domain::event::{
    Details, DomainEvent, EventCause, EventSubject, EventType, OperationFacts, changed_fields,
};
use crate::domain::operation::{OperationEnd, OperationRequest};
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// Request of an operation, with its daemons, GPUs and tenant.
struct OperationSubject {
    id: String,
    request: OperationRequest,
    daemons: Vec<DaemonName>,
    gpus: Vec<GpuUuid>,
    /// The tenant whose client it terminates.
    tenant: Option<TenantName>,
}

impl OperationSubject {
    async fn of(db: &mut SqliteConnection, id: &str) -> Result<Option<Self>, StoreError> {
        let request = sqlx::query_scalar!("SELECT request FROM operations WHERE id = ?", id);
        let Some(request) = request.fetch_optional(&mut *db).await? else { return Ok(None) };
        let names = sqlx::query_scalar!(
            "SELECT daemon FROM operation_daemons WHERE operation = ? ORDER BY daemon",
            id
        )
        .fetch_all(&mut *db)
        .await?;
        let names = names.iter().map(|name| parsed("a daemon's name", DaemonName::parse(name)));
        let mut about = Self {
            id: id.to_owned(),
            request: from_json("an operation's request", &request)?,
            daemons: names.collect::<Result<_, _>>()?,
            gpus: Vec::new(),
            tenant: None,
        };
        about.place(db).await?;
        Ok(Some(about))
    }

    /// Determines the GPUs and the tenant as they were reported when the operation was requested: a daemon or client that it ends no longer
    /// exists at its end.
    async fn place(&mut self, db: &mut SqliteConnection) -> Result<(), StoreError> {
        let kind = EventType::OperationRequested.as_str();
        let row = sqlx::query!(
            "SELECT subject, details FROM events WHERE operation = ? AND type = ? ORDER BY id LIMIT 1",
            self.id,
            kind
        )
        .fetch_optional(&mut *db)
        .await?;
        if let Some(row) = row {
            self.tenant = from_json::<EventSubject>("an event's subject", &row.subject)?.tenant;
            let details = row.details.as_deref().map(|details| from_json("an event's details", details));
            if let Some(Details::Operation { gpus, .. }) = details.transpose()? {
                self.gpus = gpus;
            }
        }
        if self.gpus.is_empty() {
            self.gpus = match &self.request {
                OperationRequest::BeginMaintenance { gpus, .. } => gpus.clone(),
                OperationRequest::ApplyLayout { gpu_map, .. } => gpu_map.values().cloned().collect(),
                _ => {
                    let mut gpus = Vec::new();
                    for name in &self.daemons {
                        if let Some(daemon) = daemons::get(&mut *db, name).await? {
                            gpus.extend(daemon.spec.gpus);
                        }
                    }
                    gpus
                }
            };
            self.gpus.sort();
            self.gpus.dedup();
        }
        Ok(())
    }

    /// Converts the subject to the form in which the operation's events report it.
    fn facts(self) -> Result<OperationFacts, StoreError> {
        let kind = self.request.kind();
        let (client, layout) = match self.request {
            OperationRequest::TerminateClient { client, .. } => (Some(client), None),
            OperationRequest::ApplyLayout { layout, .. } | OperationRequest::ReplayLayout { layout, .. } => {
                (None, Some(layout))
            }
            _ => (None, None),
        };
        Ok(OperationFacts {
            id: parsed("an operation's ID", self.id.parse())?,
            kind,
            daemons: self.daemons,
            gpus: self.gpus,
            client,
            tenant: self.tenant,
            layout,
        })
    }
}

/// Records the request of an operation.
pub async fn requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: EventCause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), Some(by), now, DomainEvent::OperationRequested).await
}

/// Records that the cancellation of a running operation was requested.
pub async fn stop_requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: EventCause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), Some(by), now, DomainEvent::OperationCancelRequested).await
}

/// Records that an operation was cancelled before it began.
pub async fn record_cancelled(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: EventCause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), Some(by), now, DomainEvent::OperationCancelled).await
}

/// Reports that an operation began.
pub(super) async fn started(db: &mut SqliteConnection, id: &str, now: i64) -> Result<(), StoreError> {
    append_event(db, id, None, now, DomainEvent::OperationStarted).await
}

/// Reports how an operation ended.
pub(super) async fn ended(
    db: &mut SqliteConnection,
    id: &str,
    end: OperationEnd,
    now: i64,
) -> Result<(), StoreError> {
    let event = |operation| match end {
        OperationEnd::Failed { error, outcome_is_unknown } => {
            DomainEvent::OperationFailed { operation, error, outcome_is_unknown }
        }
        OperationEnd::Cancelled => DomainEvent::OperationCancelled(operation),
        OperationEnd::Succeeded => DomainEvent::OperationFinished(operation),
    };
    append_event(db, id, None, now, event).await
}

/// Reports the outcome of a step.
pub(super) async fn step(
    db: &mut SqliteConnection,
    id: &str,
    ordinal: i64,
    now: i64,
) -> Result<(), StoreError> {
    let row = sqlx::query!(
        "SELECT name, outcome FROM operation_steps WHERE operation = ? AND ordinal = ?",
        id,
        ordinal
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let (step, outcome) = (row.name, row.outcome.unwrap_or_default());
    append_event(db, id, None, now, |operation| DomainEvent::OperationStep { operation, step, outcome }).await
}

/// Writes the spec of a daemon as an operation leaves it, and reports the change; nothing where it is the same.
pub async fn put_spec(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    before: &Daemon,
    spec: &DaemonSpec,
    now: i64,
) -> Result<(), StoreError> {
    daemons::put(&mut *db, &before.name, spec, now).await?;
    if let Some(event) = daemon_changed(&before.name, &before.spec, spec, Some(id))? {
        events::append(db, &event.into(), now).await?;
    }
    Ok(())
}

/// Reports that an operation deletes a daemon.
pub async fn daemon_deleted(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    daemon: &Daemon,
    now: i64,
) -> Result<(), StoreError> {
    let (name, gpus) = (daemon.name.clone(), daemon.spec.gpus.clone());
    let event = DomainEvent::DaemonDeleted { daemon: name, gpus, operation: Some(id) };
    events::append(db, &event.into(), now).await?;
    Ok(())
}

/// The event for a daemon whose spec was changed, by an operation or not; nothing where it is the same.
pub fn daemon_changed(
    name: &DaemonName,
    before: &DaemonSpec,
    after: &DaemonSpec,
    operation: Option<uuid::Uuid>,
) -> Result<Option<DomainEvent>, StoreError> {
    if before == after {
        return Ok(None);
    }
    let json = |spec: &DaemonSpec| from_json::<serde_json::Value>("a spec", &to_json(spec));
    let fields = changed_fields(Some(&json(before)?), Some(&json(after)?));
    let (daemon, gpus) = (name.clone(), after.gpus.clone());
    Ok(Some(DomainEvent::DaemonChanged { daemon, gpus, fields, operation }))
}

/// Writes an event of an operation, with its usual cause if there is no other; nothing for one that is not there.
async fn append_event(
    db: &mut SqliteConnection,
    id: &str,
    by: Option<EventCause>,
    now: i64,
    event: impl FnOnce(OperationFacts) -> DomainEvent,
) -> Result<(), StoreError> {
    let Some(about) = OperationSubject::of(&mut *db, id).await? else { return Ok(()) };
    let event = event(about.facts()?);
    let event = match by {
        Some(cause) => event.because(cause),
        None => event.into(),
    };
    events::append(db, &event, now).await?;
    Ok(())
}
