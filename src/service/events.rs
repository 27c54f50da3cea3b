//! Events: read in pages, and followed as they are written.

use std::collections::VecDeque;

use sqlx::Connection as _;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::page::{Page, Paged};
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::GpuUuid;
use crate::domain::access::{Actor, Right};
use crate::domain::event::{Cause, Details, Event, EventFilter, EventType, Subject};
use crate::domain::gpu::GpuRef;
pub use crate::store::events::Order;
use crate::store::{self, Store, StoreError};

/// Events that a stream has in memory at most: a slow reader costs no more.
const AHEAD: i64 = 128;

impl Service {
    /// Events that are asked for, in this order; those of its own tenant for an actor that is bound to one.
    pub async fn events(
        &self,
        actor: &Actor,
        filter: EventFilter,
        order: Order,
        page: &Page,
    ) -> Result<Paged<Event>, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let filter = narrowed(actor, filter);
        let after = after(page, order)?;
        let mut reader = self.parts.store.read().await?;
        let events = store::events::page(&mut reader, &filter, order, after, page.rows()).await?;
        Ok(page.cut(events, |event| format!("{}{}", sign(order), event.id)))
    }

    /// One event.
    pub async fn event(&self, actor: &Actor, id: i64) -> Result<Event, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let event = store::events::get(&mut *self.parts.store.read().await?, id).await?;
        let event = event.filter(|event| actor.sees(event.subject.tenant.as_ref()));
        event.ok_or_else(|| ServiceError::NotFound { kind: "event", name: id.to_string() })
    }

    /// Events as they are written: from the one after `last` on, or from now on.
    pub fn follow_events(
        &self,
        actor: &Actor,
        filter: EventFilter,
        last: Option<i64>,
    ) -> Result<Following, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let filter = narrowed(actor, filter);
        let newest = self.parts.store.newest_event();
        let now = *newest.borrow();
        let last = last.unwrap_or(now);
        if !(0..=now).contains(&last) {
            return Err(ServiceError::field(
                "/last_event_id",
                format!(
                    "event {last} has not happened here, where the last one is {now}: it is another database's, so begin again \
                     without it"
                ),
            ));
        }
        let permit = self.streams.clone().try_acquire_owned().map_err(|_| {
            ServiceError::Unavailable(
                "as many streams of events are read as may be (events.streams in the configuration): end one, or read \
                 GET /api/v1/events"
                    .to_owned(),
            )
        })?;
        let store = self.parts.store.clone();
        Ok(Following { store, filter, at: last, newest, ahead: VecDeque::new(), _permit: permit })
    }

    /// A GPU as a caller names it: by index, PCI address or the beginning of its UUID, or by the UUID of one that is gone.
    pub async fn gpu_named(&self, actor: &Actor, name: &str) -> Result<GpuUuid, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let known = self.held_gpus().await?;
        match GpuRef(name.to_owned()).resolve(&known) {
            Ok(gpu) => Ok(gpu.uuid.clone()),
            Err(error) => GpuUuid::parse(name).map_err(|_| {
                // The GPUs of the host are none of a tenant's business.
                let words = match actor.scope() {
                    None => error.to_string(),
                    Some(_) => "there is no such GPU: give the UUID of one".to_owned(),
                };
                ServiceError::field("/gpu", words)
            }),
        }
    }
}

/// What an actor may see of what it asks for: of what is another tenant's as much as of what does not exist.
fn narrowed(actor: &Actor, mut filter: EventFilter) -> EventFilter {
    let Some(own) = actor.scope() else { return filter };
    match &filter.tenant {
        Some(tenant) if tenant != own => filter.until = Some(i64::MIN),
        _ => filter.tenant = Some(own.clone()),
    }
    filter
}

/// The letter that a cursor begins with: one of the other order would skip what was not read.
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

/// What a stream gives next.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed {
    /// An event.
    Event(Box<Event>),
    /// Nothing that is asked for was written up to this number.
    Nothing(i64),
}

/// Events that are followed; dropped, it frees its place.
pub struct Following {
    store: Store,
    filter: EventFilter,
    /// Up to here everything was given.
    at: i64,
    newest: watch::Receiver<i64>,
    ahead: VecDeque<Event>,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    /// The number up to which everything was given.
    pub fn at(&self) -> i64 {
        self.at
    }

    /// The next event; waits for one, and gives [`Followed::Nothing`] where what was written is not asked for. An error is the
    /// end.
    ///
    /// Nothing is lost where this is dropped before it is done.
    pub async fn next(&mut self) -> Result<Followed, StoreError> {
        loop {
            if let Some(event) = self.ahead.pop_front() {
                self.at = event.id;
                return Ok(Followed::Event(Box::new(event)));
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

    /// Reads what comes next, and what of it is gone already, at one time.
    async fn read(&mut self, newest: i64) -> Result<(), StoreError> {
        let mut reader = self.store.read().await?;
        let mut snapshot = reader.begin().await?;
        let oldest = store::events::oldest(&mut snapshot).await?;
        let events = store::events::follow(&mut snapshot, &self.filter, self.at, AHEAD).await?;
        snapshot.rollback().await?;
        // An event that came after `newest` was raised is there too: it is given, and not again.
        let whole_from = oldest.unwrap_or(newest + 1);
        if whole_from > self.at + 1 {
            self.ahead.push_back(lost(self.at + 1, whole_from));
        }
        self.ahead.extend(events);
        Ok(())
    }
}

/// Says that events were pruned before they were read; its number is the one before the first that is there.
fn lost(from: i64, whole_from: i64) -> Event {
    let count = whole_from - from;
    Event {
        id: whole_from - 1,
        at: unix_ms(),
        kind: EventType::EventsLost,
        severity: EventType::EventsLost.severity(),
        subject: Subject::default(),
        cause: Cause::Manager,
        message: format!(
            "events {from} to {} were pruned before they were read, whether or not they were asked for: from event {whole_from} \
             on nothing is missing",
            whole_from - 1
        ),
        details: Some(Details::Lost {
            count: u64::try_from(count).ok(),
            from: None,
            until: None,
            whole_from: Some(whole_from),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_taken_as_it_was_given_and_not_otherwise() {
        let page = |after: &str| Page { after: after.to_owned(), limit: 10 };
        assert_eq!(after(&page(""), Order::NewestFirst).expect("none"), None);
        assert_eq!(after(&page("n12"), Order::NewestFirst).expect("read"), Some(12));
        for bad in ["o12", "12", "n", "n-1", "n0", "n012", "n+12", "n12 ", "n99999999999999999999"] {
            assert!(after(&page(bad), Order::NewestFirst).is_err(), "{bad}");
        }
    }
}
