//! Data behind `/metrics`, kept in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::event::{Details, EventFilter, EventType};
use crate::domain::tenant::Tenant;
use crate::metrics::MetricsFormat;
use crate::metrics::snapshot::{CommittedSnapshot, MetricsSnapshot, ObservedDaemon};
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::{self, StoreError};

/// Shortest time between two reads of committed data: writes come in bursts.
const MIN_INTERVAL: Duration = Duration::from_millis(200);
/// Longest time between two reads.
const MAX_INTERVAL: Duration = Duration::from_secs(30);

/// Events read at once.
const EVENTS: i64 = 500;

impl Service {
    /// The metrics; reads only memory, so that it answers whatever hangs.
    pub fn metrics(&self, ctx: &RequestContext, format: MetricsFormat) -> Result<String> {
        let backend = self.with(&ctx.require(Right::View)?);
        let parts = &backend.parts;
        let daemons = parts.fleet.all().into_iter().map(|(name, handle)| ObservedDaemon {
            name: name.to_string(),
            generation: handle.generation(),
            status: handle.status(),
            clients: handle.observed().clients,
            commands: handle.commands(),
        });
        let committed = Arc::clone(&backend.committed.borrow());
        let handouts = &parts.fleet.context().handouts;
        let waiting = |tenant: &Tenant| {
            let waiting = handouts.status(&tenant.directory).waiting.len();
            (waiting > 0).then(|| (tenant.name.clone(), u64::try_from(waiting).unwrap_or(u64::MAX)))
        };
        let world = MetricsSnapshot {
            waiting: committed.tenants.iter().filter_map(waiting).collect(),
            queued: backend.launches.counts(),
            seen: daemons.collect(),
            committed,
            present: parts.fleet.context().gpu_presence.borrow().present(),
            vitals: Arc::clone(&backend.vitals.borrow()),
            queue: parts.store.waiting(),
            listening: parts.listening.borrow().clone(),
            read_only: backend.is_read_only(),
        };
        let text = parts.metrics.render(world, parts.store.commits(), format);
        text.map_err(|error| ServiceError::Internal(error.to_string()))
    }
}

impl Backend {
    /// Reads committed data after each commit and at intervals, forever.
    pub async fn refresh_metrics_snapshot(self: Arc<Self>) {
        let mut counted = self.newest_event_before;
        let mut committed = self.parts.store.committed();
        loop {
            committed.mark_unchanged();
            match self.read_snapshot(&mut counted).await {
                Ok(committed) => {
                    self.committed.send_replace(Arc::new(committed));
                }
                Err(StoreError::Closed) => return,
                Err(error) => tracing::warn!(%error, "the data for the metrics could not be read"),
            }
            tokio::time::sleep(MIN_INTERVAL).await;
            let _ = tokio::time::timeout(MAX_INTERVAL, committed.changed()).await;
        }
    }

    /// Reads committed data; counts the events after `counted`, and logs the incidents among them, so that the journal shows them too.
    async fn read_snapshot(&self, counted: &mut i64) -> Result<CommittedSnapshot, StoreError> {
        let mut db = self.parts.store.read().await?;
        let mut last = *counted;
        loop {
            let (all, order) = (EventFilter::default(), store::events::Order::OldestFirst);
            let events = store::events::page(&mut db, &all, order, Some(last), EVENTS).await?;
            for event in &events {
                self.parts.metrics.events.happened(event.kind.as_str(), event.severity.as_str());
                match (event.kind, &event.details) {
                    (EventType::IncidentOpened, Some(Details::Incident { incident_kind, .. })) => {
                        self.parts.metrics.incidents.opened(*incident_kind);
                        tracing::warn!("{}", event.message);
                    }
                    (EventType::IncidentRecovered, _) => tracing::info!("{}", event.message),
                    _ => {}
                }
                last = event.id;
            }
            *counted = last;
            if i64::try_from(events.len()).is_ok_and(|read| read < EVENTS) {
                break;
            }
        }
        let daemons = store::daemons::all(&mut db).await?;
        let tenants = match &*self.committed.borrow() {
            // A change of a tenant raises its daemon's generation.
            before if before.daemons == daemons => Some(Arc::clone(&before.tenants)),
            _ => None,
        };
        let tenants = match tenants {
            Some(tenants) => tenants,
            None => Arc::new(store::tenants::all(&mut db).await?),
        };
        Ok(CommittedSnapshot {
            read_at: self.parts.clock.unix_ms(),
            tenants,
            daemons,
            leases: store::leases::all(&mut db, &self.parts.fleet.context().boot_id).await?,
            // As last seen: the driver is not queried.
            gpus: store::gpus::all(&mut db, Vec::new()).await?,
            unfinished: store::operations::unfinished_by_state(&mut db).await?,
            open_incidents: store::incidents::open_by_kind(&mut db).await?,
            database_bytes: store::size(&mut db).await?,
            maintenance: store::maintenance::get(&mut db).await?.is_some(),
        })
    }
}
