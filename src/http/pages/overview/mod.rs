//! Whether everything is well, and if not, what to do.

mod attention;

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};

use self::attention::Attention;
use super::daemons::{DaemonSummary, daemon_rows};
use super::format::Tone;
use super::frame::{Frame, Section};
use super::gpus::GpuRow;
use super::operations::{OperationSummary, under_way};
use super::rendered;
use crate::domain::event::{Event, EventFilter, EventType};
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};

/// Events shown.
const EVENTS: u32 = 8;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    attention: Vec<Attention>,
    under_way: Vec<OperationSummary>,
    daemons: Vec<DaemonSummary>,
    gpus: Vec<GpuRow>,
    events: Vec<Event>,
}

impl OverviewPage {
    /// The worst severity.
    fn tone(&self) -> Tone {
        self.attention.first().map_or(Tone::Good, |worst| worst.tone)
    }

    /// Everything that needs attention, in one line.
    fn summary(&self) -> String {
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

pub(super) async fn show(State(app): State<AppState>, ctx: RequestContext) -> Result<Response, Problem> {
    if let Some(own) = ctx.actor.scope() {
        return Ok(Redirect::to(&format!("/tenants/{own}")).into_response());
    }
    let page = Page::first(MAX_LIMIT);
    let service = &app.service;
    let gpus: Vec<GpuRow> = service.gpu_views(&ctx).await?.into_iter().map(GpuRow::of).collect();
    let daemons = daemon_rows(&app, &ctx, &gpus, &page).await?;
    let newest = Page::first(EVENTS);
    let filter = EventFilter { types: relevant_types(), ..EventFilter::default() };
    let events = service.events(&ctx, filter, Order::NewestFirst, &newest).await?.items;
    let attention = attention::all(&app, &ctx, &daemons, &gpus).await?;
    let under_way = under_way(&app, &ctx, None).await?;
    let frame = Frame::of(service, &ctx, Section::Overview, "Overview").await.live();
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
