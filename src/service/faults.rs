//! Faults: what broke by itself, who lost work by it, and what ended it; out of the events.

use super::events::Order;
use super::page::{Page, Paged};
use super::{Service, ServiceError};
use crate::domain::TenantName;
use crate::domain::access::{Actor, Right};
use crate::domain::client::ClientId;
use crate::domain::event::{Event, EventFilter, EventType};

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

/// Clients that are named of a fault: as many as a device takes.
const NAMED: u32 = 60;

/// A fault with what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultView {
    /// What happened.
    pub event: Event,
    /// Clients that left because of it, with their tenants.
    pub lost: Vec<(ClientId, Option<TenantName>)>,
    /// What ended it; `None` as long as nothing has.
    pub over: Option<Event>,
}

impl Service {
    /// Faults, the last first.
    pub async fn faults(&self, actor: &Actor, page: &Page) -> Result<Paged<FaultView>, ServiceError> {
        actor.may(Right::View)?;
        let types = KINDS.iter().map(|(kind, _)| *kind).collect();
        let filter = EventFilter { types, ..EventFilter::default() };
        let found = self.events(actor, filter, Order::NewestFirst, page).await?;
        let mut items = Vec::with_capacity(found.items.len());
        for event in found.items {
            items.push(self.fault(actor, event).await?);
        }
        Ok(Paged { items, next_cursor: found.next_cursor })
    }

    /// An event with what is known of it as a fault; what is none has lost nobody anything, and is never over.
    pub async fn fault(&self, actor: &Actor, event: Event) -> Result<FaultView, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let types = vec![EventType::ClientLeft];
        let left = EventFilter { types, cause: Some(event.id), ..EventFilter::default() };
        let left = self.events(actor, left, Order::OldestFirst, &Page::first(NAMED)).await?.items;
        let lost = left.into_iter().filter_map(|event| Some((event.subject.client?, event.subject.tenant)));
        let Some((_, ends)) = KINDS.iter().find(|(kind, _)| *kind == event.kind) else {
            return Ok(FaultView { event, lost: Vec::new(), over: None });
        };
        let over = EventFilter {
            types: ends.to_vec(),
            daemon: event.subject.daemon.clone(),
            gpu: event.subject.gpu.clone().filter(|_| event.subject.daemon.is_none()),
            from: Some(event.id),
            ..EventFilter::default()
        };
        let over = self.events(actor, over, Order::OldestFirst, &Page::first(1)).await?.items;
        Ok(FaultView { lost: lost.collect(), over: over.into_iter().next(), event })
    }
}
