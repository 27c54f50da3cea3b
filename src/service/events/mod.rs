//! Events: paginated, and streamed as they are written.

pub mod writer;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use sqlx::Connection as _;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::access::{Actor, Right};
use crate::domain::event::{Details, DomainEvent, Event, EventCause, EventFilter, LostEvents};
use crate::domain::gpu::GpuRef;
use crate::domain::resolution::gpus_of;
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::metrics::wire::Limit;
use crate::service::access::context::RequestContext;
use crate::service::access::redaction::Redact as _;
use crate::service::limits::{Slot, SlotsTaken};
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Service, ServiceError};
pub use crate::store::events::Order;
use crate::store::{self, Store, StoreError};

/// Most events that a stream buffers, so that a slow reader costs no more.
const AHEAD: i64 = 128;

impl Service {
    /// The matching events in this order; for a tenant user, those of its tenant.
    pub async fn events(
        &self,
        ctx: &RequestContext,
        filter: EventFilter,
        order: Order,
        page: &Page,
    ) -> Result<Paged<Event>, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let after = after(page, order)?;
        let mut reader = backend.parts.store.read().await?;
        let filter = narrowed(&ctx.actor, first_visible(&mut reader, &ctx.actor).await?, filter);
        let events = store::events::page(&mut reader, &filter, order, after, page.rows()).await?;
        let events = events.into_iter().map(|event| event.redacted_for(&ctx.actor)).collect();
        Ok(page.cut(events, |event| format!("{}{}", sign(order), event.id)))
    }

    /// One event.
    pub async fn event(&self, ctx: &RequestContext, id: i64) -> Result<Event, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let mut reader = backend.parts.store.read().await?;
        let event = store::events::get(&mut reader, id).await?;
        let begin = first_visible(&mut reader, &ctx.actor).await?.unwrap_or(NEVER);
        let is_visible = |event: &Event| {
            let mut affected = event.details.iter().flat_map(Details::affected_tenants);
            (affected.any(|tenant| ctx.actor.sees(Some(tenant)))
                || ctx.actor.sees(event.subject.tenant.as_ref()))
                && event.id >= begin
        };
        let event = event.filter(is_visible);
        let event = event.ok_or_else(|| ServiceError::NotFound { kind: "event", name: id.to_string() })?;
        Ok(event.redacted_for(&ctx.actor))
    }

    /// Streams events as they are written: after event `last`, or from now on.
    pub fn follow_events(
        &self,
        ctx: &RequestContext,
        filter: EventFilter,
        last: Option<i64>,
    ) -> Result<Following, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let newest = backend.parts.store.newest_event();
        let now = *newest.borrow();
        let last = last.unwrap_or(now);
        if !(0..=now).contains(&last) {
            return Err(ServiceError::field(
                "/after",
                format!(
                    "event {last} does not exist here, where the last one is {now}: it belongs to another database, so start \
                     again without it"
                ),
            ));
        }
        // All users of one tenant are one reader, however many tokens they have.
        let actor = &ctx.actor;
        let reader =
            if actor.scope().is_some() { actor.grant.to_string() } else { actor.subject.to_string() };
        let slot = backend.streams.take(reader).map_err(|taken| no_stream(taken, backend.streams.share()))?;
        let (store, reader) = (backend.parts.store.clone(), Arc::clone(&ctx.actor));
        let ahead = VecDeque::new();
        Ok(Following {
            clock: backend.parts.clock,
            store,
            filter,
            begin: None,
            reader,
            at: last,
            newest,
            ahead,
            _slot: slot,
        })
    }

    /// The filter for a GPU that a caller names by index, PCI address, the beginning of its UUID, or the UUID of a GPU that
    /// is gone.
    ///
    /// To tenant users only their tenant's GPUs exist. Other names match no events: a refusal would reveal which GPUs the
    /// host has.
    pub async fn of_gpu(
        &self,
        ctx: &RequestContext,
        filter: EventFilter,
        name: &str,
    ) -> Result<EventFilter, ServiceError> {
        Ok(match self.gpu_named(ctx, name).await? {
            Some(gpu) => EventFilter { gpu: Some(gpu), ..filter },
            None => EventFilter::none(),
        })
    }

    /// The GPU that a filter names, in the same way; `None` where nothing can match.
    pub async fn gpu_named(&self, ctx: &RequestContext, name: &str) -> Result<Option<GpuUuid>, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let mut gpus = backend.held_gpus().await?;
        if let Some(scope) = ctx.actor.scope() {
            let own_gpus = backend.gpus_of(scope).await?;
            gpus.retain(|gpu| own_gpus.contains(&gpu.uuid));
        }
        let gpu = match GpuRef(name.to_owned()).resolve(&gpus) {
            Ok(gpu) => gpu.uuid.clone(),
            Err(error) => match (GpuUuid::parse(name), ctx.actor.scope()) {
                (Ok(uuid), _) => uuid,
                // It does not reveal which GPUs there are; an impossible name is refused for everyone.
                (Err(_), Some(_)) if GpuRef(name.to_owned()).is_well_formed() => {
                    return Ok(None);
                }
                (Err(_), _) => return Err(ServiceError::field("/gpu", error.to_string())),
            },
        };
        Ok(Some(gpu))
    }

    /// The first event of a tenant; earlier ones are about another tenant of that name.
    pub async fn first_event_of_tenant(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
    ) -> Result<Option<i64>, ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        if !ctx.actor.sees(Some(name)) {
            return Ok(None);
        }
        Ok(store::tenants::events_visible_from(&mut *backend.parts.store.read().await?, name).await?)
    }

    /// When a client of each of these tenants last came or left, where an event that is still kept says it; and the time of the first of
    /// these events.
    pub async fn last_clients(
        &self,
        ctx: &RequestContext,
        tenants: &[&TenantName],
    ) -> Result<(BTreeMap<TenantName, i64>, i64), ServiceError> {
        let backend = self.with(&ctx.require(Right::ViewOwn)?);
        let own: Vec<&TenantName> =
            tenants.iter().copied().filter(|name| ctx.actor.sees(Some(name))).collect();
        let mut reader = backend.parts.store.read().await?;
        let last = store::events::last_clients(&mut reader, &own).await?;
        let begin = store::events::oldest_with_time(&mut reader).await?;
        Ok((last, begin.map_or(ctx.clock.unix_ms(), |(_, at)| at)))
    }

    /// The first event of a daemon; earlier ones are about another daemon of that name.
    pub async fn first_event_of_daemon(
        &self,
        ctx: &RequestContext,
        name: &DaemonName,
    ) -> Result<Option<i64>, ServiceError> {
        let backend = self.with(&ctx.require(Right::View)?);
        Ok(store::daemons::events_visible_from(&mut *backend.parts.store.read().await?, name).await?)
    }
}

impl Backend {
    /// The GPUs visible to a tenant.
    async fn gpus_of(&self, name: &TenantName) -> Result<Vec<GpuUuid>, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let Some(tenant) = store::tenants::get(&mut reader, name).await? else { return Ok(Vec::new()) };
        let daemon = store::daemons::get(&mut reader, &tenant.spec.daemon).await?;
        let gpus = daemon.map(|daemon| gpus_of(&tenant.spec, &daemon.spec)).unwrap_or_default();
        Ok(gpus.iter().map(GpuUuid::whole).collect())
    }
}

/// An ID that no event ever has: a tenant that does not exist sees no events.
pub(in crate::service) const NEVER: i64 = i64::MAX;

/// The first event that an actor may see: a tenant user sees nothing of an earlier tenant of the same name. `None` while its
/// tenant does not exist.
pub(in crate::service) async fn first_visible(
    db: store::Transaction<'_>,
    actor: &Actor,
) -> Result<Option<i64>, StoreError> {
    let Some(scope) = actor.scope() else { return Ok(Some(0)) };
    store::tenants::events_visible_from(db, scope).await
}

/// The filter limited to what an actor may see, given its first visible event. Another tenant's events are treated like
/// events that do not exist.
fn narrowed(actor: &Actor, begin: Option<i64>, filter: EventFilter) -> EventFilter {
    let Some(scope) = actor.scope() else { return filter };
    if filter.tenant.as_ref().is_some_and(|tenant| tenant != scope) {
        return EventFilter::none();
    }
    let from = filter.from.max(Some(begin.unwrap_or(NEVER)));
    EventFilter { tenant: Some(scope.clone()), from, ..filter }
}

/// The error for a reader without a slot.
fn no_stream(taken: SlotsTaken, share: usize) -> ServiceError {
    let error = match taken {
        SlotsTaken::All => ServiceError::Unavailable(
            "the limit of event streams is reached (events.streams in the configuration): end one, or read GET /api/v1/events"
                .to_owned(),
        ),
        SlotsTaken::Share => ServiceError::TooMany {
            detail: format!(
                "this caller has {share} event streams open, which is the limit (a quarter of events.streams in the \
                 configuration): end one, or read GET /api/v1/events"
            ),
            wait_s: 1,
            of: Limit::Streams,
        },
    };
    error.visible_to_tenants()
}

/// The first letter of a cursor, which shows its order: with the other order it would skip events.
fn sign(order: Order) -> char {
    match order {
        Order::OldestFirst => 'o',
        Order::NewestFirst => 'n',
    }
}

fn after(page: &Page, order: Order) -> Result<Option<i64>, ServiceError> {
    if page.after.is_empty() {
        return Ok(None);
    }
    let id = page.after.strip_prefix(sign(order)).and_then(|id| id.parse().ok());
    let id = id.filter(|id: &i64| *id > 0 && page.after.len() == id.to_string().len() + 1);
    id.map(Some).ok_or_else(|| {
        ServiceError::field(
            "/cursor",
            "the cursor is not one that this server gave for this order: begin again without it",
        )
    })
}

/// The next item of a stream.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// An event.
    Event(Box<Event>),
    /// No matching event was written up to this ID.
    Nothing(i64),
}

/// An event stream; its slot is freed when this is dropped.
pub struct Following {
    clock: Clock,
    store: Store,
    /// The caller's filter; what the reader may see is determined at each read, since its tenant may be created later.
    filter: EventFilter,
    /// The first event that the reader may see, as last known: it also gets the deletion of its tenant.
    begin: Option<i64>,
    /// Everything up to this event was sent.
    at: i64,
    newest: watch::Receiver<i64>,
    ahead: VecDeque<Event>,
    /// The reader.
    reader: Arc<Actor>,
    _slot: Slot<String>,
}

impl Following {
    /// The ID up to which everything was sent.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// The next event; waits for one, and returns [`Followed::Nothing`] if what was written does not match. An error ends the
    /// stream.
    ///
    /// Cancel-safe: nothing is lost if this future is dropped.
    pub async fn next(&mut self) -> Result<Followed, StoreError> {
        loop {
            if let Some(event) = self.ahead.pop_front() {
                self.at = event.id;
                return Ok(Followed::Event(Box::new(event.redacted_for(&self.reader))));
            }
            let newest = *self.newest.borrow_and_update();
            if newest > self.at {
                self.read(newest).await?;
                if self.ahead.is_empty() {
                    self.at = newest;
                    return Ok(Followed::Nothing(newest));
                }
                continue;
            }
            self.newest.changed().await.map_err(|_| StoreError::Closed)?;
        }
    }

    /// Reads the next events, and which of them are already pruned, in one snapshot.
    async fn read(&mut self, newest: i64) -> Result<(), StoreError> {
        let mut reader = self.store.read().await?;
        let mut snapshot = reader.begin().await?;
        let oldest = store::events::oldest(&mut snapshot).await?;
        let begin = first_visible(&mut snapshot, &self.reader).await?.or(self.begin);
        let filter = narrowed(&self.reader, begin, self.filter.clone());
        let events = store::events::follow(&mut snapshot, &filter, self.at, AHEAD).await?;
        snapshot.rollback().await?;
        self.begin = begin;
        // An event newer than `newest` may be read too: it is sent once.
        let whole_from = oldest.unwrap_or(newest + 1);
        if whole_from > self.at + 1 {
            self.ahead.push_back(lost(self.at + 1, whole_from, self.clock.unix_ms()));
        }
        self.ahead.extend(events);
        Ok(())
    }
}

/// The event for a gap: events were pruned before they were read; its ID is the one before the first that remains.
fn lost(from: i64, whole_from: i64, now: i64) -> Event {
    let event = DomainEvent::EventsLost(LostEvents::Pruned { from, whole_from });
    Event {
        id: whole_from - 1,
        at: now,
        kind: event.kind(),
        severity: event.severity(),
        subject: event.subject(),
        cause: EventCause::Manager,
        message: event.message(),
        details: event.details(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_accepted_only_as_it_was_given() {
        let page = |after: &str| Page { after: after.to_owned(), limit: 10 };
        assert_eq!(after(&page(""), Order::NewestFirst).expect("none"), None);
        assert_eq!(after(&page("n12"), Order::NewestFirst).expect("read"), Some(12));
        for bad in ["o12", "12", "n", "n-1", "n0", "n012", "n+12", "n12 ", "n99999999999999999999"] {
            assert!(after(&page(bad), Order::NewestFirst).is_err(), "{bad}");
        }
    }
}
