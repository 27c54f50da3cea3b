//! What `/metrics` says, from memory.

use std::sync::Arc;
use std::time::Duration;

use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::access::{Actor, Right};
use crate::domain::event::EventFilter;
use crate::domain::tenant::Tenant;
use crate::metrics::Format;
use crate::metrics::world::{Book, Seen, World};
use crate::store::{self, StoreError};

/// Shortest time between two readings of what was committed: writes come in bursts.
const SETTLE: Duration = Duration::from_millis(200);
/// Longest time between two of them.
const ANYWAY: Duration = Duration::from_secs(30);

/// Events that are read at once.
const EVENTS: i64 = 500;

impl Service {
    /// The metrics; reads memory only, and so answers whatever hangs.
    pub fn metrics(&self, actor: &Actor, format: Format) -> Result<String, ServiceError> {
        actor.may(Right::View)?;
        let parts = &self.parts;
        let seen = parts.fleet.all().into_iter().map(|(name, handle)| Seen {
            name: name.to_string(),
            generation: handle.generation(),
            status: handle.status(),
            clients: handle.observed().clients,
            commands: handle.commands(),
        });
        let book = Arc::clone(&self.book.borrow());
        let handouts = &parts.fleet.context().handouts;
        let waiting = |tenant: &Tenant| {
            let waiting = handouts.status(&tenant.directory).waiting.len();
            (waiting > 0).then(|| (tenant.name.clone(), u64::try_from(waiting).unwrap_or(u64::MAX)))
        };
        let world = World {
            waiting: book.tenants.iter().filter_map(waiting).collect(),
            seen: seen.collect(),
            book,
            present: parts.fleet.context().census.borrow().present(),
            queue: parts.store.waiting(),
            listening: parts.listening.borrow().clone(),
            read_only: parts.store.is_sealed(),
        };
        let text = parts.metrics.render(world, parts.store.commits(), format);
        text.map_err(|error| ServiceError::Internal(error.to_string()))
    }

    /// Reads what was committed, after each commit and now and then, for ever.
    pub async fn keep_book(self) {
        let mut committed = self.parts.store.committed();
        let mut counted = None;
        loop {
            committed.mark_unchanged();
            match self.read_book(&mut counted).await {
                Ok(book) => {
                    self.book.send_replace(Arc::new(book));
                }
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "what the metrics tell could not be read"),
            }
            tokio::time::sleep(SETTLE).await;
            let _ = tokio::time::timeout(ANYWAY, committed.changed()).await;
        }
    }

    /// Reads what is there now, and counts the events after the one that was `counted` last.
    async fn read_book(&self, counted: &mut Option<i64>) -> Result<Book, StoreError> {
        let mut db = self.parts.store.read().await?;
        let mut last = match *counted {
            Some(last) => last,
            None => store::events::newest(&mut db).await?,
        };
        loop {
            let (all, order) = (EventFilter::default(), store::events::Order::OldestFirst);
            let events = store::events::page(&mut db, &all, order, Some(last), EVENTS).await?;
            for event in &events {
                self.parts.metrics.events.happened(event.kind.as_str(), event.severity.as_str());
                last = event.id;
            }
            *counted = Some(last);
            if i64::try_from(events.len()).is_ok_and(|read| read < EVENTS) {
                break;
            }
        }
        let daemons = store::daemons::all(&mut db).await?;
        let tenants = match &*self.book.borrow() {
            // A change of a tenant raises its daemon's generation.
            before if before.daemons == daemons => Some(Arc::clone(&before.tenants)),
            _ => None,
        };
        let tenants = match tenants {
            Some(tenants) => tenants,
            None => Arc::new(store::tenants::all(&mut db).await?),
        };
        Ok(Book {
            read_at: unix_ms(),
            tenants,
            daemons,
            leases: store::leases::all(&mut db, &self.parts.fleet.context().boot_id).await?,
            // As they were seen last: the driver is not asked.
            gpus: store::gpus::all(&mut db, Vec::new()).await?,
            unfinished: store::operations::unfinished_by_state(&mut db).await?,
            database_bytes: store::size(&mut db).await?,
            maintenance: store::maintenance::get(&mut db).await?.is_some(),
        })
    }
}
