//! Incidents: the list, one of them, and their acknowledgement.

mod cause;

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use self::cause::{CauseFact, RepairAction, TenantLosses, actions, cause_facts, course};
use super::banner::{IncidentRow, incident_state, unacknowledged};
use super::format::Tone;
use super::forms::Form;
use super::frame::{Frame, Section};
use super::gpus::GpuDisplayNames;
use super::lists::{ListQuery, ROWS, list_page};
use super::login::local;
use super::rendered;
use super::routes::PageRoutes;
use crate::domain::access::{Right, Role};
use crate::domain::daemon::FaultHolder;
use crate::domain::event::{AffectedClient, Event, EventFilter};
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::memory::Bytes;
use crate::domain::{DaemonName, TenantName};
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::events::Order;
use crate::service::incidents::AcknowledgeRequest;
use crate::service::page::Page;
use crate::service::{ServiceError, WriteOptions};

pub(super) fn router() -> PageRoutes {
    let pages: PageRoutes = Router::new()
        .route("/incidents", get(list))
        .route("/incidents/{id}", get(show))
        .route("/incidents/{id}/acknowledge", post(acknowledge))
        .into();
    pages.form_route("/incidents/acknowledge", "incidents", post(acknowledge_several))
}

list_page!(IncidentsPage, "incidents.html", IncidentRow, new: Vec<i64>, unrecorded: Option<String>);

/// The fields of the filter.
const FILTER: [&str; 5] = ["state", "acknowledged", "kind", "daemon", "tenant"];

#[derive(Template)]
#[template(path = "incident.html")]
struct IncidentPage {
    frame: Frame,
    row: IncidentRow,
    gpus: GpuDisplayNames,
    /// The length of the incident, or how it ended, in words.
    course: String,
    facts: Vec<CauseFact>,
    lost: Vec<TenantLosses>,
    actions: Vec<RepairAction>,
    users: BTreeMap<u32, String>,
    /// Clients that keep a server with a fault from accepting others.
    holders: Vec<FaultHolder>,
    /// Its first events, oldest first, as far as they are kept.
    events: Vec<Event>,
    unrecorded: Option<String>,
}

impl IncidentPage {
    /// The user of a client by name, or by number where the host knows no name.
    fn user(&self, client: &AffectedClient) -> String {
        let name = |uid: u32| self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string());
        client.uid.map_or_else(|| "–".to_owned(), name)
    }
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
    let page = page.map(|incident| IncidentRow::of(incident, call.now())).with_daemons(&call).await?;
    let new = if page.frame.operates() { unacknowledged(&page.list.rows) } else { Vec::new() };
    let unrecorded = unrecorded(&call).await;
    Ok(page.answer(|page| IncidentsPage { page, new, unrecorded }))
}

async fn show(call: Call, Path(id): Path<i64>) -> Reply {
    let Call { app, ctx } = &call;
    let incident = app.service.incident(ctx, id).await?;
    let holders = app.service.fault_holders(ctx, &incident)?;
    let frame = call.frame(Section::Incidents, format!("Incident {id}")).await.live();
    let gpus = if frame.may(Role::Viewer) { call.gpu_names().await } else { GpuDisplayNames::default() };
    let of_incident = EventFilter { incident: Some(id), ..EventFilter::default() };
    let events = app.service.events(ctx, of_incident, Order::OldestFirst, &Page::first(ROWS)).await?.items;
    let layout = match app.service.daemon(ctx, &incident.daemon, false).await {
        Ok(daemon) => daemon.spec.layout.map(|layout| layout.version_ref()),
        Err(_) => None,
    };
    let users = incident.affected.iter().filter_map(|one| one.client.uid);
    Ok(rendered(&IncidentPage {
        course: course(&incident, call.now()),
        facts: cause_facts(&incident),
        lost: TenantLosses::of(&incident),
        actions: actions(&incident, &events, &holders, layout.as_ref(), &frame, call.now()),
        users: app.service.user_names(users.collect()).await,
        unrecorded: unrecorded(&call).await,
        row: IncidentRow::of(incident, call.now()),
        frame,
        gpus,
        holders,
        events,
    }))
}

/// The reason for which incidents may be missing, for users who may see the host.
async fn unrecorded(Call { app, ctx }: &Call) -> Option<String> {
    let host = app.service.host(ctx).await.ok()?;
    let fault = host.conditions.into_iter().find(|fault| fault.kind.hides_incidents());
    let read_only = host.read_only.filter(|read_only| !read_only.waiting_for_driver);
    fault.map(|fault| fault.message).or_else(|| read_only.map(|read_only| read_only.reason))
}

async fn acknowledge(Call { app, ctx }: Call, Path(id): Path<i64>, form: Form) -> Reply {
    let note = Some(form.text("note").to_owned());
    app.service.acknowledge_incident(&ctx, id, AcknowledgeRequest { note }, WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/incidents/{id}")).into_response())
}

/// Acknowledges several incidents. Those that another user acknowledged since the page was rendered stay as they are.
async fn acknowledge_several(Call { app, ctx }: Call, form: Form) -> Reply {
    ctx.require(Right::Operate)?;
    let (mut acknowledged, mut error) = (0, ServiceError::field("/id", "give the numbers of incidents"));
    for id in form.all("id") {
        let id = id
            .parse()
            .map_err(|_| ServiceError::field("/id", format!("{id:?} is not the number of an incident")))?;
        let request = AcknowledgeRequest::default();
        match app.service.acknowledge_incident(&ctx, id, request, WriteOptions::default()).await {
            Ok(_) => acknowledged += 1,
            Err(conflict @ (ServiceError::Conflict(_) | ServiceError::NotFound { .. })) => error = conflict,
            Err(error) => return Err(error.into()),
        }
    }
    if acknowledged == 0 {
        return Err(error.into());
    }
    Ok(Redirect::to(local(form.text("back")).unwrap_or("/incidents")).into_response())
}
