//! Events: read in pages, and followed as they are written.

use std::collections::VecDeque;

use sqlx::Connection as _;
use tokio::sync::watch;

use super::page::{Page, Paged};
use super::places::{Full, Place};
use super::told::Shown as _;
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::access::{Actor, Right};
use crate::domain::event::{Cause, Details, Event, EventFilter, EventType, Subject};
use crate::domain::gpu::GpuRef;
use crate::domain::{DaemonName, GpuUuid, TenantName, tenant};
use crate::metrics::wire::Limit;
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
        let after = after(page, order)?;
        let mut reader = self.parts.store.read().await?;
        let filter = narrowed(actor, begin(&mut reader, actor).await?, filter);
        let events = store::events::page(&mut reader, &filter, order, after, page.rows()).await?;
        let events = events.into_iter().map(|event| event.shown_to(actor)).collect();
        Ok(page.cut(events, |event| format!("{}{}", sign(order), event.id)))
    }

    /// One event.
    pub async fn event(&self, actor: &Actor, id: i64) -> Result<Event, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let mut reader = self.parts.store.read().await?;
        let event = store::events::get(&mut reader, id).await?;
        let begin = begin(&mut reader, actor).await?.unwrap_or(NEVER);
        let seen = |event: &Event| actor.sees(event.subject.tenant.as_ref()) && event.id >= begin;
        let event = event.filter(seen);
        let event = event.ok_or_else(|| ServiceError::NotFound { kind: "event", name: id.to_string() })?;
        Ok(event.shown_to(actor))
    }

    /// Events as they are written: from the one after `last` on, or from now on.
    #[allow(clippy::unused_async, reason = "as every use case is called")]
    pub async fn follow_events(
        &self,
        actor: &Actor,
        filter: EventFilter,
        last: Option<i64>,
    ) -> Result<Following, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let newest = self.parts.store.newest_event();
        let now = *newest.borrow();
        let last = last.unwrap_or(now);
        if !(0..=now).contains(&last) {
            return Err(ServiceError::field(
                "/after",
                format!(
                    "event {last} has not happened here, where the last one is {now}: it is another database's, so begin again \
                     without it"
                ),
            ));
        }
        let place = self.streams.take(actor)?;
        let (store, reader) = (self.parts.store.clone(), actor.clone());
        let ahead = VecDeque::new();
        Ok(Following { store, filter, begin: None, reader, at: last, newest, ahead, _place: place })
    }

    /// What is asked for, of a GPU as a caller names it: by index, PCI address or the beginning of its UUID, or by the UUID of one
    /// that is gone.
    ///
    /// To somebody who is bound to a tenant no others are there than the tenant's, so of what names none of them there are no
    /// events: a refusal would tell which GPUs the host has.
    pub async fn of_gpu(
        &self,
        actor: &Actor,
        filter: EventFilter,
        name: &str,
    ) -> Result<EventFilter, ServiceError> {
        actor.may(Right::ViewOwn)?;
        let mut known = self.held_gpus().await?;
        if let Some(own) = actor.scope() {
            let own = self.gpus_of(own).await?;
            known.retain(|gpu| own.contains(&gpu.uuid));
        }
        let gpu = match GpuRef(name.to_owned()).resolve(&known) {
            Ok(gpu) => gpu.uuid.clone(),
            Err(error) => match (GpuUuid::parse(name), actor.scope()) {
                (Ok(uuid), _) => uuid,
                // It is not said which GPUs there are; what can be no GPU's name is refused whoever asks.
                (Err(_), Some(_)) if GpuRef(name.to_owned()).is_well_formed() => {
                    return Ok(EventFilter::none());
                }
                (Err(_), _) => return Err(ServiceError::field("/gpu", error.to_string())),
            },
        };
        Ok(EventFilter { gpu: Some(gpu), ..filter })
    }

    /// The first event of a daemon; those before are of another that had its name.
    pub async fn first_event_of_daemon(
        &self,
        actor: &Actor,
        name: &DaemonName,
    ) -> Result<Option<i64>, ServiceError> {
        actor.may(Right::View)?;
        Ok(store::daemons::events_from(&mut *self.parts.store.read().await?, name).await?)
    }

    /// The GPUs that a tenant sees.
    async fn gpus_of(&self, name: &TenantName) -> Result<Vec<GpuUuid>, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let Some(tenant) = store::tenants::get(&mut reader, name).await? else { return Ok(Vec::new()) };
        let daemon = store::daemons::get(&mut reader, &tenant.spec.daemon).await?;
        Ok(daemon.map(|daemon| tenant::gpus_of(&tenant.spec, &daemon.spec)).unwrap_or_default())
    }
}

/// The number that no event ever has: a tenant that is not there has none to see.
const NEVER: i64 = i64::MAX;

/// The first event that an actor may see: one that is bound to a tenant sees nothing of another that had its name before. `None`
/// as long as its tenant is not there.
async fn begin(db: store::Transaction<'_>, actor: &Actor) -> Result<Option<i64>, StoreError> {
    let Some(own) = actor.scope() else { return Ok(Some(0)) };
    store::tenants::told_from(db, own).await
}

/// What an actor may see of what it asks for, by the first event that it may see: of what is another tenant's as much as of what
/// does not exist.
fn narrowed(actor: &Actor, begin: Option<i64>, filter: EventFilter) -> EventFilter {
    let Some(own) = actor.scope() else { return filter };
    if filter.tenant.as_ref().is_some_and(|tenant| tenant != own) {
        return EventFilter::none();
    }
    let from = filter.from.max(Some(begin.unwrap_or(NEVER)));
    EventFilter { tenant: Some(own.clone()), from, ..filter }
}

impl From<Full> for ServiceError {
    fn from(full: Full) -> Self {
        let error = match full {
            Full::All => Self::Unavailable(
                "as many streams of events are read as may be (events.streams in the configuration): end one, or read \
                 GET /api/v1/events"
                    .to_owned(),
            ),
            Full::Share(share) => Self::TooMany {
                detail: format!(
                    "{share} streams of events are read by this caller, and no more are one's (a quarter of events.streams in the \
                     configuration): end one, or read GET /api/v1/events"
                ),
                wait_s: 1,
                of: Limit::Streams,
            },
        };
        error.for_all()
    }
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
    /// What is asked for; what of it may be seen is found at each reading, since the reader's tenant may be made only then.
    filter: EventFilter,
    /// The first event that the reader may see, as it was last known: its tenant's end is told to it, too.
    begin: Option<i64>,
    /// Up to here everything was given.
    at: i64,
    newest: watch::Receiver<i64>,
    ahead: VecDeque<Event>,
    /// Who reads.
    reader: Actor,
    _place: Place,
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
                return Ok(Followed::Event(Box::new(event.shown_to(&self.reader))));
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
        let begin = begin(&mut snapshot, &self.reader).await?.or(self.begin);
        let filter = narrowed(&self.reader, begin, self.filter.clone());
        let events = store::events::follow(&mut snapshot, &filter, self.at, AHEAD).await?;
        snapshot.rollback().await?;
        self.begin = begin;
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
