//! Incidents: the list, one of them, and its acknowledgement.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use super::banner::IncidentRow;
use super::forms::Form;
use super::frame::{Frame, Section};
use super::lists::{ListQuery, list_page};
use super::{gpus, rendered};
use crate::domain::access::Role;
use crate::domain::event::Event;
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::memory::Bytes;
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::access::context::RequestContext;
use crate::service::incidents::{AcknowledgeRequest, IncidentView};
use crate::service::{ServiceError, WriteOptions};

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/incidents", get(list))
        .route("/incidents/{id}", get(show))
        .route("/incidents/{id}/acknowledge", post(acknowledge))
}

list_page!(IncidentsPage, "incidents.html", IncidentRow);

/// Events shown in full; further ones are linked.
const EVENTS: usize = 20;

/// The fields of the filter.
const FILTER: [&str; 5] = ["state", "acknowledged", "kind", "daemon", "tenant"];

#[derive(Template)]
#[template(path = "incident.html")]
struct IncidentPage {
    frame: Frame,
    row: IncidentRow,
    /// The display names of its GPUs.
    gpus: Vec<(GpuUuid, String)>,
    /// Clients that keep a server with a fault from accepting others, and what to do about each.
    holders: Vec<(u32, &'static str)>,
    /// Its first events, oldest first, as far as they are kept.
    events: Vec<Event>,
}

impl IncidentPage {
    fn of_host(&self) -> bool {
        self.frame.may(Role::Viewer)
    }

    /// Returns the heading for its processes: their relation to the incident.
    fn suspects_heading(&self) -> &'static str {
        match self.row.incident.kind {
            kind if kind.loses_work() => "Suspected",
            IncidentKind::ClientRefused => "Refused processes",
            _ => "Processes",
        }
    }

    /// The IDs of the events beyond those that are shown.
    fn further_events(&self) -> &[i64] {
        self.row.incident.events.get(EVENTS..).unwrap_or_default()
    }

    fn can_acknowledge(&self) -> bool {
        self.frame.operates() && self.row.incident.acknowledged.is_none()
    }
}

fn filter(query: &ListQuery) -> Result<IncidentFilter, ServiceError> {
    let state = query.parsed("state", |text| match text {
        "open" => Ok(IncidentState::Open),
        "recovered" => Ok(IncidentState::Recovered),
        other => Err(format!("{other:?} is not a state of incidents: choose open or recovered")),
    })?;
    let acknowledged = query.parsed("acknowledged", |text| match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        other => Err(format!("{other:?} says nothing of an acknowledgement: choose yes or no")),
    })?;
    Ok(IncidentFilter {
        state,
        acknowledged,
        kind: query.parsed("kind", str::parse)?,
        daemon: query.parsed("daemon", DaemonName::parse)?,
        tenant: query.parsed("tenant", TenantName::parse)?,
        ..IncidentFilter::default()
    })
}

async fn list(Call { app, ctx }: Call, query: ListQuery) -> Reply {
    let found = async { app.service.incidents(&ctx, filter(&query)?, &query.page()?).await };
    let (found, now) = (found.await, app.service.clock().unix_ms());
    let page = query.into_page(&app, &ctx, Section::Incidents, &FILTER, found).await?;
    let page = page.map(|incident| IncidentRow::of(incident, now));
    Ok(page.with_daemons(&app, &ctx).await?.answer(|page| IncidentsPage { page }))
}

async fn show(Call { app, ctx }: Call, Path(id): Path<i64>) -> Reply {
    let incident = app.service.incident(&ctx, id).await?;
    let holders = app.service.fault_holders(&ctx, &incident)?.into_iter().map(|holder| {
        let remedy = if holder.stopped {
            "it is stopped, so continue it (kill -CONT) or end it; until then no other client can connect"
        } else {
            "end it; until then no other client can connect"
        };
        (holder.client.pid, remedy)
    });
    let holders = holders.collect();
    let frame = Frame::of(&app.service, &ctx, Section::Incidents, format!("Incident {id}")).await.live();
    let named = if frame.may(Role::Viewer) { gpus::names(&app, &ctx).await } else { Vec::new() };
    let gpus = incident.gpus.iter().map(|gpu| (gpu.clone(), gpus::name_of(&named, gpu))).collect();
    let events = events_of(&app, &ctx, &incident).await?;
    let row = IncidentRow::of(incident, app.service.clock().unix_ms());
    Ok(rendered(&IncidentPage { frame, row, gpus, holders, events }))
}

/// The first events of an incident.
async fn events_of(
    app: &AppState,
    ctx: &RequestContext,
    incident: &IncidentView,
) -> Result<Vec<Event>, Problem> {
    let mut events = Vec::new();
    for id in incident.events.iter().take(EVENTS) {
        match app.service.event(ctx, *id).await {
            Ok(event) => events.push(event),
            // The event is no longer kept, or belongs to another tenant.
            Err(ServiceError::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(events)
}

async fn acknowledge(Call { app, ctx }: Call, Path(id): Path<i64>, form: Form) -> Reply {
    let note = Some(form.text("note").to_owned());
    app.service.acknowledge_incident(&ctx, id, AcknowledgeRequest { note }, WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/incidents/{id}")).into_response())
}
