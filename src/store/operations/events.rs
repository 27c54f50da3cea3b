//! The events of operations, written with them.

use sqlx::SqliteConnection;

use super::super::{StoreError, daemons, events, from_json, parsed, to_json};
use crate::domain::daemon::{Daemon, DaemonSpec};
use crate::domain::event::{Because, Cause, Details, EventType, NewEvent, Subject, changed_fields};
use crate::domain::operation::{OperationRequest, OperationState};
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// What an operation does, and on what.
struct About {
    id: String,
    request: OperationRequest,
    daemons: Vec<DaemonName>,
    gpus: Vec<GpuUuid>,
    /// Whose client it ends.
    tenant: Option<TenantName>,
}

impl About {
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

    /// Finds out the GPUs and the tenant: as they were reported when the operation was requested, since a daemon or a client
    /// that it ends is not there any more at its end.
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
            self.tenant = from_json::<Subject>("an event's subject", &row.subject)?.tenant;
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

    /// An event about it.
    fn event(&self, kind: EventType, message: String) -> Result<NewEvent, StoreError> {
        Ok(NewEvent::new(kind, self.subject()?, message).about(&self.daemons, &self.gpus))
    }

    fn subject(&self) -> Result<Subject, StoreError> {
        let client = match &self.request {
            OperationRequest::TerminateClient { client, .. } => Some(*client),
            _ => None,
        };
        let layout = match &self.request {
            OperationRequest::ApplyLayout { layout, .. } | OperationRequest::ReplayLayout { layout, .. } => {
                Some(layout.clone())
            }
            _ => None,
        };
        let operation = Some(parsed("an operation's ID", self.id.parse())?);
        Ok(Subject { client, tenant: self.tenant.clone(), layout, operation, ..Subject::default() })
    }

    fn details(&self, error: Option<&str>) -> Details {
        Details::Operation {
            operation: self.request.kind().to_owned(),
            daemons: self.daemons.clone(),
            gpus: self.gpus.clone(),
            error: error.map(str::to_owned),
        }
    }
}

/// Records the request of an operation.
pub async fn requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), EventType::OperationRequested, by.into(), None, now).await
}

/// Records that a running operation was asked to stop.
pub async fn stop_requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), EventType::OperationCancelRequested, by.into(), None, now).await
}

/// Records that an operation was cancelled before it began.
pub async fn record_cancelled(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    append_event(db, &id.to_string(), EventType::OperationCancelled, by.into(), None, now).await
}

/// Tells that an operation began.
pub(super) async fn started(db: &mut SqliteConnection, id: &str, now: i64) -> Result<(), StoreError> {
    let requested = Because::Latest(EventType::OperationRequested);
    append_event(db, id, EventType::OperationStarted, requested, None, now).await
}

/// Tells how an operation ended.
pub(super) async fn ended(
    db: &mut SqliteConnection,
    id: &str,
    state: OperationState,
    error: Option<&str>,
    now: i64,
) -> Result<(), StoreError> {
    let (kind, cause) = match state {
        OperationState::Failed => (EventType::OperationFailed, EventType::OperationStarted),
        OperationState::Cancelled => (EventType::OperationCancelled, EventType::OperationCancelRequested),
        _ => (EventType::OperationFinished, EventType::OperationStarted),
    };
    append_event(db, id, kind, Because::Latest(cause), error, now).await
}

/// Tells what came of a step.
pub(super) async fn step(
    db: &mut SqliteConnection,
    id: &str,
    ordinal: i64,
    now: i64,
) -> Result<(), StoreError> {
    let Some(about) = About::of(&mut *db, id).await? else { return Ok(()) };
    let row = sqlx::query!(
        "SELECT name, outcome FROM operation_steps WHERE operation = ? AND ordinal = ?",
        id,
        ordinal
    )
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let (step, outcome) = (row.name, row.outcome.unwrap_or_default());
    let message = format!("{}: {step}: {outcome}", about.request.kind());
    let event = about
        .event(EventType::OperationStep, message)?
        .because(Because::Latest(EventType::OperationStarted))
        .with(Details::Step { step, outcome });
    events::append(db, &event, now).await?;
    Ok(())
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
    let subject = Subject { operation: Some(id), ..Subject::default() };
    if let Some(event) = daemon_changed(&before.name, &before.spec, spec, subject)? {
        events::append(db, &event.because(Because::Latest(EventType::OperationStarted)), now).await?;
    }
    Ok(())
}

/// Tells that an operation forgets a daemon.
pub async fn daemon_deleted(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    daemon: &Daemon,
    now: i64,
) -> Result<(), StoreError> {
    let subject = Subject { operation: Some(id), ..Subject::default() };
    let message = format!("daemon {} was deleted", daemon.name);
    let event = NewEvent::new(EventType::DaemonDeleted, subject, message)
        .about(std::slice::from_ref(&daemon.name), &daemon.spec.gpus)
        .because(Because::Latest(EventType::OperationStarted));
    events::append(db, &event, now).await?;
    Ok(())
}

/// The event for a daemon whose spec was changed; nothing where it is the same. `subject` is what it is about beside the
/// daemon and its GPUs.
pub fn daemon_changed(
    name: &DaemonName,
    before: &DaemonSpec,
    after: &DaemonSpec,
    subject: Subject,
) -> Result<Option<NewEvent>, StoreError> {
    if before == after {
        return Ok(None);
    }
    let json = |spec: &DaemonSpec| from_json::<serde_json::Value>("a spec", &to_json(spec));
    let fields = changed_fields(Some(&json(before)?), Some(&json(after)?));
    let message = format!("daemon {name} was changed");
    let event = NewEvent::new(EventType::DaemonChanged, subject, message);
    let name = std::slice::from_ref(name);
    Ok(Some(event.about(name, &after.gpus).with(Details::Changed { fields })))
}

async fn append_event(
    db: &mut SqliteConnection,
    id: &str,
    kind: EventType,
    cause: Because,
    error: Option<&str>,
    now: i64,
) -> Result<(), StoreError> {
    let Some(about) = About::of(&mut *db, id).await? else { return Ok(()) };
    let what = about.request.kind();
    let on = match about.daemons.as_slice() {
        [] => String::new(),
        daemons => {
            let names: Vec<&str> = daemons.iter().map(DaemonName::as_str).collect();
            format!(" on {}", names.join(", "))
        }
    };
    let message = match (kind, error) {
        (EventType::OperationRequested, _) => format!("{what}{on} was requested"),
        (EventType::OperationStarted, _) => format!("{what}{on} began"),
        (EventType::OperationCancelRequested, _) => format!("{what}{on} was asked to stop"),
        (EventType::OperationCancelled, _) => format!("{what}{on} was cancelled"),
        (_, Some(error)) => format!("{what}{on} failed: {error}"),
        _ => format!("{what}{on} succeeded"),
    };
    let event = about.event(kind, message)?.because(cause).with(about.details(error));
    events::append(db, &event, now).await?;
    Ok(())
}
