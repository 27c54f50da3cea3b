//! Faults: what broke by itself, who lost work by it, and whether it is over.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use super::frame::{Frame, Place};
use super::lists::{Asked, Ways};
use super::rendered;
use super::words::{Moment, State as Stands, severity};
use crate::domain::TenantName;
use crate::domain::access::Actor;
use crate::domain::client::ClientId;
use crate::domain::event::{Details, Event, EventFilter, EventType};
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::events::Order;
use crate::service::page::Page;

/// Each kind of fault, with what ends it.
const KINDS: [(EventType, &[EventType]); 7] = [
    (EventType::ServerFault, &[EventType::ServerRecovered, EventType::ServerStarted, EventType::DaemonReady]),
    (EventType::ServerDied, &[EventType::ServerStarted, EventType::DaemonReady]),
    (EventType::DaemonDied, &[EventType::DaemonReady]),
    (EventType::DaemonCrashLoop, &[EventType::DaemonReady]),
    (EventType::DaemonWedged, &[EventType::DaemonReady]),
    (EventType::LayoutDegraded, &[EventType::LayoutApplied]),
    (EventType::GpuMissing, &[EventType::GpuBack, EventType::GpuReplaced]),
];

/// Faults on a page, each of which takes two further questions.
const ROWS: u32 = 20;
/// Clients that are named of a fault.
const NAMED: u32 = 60;

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/faults", get(list))
}

#[derive(Template)]
#[template(path = "faults.html")]
struct FaultsPage {
    frame: Frame,
    faults: Vec<Fault>,
    ways: Ways,
}

/// A fault with what is known of it.
struct Fault {
    event: Event,
    /// Clients that left because of it, with their tenants.
    lost: Vec<(ClientId, Option<TenantName>)>,
    /// The event that ended it.
    over: Option<Event>,
}

impl Fault {
    fn matters(&self) -> Stands {
        severity(self.event.severity)
    }

    fn at(&self) -> Moment {
        Moment(self.event.at)
    }

    /// The processes that MPS blames.
    fn blamed(&self) -> &[u32] {
        match &self.event.details {
            Some(Details::Fault { reported, .. }) => reported,
            _ => &[],
        }
    }

    fn over_at(&self) -> Option<(i64, Moment)> {
        self.over.as_ref().map(|event| (event.id, Moment(event.at)))
    }
}

async fn list(State(app): State<AppState>, actor: Actor, asked: Asked) -> Result<Response, Problem> {
    let types = KINDS.iter().map(|(kind, _)| *kind).collect();
    let filter = EventFilter { types, ..EventFilter::default() };
    let page = Page::parse(asked.text("cursor"), Some(ROWS))?;
    let found = app.service.events(&actor, filter, Order::NewestFirst, &page).await?;
    let ways = asked.ways(found.next_cursor.as_deref());
    let mut faults = Vec::with_capacity(found.items.len());
    for event in found.items {
        faults.push(fault(&app, &actor, event).await?);
    }
    let frame = Frame::of(&app.service, &actor, Place::Faults, "Faults").await;
    let frame = if asked.is_first() { frame.live() } else { frame };
    Ok(rendered(&FaultsPage { frame, faults, ways }))
}

async fn fault(app: &AppState, actor: &Actor, event: Event) -> Result<Fault, ServiceError> {
    let left =
        EventFilter { types: vec![EventType::ClientLeft], cause: Some(event.id), ..EventFilter::default() };
    let left = app.service.events(actor, left, Order::OldestFirst, &Page::first(NAMED)).await?.items;
    let lost = left.into_iter().filter_map(|event| Some((event.subject.client?, event.subject.tenant)));
    let ends = KINDS.iter().find(|(kind, _)| *kind == event.kind).map_or(&[][..], |(_, ends)| *ends);
    let over = EventFilter {
        types: ends.to_vec(),
        daemon: event.subject.daemon.clone(),
        gpu: event.subject.gpu.clone().filter(|_| event.subject.daemon.is_none()),
        from: Some(event.id),
        ..EventFilter::default()
    };
    let over = app.service.events(actor, over, Order::OldestFirst, &Page::first(1)).await?.items;
    Ok(Fault { lost: lost.collect(), over: over.into_iter().next(), event })
}
