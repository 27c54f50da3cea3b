//! Incidents: listed, read and acknowledged.

pub mod breaches;
pub mod exposures;
pub mod foreign_users;
mod presence;
mod recording;
pub mod sharing;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::presence::PresenceOnGpu;
use crate::domain::access::{Actor, Right};
use crate::domain::audit::Target;
use crate::domain::daemon::FaultHolder;
use crate::domain::event::{DomainEvent, Severity};
use crate::domain::fault::GpuFaultReport;
use crate::domain::incident::{
    Acknowledgement, Incident, IncidentEnd, IncidentFilter, IncidentKind, IncidentState, RECENT_MS,
    RankedClient, StoredIncident, Suspect,
};
use crate::domain::{DaemonName, GpuUuid, TenantName, rfc3339};
use crate::service::access::context::RequestContext;
use crate::service::access::idempotency::once;
use crate::service::access::redaction::redact_incident;
use crate::service::events::{NEVER, first_visible};
use crate::service::layouts::check_note;
use crate::service::page::{Page, Paged};
use crate::service::{Service, ServiceError, WriteOptions, transaction_end};
use crate::store::{self, StoreError, transact};

/// The longest note, in characters.
const LONGEST_NOTE: usize = 1000;

/// An incident: the failure, the clients that lost their work, and the recovery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = Incident)]
pub struct IncidentView {
    /// Its ID.
    #[schema(minimum = 1, example = 12)]
    pub id: i64,
    /// Kind of the incident.
    pub kind: IncidentKind,
    /// Severity of the incident.
    pub severity: Severity,
    /// `open` while it lasts, `recovered` once it has ended.
    pub state: IncidentState,
    /// The daemon.
    pub daemon: DaemonName,
    /// The GPUs that it concerns.
    pub gpus: Vec<GpuUuid>,
    /// When it began.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub opened_at: i64,
    /// When it ended; `null` while it is open.
    #[serde(with = "crate::domain::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub recovered_at: Option<i64>,
    /// Reason for its end; `null` while it is open.
    pub ended_by: Option<IncidentEnd>,
    /// Milliseconds from its last opening to its end, both as the manager noticed them; `null` while it is open, and for an incident that
    /// is over when it becomes known, such as a refusal.
    pub time_to_recovery_ms: Option<i64>,
    /// Acknowledgement by an operator; `null` before that.
    pub acknowledged: Option<Acknowledgement>,
    /// The incident in one sentence.
    #[schema(
        example = "gpu0's control daemon died and was restarted after 0.9 s; 6 clients of demo, inference and nightly lost their work"
    )]
    pub summary: String,
    /// Action to take.
    pub remedy: String,
    /// Processes that it is about. For a GPU fault, those against which there is evidence that has never been seen of an innocent client;
    /// to be named by MPS is no such evidence. For a refusal, the processes that were refused.
    pub suspected: Vec<Suspect>,
    /// Reports of server.log and the kernel's log about a GPU fault; `null` for other incidents.
    pub fault: Option<GpuFaultReport>,
    /// Clients that lost their work, as MPS reported at the time. For a GPU fault each has the evidence about it, and those with the
    /// strongest evidence against them come first.
    pub affected: Vec<RankedClient>,
    /// True if some of them may have left by themselves: lines of server.log were missed, or nothing shows why they left.
    pub affected_is_uncertain: bool,
    /// Number of clients of the daemon that kept their work; `null` if unknown.
    pub unaffected: Option<u32>,
    /// The tenants that it hit.
    #[schema(value_type = Vec<String>)]
    pub tenants: Vec<TenantName>,
    /// Workload of each of these tenants when it was hit, by its labels: `pod prod/web-0/app`, `job 4711 of alice`. Tenants whose labels
    /// name none are left out.
    #[schema(value_type = BTreeMap<String, String>)]
    pub workloads: BTreeMap<TenantName, String>,
    /// Number of occurrences before it ended.
    pub occurrences: u32,
    /// Findings, such as the settings that differ; `null` if there is nothing to add.
    pub detail: Option<String>,
    /// The IDs of its events, the first 200.
    pub events: Vec<i64>,
}

impl IncidentView {
    /// Builds the view of an incident for an actor.
    fn for_actor(stored: StoredIncident, actor: &Actor) -> Self {
        Self::with_presence(stored, actor, &PresenceOnGpu::default())
    }

    /// Builds the view of an incident for an actor, with the presence of the tenants at faults of the GPU.
    fn with_presence(
        StoredIncident { id, incident }: StoredIncident,
        actor: &Actor,
        presence: &PresenceOnGpu,
    ) -> Self {
        let tenants = incident.tenants();
        let tenants = tenants.into_iter().filter(|tenant| actor.sees(Some(tenant))).collect();
        let incident = match actor.scope() {
            Some(tenant) => redact_incident(incident, tenant),
            None => incident,
        };
        let (suspected, affected) = (incident.suspected(), incident.ranked(|client| presence.of(client)));
        let workloads = incident.workloads.iter().map(|(tenant, of)| (tenant.clone(), of.to_string()));
        Self {
            id,
            workloads: workloads.collect(),
            kind: incident.kind,
            severity: incident.kind.severity(),
            state: if incident.is_open() { IncidentState::Open } else { IncidentState::Recovered },
            opened_at: incident.opened_at,
            recovered_at: incident.recovered_at,
            ended_by: incident.ended_by,
            time_to_recovery_ms: incident.time_to_recovery_ms(),
            summary: incident.summary(),
            remedy: incident.remedy(),
            daemon: incident.daemon,
            gpus: incident.gpus,
            suspected,
            affected,
            acknowledged: incident.acknowledged,
            fault: incident.fault,
            affected_is_uncertain: incident.is_uncertain,
            unaffected: incident.unaffected,
            tenants,
            occurrences: incident.occurrences,
            detail: incident.detail,
            events: incident.events,
        }
    }

    /// Returns true if people are shown it without asking: while it is open, and for an hour after unless it was acknowledged.
    pub fn needs_attention(&self, now: i64) -> bool {
        match self.recovered_at {
            None => true,
            Some(at) => self.acknowledged.is_none() && now - at < RECENT_MS,
        }
    }
}

/// The incidents that matter most.
#[derive(Debug, Default)]
pub struct WorstIncidents {
    /// The incidents: open ones first, then by severity, then the newest first.
    pub incidents: Vec<IncidentView>,
    /// Number of incidents that match.
    pub total: u64,
    /// Number of these that are open.
    pub open: u64,
}

/// The note with which an incident is acknowledged.
#[derive(Debug, Clone, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AcknowledgeRequest {
    /// Findings or actions; shown with the incident.
    #[serde(default)]
    #[schema(
        max_length = 1000,
        pattern = "^[^\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]*$",
        example = "client 5337 reads past its buffer; reported to the team"
    )]
    pub note: Option<String>,
}

impl Service {
    /// Incidents, newest first; for a tenant user, those that hit its tenant.
    pub async fn incidents(
        &self,
        ctx: &RequestContext,
        filter: IncidentFilter,
        page: &Page,
    ) -> Result<Paged<IncidentView>, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let before = page.key::<u32>()?.map(i64::from);
        let mut reader = backend.parts.store.read().await?;
        let filter = narrowed(&mut reader, &ctx.actor, filter).await?;
        let incidents = store::incidents::page(&mut reader, &filter, before, page.rows()).await?;
        let incidents = incidents.into_iter().map(|row| IncidentView::for_actor(row, &ctx.actor)).collect();
        Ok(page.cut(incidents, |incident: &IncidentView| incident.id.to_string()))
    }

    /// Incidents that people are shown without asking, newest first: open ones, and unacknowledged ones of the last hour.
    pub async fn current_incidents(
        &self,
        ctx: &RequestContext,
        filter: IncidentFilter,
        page: &Page,
    ) -> Result<Paged<IncidentView>, ServiceError> {
        self.incidents(ctx, filter.current(ctx.clock.unix_ms()), page).await
    }

    /// Returns up to `most` of the incidents that people are shown without asking, the most important ones first, with their number.
    pub async fn worst_incidents(
        &self,
        ctx: &RequestContext,
        filter: IncidentFilter,
        most: u32,
    ) -> Result<WorstIncidents, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let mut reader = backend.parts.store.read().await?;
        let filter = filter.current(ctx.clock.unix_ms());
        let filter = narrowed(&mut reader, &ctx.actor, filter).await?;
        let worst = store::incidents::worst(&mut reader, &filter, i64::from(most)).await?;
        let (total, open) = store::incidents::count(&mut reader, &filter).await?;
        let incidents = worst.into_iter().map(|row| IncidentView::for_actor(row, &ctx.actor)).collect();
        Ok(WorstIncidents { incidents, total, open })
    }

    /// Number of open incidents that the user may see.
    pub async fn open_incidents(&self, ctx: &RequestContext) -> Result<u64, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let store = &backend.parts.store;
        let open = IncidentFilter { state: Some(IncidentState::Open), ..IncidentFilter::default() };
        if ctx.actor.scope().is_none() {
            // Every page shows it.
            let committed = backend.cache.open_incidents.committed(store, |db| {
                Box::pin(async move { Ok(store::incidents::count(db, &open).await?.1) })
            });
            return Ok(*committed.await?);
        }
        let mut reader = store.read().await?;
        let filter = narrowed(&mut reader, &ctx.actor, open).await?;
        Ok(store::incidents::count(&mut reader, &filter).await?.1)
    }

    /// One incident.
    pub async fn incident(&self, ctx: &RequestContext, id: i64) -> Result<IncidentView, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let mut reader = backend.parts.store.read().await?;
        let visible_from = first_visible(&mut reader, &ctx.actor).await?.unwrap_or(NEVER);
        let row = store::incidents::get(&mut reader, id).await?;
        let is_visible = |incident: &Incident, first: i64| {
            let is_own = |tenant| incident.tenants().contains(tenant) && first >= visible_from;
            ctx.actor.scope().is_none_or(is_own)
        };
        let row = row.filter(|(stored, first)| is_visible(&stored.incident, *first));
        let (stored, _) = row.ok_or_else(|| ServiceError::not_found("incident", &id))?;
        let presence = PresenceOnGpu::read(backend, &mut reader, &stored).await?;
        Ok(IncidentView::with_presence(stored, &ctx.actor, &presence))
    }

    /// The clients that keep the server of an open fault from accepting others, by the last poll; for host users.
    pub fn fault_holders(
        &self,
        ctx: &RequestContext,
        incident: &IncidentView,
    ) -> Result<Vec<FaultHolder>, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let is_open_fault = incident.kind == IncidentKind::GpuFault && incident.state == IncidentState::Open;
        if ctx.actor.scope().is_some() || !is_open_fault {
            return Ok(Vec::new());
        }
        let Some(handle) = backend.parts.fleet.get(&incident.daemon) else { return Ok(Vec::new()) };
        let servers = handle
            .of_observed(|observed| observed.status.effective.as_ref().map(|read| read.servers.clone()))
            .unwrap_or_default();
        Ok(servers.into_iter().flat_map(|server| server.held_by).collect())
    }

    /// Records that the caller took note of an incident, open or not; it does not end an open one.
    pub async fn acknowledge_incident(
        &self,
        ctx: &RequestContext,
        id: i64,
        request: AcknowledgeRequest,
        options: WriteOptions,
    ) -> Result<IncidentView, ServiceError> {
        // Of several, each has its own row in the audit log.
        let target = Target::Other(format!("incidents/{id}/acknowledge"));
        let permit = ctx.require(Right::Operate)?.on(target);
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let note = checked_note(request.note)?;
        let (clock, cause, key) = (ctx.clock, ctx.cause(), ctx.idempotency.clone());
        let actor = ctx.actor.clone();
        transact!(backend, write(&permit), |db| {
            let now = clock.unix_ms();
            let view = once(db, key.as_deref(), now, async |db| {
                let row = store::incidents::get(&mut *db, id).await?;
                let (StoredIncident { incident, .. }, _) =
                    row.ok_or_else(|| ServiceError::not_found("incident", &id))?;
                if let Some(before) = &incident.acknowledged {
                    return Err(already_acknowledged(id, before));
                }
                let by = Some(actor.subject.to_string());
                let acknowledged = Acknowledgement { at: now, by, note };
                let incident = store::incidents::acknowledge(&mut *db, id, &incident, acknowledged).await?;
                let event = DomainEvent::IncidentAcknowledged(incident.notice(id));
                store::events::append(&mut *db, &event.because(cause), now).await?;
                Ok(IncidentView::for_actor(StoredIncident { id, incident }, &actor))
            })
            .await?;
            Ok::<_, ServiceError>((view, transaction_end(&options)))
        })
    }
}

/// The filter limited to what an actor may see. Another tenant's incidents are treated like incidents that do not exist.
async fn narrowed(
    db: store::Transaction<'_>,
    actor: &Actor,
    filter: IncidentFilter,
) -> Result<IncidentFilter, StoreError> {
    let Some(scope) = actor.scope() else { return Ok(filter) };
    let is_other = filter.tenant.as_ref().is_some_and(|tenant| tenant != scope);
    let visible_from = if is_other { None } else { first_visible(db, actor).await? };
    let from_event = filter.from_event.max(Some(visible_from.unwrap_or(NEVER)));
    Ok(IncidentFilter { tenant: Some(scope.clone()), from_event, ..filter })
}

fn checked_note(note: Option<String>) -> Result<Option<String>, ServiceError> {
    let note = note.map(|note| note.trim().to_owned()).filter(|note| !note.is_empty());
    match note.as_ref().map(|note| note.chars().count()) {
        Some(length) if length > LONGEST_NOTE => Err(ServiceError::field(
            "/note",
            format!("the note has {length} characters: give at most {LONGEST_NOTE}"),
        )),
        _ => check_note(note.as_deref()).map(|()| note),
    }
}

fn already_acknowledged(id: i64, before: &Acknowledgement) -> ServiceError {
    let by = before.by.as_deref().unwrap_or("another caller");
    let at = rfc3339::format(before.at);
    ServiceError::Conflict(format!(
        "incident {id} was acknowledged by {by} at {at}: nothing is left to acknowledge"
    ))
}
