//! Whoever writes what drivers tell of, and what else is told of that no use case does.

use std::time::Duration;

use tokio::time::sleep;

use super::clients::candidates;
use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::client::{AttributedBy, ClientFacts, Lease, Signs, attribute};
use crate::domain::compute_mode::HeldMode;
use crate::domain::count::counted;
use crate::domain::event::{Because, Cause, Details, EventType, KnownFrom, NewEvent, Predecessor, Subject};
use crate::domain::gpu::{ComputeMode, Gpu};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::store::told::ToldClient;
use crate::store::{self, Fate, Store, StoreError, Transaction};
use crate::supervisor::journal::{Entry, Item, Journal, Note, Visit};

/// Items that are taken from the journal at once.
const BATCH: usize = 64;
/// Notes that are written in one transaction, unless one item has more: it holds the only writer for as long.
const NOTES: usize = 32;
/// Pause before what could not be written is tried again; it stays in memory meanwhile, and what comes is bounded.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Events that one step of pruning takes away, so that no other write waits long.
const STEP: i64 = 500;
/// New events after which it is looked for old ones, and the longest pause between two such looks.
const EVERY: i64 = 250;
const REST: Duration = Duration::from_secs(60);

/// How long events are kept.
#[derive(Debug, Clone, Copy)]
pub struct Keep {
    /// So many days.
    pub days: u32,
    /// So many events.
    pub count: u32,
}

/// Writes what drivers tell of, in its order, until the journal is closed and empty.
pub async fn keep_journal(store: Store, journal: Journal, boot_id: String) {
    loop {
        let items = journal.take(BATCH).await;
        if items.is_empty() {
            return;
        }
        for part in parts(items) {
            if !write_part(&store, &journal, &boot_id, part).await {
                return;
            }
        }
    }
}

/// Items in parts of which each is written in one transaction, in their order.
fn parts(items: Vec<Item>) -> Vec<Vec<Item>> {
    let (mut parts, mut notes): (Vec<Vec<Item>>, usize) = (Vec::new(), 0);
    for item in items {
        let more = if let Item::Entry(entry) = &item { entry.notes.len().max(1) } else { 1 };
        match parts.last_mut() {
            Some(part) if notes + more <= NOTES => {
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

/// Writes items until they are written; false where that was given up, since the manager ends.
async fn write_part(store: &Store, journal: &Journal, boot_id: &str, items: Vec<Item>) -> bool {
    let mut pause = RETRY.0;
    loop {
        let (batch, boot_id) = (items.clone(), boot_id.to_owned());
        let written: Result<(), ServiceError> = store
            .write(move |db| {
                Box::pin(async move {
                    for item in batch {
                        write(&mut *db, item, &boot_id).await?;
                    }
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        match written {
            // A database of another machine is told nothing.
            Ok(()) | Err(ServiceError::ReadOnly(_)) => return true,
            Err(error) if journal.is_closed() => {
                tracing::error!(%error, "what happened last could not be written");
                return false;
            }
            Err(error) => tracing::warn!(%error, "what happened could not be written yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

async fn write(db: Transaction<'_>, item: Item, boot_id: &str) -> Result<(), ServiceError> {
    match item {
        Item::Lost { count, from, until } => {
            let message = format!(
                "{} could not be written, and {} lost",
                counted(count, "event"),
                if count == 1 { "is" } else { "are" }
            );
            let details =
                Details::Lost { count: Some(count), from: Some(from), until: Some(until), whole_from: None };
            let event = NewEvent::new(EventType::EventsLost, Subject::default(), message).with(details);
            store::events::append(db, &event, unix_ms()).await?;
        }
        Item::Event { at, event } => {
            store::events::append(db, &event, at).await?;
        }
        Item::Entry(Entry { daemon, at, notes }) => {
            for note in notes {
                note_down(&mut *db, &daemon, note, boot_id, at).await?;
            }
        }
    }
    Ok(())
}

async fn note_down(
    db: Transaction<'_>,
    daemon: &DaemonName,
    note: Note,
    boot_id: &str,
    at: i64,
) -> Result<(), ServiceError> {
    match note {
        Note::Happened(mut event) => {
            for affected in event.details.iter_mut().flat_map(Details::affected_clients_mut) {
                if let Some(client) = affected.client {
                    affected.tenant = store::told::tenant(&mut *db, client).await?;
                }
            }
            store::events::append(db, &event, at).await?;
        }
        Note::Came(client) => {
            let leases = store::leases::all(&mut *db, boot_id).await?;
            let candidates = candidates(&mut *db, daemon).await?;
            let (tenant, attributed_by) = attribute(&Signs::from(&*client), daemon, &leases, &candidates);
            let client = told(&client, tenant, attributed_by);
            store::told::put_client(&mut *db, daemon, boot_id, &client).await?;
            store::events::append(db, &came(daemon, &client), at).await?;
        }
        Note::Left(client, why) => {
            if let Some(client) = store::told::take_client(&mut *db, daemon, boot_id, client).await? {
                let mut event = store::told::left(daemon, &client);
                if let Some(kind) = why {
                    event = event.because(Because::Latest(kind));
                }
                store::events::append(db, &event, at).await?;
            }
        }
        Note::Visited(visit) => {
            // A manager that died between two reads of the log reads some of it again.
            if !store::told::was_told(&mut *db, daemon, visit.pid, visit.left).await? {
                let leases = store::leases::all(&mut *db, boot_id).await?;
                for event in visited(daemon, visit, &leases) {
                    store::events::append(&mut *db, &event, at).await?;
                }
            }
        }
        Note::ReadTo(place) => store::told::put_place(db, daemon, place).await?,
    }
    Ok(())
}

fn told(client: &ClientFacts, tenant: Option<TenantName>, attributed_by: AttributedBy) -> ToldClient {
    // The program and nothing behind it: arguments hold what is nobody else's business, and are not kept.
    let first = client.command.split_whitespace().next().unwrap_or_default();
    let program = first.rsplit('/').next().filter(|name| !name.is_empty());
    ToldClient {
        id: client.id,
        server: client.server,
        uid: client.uid,
        program: program.map(|name| name.chars().take(64).collect()),
        tenant,
        attributed_by,
    }
}

fn came(daemon: &DaemonName, client: &ToldClient) -> NewEvent {
    let subject = Subject {
        client: Some(client.id),
        server: Some(client.server),
        tenant: client.tenant.clone(),
        ..Subject::daemon(daemon)
    };
    let whose = client.tenant.as_ref().map(|tenant| format!(" of tenant {tenant}")).unwrap_or_default();
    let message = format!("process {}{whose} became a client of daemon {daemon}", client.id.pid);
    NewEvent::new(EventType::ClientConnected, subject, message).because(Cause::Client).with(Details::Client {
        pid: client.id.pid,
        uid: client.uid,
        program: client.program.clone(),
        attributed_by: client.attributed_by,
        known_from: KnownFrom::Look,
        logged_at: None,
    })
}

/// What is told of a client that only server.log has seen: its process is gone, so nothing else is known of it.
fn visited(daemon: &DaemonName, visit: Visit, leases: &[Lease]) -> [NewEvent; 2] {
    // The number of a process comes back, but not soon: a lease of that number is taken for its own if it is the only one.
    let mut holders = leases.iter().filter(|lease| lease.holder.pid == visit.pid);
    let tenant = match (holders.next(), holders.next()) {
        (Some(lease), None) => Some(lease.tenant.clone()),
        _ => None,
    };
    let attributed_by = if tenant.is_some() { AttributedBy::Lease } else { AttributedBy::Unattributed };
    let event = |kind: EventType, what: &str, logged_at: Option<i64>| {
        let subject =
            Subject { server: Some(visit.server), tenant: tenant.clone(), ..Subject::daemon(daemon) };
        let message = format!("process {} {what} of daemon {daemon}, as server.log alone tells", visit.pid);
        NewEvent::new(kind, subject, message).because(Cause::Client).with(Details::Client {
            pid: visit.pid,
            uid: None,
            program: None,
            attributed_by,
            known_from: KnownFrom::ServerLog,
            logged_at,
        })
    };
    [
        event(EventType::ClientConnected, "was a client", visit.came),
        event(EventType::ClientLeft, "left as a client", visit.left),
    ]
}

/// What is told when a manager takes up what is remembered; `before` is the last that was told of one.
pub(super) fn started(before: Option<EventType>) -> NewEvent {
    let predecessor = match before {
        None => Predecessor::None,
        Some(EventType::ManagerStopped) => Predecessor::Stopped,
        Some(EventType::DatabaseRestored) => Predecessor::Restored,
        Some(_) => Predecessor::Died,
    };
    let message = match predecessor {
        Predecessor::Died => {
            "the manager started; the one before it died, and what happened meanwhile is told as far as it can be seen now"
        }
        Predecessor::Restored => "the manager started with a database that was restored from a backup",
        Predecessor::Stopped | Predecessor::None => "the manager started",
    };
    NewEvent::new(EventType::ManagerStarted, Subject::default(), message).with(manager(predecessor))
}

fn manager(predecessor: Predecessor) -> Details {
    Details::Manager { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id(), predecessor }
}

/// Tells which of the GPUs that daemons hold are gone or back, by the last that was told of each.
pub(super) async fn tell_of_gpus(db: Transaction<'_>, present: &[Gpu], now: i64) -> Result<(), StoreError> {
    for gpu in store::gpus::held(&mut *db).await?.into_keys() {
        let Some(daemon) = store::daemons::holder(&mut *db, &gpu).await? else { continue };
        let here = present.iter().any(|known| known.uuid == gpu && known.present);
        let was_missing =
            store::events::gpu_was_last(&mut *db, &gpu, EventType::GpuMissing, EventType::GpuBack).await?;
        let (kind, what) = match (here, was_missing) {
            (false, false) => (EventType::GpuMissing, "is not listed by the driver"),
            (true, true) => (EventType::GpuBack, "is listed by the driver again"),
            _ => continue,
        };
        let message = format!("GPU {gpu} of daemon {daemon} {what}");
        let subject = Subject { gpu: Some(gpu), ..Subject::daemon(&daemon) };
        store::events::append(&mut *db, &NewEvent::new(kind, subject, message).because(Cause::Host), now)
            .await?;
    }
    Ok(())
}

/// Tells that a compute mode is about to be set for a daemon, or was put back; before that is written itself.
pub async fn tell_of_mode(
    db: Transaction<'_>,
    daemon: &DaemonName,
    gpu: &GpuUuid,
    held: Option<&HeldMode>,
    now: i64,
) -> Result<(), StoreError> {
    let before = store::compute_modes::all(&mut *db).await?.into_iter().find(|(known, _)| known == gpu);
    let before = before.map(|(_, held)| held);
    if before.as_ref().map(|held| held.wanted) == held.map(|held| held.wanted) {
        return Ok(());
    }
    let previous = held.or(before.as_ref()).map(|held| held.previous);
    let wanted = held.map(|held| held.wanted);
    let word = |mode: Option<ComputeMode>| mode.map(|mode| format!("{mode:?}")).unwrap_or_default();
    let message = match held {
        Some(_) => format!(
            "the compute mode of GPU {gpu} is set to {} for daemon {daemon}; it was {}",
            word(wanted),
            word(previous)
        ),
        None => format!("the compute mode of GPU {gpu} was put back to {}", word(previous)),
    };
    let subject = Subject { gpu: Some(gpu.clone()), ..Subject::daemon(daemon) };
    let event = NewEvent::new(EventType::ComputeModeChanged, subject, message)
        .with(Details::ComputeMode { previous, wanted });
    store::events::append(db, &event, now).await?;
    Ok(())
}

impl Service {
    /// Tells that the manager ends as it was told; nothing is told after it.
    pub async fn say_stopped(&self) {
        let event = NewEvent::new(EventType::ManagerStopped, Subject::default(), "the manager stops")
            .with(manager(Predecessor::Stopped));
        let written: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    store::events::append(db, &event, unix_ms()).await?;
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        if let Err(error) = written {
            tracing::warn!(%error, "that the manager stops could not be written");
        }
    }

    /// Takes the oldest events away, for as long as the store is open.
    pub async fn prune_events(self, keep: Keep) {
        let mut newest = self.parts.store.newest_event();
        loop {
            let seen = *newest.borrow_and_update();
            match self.prune_step(keep, seen).await {
                Ok(done) if done >= u64::try_from(STEP).unwrap_or_default() => continue,
                Ok(_) => {}
                Err(StoreError::Closed) => return,
                Err(error) => tracing::debug!(%error, "events could not be pruned"),
            }
            let more = newest.wait_for(|now| *now >= seen + EVERY);
            // Events grow old though none come.
            let _ = tokio::time::timeout(REST, more).await;
        }
    }

    async fn prune_step(&self, keep: Keep, newest: i64) -> Result<u64, StoreError> {
        let before = unix_ms() - i64::from(keep.days) * 24 * 60 * 60 * 1000;
        // Nothing to do costs a read, and no write.
        let mut reader = self.parts.store.read().await?;
        let Some((oldest, at)) = store::events::oldest_with_time(&mut reader).await? else { return Ok(0) };
        let keep = i64::from(keep.count);
        // There are no more rows than numbers.
        let last = if newest - oldest >= keep {
            store::events::last_beyond(&mut reader, keep, STEP).await?.unwrap_or(0)
        } else {
            0
        };
        drop(reader);
        if oldest > last && at >= before {
            return Ok(0);
        }
        self.parts
            .store
            .write(move |db| {
                Box::pin(
                    async move { Ok((store::events::prune(db, before, last, STEP).await?, Fate::Commit)) },
                )
            })
            .await
    }
}
