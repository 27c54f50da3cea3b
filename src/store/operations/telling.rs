//! What is told of operations as they are written.

use sqlx::SqliteConnection;

use super::super::{StoreError, events, from_json, parsed};
use crate::domain::DaemonName;
use crate::domain::event::{Because, Cause, Details, EventType, NewEvent, Subject};
use crate::domain::operation::{OperationRequest, OperationState};

/// What an operation does, and on which daemons.
struct About {
    id: String,
    request: OperationRequest,
    daemons: Vec<DaemonName>,
}

impl About {
    async fn of(db: &mut SqliteConnection, id: &str) -> Result<Option<Self>, StoreError> {
        let request = sqlx::query_scalar!("SELECT request FROM operations WHERE id = ?", id);
        let Some(request) = request.fetch_optional(&mut *db).await? else { return Ok(None) };
        let daemons = sqlx::query_scalar!(
            "SELECT daemon FROM operation_daemons WHERE operation = ? ORDER BY daemon",
            id
        )
        .fetch_all(db)
        .await?;
        let daemons = daemons.iter().map(|name| parsed("a daemon's name", DaemonName::parse(name)));
        Ok(Some(Self {
            id: id.to_owned(),
            request: from_json("an operation's request", &request)?,
            daemons: daemons.collect::<Result<_, _>>()?,
        }))
    }

    fn subject(&self) -> Result<Subject, StoreError> {
        let daemon = match self.daemons.as_slice() {
            [one] => Some(one.clone()),
            _ => None,
        };
        let client = match &self.request {
            OperationRequest::TerminateClient { client } => Some(*client),
            _ => None,
        };
        let layout = match &self.request {
            OperationRequest::ApplyLayout { layout, .. } | OperationRequest::ReplayLayout { layout, .. } => {
                Some(layout.clone())
            }
            _ => None,
        };
        let operation = Some(parsed("an operation's ID", self.id.parse())?);
        Ok(Subject { daemon, client, layout, operation, ..Subject::default() })
    }

    fn details(&self, error: Option<&str>) -> Details {
        Details::Operation {
            operation: self.request.kind().to_owned(),
            daemons: self.daemons.clone(),
            error: error.map(str::to_owned),
        }
    }
}

/// Tells that an operation was asked for.
pub async fn requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    tell(db, &id.to_string(), EventType::OperationRequested, by.into(), None, now).await
}

/// Tells that somebody asked a running operation to stop.
pub async fn stop_requested(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    tell(db, &id.to_string(), EventType::OperationCancelRequested, by.into(), None, now).await
}

/// Tells that somebody called off an operation before it began.
pub async fn called_off(
    db: &mut SqliteConnection,
    id: uuid::Uuid,
    by: Cause,
    now: i64,
) -> Result<(), StoreError> {
    tell(db, &id.to_string(), EventType::OperationCancelled, by.into(), None, now).await
}

/// Tells that an operation began.
pub(super) async fn started(db: &mut SqliteConnection, id: &str, now: i64) -> Result<(), StoreError> {
    let asked = Because::Latest(EventType::OperationRequested);
    tell(db, id, EventType::OperationStarted, asked, None, now).await
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
    tell(db, id, kind, Because::Latest(cause), error, now).await
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
    let event = NewEvent::new(EventType::OperationStep, about.subject()?, message)
        .because(Because::Latest(EventType::OperationStarted))
        .with(Details::Step { step, outcome });
    events::append(db, &event, now).await?;
    Ok(())
}

async fn tell(
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
        (EventType::OperationRequested, _) => format!("{what}{on} was asked for"),
        (EventType::OperationStarted, _) => format!("{what}{on} began"),
        (EventType::OperationCancelRequested, _) => format!("{what}{on} was asked to stop where it is"),
        (EventType::OperationCancelled, _) => format!("{what}{on} was called off"),
        (_, Some(error)) => format!("{what}{on} failed: {error}"),
        _ => format!("{what}{on} succeeded"),
    };
    let event = NewEvent::new(kind, about.subject()?, message).because(cause).with(about.details(error));
    events::append(db, &event, now).await?;
    Ok(())
}
