//! The events of operations, written with them.

use uuid::Uuid;

use super::super::values::AsJson;
use super::super::{Db, Result, daemons, events};
use crate::domain::DaemonName;
use crate::domain::daemon::{Daemon, DaemonSpec};
use crate::domain::event::{
    Details, DomainEvent, EventCause, EventSubject, EventType, OperationFacts, changed_fields,
};
use crate::domain::operation::{Operation, OperationEnd, OperationRequest};

/// An operation as its events report it. Its GPUs and tenant are those reported when it was requested: a daemon or client that it ends no
/// longer exists at its end.
async fn facts(db: &mut Db, id: Uuid) -> Result<Option<OperationFacts>> {
    let Some(Operation { request, daemons, .. }) = super::reading::get(&mut *db, id).await? else {
        return Ok(None);
    };
    let query = sqlx::query!(
        r#"SELECT subject AS "subject: AsJson<EventSubject>", details AS "details: AsJson<Details>" FROM events
               WHERE operation = ? AND type = ? ORDER BY id LIMIT 1"#,
        id.to_string(),
        EventType::OperationRequested.as_str()
    );
    let requested = query.fetch_optional(&mut *db).await?;
    let (subject, details) = requested.map(|row| (row.subject.0, row.details)).unzip();
    let mut gpus = match details.flatten() {
        Some(AsJson(Details::Operation { gpus, .. })) => gpus,
        _ => Vec::new(),
    };
    if gpus.is_empty() {
        gpus = match &request {
            OperationRequest::BeginMaintenance { gpus, .. } => gpus.clone(),
            OperationRequest::ApplyLayout { gpu_map, .. } => gpu_map.values().cloned().collect(),
            _ => {
                let mut gpus = Vec::new();
                for name in &daemons {
                    if let Some(daemon) = daemons::get(&mut *db, name).await? {
                        gpus.extend(daemon.spec.gpus);
                    }
                }
                gpus
            }
        };
        gpus.sort();
        gpus.dedup();
    }
    let kind = request.kind();
    let (client, layout) = match request {
        OperationRequest::TerminateClient { client, .. } => (Some(client), None),
        OperationRequest::ApplyLayout { layout, .. } | OperationRequest::ReplayLayout { layout, .. } => {
            (None, Some(layout))
        }
        _ => (None, None),
    };
    let tenant = subject.and_then(|subject| subject.tenant);
    Ok(Some(OperationFacts { id, kind, daemons, gpus, client, tenant, layout }))
}

/// Records the request of an operation.
pub async fn requested(db: &mut Db, id: Uuid, by: EventCause, now: i64) -> Result<()> {
    append_event(db, id, Some(by), now, DomainEvent::OperationRequested).await
}

/// Records that the cancellation of a running operation was requested.
pub async fn stop_requested(db: &mut Db, id: Uuid, by: EventCause, now: i64) -> Result<()> {
    append_event(db, id, Some(by), now, DomainEvent::OperationCancelRequested).await
}

/// Records that an operation was cancelled before it began.
pub async fn record_cancelled(db: &mut Db, id: Uuid, by: EventCause, now: i64) -> Result<()> {
    append_event(db, id, Some(by), now, DomainEvent::OperationCancelled).await
}

/// Reports that an operation began.
pub(super) async fn started(db: &mut Db, id: Uuid, now: i64) -> Result<()> {
    append_event(db, id, None, now, DomainEvent::OperationStarted).await
}

/// Reports how an operation ended.
pub(super) async fn ended(db: &mut Db, id: Uuid, end: OperationEnd, now: i64) -> Result<()> {
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
pub(super) async fn step(db: &mut Db, id: Uuid, ordinal: i64, now: i64) -> Result<()> {
    let query = sqlx::query!(
        "SELECT name, outcome FROM operation_steps WHERE operation = ? AND ordinal = ?",
        id.to_string(),
        ordinal
    );
    let Some(row) = query.fetch_optional(&mut *db).await? else { return Ok(()) };
    let (step, outcome) = (row.name, row.outcome.unwrap_or_default());
    append_event(db, id, None, now, |operation| DomainEvent::OperationStep { operation, step, outcome }).await
}

/// Writes the spec of a daemon as an operation leaves it, and reports the change; nothing where it is the same.
pub async fn put_spec(db: &mut Db, id: Uuid, before: &Daemon, spec: &DaemonSpec, now: i64) -> Result<()> {
    daemons::put(&mut *db, &before.name, spec, now).await?;
    if let Some(event) = daemon_changed(&before.name, &before.spec, spec, Some(id)) {
        events::append(db, &event.into(), now).await?;
    }
    Ok(())
}

/// Reports that an operation deletes a daemon.
pub async fn daemon_deleted(db: &mut Db, id: Uuid, daemon: &Daemon, now: i64) -> Result<()> {
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
    operation: Option<Uuid>,
) -> Option<DomainEvent> {
    if before == after {
        return None;
    }
    let json = |spec: &DaemonSpec| serde_json::to_value(spec).expect("a spec has string keys only");
    let fields = changed_fields(Some(&json(before)), Some(&json(after)));
    let (daemon, gpus) = (name.clone(), after.gpus.clone());
    Some(DomainEvent::DaemonChanged { daemon, gpus, fields, operation })
}

/// Writes an event of an operation, with its usual cause if there is no other; nothing for one that is not there.
async fn append_event(
    db: &mut Db,
    id: Uuid,
    by: Option<EventCause>,
    now: i64,
    event: impl FnOnce(OperationFacts) -> DomainEvent,
) -> Result<()> {
    let Some(facts) = facts(&mut *db, id).await? else { return Ok(()) };
    let event = event(facts);
    let event = match by {
        Some(cause) => event.because(cause),
        None => event.into(),
    };
    events::append(db, &event, now).await?;
    Ok(())
}
