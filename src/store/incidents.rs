//! Incidents: made of events in the transaction that writes these, read in pages, and pruned once they have ended.

use std::collections::BTreeMap;

use sqlx::{QueryBuilder, Row as _, Sqlite};

use super::rows::{condition, execute};
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::client::ClientId;
use crate::domain::event::{DomainEvent, EventTrigger, NewEvent};
use crate::domain::incident::{
    Acknowledgement, Incident, IncidentChange, IncidentFilter, IncidentKind, IncidentState, MEMORY_MS,
    Occurrence, StoredIncident, Transition, counts_unaffected, group,
};
use crate::domain::workload::Workload;
use crate::domain::{DaemonName, GpuUuid, TenantName};

/// Most incidents that have ended and are kept.
pub const KEPT: i64 = 10_000;

/// Writes the changes of incidents that an event causes; returns the events about these incidents, which the caller writes. `id` is the
/// event's number, and `cause` that of its cause.
pub async fn record(
    db: &mut Db,
    event: &NewEvent,
    id: i64,
    cause: Option<i64>,
    now: i64,
) -> Result<Vec<DomainEvent>> {
    let mut events = Vec::new();
    for change in changes(&mut *db, event, Some(id), cause, now).await? {
        let number = match change.id {
            Some(number) => {
                update(&mut *db, number, &change.incident).await?;
                number
            }
            None => insert(&mut *db, &change.incident, id).await?,
        };
        let notice = change.incident.notice(number);
        match change.transition {
            Transition::Opened | Transition::Worsened => events.push(DomainEvent::IncidentOpened(notice)),
            Transition::Ended => events.push(DomainEvent::IncidentRecovered(notice)),
            Transition::OpenedAndEnded => {
                events.push(DomainEvent::IncidentOpened(notice.clone()));
                events.push(DomainEvent::IncidentRecovered(notice));
            }
            Transition::Extended => {}
        }
    }
    Ok(events)
}

/// Applies the changes of an event to its incidents, without writing the event; false if it opens a new one, and nothing was changed.
pub(super) async fn change_quietly(db: &mut Db, event: &NewEvent, now: i64) -> Result<bool> {
    let changes = changes(&mut *db, event, None, None, now).await?;
    let stored: Option<Vec<(i64, Incident)>> =
        changes.into_iter().map(|change| Some((change.id?, change.incident))).collect();
    let Some(stored) = stored else { return Ok(false) };
    for (number, incident) in stored {
        update(&mut *db, number, &incident).await?;
    }
    Ok(true)
}

/// Returns the changes of incidents that an event causes.
async fn changes(
    db: &mut Db,
    event: &NewEvent,
    id: Option<i64>,
    cause: Option<i64>,
    now: i64,
) -> Result<Vec<IncidentChange>> {
    // What an event of an incident causes belongs to it, whatever that is.
    let caused = cause.and_then(|_| event.subject().daemon);
    let Some(daemon) = event.event.concerned_daemon().cloned().or(caused) else { return Ok(Vec::new()) };
    let incidents = of_daemon(&mut *db, &daemon, now).await?;
    let gpus = gpus(&mut *db, &daemon).await?;
    let connected =
        if counts_unaffected(&event.event) { connected(&mut *db, &daemon).await? } else { Vec::new() };
    let because = match event.cause {
        EventTrigger::Latest(kind) => Some(kind),
        EventTrigger::Known(_) => None,
    };
    let occurrence =
        Occurrence { id, at: now, event: &event.event, because, cause, gpus: &gpus, connected: &connected };
    let mut changes = group(&occurrence, &incidents);
    for change in &mut changes {
        name_workloads(&mut *db, &mut change.incident).await?;
    }
    Ok(changes)
}

/// Records the workloads of an incident's tenants, while the tenants still exist.
async fn name_workloads(db: &mut Db, incident: &mut Incident) -> Result<()> {
    let is_unknown = |tenant: &&TenantName| !incident.workloads.contains_key(*tenant);
    let unknown: Vec<TenantName> = incident.named_tenants().into_iter().filter(is_unknown).cloned().collect();
    for name in unknown {
        let tenant = super::tenants::get(&mut *db, &name).await?;
        let workload = tenant.and_then(|tenant| Workload::of(&tenant.spec.labels));
        incident.workloads.extend(workload.map(|workload| (name, workload)));
    }
    Ok(())
}

/// The incidents of a daemon that an event may concern: open ones, and those that ended a short time ago, oldest first.
async fn of_daemon(db: &mut Db, daemon: &DaemonName, now: i64) -> Result<Vec<StoredIncident>> {
    // Each by its own index.
    let query = sqlx::query_as!(
        StoredIncident,
        r#"SELECT id AS "id!", content AS "incident!: AsJson<Incident>" FROM (
               SELECT id, content FROM incidents WHERE daemon = ?1 AND recovered_at IS NULL
               UNION ALL
               SELECT id, content FROM incidents INDEXED BY incidents_by_end WHERE recovered_at >= ?2 AND daemon = ?1
           ) ORDER BY id"#,
        daemon.as_str(),
        now - MEMORY_MS
    );
    Ok(query.fetch_all(db).await?)
}

async fn gpus(db: &mut Db, daemon: &DaemonName) -> Result<Vec<GpuUuid>> {
    let query = sqlx::query!(
        r#"SELECT gpu AS "gpu: AsText<GpuUuid>" FROM daemon_gpus WHERE daemon = ? ORDER BY gpu"#,
        daemon.as_str()
    );
    Ok(query.map(|row| row.gpu.0).fetch_all(db).await?)
}

async fn connected(db: &mut Db, daemon: &DaemonName) -> Result<Vec<ClientId>> {
    let query = sqlx::query_as!(
        ClientId,
        r#"SELECT pid AS "pid: u32", start_time AS "start_time: u64" FROM connected_clients WHERE daemon = ?"#,
        daemon.as_str()
    );
    Ok(query.fetch_all(db).await?)
}

async fn insert(db: &mut Db, incident: &Incident, first_event: i64) -> Result<i64> {
    let id = sqlx::query!(
        "INSERT INTO incidents (kind, severity, daemon, opened_at, recovered_at, first_event, content)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        incident.kind.as_str(),
        incident.kind.severity().number(),
        incident.daemon.as_str(),
        incident.opened_at,
        incident.recovered_at,
        first_event,
        to_json(incident)
    )
    .execute(&mut *db)
    .await?
    .last_insert_rowid();
    put_subjects(db, id, incident).await?;
    Ok(id)
}

async fn update(db: &mut Db, id: i64, incident: &Incident) -> Result<()> {
    execute!(
        db,
        "UPDATE incidents SET kind = ?, severity = ?, recovered_at = ?, acknowledged_at = ?, content = ? WHERE id = ?",
        incident.kind.as_str(),
        incident.kind.severity().number(),
        incident.recovered_at,
        incident.acknowledged.as_ref().map(|one| one.at),
        to_json(incident),
        id
    )?;
    put_subjects(db, id, incident).await
}

async fn put_subjects(db: &mut Db, id: i64, incident: &Incident) -> Result<()> {
    let gpus = incident.gpus.iter().map(|gpu| ("gpu", gpu.as_str().to_owned()));
    let tenants = incident.tenants().into_iter().map(|tenant| ("tenant", tenant.to_string()));
    for (kind, name) in gpus.chain(tenants) {
        execute!(
            db,
            "INSERT OR IGNORE INTO incident_subjects (incident, kind, name) VALUES (?, ?, ?)",
            id,
            kind,
            name
        )?;
    }
    Ok(())
}

/// The incident of that number, with the event that opened it.
pub async fn get(db: &mut Db, id: i64) -> Result<Option<(StoredIncident, i64)>> {
    let query = sqlx::query!(
        r#"SELECT content AS "incident: AsJson<Incident>", first_event FROM incidents WHERE id = ?"#,
        id
    );
    let query = query.map(|row| (StoredIncident { id, incident: row.incident.0 }, row.first_event));
    Ok(query.fetch_optional(db).await?)
}

/// Records that an incident was acknowledged.
pub async fn acknowledge(
    db: &mut Db,
    id: i64,
    incident: &Incident,
    acknowledged: Acknowledgement,
) -> Result<Incident> {
    let incident = Incident { acknowledged: Some(acknowledged), ..incident.clone() };
    update(db, id, &incident).await?;
    Ok(incident)
}

/// Up to `limit` incidents that are requested, newest first, from the one before `before`.
pub async fn page(
    db: &mut Db,
    filter: &IncidentFilter,
    before: Option<i64>,
    limit: i64,
) -> Result<Vec<StoredIncident>> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT id, content FROM incidents WHERE true");
    condition(&mut query, "id < ?", before);
    push_conditions(&mut query, filter);
    query.push(" ORDER BY id DESC LIMIT ").push_bind(limit);
    found(db, query).await
}

/// The incidents that a query finds, in its order.
async fn found(db: &mut Db, mut query: QueryBuilder<Sqlite>) -> Result<Vec<StoredIncident>> {
    let rows = query.build().fetch_all(db).await?;
    rows.iter()
        .map(|row| {
            Ok(StoredIncident { id: row.try_get("id")?, incident: row.try_get::<AsJson<_>, _>("content")?.0 })
        })
        .collect()
}

/// Returns up to `limit` of the requested incidents, the most important first: open ones, then by severity, then the newest.
pub async fn worst(db: &mut Db, filter: &IncidentFilter, limit: i64) -> Result<Vec<StoredIncident>> {
    let mut query = QueryBuilder::<Sqlite>::new("SELECT id, content FROM incidents WHERE true");
    push_conditions(&mut query, filter);
    query.push(" ORDER BY recovered_at IS NOT NULL, severity DESC, id DESC LIMIT ").push_bind(limit);
    found(db, query).await
}

/// Counts the requested incidents, and the open ones among them.
pub async fn count(db: &mut Db, filter: &IncidentFilter) -> Result<(u64, u64)> {
    let mut query = QueryBuilder::<Sqlite>::new(
        "SELECT count(*) AS total, count(*) FILTER (WHERE recovered_at IS NULL) AS open FROM incidents WHERE true",
    );
    push_conditions(&mut query, filter);
    let row = query.build().fetch_one(db).await?;
    let (total, open): (i64, i64) = (row.try_get("total")?, row.try_get("open")?);
    Ok((total.cast_unsigned(), open.cast_unsigned()))
}

fn push_conditions(query: &mut QueryBuilder<Sqlite>, filter: &IncidentFilter) {
    query.push(match filter.state {
        Some(IncidentState::Open) => " AND recovered_at IS NULL",
        Some(IncidentState::Recovered) => " AND recovered_at IS NOT NULL",
        None => "",
    });
    query.push(match filter.acknowledged {
        Some(true) => " AND acknowledged_at IS NOT NULL",
        Some(false) => " AND acknowledged_at IS NULL",
        None => "",
    });
    condition(query, "kind = ?", filter.kind.map(IncidentKind::as_str));
    condition(query, "daemon = ?", filter.daemon.as_ref().map(DaemonName::as_str));
    let subjects = "id IN (SELECT incident FROM incident_subjects WHERE";
    let (tenant, gpu) =
        (filter.tenant.as_ref().map(TenantName::as_str), filter.gpu.as_ref().map(GpuUuid::as_str));
    condition(query, &format!("{subjects} kind = 'tenant' AND name = ?)"), tenant);
    condition(query, &format!("{subjects} kind = 'gpu' AND name = ?)"), gpu);
    condition(query, "(recovered_at IS NULL OR recovered_at >= ?)", filter.since);
    let current = "(recovered_at IS NULL OR (acknowledged_at IS NULL AND recovered_at >= ?))";
    condition(query, current, filter.current_since);
    condition(query, "first_event >= ?", filter.from_event);
    let affected = "EXISTS (SELECT 1 FROM json_each(content, '$.affected') WHERE value ->> 'client' = ?)";
    condition(query, affected, filter.affected.map(|client| client.to_string()));
}

/// Counts the open incidents by kind.
pub async fn open_by_kind(db: &mut Db) -> Result<BTreeMap<IncidentKind, u64>> {
    let query = sqlx::query!(
        r#"SELECT kind AS "kind!: AsText<IncidentKind>", count(*) AS "count!: u64"
           FROM incidents WHERE recovered_at IS NULL GROUP BY kind"#
    );
    Ok(query.map(|row| (row.kind.0, row.count)).fetch_all(db).await?.into_iter().collect())
}

/// The open incidents, oldest first.
pub async fn open(db: &mut Db) -> Result<Vec<StoredIncident>> {
    let query = sqlx::query_as!(
        StoredIncident,
        r#"SELECT id AS "id!", content AS "incident: AsJson<Incident>" FROM incidents WHERE recovered_at IS NULL ORDER BY id"#
    );
    Ok(query.fetch_all(db).await?)
}

/// Deletes incidents that ended before a time, and the oldest ended ones beyond [`KEPT`], up to `most`; returns their number.
pub async fn prune(db: &mut Db, before: i64, most: i64) -> Result<u64> {
    let done = sqlx::query!(
        "DELETE FROM incidents WHERE id IN (
             SELECT id FROM incidents WHERE recovered_at < ?1
             UNION
             SELECT id FROM (
                 SELECT id FROM incidents WHERE recovered_at IS NOT NULL ORDER BY recovered_at DESC LIMIT -1 OFFSET ?2
             )
             LIMIT ?3
         )",
        before,
        KEPT,
        most
    )
    .execute(db)
    .await?;
    Ok(done.rows_affected())
}

/// Returns true if there is an incident to prune.
pub async fn has_expired(db: &mut Db, before: i64) -> Result<bool> {
    let expired = sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT 1 FROM incidents WHERE recovered_at < ?1)
                  OR (SELECT count(*) FROM incidents WHERE recovered_at IS NOT NULL) > ?2 AS "expired!: bool""#,
        before,
        KEPT
    )
    .fetch_one(db)
    .await?;
    Ok(expired)
}
