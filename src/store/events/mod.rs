//! Events: appended in the transaction of what they report, read in pages, and pruned from the oldest on.

use std::collections::BTreeMap;

use sqlx::{QueryBuilder, Row as _, Sqlite};
use uuid::Uuid;

use super::rows::{condition, execute};
use super::values::AsText;
use super::{Db, Result, connected_clients, from_json, incidents, parsed, to_json};
use crate::domain::event::{
    Details, DomainEvent, Event, EventCause, EventFilter, EventSubject, EventTrigger, EventType, NewEvent,
    Severity,
};
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// Most rows of one statement: it may have 32 766 values.
const ROWS: usize = 1000;

/// Writes an event with its effects on incidents; returns its number.
///
/// All events are written here, so that an incident and its events cannot disagree.
pub async fn append(db: &mut Db, event: &NewEvent, now: i64) -> Result<i64> {
    append_all(db, std::slice::from_ref(event), now).await
}

/// Writes events like [`append`], in their order, and their effects on incidents after all of them; returns the number of the last.
pub async fn append_all(db: &mut Db, events: &[NewEvent], now: i64) -> Result<i64> {
    let mut last = 0;
    let mut about_incidents = Vec::new();
    for part in events.chunks(ROWS) {
        for (event, (id, caused_by)) in part.iter().zip(insert(&mut *db, part, now).await?) {
            let changed = link(&mut *db, event, id, caused_by, now).await?;
            about_incidents.extend(changed.into_iter().map(|event| event.because(EventCause::Event { id })));
            last = id;
        }
    }
    for event in &about_incidents {
        for (id, caused_by) in insert(&mut *db, std::slice::from_ref(event), now).await? {
            link(&mut *db, event, id, caused_by, now).await?;
        }
    }
    Ok(last)
}

/// Writes an event like [`append`], unless it is quiet: a quiet event only changes its incidents, and is written only if it opens a new
/// one.
pub async fn append_unless_quiet(db: &mut Db, event: &NewEvent, now: i64) -> Result<()> {
    if !event.is_quiet || !incidents::change_quietly(&mut *db, event, now).await? {
        append(db, event, now).await?;
    }
    Ok(())
}

/// Writes the rows of events; returns the number of each, and that of the event that caused it.
async fn insert(db: &mut Db, events: &[NewEvent], now: i64) -> Result<Vec<(i64, Option<i64>)>> {
    let mut rows = Vec::with_capacity(events.len());
    for event in events {
        rows.push((&event.event, placed(&mut *db, event).await?));
    }
    let mut query = QueryBuilder::<Sqlite>::new(
        "INSERT INTO events (at, type, severity, daemon, gpu, client, tenant, operation, subject, cause, message, details) ",
    );
    query.push_values(&rows, |mut row, (fact, (subject, cause))| {
        row.push_bind(now).push_bind(fact.kind().as_str()).push_bind(fact.severity().number());
        row.push_bind(subject.daemon.as_ref().map(DaemonName::as_str));
        row.push_bind(subject.gpu.as_ref().map(GpuUuid::as_str));
        row.push_bind(subject.client.map(|client| client.to_string()));
        row.push_bind(subject.tenant.as_ref().map(TenantName::as_str));
        row.push_bind(subject.operation.map(|id| id.to_string()));
        row.push_bind(to_json(subject)).push_bind(to_json(cause)).push_bind(fact.message());
        row.push_bind(fact.details().as_ref().map(to_json));
    });
    let last = query.build().execute(db).await?.last_insert_rowid();
    let causes = rows.iter().map(|(_, (_, cause))| match cause {
        EventCause::Event { id } => Some(*id),
        _ => None,
    });
    // The rows of one statement are numbered in their order.
    let ids = (last + 1 - i64::try_from(rows.len()).unwrap_or(1))..;
    Ok(ids.zip(causes).collect())
}

/// The subject of an event, with the tenant of its client, and its cause.
async fn placed(db: &mut Db, event: &NewEvent) -> Result<(EventSubject, EventCause)> {
    let mut subject = event.subject();
    let cause = match &event.cause {
        EventTrigger::Known(cause) => cause.clone(),
        EventTrigger::Latest(kind) => latest_as_cause(&mut *db, *kind, &subject).await?,
    };
    if subject.tenant.is_none()
        && let Some(client) = subject.client
    {
        subject.tenant = connected_clients::get(db, client).await?.and_then(|client| client.tenant);
    }
    Ok((subject, cause))
}

/// Adds a written event to everything else that it is about, and to its incidents; returns the events about these incidents.
async fn link(
    db: &mut Db,
    event: &NewEvent,
    id: i64,
    caused_by: Option<i64>,
    now: i64,
) -> Result<Vec<DomainEvent>> {
    let (also, details) = (event.event.also(), event.event.details());
    let daemons = also.daemons.iter().map(|name| ("daemon", name.as_str()));
    let gpus = also.gpus.iter().map(|gpu| ("gpu", gpu.as_str()));
    let tenants = details.iter().flat_map(Details::affected_tenants);
    let tenants = tenants.map(|tenant| ("tenant", tenant.as_str()));
    for (kind, name) in daemons.chain(gpus).chain(tenants) {
        execute!(
            db,
            "INSERT OR IGNORE INTO event_subjects (event, kind, name) VALUES (?, ?, ?)",
            id,
            kind,
            name
        )?;
    }
    incidents::record(db, event, id, caused_by, now).await
}

/// The start of an operation, as the cause of what it does.
pub async fn start_of(db: &mut Db, operation: Uuid) -> Result<EventCause> {
    let subject = EventSubject { operation: Some(operation), ..EventSubject::default() };
    latest_as_cause(db, EventType::OperationStarted, &subject).await
}

/// The last event of a type about an operation, or else about a daemon, as a cause; the manager where there is none.
async fn latest_as_cause(db: &mut Db, kind: EventType, subject: &EventSubject) -> Result<EventCause> {
    let latest = latest(db, kind, subject).await?;
    Ok(latest.map_or(EventCause::Manager, |id| EventCause::Event { id }))
}

async fn latest(db: &mut Db, kind: EventType, subject: &EventSubject) -> Result<Option<i64>> {
    if let Some(operation) = subject.operation {
        return Ok(sqlx::query_scalar!(
            "SELECT max(id) FROM events WHERE operation = ? AND type = ?",
            operation.to_string(),
            kind.as_str()
        )
        .fetch_one(db)
        .await?);
    }
    // By type: most events of a daemon are of other types.
    Ok(sqlx::query_scalar!(
        r#"SELECT id AS "id!" FROM events INDEXED BY events_by_type WHERE type = ? AND daemon = ? ORDER BY id DESC LIMIT 1"#,
        kind.as_str(),
        subject.daemon.as_ref().map(DaemonName::as_str)
    )
    .fetch_optional(db)
    .await?)
}

/// Returns true if the last event of these two types about a GPU is of the first type.
pub async fn gpu_was_last(db: &mut Db, gpu: &GpuUuid, kind: EventType, opposite: EventType) -> Result<bool> {
    let last = sqlx::query_scalar!(
        "SELECT type FROM events WHERE gpu = ? AND type IN (?, ?) ORDER BY id DESC LIMIT 1",
        gpu.as_str(),
        kind.as_str(),
        opposite.as_str()
    )
    .fetch_optional(db)
    .await?;
    Ok(last.as_deref() == Some(kind.as_str()))
}

/// The last event about the end of a manager: that it started or stopped, or that its database was replaced.
pub async fn last_of_manager(db: &mut Db) -> Result<Option<EventType>> {
    let last = sqlx::query_scalar!(
        "SELECT type FROM events WHERE type IN (?, ?, ?) ORDER BY id DESC LIMIT 1",
        EventType::ManagerStarted.as_str(),
        EventType::ManagerStopped.as_str(),
        EventType::DatabaseRestored.as_str()
    )
    .fetch_optional(db)
    .await?;
    last.map(|kind| parsed("an event's type", kind.parse())).transpose()
}

/// The highest number that was given; 0 before the first.
pub async fn newest(db: &mut Db) -> Result<i64> {
    // Not a table of ours, so nothing checks it at compile time.
    let given = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'events'");
    Ok(given.fetch_optional(db).await?.unwrap_or(0))
}

/// Gives no event a number up to this one: another journal of this host had them, and readers remember where they were.
pub async fn begin_after(db: &mut Db, newest: i64) -> Result<()> {
    execute!(db, "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'events'", newest)?;
    execute!(
        db,
        "INSERT INTO sqlite_sequence (name, seq)
         SELECT 'events', ?1 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'events')",
        newest
    )
}

/// The lowest number that is still there.
pub async fn oldest(db: &mut Db) -> Result<Option<i64>> {
    Ok(sqlx::query_scalar!("SELECT min(id) FROM events").fetch_one(db).await?)
}

/// The oldest event that is still there: its number and its time.
pub async fn oldest_with_time(db: &mut Db) -> Result<Option<(i64, i64)>> {
    let row = sqlx::query!("SELECT id, at FROM events ORDER BY id LIMIT 1").fetch_optional(db).await?;
    Ok(row.map(|row| (row.id, row.at)))
}

/// When a client of each of these tenants last came or left, by the events that are still there.
pub async fn last_clients(db: &mut Db, tenants: &[&TenantName]) -> Result<BTreeMap<TenantName, i64>> {
    let names = to_json(&tenants);
    let query = sqlx::query!(
        r#"SELECT name AS "name: AsText<TenantName>", (SELECT at FROM events
           WHERE tenant = name AND type IN ('client.connected', 'client.left') ORDER BY id DESC LIMIT 1) AS "at: i64"
           FROM tenants WHERE name IN (SELECT value FROM json_each(?))"#,
        names
    );
    let rows = query.fetch_all(db).await?.into_iter();
    Ok(rows.filter_map(|row| Some((row.name.0, row.at?))).collect())
}

const COLUMNS: &str = "SELECT id, at, type, severity, subject, cause, message, details FROM events";

/// Reads an event. What this version cannot read, of a row of a later version or of one that is damaged, hides neither
/// the rest of it nor any other event.
fn event(row: &sqlx::sqlite::SqliteRow) -> Result<Event> {
    let written: String = row.try_get("type")?;
    let number: i64 = row.try_get("severity")?;
    let details: Option<String> = row.try_get("details")?;
    let message: String = row.try_get("message")?;
    let mut unread = Vec::new();
    let kind = written.parse().ok().unwrap_or_else(|| note(&mut unread, "type", EventType::EventUnknown));
    let severity = Severity::ALL.into_iter().find(|severity| severity.number() == number);
    let severity =
        severity.unwrap_or_else(|| note(&mut unread, "severity", EventType::EventUnknown.severity()));
    let subject = from_json("an event's subject", row.try_get("subject")?).ok();
    let subject = subject.unwrap_or_else(|| note(&mut unread, "subject", EventSubject::default()));
    let cause = from_json("an event's cause", row.try_get("cause")?).ok();
    let cause = cause.unwrap_or_else(|| note(&mut unread, "cause", EventCause::Manager));
    let details = details.and_then(|details| {
        let read = from_json("an event's details", &details).ok();
        read.or_else(|| note(&mut unread, "details", None))
    });
    let message = if unread.is_empty() {
        message
    } else {
        format!("{written}: {message} (this version cannot read its {})", unread.join(", "))
    };
    Ok(Event {
        id: row.try_get("id")?,
        at: row.try_get("at")?,
        kind,
        severity,
        subject,
        cause,
        message,
        details,
    })
}

/// Records that a part of an event cannot be read, and returns its substitute.
fn note<T>(unread: &mut Vec<&'static str>, part: &'static str, instead: T) -> T {
    unread.push(part);
    instead
}

/// The event of that number.
pub async fn get(db: &mut Db, id: i64) -> Result<Option<Event>> {
    let mut query = QueryBuilder::<Sqlite>::new(COLUMNS);
    query.push(" WHERE id = ").push_bind(id);
    query.build().fetch_optional(db).await?.as_ref().map(event).transpose()
}

/// Order in which events are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The oldest first: events after a number.
    OldestFirst,
    /// The newest first: events before a number.
    NewestFirst,
}

/// Up to `limit` events that are requested, from the one after `after` in this order.
pub async fn page(
    db: &mut Db,
    filter: &EventFilter,
    order: Order,
    after: Option<i64>,
    limit: i64,
) -> Result<Vec<Event>> {
    let mut query = select(COLUMNS, filter, FoundAs::Itself, order, after, limit);
    let rows = query.build().fetch_all(&mut *db).await?;
    let mut events = rows.iter().map(event).collect::<Result<Vec<_>, _>>()?;
    if filter.has_place() {
        // Read by themselves, so that either is read by its index, in order, and stops at its end.
        let mut query = select(COLUMNS, filter, FoundAs::OtherSubjects, order, after, limit);
        let rows = query.build().fetch_all(db).await?;
        for row in &rows {
            events.push(event(row)?);
        }
        events.sort_by_key(|event| event.id);
        if order == Order::NewestFirst {
            events.reverse();
        }
        events.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Ok(events)
}

/// Relation of an event to the daemon, GPU or tenant by which events are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FoundAs {
    /// The event's subject is the requested one.
    Itself,
    /// The requested one is among several that the event is about.
    OtherSubjects,
    /// The event is about no daemon, GPU, client or tenant.
    Nowhere,
}

/// Returns up to `limit` of the requested events, from the one after `after` on, together with those saying that events are missing:
/// followers do not request these, and have to know.
pub async fn follow(db: &mut Db, filter: &EventFilter, after: i64, limit: i64) -> Result<Vec<Event>> {
    let mut events = page(&mut *db, filter, Order::OldestFirst, Some(after), limit).await?;
    let lost =
        |about: EventFilter| EventFilter { types: vec![EventType::EventsLost], from: filter.from, ..about };
    // Of the whole journal, and of what is requested; nothing of other daemons and tenants.
    let (daemon, gpu, tenant) = (filter.daemon.clone(), filter.gpu.clone(), filter.tenant.clone());
    let mut missing = page(
        &mut *db,
        &lost(EventFilter { daemon, tenant, gpu, ..EventFilter::default() }),
        Order::OldestFirst,
        Some(after),
        limit,
    )
    .await?;
    if filter.has_place() {
        let whole = lost(EventFilter::default());
        let mut query = select(COLUMNS, &whole, FoundAs::Nowhere, Order::OldestFirst, Some(after), limit);
        for row in &query.build().fetch_all(db).await? {
            missing.push(event(row)?);
        }
    }
    events.extend(missing);
    events.sort_by_key(|event| event.id);
    events.dedup_by_key(|event| event.id);
    // What is beyond the end of either page is read with the next.
    events.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(events)
}

fn select(
    head: &str,
    filter: &EventFilter,
    found: FoundAs,
    order: Order,
    after: Option<i64>,
    limit: i64,
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(head);
    // Every other condition is joined to this one.
    query.push(" WHERE true");
    condition(&mut query, if order == Order::OldestFirst { "id > ?" } else { "id < ?" }, after);
    if !filter.types.is_empty() {
        let mut list = query.push(" AND type IN (").separated(", ");
        for kind in &filter.types {
            list.push_bind(kind.as_str());
        }
        query.push(")");
    }
    let severity = filter.severity.filter(|severity| *severity != Severity::Info);
    condition(&mut query, "severity >= ?", severity.map(Severity::number));
    let places = [
        ("daemon", filter.daemon.as_ref().map(|name| name.as_str().to_owned())),
        ("gpu", filter.gpu.as_ref().map(|gpu| gpu.as_str().to_owned())),
        ("tenant", filter.tenant.as_ref().map(|name| name.as_str().to_owned())),
    ];
    let filters: Vec<(&str, String)> =
        places.into_iter().filter_map(|(kind, name)| Some((kind, name?))).collect();
    if found == FoundAs::OtherSubjects {
        query.push(" AND id IN (SELECT event FROM event_subjects WHERE false");
        for (kind, name) in filters.clone() {
            query.push(format!(" OR (kind = '{kind}' AND name = ")).push_bind(name).push(")");
        }
        query.push(")");
    }
    if found == FoundAs::Nowhere {
        query.push(" AND daemon IS NULL AND gpu IS NULL AND client IS NULL AND tenant IS NULL");
    }
    for (kind, name) in filters {
        query.push(format!(" AND ({kind} = ")).push_bind(name.clone());
        if found == FoundAs::OtherSubjects {
            // What has several of the one may have one of the other.
            query.push(format!(
                " OR id IN (SELECT event FROM event_subjects WHERE kind = '{kind}' AND name = "
            ));
            query.push_bind(name).push(")");
        }
        query.push(")");
    }
    condition(&mut query, "client = ?", filter.client.map(|client| client.to_string()));
    condition(&mut query, "operation = ?", filter.operation.map(|id| id.to_string()));
    condition(&mut query, "json_extract(cause, '$.id') = ?", filter.cause);
    let of_incident =
        "id IN (SELECT value FROM json_each((SELECT content FROM incidents WHERE id = ?), '$.events'))";
    condition(&mut query, of_incident, filter.incident);
    condition(&mut query, "id >= ?", filter.from);
    condition(&mut query, "at >= ?", filter.since);
    condition(&mut query, "at < ?", filter.until);
    query.push(if order == Order::OldestFirst { " ORDER BY id LIMIT " } else { " ORDER BY id DESC LIMIT " });
    query.push_bind(limit);
    query
}

/// The last of the oldest events that are more than `keep`, of at most `most` of these; `None` where there are none too many.
///
/// Rows are counted, and not numbers: a restore leaves out some.
pub async fn last_beyond(db: &mut Db, keep: i64, most: i64) -> Result<Option<i64>> {
    let rows = sqlx::query_scalar!("SELECT count(*) FROM events").fetch_one(&mut *db).await?;
    let beyond = (rows - keep).min(most);
    if beyond <= 0 {
        return Ok(None);
    }
    let before = beyond - 1;
    Ok(sqlx::query_scalar!(r#"SELECT id AS "id!" FROM events ORDER BY id LIMIT 1 OFFSET ?"#, before)
        .fetch_optional(db)
        .await?)
}

/// Deletes those of the oldest `most` events that are from before a time or have a number up to `last`; returns their number.
pub async fn prune(db: &mut Db, before: i64, last: i64, most: i64) -> Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM events WHERE id IN (SELECT id FROM events ORDER BY id LIMIT ?) AND (at < ? OR id <= ?)",
        most,
        before,
        last
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected())
}

#[cfg(test)]
mod tests;
