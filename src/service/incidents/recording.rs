//! Records what watchers of incidents find, and reads what an earlier manager recorded.

use crate::domain::event::DomainEvent;
use crate::domain::incident::intruders::{IntruderKind, IntruderTracker};
use crate::domain::incident::{Incident, IncidentKind};
use crate::service::{Backend, ServiceError};
use crate::store::{self, StoreError, transact};

impl Backend {
    /// Observes `subject` if its events can be written, and writes them, all or none. Only then the tracker is replaced by the one that
    /// reported them. Returns false once the store is closed.
    pub(super) async fn record_changes<T>(
        &self,
        tracker: &mut T,
        subject: &'static str,
        observed: impl Future<Output = Result<(Vec<DomainEvent>, T), ServiceError>>,
    ) -> bool {
        if self.is_read_only() || self.parts.store.is_sealed() {
            return true;
        }
        let (events, next) = match observed.await {
            Ok(observed) => observed,
            Err(error) => {
                tracing::warn!(%error, "{subject} could not be looked for");
                return true;
            }
        };
        match self.append_events(events).await {
            Ok(()) => *tracker = next,
            Err(StoreError::Closed) => return false,
            Err(error) => tracing::warn!(%error, "{subject} could not be recorded"),
        }
        true
    }

    async fn append_events(&self, events: Vec<DomainEvent>) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let clock = self.parts.clock;
        transact!(self.parts.store, |db| {
            for event in events {
                store::events::append(&mut *db, &event.into(), clock.unix_ms()).await?;
            }
            Ok(())
        })
    }

    /// The open incidents of a kind, which an earlier manager reported.
    pub(super) async fn open_incidents(&self, kind: IncidentKind) -> Vec<Incident> {
        let open = async { store::incidents::open(&mut *self.parts.store.read().await?).await }.await;
        let open = open.unwrap_or_else(|error: StoreError| {
            tracing::warn!(%error, ?kind, "what an earlier manager reported could not be read");
            Vec::new()
        });
        open.into_iter().map(|stored| stored.incident).filter(|incident| incident.kind == kind).collect()
    }

    /// The tracker of a kind of processes, with those of the open incidents.
    pub(super) async fn reported_intruders<I: Clone>(
        &self,
        kind: &'static IntruderKind<I>,
    ) -> IntruderTracker<I> {
        let open = self.open_incidents(kind.incident).await.into_iter().map(|incident| {
            let present = incident.suspects.into_iter().filter(|suspect| !suspect.has_ended);
            (incident.daemon, present.filter_map(|suspect| suspect.client).collect())
        });
        IntruderTracker::of(kind, open)
    }
}
