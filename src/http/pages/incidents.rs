//! Incidents: the list, one of them, and its acknowledgement.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use super::banner::{IncidentRow, incident_state};
use super::forms::Form;
use super::frame::{Frame, Section};
use super::gpus::GpuDisplayNames;
use super::lists::{ListQuery, list_page};
use super::rendered;
use crate::domain::access::Role;
use crate::domain::daemon::FaultHolder;
use crate::domain::event::Event;
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::memory::Bytes;
use crate::domain::{DaemonName, TenantName};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
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
    gpus: GpuDisplayNames,
    /// Clients that keep a server with a fault from accepting others.
    holders: Vec<FaultHolder>,
    /// The IDs of the events beyond those that are shown.
    further_events: Vec<i64>,
    /// Its first events, oldest first, as far as they are kept.
    events: Vec<Event>,
}

fn filter(query: &ListQuery) -> Result<IncidentFilter, ServiceError> {
    let states = [IncidentState::Open, IncidentState::Recovered];
    Ok(IncidentFilter {
        state: query.one_of("state", "a state of incidents", states, incident_state)?,
        acknowledged: query
            .one_of("acknowledged", "yes or no", [true, false], |yes| if yes { "yes" } else { "no" })?,
        kind: query.parsed("kind", str::parse)?,
        daemon: query.parsed("daemon", DaemonName::parse)?,
        tenant: query.parsed("tenant", TenantName::parse)?,
        ..IncidentFilter::default()
    })
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let incidents = async { call.app.service.incidents(&call.ctx, filter(&query)?, &query.page()?).await };
    let page = query.list(&call, Section::Incidents, &FILTER, incidents).await?;
    let page = page.map(|incident| IncidentRow::of(incident, call.now()));
    Ok(page.with_daemons(&call).await?.answer(|page| IncidentsPage { page }))
}

async fn show(call: Call, Path(id): Path<i64>) -> Reply {
    let Call { app, ctx } = &call;
    let incident = app.service.incident(ctx, id).await?;
    let holders = app.service.fault_holders(ctx, &incident)?;
    let frame = call.frame(Section::Incidents, format!("Incident {id}")).await.live();
    let gpus = if frame.may(Role::Viewer) { call.gpu_names().await } else { GpuDisplayNames::default() };
    let events = events_of(&call, &incident).await?;
    let further_events = incident.events.get(EVENTS..).unwrap_or_default().to_vec();
    let row = IncidentRow::of(incident, call.now());
    Ok(rendered(&IncidentPage { frame, row, gpus, holders, further_events, events }))
}

/// The first events of an incident.
async fn events_of(Call { app, ctx }: &Call, incident: &IncidentView) -> Result<Vec<Event>, Problem> {
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
