//! Faults: what broke, who lost work, and what ended it, found in the events.

use crate::domain::access::Right;
use crate::domain::daemon::FaultHolder;
use crate::domain::event::{AffectedClient, Details, Event, EventFilter, EventType};
use crate::service::access::context::RequestContext;
use crate::service::events::Order;
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Service, ServiceError};

/// Each kind of fault, with the events that end it.
const KINDS: [(EventType, &[EventType]); 7] = [
    (EventType::ServerFault, &[EventType::ServerRecovered, EventType::ServerStarted, EventType::DaemonReady]),
    (EventType::ServerDied, &[EventType::ServerStarted, EventType::DaemonReady]),
    (EventType::DaemonDied, &[EventType::DaemonReady]),
    (EventType::DaemonCrashLoop, &[EventType::DaemonReady]),
    (EventType::DaemonWedged, &[EventType::DaemonReady]),
    (EventType::LayoutDegraded, &[EventType::LayoutApplied]),
    (EventType::GpuMissing, &[EventType::GpuBack, EventType::GpuReplaced]),
];

/// Most clients listed for a fault: as many as a device takes.
const NAMED: u32 = 60;

/// A fault and its effects.
#[derive(Debug, Clone, PartialEq)]
pub struct FaultView {
    /// The event of the fault.
    pub event: Event,
    /// Clients that lost their work, with their tenants, as known when it happened.
    pub lost: Vec<AffectedClient>,
    /// Those that are still connected, which keep the server from taking other clients.
    pub holders: Vec<FaultHolder>,
    /// The event that ended it; `None` while it lasts.
    pub over: Option<Event>,
}

impl Service {
    /// Faults, newest first.
    pub async fn faults(&self, ctx: &RequestContext, page: &Page) -> Result<Paged<FaultView>, ServiceError> {
        ctx.require(Right::View)?;
        let types = KINDS.iter().map(|(kind, _)| *kind).collect();
        let filter = EventFilter { types, ..EventFilter::default() };
        let found = self.events(ctx, filter, Order::NewestFirst, page).await?;
        let mut items = Vec::with_capacity(found.items.len());
        for event in found.items {
            items.push(self.fault(ctx, event).await?);
        }
        Ok(Paged { items, next_cursor: found.next_cursor })
    }

    /// The effects of an event as a fault; an event of another kind affected no one and never ends.
    pub async fn fault(&self, ctx: &RequestContext, event: Event) -> Result<FaultView, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let Some((_, ends)) = KINDS.iter().find(|(kind, _)| *kind == event.kind) else {
            return Ok(FaultView { event, lost: Vec::new(), holders: Vec::new(), over: None });
        };
        let lost = self.lost_work(ctx, &event).await?;
        let over = EventFilter {
            types: ends.to_vec(),
            daemon: event.subject.daemon.clone(),
            gpu: event.subject.gpu.clone().filter(|_| event.subject.daemon.is_none()),
            from: Some(event.id),
            ..EventFilter::default()
        };
        let over = self.events(ctx, over, Order::OldestFirst, &Page::first(1)).await?.items;
        let over = over.into_iter().next();
        let holders = if over.is_none() { backend.fault_holders(ctx, &event) } else { Vec::new() };
        Ok(FaultView { event, lost, holders, over })
    }

    /// Who lost work: the clients that the event names, otherwise those that left because of it.
    async fn lost_work(
        &self,
        ctx: &RequestContext,
        event: &Event,
    ) -> Result<Vec<AffectedClient>, ServiceError> {
        let named = event.details.as_ref().map(Details::affected_clients).unwrap_or_default();
        if !named.is_empty() {
            return Ok(named.to_vec());
        }
        let types = vec![EventType::ClientLeft];
        let left = EventFilter { types, cause: Some(event.id), ..EventFilter::default() };
        let left = self.events(ctx, left, Order::OldestFirst, &Page::first(NAMED)).await?.items;
        let lost = left.into_iter().filter_map(|left| {
            let client = left.subject.client?;
            let tenant = left.subject.tenant;
            Some(AffectedClient { pid: client.pid, client: Some(client), tenant })
        });
        Ok(lost.collect())
    }
}

impl Backend {
    /// Who keeps the server of a fault from taking clients, by the last poll; for host users.
    fn fault_holders(&self, ctx: &RequestContext, event: &Event) -> Vec<FaultHolder> {
        let daemon = event.subject.daemon.as_ref().filter(|_| ctx.actor.scope().is_none());
        let Some(handle) = daemon.and_then(|daemon| self.parts.fleet.get(daemon)) else { return Vec::new() };
        let servers = handle.observed().status.effective.map(|seen| seen.servers).unwrap_or_default();
        let same = servers.into_iter().find(|server| Some(server.pid) == event.subject.server);
        same.map(|server| server.held_by).unwrap_or_default()
    }
}
