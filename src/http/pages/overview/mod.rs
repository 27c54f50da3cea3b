//! Whether everything is well, and if not, what to do.

mod attention;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};

use self::attention::Attention;
use super::format::{self, Badge, Tone, layout};
use super::frame::{Frame, Section};
use super::gpus::GpuRow;
use super::operations::{OperationRow, under_way};
use super::rendered;
use crate::domain::GpuUuid;
use crate::domain::access::Actor;
use crate::domain::event::{Event, EventFilter, EventType};
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::daemons::DaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::ClientFilter;

/// Events shown.
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
    /// The worst severity.
    fn tone(&self) -> Tone {
        self.attention.first().map_or(Tone::Good, |worst| worst.tone)
    }

    /// Everything that needs attention, in one line.
    fn in_short(&self) -> String {
        let urgent = self.attention.iter().filter(|one| one.tone != Tone::Quiet).count();
        match (urgent, self.attention.len()) {
            (0, 1) => "No problems, 1 note".to_owned(),
            (0, several) => format!("No problems, {several} notes"),
            (1, _) => "1 thing needs attention".to_owned(),
            (urgent, _) => format!("{urgent} things need attention"),
        }
    }

    /// GPUs without a daemon, where a new operator begins.
    fn unheld(&self) -> impl Iterator<Item = &GpuRow> {
        self.gpus.iter().filter(|row| row.gpu.daemon.is_none() && row.gpu.mig_enabled != Some(true))
    }
}

/// A daemon in one line.
pub(super) struct DaemonRow {
    pub(super) daemon: DaemonView,
    pub(super) badge: Badge,
    /// The display names of its GPUs.
    pub(super) gpus: Vec<(GpuUuid, String)>,
    /// Its connected clients.
    pub(super) clients: usize,
}

impl DaemonRow {
    /// A daemon with this number of clients, on a host with these GPUs.
    pub(super) fn of(daemon: DaemonView, gpus: &[GpuRow], clients: usize) -> Self {
        let called = |uuid: &GpuUuid| {
            let known = gpus.iter().find(|row| row.gpu.uuid == *uuid);
            (uuid.clone(), known.map_or_else(|| uuid.to_string(), GpuRow::called))
        };
        Self {
            badge: format::daemon(daemon.status.as_ref()),
            gpus: daemon.spec.gpus.iter().map(called).collect(),
            clients,
            daemon,
        }
    }

    pub(super) fn layout(&self) -> Option<(String, Badge)> {
        let status = self.daemon.status.as_ref()?.layout.as_ref()?;
        let version =
            status.version_ref().map_or_else(|| "being removed".to_owned(), |version| version.to_string());
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
    let filter = EventFilter { types: relevant_types(), ..EventFilter::default() };
    let events = service.events(&actor, filter, Order::NewestFirst, &newest).await?.items;
    let attention = attention::all(&app, &actor, &daemons, &gpus).await?;
    let under_way = under_way(&app, &actor, None).await?;
    let frame = Frame::of(service, &actor, Section::Overview, "Overview").await.live();
    Ok(rendered(&OverviewPage { frame, attention, under_way, daemons, gpus, events }))
}

/// Event types that matter to an operator: readers, and what always follows from another event, would push out the relevant
/// ones.
fn relevant_types() -> Vec<EventType> {
    const NOISE: [EventType; 6] = [
        EventType::SessionOpened,
        EventType::SessionEnded,
        EventType::SettingsApplied,
        EventType::OperationRequested,
        EventType::OperationStarted,
        EventType::OperationStep,
    ];
    EventType::ALL.iter().copied().filter(|kind| !NOISE.contains(kind)).collect()
}

/// The daemons with their numbers of clients.
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
