//! Writes the events that drivers report, and other events that no use case writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::clock::Clock;
use crate::domain::attribution::{AttributedBy, Candidate, Signs, attribute};
use crate::domain::bypass::Bypass;
use crate::domain::client::{ClientFacts, Lease};
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::event::{
    ComputeModeChange, DomainEvent, EventCause, EventFilter, EventTrigger, EventType, KnownFrom, LostEvents,
    ObservedClient, Predecessor, ServerFault,
};
use crate::domain::gpu::{Gpu, board_name};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::host;
use crate::service::{Backend, ServiceError};
use crate::store::connected_clients::{self, ConnectedClient};
use crate::store::events::Order;
use crate::store::{self, Store, StoreError, Transaction, transact};
use crate::supervisor::UnobservedClient;
use crate::supervisor::report::event_queue::{DaemonObservations, EventQueue, Observation, QueuedItem};

/// Items taken from the queue at once.
const BATCH: usize = 64;
/// Observations written in one transaction, unless one item has more: it blocks the only writer for as long.
const MAX_OBSERVATIONS: usize = 32;
/// Backoff before a failed write is retried; the items stay in memory meanwhile, and the queue is bounded.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Events deleted in one step of pruning, so that no other write waits long.
const PRUNE_BATCH: i64 = 500;
/// Pruning runs after this many new events, and at least once in this time.
const PRUNE_AFTER: i64 = 250;
const PRUNE_INTERVAL: Duration = Duration::from_secs(60);

/// Limits on the events that are kept, by age and by number.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// Days for which an event is kept.
    pub days: u32,
    /// Number of events that are kept.
    pub count: u32,
}

/// Writes what drivers report, in order, until the queue is closed and empty.
pub async fn write_queued_events(clock: Clock, store: Store, journal: EventQueue, boot_id: String) {
    loop {
        let items = journal.take(BATCH).await;
        if items.is_empty() {
            return;
        }
        for part in parts(items) {
            if !write_part(clock, &store, &journal, &boot_id, part).await {
                return;
            }
        }
    }
}

/// Splits items into one part per transaction, in order.
fn parts(items: Vec<QueuedItem>) -> Vec<Vec<QueuedItem>> {
    let (mut parts, mut notes): (Vec<Vec<QueuedItem>>, usize) = (Vec::new(), 0);
    for item in items {
        let more = if let QueuedItem::DaemonObservations(entry) = &item {
            entry.observations.len().max(1)
        } else {
            1
        };
        match parts.last_mut() {
            Some(part) if notes + more <= MAX_OBSERVATIONS => {
                notes += more;
                part.push(item);
            }
            _ => {
                notes = more;
                parts.push(vec![item]);
            }
        }
    }
    parts
}

/// Writes items, retrying until it succeeds; false if that was given up because the manager stops.
async fn write_part(
    clock: Clock,
    store: &Store,
    journal: &EventQueue,
    boot_id: &str,
    items: Vec<QueuedItem>,
) -> bool {
    let mut pause = RETRY.0;
    loop {
        let (batch, boot_id) = (items.clone(), boot_id.to_owned());
        let written = transact!(store, ServiceError, |db| {
            for item in batch {
                write(&mut *db, item, &boot_id, clock).await?;
            }
            Ok(())
        });
        match written {
            // Nothing is written to another machine's database.
            Ok(()) | Err(ServiceError::ReadOnly(_)) => return true,
            Err(error) if journal.is_closed() => {
                tracing::error!(%error, "the last events could not be written");
                return false;
            }
            Err(error) => tracing::warn!(%error, "events could not be written yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

async fn write(
    db: Transaction<'_>,
    item: QueuedItem,
    boot_id: &str,
    clock: Clock,
) -> Result<(), ServiceError> {
    match item {
        QueuedItem::Lost { count, from, until } => {
            let event = DomainEvent::EventsLost(LostEvents::NotWritten { count, from, until });
            store::events::append(db, &event.into(), clock.unix_ms()).await?;
        }
        QueuedItem::Event { at, event } => {
            store::events::append(db, &event, at).await?;
        }
        QueuedItem::DaemonObservations(DaemonObservations { daemon, at, observations }) => {
            for note in observations {
                write_observation(&mut *db, &daemon, note, boot_id, at).await?;
            }
        }
    }
    Ok(())
}

async fn write_observation(
    db: Transaction<'_>,
    daemon: &DaemonName,
    note: Observation,
    boot_id: &str,
    at: i64,
) -> Result<(), ServiceError> {
    match note {
        Observation::Event(mut event) => {
            name_tenants(&mut *db, daemon, &mut event.event, boot_id).await?;
            if let DomainEvent::DaemonStopped { pid, .. } = &event.event {
                store::daemons::forget_process(&mut *db, daemon, *pid, at).await?;
            }
            store::events::append_unless_quiet(db, &event, at).await?;
        }
        Observation::ClientArrived(client) => {
            let leases = store::leases::all(&mut *db, boot_id).await?;
            let candidates = store::tenants::candidates(&mut *db, daemon).await?;
            let (tenant, attributed_by) = attribute(&Signs::from(&*client), daemon, &leases, &candidates);
            let client = connected(&client, tenant, attributed_by);
            connected_clients::put(&mut *db, daemon, boot_id, &client).await?;
            let event = DomainEvent::ClientConnected(client.observed_on(daemon));
            store::events::append(db, &event.into(), at).await?;
        }
        Observation::ClientLeft(client, why) => {
            if let Some(client) = connected_clients::remove(&mut *db, daemon, boot_id, client).await? {
                let event = DomainEvent::ClientLeft(client.observed_on(daemon));
                let event = match why {
                    Some(kind) => event.because(EventTrigger::Latest(kind)),
                    None => event.into(),
                };
                store::events::append(db, &event, at).await?;
            }
        }
        Observation::UnobservedClient(visit) => {
            // A manager that died between two reads of the log reads part of it again.
            if !connected_clients::has_disconnect_event(&mut *db, daemon, visit.pid, visit.left).await? {
                let leases = store::leases::all(&mut *db, boot_id).await?;
                for event in visited(daemon, visit, &leases) {
                    store::events::append(&mut *db, &event.into(), at).await?;
                }
            }
        }
        Observation::ReadTo(place) => store::log_offsets::put(db, daemon, place).await?,
    }
    Ok(())
}

/// Adds whose the processes are that an event names.
async fn name_tenants(
    db: Transaction<'_>,
    daemon: &DaemonName,
    event: &mut DomainEvent,
    boot_id: &str,
) -> Result<(), ServiceError> {
    let names_others = matches!(
        event,
        DomainEvent::BypassAppeared { .. }
            | DomainEvent::BypassChanged { .. }
            | DomainEvent::ClientRefused(_)
    );
    // The writer of a forged fault may have named processes that live.
    let is_logged = matches!(event, DomainEvent::ServerFault(ServerFault { known_from, .. }) if *known_from != KnownFrom::Poll);
    let affected = event.affected_clients_mut();
    // Some clients were lost before they were ever listed.
    let leases = if names_others || affected.iter().any(|affected| affected.client.is_none()) {
        store::leases::all(&mut *db, boot_id).await?
    } else {
        Vec::new()
    };
    for affected in affected {
        affected.tenant = match affected.client {
            Some(client) => {
                let stored = connected_clients::get(&mut *db, client).await?;
                if let Some(stored) = &stored {
                    (affected.uid, affected.program) = (stored.uid, stored.program.clone());
                }
                stored.and_then(|stored| stored.tenant)
            }
            None if is_logged && host::process::identify(affected.pid).is_some() => None,
            None => tenant_by_lease(&leases, affected.pid),
        };
    }
    match event {
        DomainEvent::BypassAppeared { processes, present, .. } => {
            let candidates = store::tenants::candidates(db, daemon).await?;
            for process in processes.iter_mut().chain(present) {
                process.tenant = tenant_of_bypass(process, daemon, &leases, &candidates);
            }
        }
        DomainEvent::BypassChanged { present, .. } => {
            let candidates = store::tenants::candidates(db, daemon).await?;
            for process in present {
                process.tenant = tenant_of_bypass(process, daemon, &leases, &candidates);
            }
        }
        DomainEvent::ClientRefused(refusal) => {
            let candidates = store::tenants::candidates(db, daemon).await?;
            let signs = refusal.process.as_ref();
            let by_process = signs.and_then(|signs| attribute(signs, daemon, &leases, &candidates).0);
            let by_lease = || refusal.pid.and_then(|pid| tenant_by_lease(&leases, pid));
            refusal.tenant = by_process.or_else(by_lease).or_else(|| match candidates.as_slice() {
                // The clients of a daemon with one tenant are that tenant's.
                [only] => Some(only.tenant.clone()),
                _ => None,
            });
        }
        _ => {}
    }
    Ok(())
}

/// The tenant of a process outside MPS: what shows a client's shows its, and the variables of a tenant that a container was given without
/// its directory are such a sign.
fn tenant_of_bypass(
    process: &Bypass,
    daemon: &DaemonName,
    leases: &[Lease],
    candidates: &[Candidate],
) -> Option<TenantName> {
    let by_process = process.signs.as_ref().and_then(|signs| attribute(signs, daemon, leases, candidates).0);
    by_process.or_else(|| tenant_by_lease(leases, process.pid))
}

fn connected(
    client: &ClientFacts,
    tenant: Option<TenantName>,
    attributed_by: AttributedBy,
) -> ConnectedClient {
    ConnectedClient {
        id: client.id,
        server: client.server,
        uid: client.uid,
        program: host::process::program_of(&client.command),
        tenant,
        attributed_by,
    }
}

/// Returns the tenant of a process's lease if only its PID is known.
///
/// PIDs are reused, but not soon: if there is only one lease with the PID, it is taken to be that of the process.
fn tenant_by_lease(leases: &[Lease], pid: u32) -> Option<TenantName> {
    let mut holders = leases.iter().filter(|lease| lease.holder.pid == pid);
    match (holders.next(), holders.next()) {
        (Some(lease), None) => Some(lease.tenant.clone()),
        _ => None,
    }
}

/// The events of a client known only from server.log: its process is gone, so nothing else is known.
fn visited(daemon: &DaemonName, visit: UnobservedClient, leases: &[Lease]) -> [DomainEvent; 2] {
    let tenant = tenant_by_lease(leases, visit.pid);
    let client = |logged_at: Option<i64>| ObservedClient {
        daemon: daemon.clone(),
        server: visit.server,
        pid: visit.pid,
        client: None,
        uid: None,
        program: None,
        attributed_by: if tenant.is_some() { AttributedBy::Lease } else { AttributedBy::Unattributed },
        tenant: tenant.clone(),
        logged_at,
    };
    [DomainEvent::ClientConnected(client(visit.came)), DomainEvent::ClientLeft(client(visit.left))]
}

/// The event of a manager's start; `before` is the last event about a manager.
pub(in crate::service) fn start_event(before: Option<EventType>) -> DomainEvent {
    let predecessor = match before {
        None => Predecessor::None,
        Some(EventType::ManagerStopped) => Predecessor::Stopped,
        Some(EventType::DatabaseRestored) => Predecessor::Restored,
        Some(_) => Predecessor::Died,
    };
    DomainEvent::ManagerStarted { pid: std::process::id(), predecessor }
}

/// Writes events for GPUs of daemons that are gone or back, compared with the last such event of each; they were read before at `since`.
pub(in crate::service) async fn record_gpu_presence(
    db: Transaction<'_>,
    present: &[Gpu],
    since: i64,
    now: i64,
) -> Result<(), StoreError> {
    let gpus = store::gpus::all(&mut *db, present.to_vec()).await?;
    for gpu in store::gpus::held(&mut *db).await?.into_keys() {
        let Some(daemon) = store::daemons::holder(&mut *db, &gpu).await? else { continue };
        let is_present = present.iter().any(|listed| listed.uuid == gpu && listed.present);
        let was_missing =
            store::events::gpu_was_last(&mut *db, &gpu, EventType::GpuMissing, EventType::GpuBack).await?;
        let event = match (is_present, was_missing) {
            (false, false) => {
                let board = gpus.iter().find(|listed| listed.uuid == gpu).map(|gone| board_name(gone, &gpus));
                let (types, of) = (vec![EventType::ClientLeft], Some(daemon.clone()));
                let filter = EventFilter { types, daemon: of, since: Some(since), ..EventFilter::default() };
                let left = store::events::page(&mut *db, &filter, Order::OldestFirst, None, 1000).await?;
                // Those that something else ended lost nothing with it.
                let left = left.into_iter().filter(|event| event.cause == EventCause::Client);
                let left = left.filter_map(|event| Some((event.id, event.client()?))).collect();
                DomainEvent::GpuMissing { gpu, daemon, board, left }
            }
            (true, true) => DomainEvent::GpuBack { gpu, daemon },
            _ => continue,
        };
        store::events::append(&mut *db, &event.into(), now).await?;
    }
    Ok(())
}

/// Writes the event of a compute mode that is about to be set for a daemon, or was restored.
pub async fn record_compute_mode_change(
    db: Transaction<'_>,
    daemon: &DaemonName,
    gpu: &GpuUuid,
    held: Option<&OwnedComputeMode>,
    now: i64,
) -> Result<(), StoreError> {
    let before = store::compute_modes::all(&mut *db).await?.into_iter().find(|(stored, _)| stored == gpu);
    let before = before.map(|(_, held)| held);
    if before.as_ref().map(|held| held.desired) == held.map(|held| held.desired) {
        return Ok(());
    }
    let previous = held.or(before.as_ref()).map(|held| held.previous);
    let desired = held.map(|held| held.desired);
    let (daemon, gpu) = (daemon.clone(), gpu.clone());
    let event = DomainEvent::ComputeModeChanged(ComputeModeChange { daemon, gpu, previous, desired });
    store::events::append(db, &event.into(), now).await?;
    Ok(())
}

impl Backend {
    /// Records that the manager stops as requested; no event follows.
    pub async fn record_stop(&self) {
        let event = DomainEvent::ManagerStopped { pid: std::process::id() };
        let clock = self.parts.clock;
        let written =
            transact!(self.parts.store, |db| store::events::append(db, &event.into(), clock.unix_ms()).await);
        if let Err(error) = written {
            tracing::warn!(%error, "the event that the manager stops could not be written");
        }
    }

    /// Deletes the oldest events, for as long as the store is open.
    pub async fn prune_events(self: Arc<Self>, keep: Keep) {
        let mut newest = self.parts.store.newest_event();
        loop {
            let newest_id = *newest.borrow_and_update();
            match self.prune_step(keep, newest_id).await {
                Ok(done) if done >= u64::try_from(PRUNE_BATCH).unwrap_or_default() => continue,
                Ok(_) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::debug!(%error, "events could not be pruned"),
            }
            let more = newest.wait_for(|now| *now >= newest_id + PRUNE_AFTER);
            // Events expire even when no new ones come.
            let _ = tokio::time::timeout(PRUNE_INTERVAL, more).await;
        }
    }

    async fn prune_step(&self, keep: Keep, newest: i64) -> Result<u64, StoreError> {
        let before = self.parts.clock.unix_ms() - i64::from(keep.days) * 24 * 60 * 60 * 1000;
        // The usual case costs a read and no write.
        let mut reader = self.parts.store.read().await?;
        if store::incidents::has_expired(&mut reader, before).await? {
            let expired =
                self.parts.store.commit(move |db| Box::pin(store::incidents::prune(db, before, PRUNE_BATCH)));
            expired.await?;
        }
        let Some((oldest, at)) = store::events::oldest_with_time(&mut reader).await? else { return Ok(0) };
        let keep = i64::from(keep.count);
        // There are no more rows than IDs.
        let last = if newest - oldest >= keep {
            store::events::last_beyond(&mut reader, keep, PRUNE_BATCH).await?.unwrap_or(0)
        } else {
            0
        };
        drop(reader);
        if oldest > last && at >= before {
            return Ok(0);
        }
        self.parts.store.commit(move |db| Box::pin(store::events::prune(db, before, last, PRUNE_BATCH))).await
    }
}
