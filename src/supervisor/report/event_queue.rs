//! What drivers report, on its way to the database: a bounded queue, so that no driver ever waits for a disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::event::NewEvent;
use crate::domain::{DaemonName, FilePlace};

/// Entries that may wait; what comes while there are so many is counted and lost.
const WAITING: usize = 4096;

/// Something that a driver observed.
#[derive(Debug, Clone)]
pub enum Observation {
    /// An event.
    Event(Box<NewEvent>),
    /// A poll found a new client.
    ClientArrived(Box<ClientFacts>),
    /// A client is gone, with the event that caused it, if any.
    ClientLeft(ClientId, Option<crate::domain::event::EventType>),
    /// A process came and went between two polls, as server.log reports.
    UnobservedClient(UnobservedClient),
    /// server.log was read so far, and everything that it reports is in this entry or in an earlier one.
    ReadTo(FilePlace),
}

/// A client that server.log alone reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnobservedClient {
    /// Its process ID.
    pub pid: u32,
    /// The server that it connected to.
    pub server: u32,
    /// When it came, in unix milliseconds, by the log.
    pub came: Option<i64>,
    /// When it left.
    pub left: Option<i64>,
}

/// The observations of a driver at one time, written in one transaction.
#[derive(Debug, Clone)]
pub struct DaemonObservations {
    /// The daemon.
    pub daemon: DaemonName,
    /// When, in unix milliseconds.
    pub at: i64,
    /// What happened, in this order.
    pub observations: Vec<Observation>,
}

/// What the queue gives.
#[derive(Debug, Clone)]
pub enum QueuedItem {
    /// Observations of a driver.
    DaemonObservations(DaemonObservations),
    /// An event of the manager itself that could not be written at once.
    Event {
        /// When, in unix milliseconds.
        at: i64,
        /// What happened.
        event: Box<NewEvent>,
    },
    /// That what followed here was lost, since nothing could be written.
    Lost {
        /// How many notes.
        count: u64,
        /// When the first of them was reported, in unix milliseconds.
        from: i64,
        /// When the last of them was.
        until: i64,
    },
}

/// From the drivers to the writer of events; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct EventQueue {
    shared: Arc<QueueState>,
}

#[derive(Debug, Default)]
struct QueueState {
    queue: Mutex<VecDeque<QueuedItem>>,
    closed: AtomicBool,
    wake: Notify,
}

impl EventQueue {
    /// Queues what was observed of a daemon; never waits.
    pub fn record(&self, entry: DaemonObservations) {
        if entry.observations.is_empty() {
            return;
        }
        let (observations, at) = (u64::try_from(entry.observations.len()).unwrap_or(u64::MAX), entry.at);
        self.push(QueuedItem::DaemonObservations(entry), observations, at);
    }

    /// Queues an event that concerns the manager itself.
    pub fn record_event(&self, event: NewEvent, at: i64) {
        self.push(QueuedItem::Event { at, event: Box::new(event) }, 1, at);
    }

    fn push(&self, item: QueuedItem, observations: u64, at: i64) {
        let mut queue = self.queue();
        if queue.len() < WAITING {
            queue.push_back(item);
        } else {
            match queue.back_mut() {
                Some(QueuedItem::Lost { count, until, .. }) => {
                    *count += observations;
                    *until = at;
                }
                _ => queue.push_back(QueuedItem::Lost { count: observations, from: at, until: at }),
            }
        }
        drop(queue);
        self.shared.wake.notify_one();
    }

    /// Takes up to `most` items, in their order; waits for one, and gives none once it is closed and empty.
    pub async fn take(&self, most: usize) -> Vec<QueuedItem> {
        loop {
            let waiting = self.shared.wake.notified();
            {
                let mut queue = self.queue();
                if !queue.is_empty() || self.is_closed() {
                    let some = most.min(queue.len());
                    return queue.drain(..some).collect();
                }
            }
            waiting.await;
        }
    }

    /// Lets the reader end once the queue is empty.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }

    /// Whether nothing more comes.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedItem>> {
        // A panic elsewhere leaves the queue as it was before or after one item: both are whole.
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::DomainEvent;

    fn entry(at: i64) -> DaemonObservations {
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let event = DomainEvent::DaemonReady { daemon: daemon.clone() };
        DaemonObservations { daemon, at, observations: vec![Observation::Event(Box::new(event.into()))] }
    }

    #[tokio::test]
    async fn overflowed_events_are_counted_in_their_place() {
        let queue = EventQueue::default();
        let waiting = i64::try_from(WAITING).expect("small");
        for at in 0..waiting + 3 {
            queue.record(entry(at));
        }
        let first = queue.take(1).await;
        assert!(matches!(&first[..], [QueuedItem::DaemonObservations(entry)] if entry.at == 0));
        // Room for one more would not be at the end of what is missing: it is missing, too.
        queue.record(entry(9_999));
        let rest = queue.take(usize::MAX).await;
        assert_eq!(rest.len(), WAITING);
        let Some(QueuedItem::Lost { count, from, until }) = rest.last() else {
            panic!("no loss is reported")
        };
        assert_eq!((*count, *from, *until), (4, waiting, 9_999));
        queue.record(entry(10_000));
        assert!(matches!(&queue.take(9).await[..], [QueuedItem::DaemonObservations(_)]), "it is whole again");
        queue.close();
        assert!(queue.take(9).await.is_empty());
    }
}
