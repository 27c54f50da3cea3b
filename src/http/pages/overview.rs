//! Is all well, and if not, what is to be done.

mod attention;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};

use self::attention::Attention;
use super::frame::{Frame, Place};
use super::gpus::GpuRow;
use super::operations::{OperationRow, under_way};
use super::rendered;
use super::words::{self, State as Stands, layout};
use crate::domain::GpuUuid;
use crate::domain::access::Actor;
use crate::domain::event::{Event, EventFilter};
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::clients::ClientFilter;
use crate::service::daemons::DaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};

/// Events that are shown.
const EVENTS: u32 = 8;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    attention: Vec<Attention>,
    under_way: Vec<OperationRow>,
    daemons: Vec<DaemonRow>,
    gpus: Vec<GpuRow>,
    events: Vec<Event>,
}

impl OverviewPage {
    /// GPUs that no daemon holds: where a new operator begins.
    fn unheld(&self) -> impl Iterator<Item = &GpuRow> {
        self.gpus.iter().filter(|row| row.gpu.daemon.is_none() && row.gpu.mig_enabled != Some(true))
    }
}

/// A daemon in a line.
pub(super) struct DaemonRow {
    pub(super) daemon: DaemonView,
    pub(super) stands: Stands,
    /// What people call its GPUs.
    pub(super) gpus: Vec<(GpuUuid, String)>,
    /// Its clients that are connected.
    pub(super) clients: usize,
}

impl DaemonRow {
    /// A daemon with so many clients, on a host with these GPUs.
    pub(super) fn of(daemon: DaemonView, gpus: &[GpuRow], clients: usize) -> Self {
        let called = |uuid: &GpuUuid| {
            let known = gpus.iter().find(|row| row.gpu.uuid == *uuid);
            (uuid.clone(), known.map_or_else(|| uuid.to_string(), GpuRow::called))
        };
        Self {
            stands: words::daemon(daemon.status.as_ref()),
            gpus: daemon.spec.gpus.iter().map(called).collect(),
            clients,
            daemon,
        }
    }

    pub(super) fn layout(&self) -> Option<(String, Stands)> {
        let status = self.daemon.status.as_ref()?.layout.as_ref()?;
        let version =
            status.version_ref().map_or_else(|| "being taken away".to_owned(), |version| version.to_string());
        Some((version, layout(status.state)))
    }
}

pub(super) async fn show(State(app): State<AppState>, actor: Actor) -> Result<Response, Problem> {
    if let Some(own) = actor.scope() {
        return Ok(Redirect::to(&format!("/tenants/{own}")).into_response());
    }
    let page = Page::first(MAX_LIMIT);
    let service = &app.service;
    let gpus: Vec<GpuRow> = service.gpu_views(&actor).await?.into_iter().map(GpuRow::of).collect();
    let daemons = daemon_rows(&app, &actor, &gpus, &page).await?;
    let newest = Page::first(EVENTS);
    let events = service.events(&actor, EventFilter::default(), Order::NewestFirst, &newest).await?.items;
    let attention = attention::all(&app, &actor, &daemons, &gpus).await?;
    let under_way = under_way(&app, &actor, None).await?;
    let frame = Frame::of(service, &actor, Place::Overview, "Overview").await.live();
    Ok(rendered(&OverviewPage { frame, attention, under_way, daemons, gpus, events }))
}

/// The daemons with their clients counted.
pub(super) async fn daemon_rows(
    app: &AppState,
    actor: &Actor,
    gpus: &[GpuRow],
    page: &Page,
) -> Result<Vec<DaemonRow>, Problem> {
    let daemons = app.service.daemons(actor, page).await?.items;
    let clients = app.service.clients(actor, &ClientFilter::default(), false, page).await?.items;
    let row = |daemon: DaemonView| {
        let clients = clients.iter().filter(|client| client.daemon == daemon.name).count();
        DaemonRow::of(daemon, gpus, clients)
    };
    Ok(daemons.into_iter().map(row).collect())
}
