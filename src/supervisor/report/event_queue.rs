//! Observations of drivers on their way to the database: a bounded queue, so that no driver ever waits for a disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::event::NewEvent;
use crate::domain::{DaemonName, FilePlace};
use crate::supervisor::observe::server_log_events::UnobservedClient;

/// Most entries that may wait; further ones are counted and lost.
const WAITING: usize = 4096;

/// Observation of a driver.
#[derive(Debug, Clone)]
pub enum Observation {
    /// Event of the daemon.
    Event(Box<NewEvent>),
    /// New client that a poll found.
    ClientArrived(Box<ClientFacts>),
    /// End of a client, with the type of the event that caused it, if any.
    ClientLeft(ClientId, Option<crate::domain::event::EventType>),
    /// Process that came and went between two polls, according to server.log.
    UnobservedClient(UnobservedClient),
    /// Position to which server.log was read; everything that it reports is in this entry or in an earlier one.
    ReadTo(FilePlace),
}

/// Observations of a driver at one time, written in one transaction.
#[derive(Debug, Clone)]
pub struct DaemonObservations {
    /// Daemon of the driver.
    pub daemon: DaemonName,
    /// Time of the observations, in unix milliseconds.
    pub at: i64,
    /// Observations in the order in which they happened.
    pub observations: Vec<Observation>,
}

/// Item of the queue.
#[derive(Debug, Clone)]
pub enum QueuedItem {
    /// Observations of a driver.
    DaemonObservations(DaemonObservations),
    /// Event of the manager itself that could not be written at once.
    Event {
        /// Time of the event, in unix milliseconds.
        at: i64,
        /// Event to write.
        event: Box<NewEvent>,
    },
    /// Loss of the observations that followed here, since nothing could be written.
    Lost {
        /// Number of lost observations.
        count: u64,
        /// Time of the first of them, in unix milliseconds.
        from: i64,
        /// Time of the last of them, in unix milliseconds.
        until: i64,
    },
}

/// Queue from the drivers to the writer of events; cheap to clone.
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
    /// Queues the observations of a daemon; never waits.
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

    /// Takes up to `most` items in their order. Waits for an item, and returns none once the queue is closed and empty.
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

    /// Returns true if the queue is closed: no further items come.
    pub fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedItem>> {
        // A panic elsewhere leaves the queue as it was before or after one item: both are consistent.
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
        // The item would come after the gap and not at its end: it counts as missing, too.
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
